"""The HTTP client: requests with bounds on time and size, whatever the server."""

import contextlib
import http.cookiejar
import ssl
import time
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, Self, TypeVar

import httpcore
import httpx
from typing_extensions import override

from codeneedle.engines.messages import (
    BadReply,
    Progress,
    Refused,
    ServerGone,
    ServerSilent,
    StreamEvent,
    check_and_convert_answer,
    ignore_progress,
    parse_json_object,
    parse_stated_error,
    refuse_too_long_answer,
)
from codeneedle.engines.silence_limits import SilenceLimit
from codeneedle.records.record import Json
from codeneedle.system.secrets import masking_errors, register_secrets_to_mask
from codeneedle.text import replace_surrogates

SHORT_S = 5.0
"""Time limit for connecting on loopback, and for one question about readiness."""

SILENCE_S = 3600.0
"""Time without an event before a server counts as silent: a slow one reads a long
prompt for an hour."""

ENDED_S = 10.0
"""How long a server may take, after a reply has ended, to count its tokens."""

LINE_LIMIT_BYTES = 8 << 20
"""More than the last event of a 1M token prompt, which older builds send back."""

REPLY_LIMIT_BYTES = 256 << 20
"""A token is an event of 700 bytes, so this is more than 300,000 of them."""

ANSWER_LIMIT_BYTES = 4 << 20
"""Of an answer without tokens, such as a list of models: the longest take 1 MiB."""

ERROR_LIMIT_BYTES = 64 << 10
"""What is read of an error that a server states."""

POLL_S = 1.0
"""Longest time between two checks of the deadline while waiting for data."""

SHUTDOWN_S = 2.0
"""How long a server that is shutting down may take to complete its reply."""

_NO_EVENTS = {b"", b"event", b"id", b"retry"}
"""Kinds of lines that carry no data: blank ones, comments and field names."""

_Layout = TypeVar("_Layout")
_Event = TypeVar("_Event", bound=StreamEvent)


def has_valid_host(url: str) -> bool:
    """Whether *url* has a host that a header and a socket can name."""
    try:
        known = httpx.URL(url)
        for host in (known.host, known.raw_host.decode("ascii")):
            host.encode("idna")
    except (httpx.InvalidURL, UnicodeError):
        return False
    return True


def never_enough(_so_far: str) -> bool:
    """A reply is never long enough: read until the model ends it."""
    return False


