"""An engine of plain functions for test_process.py: what the text of a prompt says, it does."""

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
from winnow.engines.weight_versions import check_newer
from winnow.errors import ConfigError, EngineError
from winnow.records import Group, Prompt, Rollout, Sampling


def refuse() -> None:
    raise EngineError("no such prompt, please")


def leave_a_process_with_every_descriptor() -> None:
    """It keeps this one's end of the channel open."""
    if os.fork() == 0:
        time.sleep(600)
        os._exit(0)


# Done before the second rollout of a prompt with this text.
DEEDS: dict[str, Callable[[], object]] = {
    "die": lambda: (leave_a_process_with_every_descriptor(), os.kill(os.getpid(), signal.SIGKILL)),
    "close": lambda: (os.closerange(3, 100), time.sleep(600)),
    "hang": lambda: time.sleep(600),
    "refuse": refuse,
    "print": lambda: print("once upon a time\n" + "x" * 300_000 + "\nthe end", file=sys.stderr),
}


class Obedient:
    """Rollouts whose text says who sampled them: pid, an environment variable, and a digest of the weights."""

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
                if index == 0 and prompt.text in DEEDS:
                    DEEDS[prompt.text]()
                on_rollout(prompt, rollout(index, text, self.version))
        return []

    def load(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        check_newer(version, than=self.version)
        if "fire" in weights:
            raise ValueError("the device is on fire")
        names = next((name.split()[1:] for name in weights if name.startswith("only")), list(weights))
        self._weights = {name: take(name, weights[name]) for name in names}
        self.version = version


def take(name: str, weight: torch.Tensor) -> torch.Tensor:
    """Some names are deeds, too."""
    if name == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if name == "refuse":
        raise EngineError("enough of them")
    return weight


def digest(weights: Mapping[str, torch.Tensor]) -> str:
    """Of names, types, shapes and every bit."""
    found = hashlib.sha256()
    for name, weight in weights.items():
        found.update(f"{name} {weight.dtype} {tuple(weight.shape)}".encode())
        found.update(weight.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def rollout(index: int, text: str, version: int) -> Rollout:
    tokens = np.arange(index + 1)
    return Rollout(index=index, tokens=tokens, logprobs=-tokens / 3, text=text, finish="stop", version=version)


def obedient(*, version: int) -> Obedient:
    return Obedient(version)


def slow() -> Obedient:
    time.sleep(600)
    return Obedient()


def unhappy() -> Obedient:
    raise ConfigError("rollout.engine.device = 9: there is no such device")


def leaving() -> Obedient:
    print("loading ...")
    os._exit(3)


def parental() -> Obedient:
    """With a process of its own, whose pid it leaves in a file."""
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    with open(os.environ["WINNOW_TEST_PIDS"], "w") as file:
        file.write(f"{os.getpid()} {other.pid}")
    return Obedient()
