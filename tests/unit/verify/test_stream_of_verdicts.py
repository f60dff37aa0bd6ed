"""Scoring outside a run, and workers that are warm before their first verdict."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from forked import fork_supervisors
from winnow.records import Prompt, Rollout
from winnow.rewards.extract import after_reasoning
from winnow.rewards.math_equivalence import algebra
from winnow.verify.verifiers import Verifiers

PARROT = """
import sys

def parrot(prompt, rollout):
    return int(rollout.text) % 1000

def has_algebra(prompt, rollout):
    return "math_verify" in sys.modules
"""


@pytest.fixture(autouse=True)
def forks(monkeypatch: pytest.MonkeyPatch) -> None:
    fork_supervisors(monkeypatch)


def room(tmp_path: Path, reward: dict[str, object] | None = None, **how: object) -> Verifiers:
    (tmp_path / "parrot.py").write_text(PARROT)
    settings = {"workers": 2, "timeout_seconds": 120.0, "memory_mb": 256, "max_failure_share": 0.01, "base": tmp_path}
    return Verifiers(reward or {"use": "parrot.py:parrot"}, **{**settings, **how})


def task(text: str) -> tuple[Prompt, Rollout]:
    tokens = np.zeros(1, np.int64)
    prompt = Prompt(id="same", tokens=tokens, text="Q", answer=r"\ln 5", task="t")
    return prompt, Rollout(index=0, tokens=tokens, logprobs=np.zeros(1), text=text, finish="stop", version=0)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_keeps_its_order_and_reads_at_most_ahead_tasks(tmp_path: Path, workers: int) -> None:
    read = 0

    def tasks() -> Iterator[tuple[Prompt, Rollout]]:
        nonlocal read
        for read in range(1, 301):
            yield task(str(read))

    with room(tmp_path, workers=workers) as verifiers:
        for done, outcome in enumerate(verifiers.stream(tasks(), ahead=16), start=1):
            assert outcome.reward == done
            assert read <= done + 15


def test_a_stream_of_nothing_but_failures_is_not_stopped(tmp_path: Path) -> None:
    with room(tmp_path) as verifiers:
        causes = [outcome.cause for outcome in verifiers.stream(task("no number") for _ in range(40))]
    assert causes == ["raised"] * 40


@pytest.mark.skipif(not algebra.available(), reason="math-verify is not installed")
@pytest.mark.parametrize(("grader", "loaded"), [("math", 1.0), ("strict", 0.0)])
def test_workers_are_born_with_the_algebra_they_need(tmp_path: Path, grader: str, loaded: float) -> None:
    parts = [{"use": "boxed", "options": {"grader": grader}}, {"use": "parrot.py:has_algebra"}]
    with room(tmp_path, {"parts": parts}, workers=1) as verifiers:
        (outcome,) = verifiers.stream([task("no box")])
    assert outcome.parts["has_algebra"] == loaded


def test_the_trainer_itself_stays_without_algebra() -> None:
    code = (
        "import sys, winnow.rewards; from winnow.rewards.compose import make_reward; make_reward({'use': 'boxed'});"
        "make_reward({'use': 'gsm8k'}); print('math_verify' in sys.modules, 'reasoning_gym' in sys.modules)"
    )
    if not algebra.available():
        pytest.skip("math-verify is not installed")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("a</think>b", "b"),
        ("a</think>b<think>c", "b"),
        ("<think>a", ""),
        ("<think>a</think>b</think>c", "c"),
        ("no tags", "no tags"),
    ],
)
def test_what_follows_the_reasoning(text: str, rest: str) -> None:
    assert after_reasoning(text) == rest
