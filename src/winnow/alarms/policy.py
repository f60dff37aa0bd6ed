"""Alarms about the policy (entropy, distances, gradients) and about a value model (explained variance, updates)."""

from __future__ import annotations

import math
import statistics

from winnow.alarms.history import (
    ACCURACY,
    ACCURACY_READ,
    PROMPTS_READ,
    Past,
    accuracy,
    is_held,
    mean,
    share,
    values,
)
from winnow.alarms.kinds import Evidence, alarm
from winnow.config import AlarmsSection

FALLEN = 0.05  # of the entropy of the first steps, below which too little is left for exploration
SOLVED = 0.8  # accuracy, above which the policy needs no further exploration
# Share of flat groups, below which rollouts differ enough to learn from, however low the entropy. A published model had
# 62% while its held-out accuracy rose, and a policy that exploited a faulty reward 80%.
ALIKE = 0.7
NORMS, FEWEST_NORMS = 20, 10  # gradient norms, at most and at least, that a new one is compared with
DIVERGENCES = ("loss/kl", "reward/kl")
_GAPS = ("policy/logprob_gap_mean", "policy/logprob_gap_p999", "policy/logprob_gap_max", "policy/ratio_outside")
LAG, LAG_ERROR = "policy/engine_lag", "policy/engine_lag_sem"
STALE = "policy/staleness_sample_size"
BESIDE_EVALUATIONS = 2  # fewest measurements of a lag, where a step's own rollouts show none
FOLLOWED, NOISE = "policy/move_followed", "policy/move_noise"
EXPLAINED = "critic/explained_variance"
CONSTANT = 0.0  # explained variance of a constant prediction


@alarm(
    meaning="the policy's entropy is near 0, or a small part of what it was at first, while many of its answers "
    "are wrong and at least 70% of the groups are flat",
    cause="updates are too large or too many on the same rollouts, nothing rewards exploration, or the temperature "
    "is too low",
    keys=("optimizer.learning_rate", "update.epochs", "rollout.temperature", "terms", "loss"),
    limits=("steps", "entropy_floor"),
    reads=("policy/entropy", *ACCURACY_READ, *PROMPTS_READ, "group/flat"),
)
def entropy_collapse(past: Past, limits: AlarmsSection) -> Evidence | None:
    """The entropy alone also falls where a policy learns a short form of answer, and its rollouts may still differ:
    then it learns on. A log without flat groups is judged by entropy and accuracy.
    """
    rows, first = past.last(limits.steps), past.first[: limits.steps]
    entropy, was, right = mean(rows, "policy/entropy"), mean(first, "policy/entropy"), accuracy(rows)
    flat = share([row for row in rows if "group/flat" in row], "group/flat", "group/count")
    if not entropy < max(limits.entropy_floor, FALLEN * was) or right >= SOLVED or flat < ALIKE:
        return None
    measured = {name: of for name, of in ((ACCURACY, right), ("group/flat", flat)) if not math.isnan(of)}
    text = f"the entropy of {len(rows)} steps is {entropy:.2g} nats a token (at first {was:.2g})"
    text += f", while {right:.0%} of the answers are right" * (ACCURACY in measured)
    text += f" and {flat:.0%} of the groups are flat" * ("group/flat" in measured)
    return Evidence(text, {"policy/entropy": entropy, "before": was, **measured})


@alarm(
    meaning="the policy's entropy is far above that of the first steps",
    cause="updates are too large, an entropy term is too strong, or the rewards are noise",
    keys=("optimizer.learning_rate", "terms", "rollout.temperature"),
    limits=("steps", "entropy_rise"),
    reads=("policy/entropy",),
)
def entropy_explosion(past: Past, limits: AlarmsSection) -> Evidence | None:
    rows, first = past.last(limits.steps), past.first[: limits.steps]
    entropy, was = mean(rows, "policy/entropy"), mean(first, "policy/entropy")
    if not entropy > was + limits.entropy_rise:
        return None
    text = f"the entropy of {len(rows)} steps is {entropy:.2f} nats a token; in the first {len(first)} it was {was:.2f}"
    return Evidence(text, {"policy/entropy": entropy, "before": was})


