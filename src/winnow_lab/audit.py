"""`winnow audit`: checks of a task with a reward: gold answers, constant answers, repetitions, overlap of splits."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from winnow.commands.command_line import BAD_INPUT, FAILED, Sets, print_text
from winnow.config import Config, RewardPart, RewardSection
from winnow.errors import ConfigError, DataError
from winnow.families import REWARD, TASK, RewardTraits
from winnow.options import bind
from winnow.records import Outcome, Problem
from winnow.registry import Entry, resolve
from winnow.rewards.answers import to_fraction
from winnow.rewards.graders import golds
from winnow.rewards.math_equivalence import choices, strict
from winnow.rewards.math_equivalence.latex import brackets, tidy
from winnow.verify.golds import (
    MOST_LATE,
    Finding,
    Phrase,
    failing,
    marked_answer,
    phrasing,
    remedy,
    task_of,
    try_golds,
)
from winnow.verify.verifiers import Verifiers
from winnow.view.text import format_percent, sanitize, shorten
from winnow_lab.scoring import build_config, verifiers_for

CONSTANTS = ("", " ", "0", "1", "-1", "2", "10", "x", "A", "yes", "no", "true", "nan", "inf", "{", "answer", "?")
SPLITS = ("train", "validation", "test")
TRIED = 500  # about so many problems for each constant answer; see `constants`
SHOWN = 10  # findings per kind that the report lists

Load = Callable[[str], list[Problem]]  # the problems of a split; raises ConfigError or DataError without the split
Contradiction = tuple[Problem, Problem]  # two problems of a split with one question and no gold in common


def audit(
    task: Annotated[str, typer.Argument(metavar="TASK", help="By name, or file.py:function.")],
    reward: Annotated[str, typer.Option(help="The reward that verifies the gold answers.")] = "boxed",
    sets: Sets = None,
) -> None:
    """Check that a task is fit for training: gold and constant answers, repetitions, overlap of splits."""
    result = audit_configured(build_config(sets or (), task=task, reward=reward), Path.cwd())
    for line in describe(result):
        print_text(line)
    if not result.clean:
        raise typer.Exit(FAILED if result.faults else BAD_INPUT)


@dataclass(frozen=True, kw_only=True)
class Constants:
    """The results of answers that are the same for every problem."""

    paid: Sequence[Finding]  # accepted although they are not the gold
    late: Sequence[Finding] = ()  # without a verdict in time
    best: tuple[str, float]  # the most accepted answer, and its share of the problems
    wrong: tuple[str, float]  # the rejected answer with the highest reward, and that reward


NO_CONSTANTS = Constants(paid=(), best=("", 0.0), wrong=("", math.nan))


@dataclass(frozen=True, kw_only=True)
class Audit:
    """The result of the checks of a task."""

    problems: Mapping[str, int]  # by split
    absent: Mapping[str, str]  # split -> why it could not be read
    golds: Sequence[Finding]  # gold answers that the reward does not accept
    gold_reward: float  # mean over the accepted golds; NaN without any
    constants: Constants
    untried: str = ""  # why neither golds nor constants were tried; "" where they were
    duplicates: Sequence[tuple[str, ...]]  # ids of equal questions within a split
    contradictions: Sequence[Contradiction] = ()
    overlap: Sequence[tuple[str, str]]  # id in train, id of the same question in another split
    broken: Mapping[str, str] = field(default_factory=dict)  # split -> the row that makes it unreadable
    remedy: str = ""  # of the golds that are rejected

    @property
    def clean(self) -> bool:
        """Answers were tried, and there are no `faults`."""
        return not (self.untried or self.faults)

    @property
    def faults(self) -> bool:
        """Whether a gold fails, a constant is paid or late, golds of one question differ, splits overlap, or a row is
        malformed.
        """
        answers = self.golds or self.constants.paid or self.constants.late
        return bool(answers or self.contradictions or self.overlap or self.broken)

    @property
    def stopped(self) -> bool:
        """Whether some answers were not tried, as the reward had exceeded its time limit too often."""
        return _too_many_late(self.golds) or _too_many_late(self.constants.late)


def audit_configured(config: Config, base: Path) -> Audit:
    """Audit a configuration's task with its reward. Of a sum of rewards, the first part decides correctness."""
    task = resolve(TASK, config.task.use, base=base)
    load = bind(task, config.task.options, key="task")
    assert config.reward is not None, "`build_config` sets it"
    deciding: RewardSection | RewardPart = config.reward if config.reward.use is not None else config.reward.parts[0]
    assert deciding.use is not None, "a part has a name"
    entry = resolve(REWARD, deciding.use, base=base)
    options = bind(entry, deciding.options, key="reward").options
    with verifiers_for(config, base) as verifiers:
        result = audit_task(load, entry, verifiers, options=options)
    return replace(result, remedy=remedy(result.golds, task, config.task.options)) if result.golds else result


