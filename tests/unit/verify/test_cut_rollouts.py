"""Rollouts that were cut while they were sampled: not judged, and in no share of failures."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import numpy as np
import pytest

from winnow.errors import VerifierError
from winnow.records import Group, Prompt, Rollout
from winnow.verify.verifiers import Verifiers

PROMPT = Prompt(id="p", tokens=np.array([1]), text="p", answer="", task="t")


def rollout(index: int, finish: Any) -> Rollout:
    return Rollout(index=index, tokens=np.array([1]), logprobs=np.zeros(1), text="x", finish=finish, version=0)


def group(*finishes: str) -> Group:
    return Group(prompt=PROMPT, rollouts=tuple(rollout(index, finish) for index, finish in enumerate(finishes)))


def verifiers(verdicts: list[float | None]) -> tuple[Verifiers, list[int]]:
    """A reward in this process that returns the verdicts in turn; and the rollouts that it has judged."""
    left, judged = deque(verdicts), list[int]()

    def reward(prompt: Prompt, of: Rollout) -> float | None:
        judged.append(of.index)
        return left.popleft()

    settings: dict[str, Any] = {"timeout_seconds": 1.0, "memory_mb": 64, "max_failure_share": 0.5}
    return Verifiers({"use": reward, "options": {}}, workers=0, **settings), judged


def test_a_cut_rollout_is_not_judged() -> None:
    checks, judged = verifiers([1.0, 0.0])
    (found,) = checks.collect([group("stop", "cut", "length")])
    assert judged == [0, 2]
    assert [outcome.kind for outcome in found.outcomes or ()] == ["correct", "cut", "wrong"]
    assert found.valid.tolist() == [True, False, True]
    assert found.correct.tolist() == [True, False, False]
    assert [math.isnan(reward) for reward in found.rewards.tolist()] == [False, True, False]
    assert not any(outcome.failed for outcome in found.outcomes or ())


def test_a_cut_rollout_is_in_no_share_of_failures() -> None:
    checks, _ = verifiers([None, 1.0])
    failed, right = checks.collect([group("stop", "cut", "cut"), group("stop", "cut")])
    checks.check_step([right])
    with pytest.raises(VerifierError):  # every verdict failed: that the others were cut is no verdict
        checks.check_step([failed])
    assert checks.state_dict() == {"verdicts": 2, "failures": [[1, "raised"]]}
    with pytest.raises(VerifierError):
        checks.check_evaluation([failed])


def test_a_step_of_cut_rollouts_alone_has_no_failure() -> None:
    checks, judged = verifiers([])
    checks.check_step(checks.collect([group("cut", "cut")]))
    assert judged == []
    assert checks.state_dict() == {"verdicts": 0, "failures": []}
