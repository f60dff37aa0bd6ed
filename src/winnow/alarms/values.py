"""What a value model knows and learns."""

from __future__ import annotations

from winnow.alarms.alarm import Evidence
from winnow.alarms.past import Past, is_held, values
from winnow.config import AlarmsSection

EXPLAINED = "critic/explained_variance"
CONSTANT = 0.0  # of the returns' variance: what a constant explains


def values_explain_nothing(past: Past, limits: AlarmsSection) -> Evidence | None:
    """For many steps values have said less of the returns than a constant; a step whose returns are all alike says
    nothing of them, and neither does one in which the policy is held.
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
    """A value model of its own takes no update."""
    if not past.rows or past.rows[-1].get("critic/updates") != 0:
        return None
    valued = past.rows[-1].get("budget/tokens_valued", 0.0)
    if valued > 0:
        text, cause, keys = "the value model took no update: the gradient was not finite", None, None
    else:
        text = "the value model took no update: there was no rollout for it to read"
        cause, keys = "all verdicts failed, or none was kept", ("critic.train_on", "select")
    return Evidence(text, {"critic/updates": 0.0, "budget/tokens_valued": valued}, cause, keys)


def _of_form(past: Past) -> tuple[str | None, tuple[str, ...] | None]:
    """Cause and keys, by what the log says of the form: a model of its own counts its updates, a head on the policy's
    backbone has a loss, and a function has neither.
    """
    if "critic/updates" in past.rows[-1]:
        return None, None
    if "critic/loss" in past.rows[-1]:
        keys = ("critic.coefficient", "optimizer.learning_rate", "critic.clip_range")
        return "the head learns too slowly beside the policy, or too fast", keys
    return "the function critic returns something else than the reward that is expected before each token", ()
