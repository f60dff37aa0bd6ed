"""Whether the policy learns: rewards and held-out accuracy over many steps, compared in standard errors."""

from __future__ import annotations

import math
from collections.abc import Sequence

from winnow.alarms.alarm import Evidence
from winnow.alarms.lost import collapse
from winnow.alarms.past import (
    ACCURACY,
    MEASURED,
    REWARD,
    Compared,
    Past,
    Rewards,
    Row,
    accuracy,
    are_comparable,
    errors,
    is_held,
    mean,
    mean_of,
    prompts,
    rewards,
    spread_of,
    values,
    variance_of_mean,
)
from winnow.config import AlarmsSection

RECENT, BEFORE = 3, 20  # steps after and before a drop
SAWING, WIDTHS = 40, (1, 5)  # window in which swings are counted; numbers of steps that are averaged
LEARNED = 0.9  # accuracy above which a gain is not required
CONFIDENT = 2.0  # standard errors that exclude a gain, or that show one
EARLIEST = 0.5  # of no_learning_steps: the rule applies from here on, at first with a stricter limit
ALIKE = 1e-9  # of the rewards' spread: means that differ by less differ by rounding only
FEWEST = 6  # steps, so that the first and the last third have two steps each, and thus a variance


def no_learning(past: Past, limits: AlarmsSection) -> Evidence | None:
    """A relevant gain in training is excluded, and held-out problems, where they are evaluated, show no gain.

    The rule compares the last third of the steps with the first third; both have at most a third of
    k = `no_learning_steps`. After k steps, two standard errors exclude the gain `no_learning_gain`, and two show a
    gain. Between k / 2 and k steps, the gain to exclude and the number of standard errors that show one are multiplied
    by (steps / k)^2. A policy that learns slowly has gained little by then, and a rule that is applied at every step is
    wrong more often. The alarm is not raised if noise could hide a gain, or for a small but certain gain, as on a task
    that is rarely solved.
    """
    steps = past.rows[-1]["step"] - past.first[0]["step"] + 1 if past.rows and past.first else 0
    third = max(2, int(min(steps, limits.no_learning_steps)) // 3)
    first, now = past.first[:third], past.last(third)
    if len(first) < third or not now or steps < max(FEWEST, EARLIEST * limits.no_learning_steps):
        return None
    if any(is_held(row) for row in now) or accuracy(now) >= LEARNED:
        return None
    gain, noise = _gained(first, now)
    at_once, its_noise = _gained(first[: max(2, third // 3)], now)  # includes a gain within the first third
    spread = max(rewards(first).std, rewards(now).std)
    part = min(1.0, steps / limits.no_learning_steps) ** 2
    if part < 1 and not noise > ALIKE * spread:  # a mean that never changes; `constant_reward` is raised before
        return None
    excluded = gain + CONFIDENT * noise <= part * limits.no_learning_gain * spread
    if gain > part * CONFIDENT * noise or not excluded:
        return None
    if at_once > max(CONFIDENT * its_noise, limits.no_learning_gain * spread) or _held_out_gained(past):
        return None
    reached = mean(now, REWARD)
    return Evidence(
        f"the mean reward is {reached:.3g} after {steps:.0f} steps, {gain:+.2g} ± {noise:.1g} "
        f"against the first {third} steps",
        {REWARD: reached, "gain": gain, "standard_error": noise},
    )


def sudden_drop(past: Past, limits: AlarmsSection) -> Evidence | None:
    """The reward falls within a few steps, or held-out accuracy falls below its best, by far more than noise; or hardly
    any answer is right, or readable, any more.
    """
    rows = past.last(RECENT + BEFORE)
    comparable = rows and are_comparable(rows)
    dropped = _dropped(rewards(rows[:BEFORE]), rewards(rows[BEFORE:]), limits) if comparable else None
    return collapse(past, limits) or dropped or _held_out_dropped(past, limits)


def oscillation(past: Past, limits: AlarmsSection) -> Evidence | None:
    """The reward or held-out accuracy goes up and down, each time by far more than noise."""
    rows = [row for row in past.last(SAWING) if "reward/mean" in row]
    rows = rows if are_comparable(rows) else []
    spread, means, sizes = rewards(rows).std, values(rows, REWARD), [prompts(row) for row in rows]
    for width in WIDTHS:
        blocks = [slice(at, at + width) for at in range(0, len(rows) - width + 1, width)]
        noise = [spread / math.sqrt(sum(sizes[block])) for block in blocks]
        turns = _turns([mean_of(means[block], sizes[block]) for block in blocks], noise, limits, spread)
        if len(turns) > limits.swings:
            return _sawing("the mean reward", REWARD, turns, f"in {len(rows)} steps")
    held_out = [e.accuracy for e in past.evaluations]
    turns = _turns(held_out, errors(past.evaluations), limits, spread_of(mean_of(held_out)))
    if len(turns) > limits.swings:
        return _sawing("held-out accuracy", MEASURED, turns, f"in {len(held_out)} evaluations")
    return None


def overfitting(past: Past, limits: AlarmsSection) -> Evidence | None:
    """At both of the last two evaluations, training accuracy exceeds held-out accuracy by more than at the first one,
    and held-out accuracy no longer rises.

    The second condition is needed because harder held-out problems may improve more slowly.
    """
    if len(past.compared) < 3:
        return None
    start, now = past.compared[0], past.compared[-1]
    if not all(_parted(start, later, limits) for later in past.compared[-2:]) or _rises(past.compared):
        return None
    return Evidence(
        f"around step {now.held_out.step} training accuracy is {now.train:.1%} and held-out accuracy "
        f"{now.held_out.accuracy:.1%}; around step {start.held_out.step} they were {start.train:.1%} and "
        f"{start.held_out.accuracy:.1%}",
        {ACCURACY: now.train, MEASURED: now.held_out.accuracy, "gap": now.gap, "gap_before": start.gap},
    )


def _gained(before: Sequence[Row], now: Sequence[Row]) -> tuple[float, float]:
    """(gain of the mean reward, its standard error from the variance between steps)"""
    was, is_now = values(before, REWARD), values(now, REWARD)
    return mean_of(is_now) - mean_of(was), math.sqrt(variance_of_mean(was) + variance_of_mean(is_now))


def _held_out_gained(past: Past) -> bool:
    """Whether the newest evaluation is better than the first one, beyond noise."""
    if len(past.evaluations) < 2:
        return False
    noise = errors(past.evaluations)
    gain = past.evaluations[-1].accuracy - past.evaluations[0].accuracy
    return gain > CONFIDENT * math.hypot(noise[0], noise[-1])


def _dropped(before: Rewards, now: Rewards, limits: AlarmsSection) -> Evidence | None:
    spread, drop = max(before.std, now.std), before.mean - now.mean
    noise = spread * math.sqrt(1 / max(before.prompts, 1.0) + 1 / max(now.prompts, 1.0))
    if not drop > max(limits.standard_errors * noise, limits.drop * spread):
        return None
    text = f"the mean reward fell from {before.mean:.3g} to {now.mean:.3g} within {RECENT} steps (noise {noise:.2g})"
    return Evidence(text, {REWARD: now.mean, "before": before.mean, "standard_error": noise})


def _held_out_dropped(past: Past, limits: AlarmsSection) -> Evidence | None:
    if len(past.evaluations) < 2:
        return None
    now, best = past.evaluations[-1], max(past.evaluations[:-1], key=lambda e: e.accuracy)
    error = dict(zip((e.step for e in past.evaluations), errors(past.evaluations), strict=True))
    noise, drop = math.hypot(error[now.step], error[best.step]), best.accuracy - now.accuracy
    if not drop > max(limits.standard_errors * noise, limits.drop * spread_of(best.accuracy)):
        return None
    text = (
        f"held-out accuracy fell from {best.accuracy:.1%} (step {best.step}) to {now.accuracy:.1%} (noise {noise:.1%})"
    )
    return Evidence(text, {MEASURED: now.accuracy, "before": best.accuracy, "standard_error": noise})


def _turns(numbers: Sequence[float], noise: Sequence[float], limits: AlarmsSection, spread: float) -> list[float]:
    """The turning points of a series that differ by more than noise and by more than a part of the spread."""
    turns: list[int] = []  # places of the extremes so far; the last one may still move
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


def _rises(compared: Sequence[Compared]) -> bool:
    """Whether held-out accuracy is above what it was half of these evaluations ago, beyond noise."""
    middle, now = compared[len(compared) // 2 - 1].held_out, compared[-1].held_out
    return now.accuracy - middle.accuracy > CONFIDENT * math.hypot(*errors((middle, now)))


def _parted(start: Compared, now: Compared, limits: AlarmsSection) -> bool:
    """Whether training accuracy exceeds held-out accuracy, and by more than at first, both beyond noise and `gap`."""
    spread = max(spread_of(chance) for chance in (start.train, now.train, (start.train + now.train) / 2))
    held_out = errors((start.held_out, now.held_out))
    noise = math.hypot(spread / math.sqrt(start.prompts), spread / math.sqrt(now.prompts), *held_out)
    least = max(limits.standard_errors * noise, limits.gap)
    return now.gap > least and now.gap - start.gap > least
