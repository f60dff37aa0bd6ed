"""A replay as text."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator

from winnow.view.text import format_decimal, format_percent, one_line, wrap
from winnow_lab.replay.replaying import Moved, Replay, Share

LIMITS = (
    "A log cannot show the run that would have followed: after one other update the policy, and with it every later "
    "rollout, would have been another. Only a run with the selector shows whether it learns as well, and how many "
    "seconds it saves."
)
ALLOCATED = (
    "The pass rates are those of the allocated rollouts themselves, as a log has no probe before them. Gradient norms "
    "are not logged, and count as equal."
)


def lines_of(result: Replay) -> Iterator[str]:
    """The report, line by line."""
    first, last = result.steps[0], result.steps[-1]
    yield (
        f"{one_line(str(result.path))}: a run of {result.program}, {len(result.steps)} logged steps ({first} to "
        f"{last}), {result.groups:,} groups"
    )
    yield from _table(result)
    yield f"groups whose rewards are all equal: {result.flat:,} ({format_percent(result.flat / result.groups)})"
    if result.not_judged:
        yield f"rollouts without a reward, which are never kept: {result.not_judged:,}"
    yield _saved(result)
    if result.moved is not None:
        yield from _about_counts(result.moved)
    for note in result.notes:
        yield wrap(f"note: {one_line(note)}")
    yield wrap(LIMITS)


def _table(result: Replay) -> Iterator[str]:
    shares = (("sampled", result.sampled), ("kept by the run", result.kept_by_run), ("kept here", result.kept))
    yield f"{'':18}{'rollouts':>12}{'':>8}{'tokens':>14}{'':>8}{'reward variance':>18}"
    for name, share in shares:
        of = [_percent(share.rollouts, result.sampled.rollouts), _percent(share.tokens, result.sampled.tokens)]
        tokens = "unknown" if math.isnan(share.tokens) else f"{share.tokens:,.0f}"
        yield f"{name:18}{share.rollouts:>12,}{of[0]:>8}{tokens:>14}{of[1]:>8}{_variance(share):>18}"
    yield f"kept here: {one_line(result.select)}, keep_per_prompt = {result.keep}"


def _percent(part: float, whole: float) -> str:
    return format_percent(part / whole) if whole and math.isfinite(part / whole) else ""


def _variance(share: Share) -> str:
    return "none" if math.isnan(share.variance) else format_decimal(share.variance, digits=4)


def _saved(result: Replay) -> str:
    if math.isnan(result.tokens_saved):
        return "tokens of updates saved: unknown"
    share = _percent(result.tokens_saved, result.kept_by_run.tokens)
    return f"tokens of updates saved: {result.tokens_saved:,.0f}" + (f" ({share} of the run's)" if share else "")


def _about_counts(moved: Moved) -> Iterator[str]:
    low, middle, high = min(moved.counts), statistics.median(moved.counts), max(moved.counts)
    yield (
        f"{one_line(moved.name)} would give a prompt {low} to {high} rollouts (median {middle:g}), and none to "
        f"{moved.left_out:,} of {len(moved.counts):,} groups"
    )
    yield wrap(
        f"{moved.lacking:,} of {moved.budget:,} rollouts ({format_percent(moved.lacking / max(1, moved.budget))}) "
        f"would go to prompts of which fewer were sampled: the log lacks them, and they are not in the figures above"
    )
    yield wrap(ALLOCATED)
