"""Is a task fit to be trained on with a reward? Its golds, what a constant answer earns, its repetitions."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from winnow.commands.score import reason, verifiers_for
from winnow.config import Config
from winnow.errors import ConfigError, DataError
from winnow.families import REWARD, TASK, RewardTraits
from winnow.options import bind
from winnow.records import Outcome, Problem, Prompt, Rollout
from winnow.registry import Entry, resolve
from winnow.report.text import percent, safe, shorten
from winnow.rewards.graders import golds
from winnow.rewards.math_equivalence import strict
from winnow.rewards.math_equivalence.numbers import to_fraction
from winnow.verify import Verifiers

CONSTANTS = ("", " ", "0", "1", "-1", "2", "10", "x", "A", "yes", "no", "true", "nan", "inf", "{", "answer", "?")
SPLITS = ("train", "validation", "test")
TRIED = 500
SHOWN = 10  # findings of a kind that a report spells out

Load = Callable[[str], list[Problem]]  # a split's problems; ConfigError or DataError where there is no such split
Phrase = Callable[[Any], str]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that is wrong, and where."""

    problem: str  # its id
    gold: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Audit:
    """What was found in a task."""

    problems: Mapping[str, int]  # by split
    absent: Mapping[str, str]  # split -> why it could not be read
    golds: Sequence[Finding]  # that do not verify against themselves
    paid: Sequence[Finding]  # constant answers called correct where they are not the gold
    best_constant: tuple[str, float]  # and the share of problems of which it is the answer
    gold_reward: float  # mean of the golds that verify; NaN where none does
    wrong_constant: tuple[str, float]  # the constant answer with the highest reward where it is not called correct
    untried: str = ""  # why neither golds nor constants were tried; "" where they were
    duplicates: Sequence[tuple[str, ...]]  # ids that ask the same within a split
    overlap: Sequence[tuple[str, str]]  # id in train, id elsewhere
    splits: Mapping[str, Sequence[Problem]] = field(repr=False, default_factory=dict)

    @property
    def clean(self) -> bool:
        """All was tried, no gold fails, no constant is paid, train and the held-out splits share nothing."""
        return not (self.untried or self.faults)

    @property
    def faults(self) -> bool:
        """Whether anything was found."""
        return bool(self.golds or self.paid or self.overlap)


def audit_configured(config: Config, base: Path) -> Audit:
    """`audit` of a configuration's task with its reward; of a sum of rewards, with the part that decides."""
    import winnow.rewards
    import winnow.tasks  # noqa: F401  (registers them)

    task = resolve(TASK, config.task.use, base=base)
    load = bind(task, config.task.options, key="task")
    deciding = config.reward.use if config.reward.use is not None else config.reward.parts[0].use
    with verifiers_for(config, base) as verifiers:
        return audit(load, resolve(REWARD, deciding, base=base), verifiers)


def audit(load: Load, entry: Entry[RewardTraits], verifiers: Verifiers, *, splits: Iterable[str] = SPLITS) -> Audit:
    """Check every split that exists. `entry` is the reward's and has how an answer is phrased (its trait `example`);
    of one without, no answer is tried, and sizes, repetitions and overlap are all that is found.

    Raises ConfigError when no split exists at all.
    """
    found, absent = _load(load, splits)
    problems = [problem for of_split in found.values() for problem in of_split]
    phrase: Phrase | None = None
    untried = ""
    try:
        phrase = phrasing(entry)
    except ConfigError as error:
        untried = str(error)
    golds, gold_reward = failing_golds(problems, phrase, verifiers) if phrase else ([], math.nan)
    tried = constants(problems, phrase, verifiers) if phrase else NO_CONSTANTS
    return Audit(
        problems={split: len(of_split) for split, of_split in found.items()},
        absent=absent,
        golds=golds,
        paid=tried.paid,
        best_constant=tried.best,
        gold_reward=gold_reward,
        wrong_constant=tried.wrong,
        untried=untried,
        duplicates=[ids for of_split in found.values() for ids in duplicates(of_split)],
        overlap=overlap(found),
        splits=found,
    )


def phrasing(entry: Entry[RewardTraits]) -> Phrase:
    """The function that writes an answer as the reward reads it, its trait `example`; ConfigError without one."""
    if entry.traits.example is None:
        raise ConfigError(
            f"the reward {entry.name!r} does not declare how an answer is phrased, so no gold can be tried",
            remedy="register it with example=lambda gold: <a right completion>",
            key="reward",
            code="config.registration",
        )
    phrase: Phrase = entry.traits.example
    return phrase


def failing_golds(problems: Sequence[Problem], phrase: Phrase, verifiers: Verifiers) -> tuple[list[Finding], float]:
    """The golds that the reward does not call correct when they are given as the answer; and the mean reward of those
    that it does.
    """
    tried = [(problem, gold) for problem in problems for gold in golds(problem.answer)]
    outcomes = verifiers.stream(_task(problem, phrase(gold)) for problem, gold in tried)
    failing, rewards = [], []
    for (problem, gold), outcome in zip(tried, outcomes, strict=True):
        if outcome.correct:
            rewards.append(outcome.reward)
        else:
            failing.append(Finding(problem=problem.id, gold=gold, reason=_failing(outcome)))
    return failing, float(np.mean(rewards)) if rewards else math.nan


@dataclass(frozen=True, kw_only=True)
class Constants:
    """What became of answers that are the same for every problem."""

    paid: Sequence[Finding]  # called correct although they are not the gold
    best: tuple[str, float]  # the one most often called correct, and of which share of the problems
    wrong: tuple[str, float]  # the one with the highest reward where it is not called correct, and that reward


NO_CONSTANTS = Constants(paid=(), best=("", 0.0), wrong=("", math.nan))


