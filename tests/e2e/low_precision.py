"""What the tests of runs in few bits share: a short run in which every group teaches, and the comparison of bits."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


def settings(output: Path, *, steps: int, **keys: Any) -> dict[str, Any]:
    """Of a run on the bundled policy; `keys` are those that the test is about."""
    return {
        "output": str(output),
        "steps": steps,
        "device": "cpu",
        "threads": 1,
        "task": {"use": "arithmetic", "size": 32},  # to draw and to render 2,048 takes longer than the run
        "rollout": {"prompts_per_step": 3, "rollouts_per_prompt": 4, "max_new_tokens": 8, **keys.pop("rollout", {})},
        "select": "all",
        "verify": {"workers": 0},
        "reward": half_of_the_tokens,
        **keys,
    }


def half_of_the_tokens(prompt: Any, rollout: Any) -> float:
    """Differs between rollouts, so that every group teaches."""
    return float((rollout.tokens % 2 == 0).mean() + 0.01 * len(rollout.tokens))


def broken_off(straight: Path, output: Path, *, steps: int) -> None:
    """What a run of so many steps, which saves after each, leaves where it ends before its last."""
    shutil.copytree(straight, output)
    shutil.rmtree(output / "checkpoints" / f"step-{steps:06}")


def check_same_bits(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert torch.equal(value, other[name]), name
