"""Evaluation of the policy on held-out problems, with the engine and the verifiers of training, and its metrics.

Metrics are computed from judged rollouts by problem, which come from groups or from the lines of a file. Rollouts whose
verifier failed are in none of the means except those of length and truncation.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from winnow.algos.group_metrics import mean_parts
from winnow.algos.pass_at_k import majority_at_k, pass_at_k, standard_error
from winnow.core.collect import OnRollout, Request, collect
from winnow.core.protocols import Verifier
from winnow.engines.base import Engine
from winnow.records import FloatArray, Group, Kind, Prompt, Sampling
from winnow.rewards.math_equivalence import expression
from winnow.rewards.math_equivalence.latex import readable
from winnow.rewards.math_equivalence.strict import canonical
from winnow.seeds import SeedName

Category = Literal["correct", "wrong answer", "wrong format", "failed"]


class Judged(NamedTuple):
    """A rollout without its text and tokens."""

    kind: Kind
    correct: bool | None  # None: the verifier failed
    reward: float  # NaN: the verifier failed
    parts: Mapping[str, float]
    answer: str | None
    length: int  # completion tokens that the policy sampled
    truncated: bool  # truncated at max_new_tokens
    late: bool  # the verdict depends on a limit of wall-clock time

    @property
    def verified(self) -> bool:
        return self.correct is not None

    @property
    def formatted(self) -> bool:
        """Whether the format is right: the reward's part `format` is 1 or, without this part, an answer was read."""
        return self.parts["format"] >= 1.0 if "format" in self.parts else self.kind in ("correct", "wrong")

    @property
    def category(self) -> Category:
        """The category of the rollout. A right answer in a wrong format counts as "wrong format"."""
        if not self.verified:
            return "failed"
        if not self.formatted:
            return "wrong format"
        return "correct" if self.correct else "wrong answer"


def judged(group: Group) -> tuple[Judged, ...]:
    """[N] the judged rollouts of a group that has outcomes."""
    return tuple(
        Judged(o.kind, o.correct, o.reward, o.parts, o.answer, r.length, r.finish == "length", o.late)
        for r, o in zip(group.rollouts, group.outcomes or (), strict=True)
    )


def judged_row(row: Mapping[str, Any]) -> Judged:
    """The judged rollout of a line in an evaluation's file of rollouts. Raises KeyError if a field is missing."""
    reward = math.nan if row["reward"] is None else row["reward"]
    of_rollout = row["length"], row["finish"] == "length", row["late"]
    return Judged(row["kind"], row["correct"], reward, row["parts"], row["answer_read"], *of_rollout)


Problem = Sequence[Judged]  # the rollouts of one problem


class Votes(NamedTuple):
    """Counts of a problem's verified rollouts by their answer."""

    right: int  # all right answers count as one, whatever their spelling
    wrong: tuple[int, ...]  # per wrong answer; two are the same if their numbers or, without one, canonical texts are
    unanswered: int  # rollouts without an answer that could be read
    undisclosed: int = 0  # wrong rollouts of a reward that does not return the answer

    @property
    def verified(self) -> int:
        return self.right + sum(self.wrong) + self.unanswered + self.undisclosed


def per_problem(sampled: Sequence[Problem], ballots: Sequence[Votes], k: int) -> dict[str, FloatArray]:
    """{metric: [problems]}: NaN for a problem without a verdict, and in pass@k and maj@k for one with fewer than k.

    An evaluation's metric is the mean over the problems that are not NaN.
    """
    return {
        "accuracy_sampled": _share_of_each(sampled, lambda one: bool(one.correct)),
        "formatted": _share_of_each(sampled, lambda one: one.formatted),
        "correct_and_formatted": _share_of_each(sampled, lambda one: one.category == "correct"),
        f"pass_at_{k}": pass_at(ballots, k),
        f"maj_at_{k}": maj_at(ballots, k),
    }


def pass_at(ballots: Sequence[Votes], k: int) -> FloatArray:
    """[problems] unbiased pass@k; NaN where a problem has fewer than k verdicts."""
    counts = np.array([(ballot.right, ballot.verified) for ballot in ballots], dtype=np.int64).reshape(-1, 2)
    return pass_at_k(counts[:, 0], counts[:, 1], k)


def maj_at(ballots: Sequence[Votes], k: int) -> FloatArray:
    """[problems] expected score of the answer that most of k rollouts give; NaN for a problem with fewer verdicts.

    All are NaN where the reward does not return the answer of some wrong rollout: wrong rollouts that agree cannot be
    counted then, and a mean over the problems without a wrong rollout would be biased.
    """
    if not majority_is_known(ballots):
        return np.full(len(ballots), np.nan)
    return np.array([majority_at_k(b.right, b.wrong, b.unanswered, k) for b in ballots], dtype=np.float64)


def majority_is_known(ballots: Sequence[Votes]) -> bool:
    """Whether every wrong rollout has its answer. A reward that returns a bare number gives no answers."""
    return not any(ballot.undisclosed for ballot in ballots)


