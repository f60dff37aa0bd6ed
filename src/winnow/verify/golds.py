"""Golds given back to their own reward, each phrased as an answer, to find problems that no answer can solve.

The trait `example` of a reward phrases an answer. A reward that refuses a gold refuses every answer that is like it:
a raw gold of GSM8K is a worked solution that ends in "#### 7", and no answer is equal to all of that text. So of such a
gold the answer after the mark is given back, which only a reward that reads the mark accepts. A gold that is no text or
number, such as an object or NaN, must not pass as its text in Python.

A user's reward often compares texts, and refuses every answer to a gold that is a number or a list. Such a gold is
given back a second time as text, so that a finding states a form that the reward accepts.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from winnow.errors import ConfigError
from winnow.families import RewardTraits, TaskTraits
from winnow.records import Outcome, Problem, Prompt, Rollout
from winnow.registry import Entry
from winnow.rewards.extract import unwrap_box
from winnow.rewards.outcomes import reason
from winnow.verify.verifiers import Verifiers

Phrase = Callable[[Any], str]
Kind = Literal["refused", "marked", "object", "missing", "example", "no text"]

MOST_AS_TEXT = 3  # golds of a type that are given back as text without success
MOST_LATE = 10  # answers without a verdict in time; after them no further one is tried
LIKELY = ("ground_truth", "answer", "target", "gold", "value", "text", "label", "solution")  # the gold in an object
_MARKED = re.compile(r"(?:\A|\n)#### +(?P<answer>[-+$]*\d[\d,./]*%?)\s*\Z")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One fault of a problem."""

    problem: str  # the id
    gold: str  # or the constant answer without a verdict in time
    reason: str
    late: bool = False  # the verdict took longer than verify.timeout_seconds
    where: str = ""  # the place of the problem in its file
    kind: Kind = "refused"
    field: str = ""  # of a gold that is an object: the field that may be the gold
    accepted: str = ""  # of a gold that is no text: the form of it that the reward accepts, as a part of a remedy


class Tried(NamedTuple):
    """A gold that was given back, with a finding if it was not accepted."""

    problem: Problem
    gold: Any
    outcome: Outcome | None  # None: it was not judged
    finding: Finding | None


def phrasing(entry: Entry[RewardTraits], options: Mapping[str, Any] | None = None) -> Phrase:
    """The reward's trait `example`: the function that phrases an answer as the reward reads it.

    Raises ConfigError for a reward without it, and for `options` other than those for which the example is right.
    """
    if entry.traits.example is None:
        raise ConfigError(
            f"the reward {entry.name!r} does not declare how an answer is phrased, so no gold can be tried",
            remedy="register it with example=lambda gold: <a right completion>",
            key="reward",
            code="config.registration",
        )
    for name, value in entry.traits.example_options.items():
        if options is not None and options.get(name) != value:
            raise ConfigError(
                f"the reward {entry.name!r} declares how an answer is phrased for {name} = {value!r} alone, so no gold "
                f"can be tried",
                remedy="audit the task with the reward that decides what is correct",
                key="reward",
                code="config.registration",
            )
    phrase: Phrase = entry.traits.example
    return phrase


