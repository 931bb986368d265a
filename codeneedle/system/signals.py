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
"""What a person or a system sends to end a program, and a closed terminal."""


class Terminated(KeyboardInterrupt):
    """
    SIGTERM or SIGHUP arrived.

    A kind of Ctrl-C: what must not be lost is put away by the same handlers.
    """

    def __init__(self, *, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


@dataclass(slots=True)
class Patience:
    """
    What a person has asked for so far.

    Attributes:
        asked_to_stop: Whether Ctrl-C was pressed: end after the current cell.
    """

    asked_to_stop: bool = False


@dataclass(slots=True)
class Hold:
    """
    Signals kept back.

    Attributes:
        arrived: Their numbers, in order of arrival.
    """

    arrived: list[int] = field(default_factory=list)
    _replaced: dict[int, _Handler | signal.Handlers] = field(default_factory=dict)

    def release(self) -> None:
        """Let signals through again; what arrived is delivered now."""
        _restore(self._replaced)
        self._replaced = {}
        arrived, self.arrived = self.arrived, []
        for number in arrived:
            signal.raise_signal(number)


@contextlib.contextmanager
def unwinding_on_signals() -> Iterator[None]:
    """
    Turn SIGTERM and SIGHUP into `Terminated`, so that every block is left in order.

    A signal that is ignored stays ignored: that is what ``nohup`` is for.
    Outside the main thread, where Python takes no signals, nothing changes.
    """

    def unwind(number: int, _frame: FrameType | None) -> NoReturn:
        raise Terminated(number=number)

    mine: dict[int, _Handler] = {
        number: unwind
        for number in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    with _handling(mine):
        yield


@contextlib.contextmanager
def patience() -> Iterator[Patience]:
    """
    Take the first Ctrl-C as a wish, the second as an order.

    Yields:
        What was asked for. From the second SIGINT on each raises
        KeyboardInterrupt at once. Outside the main thread nothing changes.
    """
    patient = Patience()

    def listen(_number: int, _frame: FrameType | None) -> None:
        if patient.asked_to_stop:
            raise KeyboardInterrupt
        patient.asked_to_stop = True

    with _handling({signal.SIGINT: listen}):
        yield patient


@contextlib.contextmanager
def held() -> Iterator[Hold]:
    """
    Keep back the signals that would raise, until the block ends or is released.

    Those that are ignored, as in a job that a shell put into the background, are
    so afterwards again; but a child that is started meanwhile does not inherit it.

    Yields:
        What arrived. Signals that do what they do by default are left alone: they
        would not raise anyway.
    """
    hold = Hold()

    def keep(number: int, _frame: FrameType | None) -> None:
        hold.arrived.append(number)

    if threading.current_thread() is threading.main_thread():
        for number in HELD:
            handler = signal.getsignal(number)
            # Noted first: a signal in between must find its way back.
            if callable(handler):
                hold._replaced[number] = handler  # noqa: SLF001 - our own
                signal.signal(number, keep)
            elif handler is signal.SIG_IGN:
                hold._replaced[number] = handler  # noqa: SLF001 - our own
                signal.signal(number, _unheard)
    try:
        yield hold
    finally:
        hold.release()


def _unheard(_number: int, _frame: FrameType | None) -> None:
    """Ignores a signal, as SIG_IGN does, but for children that are started."""


@contextlib.contextmanager
def _handling(handlers: Mapping[int, _Handler]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in handlers}
    try:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        yield
    finally:
        _restore({n: handler for n, handler in before.items() if handler is not None})


def _restore(handlers: Mapping[int, _Handler | int]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)
