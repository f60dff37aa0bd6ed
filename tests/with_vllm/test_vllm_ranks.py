"""Two ranks with one engine each: every engine samples from the trained policy, and a stale one is reported."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).parent / "rank_program.py"
TOLERANCE = 1e-3
SECONDS = 900  # most of it is the start of vLLM


def reports(tmp_path: Path, learner: str, process: str, *forgetful: str, **changes: Any) -> list[dict[str, float]]:
    """The metrics of three steps of two ranks."""
    config = {
        "steps": 3,
        "output": str(tmp_path / "run"),
        "threads": 1,
        "device": "cpu",
        "task": {"use": "arithmetic", "levels": [2, 3, 4], "size": 1024},
        "rollout": {
            "prompts_per_step": 16,
            "rollouts_per_prompt": 8,
            "max_new_tokens": 48,
            "engine": {"use": "vllm", "compiled": False, "key_value_gib": 0.25, "process": process},
        },
        "evaluate": {"problems": 2, "rollouts_per_prompt": 1},
        "optimizer": {"learning_rate": 1e-3, "eps": 1e-3},
        "ranks": {"learner": learner, "timeout_seconds": SECONDS},
        **changes,
    }
    file, metrics = tmp_path / "config.json", tmp_path / "reports.json"
    file.write_text(json.dumps(config))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    logs = [tmp_path / f"rank-{rank}.log" for rank in range(2)]
    started = []
    for rank, log in enumerate(logs):
        with log.open("w") as output:
            environment = {**os.environ, **common, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            command = [sys.executable, str(PROGRAM), str(file), str(metrics), *forgetful]
            started.append(subprocess.Popen(command, env=environment, stdout=output, stderr=output))
    try:
        codes = [process.wait(SECONDS) for process in started]
    finally:
        for process_ in started:
            process_.kill()
    assert codes == [0, 0], "\n".join(log.read_text()[-3000:] for log in logs)
    steps: list[dict[str, float]] = json.loads(metrics.read_text())
    return steps


@pytest.mark.parametrize("learner", ["replicated", "sharded"])
@pytest.mark.parametrize("process", ["inside", "own"])
def test_after_every_update_each_engine_samples_from_the_trained_policy(
    tmp_path: Path, learner: str, process: str
) -> None:
    steps = reports(tmp_path, learner, process)
    gaps = [step["policy/logprob_gap_max"] for step in steps]
    assert len(gaps) == 3
    assert max(gaps) < TOLERANCE, gaps
    assert {step["ranks/count"] for step in steps} == {2}
    assert len({step["policy/entropy"] for step in steps}) == 3  # the updates changed what is sampled


def test_a_sharded_adapter_is_served_beside_the_base(tmp_path: Path) -> None:
    steps = reports(tmp_path, "sharded", "own", model={"lora": {"rank": 4}}, optimizer={"learning_rate": 1e-2})
    assert max(step["policy/logprob_gap_max"] for step in steps) < TOLERANCE


@pytest.mark.parametrize("process", ["inside", "own"])
def test_stale_weights_of_one_rank_are_reported_within_a_step(tmp_path: Path, process: str) -> None:
    """A planted bug in rank 1's worker: it records the version, and copies nothing."""
    steps = reports(tmp_path, "replicated", process, "1")
    assert [step["policy/parity_alarm"] for step in steps] == [0, 1, 1]
    assert [step.get("ranks/out_of_parity") for step in steps] == [None, 1, 1]
