"""Estimates of pass rates, for G prompts at once, and how well they predicted.

An estimate is made from counts: `correct` and `trials` [G], the verified rollouts of a prompt and the correct ones
among them. The counts of a probe are integers; those of a history may be decayed, so they are any numbers with
0 <= correct <= trials. Every allocator and sampler can use the same estimate:

    rates           correct / trials; NaN without trials
    posterior_mean  the mean of Beta(prior + correct, prior + wrong); 1/2 without trials
    posterior_sd    its standard deviation
    posterior_quantile

`prior` is the same for both outcomes: 1/2 is Jeffreys's prior, 1 the uniform one. The functions raise ValueError for
arrays of different shapes, and for counts that are not finite with 0 <= correct <= trials.
"""

from __future__ import annotations

import numpy as np

from winnow.budget.arguments import LARGEST, check_alike, check_number, check_numbers
from winnow.records import FloatArray, IntArray

JEFFREYS = 0.5
Numbers = FloatArray | IntArray


def rates(correct: Numbers, trials: Numbers) -> FloatArray:
    """[G] correct / trials; NaN without trials."""
    _check_counts(correct, trials)
    return np.asarray(np.where(trials > 0, correct / np.where(trials > 0, trials, 1.0), np.nan), dtype=np.float64)


def add_visit(
    correct: FloatArray, trials: FloatArray, new_correct: Numbers, new_trials: Numbers, *, decay: float
) -> tuple[FloatArray, FloatArray]:
    """The counts ([G] correct, [G] trials) after one more visit of each prompt: earlier rollouts, which are of older
    policies, count `decay` times as much as before. Raises ValueError for a decay outside [0, 1].

    >>> add_visit(np.array([2.0]), np.array([4.0]), np.array([8.0]), np.array([8.0]), decay=0.5)
    (array([9.]), array([10.]))
    """
    check_number("decay", decay, least=0.0, most=1.0)
    _check_counts(correct, trials)
    _check_counts(new_correct, new_trials)
    check_alike(trials=trials, new_trials=new_trials)
    return decay * correct + new_correct, decay * trials + new_trials


def posterior_mean(correct: FloatArray, trials: FloatArray, *, prior: float = JEFFREYS) -> FloatArray:
    """[G] (correct + prior) / (trials + 2 prior), the mean of the Beta posterior. With prior 0 it is `rates`.

    >>> posterior_mean(np.array([0.0, 4.0]), np.array([0.0, 8.0]))
    array([0.5, 0.5])
    """
    check_number("prior", prior, least=0.0)
    if prior == 0:
        return rates(correct, trials)
    _check_counts(correct, trials)
    return np.asarray((correct + prior) / (trials + 2 * prior), dtype=np.float64)


def posterior_sd(correct: FloatArray, trials: FloatArray, *, prior: float = JEFFREYS) -> FloatArray:
    """[G] the standard deviation of the Beta posterior: sqrt(m (1 - m) / (trials + 2 prior + 1)) for the mean m."""
    check_number("prior", prior, above=0.0)
    mean = posterior_mean(correct, trials, prior=prior)
    return np.asarray(np.sqrt(mean * (1 - mean) / (trials + 2 * prior + 1)), dtype=np.float64)


def posterior_quantile(correct: FloatArray, trials: FloatArray, share: float, *, prior: float = JEFFREYS) -> FloatArray:
    """[G] the pass rate that the posterior exceeds with probability 1 - `share`. Needs scipy."""
    from scipy.special import betaincinv  # the one function here that numpy alone does not have

    check_number("share", share, least=0.0, most=1.0)
    check_number("prior", prior, above=0.0)
    _check_counts(correct, trials)
    return np.asarray(betaincinv(correct + prior, trials - correct + prior, share), dtype=np.float64)


def brier_score(pass_rates: FloatArray, correct: FloatArray, trials: FloatArray) -> float:
    """Mean over rollouts of (p - r)^2: p is the estimate for the rollout's prompt, r 1 if it was correct and else 0.

    Brier 1950 (Monthly Weather Review 78, 1). 0 is perfect; p = 1/2 for all prompts has 1/4. With the true pass rates
    it is the mean of p (1 - p), which is not 0: compare estimates on the same rollouts. Prompts without an estimate
    (NaN) are not included; NaN where no rollout is left.

    >>> brier_score(np.array([0.5, np.nan, 1.0]), np.array([1.0, 3.0, 3.0]), np.array([4.0, 4.0, 4.0]))
    0.25
    """
    _check_counts(correct, trials)
    check_numbers("pass_rates", pass_rates, least=0.0, most=1.0, size=len(trials), unknown=True)
    known = ~np.isnan(pass_rates) & (trials > 0)
    p, right, wrong = pass_rates[known], correct[known], (trials - correct)[known]
    rollouts = float(trials[known].sum())
    return float((right * (1 - p) ** 2 + wrong * p**2).sum() / rollouts) if rollouts else float("nan")


def _check_counts(correct: Numbers, trials: Numbers) -> None:
    check_alike(correct=correct, trials=trials)
    right, all_ = np.asarray(correct), np.asarray(trials)
    if not np.all((right >= 0) & (right <= all_) & (all_ <= LARGEST)):
        raise ValueError("counts must be finite, and 0 <= correct <= trials")