def audit_task(
    load: Load,
    entry: Entry[RewardTraits],
    verifiers: Verifiers,
    *,
    splits: Iterable[str] = SPLITS,
    options: Mapping[str, Any] | None = None,
) -> Audit:
    """Check every split that exists. The trait `example` of the reward's `entry` phrases an answer as a completion.
    Without it no answer is tried. A problem whose gold gets no verdict in time is not tried with constants: the reward
    would exceed the time limit for each of them.

    Raises ConfigError when no split exists at all.
    """
    by_split, absent, broken = _load(load, splits)
    problems = [problem for of_split in by_split.values() for problem in of_split]
    found = [each for of_split in by_split.values() for each in contradictions(of_split)]
    golds, gold_reward, tried, untried = list[Finding](), math.nan, NO_CONSTANTS, ""
    try:
        phrase = phrasing(entry, options)
    except ConfigError as error:
        untried = str(error)
    else:
        golds, gold_reward = failing_golds(problems, phrase, verifiers, entry.traits)
        late = {finding.problem for finding in golds if finding.late}
        if not _too_many_late(golds):
            found = rejected(found, phrase, verifiers)
            tried = constants([problem for problem in problems if problem.id not in late], phrase, verifiers)
    return Audit(
        problems={split: len(of_split) for split, of_split in by_split.items()},
        absent=absent,
        golds=golds,
        gold_reward=gold_reward,
        constants=tried,
        untried=untried,
        duplicates=[ids for of_split in by_split.values() for ids in duplicates(of_split)],
        contradictions=found,
        overlap=overlap(by_split),
        broken=broken,
    )


def failing_golds(
    problems: Sequence[Problem], phrase: Phrase, verifiers: Verifiers, traits: RewardTraits | None = None
) -> tuple[list[Finding], float]:
    """The gold answers that the reward does not accept, and the mean reward of those that it accepts. First those that
    it cannot read, by its trait `check_gold`.
    """
    read = None if traits is None else traits.check_gold
    readable, found = list[Problem](), list[Finding]()
    for problem in problems:
        try:
            if read is not None:
                read(problem.answer)
            readable.append(problem)
        except ValueError as error:
            found.append(_finding(problem, str(problem.answer), f"the reward cannot read it: {error}"))
    tried = list(try_golds(readable, phrase, verifiers, traits))
    rewards = [one.outcome.reward for one in tried if one.finding is None and one.outcome is not None]
    found += [one.finding for one in tried if one.finding]
    return found, float(np.mean(rewards)) if rewards else math.nan


