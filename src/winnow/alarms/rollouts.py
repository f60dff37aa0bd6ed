"""Alarms about rollouts: their lengths, rewards, answers and steps without a signal, and turns of an environment."""

from __future__ import annotations

import math

import numpy as np

from winnow.alarms.history import (
    ACCURACY_READ,
    BLOCK,
    PROMPTS_READ,
    READABLE,
    REWARD_READ,
    Past,
    accuracy,
    is_held,
    judged,
    mean,
    mean_of,
    rewards,
    share,
    share_of_judged,
    total,
    values,
    variance_of_mean,
)
from winnow.alarms.kinds import Evidence, alarm
from winnow.algos.advantage import is_flat
from winnow.config import AlarmsSection

APART = 20  # steps between the ends of the two blocks that are compared
BETTER = 2.0  # standard errors above which a reward has risen
FEWEST_ROLLOUTS = 64  # of fewer, equal rewards may be chance
CREDIT = 0.5  # of the rewards' range: a root mean square advantage above it shows that flat groups are trained on
SOLVED = 0.8  # accuracy, above which it does not matter how a rollout ended


@alarm(
    meaning="most rollouts are cut off at max_new_tokens, so that many never answer",
    cause="the limit is too low for this task, the policy has not learned to stop, or a stop text is missing",
    keys=("rollout.max_new_tokens", "rollout.stop", "prompt.template"),
    limits=("steps", "truncated_share"),
    reads=("rollout/truncated",),
)
def all_truncated(past: Past, limits: AlarmsSection) -> Evidence | None:
    """Most rollouts are cut off at max_new_tokens, at the newest step too: a policy may learn to end them."""
    rows = past.last(limits.steps)
    cut = mean(rows, "rollout/truncated")
    if not min([cut, *values(rows[-1:], "rollout/truncated")]) >= limits.truncated_share:
        return None
    return Evidence(f"{cut:.0%} of the rollouts of {len(rows)} steps hit max_new_tokens", {"rollout/truncated": cut})


@alarm(
    meaning="completions grow fast while the reward does not rise",
    cause="the weighting or the reward favours length, the policy repeats itself, or updates are too large",
    keys=("weighting", "reward", "optimizer.learning_rate", "rollout.max_new_tokens"),
    limits=("length_factor", "standard_errors"),
    reads=("rollout/length_mean", "rollout/truncated", *REWARD_READ),
)
def length_explosion(past: Past, limits: AlarmsSection) -> Evidence | None:
    return _length(past, limits, grows=True)


@alarm(
    meaning="completions shrink fast while the reward does not rise",
    cause="the reward or the weighting favours short answers, or the policy guesses instead of reasoning",
    keys=("reward", "weighting", "optimizer.learning_rate"),
    limits=("length_factor", "standard_errors"),
    reads=("rollout/length_mean", "rollout/truncated", *REWARD_READ),
)
def length_collapse(past: Past, limits: AlarmsSection) -> Evidence | None:
    return _length(past, limits, grows=False)


def _length(past: Past, limits: AlarmsSection, *, grows: bool) -> Evidence | None:
    rows = past.last(APART + BLOCK)
    before, now = values(rows[:BLOCK], "rollout/length_mean"), values(rows[-BLOCK:], "rollout/length_mean")
    if len(before) < BLOCK or len(now) < BLOCK:
        return None
    was, is_now = mean_of(before), mean_of(now)
    short, long = (was, is_now) if grows else (is_now, was)
    noise = math.sqrt(variance_of_mean(before) + variance_of_mean(now))
    if long < limits.length_factor * short or long - short <= limits.standard_errors * noise:
        return None
    earlier, later = rewards(rows[:BLOCK]), rewards(rows[-BLOCK:])
    if not later.mean - earlier.mean <= BETTER * math.sqrt(earlier.variance + later.variance):  # or not known
        return None
    return Evidence(
        f"completions went from {was:.0f} to {is_now:.0f} tokens within {APART} steps, and the reward did not rise",
        {"rollout/length_mean": is_now, "before": was, "rollout/truncated": mean(rows[-BLOCK:], "rollout/truncated")},
    )


