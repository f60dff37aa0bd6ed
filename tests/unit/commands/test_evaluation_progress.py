from __future__ import annotations

import io
import json
import os

from rich.console import Console
from typer.testing import CliRunner

from winnow.commands import app
from winnow.commands.eval import evaluation_progress
from winnow.view.screen import console_on


def test_without_a_terminal_a_long_part_has_a_line_now_and_then():
    now, out = [0.0], io.StringIO()
    with evaluation_progress(Console(file=out, width=80), clock=lambda: now[0]) as progress:
        progress.begin(40)
        progress.loading("bundled")
        progress.start_task("arithmetic")
        for second in range(1, 31):
            now[0] = float(second)
            progress.rollout(5)
        progress.part(8, 8)
    lines = out.getvalue().splitlines()
    assert "bundled" in lines[0]
    assert len(lines) == 4  # loading, at 11 and at 22 seconds, the part
    assert ["11/40" in lines[1], "22/40" in lines[2], "30/40" in lines[3]] == [True, True, True]
    assert all("arithmetic" in line for line in lines[1:])


def test_the_metrics_are_written_if_the_results_cannot_be_printed(tmp_path, monkeypatch):
    def closed(text, **how):
        raise BrokenPipeError

    monkeypatch.setattr("winnow.commands.eval.print_text", closed)
    few = ["--task=arithmetic", "--problems=1", "--samples=1", "--no-greedy", "--set=rollout.max_new_tokens=2"]
    file = tmp_path / "metrics.json"
    few += ["--set=verify.workers=0", "--set=task.size=8"]
    result = CliRunner().invoke(app, ["eval", "bundled", *few, "--json", str(file)])
    assert result.exit_code != 0
    assert json.loads(file.read_text())["tasks"]["arithmetic"]["problems"] == 1


def test_a_closed_pipe_ends_the_display_and_not_the_evaluation():
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as out, evaluation_progress(console_on(out)) as progress:
        os.close(reading)
        progress.begin(8)
        progress.loading("bundled")
        progress.start_task("arithmetic")
        for problem in range(3):
            progress.rollout(5)
            progress.part(problem, 3)
    assert "3/8" in progress.line()
