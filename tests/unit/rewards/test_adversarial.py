"""Answers written to hang, crash or fool the verifier, each once."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest
from adversarial import COMPLETIONS, GROUND_TYPES, PAYLOADS, alive, in_thread, injected, room, timed

from winnow.rewards.math_equivalence import algebra
from winnow.verify.verifiers import Verifiers

LIMIT_SECONDS = 0.3  # for one answer; an honest one that a busy machine delays is judged again

pytestmark = pytest.mark.skipif(not algebra.available(), reason="math-verify is not installed")


@pytest.fixture(scope="module", params=GROUND_TYPES)
def verifiers(request: pytest.FixtureRequest) -> Iterator[Verifiers]:
    """One pool for all of them, so that each also shows that the ones before left it alive."""
    if request.param == "with gmpy2" and importlib.util.find_spec("gmpy2") is None:
        pytest.skip("gmpy2 is not installed")
    with pytest.MonkeyPatch.context() as patch, room(limit_seconds=LIMIT_SECONDS) as shared:
        for name, value in GROUND_TYPES[request.param].items():
            patch.setenv(name, value)
        timed(shared, "")  # starts the workers
        yield shared


def test_there_are_enough() -> None:
    assert len(COMPLETIONS) >= 60
    assert len(PAYLOADS) == 10


def test_every_answer_returns_unpaid_and_leaves_the_pool_alive(verifiers: Verifiers) -> None:
    for name, completion in COMPLETIONS.items():
        judge = timed if len(name) % 2 else lambda *of: in_thread(lambda: timed(*of))
        outcome, _ = judge(verifiers, completion)
        assert outcome.correct is not True, name
    assert alive(verifiers)


def test_no_payload_runs(verifiers: Verifiers, tmp_path: Path) -> None:
    assert injected(verifiers, tmp_path) == []
