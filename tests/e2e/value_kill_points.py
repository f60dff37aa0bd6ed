"""Run by test_value_models_resume.py: lives of a run with a value model of its own, ended at points that are its own.

    python value_kill_points.py model|adapter few|all

Prints what kill_points.py prints, whose lives and points these are.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import kill_points
from kill_points import kill, phase, struck_at, written

FORMS: dict[str, dict[str, Any]] = {
    "model": {"model": {"dtype": "bfloat16"}, "optimizer": {"master_offset": True}},  # and its own masters: see below
    "adapter": {"model": {"lora": {"rank": 2, "alpha": 4.0, "targets": ["q_proj"]}}},
}
# The policy is held in the first two steps, so that a life which is struck there resumes within its pretraining.
CONFIG: dict[str, Any] = {
    "checkpoint": {"every": 1, "keep_last": 1},
    "rollout": {"prompts_per_step": 2, "rollouts_per_prompt": 3, "max_new_tokens": 4},
    "advantage": "gae",
    "select": {"use": "max_variance", "keep_per_prompt": 2},
    "evaluate": {"problems": 1, "rollouts_per_prompt": 1, "greedy": False},
    "task": {"size": 6},
    "verify": {"workers": 0},
    "reward": "even",
    "prompt": {"template": "question_only"},
}
CRITIC = {
    "pretraining_steps": 2,
    "updates_per_step": 2,
    "epochs": 2,
    "train_on": "all",
    "optimizer": {"warmup_steps": 3},
}

PHASES = [
    phase("in pretraining, between two of its updates", "learner.value_model:Critic.step", landmark="1", after=True),
    phase("in pretraining, it has learned", "core.step:train_critic", landmark="1", after=True),
    phase("values read", "core.step:fill_values", after=True),
    phase("between two of its updates", "learner.value_model:Critic.step", call=2, after=True),
    phase("it has learned, the policy has not", "core.step:train_critic", after=True),
    phase("the policy has learned", "learner.learner:Learner.step", after=True),
]
WRITES = [written("moments written", "checkpoint:write_tensors", after=True)]
UNDER_WAY = [phase("beside sampling", "core.sample:collect", after=True, landmark="1")]


# And the steps at which they strike one run.
FEW = {"in pretraining, between two of its updates": 1, "it has learned, the policy has not": 2, "beside sampling": 3}


def lives() -> list[kill_points.Life]:
    """Those of a phase without a save in progress, a save's own, and one beside which a save is in progress."""
    beside = [(point.name, True, partial(kill_points.beside, point, kill)) for point in UNDER_WAY]
    return [*struck_at(PHASES, kill, background=False), *struck_at(WRITES, kill, background=True), *beside]


if __name__ == "__main__":
    _, form, points = sys.argv
    few = FEW if points == "few" else None
    some = [life for life in lives() if few is None or life[0] in few]
    offset = {"optimizer": {**CRITIC["optimizer"], "master_offset": form == "model"}}
    kill_points.main({**CONFIG, **FORMS[form], "critic": {"form": form, **CRITIC, **offset}}, some, few)
