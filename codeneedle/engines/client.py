"""The HTTP client: requests to a server on loopback, with bounds on time and size."""

import contextlib
import itertools
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx

from codeneedle.engines.responses import (
    OverlongReply,
    Piece,
    Pieces,
    Readiness,
    Refused,
    Rendered,
    Reply,
    ServerGone,
    ServerSilent,
    TokenPiece,
    Tokens,
    WrongShape,
    chat_piece,
    completion_piece,
    parsed,
    refusal,
    reply_of,
    shaped,
)
from codeneedle.errors import CellError
from codeneedle.records.record import Json
from codeneedle.system.processes import Lived

Prompt = str | tuple[int, ...]
"""A text, or the tokens of one."""

RUNNERS_UP = 2
"""Most probable tokens asked for: the one that comes, and its nearest rival."""

NEUTRAL_SAMPLING: Json = {
    "temperature": 0.0,
    "top_k": 1,
    "top_p": 1.0,
    "min_p": 0.0,
    "typical_p": 1.0,
    "top_n_sigma": -1.0,
    "dynatemp_range": 0.0,
    "xtc_probability": 0.0,
    "adaptive_target": -1.0,
    "mirostat": 0,
    # Penalties act before the temperature does: they would turn a verbatim
    # repetition, which is what we ask for, into something else.
    "repeat_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "dry_multiplier": 0.0,
}
"""
Greedy, and nothing else.

Each is stated though most are the server's defaults: a GGUF may carry its own
(``general.sampling.*``), and so may the user's arguments.
"""

STREAMING: Json = {
    "stream": True,
    "cache_prompt": True,
    # Stated with every token, because a reply that is cut has no last event.
    "timings_per_token": True,
    # One event per batch of the prompt: a sign of life where pings are none.
    "return_progress": True,
}
"""
Streaming costs about a tenth of the speed of a model that writes 600 tokens per
second, and saves whatever a model writes beyond its answer. Probabilities and
timings in the events cost nothing that can be measured.
"""