def constants(problems: Sequence[Problem], phrase: Phrase, verifiers: Verifiers) -> Constants:
    """Try `CONSTANTS` on every problem; of 2 * `TRIED` and more problems, on `TRIED` or more at even distances."""
    problems = problems[:: max(1, len(problems) // TRIED)]
    tried = [(problem, constant) for constant in CONSTANTS for problem in problems]
    wins: Counter[str] = Counter()
    paid, late, wrong = [], [], ("", math.nan)
    for problem, constant, outcome in _judged(tried, phrase, verifiers):
        wins[constant] += outcome.correct is True
        if outcome.cause == "timeout":
            late.append(_finding(problem, constant, failing(outcome), late=True))
        if outcome.correct is False and not outcome.reward <= wrong[1]:  # also where wrong[1] is still NaN
            wrong = (constant, outcome.reward)
        if outcome.correct and not any(_same(constant, gold) for gold in _read_golds(problem)):
            paid.append(
                _finding(problem, ", ".join(golds(problem.answer)), f"the constant answer {constant!r} is paid")
            )
    best, count = max(wins.items(), key=lambda item: item[1], default=("", 0))
    return Constants(paid=paid, late=late, best=(best, count / max(1, len(problems))), wrong=wrong)


def _finding(problem: Problem, gold: str, why: str, *, late: bool = False) -> Finding:
    return Finding(problem=problem.id, gold=gold, reason=why, late=late, where=problem.where)


def _read_golds(problem: Problem) -> list[str]:
    """The golds; of one that is a worked solution in the form of GSM8K, the answer after its mark."""
    return [marked_answer(gold) or gold for gold in golds(problem.answer)]


def _judged(
    tried: Sequence[tuple[Problem, str]], phrase: Phrase, verifiers: Verifiers
) -> Iterator[tuple[Problem, str, Outcome]]:
    """Each answer of a problem with its outcome, up to the one that makes `MOST_LATE` without a verdict in time."""
    outcomes = verifiers.stream(task_of(problem, phrase(answer)) for problem, answer in tried)
    late = 0
    for (problem, answer), outcome in zip(tried, outcomes, strict=True):
        yield problem, answer, outcome
        late += outcome.cause == "timeout"
        if late == MOST_LATE:
            return


def _too_many_late(findings: Iterable[Finding]) -> bool:
    return sum(finding.late for finding in findings) >= MOST_LATE


def duplicates(problems: Sequence[Problem]) -> list[tuple[str, ...]]:
    """Groups of ids with the same question, apart from case, spaces and punctuation."""
    by_question: defaultdict[str, list[str]] = defaultdict(list)
    for problem in problems:
        by_question[normalised(problem.asked)].append(problem.id)
    return [tuple(ids) for ids in by_question.values() if len(ids) > 1]


def contradictions(problems: Sequence[Problem]) -> list[Contradiction]:
    """The problems whose golds contradict those of the first one with the same question.

    Questions are the same here apart from case, the width of spaces and punctuation at the end, as 2.5 + 1 and 25 + 1
    are two questions. A problem without a gold (None) contradicts no other.
    """
    first: dict[str, Problem] = {}
    found = []
    for problem in problems:
        if problem.answer is None:
            continue
        earlier = first.setdefault(" ".join(problem.asked.casefold().split()).rstrip(" .:?"), problem)
        if not any(a == b or _same(a, b) for a in _read_golds(earlier) for b in _read_golds(problem)):
            found.append((earlier, problem))
    return found


def rejected(found: Sequence[Contradiction], phrase: Phrase, verifiers: Verifiers) -> list[Contradiction]:
    """The contradictions for the reward too: a question may have many right answers, and each gold be one of them."""
    tried = [(first, gold) for first, second in found for gold in golds(second.answer)]
    accepted = {(problem.id, gold) for problem, gold, outcome in _judged(tried, phrase, verifiers) if outcome.correct}
    return [pair for pair in found if not any((pair[0].id, gold) in accepted for gold in golds(pair[1].answer))]


def overlap(splits: Mapping[str, Sequence[Problem]]) -> list[tuple[str, str]]:
    """Pairs of ids with the same question, one in train and one in another split."""
    trained = {normalised(problem.asked): problem.id for problem in splits.get("train", ())}
    held_out = [problem for split, of_split in splits.items() if split != "train" for problem in of_split]
    return [(trained[key], p.id) for p in held_out if (key := normalised(p.asked)) in trained]


def normalised(question: str) -> str:
    """The question without case, spaces and punctuation; it is equal for questions that count as the same. What has a
    meaning in a number or an expression stays: 2.5 is not 25, 1 2 not 12, and 5! not 5.
    """
    text = re.sub(r"[.,;:?']+(?!\S)|(?<![\d)])!+(?!\S)", "", re.sub(r'["$]', "", question))
    return re.sub(r"(?<!\d) | (?!\d)", "", " ".join(text.split())).casefold()


def describe(result: Audit) -> Iterator[str]:
    """The report, line by line."""
    for split, count in result.problems.items():
        yield f"{split:<11}{count:>7,} problems"
    for split, why in result.absent.items():
        yield f"{split:<11}      - {sanitize(why)}"
    for split, why in result.broken.items():
        yield f"{split:<11}malformed: {sanitize(why)}"
    if result.untried:
        yield f"golds and constant answers were not tried: {sanitize(result.untried)}"
    else:
        yield from _about_answers(result)
    yield f"questions repeated within a split: {len(result.duplicates)}"
    yield from (f"  {', '.join(map(sanitize, ids))}" for ids in result.duplicates[:SHOWN])
    yield from _about_contradictions(result.contradictions)
    yield f"questions of train that are also held out: {len(result.overlap)}"
    yield from (f"  {sanitize(a)} = {sanitize(b)}" for a, b in result.overlap[:SHOWN])
    yield "clean" if result.clean else "not clean" if result.faults else "incomplete"


def _about_answers(result: Audit) -> Iterator[str]:
    total = sum(result.problems.values())
    # A problem may have several golds, whose findings follow each other, and splits may have the same ids
    share = sum(1 for _ in groupby(result.golds, key=lambda finding: (finding.problem, finding.where))) / total
    yield f"gold answers that the reward rejects: {len(result.golds)} ({format_percent(share)})"
    yield from _listed(result.golds)
    if result.remedy:
        yield f"  remedy: {sanitize(result.remedy)}"
    constant, share = result.constants.best
    best = f"the best, {constant!r}, is correct for {format_percent(share)} of the problems"
    yield f"constant answers accepted although they are not the gold: {len(result.constants.paid)}; {best}"
    yield from _listed(result.constants.paid)
    if result.constants.late:
        yield f"constant answers without a verdict in time: {len(result.constants.late)}"
        yield from _listed(result.constants.late)
    if result.stopped:
        yield (
            f"stopped: {MOST_LATE} verdicts took longer than verify.timeout_seconds, so the other answers were not "
            f"tried"
        )
    wrong, reward = result.constants.wrong
    yield f"reward of a gold: {_reward(result.gold_reward)} (mean); of a wrong constant: {_reward(reward)} at most" + (
        "" if math.isnan(reward) else f" ({wrong!r})"
    )


def _about_contradictions(found: Sequence[Contradiction]) -> Iterator[str]:
    if not found:
        return
    yield f"questions with different golds within a split: {len(found)}"
    for pair in found[:SHOWN]:
        shown = ((one.id, " or ".join(golds(one.answer))) for one in pair)
        yield "  " + "; ".join(f"{sanitize(id)}: {sanitize(shorten(gold, 60))}" for id, gold in shown)
    yield from _more(found)


def _reward(value: float) -> str:
    return "none" if math.isnan(value) else f"{value:.3f}"


def _listed(findings: Sequence[Finding]) -> Iterator[str]:
    for finding in findings[:SHOWN]:
        gold = shorten(" ".join(finding.gold.split()), 60)
        where = f" ({sanitize(finding.where)})" if finding.where else ""
        yield f"  {sanitize(finding.problem)}: {sanitize(gold)}: {sanitize(finding.reason)}{where}"
    yield from _more(findings)


def _more(findings: Sequence[object]) -> Iterator[str]:
    if len(findings) > SHOWN:
        yield f"  and {len(findings) - SHOWN} more"


def _load(load: Load, splits: Iterable[str]) -> tuple[dict[str, list[Problem]], dict[str, str], dict[str, str]]:
    """The splits that can be read, why others do not exist, and the malformed rows of others."""
    by_split: dict[str, list[Problem]] = {}
    absent, broken = dict[str, str](), dict[str, str]()
    for split in splits:
        try:
            by_split[split] = load(split)
        except (ConfigError, DataError) as error:
            (broken if error.code == "data.malformed" else absent)[split] = str(error)
    if not by_split:
        reasons = dict.fromkeys((*absent.values(), *broken.values()))
        raise ConfigError("no split of this task can be read: " + "; ".join(reasons), key="task", code="data.missing")
    return by_split, absent, broken


def _same(answer: str, gold: str) -> bool:
    r"""The same text apart from units, prefixes such as `x =` and layout, or the same number in digits. The gold
    `\textbf{(C)}\ 12` is C and 12.
    """
    mine, *theirs = map(_bare, (answer, *(choices.letter_and_value(tidy(gold), gold) or (gold,))))
    number = to_fraction(mine)
    return bool(mine) and any(mine == one or (number is not None and number == to_fraction(one)) for one in theirs)


def _bare(text: str) -> str:
    """The canonical text, without brackets around a single value: `(A)` is the option A, and `(5)` is 5."""
    text = strict.canonical(text).casefold()
    opening, inside, closing = brackets(text)
    return inside if (opening, closing) == ("(", ")") and "," not in inside else text
