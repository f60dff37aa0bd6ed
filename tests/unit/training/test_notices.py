from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from winnow.config_file import validate
from winnow.records import StepReport
from winnow.training.notices import STEPS_BELOW, StepNotices


def run(**keys):
    return SimpleNamespace(config=validate({"advantage": "gae", **keys}))


def said(notices, explained, *, first=0, **changes):
    """{step: its notices} of steps whose values explain so much; None: there are none."""
    found = {}
    for step, number in enumerate(explained, start=first):
        metrics = {"budget/updates": 1.0, "select/trained": 4.0, "critic/updates": 1.0, "budget/tokens_valued": 9.0}
        metrics |= {} if number is None else {"critic/explained_variance": number}
        found[step] = list(notices.of(StepReport(step=step, metrics={**metrics, **changes})))
    return {step: texts for step, texts in found.items() if texts}


def test_values_that_explain_less_than_a_constant_are_told_of_once_with_the_keys_to_look_at():
    notices = StepNotices(run(critic={"optimizer": {"learning_rate": 0.25}, "pretraining_steps": 3, "clip_range": 0.1}))
    found = said(notices, [-0.5] * (3 * STEPS_BELOW), first=3)
    ((step, (text,)),) = found.items()
    assert step == 3 + STEPS_BELOW - 1
    assert "step 22: for 20 steps the values have explained less" in text
    assert "critic/explained_variance is -0.5" in text
    for key in ("critic.optimizer.learning_rate (0.25)", "critic.pretraining_steps (3)", "critic.clip_range (0.1)"):
        assert key in text


def test_one_good_step_begins_the_count_anew_and_then_it_is_told_again():
    notices = StepNotices(run(critic={}))
    below = [-0.1] * (STEPS_BELOW - 1)
    assert said(notices, [*below, 0.0, *below]) == {}
    assert list(said(notices, [-0.1, -0.1, 0.5, *below, -0.1], first=39)) == [39, 39 + 3 + STEPS_BELOW - 1]


def test_a_step_that_says_nothing_of_the_values_is_passed_over():
    """Its returns were all alike (NaN), or nothing was read: the count goes on behind it."""
    mixed = [*[-0.1] * (STEPS_BELOW - 1), math.nan, None, -0.1]
    assert list(said(StepNotices(run(critic={})), mixed)) == [STEPS_BELOW + 1]


def test_pretraining_is_not_counted_and_its_end_is_told_once():
    """While the policy is held, a step without its updates is what was asked for."""
    held = {"budget/updates": 0.0, "select/trained": 0.0, "group/count": 8.0}
    notices = StepNotices(run(critic={"pretraining_steps": 25}))
    found = said(notices, [-0.25] * 25, **held)
    assert found == {
        24: [
            "step 24: critic.pretraining_steps are over: the policy learns from step 25 on; before its last update the "
            "value model explained -0.25 of the returns' variance (1: all, 0: no more than a constant)"
        ]
    }
    assert list(said(notices, [-0.25] * STEPS_BELOW, first=25)) == [25 + STEPS_BELOW - 1]
    assert said(StepNotices(run(critic={"pretraining_steps": 25})), [0.5], first=25) == {}  # a resume behind it


def test_a_head_on_the_policys_backbone_and_a_function_have_other_causes():
    below = [-0.1] * STEPS_BELOW
    shared = run(critic={"form": "shared", "coefficient": 0.125}, optimizer={"learning_rate": 0.25})
    ((text,),) = said(StepNotices(shared), below).values()
    assert "critic.coefficient (0.125) and optimizer.learning_rate (0.25)" in text
    assert "critic.optimizer" not in text
    ((text,),) = said(StepNotices(run()), below, **{"critic/updates": None}).values()
    assert "what the function critic returns" in text
    assert "clip_range" not in text


@pytest.mark.parametrize(("tokens", "why"), [(9.0, "gradient was not finite"), (0.0, "no rollout for it to read")])
def test_a_step_in_which_the_value_model_takes_no_update_is_told(tokens, why):
    notices = StepNotices(run(critic={"pretraining_steps": 5}))
    for first in (0, 7):  # while the policy is held, and after
        ((text,),) = said(
            notices, [0.5], first=first, **{"critic/updates": 0.0, "budget/tokens_valued": tokens}
        ).values()
        assert f"step {first}: the value model took no update" in text
        assert why in text