FIELDS = ("content", "stop", "stop_type", "stopped_limit", "timings")
"""Of the last event; the prompt, which it would also bring, may be megabytes."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a chat: who speaks, and what."""

    role: str
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """
    A text to go on with.

    Attributes:
        prompt: The text, or its tokens.
        max_tokens: Tokens that the reply may have.
        seed: Of sampling; greedy sampling draws nothing, but says so in the log.
    """

    prompt: Prompt
    max_tokens: int
    seed: int = 0

    def body(self) -> Json:
        """What ``/completion`` takes."""
        return {
            "prompt": self.prompt,
            "n_predict": self.max_tokens,
            "seed": self.seed,
            "n_probs": RUNNERS_UP,
            "return_tokens": True,
            "response_fields": FIELDS,
            **STREAMING,
            **NEUTRAL_SAMPLING,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """
    A conversation to answer.

    Attributes:
        messages: Who said what; a last one of the assistant is gone on with.
        max_tokens: Tokens that the reply may have, thinking included.
        seed: Of sampling.
        template_args: Variables of the chat template: ``enable_thinking``.
    """

    messages: tuple[Message, ...]
    max_tokens: int
    seed: int = 0
    template_args: Mapping[str, object] = field(default_factory=dict)

    def body(self) -> Json:
        """What ``/v1/chat/completions`` takes."""
        return {
            **conversation(self.messages, self.template_args),
            "max_tokens": self.max_tokens,
            "seed": self.seed,
            "logprobs": True,
            "top_logprobs": RUNNERS_UP,
            **STREAMING,
            **NEUTRAL_SAMPLING,
        }


def conversation(
    messages: tuple[Message, ...], template_args: Mapping[str, object]
) -> Json:
    """What the chat template is filled with."""
    said = [asdict(message) for message in messages]
    if not template_args:
        return {"messages": said}
    return {"messages": said, "chat_template_kwargs": dict(template_args)}


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


SHORT_S = 5.0
"""How long loopback may take to connect, and a server to say how it is."""

SILENCE_S = 3600.0
"""How long a server may say nothing: a slow one reads a long prompt for an hour."""

_NO_TOKEN = -1

_NO_EVENTS = {b"", b"event", b"id", b"retry"}
"""Lines of a stream that carry none: its blank ones, comments and field names."""

_Layout = TypeVar("_Layout")


def never(_so_far: str) -> bool:
    """It is never enough: read until the model ends."""
    return False


class Client:
    """Talks to one server. A context manager; a call after its end fails."""

    def __init__(
        self,
        url: str,
        *,
        alias: str,
        api_key: str,
        silence_s: float = SILENCE_S,
        is_leaving: Callable[[], bool] = lambda: False,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """
        Prepare to talk; nothing is sent yet.

        Args:
            url: ``http://127.0.0.1:PORT``.
            alias: Name by which our server knows itself.
            api_key: Sent in the Authorization header, and nowhere else.
            silence_s: How long the server may be without an event, in seconds.
            is_leaving: Whether somebody has told the server to end; looked at now
                and then while it owes an answer.
            transport: For tests.
        """
        self._alias = alias
        self._silence_s = silence_s
        self._is_leaving = is_leaving
        self._http = httpx.Client(
            base_url=url,
            headers={
                "Authorization": f"Bearer {api_key}",
                "Accept-Encoding": "identity",
            },
            # A new connection for each question: the server closes idle ones,
            # and a question sent at that moment would be lost.
            limits=httpx.Limits(max_keepalive_connections=0),
            # No TLS on loopback: an empty context saves reading certificates.
            verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
            trust_env=False,
            follow_redirects=False,
            transport=transport,
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

    def readiness(self, *, limit_s: float = SHORT_S) -> Readiness:
        """
        How far the server is; whoever answers with another alias is a stranger.

        Each of the two questions is given *limit_s* seconds.
        """
        try:
            self._ask("GET", "/health", limit_s=limit_s)
            models = self._ask("GET", "/v1/models", limit_s=limit_s)
        except Refused as error:
            is_loading = error.code == httpx.codes.SERVICE_UNAVAILABLE
            return Readiness.LOADING if is_loading else Readiness.STRANGER
        except (ServerGone, ServerSilent):
            return Readiness.SILENT
        except (WrongShape, OverlongReply):
            return Readiness.STRANGER
        # Sought in the text, not parsed: a stranger may answer with anything.
        is_ours = json.dumps(self._alias) in json.dumps(models)
        return Readiness.READY if is_ours else Readiness.STRANGER

    def count_tokens(self, text: str, *, add_special: bool = True) -> int:
        """
        Length of *text* by the server's own tokenizer, in tokens.

        Args:
            text: Read as a prompt is: special tokens in it count as one.
            add_special: Whether the one that begins a prompt is counted.
        """
        return len(self.tokens(text, add_special=add_special))

    def counts(self, texts: Sequence[str]) -> list[int]:
        """
        The lengths of *texts* in one question, in tokens; none is taken to begin.

        llama.cpp takes texts and tokens mixed: between the texts stands one that no
        vocabulary has. A server that does not is asked for each.
        """
        content = [part for text in texts for part in (text, _NO_TOKEN)]
        body = {"content": content, "add_special": False, "parse_special": True}
        with contextlib.suppress(Refused, WrongShape):
            tokens = self._answer("POST", "/tokenize", Tokens, body).tokens
            ends = [at for at, token in enumerate(tokens) if token == _NO_TOKEN]
            if len(ends) == len(texts):
                return [b - a - 1 for a, b in itertools.pairwise([-1, *ends])]
        return [self.count_tokens(text, add_special=False) for text in texts]

    def tokens(self, text: str, *, add_special: bool = True) -> tuple[int, ...]:
        """The tokens that `count_tokens` counts."""
        body = {"content": text, "add_special": add_special, "parse_special": True}
        return self._answer("POST", "/tokenize", Tokens, body).tokens

    def pieces(self, text: str) -> tuple[TokenPiece, ...]:
        """The tokens of *text* as it stands alone, each with its part of it."""
        body = {"content": text, "add_special": False, "with_pieces": True}
        return self._answer("POST", "/tokenize", Pieces, body).tokens

    def render(
        self,
        messages: tuple[Message, ...],
        template_args: Mapping[str, object] | None = None,
    ) -> str:
        """The prompt that the chat template makes of *messages*."""
        body = conversation(messages, template_args or {})
        return self._answer("POST", "/apply-template", Rendered, body).prompt

    def complete(
        self, question: Completion, *, enough: Callable[[str], bool] = never
    ) -> Reply:
        """
        Go on with a text, until the model ends or it is *enough*.

        Args:
            question: What to ask.
            enough: Asked of the reply so far at each line break.

        Raises:
            PromptTooLong: If the context is too small for the prompt.
            Refused: If the server answers with another error.
            ServerSilent: If no event comes for too long.
            ServerGone: If there is no connection, or it breaks.
            StreamEnded: If the last event does not come.
            WrongShape: If what comes is no event.
            OverlongReply: If it has no end.
        """
        return self._reply("/completion", question, completion_piece, enough)

    def chat(self, question: Chat, *, enough: Callable[[str], bool] = never) -> Reply:
        """Answer a conversation; errors are those of `complete`."""
        return self._reply("/v1/chat/completions", question, chat_piece, enough)

    def settle(self) -> None:
        """
        Wait until the server is through with an answer that was cut.

        It ends the batch that it is at; and llama-server b11434, told to end in that
        moment, hangs in one of forty tries.

        Raises:
            CellError: As of `complete`.
        """
        self.complete(Completion(prompt="\n", max_tokens=1))

    def _reply(
        self,
        path: str,
        question: Chat | Completion,
        read: Callable[[Json], Piece],
        enough: Callable[[str], bool],
    ) -> Reply:
        started = time.perf_counter()
        body = question.body()
        with self._sent("POST", path, body, limit_s=self._silence_s) as (answer, watch):
            events = self._events(answer, watch)
            reply = reply_of(
                events, read=read, enough=enough, max_tokens=question.max_tokens
            )
        return replace(reply, wall_s=round(time.perf_counter() - started, 4))

    def _events(self, response: httpx.Response, watch: Watch) -> Iterator[Json]:
        """The events of a stream; comments, which servers send as pings, are none."""
        chunks = watch.hearing(response.iter_raw())
        for line in lines(chunks, silence_s=self._silence_s, now=watch.lived_s):
            kind, _, data = line.partition(b":")
            if kind in _NO_EVENTS or data.strip() == b"[DONE]":
                continue
            if kind not in {b"data", b"error"}:
                raise WrongShape(expected="events", found=line.decode(errors="replace"))
            event = parsed(data, expected="an event")
            if kind == b"error" or "error" in event:
                raise refusal(data, code=response.status_code)
            yield event

    def _answer(
        self, method: str, path: str, layout: type[_Layout], body: Json | None = None
    ) -> _Layout:
        expected = f"what {path} should say"
        answer = self._ask(method, path, body, limit_s=self._silence_s)
        return shaped(answer, layout, expected=expected)

    def _ask(
        self, method: str, path: str, body: Json | None = None, *, limit_s: float
    ) -> Json:
        """The whole answer to a question that no tokens are written for."""
        with self._sent(method, path, body, limit_s=limit_s) as (response, watch):
            left_s = limit_s - watch.lived_s()
            data = whole(response.iter_raw(), limit_s=left_s, now=watch.lived_s)
        return parsed(data, expected=f"what {path} should say")

    @contextlib.contextmanager
    def _sent(
        self, method: str, path: str, body: Json | None, *, limit_s: float
    ) -> Iterator[tuple[httpx.Response, Watch]]:
        """
        A response that has begun, and who watches over it.

        An error of the server is raised as one.
        """
        watch = Watch(limit_s, is_leaving=self._is_leaving)
        # Of reading the watch takes care.
        timeout = httpx.Timeout(limit_s, connect=min(SHORT_S, limit_s), read=None)
        try:
            with self._http.stream(
                method,
                path,
                json=body,
                timeout=timeout,
                extensions={"trace": watch.trace},
            ) as response:
                if not response.is_success:
                    stated = beginning(response.iter_raw())
                    raise refusal(stated, code=response.status_code)
                yield response, watch
        except httpx.WriteTimeout as error:
            raise ServerSilent(silence_s=limit_s) from error
        except (httpx.TransportError, CellError) as error:
            if watch.barked:
                raise ServerSilent(silence_s=limit_s) from error
            if watch.saw_leaving:
                raise ServerGone(reason="somebody told it to end") from error
            if isinstance(error, CellError):
                raise
            raise ServerGone(reason=str(error) or type(error).__name__) from error
        finally:
            watch.end()
