"""Guess a number: the environment answers each guess with "higher" or "lower"."""

from __future__ import annotations

import re
from collections.abc import Generator

import numpy as np

from winnow.bounds import AtLeastOne
from winnow.records import Prompt
from winnow.registry import register

_ANSWER = re.compile(r"<answer>\s*(\d{1,9})\s*</answer>")


@register("environment", example=lambda gold: [f"</think> <answer>{gold}</answer>"])
def guess_number(
    prompt: Prompt, reply: str, rng: np.random.Generator, *, turns: AtLeastOne = 5
) -> Generator[str, str, dict[str, float]]:
    """Answers each guess, the number in `<answer>..</answer>`, with "higher" or "lower", for `turns` guesses.

    The part `found` is 1 if a guess is `prompt.answer`, else 0. The part `readable` is 0, and -0.1 if a turn had
    no guess that could be read, which also takes a turn. With 5 turns, bisection always finds a number from 1 to 31.
    """
    secret, unread = int(prompt.answer), 0.0
    for left in reversed(range(turns)):
        guesses = _ANSWER.findall(reply)
        if not guesses:
            unread, answer = -0.1, "no number"
        elif int(guesses[-1]) == secret:
            return {"found": 1.0, "readable": unread}
        else:
            answer = "higher" if int(guesses[-1]) < secret else "lower"
        if left:
            reply = yield answer
    return {"found": 0.0, "readable": unread}
