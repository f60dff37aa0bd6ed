"""A verifier's failure is not a wrong answer: a run with some goes on without them, a run with nothing else stops."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import winnow
from refusals import refused
from winnow.engines.base import Engine, EngineContext
from winnow.engines.scripted import scripted
from winnow.records import Prompt, Rollout
from winnow.state.logbook import read_metrics, read_rows

PROMPTS = 2
UNLUCKY = 3  # of ten rollouts the one with this index
FAILS = {  # of ten rollouts those with these indices: by which function, and for what cause
    3: ("raises", "raised"),
    4: ("hangs", "timeout"),
    5: ("swallows_memory", "memory"),
    6: ("talks_nonsense", "malformed"),
    7: ("returns_nan", "malformed"),
}

REWARDS = f"""
import time

UNLUCKY = {UNLUCKY}

def even(rollout):
    return sum(ord(c) % 2 == 0 for c in rollout.text) / max(1, len(rollout.text))

def hangs(prompt, rollout):
    time.sleep(600)

def raises(prompt, rollout):
    if rollout.index == UNLUCKY:
        raise RuntimeError("on purpose")
    return even(rollout)

def swallows_memory(prompt, rollout):
    bytearray(2**29)

def talks_nonsense(prompt, rollout):
    return "excellent"

def returns_nan(prompt, rollout):
    return float("nan")

def half_fail(prompt, rollout):
    name = { ({index: name for index, (name, _) in FAILS.items()}) }.get(rollout.index)
    return globals()[name](prompt, rollout) if name else even(rollout)

def always_raises(prompt, rollout):
    return 1 / len("")

def always_hangs(prompt, rollout):
    time.sleep(600)
