"""vLLM in a second process, with the same interface."""

from __future__ import annotations

import os
import signal
import subprocess

import numpy as np

from refusals import refused
from winnow.engines.base import EngineContext
from winnow.engines.served import ServerEngine
from winnow.engines.vllm.engine import vllm
from winnow.errors import EngineError
from winnow.models.load import load
from winnow.records import Prompt, Sampling

OWN = {"process": "own", "timeout_seconds": 60.0}


def test_it_samples_from_the_trained_policy(train):
    reports = train(steps=3, engine=OWN)
    gaps = [report.metrics["policy/logprob_gap_max"] for report in reports]
    assert max(gaps) < 1e-3, gaps


def test_it_samples_the_same_rollouts_as_inside():
    loaded = load("bundled")
    prompt = Prompt(id="p", tokens=np.arange(1, 9), text="", answer=None, task="none")
    rollouts = []
    for process in ("inside", "own"):
        context = EngineContext(
            model=loaded.model,
            tokenizer=loaded.tokenizer,
            stop_tokens=loaded.stop_tokens,
            max_rollouts_at_once=8,
            context_tokens=64,
        )
        engine = vllm(context, process=process, compiled=False, key_value_gib=0.25)
        rollouts.append(engine.generate([prompt], [4], Sampling(max_new_tokens=16), seed=(0,))[0].rollouts)
        engine.close()
    for a, b in zip(*rollouts, strict=True):
        np.testing.assert_array_equal(a.tokens, b.tokens)
        np.testing.assert_allclose(a.logprobs, b.logprobs, atol=1e-5)


def test_a_run_whose_engine_is_killed_within_a_step_can_be_resumed(train, tmp_path, monkeypatch):
    """The engine's process is killed before step 2 samples."""
    killed, load = tmp_path / "killed", ServerEngine.load

    def killing(self, weights, version):
        load(self, weights, version)
        if version == 2 and not killed.exists():
            killed.touch()
            os.kill(child(), signal.SIGKILL)

    monkeypatch.setattr(ServerEngine, "load", killing)
    with refused(EngineError, "SIGKILL", "128 rollouts", code="engine.failed"):
        train(steps=4, engine=OWN, checkpoint={"every": 1})
    resumed = train(steps=4, engine=OWN, checkpoint={"every": 1}, resume=True)
    assert [report.step for report in resumed] == [2, 3]


def child() -> int:
    """The pid of the engine's process, a child of this one."""
    pids = subprocess.run(["pgrep", "-P", str(os.getpid()), "-f", "winnow.engines.process.child"], capture_output=True)
    return int(pids.stdout)
