"""Every command on a full disk and in a read-only folder: a refusal, and a second attempt that succeeds."""

from __future__ import annotations

import json
import re
import typing
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import winnow.commands.fetch
from planned_run import write_planned_run
from refusals import check_printed_error, refused
from refusing_disks import full_disk, read_only
from synthetic_run import write_run
from winnow.commands import app
from winnow.errors import DataError
from winnow.models.folder import BUNDLED
from winnow.models.products import Products
from winnow.recipes import recipe_paths
from winnow.state.disk import write_output, write_output_folder
from winnow.state.folder import RunFolder
from winnow.tasks.rows import Record
from winnow.view.drawing import new_figure, save_figure
from winnow_lab.profile.points import PointResult, Work
from winnow_lab.sweep_folder import SweepFolder

CONFIG = recipe_paths()["arithmetic"]
FEW = (
    "task.size=64",
    "evaluate.problems=4",
    "evaluate.rollouts_per_prompt=2",
    "evaluate.greedy=false",
    "rollout.max_new_tokens=2",
    "threads=1",
    "verify.workers=0",
)
SETS = tuple(word for one in FEW for word in ("--set", one))
SWEEP = f'config = "{CONFIG}"\nseeds = [1]\n[variants.all]\nselect = "all"\n'


@dataclass(frozen=True)
class Writing:
    """A call that writes into the folder `place`. After the refusals the call is repeated; `again` replaces it for a
    training run, whose folder must then be free.
    """

    arguments: Callable[[Path, Path], list[Any]]  # from a folder to read, and the place
    again: Callable[[Path], Any] | None = None


WRITING: dict[str, list[Writing]] = {
    "train": [
        Writing(
            lambda here, place: ["train", CONFIG, *SETS, "--output", place / "run"],
            lambda place: RunFolder.open(place / "run", resume=False).close(),
        )
    ],
    "sweep": [
        Writing(
            lambda here, place: ["sweep", here / "sweep.toml", "--output", place / "sweep"],
            lambda place: SweepFolder.open(place / "sweep", resume=False).close(),
        )
    ],
    "eval": [
        Writing(lambda here, place: ["eval", "bundled", *SETS, "--task", "arithmetic", "--output", place / "eval"]),
        Writing(lambda here, place: ["eval", "bundled", *SETS, "--task", "arithmetic", "--json", place / "eval.json"]),
    ],
    "init": [
        Writing(lambda here, place: ["init", place / "mine", "--recipe", "gvm_pods"]),  # no plan is made for it
    ],
    "profile": [
        Writing(lambda here, place: ["profile", CONFIG, *SETS, *_FEWEST, "--output", place / "profile"]),
    ],
    "plan": [
        Writing(lambda here, place: ["plan", here / "planned", *_planned(), "--output", place / "plan.json"]),
    ],
    "plot": [
        Writing(lambda here, place: ["plot", here / "run", "--output", place / "plot.png"]),
        Writing(lambda here, place: ["plot", write_run(place / "run", steps=2)]),
    ],
    "report": [
        Writing(lambda here, place: ["report", here / "run", "--output", place / "report.html"]),
        Writing(lambda here, place: ["report", write_run(place / "run", steps=2)]),
    ],
    "export": [
        Writing(lambda here, place: ["export", here / "run", "--history", "--output", place / "history.json"]),
    ],
    "compare": [
        Writing(lambda here, place: ["compare", here / "curves.csv", "--output", place / "compared"]),
    ],
    "score": [
        Writing(lambda here, place: ["score", here / "run", *_REWARD, "--output", place / "rescored.jsonl"]),
    ],
    "fetch": [
        Writing(lambda here, place: ["fetch", "gsm8k", place / "gsm8k"]),
    ],
}
_FEWEST = ["--rollouts", "4", "--kept", "4", "--repeats", "1"]


def _planned() -> list[Any]:
    costs = Path(__file__).parents[3] / "configs" / "costs" / "pods_a.json"
    return ["--costs", costs, "--draws", "20"]


