"""The time of planning a step with each sampler, at many prompts.

    python benchmarks/prompt_sampling.py

No model and no rollouts: the verdicts are drawn at random, a third of the prompts is always right and a third never.
Before the measured steps every prompt was drawn and visited once, with one rollout, so that tables and checkpoints are
full. Per step are measured: the copy that a checkpoint may need, the draw, the allocation and the record of the
results. Per checkpoint: the state as JSON text, and its restoration. Times are medians of `--steps` steps, and of 5
saves and restorations; `step_and_state` is the sum of all three. They are CPU time of this process, which computes all
of this in one thread, so that other programs on the machine hardly change them. Writes
benchmarks/results/<date>_prompt_sampling.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import frame
import numpy as np

from winnow.budget.allocators import uniform
from winnow.config_file import validate
from winnow.core.draw import PromptPool, draw, make_history
from winnow.records import Group, Prompt
from winnow.registry import members
from winnow.seeds import generator
from winnow.state.disk import compact_json
from winnow.state.history import History
from winnow.testing import group_of
from winnow.training.resolve import resolve_members

ROLLOUTS = 8
T = TypeVar("T")
SAVES = 5


def main() -> None:
    parser = frame.parser(__doc__, prompts=100_000, per_step=64, steps=50)
    options = frame.parse(parser)
    prompts = [
        Prompt(
            id=f"jsonl-{i:032x}", tokens=np.array([1]), text="", answer="", task="jsonl", meta={"difficulty": i % 100}
        )
        for i in range(options.prompts)
    ]
    pool = PromptPool(prompts, per_step=options.per_step, seed=(0, "prompts"))
    rates = np.resize([0.0, 0.5, 1.0], len(prompts))
    first = groups(pool, np.arange(len(prompts)), rates, step=0, rollouts=1)
    found = {name: measured(name, pool, rates, first, options) for name in members("sampler")}
    report = {"settings": vars(options) | {"rollouts_per_prompt": ROLLOUTS, "saves": SAVES}, "milliseconds": found}
    print(f"written: {frame.write('prompt_sampling', report, packages=('winnow-rl', 'numpy'))}")


def measured(
    name: str, pool: PromptPool, rates: np.ndarray, first: list[Group], options: argparse.Namespace
) -> dict[str, float]:
    """Milliseconds of one sampler, after the visits `first` of all prompts."""
    per_step, steps = options.per_step, options.steps
    rollout = {"prompts_per_step": per_step, "rollouts_per_prompt": ROLLOUTS}
    run = resolve_members(validate({"sample": name, "rollout": rollout}), base=Path.cwd())
    history = make_history(run, pool)
    history.record_draw([0], [np.arange(len(pool.prompts))], [[]], {}, {})
    history.observe(first)
    seconds = []
    for step in range(1, steps + 1):
        results = {}

        def plan(step: int = step, results: dict[str, object] = results) -> None:
            results["copy"] = history.snapshot()
            draw(run, history, pool, range(step, step + 1))
            drawn = pool.take(history.drawn(step))
            stats = history.stats(drawn)
            history.record_plan(drawn, uniform(stats, per_step * ROLLOUTS), stats.pass_rate)

        _, planning = timed(plan)
        judged = groups(pool, history.drawn(step), rates, step)
        _, observing = timed(lambda judged=judged: history.observe(judged))
        seconds.append(planning + observing)
    saved, restored = [], []
    for _ in range(SAVES):
        text, of_save = timed(lambda: compact_json(history.state_dict()))
        again = History([prompt.id for prompt in pool.prompts], remember=run.remember)
        _, of_load = timed(lambda again=again, text=text: again.load_state_dict(json.loads(text)))
        saved.append(of_save)
        restored.append(of_load)
    each = [1e3 * statistics.median(of) for of in (seconds, saved, restored)]
    times = {"step": each[0], "slowest_step": 1e3 * max(seconds), "save": each[1], "restore": each[2]}
    report = {key: round(value, 2) for key, value in {**times, "step_and_state": sum(each)}.items()}
    print(f"{name:<10}{report}", flush=True)
    return {**report, "bytes_saved_per_prompt": round(len(text) / len(pool.prompts), 1)}


def timed(call: Callable[[], T]) -> tuple[T, float]:
    """The result of a call, and the CPU seconds that it takes."""
    begin = time.process_time()
    return call(), time.process_time() - begin


def groups(pool: PromptPool, rows: np.ndarray, rates: np.ndarray, step: int, rollouts: int = ROLLOUTS) -> list[Group]:
    """Verdicts of the rollouts of these prompts."""
    right = generator("verdicts", step).random((len(rows), rollouts)) < rates[rows, None]
    ids = [prompt.id for prompt in pool.take(rows)]
    return [group_of(of.astype(float).tolist(), prompt=name) for name, of in zip(ids, right, strict=True)]


if __name__ == "__main__":
    main()
