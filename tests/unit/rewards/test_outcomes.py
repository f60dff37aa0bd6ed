from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from winnow.records import Outcome
from winnow.rewards.outcomes import failure, to_outcome


@pytest.mark.parametrize(
    ("result", "reward", "correct"),
    [
        (1.0, 1.0, True),
        (0.5, 0.5, False),
        (1, 1.0, True),
        (0, 0.0, False),
        (-3, -3.0, False),
        (True, 1.0, True),
        (False, 0.0, False),
        (np.float32(0.25), 0.25, False),
        (np.bool_(True), 1.0, True),
        (np.array(2), 2.0, True),
    ],
)
def test_a_bare_number_is_the_reward_and_correct_from_one_on(result: Any, reward: float, correct: bool) -> None:
    outcome = to_outcome(result, name="mine")
    assert (outcome.reward, outcome.correct) == (reward, correct)
    assert outcome.kind == ("correct" if correct else "wrong")
    assert outcome.parts == {}


def test_correct_at_moves_the_threshold() -> None:
    assert to_outcome(0.5, name="mine", correct_at=0.5).correct is True


def test_the_first_part_of_a_mapping_decides_and_all_are_summed() -> None:
    outcome = to_outcome({"answer": 0.0, "bonus": 1.5}, name="mine")
    assert outcome == Outcome(reward=1.5, correct=False, kind="wrong", parts={"answer": 0.0, "bonus": 1.5})


def test_an_outcome_of_numpys_numbers_is_one_of_pythons() -> None:
    given: Any = {"reward": np.float32(1), "correct": np.bool_(True), "kind": "correct"}
    outcome = to_outcome(Outcome(**given), name="mine")
    assert outcome == Outcome(reward=1.0, correct=True, kind="correct")
    assert (type(outcome.reward), type(outcome.correct)) == (float, bool)


def test_none_is_a_failure_of_the_function() -> None:
    outcome = to_outcome(None, name="mine")
    assert (outcome.kind, outcome.cause, outcome.correct) == ("failed", "raised", None)
    assert math.isnan(outcome.reward)
    assert "'mine'" in outcome.detail


@pytest.mark.parametrize(
    ("result", "named"),
    [
        (math.nan, "finite"),
        (-math.inf, "finite"),
        (np.float64("nan"), "finite"),
        (3e38, "1e+06"),
        (10**400, "1e+06"),
        ("1.0", "str"),
        ([1.0], "list"),
        (1j, "complex"),
        (np.array([1.0, 2.0]), "ndarray"),
        (object(), "object"),
        ({}, "part"),
        ({"a": math.nan}, "finite"),
        ({"a": "1"}, "str"),
        ({"a": 1e6, "b": 1e6}, "1e+06"),
        (Outcome(reward=math.nan, correct=False, kind="wrong"), "finite"),
        (Outcome(reward=1.0, correct=None, kind="correct"), "correct"),
        (Outcome(reward=1.0, correct=True, kind="wrong"), "correct"),
        (Outcome(reward=1.0, correct=True, kind="correct", parts={"a": math.inf}), "finite"),
        (Outcome(reward=1.0, correct=False, kind="great"), "kind"),  # type: ignore[arg-type]
        (Outcome(reward=math.nan, correct=None, kind="failed"), "cause"),
        (Outcome(reward=0.0, correct=False, kind="wrong", cause="too long"), "cause"),  # type: ignore[arg-type]
        (Outcome(reward=0.0, correct=False, kind="wrong", cause=3), "cause"),  # type: ignore[arg-type]
        (Outcome(reward=1.0, correct=True, kind="correct", parts={3: 1.0}), "parts"),  # type: ignore[dict-item]
        (Outcome(reward=1.0, correct=True, kind="correct", parts={"a": "1"}), "str"),  # type: ignore[dict-item]
        (Outcome(reward=1.0, correct=True, kind="correct", parts=[1.0]), "parts"),  # type: ignore[arg-type]
        (Outcome(reward="1", correct=True, kind="correct"), "str"),  # type: ignore[arg-type]
        (Outcome(reward=1.0, correct=True, kind="correct", seconds=10**400), "1e+06"),
    ],
)
def test_malformed_results_fail_and_name_function_and_value(result: Any, named: str) -> None:
    outcome = to_outcome(result, name="mine")
    assert (outcome.kind, outcome.cause) == ("failed", "malformed")
    assert "'mine'" in outcome.detail
    assert named in outcome.detail.rpartition(": ")[2], "the reason comes after the value"


def test_hostile_objects_cannot_escape_the_boundary() -> None:
    class Hostile:
        def item(self) -> float:
            raise RuntimeError("no")

        def __repr__(self) -> str:
            raise RuntimeError("no")

    outcome = to_outcome(Hostile(), name="mine")
    assert outcome.cause == "malformed"
    assert "Hostile" in outcome.detail


def test_a_sound_outcome_passes_unchanged() -> None:
    outcome = Outcome(reward=0.0, correct=False, kind="unparsable", parts={"format": 1.0})
    assert to_outcome(outcome, name="mine") == outcome


def test_part_names_are_made_fit_for_metrics() -> None:
    assert to_outcome({"exact match": 1.0}, name="mine").parts == {"exact_match": 1.0}
    assert to_outcome({"a b": 1.0, "a_b": 0.25}, name="mine").parts == {"a_b": 1.0, "a_b_2": 0.25}
    assert to_outcome({"a b": 1.0, "a_b": 0.25}, name="mine").reward == 1.25
    named = Outcome(reward=1.0, correct=True, kind="correct", parts={"a/b": 1.0})
    assert to_outcome(named, name="mine").parts == {"a_b": 1.0}


def test_a_failed_outcome_always_has_reward_nan() -> None:
    sloppy = Outcome(reward=0.0, correct=False, kind="failed", cause="sandbox", detail="no bubblewrap")
    outcome = to_outcome(sloppy, name="mine")
    assert math.isnan(outcome.reward)
    assert (outcome.correct, outcome.cause, outcome.detail) == (None, "sandbox", "no bubblewrap")
    assert failure("timeout", "5 s").cause == "timeout"


def test_numbers_of_an_outcome_become_pythons_own() -> None:
    parts = {"format": True, "length": np.float32(0.25), "rank": np.int64(2)}
    paid = Outcome(reward=np.float32(1), correct=True, kind="correct", parts=parts)  # type: ignore[arg-type]
    outcome = to_outcome(paid, name="mine")
    assert not outcome.failed
    assert outcome.parts == {"format": 1.0, "length": 0.25, "rank": 2.0}
    assert [type(number) for number in (outcome.reward, *outcome.parts.values())] == [float] * 4
    failed = Outcome(reward="none", correct=True, kind="failed", cause="crash", parts={"format": True})  # type: ignore[arg-type]
    outcome = to_outcome(failed, name="mine")
    assert (outcome.cause, outcome.correct, type(outcome.parts["format"])) == ("crash", None, float)


def test_what_a_mapping_raises_is_malformed() -> None:
    class Hostile:
        def __str__(self) -> str:
            raise RuntimeError("no name")

    outcome = to_outcome({Hostile(): 1.0}, name="mine")
    assert outcome.cause == "malformed"
    assert "no name" in outcome.detail
