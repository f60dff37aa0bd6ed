"""The scorers of reasoning-gym as a reward, and the grammars that decide which answers are sent to them.

Its scorers may hang: run them in a worker (`verify.workers > 0`), which is killed at its time limit.

Nine of its scorers execute the answer (`eval`, or sympy's `parse_expr`), seven hang on a tower of powers, and some give
`nan`, or any text at all, a reward. The nine, and those without a gold, have a grammar here. For the others, the item's
gold determines which words and marks an answer may have. Five scorers also execute a field of the item, and an item may
come from a file, so these fields have a grammar too.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from winnow.errors import ConfigError
from winnow.installed import require_extra
from winnow.records import Outcome, Prompt, Rollout
from winnow.registry import register
from winnow.rewards.extract import answer_tag, last_boxed
from winnow.rewards.format import conclusion
from winnow.rewards.graders import unparsable
from winnow.rewards.outcomes import failure, judged

LONGEST = 4096
LONGEST_FIELD = 1 << 16  # of an item, characters
_NUMBER_MARKS = frozenset("+-.,/ \t\n")
_CLOSED = ({"true", "false"}, {"yes", "no"}, {"even", "odd"})
_ARITHMETIC = r"(?!.*(?:\*\s*\*|/\s*/|\d{7}))[\d\s+\-*/()]+"
_POWER = r"\*\*\s*(?:\d{1,2}(?!\d)|\(\s*-?\s*\d{1,2}(?:\s*/\s*\d{1,2})?\s*\))(?!\s*\*\*)"
_LETTER = r"[a-zA-Z](?![a-zA-Z])"
_EXPONENTIAL = rf"E\s*\*\*\s*(?:{_LETTER}|\((?:[\d\s+\-/]|\*(?!\*)|{_LETTER})*\))(?!\s*\*\*)"
_FUNCTION = r"(?:sin|cos|tan|sec|csc|cot|exp|log|sqrt|asin|acos|atan|sinh|cosh|tanh|pi)(?![a-zA-Z])"
_ALGEBRA = (
    rf"(?:\s|{_EXPONENTIAL}|{_POWER}|\*(?!\*)|[-+/()]|\d{{1,64}}(?!\d)(?:\.\d{{1,64}}(?!\d))?|{_FUNCTION}|{_LETTER})+"
)
_GRAMMARS: Mapping[str, str] = {
    "binary_matrix": r"\d+(?:\s+\d+)*",
    "n_queens": r"[Q_](?:\s+[Q_])*",
    "spiral_matrix": r"-?\d+(?:\s+-?\d+)*",
    "string_insertion": r"[A-E]+",
    "countdown": _ARITHMETIC,
    "puzzle24": _ARITHMETIC,
    "polynomial_multiplication": _ALGEBRA,
    "simple_integration": _ALGEBRA,
    "intermediate_integration": _ALGEBRA,
    "propositional_logic": r"[A-Z\s()∧∨¬→↔]+",
    "rubiks_cube": r"[FRUBLDMESfrubldxyz][2']{0,2}(?:\s+[FRUBLDMESfrubldxyz][2']{0,2})*",
    "rush_hour": r"[A-Z][+-]\d(?:\s+[A-Z][+-]\d)*",
}
_JSON = frozenset({"boxnet", "graph_color"})
_SHIFTED = r"(?:0x[\da-f]{1,4}(?![\da-f])|(?:<<|>>)\s*0x[0-3](?![\da-f])|\*(?!\*)|[-+()\s])+"
_NUMBER = r"['\"]?-?\d+(?:\.\d+)?(?:e[+-]?\d+)?['\"]?"
_INTEGRAL = {"metadata.integrand": _ALGEBRA, "metadata.variable": "[a-zA-Z]"}
_ITEMS: Mapping[str, Mapping[str, str]] = {
    "bitwise_arithmetic": {"metadata.problem": _SHIFTED},
    "number_sorting": {"answer": rf"\[\s*(?:{_NUMBER}(?:\s*,\s*{_NUMBER})*)?\s*\]"},
    "polynomial_multiplication": {"answer": _ALGEBRA},
    "simple_integration": _INTEGRAL,
    "intermediate_integration": _INTEGRAL,
    "composite": {"metadata.source_dataset": r"(?!)"},  # the item chooses the scorer: no item is accepted
}
CONSTANTS = (
    "0", "1", "-1", "2", "0.5", "10", "nan", "inf", "True", "False", "yes", "no", "None", "A", "x", "[]", "{}", "-",
)  # fmt: skip
MARGIN = 0.05
AUDITED = 50  # items


def foreign_field(dataset: str, entry: Mapping[str, Any]) -> str | None:
    """The first field that the data set's scorer executes and its generator would not have made; None without one."""
    for field, pattern in _ITEMS.get(dataset, {}).items():
        text: Any = entry
        for name in field.split("."):
            text = text.get(name) if isinstance(text, Mapping) else None
        if not isinstance(text, str) or len(text) > LONGEST_FIELD or not re.fullmatch(pattern, text, re.ASCII):
            return field
    return None


def admits(dataset: str, entry: Mapping[str, Any], answer: str) -> bool:
    """Whether `answer` has the form of an answer to this item."""
    gold = entry["answer"]
    longest = max(LONGEST, 2 * len(gold)) if isinstance(gold, str) else LONGEST
    if not answer.strip() or len(answer) > longest or _unprintable(answer):
        return False
    if dataset in _GRAMMARS:
        return re.fullmatch(_GRAMMARS[dataset], answer.strip(), re.ASCII) is not None
    if dataset in _JSON:
        return _is_json(answer)
    return isinstance(gold, str) and _like(answer, gold, str(entry["question"]))


