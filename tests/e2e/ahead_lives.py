"""Run by test_ahead_runs.py: runs at rollout.ahead = 1 that are slowed or killed, and what they leave.

    python ahead_lives.py few|sleeps|points

Prints a line for each life as kill_points.py does: a run whose engine sleeps at random, or one that is killed at a
named point and resumed. "equal": the same bits as an undisturbed run. The few are lives of one run, whose last sleeps.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import kill_points
from kill_points import Life, Point, chaos, kill, phase, struck_at, written

from winnow.state.logbook import read_metrics

SLEEPS = "WINNOW_SLEEPS"  # of slow_engine.py, which only the runs import
ENGINE = Path(__file__).parents[1] / "slow_engine.py"
AHEAD = {
    "checkpoint": {"every": 1, "keep_last": 1},
    "rollout": {
        "prompts_per_step": 2,
        "rollouts_per_prompt": 3,
        "max_new_tokens": 4,
        "ahead": 1,
        "engine": {"use": f"{ENGINE}:slow"},
    },
    "correction": "token_truncate",
    "allocate": "gvm_online",
    "weighting": "prompt",
    "select": "all",
    "evaluate": {"every": 2, "problems": 1, "rollouts_per_prompt": 1, "greedy": False},
    "task": {"size": 6},
    "update": {"updates_per_step": 2, "tokens_per_micro_batch": 30},
    "verify": {"workers": 0},
    "reward": "even",
    "prompt": {"template": "question_only"},
}
IN_STEP = {"since": "core.loop:train_step", "landmark": "1"}
POINTS: list[Point] = [
    phase("taken", "core.step:take", after=True, **IN_STEP),
    phase("observed", "state.history:History.observe", after=True, **IN_STEP),
    phase("next step planned", "core.sample:plan", after=True, **IN_STEP),
    phase("next step begun", "core.step:begin", after=True, **IN_STEP),
    phase("a rollout of the next step judged", "verify.verifiers:Verifiers.submit", call=2, **IN_STEP),
    phase("before the first backward", "learner.learner:Learner.backward", **IN_STEP),
    phase("between two updates", "learner.learner:Learner.step", after=True, **IN_STEP),
    phase("next step to be waited for", "core.step:finish", **IN_STEP),
    phase("next step complete", "core.step:finish", after=True, **IN_STEP),
    phase("weights handed over", "core.step:sync_weights", after=True, **IN_STEP),
    phase("metrics logged", "state.logbook:Logbook.finish", after=True, **IN_STEP),
    written("pending rollouts half written", "checkpoint:write_tensors", after=True),
]
FEW = {"between two updates": 1, "metrics logged": 1, "sleeps 1": 2}  # and the steps at which they strike one run


def slowed(seed: int) -> Life:
    def sleeping(step: int | None) -> None:
        os.environ[SLEEPS] = str(seed)
        os.write(1, b"struck\n")

    return f"sleeps {seed}", False, sleeping


def lives(group: str) -> list[Life]:
    sleeps = [slowed(seed) for seed in range(1, 11)]
    points = struck_at(POINTS, kill, background=False)
    if group == "few":
        return [life for life in (*points, *sleeps) if life[0] in FEW]
    return {"sleeps": sleeps, "points": points}[group]


def _ahead(rows: list[dict[str, float]]) -> str:
    assert ["ahead/seconds_sampling" in row for row in rows] == [True, True, False], "no step was sampled ahead"
    return "two steps"


def what_is_left(run: Path) -> dict[str, str]:
    """As chaos finds it; a run that did not sample ahead leaves something else."""
    rows = [row for row in read_metrics(run) if "budget/rollouts" in row]
    return {**left(run), "ahead": _ahead(rows)}


if __name__ == "__main__":
    chaos.CLOCK = (*chaos.CLOCK, "ahead/seconds")
    left, chaos.what_is_left = chaos.what_is_left, what_is_left
    kill_points.main(AHEAD, lives(sys.argv[1]), FEW if sys.argv[1] == "few" else None)