_REWARD = ["--reward", "length", "--workers", "0"]

# Calls that write nothing: they need no free disk space.
READING: dict[str, list[Callable[[Path], list[Any]]]] = {
    "check": [lambda here: ["check", CONFIG, *SETS]],
    "doctor": [lambda here: ["doctor"]],
    "list": [lambda here: ["list", "losses"]],
    "show": [lambda here: ["show", here / "run"]],
    "plot": [lambda here: ["plot", here / "run", "--summary-only"]],
    "export": [lambda here: ["export", here / "run", "--history"]],
    "compare": [lambda here: ["compare", here / "curves.csv"]],
    "score": [lambda here: ["score", here / "run", *_REWARD]],
    "replay": [lambda here: ["replay", here / "run"]],
    "chat": [lambda here: ["chat", "bundled", "-m", "hello", "--max-new-tokens", "1", "--device", "cpu"]],
    "push": [lambda here: ["push", BUNDLED, "me/adder", "--card"]],
    "audit": [lambda here: ["audit", "arithmetic", "--reward", "question_only", *_SMALL]],
}
_SMALL = ["--set", "task.size=8", "--set", "verify.workers=0"]

# Paths among the parameters of commands: READ, or WRITTEN by a call above.
READ = {"train.config", "check.config", "eval.config", "profile.config", "sweep.file", "show.run", "plot.run"}
READ |= {"push.model"}
READ |= {"plan.costs", "compare.costs", "report.runs", "export.run", "score.file", "replay.run"}
WRITTEN = {f"{name}.output" for name in ("train", "eval", "profile", "plot", "report", "export", "score", "compare")}
WRITTEN |= {"plan.output", "sweep.output", "eval.metrics", "fetch.folder", "init.folder"}

COMMANDS = {name: command.callback for name, command in typer.main.get_command(app).commands.items()}


def winnow_(*arguments: Any) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The inputs of the commands."""
    folder = tmp_path_factory.mktemp("read")
    write_run(folder / "run", steps=2)
    write_planned_run(folder / "planned")
    (folder / "curves.csv").write_text("steps,accuracy\n1,0.5\n2,0.6\n")
    (folder / "sweep.toml").write_text(SWEEP)
    winnow_("plot", folder / "run", "-o", folder / "first.png")  # matplotlib writes a cache the first time
    return folder


@pytest.fixture(autouse=True)
def a_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    def fetched(source: Any, folder: Path) -> list[str]:
        records = [Record({"question": "1 + 1?", "answer": "#### 2"}, "here")] * 9
        return whole(source, folder, read=lambda *_, **__: records)

    whole = winnow.commands.fetch.fetch_data
    monkeypatch.setattr("winnow.commands.fetch.fetch_data", fetched)


@pytest.fixture(autouse=True)
def nothing_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """The points of a profile and a doctor's products are not measured, and pictures are empty."""

    def found(job: Any, *_: Any, **__: Any) -> PointResult:
        return PointResult(job.point, "measured", seconds=(1.0,), work=Work(tokens=8))

    monkeypatch.setattr("winnow_lab.profile.measurement.measure_in_subprocess", found)
    products = Products(512, 1024, 1024, 1, {"float32": 1.0, "bfloat16": 1.0}, 1.0)
    monkeypatch.setattr("winnow.models.products.measure_products", lambda: products)
    for name in ("winnow.run_view.plot.draw", "winnow_lab.compare.picture.draw_comparison"):
        monkeypatch.setattr(name, lambda *_, **__: new_figure(1, 1))

    def empty(panels: Any, outputs: Any, **_: Any) -> None:
        for path in outputs:
            save_figure(new_figure(1, 1), path, dpi=10)

    monkeypatch.setattr("winnow_lab.profile.picture.draw", empty)


