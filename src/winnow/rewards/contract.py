r"""The contract of every reward, as one check for registered rewards and for a user's own.

For the check a reward declares how a right answer is phrased:

    @register("reward", example=lambda gold: rf"so \boxed{{{gold}}}")

If the golds of its prompts are in `meta`, it also declares example_meta=lambda gold: {...}. A reward that reads
answers only in certain forms declares these forms, for example `asks=[("<answer>", "</answer>"), (r"\boxed",)]`. Each
form lists the marks of such a completion, and `winnow check` looks for these marks in the prompt.

The rollouts of the check have no tokens. So a reward that pays more for fewer tokens is at its maximum, `best`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from winnow.families import RewardTraits
from winnow.records import Outcome, Prompt, Rollout
from winnow.registry import Entry
from winnow.rewards.compose import Score, make_reward

JUNK: Mapping[str, str] = {
    "empty": "",
    "spaces": " \n\t",
    "long": "a" * 1_000_000,
    "digits": "9" * 1_000_000,
    "tags": "</think> <answer>" * 50_000,
    "boxes": r"\boxed{" * 100_000,
    "closed boxes": r"\boxed{}" * 100_000,
    "broken latex": r"</think> <answer>\boxed{\frac{1}{\sqrt{</answer>",
    "empty answer": "</think> <answer></answer>",
    "nul": "\0</think> <answer>\0</answer>\0",
    "surrogates": "\ud800</think> <answer>\udfff \\boxed{\ud800}</answer>",
    "code": "</think> <answer>\\boxed{__import__('os').system('false')}</answer>",
    "tower": r"</think> <answer>\boxed{9^{9^{9^{9}}}}</answer>",
    "nan": r"</think> <answer>\boxed{nan}</answer> #### nan",
}


def check_reward(
    entry: Entry[RewardTraits],
    options: Mapping[str, Any] | None = None,
    *,
    gold: Any = "42",
    phrase: Any = None,
    best: float | None = None,
) -> None:
    """Raise AssertionError unless the reward is `best` for its example, at most `best` for junk, and repeatable.

    The example is phrased for `phrase`, by default the gold itself (for a list of golds, any one of them). `options`
    and `best` are by default those that the reward declares.
    """
    example, meta = entry.traits.example, entry.traits.example_meta
    best = entry.traits.best if best is None else best
    options = entry.traits.example_options if options is None else options
    assert example is not None, f"the reward {entry.name!r} must declare example=lambda gold: <a right completion>"
    score = make_reward({"use": entry.function, "options": dict(options)})
    phrase = gold if phrase is None else phrase
    prompt = _prompt(gold, {} if meta is None else meta(phrase))
    right = example(phrase)
    outcome = _verdict(score, prompt, right, f"{entry.name!r} on its example {right!r}", cure=_cure(entry))
    assert outcome.kind == "correct", (
        f"{entry.name!r} judges its example {right!r} as {outcome.kind}, with a reward of {outcome.reward:g}"
        f"{_cure(entry)}"
    )
    assert same_reward(outcome.reward, best), (
        f"{entry.name!r} returns {outcome.reward:g} for its example, and its trait `best` is {best:g}: declare "
        f"best={outcome.reward:g} if no text earns more, or correct the reward"
    )
    _check_marks(entry, score, prompt, right)
    for label, text in JUNK.items():
        junk = _verdict(score, prompt, text, f"{entry.name!r} on {label}")
        assert junk.reward <= best or same_reward(junk.reward, best), (
            f"{entry.name!r} returns {junk.reward:g} for junk ({label}), and its trait `best` is {best:g}: correct the "
            f"reward, or declare an `example` that earns the most, with its reward as `best`"
        )


def same_reward(reward: float, best: float) -> bool:
    """Whether two rewards are equal apart from rounding: 0.1 + 0.2 is not 0.3."""
    return math.isclose(reward, best, rel_tol=1e-9, abs_tol=1e-12)


def _cure(entry: Entry[RewardTraits]) -> str:
    """The traits that determine how the example is judged, without those that cannot be the cause."""
    traits, lines = entry.traits, ["correct `example` or the reward"]
    if traits.example_meta is None:
        lines.append("if it reads the gold in prompt.meta, declare example_meta=lambda gold: {...}")
    if entry.options and not traits.example_options:
        lines.append("if the example is for other options than the defaults, declare example_options={...}")
    lines.append(f"a number counts as correct from the trait correct_at = {traits.correct_at:g} on")
    return f": {'; '.join(lines)}"


def _check_marks(entry: Entry[RewardTraits], score: Score, prompt: Prompt, right: str) -> None:
    """The example has the marks of a declared form, and without any one of them it is not judged correct."""
    forms = entry.traits.asks
    if forms:
        met = [form for form in forms if all(mark in right for mark in form)]
        assert met, (
            f"the example {right!r} of {entry.name!r} has none of the forms {list(forms)} in its trait `asks`: correct "
            f"`asks` or `example`"
        )
        for mark in {mark for form in met for mark in form}:
            kind = _verdict(score, prompt, right.replace(mark, " "), repr(entry.name)).kind
            assert kind != "correct", (
                f"{entry.name!r} declares the mark {mark!r} in its trait `asks` and accepts an answer without it: "
                f"remove the mark from `asks`"
            )


def _verdict(score: Score, prompt: Prompt, text: str, what: str, *, cure: str = "") -> Outcome:
    outcome, again = score(prompt, _rollout(text)), score(prompt, _rollout(text))
    cure = cure or ": return 0 for a text that is no right answer"
    assert not outcome.failed, f"{what}: no verdict, {outcome.cause}: {outcome.detail}{cure}"
    assert all(math.isfinite(value) for value in (outcome.reward, *outcome.parts.values())), f"{what}: not finite"
    assert outcome == again, f"{what}: two calls, two verdicts; a reward depends on its arguments alone"
    return outcome


def _prompt(gold: Any, meta: dict[str, Any]) -> Prompt:
    tokens = np.zeros(1, np.int64)
    return Prompt(id="contract", tokens=tokens, text="What is it?<think>", answer=gold, task="contract", meta=meta)


def _rollout(text: str) -> Rollout:
    return Rollout(index=0, tokens=np.zeros(0, np.int64), logprobs=np.zeros(0), text=text, finish="stop", version=0)