def count_votes(problem: Problem) -> Votes:
    """The votes of a problem's rollouts. Comparing the spellings of answers is slow: call it once per problem."""
    verified = [one for one in problem if one.verified]
    right = sum(bool(one.correct) for one in verified)
    wrong = Counter(_spelling(one.answer) for one in verified if not one.correct and one.answer is not None)
    undisclosed = sum(one.kind == "wrong" and one.answer is None for one in verified)
    return Votes(right, tuple(wrong.values()), len(verified) - right - wrong.total() - undisclosed, undisclosed)


def sampled_metrics(sampled: Sequence[Problem], values: Mapping[str, FloatArray]) -> dict[str, float]:
    """The metrics of the sampled rollouts, by name. `values` is the result of `per_problem`."""
    rollouts = [one for problem in sampled for one in problem]
    defined = {name: of_each[~np.isnan(of_each)] for name, of_each in values.items()}
    verified = [one for one in rollouts if one.verified]
    metrics = {
        "length_mean": float(np.mean([one.length for one in rollouts])),
        "truncated": float(np.mean([one.truncated for one in rollouts])),
        "failed": float(len(rollouts) - len(verified)),
        **{name: float(of_each.mean()) for name, of_each in defined.items() if len(of_each)},
    }
    if verified:
        metrics["accuracy_sampled_sem"] = standard_error(defined["accuracy_sampled"])
        metrics["reward_mean"] = float(np.mean([one.reward for one in verified]))
        parts = mean_parts(one.parts for one in verified)
        metrics |= {f"part/{name}": value for name, value in parts.items()}
    return metrics


def greedy_accuracy(greedy: Sequence[Problem]) -> FloatArray:
    """[problems] 1 or 0 of one greedy rollout each; NaN where the verifier failed."""
    return _share_of_each(greedy, lambda one: bool(one.correct))


def greedy_metrics(greedy: Sequence[Problem]) -> dict[str, float]:
    """The metrics of one greedy rollout per problem."""
    correct = greedy_accuracy(greedy)
    known = correct[~np.isnan(correct)]
    return {"accuracy_greedy": float(known.mean())} if len(known) else {}


def _share_of_each(problems: Sequence[Problem], holds: Callable[[Judged], bool]) -> FloatArray:
    shares = ([holds(one) for one in problem if one.verified] for problem in problems)
    return np.array([np.mean(of_one) if of_one else np.nan for of_one in shares], dtype=np.float64)


def _spelling(answer: str) -> str:
    if not readable(answer):
        return answer
    text = canonical(answer)
    number = expression.number(text)
    return text.lower() if number is None else str(number)


@dataclass(frozen=True)
class Evaluation:
    """The metrics of one evaluation, and the rollouts behind them."""

    metrics: dict[str, float]
    seconds: float
    sampled: tuple[Group, ...]
    greedy: tuple[Group, ...]


def evaluate(
    engine: Engine,
    verifiers: Verifier,
    prompts: Sequence[Prompt],
    sampling: Sampling,
    *,
    rollouts_per_prompt: int,
    greedy: bool,
    seed: tuple[SeedName, ...],
    of: str | None = None,
    on_rollout: OnRollout | None = None,
) -> Evaluation:
    """Sample each problem `rollouts_per_prompt` times, and with `greedy` once more at temperature 0.

    The random numbers depend on (seed, problem, index) alone, so two evaluations of one run differ by the weights only.
    Metrics are eval/... for the run's task, and eval/NAME/... where `of` is the NAME of a further task. `on_rollout` is
    called with every finished rollout of this rank. Raises VerifierError when too many verdicts failed, greedy rollouts
    included.
    """
    begin = time.perf_counter()
    request = Request(prompts, [rollouts_per_prompt] * len(prompts), sampling, seed=seed, on_rollout=on_rollout)
    sampled, best = collect_rollouts(engine, verifiers, request, greedy=greedy)
    problems = [judged(group) for group in sampled]
    values = per_problem(problems, [count_votes(problem) for problem in problems], rollouts_per_prompt)
    metrics = {
        **sampled_metrics(problems, values),
        **greedy_metrics([judged(group) for group in best]),
        "timed_out": float(sum(int(g.timed_out.sum()) for g in (*sampled, *best))),
    }
    seconds = time.perf_counter() - begin
    return Evaluation(with_prefix({**metrics, "seconds": seconds}, of), seconds, sampled, best)


def collect_rollouts(
    engine: Engine, verifiers: Verifier, request: Request, *, greedy: bool
) -> tuple[tuple[Group, ...], tuple[Group, ...]]:
    """The judged rollouts of a request, and with `greedy` one more of each prompt, with the same limits at temperature
    0. Raises VerifierError when too many verdicts failed.
    """
    limits = request.sampling
    once = Sampling(max_new_tokens=limits.max_new_tokens, temperature=0.0, stop=limits.stop)
    best = replace(request, counts=[1] * len(request.prompts), sampling=once)
    sampled = tuple(collect(engine, verifiers, request))
    at_best = tuple(collect(engine, verifiers, best)) if greedy else ()
    verifiers.check_evaluation([*sampled, *at_best])
    return sampled, at_best


def with_prefix(metrics: dict[str, float], of: str | None) -> dict[str, float]:
    """The metrics by their names in a log: eval/..., or with `of` eval/OF/...."""
    prefix = "eval/" if of is None else f"eval/{of}/"
    return {f"{prefix}{name}": value for name, value in metrics.items()}
