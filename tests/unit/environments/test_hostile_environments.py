"""Hostile environments in real workers: the rollout fails with its cause, and the next one is answered."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from refusals import refused
from winnow.environments.replay import LONGEST
from winnow.errors import VerifierError
from winnow.records import Group, Outcome, Prompt, Reply, Rollout
from winnow.verify.verifiers import Verifiers

HERE = Path(__file__).parent
PROMPT = Prompt(id="p", tokens=np.array([1]), text="?", answer="1", task="t")
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
GOES_ON = {"endless": "more", "fork": "parent", "surrogate": "?", "write": "written"}


def verifiers(how: str, *, max_turns: int = 8) -> Verifiers:
    spec = {"environment": "hostile.py:act", "options": {"how": how}, "max_turns": max_turns}
    return Verifiers(spec, workers=1, timeout_seconds=LIMIT, memory_mb=512, max_failure_share=1.0, base=HERE)


def rollout(*turns: str, index: int = 0) -> Rollout:
    none = np.zeros(0)
    return Rollout(
        index=index, tokens=none.astype(np.int64), logprobs=none, text="", finish="stop", version=0, turns=turns
    )


def ask(judges: Verifiers, *turns: str) -> Outcome | Reply:
    return judges.answer(judges.request(PROMPT, rollout(*turns)))


@pytest.fixture
def playing(request: pytest.FixtureRequest) -> Iterator[Verifiers]:
    with verifiers(request.param) as judges:
        yield judges


@pytest.mark.parametrize(("playing", "cause"), FAILS.items(), indirect=["playing"])
def test_the_rollout_fails_with_its_cause_and_others_go_on(playing: Verifiers, cause: str) -> None:
    assert isinstance(ask(playing, "a"), Reply)  # a first verdict may take ten times the limit
    failed = ask(playing, "a", "fine", "b")
    assert isinstance(failed, Outcome)
    assert (failed.kind, failed.cause, failed.correct) == ("failed", cause, None)
    healthy = ask(playing, "a")
    assert isinstance(healthy, Reply)
    assert (healthy.text, healthy.seconds > 0) == ("fine", True)


@pytest.mark.parametrize(("playing", "text"), GOES_ON.items(), indirect=["playing"])
def test_a_text_is_a_text(playing: Verifiers, text: str) -> None:
    reply = ask(playing, "a", "fine", "b")
    assert isinstance(reply, Reply)
    assert reply.text == text


def test_endless_yields_end_at_the_limit_of_turns() -> None:
    with verifiers("endless", max_turns=3) as judges:
        assert isinstance(ask(judges, "a", "fine", "b"), Reply)
        last = ask(judges, "a", "fine", "b", "more", "c")
        assert isinstance(last, Outcome)
        assert last.cause == "malformed"


def test_a_generator_that_reads_the_clock_is_found() -> None:
    with verifiers("clock") as judges:
        text = ask(judges, "a", "fine", "b")
        assert isinstance(text, Reply)
        again = ask(judges, "a", "fine", "b", text.text, "c")
        assert isinstance(again, Outcome)
        assert again.cause == "malformed"


def test_a_second_outcome_is_an_error_that_names_the_environment() -> None:
    paid = Outcome(reward=0.5, correct=False, kind="wrong")
    with verifiers("endless") as judges, refused(VerifierError, "hostile.py:act", code="verifier.not_repeatable"):
        judges.check_repeats([(PROMPT, rollout("a", "fine", "b"), paid)])
    with verifiers("harmless") as judges:
        right = ask(judges, "a", "fine", "b")
        assert isinstance(right, Outcome)
        judges.check_repeats([(PROMPT, rollout("a", "fine", "b"), right)])
        judges.check_repeats([(PROMPT, rollout("a", "fine", "b"), replace(paid, late=True))])


def test_a_settled_outcome_is_not_judged_again() -> None:
    """The environment hangs, so a second judgement would be a timeout."""
    with verifiers("hang") as judges:
        played, paid = rollout("a", "fine", "b"), Outcome(reward=0.5, correct=False, kind="wrong")
        judges.settle(PROMPT, played, paid)
        judges.submit(PROMPT, played)
        (group,) = judges.collect([Group(prompt=PROMPT, rollouts=(played,))])
        assert group.outcomes == (paid,)


def test_a_finished_rollout_on_which_the_environment_would_go_on_fails() -> None:
    with verifiers("endless") as judges:
        (group,) = judges.collect([Group(prompt=PROMPT, rollouts=(rollout("a"),))])
        assert group.outcomes is not None
        assert group.outcomes[0].cause == "malformed"
    assert LONGEST < 100_000_000