def test_every_command_and_each_of_its_paths_is_called_here() -> None:
    assert set(COMMANDS) == set(WRITING) | set(READING)
    paths = {
        f"{command}.{name}"
        for command, callback in COMMANDS.items()
        for name, kind in typing.get_type_hints(callback).items()
        if any(part is Path for part in (kind, *typing.get_args(kind))) or name in ("output", "folder")
    }
    assert paths == READ | WRITTEN
    assert {path.partition(".")[0] for path in WRITTEN} == set(WRITING)


def check_refused(result: Any) -> None:
    """The command printed an error about writing, and no traceback."""
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    assert re.search(r"(?m)^error \((data\.unwritable|run_folder\.(unwritable|unsaved))\)", result.stderr), (
        result.output
    )


CALLS = [
    pytest.param(call, id=f"{name}-{i}") for name, calls in sorted(WRITING.items()) for i, call in enumerate(calls)
]


@pytest.mark.parametrize("call", CALLS)
def test_a_command_that_cannot_write_is_refused_and_then_succeeds(call, here, tmp_path):
    place = tmp_path / "place"
    place.mkdir()
    arguments = call.arguments(here, place)
    before = contents(place)
    for refuses in refusals(place):
        with refuses:
            result = winnow_(*arguments)
        check_refused(result)
        assert {path: data for path, data in contents(place).items() if not hidden(path)} == before
    if call.again is not None:
        call.again(place)
        return
    result = winnow_(*arguments)
    assert result.exit_code == 0, result.output
    assert set(contents(place)) > set(before)
    assert not [path for path in contents(place) if path.endswith((".draft", ".unfinished"))]


@pytest.mark.parametrize(
    "call", [pytest.param(call, id=name) for name, calls in sorted(READING.items()) for call in calls]
)
def test_a_command_that_only_reads_needs_no_disk_space(call, here):
    """Nor a folder that may be written to."""
    with full_disk(16), read_only(here):
        result = winnow_(*call(here))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code in ((0, 1) if call(here) == ["doctor"] else (0,)), result.output


def refusals(place: Path) -> Iterator[AbstractContextManager[None]]:
    """A disk with room for the beginning of a file, one with room for a lock, and a read-only folder."""
    yield full_disk(16)
    yield full_disk(64)
    yield read_only(place)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def hidden(path: str) -> bool:
    """A lock file, which contains no data and does not affect a second attempt."""
    return Path(path).name == ".lock"


def test_a_failed_write_leaves_the_older_file_and_no_draft(tmp_path):
    write_output(tmp_path / "a.json", b"older")
    for refuses in refusals(tmp_path):
        with refuses, pytest.raises(DataError):
            write_output(tmp_path / "a.json", b"newer" * 100)
    assert contents(tmp_path) == {"a.json": b"older"}


def test_a_folder_of_files_is_written_completely_or_not_at_all(tmp_path):
    with full_disk(64), pytest.raises(DataError):
        write_output_folder(tmp_path / "out", {"small": b"1", "large": b"2" * 100})
    assert not list(tmp_path.iterdir())
    write_output_folder(tmp_path / "out", {"small": b"1", "large": b"2" * 100})
    assert len(contents(tmp_path)) == 2
    with pytest.raises(DataError):
        write_output_folder(tmp_path / "out", {"small": b"3"})
    assert contents(tmp_path)["out/small"] == b"1"


def test_printing_to_a_full_disk_is_refused(monkeypatch, capfd):
    from winnow.commands.command_line import print_text

    with open("/dev/full", "w") as full, monkeypatch.context() as patched:
        patched.setattr("sys.stdout", full)
        with refused(DataError, code="data.unwritable"):
            print_text("a line")


ROWS = [{"text": str(i), "answer": "1", "id": f"r{i}"} for i in range(20)]


def scored_lines(path: Path) -> list[dict[str, Any]]:
    return [{**json.loads(line), "seconds": None} for line in path.read_text().splitlines()]