def _like(answer: str, gold: str, question: str) -> bool:
    """Whether an answer is at most about four times as long as the gold, has no other marks than gold and numbers, and
    has words that `_words_like` accepts.
    """
    if len(answer) > 4 * len(gold) + 64 or "__" in answer:
        return False
    return _marks(answer) <= _marks(gold) | _NUMBER_MARKS and _words_like(answer, gold, question)


def _words_like(answer: str, gold: str, question: str) -> bool:
    """Whether the words of an answer are acceptable.

    Accepted are no words if the gold has none, and a word of a closed pair (yes, no) if the gold is one. If
    the gold has a word of three or more letters that the question lacks, any words are accepted. Else only the words of
    gold and question are accepted.
    """
    mine, theirs = _words(answer), _words(gold)
    for closed in _CLOSED:
        if theirs and theirs <= closed:
            return bool(mine) and mine <= closed
    given = _words(question)
    if any(len(word) > 2 for word in theirs - given):
        return True
    return not mine if not theirs else mine <= theirs | given


def _words(text: str) -> set[str]:
    return {word.lower() for word in re.findall(r"[^\W\d_]+", text)}


def _marks(text: str) -> frozenset[str]:
    return frozenset(character for character in text if not character.isalnum())


def _unprintable(text: str) -> bool:
    return any(not character.isprintable() and character not in "\n\t" for character in text)


def _is_json(text: str) -> bool:
    try:
        return isinstance(json.loads(text), (dict, list))
    except (ValueError, RecursionError):
        return False


def _example_meta(gold: Any) -> dict[str, Any]:
    entry = {"question": "", "answer": str(gold), "metadata": {}}
    return {"dataset": "chain_sum", "options": {}, "entry": entry}


def _warm(options: Mapping[str, Any]) -> None:
    import reasoning_gym.factory  # noqa: F401  (takes seconds)


@register(
    "reward",
    example=lambda gold: f"so</think> <answer>{gold}</answer>",
    example_meta=_example_meta,
    asks=[("<answer>",), (r"\boxed",)],
    check=lambda options: require_extra("reasoning_gym", "the reward reasoning_gym needs another library", "gym"),
    warm=_warm,
)
def reasoning_gym(prompt: Prompt, rollout: Rollout) -> Outcome:
    r"""The data set's score, between 0 and 1, for the last answer tag (or box) after the reasoning; correct at 1.

    It is for prompts of the task `reasoning_gym`, whose `meta` contains the item (Stojanovski et al., 2025,
    arXiv 2505.24760). An answer in another form than the data set's answers is unparsable and not sent to the scorer.
    Failures are an exception of the scorer, a score that is not finite, and an item with a foreign field that the
    scorer would execute. Other scores are clamped.
    """
    dataset, entry = prompt.meta["dataset"], prompt.meta["entry"]
    if field := foreign_field(dataset, entry):
        return failure("malformed", foreign_field_message(dataset, field))
    text = conclusion(prompt, rollout)
    tagged = answer_tag(text)
    answer = ((last_boxed(text) or "") if tagged is None else tagged).strip()
    if not admits(dataset, entry, answer):
        return unparsable()
    scorer = _scorer(dataset, _key(prompt.meta["options"]))
    with contextlib.redirect_stdout(None):  # some scorers print
        value = scorer(answer, entry)
    if not math.isfinite(value):
        return failure("malformed", f"the scorer of {dataset} returned {value} for {answer!r:.200}")
    value = min(1.0, max(0.0, float(value)))
    return judged(value == 1.0, value, parts={"answer": value}, answer=answer)


def foreign_field_message(dataset: str, field: str) -> str:
    """The message about an item that has a `foreign_field`."""
    return f"the scorer of {dataset} would execute {field} of the item, which does not look like one of this data set"


def refuse_constants(dataset: str, options: Mapping[str, Any], entries: Sequence[Mapping[str, Any]]) -> None:
    """Raise ConfigError for a data set in which a constant answer scores more than the commonest gold would, by more
    than `MARGIN`. Every constant is tried on the items, and so are the first and the commonest golds.
    """
    golds = Counter(entry["answer"] for entry in entries if isinstance(entry["answer"], str))
    candidates = dict.fromkeys((*CONSTANTS, *(gold for gold, _ in golds.most_common(2)), *list(golds)[:3]))
    scorer = _scorer(dataset, _key(options))
    means = {
        text: sum(_reward_for(scorer, dataset, text, entry) for entry in entries) / len(entries) for text in candidates
    }
    constant = max(means, key=means.__getitem__)
    majority = max(golds.values(), default=0) / len(entries)
    if means[constant] > majority + MARGIN:
        raise ConfigError(
            f"task.dataset: in {dataset} the constant answer {constant!r} scores {means[constant]:.2f} although the "
            f"commonest gold has a share of {majority:.2f}: a policy would learn that answer and nothing else",
            remedy="choose another data set, or set task.audit = false to train on it anyway",
            key="task.dataset",
            code="config.value",
        )


def _reward_for(scorer: Any, dataset: str, answer: str, entry: Mapping[str, Any]) -> float:
    """The reward for an answer; 0 if the scorer raises."""
    if foreign_field(dataset, entry) or not admits(dataset, entry, answer):
        return 0.0
    try:
        with contextlib.redirect_stdout(None):
            value = float(scorer(answer, entry))
    except Exception:
        return 0.0
    return min(1.0, max(0.0, value)) if math.isfinite(value) else 0.0


def _key(options: Mapping[str, Any]) -> str:
    return json.dumps(options, sort_keys=True)


@functools.lru_cache(maxsize=32)
def _scorer(dataset: str, options: str) -> Any:
    from reasoning_gym.factory import create_dataset

    return create_dataset(dataset, **{"seed": 0, "size": 1, **json.loads(options)}).score_answer
