"""Held-out accuracy that is too good: held-out problems should not be easier than training problems."""

from __future__ import annotations

import math

from winnow.alarms.alarm import Evidence
from winnow.alarms.past import ACCURACY, BLOCK, MEASURED, Compared, Past, are_comparable, errors, spread_of
from winnow.config import AlarmsSection

EVALUATIONS = 3  # in a row


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
