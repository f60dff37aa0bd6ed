"""A task with a calculator: the policy may call it before it answers."""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping, Sequence

import numpy as np

from winnow.environments.tools import Malformed, Tool, answer_call, read_call
from winnow.environments.tools import calculator as compute
from winnow.records import Prompt
from winnow.registry import register

TOOLS: Mapping[str, Tool] = {"calculator": compute}
_ANSWER = re.compile(r"<answer>\s*(-?\d{1,30})\s*</answer>")


def _example(gold: object) -> Sequence[str]:
    return [f"<call>calculator {gold} + 0</call>", f"</think> <answer>{gold}</answer>"]


@register("environment", example=_example, tools=tuple(TOOLS))
def calculator(
    prompt: Prompt, reply: str, rng: np.random.Generator, *, calls: int = 3
) -> Generator[str, str, dict[str, float]]:
    """Answers up to `calls` calls of a calculator, and ends with the first turn without one.

    The part `right` is 1 where the last integer in `<answer>..</answer>` of that turn is `prompt.answer`, else 0. The
    part `readable` is -0.1 where a call could not be read, which is answered with an error, else 0. After `calls` calls
    the rollout ends, and is wrong.
    """
    readable = 0.0
    for left in reversed(range(calls + 1)):
        call = read_call(reply)
        if call is None:
            answers = _ANSWER.findall(reply)
            right = bool(answers) and int(answers[-1]) == int(prompt.answer)
            return {"right": float(right), "readable": readable}
        if isinstance(call, Malformed):
            readable = -0.1
        if left:
            reply = yield answer_call(call, TOOLS)
    return {"right": 0.0, "readable": readable}
