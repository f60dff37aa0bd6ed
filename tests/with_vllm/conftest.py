"""Tests with the real vLLM. `scripts/test-vllm` runs them, in a virtual environment of their own: vLLM pins its own
torch and transformers, its CPU build is 300 MB, and it changes the process it runs in (threads, environment, the global
random state), which no other test should meet. `scripts/test` therefore does not collect this folder.
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
    """Run the bundled policy on the default task, small; the reports of its steps."""

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
