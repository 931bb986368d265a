"""How long one waits for a server, and how much one lets it say."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from codeneedle.answers import OverlongReply, ServerSilent

LINE_LIMIT_BYTES = 8 << 20
"""More than the last event of a 1M token prompt, which older builds send back."""

REPLY_LIMIT_BYTES = 256 << 20
"""A token is an event of 700 bytes, so this is more than 300,000 of them."""

REFUSAL_LIMIT_BYTES = 64 << 10
REFUSAL_S = 5.0
"""What is read of the statement of an error, and for how long."""


class Watch:
    """
    Breaks a connection on which no answer begins.

    A timeout of httpx is one for each read, and so never comes for a server that
    sends its headers a byte at a time.
    """

    def __init__(self, limit_s: float) -> None:
        self.barked = False
        self._socket: socket.socket | None = None
        self._timer = threading.Timer(limit_s, self._bark)
        self._timer.daemon = True
        self._timer.start()

    def end(self) -> None:
        """An answer has begun, or there will be none."""
        self._timer.cancel()

    def trace(self, event: str, info: Mapping[str, Any]) -> None:
        """Takes note of the socket; httpcore's ``trace`` extension calls it."""
        if event == "connection.connect_tcp.complete":
            self._socket = info["return_value"].get_extra_info("socket")

    def _bark(self) -> None:
        self.barked = True
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)


def lines(chunks: Iterable[bytes], *, silence_s: float) -> Iterator[bytes]:
    """
    The lines of a stream, as soon as each is complete.

    Args:
        chunks: The stream, cut anywhere.
        silence_s: How long it may be without a line of data, in seconds.

    Raises:
        ServerSilent: If it is for longer.
        OverlongReply: If a line, or all of them, exceed what makes sense.
    """
    # In parts: a line that comes a byte at a time is not copied with each of them.
    pending: list[bytes] = []
    pending_bytes = total = 0
    heard = time.monotonic()
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
                heard = time.monotonic()
            yield line.rstrip(b"\r")
        if pending_bytes > LINE_LIMIT_BYTES:
            raise OverlongReply(limit_bytes=LINE_LIMIT_BYTES)
        if total > REPLY_LIMIT_BYTES:
            raise OverlongReply(limit_bytes=REPLY_LIMIT_BYTES)
        # Pings come from a server whose computation hangs, too: they do not count.
        if time.monotonic() - heard > silence_s:
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


def whole(chunks: Iterable[bytes], *, limit_s: float) -> bytes:
    """
    All of an answer.

    Raises:
        ServerSilent: If it takes longer than *limit_s* seconds.
        OverlongReply: If it exceeds what makes sense.
    """
    data = bytearray()
    until = time.monotonic() + limit_s
    for chunk in chunks:
        data += chunk
        if len(data) > REPLY_LIMIT_BYTES:
            raise OverlongReply(limit_bytes=REPLY_LIMIT_BYTES)
        if time.monotonic() > until:
            raise ServerSilent(silence_s=limit_s)
    return bytes(data)
