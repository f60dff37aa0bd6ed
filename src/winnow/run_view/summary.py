"""A run in a few lines of text: improvements, costs, and symptoms of problems."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from winnow.alarms.history import is_held
from winnow.alarms.watch import alarms_of_run
from winnow.errors import DataError
from winnow.metrics import is_step, per_prompt_metric
from winnow.records import Alarm
from winnow.run_view.configuration import EVALUATIONS, Evaluations
from winnow.run_view.forecast import forecast_of
from winnow.state.logbook import totals
from winnow.view.text import (
    LARGEST,
    MARGIN,
    format_accuracies,
    format_count,
    format_decimal,
    format_duration,
    format_percent,
    wrap,
)

Row = Mapping[str, float]

LAST = 5  # steps whose shares decide hints about rollouts, at most: earlier ones are over
PHASES = ("generate", "verify", "select", "values", "logprobs", "critic", "update", "sync")


def training_rows(rows: Sequence[Row]) -> list[Row]:
    """The rows of finished steps; the others contain only an evaluation."""
    return [row for row in rows if is_step(row)]


def costs(rows: Sequence[Row]) -> dict[str, float]:
    """The totals of a run (`state.logbook.totals`), without numbers of `LARGEST` or more."""
    return totals({name: value for name, value in row.items() if abs(value) < LARGEST} for row in rows)


def summary(
    rows: Sequence[Row],
    config: Mapping[str, Any] = MappingProxyType({}),
    evaluated: Evaluations = EVALUATIONS,
) -> str:
    """The text that `winnow plot` prints. `config` is the resolved configuration, if it is known. `evaluated` selects
    the evaluations that are compared. Raises DataError for a run without a finished step.
    """
    steps = training_rows(rows)
    if not steps:
        raise DataError(
            "the run has not finished a step yet, so there is nothing to summarize",
            remedy="wait for its first step",
            code="data.empty",
        )
    alarms = alarms_of_run(rows, config, evaluated_since=evaluated.since)
    symptoms = (*hints(steps, {alarm.name for alarm in alarms}), *_alarm_lines(alarms))
    parts = (*_improvement(steps), *_evaluations(rows, evaluated), *_forecast(rows, evaluated), *_cost(rows))
    return "\n".join([*parts, *map(wrap, symptoms)])


def hints(steps: Sequence[Row], raised: Collection[str] = ()) -> Iterator[str]:
    """Symptoms with their remedies, except those that a raised alarm covers. Failed verdicts and skipped updates are
    counted in all steps, shares of rollouts and groups in the last steps (at most `LAST`), the others in the last
    quarter. So a share that has fallen gives no hint.
    """
    late = steps[-max(1, len(steps) // 4) :]
    last = late[-LAST:]
    of_last = f"of the last {f'{len(last)} steps' if len(last) > 1 else 'step'}"
    judged = _sum(last, "budget/rollouts") - _sum(last, "outcome/cut")
    if not {"all_flat", "constant_reward"} & set(raised):
        yield from _flat(last, of_last)
    if "all_truncated" not in raised and mean(last, "rollout/truncated") > 0.5:
        cut = format_percent(mean(last, "rollout/truncated"))
        yield f"! {cut} of the rollouts {of_last} are cut off: raise rollout.max_new_tokens"
    if "unparsable" not in raised and judged and (share := _sum(last, "outcome/unparsable") / judged) > 0.5:
        yield (
            f"! {format_percent(share)} of the rollouts {of_last} have no readable answer: does the prompt request the "
            f"format?"
        )
    if failed := _sum(steps, "outcome/failed"):
        yield f"! {failed:.0f} verdicts failed: `winnow show RUN --failed` prints them with their causes"
    if "entropy_collapse" not in raised and mean(late, "policy/entropy") < 0.01:
        yield "! the policy's entropy is below 0.01 nats: its rollouts of a prompt are nearly all the same"
    if "values_explain_nothing" not in raised and mean(late, "critic/explained_variance") < 0:
        yield "! the values explain less of the returns than a constant would: docs/ppo.md lists what to check"
    if skipped := _sum([row for row in steps if not is_held(row)], "policy/skipped_updates"):
        yield f"! {skipped:.0f} updates were skipped: they had no row to train on, or no finite gradient"
    if skipped := _sum(steps, "critic/skipped_updates"):
        yield f"! {skipped:.0f} updates of the value model were skipped: no row to train on, or no finite gradient"


def _alarm_lines(alarms: Sequence[Alarm]) -> Iterator[str]:
    """The text of each alarm when it was first raised, with the last step at which it held."""
    raised: dict[str, list[Alarm]] = {}
    for alarm in alarms:
        raised.setdefault(alarm.name, []).append(alarm)
    for first, *more in raised.values():
        times = f"; raised {len(more) + 1} times" if more else ""
        yield f"alarm: {first.text} (held last at step {[first, *more][-1].last}{times})"


def _flat(last: Sequence[Row], of_last: str) -> Iterator[str]:
    groups, flat = _sum(last, "group/count"), _sum(last, "group/flat")
    if not groups or flat / groups <= 0.9:
        return
    right, wrong = _sum(last, "group/all_correct"), _sum(last, "group/all_wrong")
    known = any("group/all_correct" in row for row in last)  # not where rewards are no verdicts
    remedy = "the task is too hard for this policy, or misread" if known else "the task is too easy or too hard"
    yield (
        f"! {format_percent(flat / groups)} of the groups {of_last} are flat"
        f"{f' ({right:.0f} all correct, {wrong:.0f} all wrong)' * known} and give no signal: "
        f"{'the task is solved, or too easy' if right > wrong else remedy}"
    )
    if all("reward/min" in row and row["reward/min"] == row.get("reward/max") for row in last):
        yield "! the reward's range has collapsed: all rollouts of a step have the same reward"


def _improvement(steps: Sequence[Row]) -> Iterator[str]:
    width = max(1, len(steps) // 10)
    for label, name, show in (
        ("reward", per_prompt_metric("reward/mean", steps), format_decimal),
        ("accuracy", per_prompt_metric("reward/accuracy", steps), format_percent),
        (f"{'values':9} explained variance", "critic/explained_variance", format_decimal),
    ):
        first, last = mean(steps[:width], name), mean(steps[-width:], name)
        if not math.isnan(first + last):
            sign = "+" if last >= first else "-"
            of = f"first and last {width} steps" if width > 1 else "first and last step"
            yield f"{label:9} {show(first)} -> {show(last)} ({sign}{show(abs(last - first))}), {of}"


def _evaluations(rows: Sequence[Row], evaluated: Evaluations) -> Iterator[str]:
    rows, of = evaluated.rows(rows), "held-out" if evaluated.held_out else evaluated.of
    for label, name in (("sampled", "eval/accuracy_sampled"), ("greedy", "eval/accuracy_greedy")):
        seen = [row for row in rows if not math.isnan(row.get(name, math.nan))]
        if seen:
            best = max(seen, key=lambda row: row[name])
            accuracies = format_accuracies({k: best[k] for k in best if k.startswith(name)})
            yield (
                f"{of:9} {label} {format_percent(seen[0][name])} -> {format_percent(seen[-1][name])}, "
                f"best after {best['step']:.0f} steps: {accuracies}{f' ({MARGIN})' if '±' in accuracies else ''}"
                f"{evaluated.since_when}"
            )


def _forecast(rows: Sequence[Row], evaluated: Evaluations) -> Iterator[str]:
    found = forecast_of(rows, evaluated)
    if found is not None:
        yield from (wrap(f"{'forecast':9} {line}") for line in found.lines())


def _cost(rows: Sequence[Row]) -> Iterator[str]:
    """What was spent. A number that another trainer does not log is omitted, and is not 0."""
    cost = costs(rows)
    tokens, trained = (cost.get(f"budget/tokens_{name}") for name in ("generated", "trained"))
    spent = [f"{cost['steps']:.0f} steps"]
    spent += [f"{cost['budget/updates']:.0f} updates"] if "budget/updates" in cost else []
    spent += [f"{format_count(cost['budget/rollouts'])} rollouts"] if "budget/rollouts" in cost else []
    spent += [] if tokens is None else [f"{format_count(tokens)} tokens"]
    if tokens is not None and trained is not None:
        share = f" ({format_percent(trained / tokens)})" if tokens else ""
        spent.append(f"of which {format_count(trained)} trained on{share}")
    yield f"{'budget':9} {', '.join(spent)}"
    seconds = cost.get("seconds/step", 0.0)
    if "budget/probe_tokens" in cost:
        probe = cost.get("seconds/probe", 0.0)
        share = f" ({format_percent(probe / (probe + seconds))} of the time)" if probe + seconds else ""
        yield (
            f"{'probe':9} {format_count(cost.get('budget/probe_rollouts', 0.0))} rollouts, "
            f"{format_count(cost['budget/probe_tokens'])} tokens and {format_duration(probe)} on top{share}"
        )
    shares = phase_shares(cost)
    of = f" ({shares})" if shares else ""
    times = [f"{format_duration(seconds)} training{of}"] if "seconds/step" in cost else []
    times += [f"{format_duration(cost['eval/seconds'])} evaluating"] if "eval/seconds" in cost else []
    if times:
        yield f"{'time':9} {', '.join(times)}"


def phase_shares(cost: Row) -> str:
    """ "generate 61%, update 35%": shares of the seconds of a run's steps, of phases with at least 1%."""
    seconds = cost.get("seconds/step", 0.0)
    phases = ((phase, cost.get(f"seconds/{phase}", 0.0)) for phase in PHASES)
    return ", ".join(f"{phase} {spent / seconds:.0%}" for phase, spent in phases if seconds and spent / seconds >= 0.01)


def mean(rows: Sequence[Row], name: str) -> float:
    """The mean over the rows that have the metric; NaN where none has."""
    values = _values(rows, name)
    return sum(values) / len(values) if values else math.nan


def _values(rows: Sequence[Row], name: str) -> list[float]:
    return [float(value) for row in rows if not math.isnan(value := row.get(name, math.nan))]


def _sum(rows: Sequence[Row], name: str) -> float:
    return sum(_values(rows, name))  # not fsum, which raises where a sum is too large
