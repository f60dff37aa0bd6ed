"""Commands and readers of logs that installed packages add by entry points, winnow_lab among them."""

from __future__ import annotations

import functools
import importlib.metadata
import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

import checkout
from refusals import check_printed_error
from winnow.commands import app, known_commands, syntax_of
from winnow.errors import ConfigError, DataError
from winnow.installed import registering
from winnow.state.foreign import ForeignGroup, open_log, readers
from winnow.state.logbook import read_metrics

COMMAND = '''
import typer

def greet(name: str, loud: bool = False) -> None:
    """Greet a run by its name."""
    typer.echo(name.upper() if loud else name)

count = 3
'''
READER = """
from winnow.state.foreign import ForeignLog

class Read(ForeignLog):
    program = "their trainer"
    names = "theirs.log"
    is_at = classmethod(lambda cls, path: (path / "theirs.log").exists())
    step_of = classmethod(lambda cls, name: None)
    files = lambda self: {}
    read = lambda self, step: []
    measured = lambda self: {0: {"policy/loss": 2.5}}
    notes = lambda self: []
    restoring = lambda self, step: ""

class Unrelated:
    pass

class Unnamed(Read):
    names = None

class Unfinished(ForeignLog):
    program, names = "their trainer", "theirs.log"
    is_at = Read.is_at
"""
Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """`install(distribution, points, files)`: what pip leaves behind, in a folder that is first on the path."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(site)
    readers.cache_clear()
    before = set(sys.modules)

    def add(distribution: str, points: dict[str, dict[str, str]], files: dict[str, str] | None = None) -> None:
        metadata = site / f"{distribution.replace('-', '_')}-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
        lines = [f"[{group}]\n{name} = {place}\n" for group, of in points.items() for name, place in of.items()]
        (metadata / "entry_points.txt").write_text("".join(lines))
        for name, text in (files or {}).items():
            (site / name).parent.mkdir(parents=True, exist_ok=True)
            (site / name).write_text(text)

    yield add
    readers.cache_clear()
    for name in set(sys.modules) - before:
        if name.startswith("theirs"):
            del sys.modules[name]


def run(*arguments: object):
    alone = typer.main.get_command(app)  # a new one: the tests' runner keeps the commands of the first call
    return CliRunner().invoke(alone, list(map(str, arguments)))


@pytest.fixture(autouse=True)
def without_click_runner_of_typer(monkeypatch):
    monkeypatch.setattr(typer.testing, "_get_command", lambda command: command)


def words(text: str) -> str:
    return " ".join(text.replace("│", " ").split())


def test_the_laboratory_is_listed_under_its_heading_and_called():
    shown = words(run("--help").output)
    own, _, lab = shown.partition("(winnow_lab)")
    assert "Train a policy." in own
    assert "Train a grid of configurations" not in own
    for name in checkout.declared()["winnow.commands"]:
        assert f" {name} " in lab
        assert run(name, "--help").exit_code == 0


def test_help_reads_a_package_s_command_and_imports_nothing_of_it(install):
    fails = 'raise RuntimeError("imported")\n'
    files = {
        "theirs/__init__.py": f'"""Greetings for runs. And more."""\n{fails}',
        "theirs/inner/__init__.py": fails,
        "theirs/inner/words.py": f"{COMMAND}\n{fails}",
    }
    install("their-package", {"winnow.commands": {"greet": "theirs.inner.words:greet"}}, files)
    shown = words(run("--help").output)
    assert shown.index("Greetings for runs (theirs)") < shown.index("greet Greet a run by its name.")
    assert "theirs" not in sys.modules


def test_a_package_s_command_has_its_arguments_and_options(install):
    install("their-package", {"winnow.commands": {"greet": "theirs:greet"}}, {"theirs.py": COMMAND})
    assert run("greet", "mine", "--loud").output == "MINE\n"
    assert words(run("greet", "--help").output).startswith("Usage: root greet")
    assert "Commands of their-package 1.0 (theirs)" in words(run("--help").output)


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ("theirs:nothing", "AttributeError"),
        ("theirs:count", "3"),
        ("theirs_absent.inner:greet", "ModuleNotFoundError"),
        ("theirs_exits:greet", "SystemExit"),
    ],
)
def test_a_command_that_cannot_be_imported_is_refused_by_its_package_and_hides_no_other(install, place, why):
    install(
        "their-package",
        {"winnow.commands": {"greet": place}},
        {"theirs.py": COMMAND, "theirs_exits.py": "raise SystemExit(0)"},
    )
    result = run("greet", "mine")
    check_printed_error(result, "'greet'", "their-package 1.0", place, why, code="config.not_installed")
    shown = run("--help")
    assert shown.exit_code == 0
    assert " greet " in shown.output
    assert run("compare", "--help").exit_code == run("list", "selectors").exit_code == 0


def test_no_package_takes_a_name_of_winnow_or_of_an_earlier_package(install):
    points = {"winnow.commands": {"train": "theirs:greet", "compare": "theirs:greet", "greet": "theirs:greet"}}
    install("a-package", points, {"theirs.py": COMMAND})
    install("b-package", {"winnow.commands": {"greet": "theirs_second:greet"}})
    known = known_commands()
    assert known["train"].module == "winnow.commands.train"
    assert known["compare"].module == "winnow_lab.compare"
    assert (known["greet"].module, known["greet"].package) == ("theirs", "a-package 1.0")


@pytest.mark.parametrize("text", ["def broken(:\n", "\0", b"\xff".decode("latin-1")])
def test_a_source_that_cannot_be_parsed_has_no_help(install, text):
    install("their-package", {"winnow.commands": {"greet": "theirs:greet"}}, {"theirs.py": text})
    assert run("--help").exit_code == 0
    assert syntax_of("theirs.no_such").body == syntax_of("no_such_package.inner").body == []


def test_a_checkout_without_metadata_says_once_what_to_run(install, tmp_path):
    assert registering() == ""
    install("winnow-rl", {"console_scripts": {"winnow": "winnow.commands:main"}})
    remedy = f"pip install --no-deps -e {checkout.PROJECT.parent}"
    assert registering() == remedy
    assert run("--help").output.count(remedy) == 1
    for unknown in ("compare", "no-such-command"):
        check_printed_error(run(unknown, "x"), f"'{unknown}'", remedy, code="config.not_installed")
    assert run("list", "selectors").exit_code == 0
    (tmp_path / "theirs").mkdir()
    with pytest.raises(DataError) as raised:
        read_metrics(tmp_path / "theirs")
    assert any(remedy in note for note in raised.value.__notes__)


def test_a_name_that_is_unknown_everywhere_has_the_nearest_one():
    result = run("comparee")
    assert result.exit_code == 2
    assert "'compare'" in result.output
    assert "pip" not in result.output


def test_the_readers_of_logs_are_those_of_the_entry_points():
    expected = checkout.declared()["winnow.logs"].values()
    assert [f"{kind.__module__}:{kind.__name__}" for kind in readers()[0]] == sorted(expected)
    assert readers()[1] == ()


def test_a_package_s_reader_reads_its_logs(install, tmp_path):
    install("their-package", {"winnow.logs": {"theirs": "theirs:Read"}}, {"theirs.py": READER})
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "theirs.log").touch()
    log = open_log(tmp_path / "run")
    assert log is not None
    assert log.program == "their trainer"
    assert read_metrics(tmp_path / "run") == [{"step": 0, "policy/loss": 2.5}]


@pytest.mark.parametrize(
    "place", ["theirs:Unrelated", "theirs:Unnamed", "theirs:Unfinished", "theirs:nothing", "theirs_absent:Read"]
)
def test_a_reader_that_cannot_be_used_is_named_where_a_folder_is_not_read(install, tmp_path, place):
    install("their-package", {"winnow.logs": {"theirs": place}}, {"theirs.py": READER})
    (tmp_path / "run").mkdir()
    assert open_log(tmp_path / "run") is None
    assert len(readers()[0]) == len(checkout.declared()["winnow.logs"])
    for arguments in (("plot", tmp_path / "run", "--summary-only"), ("show", tmp_path / "run")):
        result = run(*arguments)
        assert result.exit_code == 2
        assert "'theirs' of their-package 1.0" in result.output
    (tmp_path / "run" / "manifest.json").write_text('{"winnow_run": 1, "config": {}}')
    assert "their-package" not in run("show", tmp_path / "run").output


def test_the_reader_of_the_page_reads_its_logs(install, tmp_path):
    page = (Path(__file__).parents[3] / "docs" / "others.md").read_text(encoding="utf-8")
    code = page.split("```python\n# mypkg/logs.py\n")[1].split("```")[0]
    install("their-package", {"winnow.logs": {"theirs": "their_logs:MyTrainerLog"}}, {"their_logs.py": code})
    folder = tmp_path / "run"
    folder.mkdir()
    answers = [[("a", 1.0, 3), ("a", 0.0, 5), ("b", 1.0, 4)], [("a", 1.0, 2), ("a", 1.0, 2), ("b", 0.0, 2)]]
    for number, of_step in enumerate(answers, 1):
        rows = [{"prompt": prompt, "text": "x", "score": score, "tokens": size} for prompt, score, size in of_step]
        (folder / f"step_{number}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "step_10.jsonl").write_text(json.dumps({"prompt": "a", "text": "x", "score": 1.0, "tokens": 7}))
    rows = read_metrics(folder)
    assert [row["step"] for row in rows] == [0, 1, 9]
    assert [row["reward/mean"] for row in rows] == pytest.approx([2 / 3, 2 / 3, 1.0])
    assert [row["reward/accuracy"] for row in rows] == pytest.approx([2 / 3, 2 / 3, 1.0])
    assert [row["budget/tokens_generated"] for row in rows] == [12.0, 6.0, 7.0]
    assert [row["group/count"] for row in rows] == [2.0, 2.0, 1.0]
    shown = run("show", folder, "--step", "1")
    assert shown.exit_code == 0, shown.output


@pytest.mark.parametrize("name", ["texts", "parts", "kept", "advantages", "lengths", "correct"])
def test_a_group_of_another_log_has_one_item_of_each_field_per_rollout(name):
    fields = {
        "texts": ["x", "y"],
        "rewards": np.ones(2),
        "parts": [{}, {}],
        "kept": np.ones(2, dtype=bool),
        "advantages": np.ones(2),
        "lengths": np.ones(2),
        "correct": np.ones(2, dtype=bool),
    }
    make = functools.partial(ForeignGroup, prompt_id="1", prompt="?", answer=None)
    assert len(make(**fields).rewards) == 2
    with pytest.raises(ConfigError) as raised:
        make(**{**fields, name: fields[name][:1]})
    assert raised.value.code == "config.member_result"
    assert f"1 {name}" in raised.value.problem


def test_the_tests_see_the_entry_points_of_pyproject():
    for group, points in checkout.declared().items():
        found = {point.name: point.value for point in importlib.metadata.entry_points(group=group)}
        assert found == points