@pytest.fixture
def scoring(tmp_path: Path) -> Callable[..., Any]:
    """`winnow score` of 20 rows, with a reward that is interrupted at each row whose number is in the file `stop`."""
    (tmp_path / "mine.py").write_text(
        "from pathlib import Path\n"
        "def odd(prompt, rollout):\n"
        "    with open(Path(__file__).with_name('judged'), 'a') as file:\n"
        "        file.write(rollout.text + '\\n')\n"
        "    stop = Path(__file__).with_name('stop')\n"
        "    if stop.exists() and rollout.text in stop.read_text().split():\n"
        "        stop.unlink()\n"
        "        raise KeyboardInterrupt\n"
        "    return int(rollout.text) % 2\n"
    )
    (tmp_path / "saved.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))

    def call(output: str, *more: str) -> Any:
        reward = ("--reward", f"{tmp_path}/mine.py:odd", "--workers", "0")
        return winnow_("score", tmp_path / "saved.jsonl", *reward, "--output", tmp_path / output, *more)

    return call


def test_a_resumed_score_writes_the_same_file(scoring, tmp_path):
    assert scoring("whole.jsonl").exit_code == 0
    (tmp_path / "judged").unlink()
    (tmp_path / "stop").write_text("12")
    stopped = scoring("cut.jsonl")
    assert stopped.exit_code == 130
    assert "--resume" in stopped.stderr
    assert not (tmp_path / "cut.jsonl").exists()
    kept = tmp_path / "cut.jsonl.unfinished" / "rows.jsonl"
    whole_lines = kept.read_bytes()
    assert whole_lines.count(b"\n") == 12
    kept.write_bytes(whole_lines + b'{"line":13,"id"')  # as after a kill
    check_printed_error(scoring("cut.jsonl"), kept.parent, code="data.exists")
    assert kept.read_bytes().startswith(whole_lines)

    resumed = scoring("cut.jsonl", "--resume")
    assert resumed.exit_code == 0, resumed.output
    assert (tmp_path / "cut.jsonl").read_bytes().startswith(whole_lines)
    assert scored_lines(tmp_path / "cut.jsonl") == scored_lines(tmp_path / "whole.jsonl")
    judged = [int(line) for line in (tmp_path / "judged").read_text().split()]
    assert judged == [*range(13), *range(12, 20)]
    assert resumed.stdout == scoring("third.jsonl").stdout  # the summary is of all rows
    assert not kept.parent.exists()


@pytest.mark.parametrize("what", ["the rows", "the reward's options", "the reward's file"])
def test_a_score_is_only_resumed_with_the_same_rows_and_reward(scoring, tmp_path, what):
    (tmp_path / "stop").write_text("5")
    scoring("cut.jsonl")
    before = (tmp_path / "cut.jsonl.unfinished" / "rows.jsonl").read_bytes()
    more: tuple[str, ...] = ()
    match what:
        case "the rows":
            (tmp_path / "saved.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS[1:]))
        case "the reward's options":
            more = ("--set", "verify.timeout_seconds=9")
        case "the reward's file":
            (tmp_path / "mine.py").write_text((tmp_path / "mine.py").read_text() + "\n")
    check_printed_error(scoring("cut.jsonl", "--resume", *more), code="data.changed")
    assert (tmp_path / "cut.jsonl.unfinished" / "rows.jsonl").read_bytes() == before


def test_a_score_on_a_disk_that_fills_up_keeps_its_rows(scoring, tmp_path):
    with full_disk(1500):
        result = scoring("cut.jsonl")
    check_printed_error(result, "--resume", code="data.unwritable")
    assert 0 < (tmp_path / "cut.jsonl.unfinished" / "rows.jsonl").read_bytes().count(b"\n") < 20
    assert scoring("cut.jsonl", "--resume").exit_code == 0
    assert [row["id"] for row in scored_lines(tmp_path / "cut.jsonl")] == [row["id"] for row in ROWS]


def test_a_resume_without_rows_is_refused(scoring):
    check_printed_error(scoring("new.jsonl", "--resume"), code="data.missing")
