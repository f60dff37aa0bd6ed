from __future__ import annotations

import threading

import pytest

from winnow.background import begun


def test_work_is_done_in_a_thread_of_its_name_which_cannot_keep_the_process_alive():
    go, seen = threading.Event(), []

    def work():
        go.wait()
        seen.append(threading.current_thread())
        return 3

    outcome = begun(work, name="winnow-test")
    assert not outcome.done()
    go.set()

    assert outcome.result() == 3
    assert (seen[0].name, seen[0].daemon) == ("winnow-test", True)


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt()])
def test_who_waits_gets_the_error(error):
    def fail():
        raise error

    assert begun(fail, name="winnow-test").exception() is error


def test_without_a_thread_left_the_work_is_done_at_once(monkeypatch):
    def refused(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    here = threading.current_thread()

    outcome = begun(threading.current_thread, name="winnow-test")

    assert outcome.done()
    assert outcome.result() is here
