"""Rewards for the format of a completion: think and answer tags. They do not compare the answer.

Where the prompt ends with an opened `<think>` (as with the r1_zero template and some chat templates), the completion is
read as if it began with that tag. So one reward without options fits every template.
"""

from __future__ import annotations

import re

from winnow.records import Outcome, Prompt, Rollout
from winnow.registry import register

TAGS = ("<think>", "</think>", "<answer>", "</answer>")
_FORMS = [TAGS[1:]]  # without the first, which is often part of the prompt
_BETWEEN = re.compile(r"</think>\s*<answer>")


def thinking_open(prompt: Prompt) -> bool:
    """True when the prompt has opened the reasoning, so that the completion starts inside it."""
    return prompt.text.rstrip().endswith("<think>")


@register("reward", "format", example=lambda gold: f"because</think> <answer>{gold}</answer>", asks=_FORMS)
def format_tags(prompt: Prompt, rollout: Rollout, *, strict: bool = False) -> Outcome:
    """max(0, 1 - 0.01 * characters outside the block `<think>..</think> <answer>..</answer>`); 0 without the block.

    `strict`: 1 when the completion is that block and nothing else, each tag once; else 0. The graded form is
    that of PODS (Xu et al., 2025, arXiv 2504.13818).
    """
    text = _whole(prompt, rollout).strip()
    outside = _outside(text)
    if outside is None:
        return Outcome(reward=0.0, correct=False, kind="unparsable")
    if strict:
        score = float(outside == 0 and all(text.count(tag) == 1 for tag in TAGS))
    else:
        score = max(0.0, 1.0 - 0.01 * outside)
    return _shape(score)


@register("reward", example=lambda gold: f"because</think> <answer>{gold}</answer>", asks=_FORMS)
def tag_count(prompt: Prompt, rollout: Rollout) -> Outcome:
    """0.25 for each of the four tags that occurs exactly once."""
    text = _whole(prompt, rollout)
    return _shape(0.25 * sum(text.count(tag) == 1 for tag in TAGS))


def _whole(prompt: Prompt, rollout: Rollout) -> str:
    return ("<think>" if thinking_open(prompt) else "") + rollout.text


def _outside(text: str) -> int | None:
    """Characters outside the first block, None without one. It takes linear time, as completions may be long."""
    start = text.find("<think>")
    between = _BETWEEN.search(text, start) if start >= 0 else None
    end = text.find("</answer>", between.end()) if between else -1
    return None if end < 0 else len(text) - (end + len("</answer>") - start)


def _shape(score: float) -> Outcome:
    correct = score == 1.0
    return Outcome(reward=score, correct=correct, kind="correct" if correct else "wrong")
