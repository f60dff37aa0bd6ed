"""Hostile environments in real workers: the rollout fails with its cause, and the next one is answered."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from forked import fork_supervisors
from refusals import refused
from winnow.environments.replay import LONGEST
from winnow.errors import VerifierError
from winnow.records import Group, Outcome, Prompt, Reply, Rollout
from winnow.verify.verifiers import Verifiers

HERE = Path(__file__).parent
LIMIT = 2.0

FAILS = {
    "huge": "malformed",
    "error": "raised",
    "leave": "raised",
    "door": "raised",
    "memory": "memory",
    "die": "crash",
    "hang": "timeout",
    "spin": "timeout",
    "number": "malformed",
}
# A busy environment takes the limit of a processor's time, too: here "hang" sleeps, and a busy reward is killed by
# default in tests/unit/verify/test_verifiers.py::test_a_hang_is_killed_at_its_limit.
CASES = [pytest.param(how, cause, marks=pytest.mark.slow if how == "spin" else ()) for how, cause in FAILS.items()]
GOES_ON = {"endless": "more", "fork": "parent", "surrogate": "?", "write": "written"}


@pytest.fixture(autouse=True)
def forks(monkeypatch: pytest.MonkeyPatch) -> None:
    fork_supervisors(monkeypatch)


@pytest.fixture(scope="module")
def judges() -> Iterator[Verifiers]:
    """One worker, shared by the tests below, so that each also shows that those before left it usable."""
    with verifiers() as shared:
        yield shared


def verifiers(*, max_turns: int = 8) -> Verifiers:
    spec = {"environment": "hostile.py:act_as_told", "options": {}, "max_turns": max_turns}
    return Verifiers(spec, workers=1, timeout_seconds=LIMIT, memory_mb=512, max_failure_share=1.0, base=HERE)


def prompt(how: str) -> Prompt:
    return Prompt(id=how, tokens=np.array([1]), text="?", answer="1", task="t", meta={"how": how})


def rollout(*turns: str, index: int = 0) -> Rollout:
    none = np.zeros(0)
    return Rollout(
        index=index, tokens=none.astype(np.int64), logprobs=none, text="", finish="stop", version=0, turns=turns
    )


def ask(judges: Verifiers, how: str, *turns: str) -> Outcome | Reply:
    return judges.answer(judges.request(prompt(how), rollout(*turns)))


@pytest.mark.parametrize(("how", "cause"), CASES)
def test_the_rollout_fails_with_its_cause_and_others_go_on(judges: Verifiers, how: str, cause: str) -> None:
    assert isinstance(ask(judges, how, "a"), Reply)  # a first verdict may take ten times the limit
    failed = ask(judges, how, "a", "fine", "b")
    assert isinstance(failed, Outcome)
    assert (failed.kind, failed.cause, failed.correct) == ("failed", cause, None)
    healthy = ask(judges, how, "a")
    assert isinstance(healthy, Reply)
    assert (healthy.text, healthy.seconds > 0) == ("fine", True)


@pytest.mark.parametrize(("how", "text"), GOES_ON.items())
def test_a_text_is_a_text(judges: Verifiers, how: str, text: str) -> None:
    reply = ask(judges, how, "a", "fine", "b")
    assert isinstance(reply, Reply)
    assert reply.text == text


def test_endless_yields_end_at_the_limit_of_turns() -> None:
    with verifiers(max_turns=3) as judges:
        assert isinstance(ask(judges, "endless", "a", "fine", "b"), Reply)
        last = ask(judges, "endless", "a", "fine", "b", "more", "c")
        assert isinstance(last, Outcome)
        assert last.cause == "malformed"


def test_a_generator_that_reads_the_clock_is_found(judges: Verifiers) -> None:
    text = ask(judges, "clock", "a", "fine", "b")
    assert isinstance(text, Reply)
    again = ask(judges, "clock", "a", "fine", "b", text.text, "c")
    assert isinstance(again, Outcome)
    assert again.cause == "malformed"


def test_a_second_outcome_is_an_error_that_names_the_environment(judges: Verifiers) -> None:
    played, paid = rollout("a", "fine", "b"), Outcome(reward=0.5, correct=False, kind="wrong")
    with refused(VerifierError, "hostile.py:act_as_told", code="verifier.not_repeatable"):
        judges.check_repeats([(prompt("endless"), played, paid)])
    right = ask(judges, "harmless", "a", "fine", "b")
    assert isinstance(right, Outcome)
    judges.check_repeats([(prompt("harmless"), played, right)])
    judges.check_repeats([(prompt("harmless"), played, replace(paid, late=True))])


def test_a_settled_outcome_is_not_judged_again(judges: Verifiers) -> None:
    """The environment hangs, so a second judgement would be a timeout."""
    played, paid = rollout("a", "fine", "b"), Outcome(reward=0.5, correct=False, kind="wrong")
    judges.settle(prompt("hang"), played, paid)
    judges.submit(prompt("hang"), played)
    (group,) = judges.collect([Group(prompt=prompt("hang"), rollouts=(played,))])
    assert group.outcomes == (paid,)


def test_a_finished_rollout_on_which_the_environment_would_go_on_fails(judges: Verifiers) -> None:
    (group,) = judges.collect([Group(prompt=prompt("endless"), rollouts=(rollout("a"),))])
    assert group.outcomes is not None
    assert group.outcomes[0].cause == "malformed"
    assert LONGEST < 100_000_000