@alarm(
    meaning="the policy is far from its reference",
    cause="the KL coefficient is too small for this learning rate, or the policy exploits the reward",
    keys=("terms", "advantage.kl_reward", "optimizer.learning_rate", "probe.outer_reset"),
    limits=("steps", "kl"),
    reads=DIVERGENCES,
)
def kl_drift(past: Past, limits: AlarmsSection) -> Evidence | None:
    rows = past.last(limits.steps)
    for name in DIVERGENCES:
        if (divergence := mean(rows, name)) > limits.kl:
            text = (
                f"the KL divergence from the reference is {divergence:.2g} nats a token over {len(rows)} steps ({name})"
            )
            return Evidence(text, {name: divergence})
    return None


@alarm(
    meaning="the policy moves far within a step: p_now / p_old is not 1 on average",
    cause="too many or too large updates on the same rollouts",
    keys=("optimizer.learning_rate", "update.epochs", "update.updates_per_step", "optimizer.max_grad_norm"),
    limits=("steps", "ratio"),
    reads=("policy/ratio_mean",),
)
def ratio_drift(past: Past, limits: AlarmsSection) -> Evidence | None:
    """The mean of p_now / p_old, which is 1 in expectation, is far from 1. The maximum is not used: it grows with the
    number of tokens.
    """
    rows = past.last(limits.steps)
    ratio = mean(rows, "policy/ratio_mean")
    if not abs(ratio - 1) > limits.ratio:
        return None
    text = f"p_now / p_old of the trained tokens is {ratio:.3g} on average over {len(rows)} steps, where 1 is expected"
    return Evidence(text, {"policy/ratio_mean": ratio})


@alarm(
    meaning="the clip removes the gradient of many tokens, so that many sampled tokens have no effect",
    cause="too many or too large updates on the same rollouts, or a clip that is too narrow for this loss",
    keys=("optimizer.learning_rate", "update.epochs", "update.updates_per_step", "loss"),
    limits=("steps", "clip_fraction"),
    reads=("policy/clip_fraction",),
)
def clip_fraction(past: Past, limits: AlarmsSection) -> Evidence | None:
    rows = past.last(limits.steps)
    clipped = mean(rows, "policy/clip_fraction")
    if not clipped > limits.clip_fraction:
        return None
    text = f"the clip acted on {clipped:.0%} of the trained tokens of {len(rows)} steps"
    return Evidence(text, {"policy/clip_fraction": clipped})


@alarm(
    meaning="a gradient is many times larger than those before it",
    cause="a few rollouts with extreme advantages or ratios, or a learning rate that is too high; clipping limits "
    "the norm and does not change the direction",
    keys=("optimizer.max_grad_norm", "optimizer.learning_rate", "correction", "advantage"),
    limits=("gradient_factor",),
    reads=("policy/grad_norm", "advantage/mean", "advantage/std"),
)
def gradient_spike(past: Past, limits: AlarmsSection) -> Evidence | None:
    """A gradient norm that is many times the median of those before it; one earlier spike hardly changes a median.

    The median excludes steps whose advantages are all 0: a term alone, such as a KL penalty, gives a small gradient.
    """
    if not past.rows or "policy/grad_norm" not in past.rows[-1]:
        return None
    earlier = past.rows[-1 - NORMS : -1]
    teaching = [row for row in earlier if row.get("advantage/mean", 1.0) or row.get("advantage/std", 1.0)]
    norm, before = past.rows[-1]["policy/grad_norm"], values(teaching, "policy/grad_norm")
    if len(before) < FEWEST_NORMS:
        return None
    median = statistics.median(before)
    if not norm > limits.gradient_factor * median or median == 0:
        return None
    text = f"the gradient's norm is {norm:.3g}, {norm / median:.0f} times the median of {len(before)} steps before"
    return Evidence(text, {"policy/grad_norm": norm, "median": median})


@alarm(
    meaning="updates were skipped because their gradient was not finite",
    cause="a loss, a term or an advantage of your own computes NaN or infinity, or the policy is near overflow",
    keys=("optimizer.learning_rate", "loss", "advantage", "terms", "update.max_skipped"),
    reads=("policy/not_finite_updates", "budget/updates", "select/trained", "policy/learning_rate"),
)
def not_finite(past: Past, limits: AlarmsSection) -> Evidence | None:
    """An update was skipped because its gradient was not finite. One is enough: no healthy run has any."""
    if not past.rows:
        return None
    row = past.rows[-1]
    without = row.get("budget/updates") == 0 and row.get("select/trained", 0.0) > 0 and "policy/learning_rate" in row
    count = row.get("policy/not_finite_updates", float(without))
    if not count:
        return None
    taken = row.get("budget/updates", 0.0)
    text = f"{count:.0f} updates were skipped, as their gradient was not finite; {taken:.0f} were taken"
    return Evidence(text, {"policy/not_finite_updates": count, "budget/updates": taken})


