"""Rewards for the form of a completion: think and answer tags, a pattern, and the length.

None of them compares the answer: use them as parts beside a reward that does. If the prompt ends with an opened
`<think>` (as with the r1_zero template and some chat templates), the completion is read as if it began with that tag.
So one reward for tags without options fits every template.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from winnow.errors import bad_value, conflict
from winnow.records import Outcome, Prompt, Rollout
from winnow.registry import register
from winnow.rewards.extract import after_reasoning
from winnow.rewards.outcomes import judged

TAGS = ("<think>", "</think>", "<answer>", "</answer>")
_FORMS = [TAGS[1:]]  # without the first, which is often part of the prompt
_BETWEEN = re.compile(r"</think>\s*<answer>")


def thinking_open(prompt: Prompt) -> bool:
    """True when the prompt has opened the reasoning, so that the completion starts inside it."""
    return prompt.text.rstrip().endswith("<think>")


def conclusion(prompt: Prompt, rollout: Rollout) -> str:
    """The text after the reasoning; empty when the prompt opened the reasoning and the completion did not close it."""
    unfinished = thinking_open(prompt) and "</think>" not in rollout.text
    return "" if unfinished else after_reasoning(rollout.text)


@register("reward", "format", example=lambda gold: f"because</think> <answer>{gold}</answer>", asks=_FORMS)
def format_tags(prompt: Prompt, rollout: Rollout, *, strict: bool = False) -> Outcome:
    """max(0, 1 - 0.01 * characters outside the block `<think>..</think> <answer>..</answer>`); 0 without the block.

    `strict`: 1 when the completion is that block and nothing else, each tag once; else 0. The graded form is
    that of PODS (Xu et al., 2025, arXiv 2504.13818).
    """
    text = _whole(prompt, rollout).strip()
    # Characters outside the first block, None without one. It takes linear time, as completions may be long.
    start = text.find("<think>")
    between = _BETWEEN.search(text, start) if start >= 0 else None
    end = text.find("</answer>", between.end()) if between else -1
    outside = None if end < 0 else len(text) - (end + len("</answer>") - start)
    if outside is None:
        return Outcome(reward=0.0, correct=False, kind="unparsable")
    if strict:
        score = float(outside == 0 and all(text.count(tag) == 1 for tag in TAGS))
    else:
        score = max(0.0, 1.0 - 0.01 * outside)
    return judged(score == 1.0, score)


@register("reward", example=lambda gold: f"because</think> <answer>{gold}</answer>", asks=_FORMS)
def tag_count(prompt: Prompt, rollout: Rollout) -> Outcome:
    """0.25 for each of the four tags that occurs exactly once."""
    text = _whole(prompt, rollout)
    score = 0.25 * sum(text.count(tag) == 1 for tag in TAGS)
    return judged(score == 1.0, score)


def _whole(prompt: Prompt, rollout: Rollout) -> str:
    return ("<think>" if thinking_open(prompt) else "") + rollout.text


def _check_pattern(options: Mapping[str, Any]) -> None:
    pattern = options["pattern"]
    if not pattern:
        raise bad_value("pattern is empty: every text would match it", "set it to a regular expression", key="pattern")
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        problem = f"pattern is {pattern!r}; it is not a regular expression: {error}"
        raise bad_value(problem, "correct it as Python's `re` requires", key="pattern") from error


@register(
    "reward",
    "pattern",
    example=lambda gold: f"Answer: {gold}.",
    example_options={"pattern": r"Answer: .+\."},
    check=_check_pattern,
)
def matches(prompt: Prompt, rollout: Rollout, *, pattern: str, whole: bool = False) -> Outcome:
    r"""1 if the regular expression `pattern` (Python's `re`) matches anywhere in the completion, else 0.

    `whole`: the completion has to match from its first character to its last. Upper and lower case differ and `.` does
    not match a line break, unless the pattern begins with `(?i)` or `(?s)`. The text is the completion alone, as it
    was written. A pattern such as `(a+)+b` can take exponential time on some texts: the verdict then fails after
    verify.timeout_seconds, provided that a worker judges it (verify.workers is not 0).
    """
    matched = (re.fullmatch if whole else re.search)(pattern, rollout.text) is not None
    return judged(matched)


def _check_limit(options: Mapping[str, Any]) -> None:
    limit, slope = options["limit_tokens"], options["slope_tokens"]
    if not 0 <= slope <= limit:
        raise conflict(
            f"slope_tokens is {slope} and limit_tokens {limit}",
            remedy="set 0 <= slope_tokens <= limit_tokens",
            key="slope_tokens",
        )


@register("reward", example=lambda gold: str(gold), check=_check_limit)
def length(prompt: Prompt, rollout: Rollout, *, limit_tokens: int = 1024, slope_tokens: int = 256) -> Outcome:
    """1 up to limit - slope tokens, falling linearly to 0 at the limit, and 0 beyond.

    It is `overlong` plus 1, so that rewards stay non-negative. Without a slope, it is 1 within the limit. Only
    tokens that the policy sampled count, the stop token included.
    """
    penalty = _penalty(rollout, limit_tokens, slope_tokens)
    return judged(penalty == 0.0, 1.0 + penalty)


@register("reward", example=lambda gold: str(gold), best=0.0, check=_check_limit)
def overlong(prompt: Prompt, rollout: Rollout, *, limit_tokens: int = 1024, slope_tokens: int = 256) -> Outcome:
    """0 up to limit - slope tokens, falling linearly to -1 at the limit, and -1 beyond.

    The soft overlong punishment of DAPO (Yu et al., 2025, arXiv 2503.14476, eq. 13): the limit is its L_max, the slope
    its L_cache (20480 and 4096 there). A limit above rollout.max_new_tokens never punishes in full. Only tokens that
    the policy sampled count, the stop token included.
    """
    penalty = _penalty(rollout, limit_tokens, slope_tokens)
    return judged(penalty == 0.0, penalty)


def _penalty(rollout: Rollout, limit_tokens: int, slope_tokens: int) -> float:
    over = rollout.length - (limit_tokens - slope_tokens)
    return 0.0 if over <= 0 else max(-1.0, -over / slope_tokens) if slope_tokens else -1.0
