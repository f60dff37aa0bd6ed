"""Whether the policy learns, has lost an ability, or is evaluated on easier problems than it trains on.

Rewards and held-out accuracy over many steps are compared in standard errors.

For a lost ability, the newest steps are compared with the block of steps whose accuracy has the highest lower bound
(`Past.best`). If prompt, golds and format worked then, they are not the cause. The reward separates two causes: if it
fell as well, an update was too large; if it rose, it rewards something other than right answers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from winnow.alarms.history import (
    ACCURACY,
    ACCURACY_READ,
    BLOCK,
    HELD_OUT_READ,
    MEASURED,
    PROMPTS_READ,
    READABLE,
    REWARD,
    REWARD_READ,
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
    prompts_of,
    rewards,
    share_of_judged,
    spread_of,
    values,
    variance_of_mean,
)
from winnow.alarms.kinds import Evidence, alarm
from winnow.config import AlarmsSection

RECENT, BEFORE = 3, 20  # steps after and before a drop; a lost ability is shown by at least RECENT steps
SAWING, WIDTHS = 40, (1, 5)  # window in which swings are counted; numbers of steps that are averaged
LEARNED = 0.9  # accuracy above which a gain is not required
CONFIDENT = 2.0  # standard errors that exclude a gain, or that show one
EARLIEST = 0.5  # of no_learning_steps: the rule applies from here on, at first with a stricter limit
ALIKE = 1e-9  # of the rewards' spread: means that differ by less differ by rounding only
FEWEST = 6  # steps, so that the first and the last third have two steps each, and thus a variance
LOST = 0.1  # of the best share of right or of readable answers, at which the ability counts as lost
RISEN = 2.0  # standard errors above which a reward has risen
PART = "reward/part/"
EVALUATIONS = 3  # in a row, with held-out accuracy above that of training


# Consequences of a policy that has lost its ability for any reason; its prompt, golds and limits are not the cause.
OF_A_LOST_POLICY = (
    "all_flat", "nothing_trained", "constant_reward", "unparsable", "all_truncated", "length_explosion",
    "length_collapse", "entropy_collapse", "entropy_explosion", "kl_drift", "ratio_drift", "clip_fraction",
    "gradient_spike", "no_learning",
)  # fmt: skip


@alarm(
    meaning="after many steps the reward is the same as at first, and noise is too small to hide a gain",
    cause="the learning rate is too low, too few rollouts are trained on, or the reward does not depend on what "
    "the policy can change",
    keys=("optimizer.learning_rate", "select", "advantage", "update.updates_per_step", "reward", "task"),
    limits=("no_learning_steps", "no_learning_gain"),
    reads=(*REWARD_READ, *ACCURACY_READ, *HELD_OUT_READ),
)
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


@alarm(
    meaning="the reward falls within a few steps, held-out accuracy falls below its best, or hardly an answer is "
    "right or readable any more",
    cause="an update was too large, or the policy writes text that the verifier misreads; resume from an earlier "
    "checkpoint",
    keys=("optimizer.learning_rate", "optimizer.max_grad_norm", "update.epochs", "terms"),
    limits=("drop", "standard_errors"),
    reads=(*REWARD_READ, *ACCURACY_READ, *READABLE, *HELD_OUT_READ),
    explains=OF_A_LOST_POLICY,
)
def sudden_drop(past: Past, limits: AlarmsSection) -> Evidence | None:
    rows = past.last(RECENT + BEFORE)
    comparable = rows and are_comparable(rows)
    dropped = _dropped(rewards(rows[:BEFORE]), rewards(rows[BEFORE:]), limits) if comparable else None
    return collapse(past, limits) or dropped or _held_out_dropped(past, limits)


@alarm(
    meaning="reward or held-out accuracy goes up and down instead of settling",
    cause="the learning rate is too high, or too few prompts decide an update",
    keys=("optimizer.learning_rate", "rollout.prompts_per_step", "update.updates_per_step", "optimizer.schedule"),
    limits=("swings", "drop", "standard_errors"),
    reads=(*REWARD_READ, *HELD_OUT_READ),
)
def oscillation(past: Past, limits: AlarmsSection) -> Evidence | None:
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


@alarm(
    meaning="training accuracy rises above held-out accuracy: the policy does not generalise",
    cause="the problems are too few and seen too often, or golds and answers leak through the prompt",
    keys=("task", "steps", "optimizer.learning_rate", "terms"),
    limits=("gap", "standard_errors"),
    reads=(*ACCURACY_READ, *PROMPTS_READ, *HELD_OUT_READ),
)
def overfitting(past: Past, limits: AlarmsSection) -> Evidence | None:
    """At both of the last two evaluations, training accuracy exceeds held-out accuracy by more than at the first one,
    and held-out accuracy is not above what it was half of these evaluations ago, beyond noise.

    The second condition is needed because harder held-out problems may improve more slowly.
    """
    if len(past.compared) < 3:
        return None
    start, middle, now = (past.compared[place] for place in (0, len(past.compared) // 2 - 1, -1))
    rise, noise = now.held_out.accuracy - middle.held_out.accuracy, errors((middle.held_out, now.held_out))
    if not all(_parted(start, later, limits) for later in past.compared[-2:]) or rise > CONFIDENT * math.hypot(*noise):
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


def _parted(start: Compared, now: Compared, limits: AlarmsSection) -> bool:
    """Whether training accuracy exceeds held-out accuracy, and by more than at first, both beyond noise and `gap`."""
    spread = max(spread_of(chance) for chance in (start.train, now.train, (start.train + now.train) / 2))
    held_out = errors((start.held_out, now.held_out))
    noise = math.hypot(spread / math.sqrt(start.prompts), spread / math.sqrt(now.prompts), *held_out)
    least = max(limits.standard_errors * noise, limits.gap)
    return now.gap > least and now.gap - start.gap > least


def collapse(past: Past, limits: AlarmsSection) -> Evidence | None:
    """Hardly any answer is right, or readable, where many were before, and the reward has not risen beyond noise."""
    for now in _newest(past, limits):
        if _reward_rise(past.best, now) > RISEN:
            continue
        for what, of in (("right", accuracy), ("readable", _readable)):
            was, is_now = of(past.best), of(now)
            if is_now <= LOST * was and _fall(past.best, now, of) > limits.standard_errors:
                return Evidence(
                    f"{is_now:.1%} of the answers of the last {len(now)} steps are {what}; {_when(past.best)} it was "
                    f"{was:.1%}",
                    {ACCURACY: accuracy(now), "before": accuracy(past.best), "readable": _readable(now)},
                    cause="an update was too large and destroyed the policy; prompt, format and golds are not the "
                    "cause, as they worked before; resume from an earlier checkpoint with a lower learning rate",
                )
    return None


@alarm(
    meaning="the reward rises while fewer answers are right: the reward is exploited",
    cause="a part of the reward is easier to earn than a right answer, its weight is too large, or the verifier "
    "rewards text that is no answer; read the rollouts with the highest rewards",
    keys=("reward", "terms"),
    limits=("steps", "untrained_steps", "drop", "standard_errors"),
    reads=(*REWARD_READ, *ACCURACY_READ, "reward/part/{part}"),
    explains=(*OF_A_LOST_POLICY, "sudden_drop"),
)
def reward_without_accuracy(past: Past, limits: AlarmsSection) -> Evidence | None:
    """The mean reward is above that of the best block and fewer answers are right, both beyond noise."""
    for now in _newest(past, limits):
        was, is_now = accuracy(past.best), accuracy(now)
        least = limits.drop * spread_of(was)
        if not (was - is_now > least and _fall(past.best, now, accuracy) > limits.standard_errors):
            continue
        if _reward_rise(past.best, now) > RISEN:
            before, reward = mean(past.best, REWARD), mean(now, REWARD)
            return Evidence(
                f"the mean reward rose from {before:.3g} to {reward:.3g} while the share of right answers fell from "
                f"{was:.1%} ({_when(past.best)}) to {is_now:.1%}{_parts(past.best, now)}",
                {REWARD: reward, "reward_before": before, ACCURACY: is_now, "accuracy_before": was},
            )
    return None


def _newest(past: Past, limits: AlarmsSection) -> Iterator[Sequence[Row]]:
    """The newest steps, in windows of increasing length, if they are comparable and follow the best block."""
    for count in sorted({RECENT, limits.untrained_steps, limits.steps, BLOCK}):
        rows = past.last(count)
        if rows and past.best and rows[0]["step"] > past.best[-1]["step"] and are_comparable(rows):
            yield rows


def _fall(before: Sequence[Row], now: Sequence[Row], of: Callable[[Sequence[Row]], float]) -> float:
    """The fall of a share in standard errors, under the hypothesis of equal shares; NaN where the error is 0.

    The error is an upper bound: it counts each prompt as one number, as if all its rollouts were alike.
    """
    counts = prompts_of(before), prompts_of(now)
    shares = of(before), of(now)
    pooled = sum(count * one for count, one in zip(counts, shares, strict=True)) / sum(counts)
    noise = spread_of(pooled) * math.sqrt(1 / counts[0] + 1 / counts[1])
    return (shares[0] - shares[1]) / noise if noise > 0 else math.nan


def _reward_rise(before: Sequence[Row], now: Sequence[Row]) -> float:
    """The rise of the mean reward in standard errors; NaN where the error is 0 or not known."""
    was, is_now = rewards(before), rewards(now)
    noise = math.sqrt(was.variance + is_now.variance)
    return (is_now.mean - was.mean) / noise if noise > 0 else math.nan


def _readable(rows: Sequence[Row]) -> float:
    return 1.0 - share_of_judged(rows, "outcome/unparsable")


def _parts(before: Sequence[Row], now: Sequence[Row]) -> str:
    """The parts of the reward that rose, with their numbers, largest rise first."""
    names = sorted({name for row in now for name in row if name.startswith(PART)})
    ends = [(name.removeprefix(PART), mean(before, name), mean(now, name)) for name in names]
    risen = sorted((end for end in ends if end[2] > end[1]), key=lambda end: end[1] - end[2])
    changes = [f"{name} from {was:.3g} to {is_now:.3g}" for name, was, is_now in risen]
    return f"; these parts of the reward rose: {', '.join(changes)}" if changes else ""


def _when(rows: Sequence[Row]) -> str:
    first, last = rows[0]["step"], rows[-1]["step"]
    return f"at step {first:.0f}" if first == last else f"in the steps {first:.0f} to {last:.0f}"


@alarm(
    meaning="held-out accuracy is above training accuracy: the two do not measure the same",
    cause="held-out answers leak into the prompts or into the training data, the grader or the temperature of the "
    "evaluation differs, or the training problems are harder",
    keys=("task", "evaluate.split", "evaluate.temperature", "rollout.temperature", "reward"),
    limits=("gap", "standard_errors"),
    reads=(*ACCURACY_READ, *PROMPTS_READ, *HELD_OUT_READ),
)
def held_out_above_training(past: Past, limits: AlarmsSection) -> Evidence | None:
    """At the last three evaluations, held-out accuracy exceeds the accuracy of the training steps around it by more
    than noise and more than `gap`.

    The rule does not apply while an allocator gives some prompts no rollout: training accuracy then omits them.
    """
    recent = past.compared[-EVALUATIONS:]
    if len(recent) < EVALUATIONS or not are_comparable(past.last(BLOCK)):
        return None
    noise = [_noise(one, error) for one, error in zip(recent, errors([one.held_out for one in recent]), strict=True)]
    least = [max(limits.standard_errors * each, limits.gap) for each in noise]
    if not all(-one.gap > each for one, each in zip(recent, least, strict=True)):
        return None
    now = recent[-1]
    return Evidence(
        f"held-out accuracy is {now.held_out.accuracy:.1%} at step {now.held_out.step} and training accuracy around it "
        f"{now.train:.1%} (noise {noise[-1]:.1%}); so it was at the {EVALUATIONS} last evaluations",
        {MEASURED: now.held_out.accuracy, ACCURACY: now.train, "gap": now.gap, "standard_error": noise[-1]},
    )


def _noise(one: Compared, error: float) -> float:
    """The standard error of the difference; each training prompt counts as one independent number."""
    spread = max(spread_of(one.train), spread_of((one.train + one.held_out.accuracy) / 2))
    return math.hypot(spread / math.sqrt(one.prompts), error)