@alarm(
    meaning="the engine did not sample what is trained: its log-probs of the same tokens differ by more than its "
    "declared limits; every ratio and gradient is biased while this holds",
    cause="the engine did not load the newest weights, samples at another temperature, or computes in low precision",
    keys=("rollout.engine", "rollout.max_ratio_outside", "model.dtype", "correction"),
    reads=("policy/parity_alarm", *_GAPS, "ranks/out_of_parity"),
)
def parity(past: Past, limits: AlarmsSection) -> Evidence | None:
    """policy/parity_alarm of the newest step.

    That metric compares mean and 99.9th percentile of the gaps with the limits that the engine declares, and the share
    of ratios outside [0.8, 1.25] with rollout.max_ratio_outside and chance. It ignores the maximum, which grows with
    the number of tokens.
    """
    if not past.rows or not past.rows[-1].get("policy/parity_alarm"):
        return None
    row = past.rows[-1]
    names = [name for name in _GAPS if name in row]
    of_rank = f" of rank {row['ranks/out_of_parity']:.0f}" if "ranks/out_of_parity" in row else ""
    gap, tail, most, outside = (row.get(name, float("nan")) for name in _GAPS)
    return Evidence(
        f"the engine{of_rank} did not sample what is trained: the log-probs of engine and policy for the same tokens "
        f"differ by {gap:.2g} on average, by {tail:.2g} or more for one token in a thousand and by {most:.2g} at most, "
        f"and {outside:.1%} of the ratios are outside [0.8, 1.25]; this exceeds the engine's limits or "
        f"rollout.max_ratio_outside",
        {name: row[name] for name in names},
    )


@alarm(
    meaning="the policy moves so far in a step that few of the rollouts, which are a step older, count: the effective "
    "sample size is small, and the variance of every estimate large",
    cause="the learning rate or the number of updates per step is too high for rollouts that are a step old",
    keys=("optimizer.learning_rate", "update.updates_per_step", "update.epochs", "correction", "rollout.ahead"),
    limits=("steps", "stale_sample_size"),
    reads=(STALE,),
)
def stale_rollouts(past: Past, limits: AlarmsSection) -> Evidence | None:
    """The mean of policy/staleness_sample_size over some steps is below its limit.

    A falling effective sample size announces the collapse of training on older rollouts (VCPO, arXiv 2602.17616, as
    reported; not measured here).
    """
    rows = [row for row in past.last(limits.steps) if STALE in row]
    if len(rows) < limits.steps or not mean(rows, STALE) < limits.stale_sample_size:
        return None
    share = mean(rows, STALE)
    text = (
        f"over {len(rows)} steps the rollouts, sampled a step before the policy that trains on them, have an effective "
        f"sample size of {share:.2g} of their number"
    )
    return Evidence(text, {STALE: share})


@alarm(
    meaning="the policy prefers better rollouts by more and more than the engine does: the engine keeps sampling an "
    "earlier policy",
    cause="the engine's copy of the weights has too few bits for updates of this size, as a bfloat16 copy has at small "
    "learning rates, or it does not load them",
    keys=("rollout.engine", "model.dtype", "optimizer.learning_rate", "correction"),
    limits=("steps", "engine_lag", "standard_errors"),
    reads=(LAG, LAG_ERROR),
    explains=("parity",),
)
def engine_lags(past: Past, limits: AlarmsSection) -> Evidence | None:
    """policy/engine_lag has grown since the first step, in which no engine can lag: another mismatch, such as rounding
    or a temperature, is there from the start.
    """
    rows = [row for row in past.last(limits.steps) if LAG in row and LAG_ERROR in row]
    first = next((row for row in past.first if LAG in row and LAG_ERROR in row), None)
    if past.rows and STALE in past.rows[-1]:  # measured beside evaluations alone
        rows = [row for row in past.rows if LAG in row and LAG_ERROR in row][-limits.steps :]
        if len(rows) < BESIDE_EVALUATIONS or LAG not in past.rows[-1]:
            return None
    elif len(rows) < limits.steps:
        return None
    if first is None:
        return None
    lag, was = mean(rows, LAG), first[LAG]
    error = math.hypot(first[LAG_ERROR], *(row[LAG_ERROR] / len(rows) for row in rows))
    if not lag - was > max(limits.engine_lag, limits.standard_errors * error):
        return None
    text = (
        f"over {len(rows)} steps the policy prefers better rollouts by {lag:.2g} nats more than the engine that "
        f"sampled them (in the first step {was:.2g}; the standard error is {error:.1g})"
    )
    return Evidence(text, {LAG: lag, "before": was})


