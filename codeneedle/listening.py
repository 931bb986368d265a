"""How long one waits for a server, and how much one lets it say."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from codeneedle.answers import OverlongReply, ServerSilent
from codeneedle.clock import Lived

LINE_LIMIT_BYTES = 8 << 20
"""More than the last event of a 1M token prompt, which older builds send back."""

REPLY_LIMIT_BYTES = 256 << 20
"""A token is an event of 700 bytes, so this is more than 300,000 of them."""

LONGEST_LOOK_S = 1.0
"""Between looks at whether a connection is silent."""

LEAVING_S = 2.0
"""How long an answer may take that a server owes when it was told to end."""

REFUSAL_LIMIT_BYTES = 64 << 10
REFUSAL_S = 5.0
"""What is read of the statement of an error, and for how long."""


class Watch:
    """
    Breaks a connection on which no answer begins, or on which nothing comes.

    A timeout of httpx is one for each read, and so never comes for a server that
    sends its headers a byte at a time; and it counts time for which we were
    suspended.

    Attributes:
        barked: Whether it broke the connection, as nothing came.
        saw_leaving: Whether it did so as the server was told to end: one that is in
            the middle of an answer may then neither answer nor end.
        lived_s: Its clock.
    """

    def __init__(
        self, limit_s: float, *, is_leaving: Callable[[], bool] = lambda: False
    ) -> None:
        self.barked = self.saw_leaving = False
        self._is_leaving = is_leaving
        self._limit_s = self._until = limit_s
        self._look_s = max(0.001, min(LONGEST_LOOK_S, limit_s / 10))
        self.lived_s = Lived(longest_s=2 * self._look_s)
        self._socket: socket.socket | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """The answer is complete, or there will be none."""
        self._over.set()

    def hearing(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """The same *chunks*, each a sign of life."""
        for chunk in chunks:
            self._until = self.lived_s() + self._limit_s
            yield chunk

    def trace(self, event: str, info: Mapping[str, Any]) -> None:
        """Takes note of the socket; httpcore's ``trace`` extension calls it."""
        if event == "connection.connect_tcp.complete":
            self._socket = info["return_value"].get_extra_info("socket")

    def _keep(self) -> None:
        while not self._over.wait(self._look_s):
            if self.lived_s() > self._until:
                self.barked = True
                self._break()
                return
            # Given a moment: an answer that is on its way comes through.
            if self._is_leaving() and not self._over.wait(LEAVING_S):
                self.saw_leaving = True
                self._break()
                return

    def _break(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)


def lines(
    chunks: Iterable[bytes], *, silence_s: float, now: Callable[[], float] | None = None
) -> Iterator[bytes]:
    """
    The lines of a stream, as soon as each is complete.

    Args:
        chunks: The stream, cut anywhere.
        silence_s: How long it may be without a line of data, in seconds.
        now: The clock; the monotonic one by default.

    Raises:
        ServerSilent: If it is for longer.
        OverlongReply: If a line, or all of them, exceed what makes sense.
    """
    # In parts: a line that comes a byte at a time is not copied with each of them.
    pending: list[bytes] = []
    pending_bytes = total = 0
    now = now or time.monotonic
    heard = now()
    for chunk in chunks:
        total += len(chunk)
        *complete, rest = chunk.split(b"\n")
        if complete:
            complete[0] = b"".join((*pending, complete[0]))
            pending, pending_bytes = [], 0
        pending.append(rest)
        pending_bytes += len(rest)
        for line in complete:
            if line.startswith(b"data"):
                heard = now()
            yield line.rstrip(b"\r")
        if pending_bytes > LINE_LIMIT_BYTES:
            raise OverlongReply(limit_bytes=LINE_LIMIT_BYTES)
        if total > REPLY_LIMIT_BYTES:
            raise OverlongReply(limit_bytes=REPLY_LIMIT_BYTES)
        # Pings come from a server whose computation hangs, too: they do not count.
        if now() - heard > silence_s:
            raise ServerSilent(silence_s=silence_s)


def beginning(chunks: Iterable[bytes]) -> bytes:
    """What an answer begins with, enough for the statement of an error."""
    data = b""
    until = time.monotonic() + REFUSAL_S
    for chunk in chunks:
        data += chunk
        if len(data) > REFUSAL_LIMIT_BYTES or time.monotonic() > until:
            break
    return data


def whole(
    chunks: Iterable[bytes], *, limit_s: float, now: Callable[[], float] | None = None
) -> bytes:
    """
    All of an answer.

    Args:
        chunks: The answer, cut anywhere.
        limit_s: How long it may take, in seconds.
        now: The clock; the monotonic one by default.

    Raises:
        ServerSilent: If it takes longer than *limit_s* seconds.
        OverlongReply: If it exceeds what makes sense.
    """
    data = bytearray()
    now = now or time.monotonic
    until = now() + limit_s
    for chunk in chunks:
        data += chunk
        if len(data) > REPLY_LIMIT_BYTES:
            raise OverlongReply(limit_bytes=REPLY_LIMIT_BYTES)
        if now() > until:
            raise ServerSilent(silence_s=limit_s)
    return bytes(data)