@alarm(
    meaning="nearly all groups are flat: their rewards are all equal, so that a group baseline gives no gradient",
    cause="the prompts are too easy or too hard for this policy",
    keys=("task", "rollout.temperature", "rollout.rollouts_per_prompt", "rollout.dynamic_sampling_rounds"),
    limits=("steps", "flat_share"),
    reads=(
        "group/flat", "group/count", "group/all_correct", "group/all_wrong", "advantage/mean", "advantage/std",
        "reward/min", "reward/max", "critic/explained_variance", "budget/rollouts",
    ),
)  # fmt: skip
def all_flat(past: Past, limits: AlarmsSection) -> Evidence | None:
    """Nearly all groups are flat, and advantages come from differences within a group alone.

    Value models and baselines over a batch give flat groups an advantage too, so their advantages are not small.
    Groups of one rollout are always flat.
    """
    rows = past.last(limits.steps)
    if total(rows, "budget/rollouts") < 2 * total(rows, "group/count"):
        return None
    flat = share(rows, "group/flat", "group/count")
    if not flat >= limits.flat_share or any("critic/explained_variance" in row for row in rows):
        return None
    span = max(1.0, *(row.get("reward/max", 0.0) - row.get("reward/min", 0.0) for row in rows))
    credit = math.sqrt(
        mean_of(
            row["advantage/mean"] * row["advantage/mean"] + row["advantage/std"] * row["advantage/std"]
            for row in rows
            if "advantage/mean" in row and "advantage/std" in row
        )
    )
    if credit > CREDIT * span:
        return None
    text, numbers = f"{flat:.0%} of the groups of {len(rows)} steps are flat", {"group/flat": flat}
    if not any("group/all_correct" in row for row in rows):  # rewards without verdicts
        return Evidence(text, numbers)
    right, wrong = total(rows, "group/all_correct"), total(rows, "group/all_wrong")
    text += f" ({right:.0f} all correct, {wrong:.0f} all wrong)"
    numbers |= {"group/all_correct": right, "group/all_wrong": wrong}
    return Evidence(text, numbers, cause=_too_easy_or_hard(right, wrong))


@alarm(
    meaning="steps in a row took no update, as no rollout that was kept had an advantage",
    cause="the prompts are too easy or too hard for this policy",
    keys=("task", "reward", "prompt.template", "rollout.max_new_tokens", "rollout.dynamic_sampling_rounds"),
    limits=("untrained_steps",),
    reads=(
        "budget/updates", "select/trained", "critic/updates", "policy/learning_rate", "group/flat", "group/count",
        "group/all_correct", "group/all_wrong", "outcome/unparsable", "outcome/failed", "rollout/truncated",
        "budget/rollouts",
    ),
)  # fmt: skip
def nothing_trained(past: Past, limits: AlarmsSection) -> Evidence | None:
    """Steps in a row without an update, for lack of a signal; `not_finite` covers updates that were not finite."""
    rows = past.last(limits.untrained_steps)
    if not rows or any(row.get("budget/updates", 1.0) or row.get("select/trained") or is_held(row) for row in rows):
        return None
    groups, flat = total(rows, "group/count"), total(rows, "group/flat")
    if not groups:
        text = f"no update was taken in {len(rows)} steps: the plan gave none of their prompts a rollout"
        return Evidence(text, {"group/count": 0.0}, "the budget is too small for the prompts", ("allocate",))
    right, wrong = total(rows, "group/all_correct"), total(rows, "group/all_wrong")
    unread, failed = total(rows, "outcome/unparsable"), total(rows, "outcome/failed")
    cut = mean_of(values(rows, "rollout/truncated"))
    text = (
        f"nothing to learn from, no update was taken in {len(rows)} steps: {flat:.0f} of {groups:.0f} groups are flat "
        f"({right:.0f} all correct, {wrong:.0f} all wrong; {unread:.0f} rollouts without a readable answer, {cut:.0%} "
        f"cut off at max_new_tokens, {failed:.0f} verifier failures)"
    )
    numbers = {"group/flat": flat, "group/count": groups, "group/all_correct": right, "group/all_wrong": wrong}
    if failed > judged(rows) / 2:
        cause = (
            "the verifier fails on most rollouts; on the command line, `winnow show RUN --failed` prints the reasons"
        )
        return Evidence(text, numbers, cause, ("verify", "reward"))
    return Evidence(text, numbers, _too_easy_or_hard(right, wrong))


@alarm(
    meaning="every rollout earns the same reward",
    cause="the verifier reads the answer from another place than the prompt requests, golds are misread, the task "
    "is far too hard, or the reward ignores the answer",
    keys=("reward", "prompt.template", "rollout.stop", "rollout.max_new_tokens", "task"),
    limits=("steps",),
    reads=("reward/min", "reward/max", "reward/accuracy", *READABLE),
    explains=("all_flat",),
)
def constant_reward(past: Past, limits: AlarmsSection) -> Evidence | None:
    rows = [row for row in past.last(limits.steps) if "reward/min" in row]
    if len(rows) < limits.steps or total(rows, "budget/rollouts") < FEWEST_ROLLOUTS:
        return None
    low, high = min(values(rows, "reward/min")), max(values(rows, "reward/max"))
    if not is_flat(np.array([low, high])):
        return None
    counted = [row for row in rows if "outcome/unparsable" in row]  # another trainer's log has no such number
    unread = {"outcome/unparsable": share_of_judged(counted, "outcome/unparsable")} if counted else {}
    count, right = total(rows, "budget/rollouts"), min(values(rows, "reward/accuracy"), default=0.0) == 1
    return Evidence(
        f"all {count:.0f} rollouts of {len(rows)} steps earn {high:g}"
        + "".join(f"; {part:.0%} have no readable answer" for part in unread.values()),
        {"reward/min": low, "reward/max": high, **unread},
        cause="the task is solved, or the reward is the same for any text" if right else None,
    )


