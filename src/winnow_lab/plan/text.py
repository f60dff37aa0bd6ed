"""A plan as text that fits one screen, and as JSON."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from winnow.algos.planning import Law
from winnow.algos.reward_mixture import RewardMixture
from winnow.algos.step_plan import Setting
from winnow.core.sizes import options_of
from winnow.memory.plan import format_bytes
from winnow.recipes import recipe_at
from winnow.training.first_plan import CLOSE, FirstPlan
from winnow.training.size_fits import Fits
from winnow.view.text import format_count, format_percent, one_line, wrap
from winnow_lab.plan.advice import ComparedSetting, Range
from winnow_lab.plan.from_log import LogPlan

SHOWN = 5  # settings of a first plan
LAWS: dict[Law, str] = {"fixed": "one learning rate for all sizes", "tuned": "a learning rate tuned for each size"}
EXTRAPOLATED = "+: its seconds are extrapolated beyond the last point of a cost curve"
QUESTIONS = {"n": "which n?", "m": "which m?", "prompts": "how many prompts?", "together": "all three"}
DESCRIBED: tuple[Callable[[RewardMixture], float], ...] = (
    lambda of: of.mean,
    lambda of: of.variance,
    lambda of: of.share(0.0, 0.05),
    lambda of: of.share(0.95, 1.0),
)
NAMES = {  # of the sizes, in the trainer's words
    "winnow": "rollout.rollouts_per_prompt, select.keep_per_prompt, rollout.prompts_per_step",
    "TRL": "num_generations, and generation_batch_size / num_generations",
    "verl": "actor_rollout_ref.rollout.n, and data.train_batch_size",
    "prime-rl": "rollouts_per_example, and batch_size / rollouts_per_example",
}
SELECTING = {  # where fewer rollouts are trained on than sampled
    "TRL": "rollouts_per_prompt of winnow_trl, num_generations for m, and generation_batch_size / num_generations",
    "verl": "rollouts_per_prompt of winnow_verl, its keep_per_prompt and actor_rollout_ref.rollout.n for m, and "
    "data.train_batch_size",
}


def log_lines(plan: LogPlan) -> Iterator[str]:
    """The plan from a log."""
    yield from _about_log(plan)
    yield from (_item("note", one_line(note)) for note in plan.evidence.notes)
    yield ""
    yield from _answers(plan)
    yield ""
    yield from _effects(plan)
    if plan.forecast is not None:
        yield from (_item("plateau", line) for line in plan.forecast.lines())
    yield ""
    yield "cannot be known from this log:"
    yield from (wrap(f"- {what}: {why}") for what, why in plan.unknown())
    yield _item("set", _command(plan))


def _about_log(plan: LogPlan) -> Iterator[str]:
    evidence, now, mixture = plan.evidence, plan.model.current, plan.statistics.mixture
    steps, drawn = evidence.steps, plan.drawn
    yield _item(
        "log",
        f"{one_line(str(evidence.run))}: {evidence.program}, steps {steps[0]} to {steps[-1]}, {len(evidence.counts)} "
        f"groups of {int(evidence.prompt.max()) + 1} prompts, {format_percent(evidence.flat.mean())} of them flat",
    )
    ends = [
        Range.of(value(mixture), np.array([value(one.mixture) for one in drawn], dtype=np.float64))
        for value in DESCRIBED
    ]
    of = "pass rate" if list(evidence.levels.values) == [0.0, 1.0] else "mean reward (lowest 0, highest 1)"
    yield _item(
        "rewards",
        f"mean {_range(ends[0])}, variance within a prompt {_range(ends[1])}; {of} below 5% for "
        f"{_range(ends[2], _percent)} of the prompts, above 95% for {_range(ends[3], _percent)}",
    )
    if evidence.levels.seen > len(evidence.levels.values):
        yield _item(
            "levels",
            f"{evidence.levels.seen} rewards, reduced to {len(evidence.levels.values)}, which have "
            f"{format_percent(evidence.explained)} of their variance within prompts",
        )
    yield _item("now", f"{now}; a step is {_step_cost(plan)}")
    yield _item(
        "intervals",
        f"95%, from {plan.draws} draws (seed {plan.seed}) of prompts, each with all its groups, and of steps; "
        f"{LAWS[plan.request.law]}",
    )


def _answers(plan: LogPlan) -> Iterator[str]:
    per = "per second" if plan.in_seconds else "per operation"
    yield f"{'':18}{'n':>5}{'m':>6}{'prompts':>9}{'flat':>8}  {'progress per step':<23}{per:<23}{'best in':>8}"
    for name, one in plan.answers.items():
        yield f"{QUESTIONS[name]:18}{_sizes(one.prediction.setting)}{_cells(one)}"
    if any(one.prediction.extrapolated for one in plan.answers.values()):
        yield wrap(EXTRAPOLATED)
    best = plan.best.prediction.setting
    if best == plan.model.current:
        answer = "keep the sizes: no other ones make more progress"
    elif plan.keep:
        unsure = [
            f"{gain.low:.2f} with {factor:g} times the noise" for factor, gain in plan.gains.items() if gain.low <= 1
        ]
        answer = (
            f"keep the sizes: the log does not show that {best} makes more progress. The low end of its "
            f"gain is {', '.join(unsure)}"
        )
    else:
        answer = f"change to {best}: {_range(plan.best.per_second)} times the progress {per}"
    yield _item("answer", answer)
    critical = plan.critical_prompts
    yield _item(
        "prompts",
        f"signal and noise of an update are equal at {_range(critical, lambda value: f'{value:.0f}')} prompts (now "
        f"{plan.model.current.prompts}). Far below, twice the prompts make up to twice the progress per step; above, "
        f"hardly more",
    )


def _effects(plan: LogPlan) -> Iterator[str]:
    """What a step of the best setting takes, and what the steps of the log would have cost."""
    take, saved, has = plan.expected, plan.saving, plan.evidence.has_tokens
    parts = [f"mean reward {_range(take.reward)}, flat groups {_range(take.flat, _percent)}"]
    if has:
        parts.append(
            f"tokens generated {_range(take.generated, format_count)}, trained {_range(take.trained, format_count)}"
        )
    if plan.in_seconds:
        parts.append(f"seconds {_range(take.seconds, _short)}")
    yield _item(
        "a step then",
        f"{plan.best.prediction.setting}: {'; '.join(parts)} (means of a second run at the same progress)",
    )
    count = len(plan.evidence.steps)
    parts = [f"{_range(saved.steps, lambda value: f'{value:.0f}')} steps instead of {count}"]
    spent: list[tuple[str, tuple[float, Range], Callable[[float], str]]] = []
    if has:
        spent += [("tokens generated", saved.generated, format_count), ("tokens trained", saved.trained, format_count)]
    if plan.in_seconds:
        spent.append(("seconds", saved.seconds, _short))
    parts += [f"{_range(then, show)} {what} instead of {show(now)}" for what, (now, then), show in spent]
    yield _item("same progress", "; ".join(parts))


def first_lines(plan: FirstPlan, config: Path, given: Sequence[str] = ()) -> Iterator[str]:
    """The plan for a configuration without a run. `given` are the words that change its file: --set KEY=VALUE."""
    best, now, prior = plan.best, plan.model.current, plan.prior
    fit = plan.fits.fit(best)
    assert fit is not None
    yield _item(
        "supposed",
        f"pass rates around {format_percent(prior.pass_rate)} (--pass-rate, the median of the prompts that are "
        f"sometimes solved), some prompts never or always solved: an accuracy of {format_percent(plan.accuracy)}. "
        f"Rollouts of {prior.length:.0f} tokens (--length). {plan.draws} such worlds (seed {plan.seed})",
    )
    yield _item(
        "costs",
        one_line(plan.costs.source)
        if plan.costs is not None
        else "operations: 2 per weight for a sampled token, 6 for a trained one. A step samples as many rollouts as in "
        "the configuration. --costs FILE reads curves (winnow profile CONFIG --output profile, or configs/costs)",
    )
    yield _item(
        "memory",
        f"{format_bytes(fit.bytes)} on {plan.fits.device.type}, micro-batches of {fit.tokens:,} tokens, {fit.at_once} "
        f"rollouts at once; {plan.fits.left_out} pairs of n and prompts do not fit",
    )
    yield ""
    per = "step s" if plan.costs is not None else "operations"
    yield f"{'':18}{'n':>5}{'m':>6}{'prompts':>9}{'flat':>8}{per:>12}{'progress':>10}{'good in':>9}"
    shown = dict.fromkeys([*(plan.settings[place] for place in plan.order[:SHOWN]), now])
    for setting in shown:
        name = "first choice" if setting == best else "configuration" if setting == now else ""
        mean, close = plan.regret(setting)
        yield (
            f"{name:18}{_sizes(setting)}{_flat(plan.mean(setting, 'flat'), extrapolated=plan.extrapolates(setting)):>8}"
            f"{_short(plan.mean(setting, 'seconds')):>12}{mean:>10.2f}{close:>9.0%}"
        )
    yield wrap(
        f"progress: per cost, relative to the best setting of each world (geometric mean). good in: the share of "
        f"worlds with at least {CLOSE:.0%} of the best{f'. {EXTRAPOLATED}' * any(map(plan.extrapolates, shown))}"
    )
    yield ""
    yield from _reasons(plan)
    yield _item("next", "train 20 steps, then winnow plan RUN: it measures what is supposed here")
    named = shlex.join([recipe_at(config) or str(config), *given])
    command = " ".join(["winnow train", named, *_sets(best, fit.tokens)])
    yield f"{'set':14}{one_line(command)}"  # not wrapped: a line break would cut what is pasted


def _reasons(plan: FirstPlan) -> Iterator[str]:
    """How progress per cost changes if one size is halved or doubled."""
    best = plan.best
    whole = best.kept >= best.rollouts
    for name, label in (("rollouts", "n"), ("kept", "m"), ("prompts", "prompts")):
        parts = []
        for word, factor in (("halved", 0.5), ("doubled", 2.0)):
            size = int(getattr(best, name) * factor)
            changes = {name: size, **({"kept": size} if name == "rollouts" and whole else {})}
            ratio = plan.neighbour(**changes)
            if ratio is not None:
                parts.append(f"{word} to {size}, it makes {ratio:.2f} times the progress")
        if name == "rollouts" and plan.costs is None:
            parts = []  # n alone is no candidate then: it trades against prompts
        if parts:
            yield _item(f"{label} = {getattr(best, name)}", "; ".join(parts))


def log_json(plan: LogPlan) -> dict[str, Any]:
    """The whole plan from a log, all settings included."""
    return {
        "winnow_plan": 2,
        "run": str(plan.evidence.run),
        "program": plan.evidence.program,
        "steps": [int(plan.evidence.steps[0]), int(plan.evidence.steps[-1])],
        "groups": len(plan.evidence.counts),
        "draws": plan.draws,
        "seed": plan.seed,
        "law": plan.request.law,
        **asdict(plan.request.noise),
        "noise_measured": plan.request.measured,
        "in_seconds": plan.in_seconds,
        "mean_reward": plan.statistics.mixture.mean,
        "reward_variance": plan.statistics.mixture.variance,
        "current": asdict(plan.model.current),
        "keep": plan.keep,
        "critical_prompts": asdict(plan.critical_prompts),
        "answers": {name: _as_json(one, plan) for name, one in plan.answers.items()},
        "expected": asdict(plan.expected),
        "same_progress": asdict(plan.saving),
        "gains": {f"{factor:g}": asdict(gain) for factor, gain in plan.gains.items()},
        "settings": [_as_json(one, plan) for one in plan.ranking],
        "unknown": [{"what": what, "why": why} for what, why in plan.unknown()],
        "forecast": None if plan.forecast is None else plan.forecast.lines(),
    }


def first_json(plan: FirstPlan) -> dict[str, Any]:
    """The whole first plan."""
    rows = []
    for place in plan.order:
        setting = plan.settings[place]
        mean, close = plan.regret(setting)
        means = {of: plan.mean(setting, of) for of in ("flat", "seconds", "generated", "trained")}
        means |= {"extrapolated": plan.extrapolates(setting)}
        rows.append({**asdict(setting), "progress": mean, "good_in": close, **means, "set": options_of(setting)})
    return {
        "winnow_plan": 2,
        "supposed": asdict(plan.prior),
        "draws": plan.draws,
        "seed": plan.seed,
        "costs": None if plan.costs is None else plan.costs.source,
        "current": asdict(plan.model.current),
        "settings": rows,
    }


def _as_json(one: ComparedSetting, plan: LogPlan) -> dict[str, Any]:
    prediction = one.prediction
    fit = plan.fits.fit(prediction.setting) if isinstance(plan.fits, Fits) else None
    return {
        **asdict(prediction.setting),
        "flat": prediction.flat,
        "cost": prediction.seconds._asdict(),
        "work": prediction.work._asdict(),
        "per_step": asdict(one.per_step),
        "per_second": asdict(one.per_second),
        "best_in": None if math.isnan(one.chosen) else one.chosen,
        "extrapolated": prediction.extrapolated,
        "memory": None if fit is None else asdict(fit),
        "set": options_of(prediction.setting),
    }


def _sizes(setting: Setting) -> str:
    kept = "all" if setting.kept >= setting.rollouts else setting.kept
    return f"{setting.rollouts:>5}{kept:>6}{setting.prompts:>9}"


def _cells(one: ComparedSetting) -> str:
    flat = _flat(one.prediction.flat, extrapolated=one.prediction.extrapolated)
    return f"{flat:>8}  {_range(one.per_step):<23}{_range(one.per_second):<23}{one.chosen:>8.0%}"


def _flat(share: float, *, extrapolated: bool) -> str:
    return f"{format_percent(share)}{'+' * extrapolated}"


def _step_cost(plan: LogPlan) -> str:
    work, seconds = plan.statistics.work, plan.statistics.seconds
    parts = [f"{work.rollouts:.0f} rollouts"]
    if plan.evidence.has_tokens:
        tokens, trained = format_count(work.tokens_generated), format_count(work.tokens_trained)
        parts.append(f"{tokens} tokens generated, {trained} trained")
    parts += [f"{name} {_short(spent)} s" for name, spent in seconds.items() if spent >= 0.01 * sum(seconds.values())]
    return ", ".join(parts)


def _command(plan: LogPlan) -> str:
    best = plan.best.prediction.setting
    if plan.keep or plan.evidence.config is None:
        words = {**NAMES, **SELECTING} if best.kept < best.rollouts else NAMES
        names = words.get(plan.evidence.program, "n, m and the prompts of a step")
        return f"nothing (keys: {names})" if plan.keep else f"{best}: {names}"
    fit = plan.fits.fit(best) if isinstance(plan.fits, Fits) else None
    return " ".join(_sets(best, None if fit is None else fit.tokens))


def _sets(setting: Setting, tokens: int | None) -> list[str]:
    every = [*options_of(setting), *([] if tokens is None else [f"update.tokens_per_micro_batch={tokens}"])]
    return [f"--set {shlex.quote(option)}" for option in every]


def _item(name: str, text: str) -> str:
    return wrap(f"{name:14}{text}")


def _short(value: float) -> str:
    return f"{value:.3g}" if value < 1e5 else format_count(value)


def _percent(value: float) -> str:
    """ "12%"; a share that is not 0, or not all, is not rounded to it."""
    if 0 < value < 0.01:
        return "under 1%"
    return "over 99%" if 0.99 < value < 1 else f"{value:.0%}"


def _range(of: Range, show: Callable[[float], str] = lambda value: f"{value:.2f}") -> str:
    """ "1.31 (1.12 to 1.48)"."""
    if math.isnan(of.low) or len({show(end) for end in (of.value, of.low, of.high)}) == 1:
        return show(of.value)
    return f"{show(of.value)} ({show(of.low)} to {show(of.high)})"
