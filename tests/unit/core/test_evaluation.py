from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from synthetic_run import FAILED, RIGHT, WRONG, group
from winnow.core import loop
from winnow.core.evaluation import Evaluation, evaluate
from winnow.records import Group, Prompt, Rollout, Sampling


class Canned:
    """Engine and verifiers in one: its groups have their outcomes already."""

    def __init__(self, *groups):
        self.groups = groups

    def generate(self, prompts, counts, sampling, *, seed, on_rollout):
        return self.groups

    def submit(self, prompt, rollout):
        raise AssertionError("the verdicts exist already")

    def collect(self, groups):
        return groups

    def check_evaluation(self, groups):
        pass


def measured(*outcomes):
    canned = Canned(*(group(f"p{i}", of_one) for i, of_one in enumerate(outcomes)))
    sampling = Sampling(max_new_tokens=8, temperature=1.0)
    prompts = [g.prompt for g in canned.groups]
    metrics = evaluate(canned, canned, prompts, sampling, rollouts_per_prompt=4, greedy=False, seed=()).metrics
    return {name: value for name, value in metrics.items() if "pass_at" in name or name[5:] == "accuracy_sampled"}


def test_pass_at_k_keeps_its_name_where_a_verifier_failed():
    metrics = measured([RIGHT, WRONG, WRONG, WRONG], [WRONG] * 4, [RIGHT, RIGHT, RIGHT, FAILED])
    # the third problem has three verdicts, fewer than k, though all are right
    assert metrics == {"eval/accuracy_sampled": pytest.approx((0.25 + 0 + 1) / 3), "eval/pass_at_4": 0.5}


def test_pass_at_k_is_omitted_where_no_problem_has_k_verdicts():
    assert measured([RIGHT, WRONG, WRONG, FAILED], [FAILED] * 4) == {"eval/accuracy_sampled": pytest.approx(1 / 3)}


def test_tokens_of_an_evaluation_are_of_all_tasks_and_greedy_rollouts(monkeypatch):
    def groups(prompt_tokens, *lengths):
        prompt = Prompt(id="p", tokens=np.arange(prompt_tokens), text="", answer=None, task="")
        made = (
            Rollout(index=i, tokens=np.arange(length), logprobs=np.zeros(length), text="", finish="stop", version=0)
            for i, length in enumerate(lengths)
        )
        return (Group(prompt=prompt, rollouts=tuple(made)),)

    results = {None: (groups(5, 2, 3), groups(5, 4)), "further": (groups(7, 10), ())}

    def evaluated(*_, of, **__):
        return Evaluation({f"eval/{of}": 1.0}, 2.0, *results[of])

    monkeypatch.setattr(loop, "evaluate", evaluated)
    monkeypatch.setattr(loop, "evaluation_sampling", lambda config: None)
    config = SimpleNamespace(evaluate=SimpleNamespace(rollouts_per_prompt=2, greedy=True))
    phases = SimpleNamespace(rollout_counter=lambda total: None)
    held_out = dict.fromkeys(results, ())
    metrics = loop._evaluation_metrics(
        SimpleNamespace(config=config, held_out=held_out, engine=None, verifiers=None, seed=0), phases
    )
    assert metrics == {
        "eval/None": 1.0, "eval/further": 1.0, "eval/seconds": 4.0,
        "budget/evaluation_tokens": 2 + 3 + 4 + 10, "budget/evaluation_prompt_tokens": 5 + 5 + 7,
    }  # fmt: skip
