"""Does it learn? Rewards and held-out accuracy over many steps, judged in standard errors."""

from __future__ import annotations

import math
from collections.abc import Sequence

from winnow.alarms.alarm import Evidence
from winnow.alarms.past import (
    MEASURED,
    Compared,
    Past,
    Rewards,
    is_held,
    mean,
    mean_of,
    rewards,
    values,
    variance_of_mean,
)
from winnow.config import AlarmsSection

RECENT, BEFORE = 3, 20  # steps on both sides of a drop
SAWING, WIDTHS = 40, (1, 5)  # steps in which swings are looked for; steps that are averaged for it
LEARNED = 0.9  # accuracy from which on no gain is asked for
CONFIDENT = 2.0  # standard errors: of what can be excluded, and of what is a gain


def no_learning(past: Past, limits: AlarmsSection) -> Evidence | None:
    """After k steps a gain worth the name can be excluded: in training, and on held-out problems where it is measured.

    The last third of k steps is compared with the first third; a run whose noise could hide a gain is not judged.
    """
    third = max(2, limits.no_learning_steps // 3)
    first, now = past.first[:third], past.last(third)
    if len(first) < third or not now or now[-1]["step"] - first[0]["step"] + 1 < limits.no_learning_steps:
        return None
    if any(is_held(row) for row in now) or mean(now, "reward/accuracy") >= LEARNED:
        return None
    was, is_now = values(first, "reward/mean"), values(now, "reward/mean")
    gain, noise = mean_of(is_now) - mean_of(was), math.sqrt(variance_of_mean(was) + variance_of_mean(is_now))
    spread = max(rewards(first).std, rewards(now).std)
    if not gain + CONFIDENT * noise <= limits.no_learning_gain * spread or _held_out_gained(past):
        return None
    return Evidence(
        f"the mean reward is {mean_of(is_now):.3g} after {now[-1]['step'] + 1:.0f} steps, {gain:+.2g} ± {noise:.1g} "
        f"against the first {third} steps",
        {"reward/mean": mean_of(is_now), "gain": gain, "standard_error": noise},
    )


def sudden_drop(past: Past, limits: AlarmsSection) -> Evidence | None:
    """Reward or held-out accuracy falls within few steps, by far more than noise."""
    rows = past.last(RECENT + BEFORE)
    if rows and (found := _dropped(rewards(rows[:BEFORE]), rewards(rows[BEFORE:]), limits)) is not None:
        return found
    return _held_out_dropped(past, limits)


def oscillation(past: Past, limits: AlarmsSection) -> Evidence | None:
    """Reward or held-out accuracy goes up and down, each time by far more than noise."""
    rows = [row for row in past.last(SAWING) if "reward/mean" in row]
    spread = rewards(rows).std
    for width in WIDTHS:
        blocks = [rewards(rows[at : at + width]) for at in range(0, len(rows) - width + 1, width)]
        noise = [spread / math.sqrt(max(block.prompts, 1.0)) for block in blocks]
        turns = _turns([block.mean for block in blocks], noise, limits, spread)
        if len(turns) > limits.swings:
            return _sawing("the mean reward", "reward/mean", turns, f"in {len(rows)} steps")
    held_out = [e.accuracy for e in past.evaluations]
    center = mean_of(held_out)
    turns = _turns(held_out, [e.error for e in past.evaluations], limits, math.sqrt(max(center * (1 - center), 0.0)))
    if len(turns) > limits.swings:
        return _sawing("held-out accuracy", MEASURED, turns, f"in {len(held_out)} evaluations")
    return None


def overfitting(past: Past, limits: AlarmsSection) -> Evidence | None:
    """Training accuracy leaves held-out accuracy behind: the gap has grown at both of the last two evaluations."""
    if len(past.compared) < 3:
        return None
    start, now = past.compared[0], past.compared[-1]
    if not all(_parted(start, later, limits) for later in past.compared[-2:]):
        return None
    return Evidence(
        f"around step {now.held_out.step} training accuracy is {now.train:.1%} and held-out accuracy "
        f"{now.held_out.accuracy:.1%}; around step {start.held_out.step} they were {start.train:.1%} and "
        f"{start.held_out.accuracy:.1%}",
        {"reward/accuracy": now.train, MEASURED: now.held_out.accuracy, "gap": now.gap, "gap_before": start.gap},
    )


def _held_out_gained(past: Past) -> bool:
    """Whether the newest evaluation is better than the first one, beyond noise."""
    if len(past.evaluations) < 2:
        return False
    first, last = past.evaluations[0], past.evaluations[-1]
    return last.accuracy - first.accuracy > CONFIDENT * math.hypot(first.error, last.error)


def _dropped(before: Rewards, now: Rewards, limits: AlarmsSection) -> Evidence | None:
    spread, drop = max(before.std, now.std), before.mean - now.mean
    noise = spread * math.sqrt(1 / max(before.prompts, 1.0) + 1 / max(now.prompts, 1.0))
    if not drop > max(limits.standard_errors * noise, limits.drop * spread):
        return None
    text = f"the mean reward fell from {before.mean:.3g} to {now.mean:.3g} within {RECENT} steps (noise {noise:.2g})"
    return Evidence(text, {"reward/mean": now.mean, "before": before.mean, "standard_error": noise})


def _held_out_dropped(past: Past, limits: AlarmsSection) -> Evidence | None:
    if len(past.evaluations) < 2:
        return None
    now, best = past.evaluations[-1], max(past.evaluations[:-1], key=lambda e: e.accuracy)
    noise, drop = math.hypot(now.error, best.error), best.accuracy - now.accuracy
    spread = math.sqrt(max(best.accuracy * (1 - best.accuracy), 0.0))
    if not drop > max(limits.standard_errors * noise, limits.drop * spread):
        return None
    text = (
        f"held-out accuracy fell from {best.accuracy:.1%} (step {best.step}) to {now.accuracy:.1%} (noise {noise:.1%})"
    )
    return Evidence(text, {MEASURED: now.accuracy, "before": best.accuracy, "standard_error": noise})


def _turns(numbers: Sequence[float], noise: Sequence[float], limits: AlarmsSection, spread: float) -> list[float]:
    """The turning points of a series, where they differ by more than noise and by a part of the spread."""
    turns: list[int] = []  # places of the extremes so far; the last one may still move on
    for place, number in enumerate(numbers):
        if not turns:
            turns.append(place)
            continue
        at = turns[-1]
        rises = len(turns) > 1 and numbers[at] > numbers[turns[-2]]
        further = len(turns) > 1 and ((number > numbers[at]) if rises else (number < numbers[at]))
        least = max(limits.standard_errors * math.hypot(noise[at], noise[place]), limits.drop * spread)
        if further:
            turns[-1] = place
        elif abs(number - numbers[at]) > least:
            turns.append(place)
    return [numbers[place] for place in turns]


def _sawing(what: str, name: str, turns: Sequence[float], when: str) -> Evidence:
    low, high = min(turns), max(turns)
    text = f"{what} went up and down {len(turns) - 1} times {when}, between {low:.3g} and {high:.3g}"
    return Evidence(text, {name: turns[-1], "lowest": low, "highest": high, "swings": float(len(turns) - 1)})


def _parted(start: Compared, now: Compared, limits: AlarmsSection) -> bool:
    """Whether training is above held-out, and more so than at first, both beyond noise."""
    errors = (start.error, start.held_out.error, now.error, now.held_out.error)
    least = max(limits.gap, limits.standard_errors * math.hypot(*errors))
    return now.gap > least and now.gap - start.gap > least
