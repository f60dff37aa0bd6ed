"""An evaluation as text: settings, metrics with intervals, averages, a comparison, examples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from winnow.algos.intervals import Interval
from winnow.config import EvaluateSection
from winnow.core.evaluation import judged_row
from winnow.evaluation.comparison import CATEGORIES, ChangedProblem, Comparison
from winnow.evaluation.folder import Row
from winnow.evaluation.result import SAMPLING, Average, EvaluationResult, averages
from winnow.evaluation.settings import declared_reward, reward_label
from winnow.view.text import format_percent, quote, sanitize, shorten

EXAMPLES = 5
FEW, CHANGES = 3, 10  # changed problems of each kind shown in full: on a screen, and in a report
LONGEST, ANSWER = 100, 1_000  # maximum characters of a system message, and of an answer


def format_headline(measured: EvaluationResult) -> str:
    """The settings and the metrics of a task, in a few lines."""
    return "\n".join([*_setting_lines(measured), *_metric_lines(measured)])


def format_table(results: Sequence[EvaluationResult]) -> str:
    """One line per task, then the averages over the published benchmarks whose tasks are all present."""
    k = results[0].config.evaluate.rollouts_per_prompt
    columns = {f"avg@{k}": "accuracy_sampled", f"pass@{k}": f"pass_at_{k}", f"maj@{k}": f"maj_at_{k}"}
    if any(one.greedy for one in results):
        columns["greedy"] = "accuracy_greedy"
    rows = [("task", "problems", *columns)]
    for one in results:
        cells = (_cell(one.intervals, one, metric) for metric in columns.values())
        rows.append((one.name, f"{len(one.sampled):,}", *cells))
    for name, of_metric in averages(results).items():
        rows.append((name, "", *(_average_cell(of_metric.get(metric)) for metric in columns.values())))
    return "\n".join(_aligned(rows))


def format_report(results: Sequence[EvaluationResult], comparisons: Sequence[Comparison] = ()) -> str:
    """Headlines, table and comparisons, then up to five rollouts of each category and task."""
    blocks = [format_headline(one) for one in results]
    blocks += [format_table(results)] if len(results) > 1 else []
    blocks += [format_comparison(one, most=CHANGES) for one in comparisons]
    blocks += ["\n".join([f"== {one.name} ==", *_examples(one.rows)]) for one in results]
    return "\n\n".join(blocks)


def format_comparison(one: Comparison, *, most: int = FEW) -> str:
    """Two models on one task: the difference of their accuracies, a table of the categories, and changed problems.

    At most `most` problems on which the model is better, and as many on which it is worse, are shown in full.
    """
    low, high = one.interval
    alike = one.problems - len(one.won) - len(one.lost)
    lines = [
        f"{one.task}, {one.mode}: {format_percent(one.other)} -> {format_percent(one.model)}, "
        f"{_points(one.model - one.other)} points ({_points(low)} to {_points(high)}), "
        f"p = {one.test.p_value:.2g} (paired test over {one.problems:,} problems)",
        f"  better on {len(one.won):,} problems, worse on {len(one.lost):,}, alike on {alike:,}",
        f"  base     {one.models.other}",
        f"  trained  {one.models.model}",
        *(f"  {line}" for line in _aligned(_category_rows(one))),
    ]
    return "\n".join(
        [sanitize("\n".join(lines)), *_changed("better", one.won, most), *_changed("worse", one.lost, most)]
    )


def _category_rows(one: Comparison) -> Iterator[tuple[str, ...]]:
    yield "", "base", "trained", "change"
    for of in one.categories:
        shares = ((of.other, of.other_share), (of.model, of.model_share))
        cells = (f"{count:,} ({format_percent(share)})" for count, share in shares)
        yield CATEGORIES[of.category], *cells, f"{_points(of.change)} points"


def _points(difference: float) -> str:
    return f"{100 * difference:+.1f}"


def _changed(word: str, changes: Sequence[ChangedProblem], most: int) -> Iterator[str]:
    """Problems with both answers. A bar precedes every line of a model's text, so that it cannot imitate the report."""
    for change in changes[:most]:
        yield sanitize(
            f"\n  {word}: {change.id}, base {format_percent(change.other)}, trained {format_percent(change.model)}"
        )
        texts = {"question": change.question, "gold": change.gold}
        texts |= {"base": change.other_answer, "trained": change.model_answer}
        for name, text in texts.items():
            yield f"    {name}"
            yield quote(text, limit=None, indent="    ")
    if len(changes) > most:
        yield f"\n  {word}: {len(changes) - most:,} more (metrics.json in the folder of an evaluation lists all)"


