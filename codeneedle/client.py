"""The edge to HTTP: talks to one llama-server on loopback, in our own words."""

import contextlib
import itertools
import json
import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Self, TypeVar

import httpx

from codeneedle.answers import (
    OverlongReply,
    Pieces,
    Readiness,
    Refused,
    Rendered,
    ServerGone,
    ServerSilent,
    TokenPiece,
    Tokens,
    WrongShape,
    parsed,
    refusal,
    shaped,
)
from codeneedle.errors import CellError
from codeneedle.listening import Watch, beginning, lines, whole
from codeneedle.questions import Chat, Completion, Message, conversation
from codeneedle.records import Json
from codeneedle.replies import Piece, Reply, chat_piece, completion_piece, reply_of

__all__ = ["Chat", "Client", "Completion", "Reply"]

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
