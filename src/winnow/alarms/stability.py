"""What the policy does: its entropy, how far it goes from what sampled and from the reference, its gradients."""

from __future__ import annotations

import statistics

from winnow.alarms.alarm import Evidence
from winnow.alarms.past import ACCURACY, Past, Row, accuracy, mean, values
from winnow.config import AlarmsSection

FALLEN = 0.05  # of the entropy of the first steps, below which little is left to explore with
SOLVED = 0.8  # accuracy: a policy that is right as often needs no further exploration
NORMS, FEWEST_NORMS = 20, 10  # of gradients, that a new one is compared with
DIVERGENCES = ("loss/kl", "reward/kl")


def entropy_collapse(past: Past, limits: AlarmsSection) -> Evidence | None:
    """The policy writes nearly the same each time, or hardly varies beside the first steps, and is often wrong."""
    rows, first = past.last(limits.steps), past.first[: limits.steps]
    entropy, was, right = mean(rows, "policy/entropy"), mean(first, "policy/entropy"), accuracy(rows)
    if not entropy < max(limits.entropy_floor, FALLEN * was) or right >= SOLVED:
        return None
    text = (
        f"the entropy of {len(rows)} steps is {entropy:.2g} nats a token (at first {was:.2g}), while {right:.0%} of "
        f"the answers are right"
    )
    return Evidence(text, {"policy/entropy": entropy, "before": was, ACCURACY: right})


def entropy_explosion(past: Past, limits: AlarmsSection) -> Evidence | None:
    """The policy writes more and more at random."""
    rows, first = past.last(limits.steps), past.first[: limits.steps]
    entropy, was = mean(rows, "policy/entropy"), mean(first, "policy/entropy")
    if not entropy > was + limits.entropy_rise:
        return None
    text = f"the entropy of {len(rows)} steps is {entropy:.2f} nats a token; in the first {len(first)} it was {was:.2f}"
    return Evidence(text, {"policy/entropy": entropy, "before": was})


def kl_drift(past: Past, limits: AlarmsSection) -> Evidence | None:
    """The policy is far from its reference."""
    rows = past.last(limits.steps)
    for name in DIVERGENCES:
        if (divergence := mean(rows, name)) > limits.kl:
            text = (
                f"the KL divergence from the reference is {divergence:.2g} nats a token over {len(rows)} steps ({name})"
            )
            return Evidence(text, {name: divergence})
    return None


def ratio_drift(past: Past, limits: AlarmsSection) -> Evidence | None:
    """The mean of p_now / p_old, which is 1 in expectation, is not near it. Its largest is not judged: it grows with
    the number of tokens.
    """
    rows = past.last(limits.steps)
    ratio = mean(rows, "policy/ratio_mean")
    if not abs(ratio - 1) > limits.ratio:
        return None
    text = f"p_now / p_old of the trained tokens is {ratio:.3g} on average over {len(rows)} steps, where 1 is expected"
    return Evidence(text, {"policy/ratio_mean": ratio})


def clip_fraction(past: Past, limits: AlarmsSection) -> Evidence | None:
    """The clip takes the gradient of many tokens away."""
    rows = past.last(limits.steps)
    clipped = mean(rows, "policy/clip_fraction")
    if not clipped > limits.clip_fraction:
        return None
    text = f"the clip acted on {clipped:.0%} of the trained tokens of {len(rows)} steps"
    return Evidence(text, {"policy/clip_fraction": clipped})


def gradient_spike(past: Past, limits: AlarmsSection) -> Evidence | None:
    """A gradient that is many times the median of those before it, which one other spike does not move.

    Steps whose advantages are all 0 are not compared with: a term alone, a KL penalty, makes a small gradient.
    """
    if not past.rows or "policy/grad_norm" not in past.rows[-1]:
        return None
    teaching = [row for row in past.rows[-1 - NORMS : -1] if _has_credit(row)]
    norm, before = past.rows[-1]["policy/grad_norm"], values(teaching, "policy/grad_norm")
    if len(before) < FEWEST_NORMS:
        return None
    median = statistics.median(before)
    if not norm > limits.gradient_factor * median or median == 0:
        return None
    text = f"the gradient's norm is {norm:.3g}, {norm / median:.0f} times the median of {len(before)} steps before"
    return Evidence(text, {"policy/grad_norm": norm, "median": median})


def _has_credit(row: Row) -> bool:
    return bool(row.get("advantage/mean", 1.0) or row.get("advantage/std", 1.0))


def not_finite(past: Past, limits: AlarmsSection) -> Evidence | None:
    """An update that could not be taken. One is enough: no healthy run has any."""
    if not past.rows:
        return None
    row = past.rows[-1]
    without = row.get("budget/updates") == 0 and row.get("select/trained", 0.0) > 0 and "policy/learning_rate" in row
    count = row.get("policy/not_finite_updates", float(without))
    if not count:
        return None
    taken = row.get("budget/updates", 0.0)
    text = f"{count:.0f} updates were left out, as their gradient was not finite; {taken:.0f} were taken"
    return Evidence(text, {"policy/not_finite_updates": count, "budget/updates": taken})


def parity(past: Past, limits: AlarmsSection) -> Evidence | None:
    """policy/parity_alarm of the newest step: mean, 99.9th percentile and share are judged there, against what the
    engine declares; never the maximum, which grows with the number of tokens.
    """
    if not past.rows or not past.rows[-1].get("policy/parity_alarm"):
        return None
    row = past.rows[-1]
    names = [name for name in _GAPS if name in row]
    of_rank = f" of rank {row['ranks/out_of_parity']:.0f}" if "ranks/out_of_parity" in row else ""
    gap, tail, most, outside = (row.get(name, float("nan")) for name in _GAPS)
    return Evidence(
        f"the engine{of_rank} did not sample what is trained: of the same tokens its log-probs and the policy's differ "
        f"by {gap:.2g} on average, by {tail:.2g} or more in one of a thousand and by {most:.2g} at most, and "
        f"{outside:.1%} of the ratios lie outside [0.8, 1.25]; this is more than it declares or "
        f"rollout.max_ratio_outside allows",
        {name: row[name] for name in names},
    )


_GAPS = ("policy/logprob_gap_mean", "policy/logprob_gap_p999", "policy/logprob_gap_max", "policy/ratio_outside")