def _aligned(rows: Iterable[Sequence[str]]) -> Iterator[str]:
    table_rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*table_rows, strict=True)]
    for row in table_rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _setting_lines(measured: EvaluationResult) -> Iterator[str]:
    a = measured.settings()
    greedy = ", and once greedily" if a["greedy"] else ""
    yield sanitize(f"model      {a['model']}")
    options = ", ".join(f"{name} = {value}" for name, value in a["task_options"].items())
    named = f"{a['task']} ({options})" if options else a["task"]
    yield sanitize(f"task       {named}, {a['problems']:,} {a['split']} problems, x {a['rollouts_per_prompt']}{greedy}")
    if measured.dropped:
        yield (
            f"dropped    {measured.dropped:,} more, with prompts longer than prompt.max_prompt_tokens = "
            f"{measured.config.prompt.max_prompt_tokens}"
        )
    declared = ", prompt and reward as the task declares them" if a["as_declared"] else ""
    yield sanitize(f"prompts    template {a['template']}, at most {a['max_new_tokens']} new tokens{declared}")
    for name in ("system", "suffix"):
        if a[name] is not None:
            yield sanitize(f"{name:10} {shorten(a[name].strip(), LONGEST)}")
    yield sanitize(f"reward     {a['reward']}")
    changed = "".join(
        f", {name} {a[name]:g}" for name in SAMPLING if a[name] != EvaluateSection.model_fields[name].default
    )
    yield f"sampling   temperature {a['temperature']:g}{changed}, engine {a['engine']}, seed {a['seed']}"
    yield from (sanitize(f"warning    {text}") for text in (*measured.warnings, *_reward_warning(measured)))


def _reward_warning(measured: EvaluationResult) -> Iterator[str]:
    """A warning if the reward is not the one that the benchmark declares."""
    reward = declared_reward(measured.config)
    if reward is not None and reward != reward_label(measured.config):
        yield (
            f"{measured.config.task.label} declares the reward {reward!r}: another one may not accept all its right "
            f"answers; use the task's defaults (on the command line --task-defaults) for comparable numbers"
        )


def _metric_lines(measured: EvaluationResult) -> Iterator[str]:
    m, k = measured.metrics, measured.config.evaluate.rollouts_per_prompt
    intervals = measured.intervals
    modes = [("sampled", "accuracy_sampled"), ("greedy", "accuracy_greedy")]
    shown = [f"{mode} {_cell(intervals, measured, metric)}" for mode, metric in modes if metric in intervals]
    yield f"accuracy   {', '.join(shown) or 'no verdict: every verifier failed'}"
    for word, shares, metric in (("pass", measured.pass_at, "pass_at"), ("majority", measured.maj_at, "maj_at")):
        if shares:
            interval = _interval(intervals.get(f"{metric}_{k}"))
            counted = int((~np.isnan(measured.values[f"{metric}_{k}"])).sum())
            few = f", @{k} over the {counted:,} problems with {k} verdicts" if counted < len(measured.sampled) else ""
            numbers = ", ".join(f"@{size} {format_percent(share)}" for size, share in shares.items())
            yield f"{word:10} {numbers}{interval}{few}"
    if measured.ties:
        yield f"ties       in {measured.ties:,} problems the right answer ties for the majority, and counts in part"
    yield f"length     {m['eval/length_mean']:.1f} tokens on average, {format_percent(m['eval/truncated'])} cut off"
    for mode, counts in measured.categories.items():
        of_each = ", ".join(
            f"{label} {counts[category]:,} ({format_percent(counts[category] / counts.total())})"
            for category, label in CATEGORIES.items()
            if counts[category] or category != "failed"
        )
        yield f"{mode:10} {of_each}"


def _cell(intervals: Mapping[str, Interval], one: EvaluationResult, metric: str) -> str:
    mean = one.metrics.get(f"eval/{metric}")
    return "" if mean is None else f"{format_percent(mean)}{_interval(intervals.get(metric))}"


def _average_cell(average: Average | None) -> str:
    return "" if average is None else f"{format_percent(average.mean)}{_interval(average.interval)}"


def _interval(interval: Interval | None) -> str:
    return "" if interval is None else f" ({100 * interval.low:.1f} to {100 * interval.high:.1f})"


def _examples(rows: Sequence[Row]) -> Iterator[str]:
    """Up to `EXAMPLES` sampled rollouts of each category, by index within a problem, so that the problems differ."""
    by_index = sorted((row for row in rows if row["mode"] == "sampled"), key=lambda row: row["index"])
    for category, label in CATEGORIES.items():
        examples = [row for row in by_index if judged_row(row).category == category][:EXAMPLES]
        if examples:
            yield f"-- {label} --"
            yield from map(_example, examples)


def _example(row: Row) -> str:
    answer = "nothing" if row["answer_read"] is None else sanitize(shorten(row["answer_read"], ANSWER))
    return "\n".join(
        [
            f"{sanitize(row['prompt_id'])} #{row['index']}",
            quote(row["prompt"], limit=None, indent="  "),
            quote(row["text"], limit=None, indent="    "),
            f"    answer read: {answer}; gold: {sanitize(str(row['answer']))}"
            + (f"; {sanitize(shorten(row['detail'], ANSWER))}" if row["detail"] else ""),
            "",
        ]
    )
