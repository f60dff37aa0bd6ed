from __future__ import annotations

import os
import signal
import threading

import pytest

from winnow.core import stop_signals as module
from winnow.core.stop_signals import SIGNALS, StoppedBySignal, stop_signals


@pytest.fixture(autouse=True)
def handled():
    """The signals that reach the handlers from before; these record them."""
    numbers = []
    before = {number: signal.signal(number, lambda number, frame: numbers.append(number)) for number in SIGNALS}
    yield numbers
    for number, handler in before.items():
        signal.signal(number, handler)


def send(number):
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_requests_a_stop_prints_that_and_has_no_other_effect(number, handled, capfd):
    with stop_signals(now=False) as stop:
        assert not stop.requested
        send(number)
        assert stop.requested
    assert capfd.readouterr().err.encode() == module.NOTICE
    assert handled == []
    send(number)
    assert handled == [number], "afterwards the handlers are those from before"


@pytest.mark.parametrize(("number", "then"), [(signal.SIGTERM, 1), (signal.SIGINT, 1), (signal.SIGHUP, 0)])
def test_a_second_signal_has_its_usual_effect_except_sighup(number, then, handled):
    with stop_signals(now=True) as stop:
        send(number)
        send(number)
    assert stop.requested
    assert handled == [number] * then


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_with_a_launcher_a_repetition_within_three_seconds_is_ignored(number, handled, monkeypatch):
    seconds = [10.0, 12.9, 13.0]
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(module.time, "monotonic", lambda: seconds.pop(0))
    with stop_signals(now=False) as stop:
        send(number)
        send(number)
        assert (stop.requested, handled) == (True, [])
        send(number)
    assert handled == [number]


def test_with_now_a_signal_ends_only_a_block_that_permits_it():
    with stop_signals(now=True) as stop:
        with pytest.raises(StoppedBySignal), stop.may_leave(lambda: True):
            send(signal.SIGTERM)
        assert stop.requested
    for now, may in ((True, False), (False, True)):
        with stop_signals(now=now) as stop, stop.may_leave(lambda may=may: may):
            send(signal.SIGTERM)
        assert stop.requested
    with stop_signals(now=True) as stop:
        with stop.may_leave(lambda: True):
            pass
        send(signal.SIGTERM)  # between two steps
        assert stop.requested


def test_a_leave_is_not_an_exception_that_handlers_of_failures_catch():
    assert not issubclass(StoppedBySignal, Exception)


def test_a_signal_that_was_ignored_before_stays_ignored(handled):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with stop_signals(now=False) as stop:
        send(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    assert (stop.requested, handled) == (False, [])


def test_in_another_thread_than_the_main_one_no_signal_is_caught():
    requests = []

    def run():
        with stop_signals(now=True) as stop:
            requests.append(stop.requested)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert requests == [False]
