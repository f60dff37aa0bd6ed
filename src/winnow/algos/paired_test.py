"""Test whether two models differ on the same problems. It was chosen by simulated false alarms and power:
docs/statistics.md.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from winnow.records import FloatArray, IntArray
from winnow.seeds import generator

_FINEST = 1024  # steps per 1, at most, for which the distribution is exact
_DRAWS = 100_000
_AT_ONCE = 2_000
_ROUNDING = 1e-9


class PairedTest(NamedTuple):
    """Result of a test on the problems; the difference is the first model's mean minus the second's."""

    p_value: float  # two-sided
    difference: float
    won: int  # problems on which the first is better
    lost: int
    tied: int


def paired_test(first: FloatArray, second: FloatArray, *, seed: int) -> PairedTest:
    """Test whether two models' means over the same [P] problems differ; a number in [0, 1] per problem and model.

    If they do not, each problem's difference is as likely to have the other sign (Fisher 1935). The p-value is the
    probability that random signs give a sum at least as far from 0, where equally far counts half (the mid-p-value:
    Lancaster 1961, JASA 56, 223); 1 where there is no difference. With one sample per problem it is McNemar's mid-p
    test (Fagerland et al. 2013, BMC Med. Res. Methodol. 13, 91).

    The distribution is exact where the differences are multiples of one step, 1/1024 or coarser, as with the same
    number of samples for all problems. Otherwise it is drawn at random from `seed`. Raises ValueError for different
    numbers of problems, and for values that are not finite.
    """
    if first.shape != second.shape or not np.isfinite(first - second).all():
        raise ValueError("paired_test compares finite numbers of the same problems")
    differences = np.asarray(first - second, dtype=np.float64)
    differences[np.abs(differences) < _ROUNDING] = 0.0
    won, lost = int((differences > 0).sum()), int((differences < 0).sum())
    mean = float(differences.mean()) if len(differences) else 0.0
    return PairedTest(_p_value(differences, seed), mean, won, lost, len(differences) - won - lost)


def _p_value(differences: FloatArray, seed: int) -> float:
    if abs(float(differences.sum())) < _ROUNDING:
        return 1.0
    steps = _steps(differences)
    return _drawn(differences, seed) if steps is None else _exact(steps)


def _steps(differences: FloatArray) -> IntArray | None:
    """[P] in units of the coarsest step 1/n of which all are multiples; None where there is none."""
    for per_one in range(1, _FINEST + 1):
        steps = differences * per_one
        whole = np.rint(steps)
        if np.abs(steps - whole).max(initial=0.0) < _ROUNDING * per_one:
            return whole.astype(np.int64)
    return None


def _exact(steps: IntArray) -> float:
    """The mid-p-value from the distribution of the sum over all signs, computed problem by problem."""
    sizes = np.abs(steps[steps != 0])
    chance = np.zeros(int(sizes.sum()) + 1)  # probability of each sum of the sizes with a plus sign
    chance[0] = 1.0
    for size in sizes:
        chance[size:] = (chance[size:] + chance[:-size]) / 2
        chance[:size] /= 2
    distance = np.abs(2 * np.arange(len(chance)) - sizes.sum())
    seen = abs(int(steps.sum()))
    return float(chance[distance > seen].sum() + chance[distance == seen].sum() / 2)


def _drawn(differences: FloatArray, seed: int) -> float:
    """The mid-p-value from random signs; the observed signs count as a draw, so it is never 0 (Phipson, Smyth 2010)."""
    sizes, seen, rng = np.abs(differences), abs(float(differences.sum())), generator("paired_test", seed)
    farther, same = 0, 1
    for _ in range(_DRAWS // _AT_ONCE):
        signs = rng.integers(0, 2, (_AT_ONCE, len(sizes)), dtype=np.int8)
        distance = np.abs((2.0 * signs - 1.0) @ sizes)
        farther += int((distance > seen + _ROUNDING).sum())
        same += int((np.abs(distance - seen) <= _ROUNDING).sum())
    return (farther + same / 2) / (_DRAWS + 1)
