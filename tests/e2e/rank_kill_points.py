"""Loaded by the runs of test_rank_kill_points.py as the file of their selector: a rank that ends at a named point.

WINNOW_STRIKE is "NAME|RANK|FILE": the rank leaves an empty FILE, then sends itself SIGKILL. The points are wrapped as
those of kill_points.py are; without the variable, and in the launcher and its verify workers, nothing is.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import kill_points
from kill_points import Point, phase, planned, written

from winnow.algos.selectors import max_variance

STRIKE = "WINNOW_STRIKE"
LOADED = {"since": "training.fit:build", "landmark": ""}

# The learner and the rank that is killed at each. Both kinds of learner lose either rank.
POINTS: list[tuple[str, int, Point]] = [
    ("replicated", 1, Point("model loaded", "training.build:load_model", after=True, **LOADED)),
    ("sharded", 0, planned("in a probe", "core.plan:collect")),
    ("sharded", 1, phase("while sampling", "verify.verifiers:Verifiers.submit", call=2)),
    ("replicated", 0, phase("while judging", "verify.verifiers:Verifiers.collect")),
    ("replicated", 1, phase("rollouts to be gathered", "core.collect:gather_groups")),
    ("sharded", 1, phase("log-probs begun", "learner.learner:Learner.compute_logprobs")),
    ("replicated", 0, phase("before the first backward", "learner.learner:Learner.backward")),
    ("sharded", 1, phase("gradients whole", "learner.learner:Learner.step")),
    ("sharded", 0, phase("weights to be handed over", "learner.learner:Learner.weights", after=True)),
    ("replicated", 1, phase("weights handed over", "core.step:sync_weights", after=True)),
    ("replicated", 0, phase("rollouts half written", "state.rollout_files:mark_of")),
    ("sharded", 0, Point("model half written", "models.tensor_file:_pieces", call=3)),
    ("sharded", 1, phase("share of a model half given", "learner.sharding:_receive_request", call=3,
                         since="core.loop:begin_save")),
    ("replicated", 0, written("saved, old ones to be removed", "checkpoint:prune", since="state.checkpoint:_publish")),
    # Of 4 rollouts of a rank, which the environment of PLAYED answers
    ("played", 1, phase("second turn half sampled", "training.turns:TurnEngine._take", call=6)),
    ("played", 0, phase("a second answer awaited", "verify.verifiers:Verifiers.answer", call=6)),
]  # fmt: skip


def keep(group, rng):
    return max_variance(group, rng, keep_per_prompt=2)


def _strike(file: Path) -> None:
    file.touch()
    kill_points.kill()


if STRIKE in os.environ and "RANK" in os.environ:
    _name, _rank, _file = os.environ[STRIKE].split("|")
    if os.environ["RANK"] == _rank:
        _point = next(point for _, _, point in POINTS if point.name == _name)
        kill_points.arm(_point, partial(_strike, Path(_file)))
