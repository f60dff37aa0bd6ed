"""A run's folder as a plan reads it: how many rollouts of each prompt are right, their lengths, and the phases."""

from __future__ import annotations

import json

import numpy as np

from winnow.config import dump
from winnow.config_file import load
from winnow.recipes import recipe_paths
from winnow.records import Group, Outcome, Prompt, Rollout
from winnow.state.logbook import Logbook

CONFIG = recipe_paths()["arithmetic"]
N = 8  # rollouts of a prompt
SETS = (
    "task.size=64", "evaluate.problems=4", "rollout.prompts_per_step=4", f"rollout.rollouts_per_prompt={N}",
    "rollout.max_new_tokens=16", "threads=1", 'select="all"',
)  # fmt: skip
RIGHT = (0, 1, 4, 7)  # of the N rollouts of each prompt, in every step
LENGTHS = (4, 8)  # of every other rollout
SECONDS = {"generate": 2.0, "verify": 0.2, "select": 0.12, "logprobs": 0.5, "update": 1.5, "sync": 0.25, "save": 9.0}


def group(name, rewards, lengths=LENGTHS):
    """A group whose rollouts have these rewards; NaN: the verifier failed."""
    rollouts = tuple(
        Rollout(
            index=i, tokens=np.zeros(lengths[i % len(lengths)], dtype=int), text="",
            logprobs=np.zeros(lengths[i % len(lengths)]), finish="stop", version=0,
        )
        for i in range(len(rewards))
    )  # fmt: skip
    outcomes = tuple(
        Outcome(reward=r, correct=None, kind="failed", cause="timeout")
        if np.isnan(r)
        else Outcome(reward=r, correct=r == 1, kind="correct" if r == 1 else "wrong")
        for r in rewards
    )
    prompt = Prompt(id=name, tokens=np.array([1]), text="?", answer="1", task="toy")
    made = Group(prompt=prompt, rollouts=rollouts, outcomes=outcomes)
    return made.fill(keep=made.valid, advantages=np.where(made.valid, 0.5, 0.0))


def rewards_of(right, n=N):
    return [1.0] * right + [0.0] * (n - right)


def write_planned_run(folder, groups=None, steps=3, sets=(), **changes):
    """`groups` are those of every step; `changes` are metrics of every row, None: not in it."""
    folder.mkdir(parents=True)
    config = load(CONFIG, [*SETS, *sets])
    (folder / "manifest.json").write_text(json.dumps({"winnow_run": 1, "config": dump(config), "base": str(folder)}))
    groups = groups or [group(f"p{i}", rewards_of(right)) for i, right in enumerate(RIGHT)]
    log = Logbook(folder, seed=0)
    for step in range(steps):
        metrics = {
            "group/count": len(groups), "budget/rollouts": 32, "budget/tokens_generated": 192,
            "select/trained": 24, "budget/tokens_trained": 144, "policy/grad_norm": 0.5,
            **{f"seconds/{name}": seconds + (step == 0) for name, seconds in SECONDS.items()},
            **changes,
        }  # fmt: skip
        log.write(step, {name: value for name, value in metrics.items() if value is not None}, groups, [])
    return folder
