"""The counts and the selection of winnow_verl. Needs neither verl nor torch."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from refusals import refused
from winnow.algos.plain_groups import prompt_id
from winnow.errors import ConfigError
from winnow_verl.plan import BudgetPlan, Sampled, budget_metrics
from winnow_verl.release import VERL

SIZES = {"rollouts_per_prompt": 4, "keep_per_prompt": 2}


def sampled(prompt, rewards, lengths=(1, 2, 3, 4), longest=None):
    scores = np.array(rewards, dtype=np.float64)
    return Sampled(prompt=prompt, rewards=scores, lengths=lengths, longest=longest or lengths)


def test_two_of_four_are_kept_by_their_variance():
    (keep,) = BudgetPlan(SIZES).keep([sampled("a", [0.0, 0.5, 1.0, 0.5])], step=0)
    assert keep.tolist() == [True, False, True, False]


def test_a_rollout_without_a_reward_is_never_kept():
    (keep,) = BudgetPlan({**SIZES, "select": "all"}).keep([sampled("a", [0.0, np.nan, 1.0, np.nan])], step=0)
    assert keep.tolist() == [True, False, True, False]


def test_cut_off_rollouts_are_those_of_the_maximum_length():
    plan = BudgetPlan({**SIZES, "select": "finished", "max_response_length": 3})
    (keep,) = plan.keep([sampled("a", [0.0, 0.0, 1.0, 1.0])], step=0)
    assert keep.tolist() == [True, True, False, False]
    with refused(ConfigError, key="max_response_length", code="config.missing_key"):
        BudgetPlan({**SIZES, "select": ["finished", "max_variance"]})


def test_a_session_is_cut_off_by_its_longest_output_and_not_by_their_sum():
    plan = BudgetPlan({**SIZES, "select": "finished", "max_response_length": 3})
    (keep,) = plan.keep([sampled("a", [0.0, 0.0, 1.0, 1.0], (4, 4, 4, 4), (2, 2, 2, 3))], step=0)
    assert keep.tolist() == [True, True, True, False]


def test_a_trainer_that_samples_no_more_than_are_kept_is_refused():
    with refused(ConfigError, "winnow_sync", key="rollouts_per_prompt", code="config.no_effect"):
        BudgetPlan(SIZES).keep([sampled("a", [0.0, 1.0], (1, 2))], step=0)


def test_random_selection_depends_on_seed_step_and_prompt():
    def kept(seed, step, prompt):
        plan = BudgetPlan({"rollouts_per_prompt": 64, "keep_per_prompt": 8, "select": "random", "seed": seed})
        (keep,) = plan.keep([sampled(prompt, np.zeros(64), [1] * 64)], step)
        return keep.tolist()

    assert kept(0, 0, "a") == kept(0, 0, "a")
    assert len({tuple(kept(*of)) for of in ((0, 0, "a"), (1, 0, "a"), (0, 1, "a"), (0, 0, "b"))}) == 4


def test_without_an_allocator_every_prompt_gets_n():
    assert BudgetPlan(SIZES).counts(["a", "b", "a"]) == [4, 4, 4]


def test_an_allocator_reads_the_verdicts_of_earlier_steps():
    plan = BudgetPlan({**SIZES, "rollouts_per_prompt": 8, "allocate": "gvm_online"})
    assert plan.counts(["a", "b"]) == [8, 8]
    plan.keep([sampled("a", [1.0, 1.0, 1.0, 1.0]), sampled("b", [1.0, 0.0, 0.0, 1.0])], step=0)
    solved, mixed = plan.counts(["a", "b"])
    assert solved + mixed == 16
    assert 2 <= solved < mixed


def test_metrics_are_of_all_prompts():
    groups = [sampled("a", [0.0, 1.0, 1.0, 1.0]), sampled("b", [0.0, 0.0, 0.0, 0.0])]
    kept = [np.array([True, True, False, False]), np.array([False, False, False, True])]
    assert budget_metrics(groups, kept) == {
        "budget/generated_tokens": 20.0,
        "budget/trained_tokens": 7.0,
        "budget/share_kept": 3 / 8,
        "budget/kept_reward_variance": (0.25 + 0) / 2,
    }


def test_a_prompt_is_named_by_its_messages():
    assert prompt_id("text") == "text"
    assert prompt_id([{"role": "user", "content": "a"}]) == prompt_id([{"content": "a", "role": "user"}])


@pytest.mark.parametrize(
    ("more", "key", "code"),
    [
        ({"rollouts_per_prompt": None}, "rollouts_per_prompt", "config.missing_key"),
        ({"keep_per_prompt": 0}, "keep_per_prompt", "config.value"),
        ({"keep_per_prompt": 5}, "rollouts_per_prompt", "config.combination"),
        ({"selct": "all"}, "selct", "config.unknown_key"),
        ({"allocate": "gvm"}, "allocate", "config.unsupported"),
        ({"allocate": {"minimum": 4}}, "allocate.use", "config.missing_key"),
        ({"select": None}, "select.use", "config.missing_key"),
        ({"max_response_length": "data.max_response_length"}, "max_response_length", "config.value"),
        ({"seed": None}, "seed", "config.missing_key"),
        ({"seed": "a"}, "seed", "config.value"),
    ],
)
def test_unusable_settings_are_refused(more, key, code):
    with refused(ConfigError, key=key, code=code):
        BudgetPlan({**SIZES, **more})


def test_an_unknown_selector_is_refused():
    with refused(ConfigError, "best", code="config.unknown_member"):
        BudgetPlan({**SIZES, "select": "best"})


class Fits:
    def sample(self, step): ...


def test_a_method_of_verl_with_other_parameters_is_refused():
    VERL.check_method(Fits, "sample", ("self", "step"))
    with refused(ConfigError, "Fits", "sample", VERL.tested, code="config.not_installed"):
        VERL.check_method(Fits, "sample", ("self",))
    with refused(ConfigError, "Fits", "draw", VERL.tested, code="config.not_installed"):
        VERL.check_method(Fits, "draw", ("self",))


def test_the_plan_imports_neither_verl_nor_torch():
    code = "import sys; sys.modules.update(torch=None, verl=None, transformers=None); import winnow_verl.plan"
    subprocess.run([sys.executable, "-c", code], check=True)
