"""A user's own engine for test_engine_killed.py: `hf` in a second process, which dies when the environment says so."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import torch

from winnow.engines.base import Engine, EngineContext
from winnow.engines.hf import hf
from winnow.engines.process.engine import SecondProcess
from winnow.models.load import load
from winnow.records import Prompt, Rollout


def second(context: EngineContext, *, folder: str, timeout_seconds: float) -> Engine:
    """What the configuration names."""
    options = {"folder": folder, "at_once": context.max_rollouts_at_once}
    return SecondProcess(f"{__file__}:make", options, timeout_seconds=timeout_seconds)


def make(*, folder: str, at_once: int) -> Engine:
    """What runs in the second process."""
    torch.set_num_threads(1)
    loaded = load(folder, dtype="float32", device="cpu")
    engine = hf(
        EngineContext(
            model=loaded.model, tokenizer=loaded.tokenizer, stop_tokens=loaded.stop_tokens, max_rollouts_at_once=at_once
        )
    )
    if os.environ.get("WINNOW_TEST_ENGINE") == "dies":
        engine.generate = mortal(engine.generate)  # type: ignore[method-assign]
    return engine


def mortal(generate: Callable[..., Any]) -> Callable[..., Any]:
    """Killed in the middle of step 3, after some rollouts."""

    def until_killed(*request: Any, seed: tuple[Any, ...], on_rollout: Callable[..., None]) -> Any:
        def heard(prompt: Prompt, rollout: Rollout) -> None:
            on_rollout(prompt, rollout)
            if seed[1:] == ("rollout", 3) and rollout.index == 2:
                os.kill(os.getpid(), signal.SIGKILL)

        return generate(*request, seed=seed, on_rollout=heard)

    return until_killed
