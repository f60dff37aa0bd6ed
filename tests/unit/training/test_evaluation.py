from __future__ import annotations

import pytest

from synthetic_run import FAILED, RIGHT, WRONG, group
from winnow.records import Sampling
from winnow.training.evaluation import evaluate


class Canned:
    """Engine and verifiers in one: the groups come with their outcomes."""

    def __init__(self, *groups):
        self.groups = groups

    def generate(self, prompts, counts, sampling, *, seed, on_rollout):
        return self.groups

    def submit(self, prompt, rollout):
        raise AssertionError("the verdicts are there already")

    def collect(self, groups):
        return groups

    def check_evaluation(self, groups):
        pass


def measured(*outcomes):
    canned = Canned(*(group(f"p{i}", of_one) for i, of_one in enumerate(outcomes)))
    sampling = Sampling(max_new_tokens=8, temperature=1.0)
    found = evaluate(
        canned, canned, [g.prompt for g in canned.groups], sampling, rollouts_per_prompt=4, greedy=False, seed=()
    )
    return {name: value for name, value in found.metrics.items() if "pass_at" in name or name[5:] == "accuracy_sampled"}


def test_pass_at_k_keeps_its_name_where_a_verifier_failed():
    found = measured([RIGHT, WRONG, WRONG, WRONG], [WRONG] * 4, [RIGHT, RIGHT, RIGHT, FAILED])
    # all of the third problem's three verdicts are right, but it has no four
    assert found == {"eval/accuracy_sampled": pytest.approx((0.25 + 0 + 1) / 3), "eval/pass_at_4": 0.5}


def test_pass_at_k_is_left_out_where_no_problem_has_k_verdicts():
    assert measured([RIGHT, WRONG, WRONG, FAILED], [FAILED] * 4) == {"eval/accuracy_sampled": pytest.approx(1 / 3)}
