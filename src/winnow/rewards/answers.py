"""Rewards that compare the answer of a completion with the gold: 1 or 0, and the answer that was extracted.

A problem may allow an error or name a unit: the fields `error` and `unit` of OlympiadBench.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Annotated, Any

from annotated_types import Interval

from winnow.bounds import BelowOne
from winnow.errors import DataError
from winnow.records import Outcome, Prompt, Rollout
from winnow.registry import register
from winnow.rewards.extract import answer_tag, hashes, in_box, last_boxed, last_number, numbers, plain
from winnow.rewards.format import conclusion
from winnow.rewards.graders import GRADERS, GraderName, check_grader, golds, unparsable, verdict, warm_grader
from winnow.rewards.math_equivalence import exact, expression
from winnow.rewards.math_equivalence.latex import brackets, split_top, tidied, tidy
from winnow.rewards.math_equivalence.units import units_of
from winnow.rewards.outcomes import judged

Equal = Callable[[str, str], bool]
_Tolerance = Annotated[float, Interval(ge=0, lt=math.inf)]
MAX_DIGITS = 400
_MARKED = re.compile(r"#### [^\w\n]{0,9}\d.*")
_HEADING = re.compile(r"#### \d+[.)] +[A-Za-z*]")
_LAST_DIGIT = re.compile(r"\d\D*\Z")
_PLAIN = re.compile(
    r"(?P<sign>[-+]?)\$?(?:(?P<ones>\d+) +(?=\d+/))?(?P<whole>\d{1,3}(?:,\d{3})+|\d*)(?P<point>\.\d*)?"
    r"(?:/(?P<below>\d+)|[eE](?P<power>[-+]?\d{1,3}))?",
    re.ASCII,
)


@register(
    "reward",
    example=lambda gold: f"because</think> <answer>{gold}</answer>",
    asks=[("</think> <answer>", "</answer>")],
    check=check_grader,
    warm=warm_grader,
)
def r1_zero(prompt: Prompt, rollout: Rollout, *, grader: GraderName = "strict") -> Outcome:
    r"""1 for a right answer in the r1_zero format, else 0; the format is logged, and has no reward by itself.

    Formatted means `</think> <answer>` with exactly one space, and `</answer>`. The answer is the text after the last
    `<answer>`, every `</answer>` removed; if it contains a `\boxed`, the last box. Parts: answer, format.
    The rules are from Dr. GRPO's grader (Liu et al., 2025, arXiv 2503.20783).
    """
    text = rollout.text
    if "</think> <answer>" not in text or "</answer>" not in text:
        return unparsable(format=0.0)
    answer = in_box(text.rpartition("<answer>")[2].replace("</answer>", ""))
    return verdict(answer, prompt.answer, GRADERS[grader], format=1.0)


@register("reward", example=lambda gold: rf"so \boxed{{{gold}}}", check=check_grader, warm=warm_grader)
def question_only(prompt: Prompt, rollout: Rollout, *, grader: GraderName = "strict") -> Outcome:
    """1 when the last box anywhere in the completion is right; for prompts that are the question and nothing else."""
    answer = last_boxed(rollout.text)
    return verdict(answer, prompt.answer, GRADERS[grader], format=float(answer is not None))


@register(
    "reward",
    example=lambda gold: rf"so</think> \boxed{{{gold}}}",
    asks=[(r"\boxed",)],
    check=check_grader,
    warm=warm_grader,
)
def boxed(
    prompt: Prompt, rollout: Rollout, *, grader: GraderName = "math", absolute_tolerance: _Tolerance = 0.0
) -> Outcome:
    """1 when the last box after the reasoning is right; a box inside unfinished reasoning is no answer.

    Numbers may differ by at most `absolute_tolerance`, or by at most the problem's field `error` if it has one. Its
    field `unit` is added to a gold without a unit (OlympiadBench: He et al., 2024, arXiv 2402.14008). Raises DataError
    for an `error` that is no number of at least 0.
    """
    gold = with_unit(prompt.answer, prompt.meta, GRADERS[grader])
    equal = tolerant(GRADERS[grader], stated_error(prompt.meta, absolute_tolerance))
    return verdict(last_boxed(conclusion(prompt, rollout)), gold, equal)


@register("reward", example=lambda gold: f"so</think> the total\n#### {gold}")
def gsm8k(prompt: Prompt, rollout: Rollout) -> Outcome:
    """1 when the number after the last `#### `, or else the last number, equals the gold's exactly (Cobbe et al., 2021,
    arXiv 2110.14168). Of several numbers in the marked line, the first one counts, or the only one after its last `=`.
    A mark that words follow is a heading, and so is `#### 2. Costs` if a number follows in a later line.
    """
    text = conclusion(prompt, rollout)
    marked, last = list(_MARKED.finditer(text)), _LAST_DIGIT.search(text)
    while marked and last and _HEADING.match(marked[-1][0]) and marked[-1].end() <= last.start():
        marked.pop()
    answer = _of_line(marked[-1][0]) if marked else last_number(text)
    return verdict(answer, _marked(prompt.answer), _equal_numbers)


@register("reward", example=lambda gold: f"so</think> <answer>{gold}</answer>")
def numeric(prompt: Prompt, rollout: Rollout, *, relative_tolerance: BelowOne = 0.0) -> Outcome:
    """1 when the last number (inside the last answer tag, if there is one) equals the gold.

    The comparison is exact, or within `relative_tolerance` times the gold's size. A gold of 0 is always exact.
    """
    text = conclusion(prompt, rollout)
    tagged = answer_tag(text)
    answer = last_number(text if tagged is None else tagged)
    tolerance = Fraction(str(relative_tolerance))  # 0.03, and not the float below it
    return verdict(answer, prompt.answer, lambda mine, gold: _equal_numbers(mine, gold, tolerance))


@register("reward", example=lambda gold: f"so</think> <answer>{gold}</answer>", check=check_grader, warm=warm_grader)
def tagged(prompt: Prompt, rollout: Rollout, *, grader: GraderName = "math") -> Outcome:
    r"""1 when the text in the last answer tag is right, a `\boxed` in it unwrapped; without a tag, the last number.

    PODS (Xu et al., 2025, arXiv 2504.13818) rewards answers this way, and the format by a separate reward. Its code
    also accepts the last number if the tag is wrong.
    """
    text = conclusion(prompt, rollout)
    inside = answer_tag(text)
    answer = last_number(text) if inside is None else in_box(inside)
    return verdict(answer, prompt.answer, GRADERS[grader])


@register("reward", example=lambda gold: f"The answer is {gold}.", best=1.1)
def last_integer(prompt: Prompt, rollout: Rollout, *, ended: BelowOne = 0.1) -> Outcome:
    """1 if the last number is the integer of the gold and the response ended by itself, plus `ended` for any response
    that did; for prompts that request one integer.

    A response that max_new_tokens cut off is wrong: its last number is a matter of luck. Commas between thousands are
    removed, and a sign counts if it follows no letter or digit (3-5 ends with 5). Decimals, fractions and powers are
    wrong: `2.5` does not end with 5. The part `ended` gives a policy that never stops something to learn from; without
    it, set 0. Parts: answer, ended.
    """
    by_itself = rollout.finish == "stop"
    last = last_number(rollout.text)
    parts = {"answer": 0.0, "ended": ended * by_itself}
    if last is None:
        return Outcome(reward=parts["ended"], correct=False, kind="unparsable", parts=parts)
    answer = last.replace(",", "").replace("$", "").removeprefix("+")
    accepted = [text for gold in golds(prompt.answer) for text in (gold.strip(), str(to_fraction(gold)))]
    correct = by_itself and answer.removeprefix("-").isdigit() and answer in accepted
    parts["answer"] = float(correct)
    return judged(correct, sum(parts.values()), parts=parts, answer=answer)


def _of_line(marked: str) -> str | None:
    after = numbers(marked.rpartition("=")[2])
    return after[0] if len(after) == 1 else next(iter(numbers(marked)), None)


def _marked(gold: object) -> object:
    """The marked answer of a GSM8K gold that includes its worked solution."""
    return (hashes(gold) or gold) if isinstance(gold, str) else gold


def _equal_numbers(answer: str, gold: str, tolerance: Fraction = Fraction(0)) -> bool:
    mine, theirs = to_fraction(answer), to_fraction(gold)
    if mine is None or theirs is None:
        return False
    return abs(mine - theirs) <= tolerance * abs(theirs)


def tolerant(equal: Equal, error: Fraction) -> Equal:
    """A comparison that also accepts numbers at most `error` away; without an error, `equal` itself."""
    if not error:
        return equal
    return lambda answer, gold: equal(answer, gold) or close(answer, gold, error)


def close(answer: str, gold: str, error: Fraction) -> bool:
    """Equally many numbers, in the same order and brackets, each within `error` of the gold's; units as in `math`."""
    texts = tidied(answer, gold)
    if texts is None or exact.units(*texts) is False:
        return False
    (opening, mine, closing), (left, theirs, right) = _parts(answer), _parts(gold)
    if len(mine) != len(theirs) or (opening, closing) != (left, right):
        return False  # before anything is evaluated
    pairs = ((expression.number(a), expression.number(g)) for a, g in zip(mine, theirs, strict=True))
    return all(a is not None and g is not None and abs(a - g) <= error for a, g in pairs)


