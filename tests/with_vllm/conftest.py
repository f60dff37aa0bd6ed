"""Tests with the real vLLM. `scripts/test-vllm` runs them in a separate virtual environment, because vLLM pins torch
and transformers, and its CPU build is 300 MB. It also changes threads, environment and random state of its process,
which would affect other tests. `scripts/test` therefore does not collect this folder.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import winnow
from winnow.records import StepReport

if "WINNOW_TEST_VLLM" not in os.environ:
    collect_ignore_glob = ["test_*.py"]

VLLM = {"use": "vllm", "compiled": False, "key_value_gib": 0.25}  # compiling takes longer than these runs
Train = Callable[..., list[StepReport]]


@pytest.fixture
def train(tmp_path: Path) -> Train:
    """A function that trains the bundled policy on a small default task and returns the reports of its steps."""

    def run(*, resume: bool = False, engine: dict[str, Any] | None = None, **changes: Any) -> list[StepReport]:
        events: list[Any] = []
        rollout = {"prompts_per_step": 16, "rollouts_per_prompt": 8, "max_new_tokens": 48, **changes.pop("rollout", {})}
        config: dict[str, Any] = {
            "steps": 3,
            "output": str(tmp_path / "run"),
            "threads": 1,
            "device": "cpu",
            "task": {"use": "arithmetic", "levels": [2, 3, 4], "size": 1024},
            "rollout": {**rollout, "engine": {**VLLM, **(engine or {})}},
            "evaluate": {"problems": 2, "rollouts_per_prompt": 1},
            "optimizer": {"learning_rate": 1e-3, "eps": 1e-3},
            **changes,
        }
        winnow.train(**config, resume=resume, watch=events.append)
        return [event for event in events if isinstance(event, StepReport)]

    return run