@alarm(
    meaning="the bfloat16 weights, which sample and whose gradient is taken, have followed less than half of the move "
    "of their float32 masters",
    cause="every weight is in the middle of its rounding cell at first, as in a checkpoint published in bfloat16, and "
    "moves only after its master has moved half a cell; optimizer.master_offset = true removes this delay, as does "
    "model.dtype = 'float32'",
    keys=("optimizer.master_offset", "optimizer.master_weights", "model.dtype", "optimizer.learning_rate"),
    limits=("steps", "move_followed"),
    reads=(FOLLOWED, NOISE),
)
def weights_lag(past: Past, limits: AlarmsSection) -> Evidence | None:
    """policy/move_followed is below its limit in the newest step, after more than `steps` steps that measured it. In
    the first steps it is noisy, because few weights have moved.
    """
    if not past.rows or FOLLOWED not in past.rows[-1] or len(values(past.rows, FOLLOWED)) <= limits.steps:
        return None
    share = past.rows[-1][FOLLOWED]
    if not share < limits.move_followed:
        return None
    text = f"the weights in use have made {share:.1%} of the move of their float32 masters since the start"
    return Evidence(text, {FOLLOWED: share, NOISE: past.rows[-1].get(NOISE, math.nan)})


@alarm(
    meaning="values explain less of the returns than a constant would: advantages are noisier than without them",
    cause="the value model learns too fast (critic/loss grows) or too slowly (it hardly falls), or rewards are far "
    "larger than its clip",
    keys=("critic.optimizer.learning_rate", "critic.pretraining_steps", "critic.clip_range"),
    limits=("values_steps",),
    reads=("critic/explained_variance", "critic/updates", "critic/loss"),
)
def values_explain_nothing(past: Past, limits: AlarmsSection) -> Evidence | None:
    """For many steps the values have explained less of the returns than a constant. Steps in which all returns are
    equal have no such number, and steps that train the value model alone are excluded.
    """
    explained = values((row for row in past.rows if not is_held(row)), EXPLAINED)[-limits.values_steps :]
    if len(explained) < limits.values_steps or EXPLAINED not in past.rows[-1] or max(explained) >= CONSTANT:
        return None
    cause, keys = _of_form(past)
    text = (
        f"for {len(explained)} steps the values have explained less of the returns than a constant would "
        f"(critic/explained_variance is {explained[-1]:.3g}), so that advantages are noisier than without them"
    )
    return Evidence(text, {EXPLAINED: explained[-1]}, cause, keys)


@alarm(
    meaning="a separate value model took no update",
    cause="its learning rate is too high, or rewards are of extreme size",
    keys=("critic.optimizer.learning_rate", "critic.optimizer.max_grad_norm"),
    reads=("critic/updates", "budget/tokens_valued"),
)
def values_untrained(past: Past, limits: AlarmsSection) -> Evidence | None:
    if not past.rows or past.rows[-1].get("critic/updates") != 0:
        return None
    valued = past.rows[-1].get("budget/tokens_valued", 0.0)
    if valued > 0:
        text, cause, keys = "the value model took no update: the gradient was not finite", None, None
    else:
        text = "the value model took no update: there was no rollout to train it on"
        cause, keys = "all verdicts failed, or none was kept", ("critic.train_on", "select")
    return Evidence(text, {"critic/updates": 0.0, "budget/tokens_valued": valued}, cause, keys)


def _of_form(past: Past) -> tuple[str | None, tuple[str, ...] | None]:
    """Cause and keys for the critic's form. The metrics identify it: a separate model has a number of updates, a head
    on the policy's backbone has a loss, and a function has neither.
    """
    if "critic/updates" in past.rows[-1]:
        return None, None
    if "critic/loss" in past.rows[-1]:
        keys = ("critic.coefficient", "optimizer.learning_rate", "critic.clip_range")
        return "the head learns too slowly beside the policy, or too fast", keys
    return "the function critic does not return the expected reward before each token", ()
