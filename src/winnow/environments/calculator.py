"""A task with a calculator: the policy may call it before it answers."""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping, Sequence

import numpy as np

from winnow.bounds import Natural
from winnow.environments.tool_calls import AUTO, CallForm, Malformed, read_calls
from winnow.environments.tools import Tool, answer_calls
from winnow.environments.tools import calculator as compute
from winnow.records import Prompt, ToolAnswer
from winnow.registry import register

TOOLS: Mapping[str, Tool] = {"calculator": compute}
_ANSWER = re.compile(r"<answer>\s*(-?\d{1,30})\s*</answer>")


@register(
    "environment",
    example=lambda gold: [f"<call>calculator {gold} + 0</call>", f"</think> <answer>{gold}</answer>"],
    tools=tuple(TOOLS),
)
def calculator(
    prompt: Prompt, reply: str, rng: np.random.Generator, *, calls: Natural = 3, call_form: CallForm = AUTO
) -> Generator[str | Sequence[ToolAnswer], str, dict[str, float]]:
    """Answers up to `calls` calls of a calculator, and ends with the first turn without one.

    A turn may have several calls, in winnow's own form or in `call_form`; "auto" is the chat template's. The part
    `right` is 1 if the last integer in `<answer>..</answer>` of the last turn is `prompt.answer`, else 0. The part
    `readable` is -0.1 if a call could not be read, which is answered with an error, else 0. With the first turn that
    has a call after `calls` calls, the rollout ends, and is wrong.
    """
    readable, left = 0.0, calls
    while found := read_calls(reply, call_form):
        if any(isinstance(call, Malformed) for call in found):
            readable = -0.1
        if not left:
            return {"right": 0.0, "readable": readable}
        beyond = [Malformed(f"only {calls} calls are answered", own=call.own) for call in found[left:]]
        reply = yield answer_calls([*found[:left], *beyond], TOOLS)
        left -= min(left, len(found))
    answers = _ANSWER.findall(reply)
    right = bool(answers) and int(answers[-1]) == int(prompt.answer)
    return {"right": float(right), "readable": readable}
