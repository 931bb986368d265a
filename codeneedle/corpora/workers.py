"""Workers: one job on many items, on all cores, in order, whatever an item does.

Not a pool of the standard library: when one of its processes dies, all that was
asked of all of them is lost, and nobody can tell over which item it was. It also
runs threads of its own, and a further process that takes care of its semaphores.
"""

import contextlib
import os
import selectors
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import IO, Any, Protocol, TypeVar, cast

from codeneedle.corpora.worker import Done, received, send
from codeneedle.errors import ToolFailed
from codeneedle.system import machine, processes

Item = TypeVar("Item")
Answer = TypeVar("Answer")

ALONE_BYTES = 2_000_000
"""Up to here we work alone: two workers are ready after a fifth of a second."""

LIMIT_S = 120.0
"""How long an item may take; the slowest of 16 MB that we have seen took 20 s."""

AHEAD = 8
"""Items per worker that are begun, or done, before the first that is not done."""

LEAST_MEMORY_BYTES = 1 << 30
"""What a worker may take at least, mapped libraries included."""

_TRIES = 2
"""One more, in a process of its own: the first may have been ended by a stranger."""


@dataclass(frozen=True, slots=True)
class Lost:
    """An item without an answer, and why."""

    reason: str


class Team(Protocol):
    """What does a job on many items."""

    def map(
        self, job: Callable[[Item], Answer], items: Iterable[Item]
    ) -> Generator[Answer | Lost, None, None]:
        """The answer to each of *items*, in order; *job* may have to be pickled."""


