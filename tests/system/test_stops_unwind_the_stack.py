"""Signals that ask us to stop."""

import os
import signal
import threading

import pytest

from codeneedle.system.signals import (
    catching_stop_request,
    holding_signals,
    interrupting_on_end_signals,
)


@pytest.fixture(autouse=True)
def unchanged_handlers():
    """Every block puts the handlers back that it found."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    yield
    assert before == [signal.getsignal(number) for number in numbers]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_request_to_terminate_unwinds_the_stack(number):
    left = []

    def work():
        try:
            signal.raise_signal(number)
        finally:
            left.append("in order")

    with (
        pytest.raises(KeyboardInterrupt, match=number.name),
        interrupting_on_end_signals(),
    ):
        work()

    assert ["in order"] == left


def test_a_signal_that_is_ignored_stays_ignored():
    """A sweep under nohup goes on when its terminal is closed."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interrupting_on_end_signals():
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_the_first_ctrl_c_is_noted_and_the_second_raises():
    with catching_stop_request() as request:
        asked = [request.asked_to_stop]
        signal.raise_signal(signal.SIGINT)
        asked.append(request.asked_to_stop)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)

    assert [False, True] == asked


def test_held_signals_arrive_when_the_block_ends():
    with catching_stop_request() as request:
        with holding_signals() as hold:
            os.kill(os.getpid(), signal.SIGINT)
            assert [signal.SIGINT] == hold.arrived
            assert not request.asked_to_stop
        assert request.asked_to_stop


def test_a_hold_may_be_released_early():
    with holding_signals() as hold:
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            hold.release()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)

    assert [] == hold.arrived


def test_other_threads_may_enter_every_block():
    """Signals come to the main thread alone, so elsewhere nothing is changed."""
    reached = []

    def work():
        with interrupting_on_end_signals(), catching_stop_request(), holding_signals():
            reached.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()

    assert [True] == reached
