from __future__ import annotations

import threading
from concurrent.futures import Future
from pathlib import Path

import pytest

from winnow.state.checkpoint import Checkpoint
from winnow.training.saving import Saving


def saved(step: int) -> Checkpoint:
    return Checkpoint(Path(f"step-{step}"), step)


def test_a_save_is_under_way_until_it_is_waited_for_and_told_in_the_waiting_thread() -> None:
    saving, may_end, told = Saving(), threading.Event(), []

    def save() -> Checkpoint:
        may_end.wait()
        return saved(1)

    def tell(outcome: Future[Checkpoint]) -> None:
        told.append((outcome.result(), threading.current_thread()))

    saving.wait()  # nothing is under way
    saving.begin(save, tell)
    assert told == []
    may_end.set()
    saving.wait()
    saving.wait()
    assert told == [(saved(1), threading.current_thread())]


def test_the_next_save_begins_after_the_one_before_it_has_ended_and_is_told() -> None:
    saving, order = Saving(), list[str]()
    may_end = threading.Event()

    def first() -> Checkpoint:
        may_end.wait()
        order.append("first saved")
        return saved(1)

    def second() -> Checkpoint:
        order.append("second saved")
        return saved(2)

    saving.begin(first, lambda outcome: order.append("first told"))
    may_end.set()
    saving.begin(second, lambda outcome: order.append("second told"))
    saving.wait()
    assert order == ["first saved", "first told", "second saved", "second told"]


@pytest.mark.parametrize("error", [OSError("full"), KeyboardInterrupt()])
def test_what_a_save_raises_is_an_outcome_and_the_next_one_may_begin(error: BaseException) -> None:
    saving, told = Saving(), list[object]()

    def save() -> Checkpoint:
        raise error

    saving.begin(save, lambda outcome: told.append(outcome.exception()))
    saving.begin(lambda: saved(2), lambda outcome: told.append(outcome.result().step))
    saving.wait()
    assert told == [error, 2]


def test_where_the_system_gives_no_thread_the_save_is_done_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    saving, told = Saving(), list[int]()
    monkeypatch.setattr(threading.Thread, "start", refused)
    saving.begin(lambda: saved(1), lambda outcome: told.append(outcome.result().step))
    saving.wait()
    assert told == [1]


def test_a_save_is_still_under_way_after_a_wait_that_was_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `signals.Leave` leaves it, which a signal raises in the middle."""
    saving, told = Saving(), list[int]()
    may_end = threading.Event()

    def save() -> Checkpoint:
        may_end.wait()
        return saved(1)

    def left(self: object, timeout: float | None = None) -> None:
        raise KeyboardInterrupt

    saving.begin(save, lambda outcome: told.append(outcome.result().step))
    with monkeypatch.context() as signalled:
        signalled.setattr(Future, "exception", left)
        with pytest.raises(KeyboardInterrupt):
            saving.wait()
    may_end.set()
    saving.wait()
    assert told == [1]
