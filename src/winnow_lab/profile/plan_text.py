"""A plan as text and as JSON: the run's statistics, the best candidates, and the keys to set."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from winnow.config import dump
from winnow.memory.plan import format_bytes
from winnow.recipes import recipe_at
from winnow.run_view.configuration import differing, keys_of, within
from winnow.view.text import format_percent
from winnow_lab.costs import as_json
from winnow_lab.profile.plan import Candidate, StepPlan
from winnow_lab.profile.run_statistics import RunStatistics, StepClock

SHOWN = 10  # maximum number of candidates in the table
CHOSEN = ("rollout.prompts_per_step", "rollout.rollouts_per_prompt", "select", "update.tokens_per_micro_batch")
LAWS = {"fixed": "one learning rate for all candidates", "tuned": "a learning rate tuned for each candidate"}


def opening_lines(plan: StepPlan) -> Iterator[str]:
    """The lines that need no costs: the run, its pass rates, and how it differs from the configuration."""
    run, request = plan.run, plan.request
    yield (
        f"run        {run.run}, steps {run.first} to {run.last}: {run.groups} groups, "
        f"{format_percent(run.flat)} of them "
        f"flat, rollouts of {run.length:.1f} tokens"
    )
    rates = run.rates
    yield f"pass rate  Beta({rates.a:.3g}, {rates.b:.3g}), mean {format_percent(rates.mean)}"
    two = run.two_values
    if two.values > 2:
        yield (
            f"rewards    {two.values} values, reduced to two: above {two.border:.4g} or not; this keeps "
            f"{format_percent(two.explained)} of their variance within prompts"
        )
    noise = request.noise
    yield (
        f"law        {LAWS[request.law]}; noise of a rollout {noise.rollout:g}, of a prompt {noise.between:g}; "
        f"gradients in {format_percent(request.spread)} of the weights (docs/planner.md)"
    )
    if request.until is not None:
        yield f"counted    progress up to a mean pass rate of {format_percent(request.until)}"
    other = differing([keys_of(dump(run.config)), keys_of(dump(plan.config))])
    if other := [key for key in other if not within(key, CHOSEN)]:
        yield f"note       the run has other values of {', '.join(other)}; its statistics may not apply"


def plan_lines(plan: StepPlan, clock: StepClock, candidates: Sequence[Candidate], config: Path) -> Iterator[str]:
    """The table of the best candidates and the current setting, and the command that uses the best one."""
    current = _current(plan, candidates)
    baseline = current or candidates[0]
    run, costs = plan.run, clock.costs
    yield f"costs      {costs.source or 'measured'}, rollouts counted per {costs.per}"
    if plan.request.calibrate:
        yield (
            f"scale      the run's {run.step_seconds:.4g} s per step: sampling x {clock.sampling_factor:.3g}, update x "
            f"{clock.update_factor:.3g}, rest {1e3 * clock.per_rollout:.3g} ms per rollout and {clock.per_step:.3g} s"
        )
    yield ""
    heads = ("n", "m", "prompts", "micro-batch", "flat", "sampling s", "update s", "step s", "per step", "per second")
    yield f"{'':<10}" + "".join(f"{head:>12}" for head in heads) + f"{'memory':>12}"
    rows = list(candidates[:SHOWN])
    if current is not None and current not in rows:
        rows.append(current)
    for place, one in enumerate(rows):
        name = "current" if one is current else "best" if place == 0 else ""
        yield f"{name:<10}" + _row(one, baseline)
    yield ""
    yield f"per step and per second: progress, relative to {'the current setting' if current else 'the best one'}"
    if any(one.extrapolated for one in rows):
        yield "+ the number of rollouts is beyond the last point of a cost curve, which is extended as a straight line"
    if plan.left_out:
        yield f"{plan.left_out} pairs of n and prompts do not fit into the memory, and are omitted"
    yield f"command    {_command(plan, candidates[0], config)}"


def as_plan_json(plan: StepPlan, clock: StepClock, candidates: Sequence[Candidate]) -> dict[str, Any]:
    """The whole plan as JSON: the statistics, the costs, and all candidates, the best first."""
    run, current = plan.run, _current(plan, candidates)
    return {
        "winnow_plan": 1,
        "run": _statistics(run),
        "law": _law(plan),
        "costs": as_json(clock.costs),
        "scale": {
            "sampling": clock.sampling_factor,
            "update": clock.update_factor,
            "seconds_per_rollout": clock.per_rollout,
            "seconds_per_step": clock.per_step,
        },
        "current": None if current is None else _as_json(current),
        "candidates": [_as_json(one) for one in candidates],
        "left_out": plan.left_out,
    }


def _current(plan: StepPlan, candidates: Sequence[Candidate]) -> Candidate | None:
    return next((one for one in candidates if one.setting == plan.current), None)


def _row(one: Candidate, baseline: Candidate) -> str:
    setting, seconds = one.setting, one.seconds
    cells = (
        setting.rollouts,
        "all" if setting.kept == setting.rollouts else setting.kept,
        setting.prompts,
        one.fit.tokens,
        format_percent(one.flat),
        f"{seconds.sampling:.3g}",
        f"{seconds.update:.3g}",
        f"{seconds.total:.3g}{'+' * one.extrapolated}",
        f"{one.progress / baseline.progress:.2f}" if baseline.progress else "-",
        f"{one.rate / baseline.rate:.2f}" if baseline.rate else "-",
    )
    return "".join(f"{cell:>12}" for cell in cells) + f"{format_bytes(one.fit.bytes):>12}"


def _command(plan: StepPlan, best: Candidate, config: Path) -> str:
    settings = [*best.setting.settings, f"update.tokens_per_micro_batch={best.fit.tokens}"]
    return shlex.join(
        ["winnow", "train", recipe_at(config) or str(config), *(word for s in settings for word in ("--set", s))]
    )


def _statistics(run: RunStatistics) -> dict[str, Any]:
    return {
        "path": str(run.run),
        "steps": [run.first, run.last],
        "groups": run.groups,
        "pass_rate": {"a": run.rates.a, "b": run.rates.b, "mean": run.rates.mean},
        "flat": run.flat,
        "rewards": asdict(run.two_values),
        "length": run.length,
        "trained_length": run.trained_length,
        "per_step": dict(run.counts),
        "seconds": dict(run.seconds),
        "grad_norm": run.grad_norm,
    }


def _law(plan: StepPlan) -> dict[str, Any]:
    """The constants from which progress is computed.

    The last two are in units of |mean delta|; null if the run has no gradient norm, in which case they set no bound.
    """
    request, known = plan.request, plan.run.grad_norm is not None
    return {
        "learning_rate": request.law,
        "until": request.until,
        **asdict(request.noise),
        "spread": request.spread,
        "eps": plan.bounds.eps if known else None,
        "max_grad_norm": plan.bounds.clip if known else None,
    }


def _as_json(one: Candidate) -> dict[str, Any]:
    setting = one.setting
    return {
        "rollouts_per_prompt": setting.rollouts,
        "keep_per_prompt": setting.kept,
        "prompts_per_step": setting.prompts,
        "tokens_per_micro_batch": one.fit.tokens,
        "sampled_at_once": one.fit.at_once,
        "memory_bytes": one.fit.bytes,
        "flat": one.flat,
        "progress": one.progress,
        "seconds": {**asdict(one.seconds), "step": one.seconds.total},
        "progress_per_second": one.rate,
        "extrapolated": one.extrapolated,
        "set": [*setting.settings, f"update.tokens_per_micro_batch={one.fit.tokens}"],
    }
