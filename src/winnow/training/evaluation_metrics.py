"""The numbers of an evaluation, from judged rollouts by problem. A verifier that failed is in none of the means."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from winnow.algos.estimators import majority_at_k, pass_at_k, standard_error
from winnow.records import FloatArray
from winnow.rewards.math_equivalence import expression
from winnow.rewards.math_equivalence.latex import readable
from winnow.rewards.math_equivalence.strict import canonical
from winnow.training.judged import Judged

Problem = Sequence[Judged]  # its rollouts


class Votes(NamedTuple):
    """How often a problem's rollouts, those that were judged, gave which answer."""

    right: int  # right answers are one, however they are spelled
    wrong: tuple[int, ...]  # each wrong one; the same where their numbers or, without one, their canonical texts are
    silent: int  # rollouts without an answer that could be read
    untold: int = 0  # wrong ones whose answer the reward does not tell

    @property
    def verified(self) -> int:
        return self.right + sum(self.wrong) + self.silent + self.untold


def per_problem(sampled: Sequence[Problem], ballots: Sequence[Votes], k: int) -> dict[str, FloatArray]:
    """{metric: [problems]}, NaN for a problem without a verdict, and for pass@k and maj@k for one with fewer than k.

    The metric of an evaluation is the mean over problems of what is a number here.
    """
    return {
        "accuracy_sampled": _share(sampled, lambda one: bool(one.correct)),
        "formatted": _share(sampled, lambda one: one.formatted),
        "correct_and_formatted": _share(sampled, lambda one: one.category == "correct"),
        f"pass_at_{k}": pass_at(ballots, k),
        f"maj_at_{k}": maj_at(ballots, k),
    }


def pass_at(ballots: Sequence[Votes], k: int) -> FloatArray:
    """[problems] unbiased pass@k of each; NaN where it has fewer than k verdicts."""
    counts = np.array([(ballot.right, ballot.verified) for ballot in ballots], dtype=np.int64).reshape(-1, 2)
    return pass_at_k(counts[:, 0], counts[:, 1], k)


def maj_at(ballots: Sequence[Votes], k: int) -> FloatArray:
    """[problems] expected score of the answer that most of k rollouts give; NaN for a problem with fewer verdicts.

    Where the reward does not tell the answer of a wrong rollout, all are NaN: a wrong answer that most rollouts agree
    on could not be seen, and problems without a wrong rollout alone would say nothing of the others.
    """
    if not majority_is_known(ballots):
        return np.full(len(ballots), np.nan)
    return np.array([majority_at_k(b.right, b.wrong, b.silent, k) for b in ballots], dtype=np.float64)


def majority_is_known(ballots: Sequence[Votes]) -> bool:
    """Whether the answer of every wrong rollout is told: a reward that returns a number tells none."""
    return not any(ballot.untold for ballot in ballots)


def votes(problem: Problem) -> Votes:
    """The votes of a problem's rollouts. Comparing how answers are written takes time: count them once."""
    verified = [one for one in problem if one.verified]
    right = sum(bool(one.correct) for one in verified)
    wrong = Counter(_spelling(one.answer) for one in verified if not one.correct and one.answer is not None)
    untold = sum(one.kind == "wrong" and one.answer is None for one in verified)
    return Votes(right, tuple(wrong.values()), len(verified) - right - wrong.total() - untold, untold)


def sampled_metrics(sampled: Sequence[Problem], values: Mapping[str, FloatArray]) -> dict[str, float]:
    """Of the rollouts of each problem, by name; `values` as `per_problem` gives them."""
    rollouts = [one for problem in sampled for one in problem]
    found = {name: of_each[~np.isnan(of_each)] for name, of_each in values.items()}
    verified = [one for one in rollouts if one.verified]
    metrics = {
        "length_mean": float(np.mean([one.length for one in rollouts])),
        "truncated": float(np.mean([one.cut for one in rollouts])),
        "failed": float(len(rollouts) - len(verified)),
        **{name: float(of_each.mean()) for name, of_each in found.items() if len(of_each)},
    }
    if verified:
        metrics["accuracy_sampled_sem"] = standard_error(found["accuracy_sampled"])
        metrics["reward_mean"] = float(np.mean([one.reward for one in verified]))
        metrics |= {f"part/{name}": value for name, value in _parts(verified).items()}
    return metrics


def greedy_accuracy(greedy: Sequence[Problem]) -> FloatArray:
    """[problems] 1 or 0; NaN where the verifier failed."""
    return _share(greedy, lambda one: bool(one.correct))


def greedy_metrics(greedy: Sequence[Problem]) -> dict[str, float]:
    """Of one greedy rollout of each problem."""
    correct = greedy_accuracy(greedy)
    known = correct[~np.isnan(correct)]
    return {"accuracy_greedy": float(known.mean())} if len(known) else {}


def _share(problems: Sequence[Problem], holds: Callable[[Judged], bool]) -> FloatArray:
    shares = ([holds(one) for one in problem if one.verified] for problem in problems)
    return np.array([np.mean(of_one) if of_one else np.nan for of_one in shares], dtype=np.float64)


def _parts(verified: Problem) -> Mapping[str, float]:
    """The mean of each named part of the reward, over the rollouts that have it."""
    names = dict.fromkeys(name for one in verified for name in one.parts)
    return {name: float(np.mean([one.parts[name] for one in verified if name in one.parts])) for name in names}


def _spelling(answer: str) -> str:
    if not readable(answer):
        return answer
    text = canonical(answer)
    number = expression.number(text)
    return text.lower() if number is None else str(number)