def stated_error(meta: Mapping[str, Any], default: float) -> Fraction:
    """The absolute error that a problem allows: `meta["error"]` (a number or its text), else `default`.

    Raises DataError for a field that is no number of at least 0.
    """
    stated = meta.get("error")
    if stated is None or stated == "" or (isinstance(stated, float) and math.isnan(stated)):  # as pandas writes none
        return Fraction(str(default))  # 0.3, and not the float below it
    error = to_fraction(str(stated))
    if error is None or error < 0:
        raise DataError(
            f"the field 'error' of a problem is {stated!r}",
            remedy="write a number of at least 0, or null",
            code="data.malformed",
        )
    return error


def with_unit(gold: Any, meta: Mapping[str, Any], equal: Equal) -> Any:
    """The gold, or each of several, followed by `meta["unit"]` if it has no unit and may be given without it."""
    unit = str(meta.get("unit") or "").replace("$", "").replace("%", r"\%").strip()
    unit = unit if "\\" in unit or not unit else rf"\text{{ {unit}}}"  # m alone is a letter
    if not unit or not equal("1", f"1 {unit}"):
        return gold
    several = gold if isinstance(gold, (list, tuple)) else [gold]
    return [str(one) if units_of(tidy(str(one))) else f"{_bare(str(one))} {unit}" for one in several]


def _bare(gold: str) -> str:
    return gold.strip().removeprefix("$").removesuffix("$")


def _parts(text: str) -> tuple[str, list[str], str]:
    opening, inside, closing = brackets(exact.value(tidy(text)))
    return opening, split_top(inside), closing


def to_fraction(text: str) -> Fraction | None:
    """`-1,234.50`, `3/4`, `1 3/4`, `$5`, `2.5e-3` as an exact number; None for anything else, x/0 and more than 400
    digits.
    """
    text = plain(text.strip())
    match = _PLAIN.fullmatch(text) if len(text) <= MAX_DIGITS else None
    if match is None or not any(c.isdigit() for c in (match["whole"] or "") + (match["point"] or "")):
        return None
    number = Fraction((match["whole"].replace(",", "") or "0") + (match["point"] or "").rstrip("."))
    if match["below"] is not None:
        if int(match["below"]) == 0:
            return None
        number /= int(match["below"])
    if match["ones"] is not None:
        if number >= 1:
            return None
        number += int(match["ones"])
    number *= Fraction(10) ** int(match["power"] or 0)
    return -number if match["sign"] == "-" else number