def team(size_bytes: int) -> Team:
    """Who does what takes as long as *size_bytes* of source text."""
    count = min(machine.usable_cores(), size_bytes // (ALONE_BYTES // 2))
    return Alone() if count < 2 or not sys.executable else Crew(count)  # noqa: PLR2004


@dataclass(frozen=True, slots=True)
class Alone:
    """Nobody but us."""

    def map(
        self, job: Callable[[Item], Answer], items: Iterable[Item]
    ) -> Generator[Answer | Lost, None, None]:
        """The answer to each of *items*, in order."""
        for item in items:
            yield job(item)


@dataclass(frozen=True, slots=True)
class Crew:
    """
    Processes of ours, one item each at a time.

    Attributes:
        count: How many.
        limit_s: How long an item may take.
        memory_bytes: How much one of them may; None for its share of what is free.
    """

    count: int
    limit_s: float = LIMIT_S
    memory_bytes: int | None = None

    def map(
        self, job: Callable[[Item], Answer], items: Iterable[Item]
    ) -> Generator[Answer | Lost, None, None]:
        """
        The answer to each of *items*, in order.

        An item over which a worker ends or runs out of memory or time, twice, has
        none, but a reason. What *job* raises otherwise is raised here.

        Raises:
            ToolFailed: If the system refuses to start a process.
        """
        free = machine.available_memory_bytes() // (self.count + 1)
        memory = self.memory_bytes or max(LEAST_MEMORY_BYTES, free)
        shift = _Shift(job, self.limit_s, memory, room=AHEAD * self.count)
        with contextlib.closing(shift):
            for _ in range(self.count):
                shift.hire()
            for item in items:
                while shift.is_full():
                    shift.wait()
                    yield from shift.answers()
                shift.give(_Task(item))
                yield from shift.answers()
            while shift.waiting:
                shift.wait()
                yield from shift.answers()


@dataclass(slots=True, eq=False)
class _Task:
    """An item, and what became of it."""

    item: Any
    answer: Any = None
    is_done: bool = False
    tries: int = 0


@dataclass(slots=True, eq=False)
class _Hand:
    """
    A worker.

    Attributes:
        child: It.
        exit: Ends it.
        task: What it does; None while it waits.
        until: When that must have come to its end, in monotonic seconds.
        is_proven: Whether it has answered anything.
    """

    child: processes.Child
    exit: contextlib.ExitStack
    task: _Task | None = None
    until: float = 0.0
    is_proven: bool = False


@dataclass(slots=True)
class _Shift:
    """All that is going on."""

    job: Callable[[Any], Any]
    limit_s: float
    memory_bytes: int
    room: int
    hands: list[_Hand] = field(default_factory=list)
    waiting: deque[_Task] = field(default_factory=deque)
    again: deque[_Task] = field(default_factory=deque)
    ready: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)

    def hire(self) -> None:
        """Start one more worker."""
        with contextlib.ExitStack() as stack:
            program = (sys.executable, "-P", "-m", "codeneedle.corpora.worker")
            argv = (*program, str(os.getpid()), str(self.memory_bytes))
            # Ours by the same path as here, and nothing from the working folder.
            env = processes.clean(os.environ) | {
                "PYTHONPATH": os.pathsep.join(filter(None, sys.path))
            }
            child = stack.enter_context(processes.talking(argv, env=env))
            for pipe in (child.stdin, child.stdout):
                stack.callback(_close, pipe)
            hand = _Hand(child, stack.pop_all())
        self.hands.append(hand)
        self.ready.register(hand.child.stdout, selectors.EVENT_READ, hand)  # type: ignore[arg-type]
        with contextlib.suppress(OSError):  # it is gone: the first task will tell
            send(hand.child.stdin, self.job)  # type: ignore[arg-type]

    def is_full(self) -> bool:
        """Whether nothing more can be begun before something has ended."""
        return len(self.waiting) >= self.room or all(hand.task for hand in self.hands)

    def give(self, task: _Task) -> None:
        """Let a worker that has nothing to do begin *task*."""
        self.waiting.append(task)
        self._begin(task, next(hand for hand in self.hands if hand.task is None))

    def answers(self) -> Iterator[Any]:
        """What can be told in order; once each."""
        while self.waiting and self.waiting[0].is_done:
            yield self.waiting.popleft().answer

    def wait(self) -> None:
        """Wait until something has happened, and take note of it."""
        now = time.monotonic()
        until = min((hand.until for hand in self.hands if hand.task), default=now)
        for key, _ in self.ready.select(max(0.0, until - now)):
            self._hear(key.data)
        for hand in list(self.hands):
            if hand.task and time.monotonic() > hand.until:
                hand.child.kill()
                self._replace(hand, f"its parser takes more than {self.limit_s:g} s")
        for hand in self.hands:
            if self.again and hand.task is None:
                self._begin(self.again.popleft(), hand)

    def close(self) -> None:
        """End every worker, in whatever it is doing."""
        self.ready.close()
        with contextlib.ExitStack() as stack:
            for hand in self.hands:
                stack.enter_context(hand.exit)
                hand.child.kill()

    def _begin(self, task: _Task, hand: _Hand) -> None:
        task.tries += 1
        hand.task, hand.until = task, time.monotonic() + self.limit_s
        with contextlib.suppress(OSError):  # it is gone: its stdout will tell
            send(hand.child.stdin, task.item)  # type: ignore[arg-type]

    def _hear(self, hand: _Hand) -> None:
        try:
            told = received(hand.child.stdout)  # type: ignore[arg-type]
        except EOFError:
            self._replace(hand, _last_act(hand.child.wait()))
            return
        task, hand.task, hand.is_proven = cast("_Task", hand.task), None, True
        if isinstance(told, Done):
            task.answer, task.is_done = told.answer, True
        elif told.is_memory:
            reason = f"its parser takes more than {self.memory_bytes >> 20:,} MiB"
            task.answer, task.is_done = Lost(reason), True
        else:
            raise RuntimeError(told.traceback)

    def _replace(self, hand: _Hand, reason: str) -> None:
        """Take another worker for *hand*, which is gone, and its task once more."""
        task = hand.task
        self.ready.unregister(hand.child.stdout)  # type: ignore[arg-type]
        self.hands.remove(hand)
        hand.exit.close()
        if task is None and not hand.is_proven:
            raise ToolFailed(
                tool=sys.executable,
                reason=f"cannot be started: {reason}",
                hint="Close other programs.",
            )
        if task is not None and task.tries < _TRIES:
            self.again.append(task)
        elif task is not None:
            task.answer, task.is_done = Lost(reason), True
        self.hire()


def _close(pipe: IO[bytes] | None) -> None:
    # What a worker that is gone did not read was meant for nobody else.
    with contextlib.suppress(OSError):
        cast("IO[bytes]", pipe).close()


def _last_act(returncode: int) -> str:
    """How a worker ended."""
    if returncode < 0:
        return f"its parser ends with {signal.Signals(-returncode).name}"
    return f"its parser ends with exit code {returncode}"
