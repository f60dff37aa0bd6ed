from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from winnow.background import BackgroundWork


def started(function: Callable[[], object]) -> BackgroundWork[object]:
    work = BackgroundWork(function, name="winnow-test")
    work.start()
    return work


def no_thread(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_work_is_done_in_a_thread_of_its_name_which_cannot_keep_the_process_alive():
    go, seen = threading.Event(), []

    def function():
        go.wait()
        seen.append(threading.current_thread())
        return 3

    work = started(function)
    assert not work.outcome.done()
    go.set()
    work.wait()

    assert work.outcome.result(timeout=0) == 3
    assert (seen[0].name, seen[0].daemon) == ("winnow-test", True)


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt()])
def test_who_waits_gets_the_error(error):
    def fail():
        raise error

    assert started(fail).outcome.exception() is error


def test_a_wait_may_be_limited():
    go = threading.Event()
    work = started(go.wait)
    work.wait(0.01)
    assert not work.outcome.done()
    go.set()
    work.wait()
    assert work.outcome.done()


def test_without_a_thread_left_the_work_is_done_at_once(monkeypatch):
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    here = threading.current_thread()
    work = started(threading.current_thread)
    assert work.outcome.done()
    assert work.outcome.result() is here


def test_without_a_thread_left_a_signal_ends_the_start(monkeypatch):
    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", no_thread)
    work = BackgroundWork(interrupted, name="winnow-test")
    with pytest.raises(KeyboardInterrupt):
        work.start()
    work.wait()
    assert work.outcome.cancelled()


def test_work_that_runs_when_a_signal_interrupts_its_start_is_waited_for(monkeypatch):
    go, runs, start = threading.Event(), threading.Event(), threading.Thread.start

    def function():
        runs.set()
        go.wait()
        return 3

    def interrupted(thread):
        start(thread)
        runs.wait()
        raise KeyboardInterrupt

    work = BackgroundWork(function, name="winnow-test")
    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        work.start()
    threading.Timer(0.05, go.set).run()
    work.wait()
    assert work.outcome.result(timeout=0) == 3


def test_work_that_has_not_begun_when_a_signal_interrupts_its_start_never_begins(monkeypatch):
    threads, called = [], []

    def interrupted(thread):
        threads.append(thread)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", interrupted)
        work = BackgroundWork(lambda: called.append(1), name="winnow-test")
        with pytest.raises(KeyboardInterrupt):
            work.start()
    work.wait()
    work.wait()
    threads[0].start()  # late, as a thread may be
    threads[0].join()

    assert called == []
    assert work.outcome.cancelled()