def constants(problems: Sequence[Problem], phrase: Phrase, verifiers: Verifiers) -> Constants:
    """Try the same answers on every problem; at most on `TRIED` of them, evenly spaced."""
    problems = problems[:: max(1, len(problems) // TRIED)]
    tried = [(problem, constant) for constant in CONSTANTS for problem in problems]
    outcomes = verifiers.stream(_task(problem, phrase(constant)) for problem, constant in tried)
    wins: Counter[str] = Counter()
    paid, wrong = [], ("", math.nan)
    for (problem, constant), outcome in zip(tried, outcomes, strict=True):
        wins[constant] += outcome.correct is True
        if outcome.correct is False and not outcome.reward <= wrong[1]:
            wrong = (constant, outcome.reward)
        if outcome.correct and not any(_same(constant, gold) for gold in golds(problem.answer)):
            gold = ", ".join(golds(problem.answer))
            paid.append(Finding(problem=problem.id, gold=gold, reason=f"the constant answer {constant!r} is paid"))
    best, count = max(wins.items(), key=lambda item: item[1], default=("", 0))
    return Constants(paid=paid, best=(best, count / max(1, len(problems))), wrong=wrong)


def duplicates(problems: Sequence[Problem]) -> list[tuple[str, ...]]:
    """Groups of ids that ask the same question, apart from case, spaces and punctuation."""
    asked: defaultdict[str, list[str]] = defaultdict(list)
    for problem in problems:
        asked[normalised(problem.question)].append(problem.id)
    return [tuple(ids) for ids in asked.values() if len(ids) > 1]


def overlap(splits: Mapping[str, Sequence[Problem]]) -> list[tuple[str, str]]:
    """Pairs of ids, one in train and one in another split, that ask the same question."""
    trained = {normalised(problem.question): problem.id for problem in splits.get("train", ())}
    held_out = [problem for split, of_split in splits.items() if split != "train" for problem in of_split]
    return [(trained[key], p.id) for p in held_out if (key := normalised(p.question)) in trained]


def normalised(question: str) -> str:
    """What makes two questions the same: letters, digits and operators; neither case nor layout."""
    return re.sub(r"[\s.,;:!?'\"$]+", "", question).casefold()


def describe(found: Audit) -> Iterator[str]:
    """The report, line by line."""
    for split, count in found.problems.items():
        yield f"{split:<11}{count:>7,} problems"
    for split, why in found.absent.items():
        yield f"{split:<11}      - {safe(why)}"
    if found.untried:
        yield f"golds and constant answers were not tried: {safe(found.untried)}"
    else:
        yield from _about_answers(found)
    yield f"questions asked more than once within a split: {len(found.duplicates)}"
    yield from (f"  {', '.join(map(safe, ids))}" for ids in found.duplicates[:SHOWN])
    yield f"questions of train that are also held out: {len(found.overlap)}"
    yield from (f"  {safe(a)} = {safe(b)}" for a, b in found.overlap[:SHOWN])
    yield "clean" if found.clean else "not clean" if found.faults else "incomplete"


def _about_answers(found: Audit) -> Iterator[str]:
    total = sum(found.problems.values())
    yield f"golds that do not verify against themselves: {len(found.golds)} ({percent(len(found.golds) / total)})"
    yield from _spelled_out(found.golds)
    constant, share = found.best_constant
    best = f"the best, {constant!r}, is correct for {percent(share)} of the problems"
    yield f"constant answers paid without being the gold: {len(found.paid)}; {best}"
    yield from _spelled_out(found.paid)
    wrong, reward = found.wrong_constant
    yield f"reward of a gold: {_reward(found.gold_reward)} (mean); of a wrong constant: {_reward(reward)} at most" + (
        "" if math.isnan(reward) else f" ({wrong!r})"
    )


def _reward(value: float) -> str:
    return "none" if math.isnan(value) else f"{value:.3f}"


def _spelled_out(findings: Sequence[Finding]) -> Iterator[str]:
    for finding in findings[:SHOWN]:
        yield f"  {safe(finding.problem)}: {safe(shorten(finding.gold, 60))}: {safe(finding.reason)}"
    if len(findings) > SHOWN:
        yield f"  and {len(findings) - SHOWN} more"


def _load(load: Load, splits: Iterable[str]) -> tuple[dict[str, list[Problem]], dict[str, str]]:
    found: dict[str, list[Problem]] = {}
    absent: dict[str, str] = {}
    for split in splits:
        try:
            found[split] = load(split)
        except (ConfigError, DataError) as error:
            absent[split] = str(error)
    if not found:
        raise ConfigError(
            "no split of this task can be read: " + "; ".join(absent.values()), key="task", code="data.missing"
        )
    return found, absent


def _task(problem: Problem, text: str) -> tuple[Prompt, Rollout]:
    prompt = Prompt(
        id=problem.id,
        tokens=np.zeros(0, np.int64),
        text=problem.question,
        answer=problem.answer,
        task=problem.task,
        meta=problem.meta,
    )
    return prompt, Rollout(
        index=0, tokens=np.zeros(0, np.int64), logprobs=np.zeros(0), text=text, finish="stop", version=0
    )


def _failing(outcome: Outcome) -> str:
    return reason(outcome) if outcome.failed or outcome.kind == "unparsable" else f"read as {outcome.answer!r}: wrong"


def _same(constant: str, gold: str) -> bool:
    """The same text apart from units, words like `x =` and layout, or the same number in digits."""
    mine, theirs = (strict.canonical(text).casefold() for text in (constant, gold))
    number = to_fraction(mine)
    return bool(mine) and (mine == theirs or (number is not None and number == to_fraction(theirs)))
