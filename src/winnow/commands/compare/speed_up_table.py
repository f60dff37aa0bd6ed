"""The speed-ups of a comparison as text: a block for each group except the baseline."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence

from winnow.commands.compare.comparison import GroupComparison, SpeedUpRow
from winnow.commands.compare.measure import title
from winnow.commands.compare.plateau import SHARE
from winnow.commands.compare.seed_times import SeedTime
from winnow.commands.compare.speed_up import SHARE as PODS_SHARE
from winnow.commands.compare.speed_up import SpeedUp
from winnow.commands.compare.time_ratio import TimeRatio
from winnow.view.text import format_count, format_duration, one_line

STILL_RISING = "still rising"
NO_DIFFERENCE = "no difference shown"


def speed_up_blocks(comparison: GroupComparison, width: int) -> Iterator[list[str]]:
    """The blocks of all groups; lines of at most `width` columns."""
    for label in dict.fromkeys(row.group for row in comparison.speed_ups):
        rows = [row for row in comparison.speed_ups if row.group == label]
        what = f"{label} against {comparison.baseline}: time to {SHARE:.0%} of the baseline's plateau, seed by seed"
        level = _level(comparison, rows[0].ratio)
        head = f"{'':18}{'baseline':>13}{'group':>13}  {'speed-up':>8} {'[95%]':<37}{f'PODS {PODS_SHARE:.0%}':>8}"
        yield [
            *textwrap.wrap(one_line(what), width),
            *textwrap.wrap(one_line(level), width, initial_indent="  ", subsequent_indent="  "),
            head,
            *(_axis(comparison, row) for row in rows),
        ]


def _level(comparison: GroupComparison, ratio: TimeRatio) -> str:
    plateau = comparison.plateau
    level, value = (number(comparison, of) for of in (plateau.level or math.nan, plateau.value))
    rising = f", {STILL_RISING}" * plateau.still_rising
    how = "compared seed by seed" if ratio.paired else "compared by group means, as the seeds are not the same"
    return f"level: {title(comparison.measure)} {level} (plateau {value}{rising}); {how}"


def _axis(comparison: GroupComparison, row: SpeedUpRow) -> str:
    of = row.ratio
    baseline = _time(row.axis, of.baseline, comparison.times[comparison.baseline])
    group = _time(row.axis, of.group, comparison.times[row.group])
    times = f"  {row.axis.replace('_', ' '):16}{baseline:>13}{group:>13}"
    return f"{times}  {_ratio(of):<46}{pods_ratio(row.pods):>8}"


def _ratio(of: TimeRatio) -> str:
    if not math.isnan(of.ratio):
        interval = f" [{of.low:.2f}, {of.high:.2f}]" if of.has_interval else ""
        words = f"  {NO_DIFFERENCE}" if of.has_interval and not of.shows_difference else ""
        return f"{f'{of.ratio:.2f}x':>8}{interval}{words}"
    return bound(of) or f"{'-':>8}"


def bound(of: TimeRatio) -> str:
    """The bound of a ratio if a seed did not reach the level; empty if there is none."""
    for words, value in (("at least", of.at_least), ("at most", of.at_most)):
        if math.isnan(of.ratio) and not math.isnan(value):
            return f"{words} {value:.2f}x"
    return ""


def _time(axis: str, mean: float, seeds: Sequence[SeedTime]) -> str:
    return unreached(seeds) or amount(axis, mean)


def unreached(seeds: Sequence[SeedTime]) -> str:
    """ "1 of 3 never", "2 of 3 at once"; empty if all seeds reached the level after their first evaluation."""
    for ending, words in (("never", "never"), ("at the first", "at once")):
        count = sum(seed.ending == ending for seed in seeds)
        if count:
            return f"{count} of {len(seeds)} {words}"
    return ""


def pods_ratio(pods: SpeedUp | None) -> str:
    """ "1.72x", without any interval."""
    if pods is None:
        return "-"
    if pods.ratio is not None:
        return f"{pods.ratio:.2f}x"
    return "ended" if pods.ended_before else "never"


def number(comparison: GroupComparison, value: float) -> str:
    """A value of the measure: a share in percent, other measures with four digits."""
    return f"{value:.1%}" if comparison.plateau.share else f"{value:.4g}"


def amount(axis: str, x: float) -> str:
    """A place on an axis: "1:30:00", "3.4M", "12"."""
    if axis == "seconds":
        return format_duration(x) if x >= 60 else f"{x:.1f} s"
    return format_count(x) if axis != "steps" else f"{round(x, 1):g}"
