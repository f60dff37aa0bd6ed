"""Alarms about a value model: how much its values explain, and whether it is updated."""

from __future__ import annotations

from winnow.alarms.alarm import Evidence
from winnow.alarms.past import Past, is_held, values
from winnow.config import AlarmsSection

EXPLAINED = "critic/explained_variance"
CONSTANT = 0.0  # explained variance of a constant prediction


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


def values_untrained(past: Past, limits: AlarmsSection) -> Evidence | None:
    """A separate value model takes no update."""
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
