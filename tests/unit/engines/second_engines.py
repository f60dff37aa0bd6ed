"""A fake engine for test_process.py: the text of a prompt or the name of a weight selects a failure."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from winnow.engines.base import Tolerance
from winnow.engines.freshness import check_newer
from winnow.errors import ConfigError, EngineError
from winnow.records import Group, Prompt, Rollout, Sampling


def refuse() -> None:
    raise EngineError("prompt 'refuse'", remedy="send another", key="prompt", code="engine.memory")


def leave_a_process_with_every_descriptor() -> None:
    """Fork a child that keeps this process's end of the channel open."""
    if os.fork() == 0:
        time.sleep(600)
        os._exit(0)


# Called before the last rollout of a prompt with this text.
FAILURES: dict[str, Callable[[], object]] = {
    "die": lambda: (leave_a_process_with_every_descriptor(), os.kill(os.getpid(), signal.SIGKILL)),
    "close": lambda: (os.closerange(3, 100), time.sleep(600)),
    "hang": lambda: time.sleep(600),
    "refuse": refuse,
    "print": lambda: print("first\n" + "x" * 300_000 + "\nlast", file=sys.stderr),
}


class FakeEngine:
    """The text of its rollouts contains its pid, an environment variable, and a digest of its weights."""

    logprob_tolerance = Tolerance(mean=0.25, tail=0.5)

    def __init__(self, version: int = 0) -> None:
        self.version = version
        self._weights: dict[str, torch.Tensor] = {}

    def generate(
        self,
        prompts: Sequence[Prompt],
        counts: Sequence[int],
        sampling: Sampling,
        *,
        seed: tuple[str | int, ...],
        on_rollout: Callable[[Prompt, Rollout], None],
    ) -> list[Group]:
        text = f"{os.getpid()} {os.environ.get('WINNOW_TEST_DEVICE')} {digest(self._weights)}"
        for prompt, count in zip(prompts, counts, strict=True):
            for index in reversed(range(1 if prompt.text == "lazy" else count)):
                if index == 0 and prompt.text in FAILURES:
                    FAILURES[prompt.text]()
                on_rollout(prompt, rollout(index, text, self.version))
        return []

    def load(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        check_newer(version, than=self.version)
        if "fire" in weights:
            raise ValueError("fire")
        names = next((name.split()[1:] for name in weights if name.startswith("only")), list(weights))
        self._weights = {name: accept(name, weights[name]) for name in names}
        self.version = version


def accept(name: str, weight: torch.Tensor) -> torch.Tensor:
    """Return the weight, unless its name selects a failure."""
    if name == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if name == "refuse":
        raise EngineError("weight 'refuse'", code="engine.memory")
    return weight


def digest(weights: Mapping[str, torch.Tensor]) -> str:
    """Hash names, types, shapes and every bit."""
    sha = hashlib.sha256()
    for name, weight in weights.items():
        sha.update(f"{name} {weight.dtype} {tuple(weight.shape)}".encode())
        sha.update(weight.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()


def rollout(index: int, text: str, version: int) -> Rollout:
    tokens = np.arange(index + 1)
    return Rollout(index=index, tokens=tokens, logprobs=-tokens / 3, text=text, finish="stop", version=version)


def fake(*, version: int) -> FakeEngine:
    return FakeEngine(version)


def slow() -> FakeEngine:
    time.sleep(600)
    return FakeEngine()


def refusing() -> FakeEngine:
    raise ConfigError("device = 9", remedy="choose 0", key="rollout.engine.device", code="config.unsupported")


def exiting() -> FakeEngine:
    print("loading ...")
    os._exit(3)


def parental() -> FakeEngine:
    """Make an engine that starts a process, and write both pids to a file."""
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    with open(os.environ["WINNOW_TEST_PIDS"], "w") as file:
        file.write(f"{os.getpid()} {other.pid}")
    return FakeEngine()
