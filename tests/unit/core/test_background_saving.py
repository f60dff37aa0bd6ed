from __future__ import annotations

import threading
from concurrent.futures import Future
from pathlib import Path

import pytest

from winnow.background import BackgroundWork
from winnow.core.progress import Saving
from winnow.state.checkpoint import Checkpoint


def saved(step: int) -> Checkpoint:
    return Checkpoint(Path(f"step-{step}"), step)


def test_the_outcome_of_a_save_is_passed_on_in_the_waiting_thread() -> None:
    saving, may_end, outcomes = Saving(), threading.Event(), []

    def save() -> Checkpoint:
        may_end.wait()
        return saved(1)

    def on_saved(outcome: Future[Checkpoint]) -> None:
        outcomes.append((outcome.result(), threading.current_thread()))

    saving.wait()  # no save is in progress
    saving.begin(save, on_saved)
    assert outcomes == []
    may_end.set()
    saving.wait()
    saving.wait()
    assert outcomes == [(saved(1), threading.current_thread())]


def test_a_save_starts_after_the_outcome_of_the_one_before() -> None:
    saving, order = Saving(), list[str]()
    may_end = threading.Event()

    def first() -> Checkpoint:
        may_end.wait()
        order.append("first saved")
        return saved(1)

    def second() -> Checkpoint:
        order.append("second saved")
        return saved(2)

    saving.begin(first, lambda outcome: order.append("first passed on"))
    may_end.set()
    saving.begin(second, lambda outcome: order.append("second passed on"))
    saving.wait()
    assert order == ["first saved", "first passed on", "second saved", "second passed on"]


@pytest.mark.parametrize("error", [OSError("full"), KeyboardInterrupt()])
def test_an_exception_of_a_save_is_its_outcome_and_the_next_may_start(error: BaseException) -> None:
    saving, outcomes = Saving(), list[object]()

    def save() -> Checkpoint:
        raise error

    saving.begin(save, lambda outcome: outcomes.append(outcome.exception()))
    saving.begin(lambda: saved(2), lambda outcome: outcomes.append(outcome.result().step))
    saving.wait()
    assert outcomes == [error, 2]


def test_without_a_thread_the_save_runs_in_the_calling_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    saving, steps = Saving(), list[int]()
    monkeypatch.setattr(threading.Thread, "start", refused)
    saving.begin(lambda: saved(1), lambda outcome: steps.append(outcome.result().step))
    saving.wait()
    assert steps == [1]


def test_a_save_continues_after_an_interrupted_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal may raise `Leave` in the middle of the wait."""
    saving, steps = Saving(), list[int]()
    may_end = threading.Event()

    def save() -> Checkpoint:
        may_end.wait()
        return saved(1)

    def left(self: object, timeout: float | None = None) -> None:
        raise KeyboardInterrupt

    saving.begin(save, lambda outcome: steps.append(outcome.result().step))
    with monkeypatch.context() as signalled:
        signalled.setattr(BackgroundWork, "wait", left)
        with pytest.raises(KeyboardInterrupt):
            saving.wait()
    may_end.set()
    saving.wait()
    assert steps == [1]


def test_a_save_is_waited_for_although_a_signal_interrupted_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run folder's lock is released afterwards."""
    saving, may_end, runs, steps = Saving(), threading.Event(), threading.Event(), list[int]()
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        runs.wait()
        raise KeyboardInterrupt

    def save() -> Checkpoint:
        runs.set()
        may_end.wait()
        return saved(1)

    with monkeypatch.context() as signalled:
        signalled.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            saving.begin(save, lambda outcome: steps.append(outcome.result().step))
    threading.Timer(0.05, may_end.set).run()
    saving.wait()
    assert steps == [1]


def test_a_save_that_never_began_has_no_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(thread: threading.Thread) -> None:
        raise KeyboardInterrupt

    saving, steps = Saving(), list[int]()
    with monkeypatch.context() as signalled:
        signalled.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            saving.begin(lambda: saved(1), lambda outcome: steps.append(outcome.result().step))
    saving.wait()
    saving.begin(lambda: saved(2), lambda outcome: steps.append(outcome.result().step))
    saving.wait()
    assert steps == [2]
