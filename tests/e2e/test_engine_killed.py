"""An engine in a second process that is killed mid-step: the run ends with a message, and resumes to the same bits.

The engine's process is a fork; tests/unit/engines/test_process.py starts one as a run does.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from test_resume import digests, rows, write_config
from typer.testing import CliRunner

from forked_engine import fork_engines
from winnow.commands import app

ENGINE = Path(__file__).with_name("second_engine.py")
LIMIT_SECONDS = 600.0  # longer than a test may take: a death is noticed, not waited for


def test_a_run_whose_engine_is_killed_resumes_to_the_same_bits(smallest, tiny_folder, tmp_path, monkeypatch):
    def train(*arguments):
        return CliRunner().invoke(app, ["train", *map(str, arguments)])

    fork_engines(monkeypatch)
    config = smallest(steps=6, checkpoint={"every": 2}, evaluate={"every": 2})
    engine = {"use": f"{ENGINE}:second", "folder": str(tiny_folder("qwen2")), "timeout_seconds": LIMIT_SECONDS}
    tomls = {}
    for name, use in (("whole", "hf"), ("killed", engine)):
        changed = {**config, "output": str(tmp_path / name), "rollout": {**config["rollout"], "engine": use}}
        tomls[name] = write_config(tmp_path / f"{name}.toml", changed)

    undisturbed = train(tomls["whole"])
    assert undisturbed.exit_code == 0, undisturbed.output

    monkeypatch.setenv("WINNOW_TEST_ENGINE", "dies")
    killed = train(tomls["killed"])
    assert killed.exit_code == 1, killed.output
    assert "SIGKILL" in killed.stderr
    assert {"16", "3"} <= set(re.findall(r"\d+", killed.stderr)), "16 rollouts, the weights of version 3"
    assert str(tmp_path / "killed" / "checkpoints" / "step-000003") in killed.stderr
    assert "Traceback" not in killed.stderr
    assert sorted(os.listdir(tmp_path / "killed" / "checkpoints")) == ["step-000002", "step-000003"]

    monkeypatch.delenv("WINNOW_TEST_ENGINE")
    resumed = train(tomls["killed"], "--resume")
    assert resumed.exit_code == 0, resumed.output
    assert "Exception" not in resumed.stderr
    assert digests(tmp_path / "killed") == digests(tmp_path / "whole")  # another process changes no bit either
    for log in ("metrics.jsonl", "rollouts"):
        assert rows(tmp_path / "killed" / log) == rows(tmp_path / "whole" / log), log
