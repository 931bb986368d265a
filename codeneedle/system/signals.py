"""
Signal handling: first SIGINT stops after the current cell, the second raises
KeyboardInterrupt; SIGTERM and SIGHUP unwind the stack.
"""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import FrameType
from typing import NoReturn

_Handler = Callable[[int, FrameType | None], object]

HELD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that ask a program to end: Ctrl-C, the system, a closed terminal."""


@dataclass(slots=True)
class StopRequest:
    """The request to end after the current cell."""

    asked_to_stop: bool = False  # whether SIGINT has arrived


@dataclass(slots=True)
class Hold:
    """Signals whose delivery is delayed."""

    arrived: list[int] = field(default_factory=list)
    """Their numbers, in order of arrival."""

    handlers: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    """Restores the previous handlers."""

    def release(self) -> None:
        """Restore the handlers, and deliver the signals that arrived."""
        self.handlers.close()
        arrived, self.arrived = self.arrived, []
        for number in arrived:
            signal.raise_signal(number)


@contextlib.contextmanager
def interrupting_on_end_signals() -> Iterator[None]:
    """
    Turn SIGTERM and SIGHUP into a KeyboardInterrupt with the name of the signal.

    A signal that is ignored, as under ``nohup``, stays ignored. Outside the main
    thread, where Python sets no handlers, nothing changes.
    """

    def raise_interrupt(number: int, _frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt(signal.Signals(number).name)

    handlers: dict[int, _Handler] = {
        number: raise_interrupt
        for number in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    with _with_signal_handlers(handlers):
        yield


@contextlib.contextmanager
def catching_stop_request() -> Iterator[StopRequest]:
    """
    First SIGINT: note the request. From the second on: raise KeyboardInterrupt.

    Outside the main thread nothing changes.

    Yields:
        The request, which the first SIGINT sets.
    """
    request = StopRequest()

    def on_sigint(_number: int, _frame: FrameType | None) -> None:
        if request.asked_to_stop:
            raise KeyboardInterrupt
        request.asked_to_stop = True

    with _with_signal_handlers({signal.SIGINT: on_sigint}):
        yield request


@contextlib.contextmanager
def holding_signals() -> Iterator[Hold]:
    """
    Delay the signals of `HELD` that have a Python handler until the block ends.

    Ignored ones, as in a background job of a shell, stay ignored by this process; but a
    child that is started in the block does not inherit that. Those with the default
    action are left alone, since they end the process without unwinding anyway.

    Yields:
        The signals; delivered when the block ends, or earlier by `Hold.release`.
    """
    hold = Hold()

    def delay(number: int, _frame: FrameType | None) -> None:
        hold.arrived.append(number)

    previous = {number: signal.getsignal(number) for number in HELD}
    handlers: dict[int, _Handler] = {
        number: delay if callable(handler) else _ignore_signal
        for number, handler in previous.items()
        if callable(handler) or handler is signal.SIG_IGN
    }
    try:
        hold.handlers.enter_context(_with_signal_handlers(handlers))
        yield hold
    finally:
        hold.release()


def _ignore_signal(_number: int, _frame: FrameType | None) -> None:
    """Ignore a signal; unlike SIG_IGN, no child inherits this."""


@contextlib.contextmanager
def _with_signal_handlers(handlers: Mapping[int, _Handler]) -> Iterator[None]:
    """Have *handlers* in the block; outside the main thread nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in handlers}
    try:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        yield
    finally:
        for number, previous in before.items():
            if previous is not None:
                signal.signal(number, previous)
