"""Commands and readers of logs that installed packages add by entry points, winnow_lab among them."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import checkout
from refusals import check_printed_error
from winnow.commands import app, known_commands, syntax_of
from winnow.errors import DataError
from winnow.installed import registering
from winnow.state.foreign import open_log, readers
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
    is_at = classmethod(lambda cls, path: (path / "theirs.log").exists())
    folders_of = classmethod(lambda cls, path: [path.parent])
    step_of = classmethod(lambda cls, name: None)
    files = lambda self: {}
    read = lambda self, step: []
    measured = lambda self: {0: {"policy/loss": 2.5}}
    notes = lambda self: []
    restoring = lambda self, step: ""

class Unrelated:
    pass
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


@pytest.mark.parametrize("place", ["theirs:Unrelated", "theirs:nothing", "theirs_absent:Read"])
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


def test_the_tests_see_the_entry_points_of_pyproject():
    for group, points in checkout.declared().items():
        found = {point.name: point.value for point in importlib.metadata.entry_points(group=group)}
        assert found == points
