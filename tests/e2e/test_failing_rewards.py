"""A verifier's failure is not a wrong answer: a run with some goes on without them, a run with nothing else stops."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import winnow
from winnow.engines.base import Engine, EngineContext
from winnow.engines.scripted import scripted
from winnow.records import Prompt, Rollout
from winnow.state.logbook import read_metrics, read_rows

UNLUCKY = 3  # of ten rollouts the one with this index

REWARDS = f"""
import time

UNLUCKY = {UNLUCKY}

def even(rollout):
    return sum(ord(c) % 2 == 0 for c in rollout.text) / max(1, len(rollout.text))

def hangs(prompt, rollout):
    time.sleep(60 if rollout.index == UNLUCKY else 0)
    return even(rollout)

def raises(prompt, rollout):
    if rollout.index == UNLUCKY:
        raise RuntimeError("on purpose")
    return even(rollout)

def swallows_memory(prompt, rollout):
    if rollout.index == UNLUCKY:
        bytearray(2**29)
    return even(rollout)

def talks_nonsense(prompt, rollout):
    return "excellent" if rollout.index == UNLUCKY else even(rollout)

def returns_nan(prompt, rollout):
    return float("nan") if rollout.index == UNLUCKY else even(rollout)

def always_raises(prompt, rollout):
    return 1 / len("")

def always_hangs(prompt, rollout):
    time.sleep(60)
"""

Smallest = Callable[..., dict[str, Any]]


@pytest.fixture
def with_reward(smallest: Smallest, tmp_path: Path) -> Smallest:
    """The smallest run with ten rollouts per prompt and a reward of this file, short limits, a share of 0.2."""
    (tmp_path / "failing.py").write_text(REWARDS)

    def configuration(name: str, **changes: Any) -> dict[str, Any]:
        base = {
            "steps": 2,
            "reward": {"use": f"{tmp_path}/failing.py:{name}"},
            "rollout": {"prompts_per_step": 8, "rollouts_per_prompt": 10, "max_new_tokens": 8},
            "verify": {"timeout_seconds": 0.3, "memory_mb": 256, "max_failure_share": 0.2},
        }
        return smallest(**{**base, **changes})

    return configuration


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("hangs", "timeout"),
        ("raises", "raised"),
        ("swallows_memory", "memory"),
        ("talks_nonsense", "malformed"),
        ("returns_nan", "malformed"),
    ],
)
def test_a_tenth_that_fails_is_left_out_and_reported(name: str, cause: str, with_reward: Smallest) -> None:
    result = winnow.train(**with_reward(name))
    rows = list(read_rows(result.folder))
    assert len(rows) == 2 * 8 * 10
    for row in rows:
        failed = row["index"] == UNLUCKY
        assert (row["outcome"]["kind"] == "failed") is failed, row["outcome"]
        if failed:
            assert (row["outcome"]["cause"], row["reason"]) == (cause, f"failed: {cause}")
            assert (row["keep"], row["advantage"], row["weight"]) == (False, 0.0, None)
    for step in (row for row in read_metrics(result.folder) if "outcome/failed" in row):
        assert step["outcome/failed"] == step[f"outcome/failed/{cause}"] == 8
        assert step["reward/max"] <= 1.0


def test_the_same_tenth_stops_a_run_that_allows_a_twentieth(with_reward: Smallest) -> None:
    """After 20 failures, that is in the third step."""
    limits = {"timeout_seconds": 0.3, "memory_mb": 256, "max_failure_share": 0.05}
    with pytest.raises(winnow.VerifierError, match=r"raises' failed on 24 of its last \d+ verdicts \(limit 5.0%\)"):
        winnow.train(**with_reward("raises", steps=3, verify=limits))


@pytest.mark.parametrize(
    ("name", "finding"),
    [("always_raises", "ZeroDivisionError: division by zero"), ("always_hangs", "no verdict within 0.3 seconds")],
)
def test_nothing_but_failures_stops_the_run_with_the_first_of_them(
    name: str, finding: str, with_reward: Smallest
) -> None:
    rollout = {"prompts_per_step": 2, "rollouts_per_prompt": 2, "max_new_tokens": 8}
    with pytest.raises(winnow.VerifierError) as stopped:
        winnow.train(**with_reward(name, rollout=rollout))
    message = str(stopped.value)
    assert f"{name}' failed on every verdict" in message
    assert finding in message
    if name == "always_raises":
        assert 'failing.py", line' in message
        assert "return 1 / len" in message


SLEEPY = """
import time

def sleepy(prompt, rollout):
    time.sleep(0.02)
    return rollout.index % 2
"""


def one_after_another(context: EngineContext) -> Engine:
    """64 rollouts that finish 25 ms apart."""
    engine = scripted(context, script=["a", "bb", "ccc"])
    generate = engine.generate

    def spread_out(*request: Any, on_rollout: Callable[[Prompt, Rollout], None] | None = None, **more: Any) -> Any:
        def later(prompt: Prompt, rollout: Rollout) -> None:
            time.sleep(0.025)
            if on_rollout is not None:
                on_rollout(prompt, rollout)

        return generate(*request, on_rollout=later, **more)

    engine.generate = spread_out  # type: ignore[method-assign]
    return engine


def test_verdicts_are_reached_while_later_rollouts_are_sampled(smallest: Smallest, tmp_path: Path) -> None:
    """64 verdicts of 20 ms by one worker: less than a quarter of them is waited for after the last rollout."""
    (tmp_path / "sleepy.py").write_text(SLEEPY)
    result = winnow.train(
        **smallest(
            steps=2,
            reward={"use": f"{tmp_path}/sleepy.py:sleepy"},
            rollout={"engine": one_after_another, "prompts_per_step": 8, "rollouts_per_prompt": 8},
        )
    )
    last = read_metrics(result.folder)[1]  # workers start during the first
    assert last["budget/rollouts"] == 64
    assert last["seconds/generate"] >= 64 * 0.025
    assert last["seconds/verify"] < 64 * 0.02 / 4
