"""The contract of every environment: its example is right, junk never earns more, and it repeats itself.

@register("environment", example=lambda gold: ["first turn", f"<answer>{gold}</answer>"])
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from winnow.environments.replay import make_environment, opened
from winnow.families import EnvironmentTraits
from winnow.options import bind
from winnow.records import Outcome, Problem, Prompt, Rollout
from winnow.registry import Entry
from winnow.rewards.contract import JUNK, same_reward

TURNS = 64  # of junk, after which an environment has to have ended


def check_environment(
    entry: Entry[EnvironmentTraits], *, gold: Any = "12", meta: Mapping[str, Any] | None = None
) -> None:
    """Raise AssertionError unless the environment gives its best reward for its example, and no more for junk.

    `gold` and `meta` are the prompt's. Junk is repeated until the environment ends, within `TURNS` turns. Every rollout
    is judged twice, with one verdict.
    """
    example = entry.traits.example
    assert example is not None, f"the environment {entry.name!r} must declare example=lambda gold: [<the right turns>]"
    replies = list(example(gold))
    problem = Problem(id="contract", question="Play.", answer=gold, task="contract", meta=dict(meta or {}))
    problem = opened(bind(entry, {}, key="environment"), problem)
    tokens, text = np.zeros(1, np.int64), problem.question
    prompt = Prompt(id="contract", tokens=tokens, text=text, answer=gold, task="contract", meta=problem.meta)
    right = _play(entry, prompt, replies)
    best, why = entry.traits.best, f" ({right.cause}: {right.detail})" if right.failed else ""
    assert right.kind == "correct", (
        f"{entry.name!r} judges its example {replies!r} as {right.kind}{why}: correct `example` or the environment; a "
        f"problem's other data is the argument `meta` of check_environment, and a number counts as correct from the "
        f"trait correct_at = {entry.traits.correct_at:g} on"
    )
    assert same_reward(right.reward, best), (
        f"{entry.name!r} returns {right.reward:g} for its example, and its trait `best` is {best:g}: declare "
        f"best={right.reward:g} if no rollout earns more, or correct the environment"
    )
    for label, text in JUNK.items():
        junk = _play(entry, prompt, [text] * TURNS)
        assert not junk.failed, f"{entry.name!r} on {label}: no verdict, {junk.cause}: {junk.detail}"
        assert junk.reward <= best or same_reward(junk.reward, best), (
            f"{entry.name!r} returns {junk.reward:g} for junk ({label}), and its trait `best` is {best:g}: correct the "
            f"environment, or declare an `example` that earns the most, with its reward as `best`"
        )


def _play(entry: Entry[EnvironmentTraits], prompt: Prompt, replies: list[str]) -> Outcome:
    answer = make_environment(entry.function, {}, max_turns=TURNS)
    turns, none = list[str](), np.zeros(0)
    for reply in replies:
        turns.append(reply)
        rollout = Rollout(
            index=0, tokens=none.astype(np.int64), logprobs=none, text="", finish="stop", version=0, turns=tuple(turns)
        )
        verdict, again = answer(prompt, rollout), answer(prompt, rollout)
        both_failed = all(isinstance(each, Outcome) and each.failed for each in (verdict, again))
        assert verdict == again or both_failed, f"{entry.name!r}: two calls, two verdicts"
        if isinstance(verdict, Outcome):
            return verdict
        turns.append(verdict.text)
    raise AssertionError(
        f"{entry.name!r} has not ended after {len(replies)} turns: its `example` returns all turns of a correct "
        f"rollout, and it ends with any rollout within {TURNS} turns"
    )