"""

Smallest = Callable[..., dict[str, Any]]


@pytest.fixture
def with_reward(smallest: Smallest, tmp_path: Path) -> Smallest:
    """The smallest run with ten rollouts per prompt and a reward of this file, and a share of 0.2."""
    (tmp_path / "failing.py").write_text(REWARDS)

    def configuration(name: str, **changes: Any) -> dict[str, Any]:
        base = {
            "steps": 2,
            "reward": {"use": f"{tmp_path}/failing.py:{name}"},
            "rollout": {"prompts_per_step": PROMPTS, "rollouts_per_prompt": 10, "max_new_tokens": 8},
            "verify": {"workers": 1, "timeout_seconds": 60.0, "memory_mb": 256, "max_failure_share": 0.2},
        }
        return smallest(**{**base, **changes})

    return configuration


def test_what_fails_in_any_way_is_left_out_and_reported(with_reward: Smallest) -> None:
    limits = {"workers": 1, "timeout_seconds": 3.0, "memory_mb": 256, "max_failure_share": 0.6}
    result = winnow.train(**with_reward("half_fail", steps=1, verify=limits))
    rows = list(read_rows(result.folder))
    assert len(rows) == PROMPTS * 10
    for row in rows:
        failed = row["index"] in FAILS
        assert (row["kind"] == "failed") is failed, row
        if failed:
            name, cause = FAILS[row["index"]]
            assert (row["cause"], row["reason"]) == (cause, f"failed: {cause}"), name
            assert (row["keep"], row["advantage"], row["weight"]) == (False, 0.0, None), name
    (step,) = (row for row in read_metrics(result.folder) if "outcome/failed" in row)
    causes = [cause for _, cause in FAILS.values()]
    for cause in causes:
        assert step[f"outcome/failed/{cause}"] == PROMPTS * causes.count(cause), cause
    assert step["outcome/failed"] == PROMPTS * len(FAILS)
    assert step["outcome/timed_out"] == PROMPTS
    assert step["reward/max"] <= 1.0


def test_a_tenth_that_fails_stops_a_run_that_allows_a_twentieth(with_reward: Smallest) -> None:
    """After 20 failures, that is in the third step."""
    limits = {"workers": 0, "max_failure_share": 0.05}
    rollout = {"prompts_per_step": 8, "rollouts_per_prompt": 10, "max_new_tokens": 8}
    with refused(winnow.VerifierError, "raises", 24, 240, "5.0%", code="verifier.failed"):
        winnow.train(**with_reward("raises", steps=3, rollout=rollout, verify=limits))


def test_an_evaluation_without_failures_does_not_outnumber_training_s(with_reward: Smallest) -> None:
    """A tenth of training's verdicts fails; with the evaluations' 160 verdicts a step it would be a thirtieth."""
    limits = {"workers": 0, "max_failure_share": 0.05}
    rollout = {"prompts_per_step": 8, "rollouts_per_prompt": 10, "max_new_tokens": 2}
    evaluation = {"problems": 40, "rollouts_per_prompt": 3, "greedy": True, "every": 1, "split": "train"}
    task = {"use": "arithmetic", "levels": [2], "size": 400}
    with refused(winnow.VerifierError, "raises", 24, 240, code="verifier.failed"):
        winnow.train(**with_reward("raises", steps=3, rollout=rollout, verify=limits, evaluate=evaluation, task=task))


def test_an_evaluation_is_judged_by_itself(with_reward: Smallest) -> None:
    """Its greedy rollouts included, and in its own words."""
    limits = {"workers": 0, "max_failure_share": 0.2}
    evaluation = {"problems": 1, "rollouts_per_prompt": 4, "greedy": True}
    with refused(winnow.VerifierError, "evaluation", "5 raised", code="verifier.failed"):
        winnow.train(**with_reward("always_raises", evaluate=evaluation, verify=limits))


def test_a_round_of_dynamic_sampling_that_fails_is_judged_with_its_step(smallest: Smallest) -> None:
    """Four verdicts without a signal, then a round of four failures: half of the step, and no reason to stop."""
    verdicts = iter([0.0] * 2 + [0.0] * 4 + [None] * 4 + [0.0] * 10)  # an evaluation, a step, its round, the rest

    def scripted_verdicts(prompt: Prompt, rollout: Rollout) -> float | None:
        return next(verdicts)

    result = winnow.train(
        **smallest(
            steps=1,
            reward=scripted_verdicts,
            select="all",
            rollout={
                "prompts_per_step": 2,
                "rollouts_per_prompt": 2,
                "max_new_tokens": 4,
                "dynamic_sampling_rounds": 1,
            },
            evaluate={"problems": 1, "rollouts_per_prompt": 1, "greedy": True},
        )
    )
    step = next(row for row in read_metrics(result.folder) if "outcome/failed" in row)
    assert (step["outcome/failed"], step["outcome/wrong"], step["dynamic_sampling/groups"]) == (4, 4, 2)


@pytest.mark.parametrize(
    ("name", "first"), [("always_raises", "ZeroDivisionError: division by zero"), ("always_hangs", "0.2 seconds")]
)
def test_nothing_but_failures_stops_the_run_with_the_first_of_them(
    name: str, first: str, with_reward: Smallest
) -> None:
    rollout = {"prompts_per_step": 2, "rollouts_per_prompt": 2, "max_new_tokens": 8}
    seconds = 0.2 if name == "always_hangs" else 60.0
    limits = {"workers": 1, "timeout_seconds": seconds, "memory_mb": 256, "max_failure_share": 0.2}
    with refused(winnow.VerifierError, name, first, code="verifier.failed") as stopped:
        winnow.train(**with_reward(name, rollout=rollout, verify=limits))
    message = str(stopped.value)
    if name == "always_raises":
        assert 'failing.py", line' in message
        assert "return 1 / len" in message


COUNTED = """
import pathlib

def counted(prompt, rollout):
    with open(pathlib.Path(__file__).with_name("verdicts"), "a") as file:
        file.write("x")
    return rollout.index % 2
"""


def test_verdicts_are_reached_while_later_rollouts_are_sampled(smallest: Smallest, tmp_path: Path) -> None:
    """An engine that finishes its last rollout only when all earlier ones have a verdict finishes."""
    (tmp_path / "counted.py").write_text(COUNTED)
    verdicts = tmp_path / "verdicts"

    def waits_for_verdicts(context: EngineContext) -> Engine:
        engine = scripted(context, script=["a", "bb", "ccc"])
        generate = engine.generate

        def in_step(prompts: Any, counts: Any, *request: Any, on_rollout: Callable[..., None], **more: Any) -> Any:
            verdicts.write_text("")
            told = 0

            def tell(prompt: Prompt, rollout: Rollout) -> None:
                nonlocal told
                while told == sum(counts) - 1 and len(verdicts.read_text()) < told:
                    time.sleep(0.01)
                told += 1
                on_rollout(prompt, rollout)

            return generate(prompts, counts, *request, on_rollout=tell, **more)

        engine.generate = in_step  # type: ignore[method-assign]
        return engine

    result = winnow.train(
        **smallest(
            steps=2,
            reward={"use": f"{tmp_path}/counted.py:counted"},
            rollout={"engine": waits_for_verdicts, "prompts_per_step": 8, "rollouts_per_prompt": 8},
            verify={"workers": 1},
        )
    )
    assert [row["budget/rollouts"] for row in read_metrics(result.folder)[:2]] == [64, 64]