@alarm(
    meaning="nearly no rollout has an answer that the verifier could read",
    cause="the prompt does not request the format that the reward reads, or answers are cut off before their end",
    keys=("prompt.template", "reward", "rollout.stop", "rollout.max_new_tokens"),
    limits=("steps", "unparsable_share"),
    reads=READABLE,
)
def unparsable(past: Past, limits: AlarmsSection) -> Evidence | None:
    rows = past.last(limits.steps)
    unread = share_of_judged(rows, "outcome/unparsable")
    if not unread >= limits.unparsable_share or total(rows, "budget/rollouts") < FEWEST_ROLLOUTS:
        return None
    text = f"{unread:.0%} of the rollouts of {len(rows)} steps have no answer that the verifier could read"
    return Evidence(text, {"outcome/unparsable": unread})


@alarm(
    meaning="verdicts fail: timeout, memory, crash; these rollouts are neither kept nor in any baseline",
    cause="the reward raises an exception on some texts, the time or memory limit of a verdict is too low for some "
    "answers, or the machine is overloaded; on the command line, `winnow show RUN --failed` prints each cause",
    keys=("verify.timeout_seconds", "verify.memory_mb", "verify.workers", "reward"),
    limits=("steps", "failed_share", "failed_verdicts"),
    reads=("outcome/failed", "outcome/failed/{cause}", "outcome/cut", "budget/rollouts"),
)
def verifier_failures(past: Past, limits: AlarmsSection) -> Evidence | None:
    """Verdicts fail, but too few for the run to stop."""
    rows = past.rows[-limits.steps :]
    failed = share_of_judged(rows, "outcome/failed")
    count = total(rows, "outcome/failed")
    if not failed >= limits.failed_share or count < limits.failed_verdicts:
        return None
    causes = sorted({name for row in rows for name in row if name.startswith("outcome/failed/")})
    counts = ", ".join(f"{total(rows, name):.0f} {name.removeprefix('outcome/failed/')}" for name in causes)
    text = f"{count:.0f} verdicts ({failed:.1%}) of the last {len(rows)} steps failed" + f": {counts}" * bool(counts)
    return Evidence(text, {"outcome/failed": count, **{name: total(rows, name) for name in causes}})


def _too_easy_or_hard(right: float, wrong: float) -> str:
    if right > wrong:
        return "the task is solved or too easy: use harder problems, or end the run"
    return "the task is too hard for this policy, its answers are cut off or cannot be read, or the golds are misread"


@alarm(
    meaning="many turns of the policy are cut off at environment.max_turn_tokens, so that the environment reads half "
    "a turn",
    cause="the limit is too low for this task, or the policy has not learned to end its turns",
    keys=("environment.max_turn_tokens", "rollout.stop", "prompt.template"),
    limits=("steps", "cut_turns_share"),
    reads=("environment/turns_cut_off",),
)
def turns_cut_off(past: Past, limits: AlarmsSection) -> Evidence | None:
    """Many turns of the policy have max_turn_tokens tokens, at the newest step too."""
    rows = past.last(limits.steps)
    cut = mean(rows, "environment/turns_cut_off")
    if not min([cut, *values(rows[-1:], "environment/turns_cut_off")]) >= limits.cut_turns_share:
        return None
    text = f"{cut:.0%} of the policy's turns of {len(rows)} steps hit environment.max_turn_tokens"
    return Evidence(text, {"environment/turns_cut_off": cut})


@alarm(
    meaning="nearly all rollouts end in their first turn, and many are wrong: the policy does not use the environment",
    cause="the policy answers before it has read anything, the prompt does not describe the turns, or the environment "
    "ends at a turn that it cannot read",
    keys=("environment", "prompt.system", "task"),
    limits=("steps", "one_turn_share"),
    reads=("environment/one_turn", *ACCURACY_READ, *PROMPTS_READ),
)
def ends_in_first_turn(past: Past, limits: AlarmsSection) -> Evidence | None:
    rows = past.last(limits.steps)
    share, right = mean(rows, "environment/one_turn"), accuracy(rows)
    if not share >= limits.one_turn_share or right >= SOLVED:
        return None
    text = f"{share:.0%} of the rollouts of {len(rows)} steps ended in their first turn"
    text += f", and {right:.0%} were right" * (not math.isnan(right))
    return Evidence(text, {"environment/one_turn": share})


@alarm(
    meaning="the policy has never called a tool of the environment",
    cause="the prompt does not describe the tools and the form of a call, or the policy never writes that form, and "
    "what is never sampled is not learned",
    keys=("prompt.system", "environment", "model.path"),
    limits=("steps",),
    reads=("environment/tool_calls",),
)
def no_tool_call(past: Past, limits: AlarmsSection) -> Evidence | None:
    rows = past.last(limits.steps)
    calls = values([*past.first, *rows], "environment/tool_calls")
    if not rows or not calls or any(calls):
        return None
    return Evidence(f"no rollout of {len(rows)} steps contains a tool call", {"environment/tool_calls": 0.0})
