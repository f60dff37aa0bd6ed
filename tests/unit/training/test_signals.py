from __future__ import annotations

import os
import signal
import threading

import pytest

from winnow.training import signals
from winnow.training.signals import SIGNALS, Leave, stop_signals


@pytest.fixture(autouse=True)
def heard():
    """What acts as usual, here: it is written down."""
    found = []
    before = {number: signal.signal(number, lambda number, frame: found.append(number)) for number in SIGNALS}
    yield found
    for number, handler in before.items():
        signal.signal(number, handler)


def send(number):
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_asks_and_is_not_acted_upon(number, heard):
    with stop_signals(now=False) as stop:
        assert not stop.asked
        send(number)
        assert stop.asked
    assert heard == []
    send(number)
    assert heard == [number], "afterwards everything is as before"


@pytest.mark.parametrize(("number", "then"), [(signal.SIGTERM, 1), (signal.SIGINT, 1), (signal.SIGHUP, 0)])
def test_a_second_one_acts_as_usual_unless_the_terminal_closed(number, then, heard):
    with stop_signals(now=True) as stop:
        send(number)
        send(number)
    assert stop.asked
    assert heard == [number] * then


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_among_ranks_that_a_launcher_signals_too_a_repetition_is_ignored_for_three_seconds(number, heard, monkeypatch):
    seconds = [10.0, 12.9, 13.0]
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(os, "getsid", lambda process: os.getpid() + 1)
    monkeypatch.setattr(signals.time, "monotonic", lambda: seconds.pop(0))
    with stop_signals(now=False) as stop:
        send(number)
        send(number)
        assert (stop.asked, heard) == (True, [])
        send(number)
    assert heard == [number]


def test_a_rank_with_a_session_of_its_own_is_signalled_once_and_a_second_one_acts(heard, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(os, "getsid", lambda process: os.getpid())
    with stop_signals(now=False):
        send(signal.SIGTERM)
        send(signal.SIGTERM)
    assert heard == [signal.SIGTERM]


def test_now_leaves_what_may_be_left_and_nothing_else():
    with stop_signals(now=True) as stop:
        with pytest.raises(Leave), stop.may_leave(lambda: True):
            send(signal.SIGTERM)
        assert stop.asked
    for now, may in ((True, False), (False, True)):
        with stop_signals(now=now) as stop, stop.may_leave(lambda may=may: may):
            send(signal.SIGTERM)
        assert stop.asked
    with stop_signals(now=True) as stop:
        with stop.may_leave(lambda: True):
            pass
        send(signal.SIGTERM)  # between two steps
        assert stop.asked


def test_no_handler_of_failures_takes_a_leave_for_one():
    assert not issubclass(Leave, Exception)


def test_what_is_ignored_stays_ignored(heard):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with stop_signals(now=False) as stop:
        send(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    assert (stop.asked, heard) == (False, [])


def test_off_the_main_thread_there_is_nothing_to_catch():
    asked = []

    def run():
        with stop_signals(now=True) as stop:
            asked.append(stop.asked)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert asked == [False]
