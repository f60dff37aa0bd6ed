"""Alarms about the turns of an environment: turns that are cut off, rollouts that end at once, unused tools."""

from __future__ import annotations

from winnow.alarms.history import ACCURACY_READ, PROMPTS_READ, Past, accuracy, mean, values
from winnow.alarms.kinds import Evidence, alarm
from winnow.config import AlarmsSection

SOLVED = 0.8  # accuracy, above which it does not matter how a rollout ended


@alarm(
    meaning="many turns of the policy are cut off at environment.max_turn_tokens, so that the environment reads half "
    "a turn",
    cause="the limit is too low for this task, or the policy has not learned to end its turns",
    keys=("environment.max_turn_tokens", "rollout.stop", "prompt.template"),
    limits=("steps", "cut_turns_share"),
    reads=("environment/turns_cut_off",),
)
def turns_cut_off(past: Past, limits: AlarmsSection) -> Evidence | None:
    """Many turns of the policy have max_turn_tokens tokens."""
    rows = past.last(limits.steps)
    cut = mean(rows, "environment/turns_cut_off")
    if not cut >= limits.cut_turns_share:
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
    """Nearly all rollouts end in their first turn, and many are wrong."""
    rows = past.last(limits.steps)
    share, right = mean(rows, "environment/one_turn"), accuracy(rows)
    if not share >= limits.one_turn_share or right >= SOLVED:
        return None
    text = f"{share:.0%} of the rollouts of {len(rows)} steps ended in their first turn, and {right:.0%} were right"
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
    """No rollout of the last steps, nor of the first ones, contains a tool call."""
    rows = past.last(limits.steps)
    calls = values([*past.first, *rows], "environment/tool_calls")
    if not rows or not calls or any(calls):
        return None
    return Evidence(f"no rollout of {len(rows)} steps contains a tool call", {"environment/tool_calls": 0.0})
