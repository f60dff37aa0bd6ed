"""Every gold of the seven files is accepted when it is given as the answer, through the pool; the rest is named."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from winnow.rewards.math_equivalence import algebra

sys.path.insert(0, str(Path(__file__).parents[4] / "benchmarks"))
from golds import FILES, KNOWN, check

ROWS = {
    "gsm8k_train": 7473, "gsm8k_test": 1319, "math500": 500, "minerva_math": 272, "olympiad_bench": 675,
    "aime24": 30, "amc23": 40,
}  # fmt: skip


@pytest.mark.skipif(not algebra.available(), reason="math-verify is not installed")
@pytest.mark.parametrize("name", FILES)
def test_golds_verify_against_themselves(name: str, test_data: Path) -> None:
    problems, failures = check(name, test_data)
    assert len(problems) == ROWS[name]
    assert {(name, failure.gold) for failure in failures} == {key for key in KNOWN if key[0] == name}
    assert len(failures) <= 0.01 * len(problems)