class Connection:
    """
    Sends requests to one server, one at a time.

    A context manager; a call after its end fails. Redirects are refused: the key is
    for this server alone.
    """

    tell: Callable[[Progress], None]  # called with how far a streamed reply is
    silence_limit: SilenceLimit  # of a streamed reply

    def __init__(
        self,
        url: str,
        *,
        api_key: str = "",
        silence_s: float = SILENCE_S,
        is_leaving: Callable[[], bool] = lambda: False,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """
        Prepare the connection; nothing is sent yet.

        Args:
            url: ``http://127.0.0.1:PORT``, or an ``https`` one, whose certificate is
                checked.
            api_key: Sent in the Authorization header, and nowhere else; none if empty.
            silence_s: How long the server may be without an event, in seconds.
            is_leaving: Whether the server is shutting down; checked while
                a reply is awaited.
            transport: For tests.
        """
        self.tell = ignore_progress
        self.silence_limit = SilenceLimit()
        self._silence_s = silence_s
        register_secrets_to_mask(api_key)
        self._deadline = _Deadline(is_leaving)
        key = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        is_tls = url.startswith("https:")
        self._http = httpx.Client(
            base_url=url,
            headers={**key, "Accept-Encoding": "identity"},
            trust_env=False,
            follow_redirects=False,
            cookies=_NoCookies(),
            # Raised here, before httpx reads where a redirect leads.
            event_hooks={"response": [_refuse_error]},
            transport=transport or _Transport(self._deadline, is_tls=is_tls),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._http.close()

    def _events(
        self, response: httpx.Response, *, limit_bytes: int = REPLY_LIMIT_BYTES
    ) -> Iterator[Json]:
        """
        The events of a stream, up to ``[DONE]``.

        Comments, which servers send as pings, are none. A reply that has ended is whole
        if nothing else comes within `ENDED_S`.

        Raises:
            Refused: What an event that is an error states.
            BadReply: If a line is no event, or the lines are too long.
        """
        self._extend_deadline()
        for line in self._lines(response, limit_bytes):
            kind, _, data = line.partition(b":")
            if kind in _NO_EVENTS:
                continue
            if kind not in {b"data", b"error"}:
                text = line.decode(errors="replace")
                raise BadReply(expected="events", answer=text)
            if data.strip() == b"[DONE]":
                return
            # Pings do not count: a server whose computation hangs sends them, too.
            self._extend_deadline()
            event = parse_json_object(data, expected="an event")
            if kind == b"error" or event.get("error"):
                raise parse_stated_error(data, code=response.status_code)
            yield event

    def _lines(self, response: httpx.Response, limit_bytes: int) -> Iterator[bytes]:
        """The lines of a stream, up to the silence behind the end of a reply."""
        try:
            yield from split_into_lines(response.iter_raw(), limit_bytes=limit_bytes)
        except httpx.ReadTimeout:
            if not self._deadline.is_last:
                raise

    def _shorten_deadline_at_end(self, event: _Event) -> _Event:
        """*event*; if it ends a reply, little may follow."""
        if event.finish is not None and not self._deadline.is_last:
            self._deadline.end_within(ENDED_S)
        return event

    def _extend_deadline(self) -> None:
        """Grant the server its time again; `silence_limit` learns how long it took."""
        self._deadline.extend()
        self.silence_limit.note_event()

    def _ask(
        self,
        method: str,
        path: str,
        layout: type[_Layout],
        body: Json | None = None,
        *,
        limit_s: float,
        limit_bytes: int = ANSWER_LIMIT_BYTES,
    ) -> _Layout:
        """
        The whole answer to a request that is not answered by a stream.

        Args:
            method: Of HTTP.
            path: Of the endpoint.
            layout: Of the answer.
            body: Sent as JSON.
            limit_s: Time limit for all of it.
            limit_bytes: Size limit of the answer.
        """
        expected = f"what {path} should say"
        with self._response_to(method, path, body, limit_s=limit_s) as response:
            data = join_chunks(response.iter_raw(), limit_bytes=limit_bytes)
            return check_and_convert_answer(
                parse_json_object(data, expected=expected), layout, expected=expected
            )

    @contextlib.contextmanager
    def _post_for_stream(self, path: str, body: Json) -> Iterator[httpx.Response]:
        """The response to a POST of *body*, whose `_events` keep to the limit."""
        limit_s, known = self.silence_limit.limit_and_cause(self._silence_s)
        self.silence_limit.begin_silence()
        try:
            with self._response_to("POST", path, body, limit_s=limit_s) as response:
                yield response
        except ServerSilent as error:
            raise ServerSilent(silence_s=limit_s, known=known) from error

    @contextlib.contextmanager
    def _response_to(
        self, method: str, path: str, body: Json | None, *, limit_s: float
    ) -> Iterator[httpx.Response]:
        """
        A response whose headers have come; no error of the block tells the key.

        Args:
            method: Of HTTP.
            path: Of the endpoint.
            body: Sent as JSON.
            limit_s: Time limit for all of it, unless the deadline is extended.

        Raises:
            Refused: If the response is no success.
            ServerSilent: If the time is over, in the block, too.
            ServerGone: If the connection fails, in the block, too.
        """
        self._deadline.start(limit_s)
        timeout = httpx.Timeout(limit_s, connect=min(SHORT_S, limit_s))
        try:
            with (
                masking_errors(),
                self._http.stream(method, path, json=body, timeout=timeout) as answer,
            ):
                yield answer
        except (httpx.ReadTimeout, httpx.WriteTimeout) as error:
            raise ServerSilent(silence_s=limit_s) from error
        except httpx.TransportError as error:
            raise ServerGone(reason=str(error) or type(error).__name__) from error


def _refuse_error(answer: httpx.Response) -> None:
    """
    Stop at an answer that is no success.

    Raises:
        Refused: What it states.
    """
    if answer.is_success:
        return
    if answer.is_redirect:
        where = answer.headers.get("location", "nowhere")
        raise Refused(
            code=answer.status_code, kind="redirect", message=replace_surrogates(where)
        )
    error = parse_stated_error(
        error_beginning(answer.iter_raw()), code=answer.status_code
    )
    error.retry_after = answer.headers.get("retry-after", "")
    raise error


class _NoCookies(http.cookiejar.CookieJar):
    """Keeps none: those of a server are not even read."""

    @override
    def extract_cookies(self, response: Any, request: Any) -> None:
        """Keep none."""


def split_into_lines(
    chunks: Iterable[bytes], *, limit_bytes: int = REPLY_LIMIT_BYTES
) -> Iterator[bytes]:
    """
    The lines of a stream, as soon as each is complete; without a last one that is not.

    Args:
        chunks: The stream, cut anywhere.
        limit_bytes: What all of them may have together.

    Raises:
        BadReply: If a line, or all of them, are longer than any real reply.
    """
    # A list: a line that comes a byte at a time is not copied with each of them.
    pending: list[bytes] = []
    pending_bytes = total = 0
    for chunk in chunks:
        total += len(chunk)
        *complete, rest = chunk.split(b"\n")
        if complete:
            complete[0] = b"".join((*pending, complete[0]))
            pending, pending_bytes = [], 0
        pending.append(rest)
        pending_bytes += len(rest)
        for line in complete:
            yield line.rstrip(b"\r")
        refuse_too_long_answer(LINE_LIMIT_BYTES, pending_bytes)
        refuse_too_long_answer(limit_bytes, total)


def join_chunks(chunks: Iterable[bytes], *, limit_bytes: int) -> bytes:
    """
    All *chunks* of an answer, joined.

    Raises:
        BadReply: If they have more than *limit_bytes*.
    """
    data = bytearray()
    for chunk in chunks:
        data += chunk
        refuse_too_long_answer(limit_bytes, len(data))
    return bytes(data)


def error_beginning(chunks: Iterable[bytes]) -> bytes:
    """The first `ERROR_LIMIT_BYTES` of *chunks*, or up to one chunk more."""
    data = b""
    for chunk in chunks:
        data += chunk
        if len(data) > ERROR_LIMIT_BYTES:
            break
    return data


class _Deadline:
    """The time limit of the current request."""

    def __init__(self, is_leaving: Callable[[], bool]) -> None:
        self._is_leaving = is_leaving
        self.start(0.0)

    def start(self, limit_s: float) -> None:
        """Begin a request that may take *limit_s* seconds."""
        self.poll_s = max(0.001, min(POLL_S, limit_s / 10))
        self._limit_s = limit_s
        self.is_last = False
        self._polled_s = time.monotonic()
        self._left_since_s: float | None = None
        self.extend()

    def extend(self) -> None:
        """Grant the whole limit again from now on, unless it is the last."""
        if not self.is_last:
            self._until_s = time.monotonic() + self._limit_s

    def end_within(self, limit_s: float) -> None:
        """Grant *limit_s* seconds at most, and no more."""
        self._until_s = min(self._until_s, time.monotonic() + limit_s)
        self.is_last = True

    def check(self) -> None:
        """
        Stop waiting for data if it is too late for any.

        Raises:
            httpcore.ReadTimeout: If the time is over.
            httpcore.ReadError: If the server is shutting down and still owes data.
        """
        now_s = time.monotonic()
        if now_s > self._until_s:
            raise httpcore.ReadTimeout
        if now_s - self._polled_s < self.poll_s:
            return
        self._polled_s = now_s
        if self._left_since_s is None and self._is_leaving():
            self._left_since_s = now_s
        # A server may neither complete a reply nor exit after SIGTERM.
        if self._left_since_s is not None and now_s > self._left_since_s + SHUTDOWN_S:
            raise httpcore.ReadError("the server was told to shut down")


class _Transport(httpx.HTTPTransport):
    """
    HTTP whose reads obey a `_Deadline`.

    A read timeout of httpx starts again with each byte, so it never fires for a
    server that sends its headers a byte at a time.
    """

    def __init__(self, deadline: _Deadline, *, is_tls: bool) -> None:
        # An empty context without TLS: loading certificates takes time.
        context = (
            ssl.create_default_context()
            if is_tls
            else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        )
        super().__init__(verify=context)
        self._pool = httpcore.ConnectionPool(
            ssl_context=context,
            # A new connection per request: the server closes idle ones, and a
            # request sent at that moment would be lost.
            max_keepalive_connections=0,
            network_backend=_DeadlineBackend(deadline),
        )


class _DeadlineBackend(httpcore.SyncBackend):
    """Connections whose reads obey a `_Deadline`."""

    def __init__(self, deadline: _Deadline) -> None:
        self._deadline = deadline

    @override
    def connect_tcp(self, *args: Any, **kwargs: Any) -> httpcore.NetworkStream:
        return _Stream(super().connect_tcp(*args, **kwargs), self._deadline)


class _Stream(httpcore.NetworkStream):
    """A connection that checks its deadline between short waits for data."""

    def __init__(self, stream: httpcore.NetworkStream, deadline: _Deadline) -> None:
        self._stream = stream
        self._deadline = deadline

    @override
    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """The next bytes; empty at the end."""
        while True:
            self._deadline.check()
            with contextlib.suppress(httpcore.ReadTimeout):
                return self._stream.read(max_bytes, timeout=self._deadline.poll_s)

    @override
    def start_tls(self, *args: Any, **kwargs: Any) -> httpcore.NetworkStream:
        return _Stream(self._stream.start_tls(*args, **kwargs), self._deadline)

    @override
    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, timeout=timeout)

    @override
    def close(self) -> None:
        self._stream.close()

    @override
    def get_extra_info(self, info: str) -> Any:
        """What httpcore wants to know of the socket."""
        return self._stream.get_extra_info(info)
