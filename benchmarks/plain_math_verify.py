"""math-verify as others call it, as a reward: parse the completion, parse the gold, verify."""

from __future__ import annotations

import logging
from typing import Any

from math_verify import parse, verify

from winnow.records import Prompt, Rollout

logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its time-outs are off


def plain(prompt: Prompt, rollout: Rollout) -> dict[str, Any]:
    """Both sides boxed, its own time-outs off: the worker has one that holds."""
    gold = parse(rf"\boxed{{{prompt.answer}}}", parsing_timeout=None)
    mine = parse(rollout.text, parsing_timeout=None)
    return {"answer": bool(verify(gold, mine, timeout_seconds=None))}
