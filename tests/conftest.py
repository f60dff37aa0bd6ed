"""What several test folders share: tiny policies as folders, a reward with signal, and the smallest run."""

from __future__ import annotations

import functools
import gc
import importlib.metadata
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import torch
import typer.testing

import checkout
from cpu_times import CpuTimes

checkout.register()
for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):  # of a launcher: every run would wait for others
    os.environ.pop(name, None)
# What a test asks of this machine goes to no proxy, nor do requests of its processes.
os.environ["no_proxy"] = ",".join(filter(None, ["127.0.0.1,localhost", os.environ.get("no_proxy")]))
gc.disable()  # while tests are imported, which leaves little garbage: until pytest_collection_finish
torch.set_num_threads(1)
# A runner makes the commands from their functions at every call: 30 milliseconds for all of winnow's.
typer.testing._get_command = functools.cache(typer.testing._get_command)
# Each run reads nine packages' versions, which stay: 7 milliseconds.
importlib.metadata.version = functools.cache(importlib.metadata.version)
# No example fails because a machine is slow or busy.
hypothesis.settings.register_profile("winnow", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("winnow")


def pytest_configure(config: pytest.Config) -> None:
    """With WINNOW_CPU_TIMES=FILE, append the CPU seconds of each test to the file: see scripts/durations."""
    if file := os.environ.get("WINNOW_CPU_TIMES"):
        config.pluginmanager.register(CpuTimes(Path(file)))


def pytest_collection_finish() -> None:
    """What is imported by now stays: no collection of garbage is to look through it, again and again."""
    if products := sys.modules.get("winnow.models.products"):
        products.SECONDS = 1e-3  # every `winnow check` measures products, else for 0.4 seconds
    gc.collect()
    gc.freeze()
    gc.enable()


REPOSITORY = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def test_data() -> Path:
    """The folder of real problem sets; tests that want it skip where it is absent."""
    folder = Path(os.environ.get("WINNOW_TEST_DATA", REPOSITORY.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no problem sets in {folder}; set WINNOW_TEST_DATA to a folder that has gsm8k_train.jsonl and kin")
    return folder


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Random policies as model folders: tiny_folder("qwen2"), tiny_folder("llama")."""
    made: dict[str, Path] = {}

    def folder(arch: str) -> Path:
        if arch not in made:
            from transformers.utils.logging import disable_progress_bar

            from winnow.testing import tiny

            loaded = tiny(arch)
            made[arch] = tmp_path_factory.mktemp(arch)
            disable_progress_bar()  # else it is in what the test that needs the folder first prints
            loaded.model.save_pretrained(made[arch])
            loaded.tokenizer.save_pretrained(made[arch])
        return made[arch]

    return folder


# A random policy never answers right; which characters it writes is something it can learn.
EVEN = '''
def even(prompt, rollout):
    """Share of characters with an even code point."""
    return sum(ord(c) % 2 == 0 for c in rollout.text) / max(1, len(rollout.text))
'''


@pytest.fixture(scope="session")
def smallest_in(tiny_folder: Callable[[str], Path]) -> Callable[[Path], Callable[..., dict[str, Any]]]:
    """`smallest` of a folder, for a run that several tests read: smallest_in(folder)(steps=3)."""

    def in_folder(home: Path) -> Callable[..., dict[str, Any]]:
        (home / "even.py").write_text(EVEN)

        def configuration(arch: str = "qwen2", **changes: Any) -> dict[str, Any]:
            base: dict[str, Any] = {
                "steps": 2,
                "output": str(home / "run"),
                "threads": 1,
                "device": "cpu",
                "model": {"path": str(tiny_folder(arch))},
                "task": {"use": "arithmetic", "levels": [1], "size": 16},
                "prompt": {"template": "question_only"},  # a chat template is rendered by a fork of this process
                "reward": {"use": f"{home}/even.py:even"},
                "rollout": {"prompts_per_step": 4, "rollouts_per_prompt": 4, "max_new_tokens": 8},
                "select": {"use": "max_variance", "keep_per_prompt": 2},
                "evaluate": {"problems": 2, "rollouts_per_prompt": 2, "greedy": False},
                "optimizer": {"learning_rate": 1e-3},
                "verify": {"workers": 0},  # a separate process costs more than the run; tests of workers set this
            }
            for key, value in changes.items():
                mixed = isinstance(value, dict) and isinstance(base.get(key), dict)
                base[key] = {**base[key], **value} if mixed else value
            return base

        return configuration

    return in_folder


@pytest.fixture
def smallest(
    tmp_path: Path, smallest_in: Callable[[Path], Callable[..., dict[str, Any]]]
) -> Callable[..., dict[str, Any]]:
    """The smallest complete configuration, in tmp_path, with some keys replaced: smallest(steps=3, arch="llama")."""
    return smallest_in(tmp_path)
