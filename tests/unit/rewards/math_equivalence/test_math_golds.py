"""The golds of the seven files are accepted when they are given as the answer, through the pool."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from winnow.records import Problem
from winnow.registry import resolve
from winnow.rewards.math_equivalence import algebra
from winnow.tasks.jsonl import jsonl
from winnow.tasks.mathematics import gsm8k, math500
from winnow.verify.verifiers import Verifiers
from winnow_lab.audit import failing_golds, phrasing

Load = Callable[[Path], list[Problem]]


def _jsonl(name: str, *, boxed: bool = False) -> Load:
    return lambda folder: jsonl(
        "test", test=str(folder / f"{name}.jsonl"), question="problem", extract="boxed" if boxed else None
    )


def _gsm8k_train(folder: Path) -> list[Problem]:
    return gsm8k("train", path=str(folder)) + gsm8k("validation", path=str(folder))


FILES: dict[str, tuple[str, int, Load]] = {  # reward, problems
    "gsm8k_train": ("gsm8k", 7473, _gsm8k_train),
    "gsm8k_test": ("gsm8k", 1319, lambda folder: gsm8k("test", path=str(folder))),
    "math500": ("boxed", 500, lambda folder: math500("test", path=str(folder))),
    "minerva_math": ("boxed", 272, _jsonl("minerva_math", boxed=True)),
    "olympiad_bench": ("boxed", 675, _jsonl("olympiad_bench")),
    "aime24": ("boxed", 30, _jsonl("aime24")),
    "amc23": ("boxed", 40, _jsonl("amc23")),
}


@pytest.fixture(scope="module")
def verifiers_of() -> Iterator[Callable[[str], Verifiers]]:
    """One worker for each reward, for all files: what it imports takes a second."""
    with ExitStack() as stack:
        limits = {"timeout_seconds": 5.0, "memory_mb": 2048, "max_failure_share": 1.0}
        yield functools.cache(lambda reward: stack.enter_context(Verifiers({"use": reward}, workers=1, **limits)))


FEW = 100  # golds of each file that are judged by default


@pytest.mark.skipif(not algebra.available(), reason="math-verify is not installed")
@pytest.mark.parametrize("name", FILES)
def test_some_golds_verify_against_themselves(
    name: str, test_data: Path, verifiers_of: Callable[[str], Verifiers]
) -> None:
    """From the whole of the file, at equal distances."""
    reward, number, load = FILES[name]
    problems = load(test_data)
    assert len(problems) == number
    some = problems[:: -(-number // FEW)]
    assert failing_golds(some, phrasing(resolve("reward", reward)), verifiers_of(reward)) == ([], 1.0)


@pytest.mark.slow  # 10,309 golds; a hundred of each file are above, and odd ones of all files in test_math_classes.py
@pytest.mark.skipif(not algebra.available(), reason="math-verify is not installed")
@pytest.mark.parametrize("name", FILES)
def test_golds_verify_against_themselves(name: str, test_data: Path, verifiers_of: Callable[[str], Verifiers]) -> None:
    reward, _, load = FILES[name]
    assert failing_golds(load(test_data), phrasing(resolve("reward", reward)), verifiers_of(reward)) == ([], 1.0)