def try_golds(
    problems: Sequence[Problem],
    phrase: Phrase,
    verifiers: Verifiers,
    traits: RewardTraits | None = None,
    *,
    ahead: int = 512,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[Tried]:
    """Every gold of every problem, given back to the reward, up to the one that makes `MOST_LATE` without a verdict in
    time. `traits` are the reward's, which determine where its golds are. `ahead` answers are sent before their
    verdicts, and none once `stop` returns True.
    """
    golds = ((problem, gold) for problem in problems for gold in answers_of(problem, traits))
    phrased: deque[tuple[Problem, Any, str | Finding]] = deque()

    def tasks() -> Iterator[tuple[Prompt, Rollout]]:
        for problem, gold in golds:
            if stop():
                return
            completion = _phrased(problem, gold, phrase)
            phrased.append((problem, gold, completion))
            if isinstance(completion, str):
                yield task_of(problem, completion)

    outcomes, late, as_text = verifiers.stream(tasks(), ahead=ahead), 0, _AsText(phrase, verifiers)
    for outcome in outcomes:
        yield from _unjudged(phrased, as_text)
        problem, gold, _ = phrased.popleft()
        finding = None if outcome.correct else as_text(problem, gold, _refusal(problem, gold, outcome))
        yield Tried(problem, gold, outcome, finding)
        late += outcome.cause == "timeout"
        if late == MOST_LATE:
            return
    yield from _unjudged(phrased, as_text)


class _AsText:
    """Gives golds that are no text back as text. What the reward accepts for one is a finding about all of its type."""

    def __init__(self, phrase: Phrase, verifiers: Verifiers) -> None:
        self._phrase, self._verifiers = phrase, verifiers
        self._accepted: dict[object, int] = {}  # by type and number of forms: the place of the accepted one
        self._refused = Counter[object]()

    def __call__(self, problem: Problem, gold: Any, finding: Finding) -> Finding:
        """The finding, with the form that the reward accepts if there is one."""
        forms = _forms(problem.answer, gold)
        of = type(problem.answer), len(forms)
        if not forms or finding.late or finding.kind not in ("refused", "example"):
            return finding
        if of not in self._accepted and self._refused[of] < MOST_AS_TEXT:
            tried = (place for place, (form, _) in enumerate(forms) if self._is_accepted(problem, gold, form))
            place = next(tried, None)
            self._refused[of] += place is None
            self._accepted |= {} if place is None else {of: place}
        if of not in self._accepted:
            return finding
        return replace(finding, kind="no text", accepted=forms[self._accepted[of]][1])

    def _is_accepted(self, problem: Problem, gold: Any, form: str | list[str]) -> bool:
        completion = _phrased(problem, str(gold), self._phrase)
        if not isinstance(completion, str):
            return False
        (outcome,) = self._verifiers.stream([task_of(replace(problem, answer=form), completion)])
        return outcome.correct is True


def _forms(answer: Any, gold: Any) -> list[tuple[str | list[str], str]]:
    """The forms in which a reward that compares texts may accept a gold, each with the remedy that names it. There are
    none for text, for an object, and for a gold that is not in the answer.
    """
    several = isinstance(answer, (list, tuple))
    if isinstance(answer, (str, Mapping)) or isinstance(gold, (Mapping, list, tuple)) or gold is None:
        return []
    if not several:
        alone = f"as text ({json.dumps(str(gold))}), or let the reward compare with str(prompt.answer)"
        return [(str(gold), alone)] if gold is answer else []
    texts = [str(one) for one in answer]
    as_texts = [] if texts == list(answer) else [(texts, f"as texts ({json.dumps(texts, ensure_ascii=False)})")]
    alone = f"as one text ({json.dumps(str(gold), ensure_ascii=False)})"
    return [*as_texts, (str(gold), f"{alone}, or let the reward accept each text of the list prompt.answer")]


def _unjudged(phrased: deque[tuple[Problem, Any, str | Finding]], as_text: _AsText) -> Iterator[Tried]:
    """Remove the golds that were found at fault before they could be judged, up to the next one that is judged."""
    while phrased and isinstance(finding := phrased[0][2], Finding):
        problem, gold, _ = phrased.popleft()
        yield Tried(problem, gold, None, as_text(problem, gold, finding))


def answers_of(problem: Problem, traits: RewardTraits | None = None) -> list[Any]:
    """What the reward's `example` phrases: the problem's golds, or its solution if the gold is no answer.

    There may be none: if the gold is in `meta`, and if a gold that consists of tests has no solution.
    """
    if traits is not None and traits.solution is not None:
        solution = problem.meta.get(traits.solution)
        return [solution] if isinstance(solution, str) else []
    if problem.answer is None and traits is not None and traits.example_meta is not None:
        return []
    several = isinstance(problem.answer, (list, tuple)) and problem.answer
    return list(problem.answer) if several else [problem.answer]


def marked_answer(gold: Any) -> str | None:
    """The number after "#### " in the last line of a gold that is a worked solution in the form of GSM8K."""
    match = _MARKED.search(gold) if isinstance(gold, str) else None
    return None if match is None else match["answer"]


def _phrased(problem: Problem, gold: Any, phrase: Phrase) -> str | Finding:
    """A gold as a completion, or why no completion can have it as its answer."""

    def fault(why: str, kind: Kind, field: str = "") -> Finding:
        return Finding(problem=problem.id, gold=str(gold), reason=why, where=problem.where, kind=kind, field=field)

    if isinstance(gold, str) and gold.strip().casefold() in ("", "nan"):
        return fault("it is blank" if not gold.strip() else "it is the text of a missing number", "missing")
    if isinstance(gold, float) and not math.isfinite(gold):
        return fault("it is no finite number", "missing")
    marked = marked_answer(gold)
    answer = marked if marked is not None else unwrap_box(gold) if isinstance(gold, str) else gold
    try:
        completion: object = phrase(answer)
    except Exception as error:  # of a user's function
        return fault(f"the reward's example raised {type(error).__name__}: {error}", "example")
    if not isinstance(completion, str):
        return fault(f"the reward's example returned a {type(completion).__name__}", "example")
    if gold in (None, []) and str(gold) in completion:
        return fault("it is missing", "missing")
    if isinstance(gold, Mapping) and str(gold) in completion:
        field = next((name for name in LIKELY if name in gold), "")
        return fault(f"it is an object (with {', '.join(map(repr, gold))}), no text or number", "object", field)
    return completion


def remedy(findings: Sequence[Finding], task: Entry[TaskTraits], options: Mapping[str, Any]) -> str:
    """What corrects these findings, for golds of a task with its options; "" if nothing but their text is known."""
    kinds = {finding.kind: finding for finding in reversed(findings)}  # the first of each kind
    from_file = task.origin == "winnow" and "extract" in task.options
    if "marked" in kinds:
        return (
            "set task.extract=hashes: the gold is then the answer after '####'"
            if from_file
            else "use the reward gsm8k, which reads '####', or let the task return the answer after it alone"
        )
    if "object" in kinds:
        field = kinds["object"].field
        key = f"{options.get('answer', 'answer')}.{field}"
        return f"set task.answer={key}" if from_file and field else "let the golds be texts, numbers or lists of these"
    if "no text" in kinds:
        key = options.get("answer", "answer")
        write = f"write the field {key!r}" if from_file else "let the task return these golds"
        return f"{write} {kinds['no text'].accepted}"
    if "missing" in kinds:
        return "remove these problems, or name the field with the gold" + (" by task.answer" if from_file else "")
    return ""


def _refusal(problem: Problem, gold: Any, outcome: Outcome) -> Finding:
    late, marked = outcome.cause == "timeout", marked_answer(gold)
    why = failing(outcome)
    stated = bool(outcome.detail) and not outcome.failed  # as by a reward that reads such golds
    if not late and not stated and not isinstance(problem.answer, str):  # one that compares with a text pays nothing
        why += f" (prompt.answer is of the type {type(problem.answer).__name__}, not text)"
    if marked is not None and not outcome.failed:
        why = f"the reward compares all of it, and refuses {marked!r}, the answer after '####'"
    return Finding(
        problem=problem.id,
        gold=str(gold),
        reason=why,
        late=late,
        where=problem.where,
        kind="refused" if marked is None or outcome.failed else "marked",
    )


def failing(outcome: Outcome) -> str:
    """Why an outcome is not correct. A reward that returns a number does not return what it read."""
    if outcome.failed or outcome.kind == "unparsable":
        return reason(outcome)
    if outcome.detail:
        return f"wrong: {reason(outcome)}"
    return "wrong" if outcome.answer is None else f"read as {outcome.answer!r}: wrong"


def task_of(problem: Problem, text: str) -> tuple[Prompt, Rollout]:
    """A problem and a completion as a reward gets them, without tokens."""
    none = np.zeros(0, np.int64)
    rollout = Rollout(index=0, tokens=none, logprobs=np.zeros(0), text=text, finish="stop", version=0)
    return Prompt.of(problem, problem.question, none), rollout
