"""
llama-server's API: its endpoints, when it is ready though it says so too early, the
bodies of requests, the events of replies.
"""

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from http import HTTPStatus
from typing import Literal, TypeVar

from codeneedle.engines.http import REPLY_LIMIT_BYTES, SHORT_S, Connection, never_enough
from codeneedle.engines.llama_cpp.forced import (
    NextTokens,
    request_token_scores,
    right_token_ends_by_place,
)
from codeneedle.engines.messages import (
    TOP_TOKENS,
    BadReply,
    Chat,
    Completion,
    Finish,
    Forced,
    Message,
    Progress,
    Readiness,
    ReadOtherwise,
    Refused,
    Reply,
    ServerGone,
    ServerSilent,
    StreamEvent,
    Timings,
    Token,
    TokenPiece,
    check_and_convert_answer,
    quote_beginning,
    read_reply_stream,
)
from codeneedle.records.record import Json

_Layout = TypeVar("_Layout")

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
    # Penalties act before the temperature does: they would change a verbatim
    # repetition, which is what we ask for.
    "repeat_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "dry_multiplier": 0.0,
}
"""
Greedy sampling without penalties.

Each is stated though most are the server's defaults: a GGUF may carry its own
(``general.sampling.*``), and so may the user's arguments.
"""

STREAMING: Json = {
    "stream": True,
    "cache_prompt": True,
    # Stated with every token, because a reply that is cut has no last event.
    "timings_per_token": True,
    # One event per batch of the prompt: shows progress where pings are not sent.
    "return_progress": True,
}
"""
Streaming costs about a tenth of the speed of a model that writes 600 tokens per
second, and saves whatever a model writes beyond its answer. Probabilities and
timings in the events cost nothing that can be measured.
"""

FIELDS = ("content", "stop", "stop_type", "stopped_limit", "timings")
"""Fields of the last event; without this it repeats the prompt, maybe megabytes."""

COMPLETION, CHAT = "/completion", "/v1/chat/completions"

SLOT = "/slots/0"

SAVED = "cache.bin"
"""Name of the file with a saved cache, in the folder that the server was lent."""

EXCEEDED = "exceed_context_size_error"
"""Type of the error for a prompt that is longer than the context."""

WORTH_TELLING = 64
"""Least tokens of a prompt whose progress is reported."""

CERTAIN = 1e6
"""Logit bias, in nats, that makes a token come."""


class Client(Connection):
    """
    Talks to one llama-server, one request at a time.

    Implements `engine.Replies`, `engine.Tokenizer` and `engine.ChatTemplate`.
    """

    refusal: str = ""  # what it last answered while it was not ready; mostly empty

    def readiness(self, alias: str, *, limit_s: float = SHORT_S) -> Readiness:
        """
        State of the server; one that answers with another name is a stranger.

        One that says it is well, and answers a question with 503, is still loading. An
        error that it answers with is kept in `refusal`.

        Args:
            alias: The name that ours was given.
            limit_s: Time limit for each of three questions, in seconds.
        """
        self.refusal = ""
        try:
            self._ask("GET", "/health", dict, limit_s=limit_s)
            models = self._ask("GET", "/v1/models", dict, limit_s=limit_s)
            self._refuse_while_loading(limit_s)
        except Refused as error:
            is_loading = error.code == HTTPStatus.SERVICE_UNAVAILABLE
            self.refusal = f"{error.code} {quote_beginning(error.message)}"
            return Readiness.LOADING if is_loading else Readiness.STRANGER
        except (ServerGone, ServerSilent):
            return Readiness.SILENT
        except BadReply:
            return Readiness.STRANGER
        # Searched as text: a foreign server may answer with anything.
        is_ours = json.dumps(alias) in json.dumps(models)
        return Readiness.READY if is_ours else Readiness.STRANGER

    def _refuse_while_loading(self, limit_s: float) -> None:
        """
        Stop at a server that answers about itself before it has loaded.

        What else it answers to a question is not of its readiness.

        Raises:
            Refused: With 503, as such a server, or what stands before it, answers.
        """
        try:
            self._ask("POST", "/tokenize", dict, {"content": ""}, limit_s=limit_s)
        except Refused as error:
            if error.code == HTTPStatus.SERVICE_UNAVAILABLE:
                raise
        except (BadReply, ServerGone, ServerSilent):
            pass

    def count_tokens(self, text: str) -> int:
        """
        Length of *text* with the token that begins a prompt.

        Special ones count as one.
        """
        return len(self._token_ids(text))

    def token_counts_without_special(self, texts: Sequence[str]) -> list[int]:
        """
        Lengths of *texts* without the token that begins a prompt.

        Special ones are one.
        """
        return [len(self._token_ids(text, add_special=False)) for text in texts]

    def tokens(self, text: str, *, add_special: bool = True) -> tuple[TokenPiece, ...]:
        """The tokens of *text*, where words that look like special tokens are text."""
        return self._token_pieces(text, add_special=add_special, parse_special=False)

    def render(
        self,
        messages: tuple[Message, ...],
        template_args: Mapping[str, object] | None = None,
    ) -> str:
        """The prompt that the chat template makes of *messages*."""
        body = template_body(messages, template_args or {})
        return self._post_for_answer("/apply-template", _Rendered, body).prompt

    def render_conversation(
        self,
        messages: Sequence[Json],
        tools: Sequence[Json],
        *,
        begins_reply: bool,
        thinking: bool,
    ) -> str:
        """
        The text of *messages*, with what begins an answer behind it if *begins_reply*.

        By a server with ``--no-prefill-assistant``: a last message of the assistant is
        whole.
        """
        body: Json = {
            "messages": messages,
            "add_generation_prompt": begins_reply,
            "chat_template_kwargs": {"enable_thinking": thinking},
        }
        if tools:
            body["tools"] = tools
        return self._post_for_answer("/apply-template", _Rendered, body).prompt

    def complete(
        self, question: Completion, *, enough: Callable[[str], bool] = never_enough
    ) -> Reply:
        """
        Continue a text, until the model ends or the reply is long *enough*.

        Args:
            question: What to ask.
            enough: Called with the reply so far at each line break.

        Raises:
            Refused: If the server answers with an error; its hint names a context that
                suffices, if it is that the prompt is too long.
            ServerSilent: If no event comes for too long.
            ServerGone: If there is no connection, or it breaks before the last event.
            BadReply: If what comes is no event, or has no end.
        """
        body = completion_body(question)
        limit = question.max_tokens
        return self._request_streamed_reply(
            COMPLETION, body, parse_completion_event, enough, max_tokens=limit
        )

    def chat(
        self, question: Chat, *, enough: Callable[[str], bool] = never_enough
    ) -> Reply:
        """Answer a conversation; errors are those of `complete`."""
        body, limit = chat_body(question), question.max_tokens
        return self._request_streamed_reply(
            CHAT, body, parse_chat_event, enough, max_tokens=limit
        )

    def force(self, question: Completion | Chat, right: str) -> Forced:
        """
        Score *right* as the answer to *question*, token by token.

        Its tokens are those of prompt and answer as one text, from the first that
        the prompt alone does not have.

        Args:
            question: What to ask; a chat as its template renders it.
            right: The answer, verbatim; not empty.

        Raises:
            CellError: See `complete`; and if tokens were drafted, which have no
                probabilities.
        """
        started = time.perf_counter()
        prompt = (
            question.prompt
            if isinstance(question, Completion)
            else self.render(question.messages, question.template_args)
        )
        whole = self._token_pieces(prompt + right)
        ends = right_token_ends_by_place(self._token_ids(prompt), whole, right)
        ids = tuple(token.id for token in whole)
        at, size = min(ends), len(ids) - min(ends)

        def ask(wanted: NextTokens) -> tuple[Reply, list[Token]]:
            return self._force_tokens(wanted, before=len(wanted.before) - at, of=size)

        is_plain = all(isinstance(token.piece, str) for token in whole[at:])
        has_special = self._token_ids(right, parse_special=False) != self._token_ids(
            right
        )
        reply, scores = request_token_scores(
            NextTokens(before=ids[:at], tokens=ids[at:], seed=question.seed),
            ask,
            at_once=is_plain and not has_special,
            other=lambda: self._token_ids("a", add_special=False)[-1],
        )
        return Forced(
            logprobs=tuple(score.logprob for score in scores),
            bounds=tuple(at for at, score in enumerate(scores) if score.is_bound),
            leads=tuple(score.lead for score in scores),
            ends=tuple(ends.values()),
            prompt_tokens=reply.prompt_tokens,
            cached_tokens=reply.cached_tokens,
            wall_s=round(time.perf_counter() - started, 4),
        )

    def act_on_slot(self, action: Literal["save", "restore"]) -> None:
        """
        Write the cache of the one slot to a file, or replace it by what is there.

        Raises:
            Refused: If the server cannot.
        """
        path, body = f"{SLOT}?action={action}", {"filename": SAVED}
        self._post_for_answer(path, _Slot, body)

    def wait_idle(self) -> None:
        """
        Wait until the server has ended a reply that was cut, by asking for one token.

        It computes its current batch to the end; and llama-server b11434, told to
        shut down at that moment, hangs in one of forty tries.

        Raises:
            CellError: See `complete`.
        """
        self.complete(Completion(prompt="\n", max_tokens=1))

    def _request_streamed_reply(
        self,
        path: str,
        body: Json,
        read: Callable[[Json], StreamEvent],
        enough: Callable[[str], bool],
        *,
        max_tokens: int,
        before: int = 0,
        of: int = 0,
    ) -> Reply:
        """
        The streamed answer to *body*; see `messages.read_reply_stream`.

        Args:
            path: Of the endpoint.
            body: Sent as JSON.
            read: Reads an event.
            enough: Whether a reply is long enough.
            max_tokens: Tokens that it may have.
            before: Tokens that came by earlier requests, for how far it is.
            of: Tokens of all these requests; 0 for those of this one.
        """

        def tell(at: Progress) -> None:
            whole = Progress(before + at.done, of or max_tokens)
            self.tell(at if at.is_prompt else whole)

        started = time.perf_counter()
        try:
            with self._post_for_stream(path, body) as response:
                reply = read_reply_stream(
                    self._events(response),
                    read=lambda event: self._shorten_deadline_at_end(read(event)),
                    enough=enough,
                    max_tokens=max_tokens,
                    tell=tell,
                )
        except Refused as error:
            tokens = error.counts.get("n_prompt_tokens", 0)
            if error.kind == EXCEEDED and tokens:
                # One token more than the prompt, so that there is room for a reply.
                error.hint = f"Use --context {(tokens // 256 + 1) * 256} or more."
            raise
        return replace(reply, wall_s=round(time.perf_counter() - started, 4))

    def _post_for_answer(self, path: str, layout: type[_Layout], body: Json) -> _Layout:
        """The answer to *body* that comes as a whole, within the limit of silence."""
        limit_s, known = self.silence_limit.limit_and_cause(self._silence_s)
        try:
            return self._ask(
                "POST",
                path,
                layout,
                body,
                limit_s=limit_s,
                limit_bytes=REPLY_LIMIT_BYTES,
            )
        except ServerSilent as error:
            raise ServerSilent(silence_s=limit_s, known=known) from error

    def _force_tokens(
        self, wanted: NextTokens, *, before: int, of: int
    ) -> tuple[Reply, list[Token]]:
        """
        Have the tokens *wanted* written: the reply, and each token with its candidates.

        Args:
            wanted: Prompt and tokens.
            before: For the progress that is told; see `_request_streamed_reply`.
            of: Likewise.

        Raises:
            ReadOtherwise: If the server read another number of tokens of the prompt
                than it was sent.
        """
        came: list[Token] = []

        def parse_and_collect_event(event: Json) -> StreamEvent:
            stated = parse_completion_event(event)
            came.extend(stated.tokens)
            return stated

        body, limit = forcing_body(wanted), len(wanted.tokens)
        reply = self._request_streamed_reply(
            COMPLETION,
            body,
            parse_and_collect_event,
            never_enough,
            max_tokens=limit,
            before=before,
            of=of,
        )
        if reply.prompt_tokens != len(wanted.before):
            raise ReadOtherwise(read=reply.prompt_tokens, sent=len(wanted.before))
        return reply, came

    def _token_ids(
        self, text: str, *, add_special: bool = True, parse_special: bool = True
    ) -> tuple[int, ...]:
        """
        Numbers of the tokens of *text*.

        Special ones are read unless told otherwise.
        """
        body = tokenize_body(text, add_special, parse_special)
        return self._post_for_answer("/tokenize", _Ids, body).tokens

    def _token_pieces(
        self, text: str, *, add_special: bool = True, parse_special: bool = True
    ) -> tuple[TokenPiece, ...]:
        """The tokens of *text* with their bytes; for special ones, see `_token_ids`."""
        body = tokenize_body(text, add_special, parse_special)
        return self._post_for_answer(
            "/tokenize", _Pieces, body | {"with_pieces": True}
        ).tokens


# --- requests


def completion_body(question: Completion) -> Json:
    """The request that *question* is, for `COMPLETION`."""
    return {
        "prompt": question.prompt,
        "n_predict": question.max_tokens,
        "seed": question.seed,
        "n_probs": TOP_TOKENS,
        "response_fields": FIELDS,
        **STREAMING,
        **NEUTRAL_SAMPLING,
    }


def forcing_body(wanted: NextTokens) -> Json:
    """Request body that forces ``wanted.tokens`` by grammar or logit bias."""
    size = len(wanted.tokens)
    question = Completion(prompt="", max_tokens=size, seed=wanted.seed)
    body = completion_body(question) | {
        "prompt": wanted.before,
        "n_probs": wanted.listed,
    }
    if size == 1:
        return body | {"logit_bias": [[wanted.tokens[0], CERTAIN]]}
    grammar = " ".join(f"<[{token}]>" for token in wanted.tokens)
    return body | {"grammar": f"root ::= {grammar}"}


def chat_body(question: Chat) -> Json:
    """The request that *question* is, for `CHAT`."""
    return {
        **template_body(question.messages, question.template_args),
        "max_tokens": question.max_tokens,
        "seed": question.seed,
        "logprobs": True,
        "top_logprobs": TOP_TOKENS,
        **STREAMING,
        **NEUTRAL_SAMPLING,
    }


def template_body(
    messages: tuple[Message, ...], template_args: Mapping[str, object]
) -> Json:
    """The part of a request from which the chat template is filled."""
    body: Json = {"messages": [asdict(message) for message in messages]}
    if template_args:
        body["chat_template_kwargs"] = dict(template_args)
    return body


def tokenize_body(text: str, add_special: bool, parse_special: bool) -> Json:
    """The request for the tokens of *text*."""
    return {
        "content": text,
        "add_special": add_special,
        "parse_special": parse_special,
    }


# --- answers


@dataclass(frozen=True, slots=True)
class _Ids:
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Pieces:
    tokens: tuple[TokenPiece, ...]


@dataclass(frozen=True, slots=True)
class _Slot:
    id_slot: int


@dataclass(frozen=True, slots=True)
class _Rendered:
    prompt: str


def parse_completion_event(event: Json) -> StreamEvent:
    """Read an event of ``/completion``."""
    stated = check_and_convert_answer(
        event, _CompletionReply, expected="an event of a completion"
    )
    limited = stated.stop_type == "limit" or stated.stopped_limit
    ending: Finish = "length" if limited else "stop"
    return StreamEvent(
        text=stated.content,
        tokens=_with_nan_for_null(stated.completion_probabilities),
        timings=stated.timings,
        finish=ending if stated.stop else None,
        progress=_progress_if_worth_telling(stated.prompt_progress),
    )


def parse_chat_event(event: Json) -> StreamEvent:
    """Read an event of ``/v1/chat/completions``."""
    stated = check_and_convert_answer(event, _ChatReply, expected="an event of a chat")
    if not stated.choices:  # the one that states usage
        progress = _progress_if_worth_telling(stated.prompt_progress)
        return StreamEvent(timings=stated.timings, progress=progress)
    choice = stated.choices[0]
    reason = choice.finish_reason
    ending: Finish = "length" if reason == "length" else "stop"
    return StreamEvent(
        text=choice.delta.content or "",
        reasoning=choice.delta.reasoning_content or "",
        tokens=_with_nan_for_null((choice.logprobs and choice.logprobs.content) or ()),
        timings=stated.timings,
        finish=ending if reason else None,
        progress=_progress_if_worth_telling(stated.prompt_progress),
    )


def _with_nan_for_null(tokens: Sequence[Token]) -> tuple[Token, ...]:
    """*tokens* with NaN where llama-server says null, as JSON has no word for it."""
    return tuple(
        replace(
            token,
            logprob=math.nan if token.logprob is None else token.logprob,
            top_logprobs=_with_nan_for_null(token.top_logprobs),
        )
        for token in tokens
    )


def _progress_if_worth_telling(stated: "_PromptProgress | None") -> Progress | None:
    """
    How much of the prompt is read, of all of it.

    None if it has few tokens that were not cached.
    """
    if stated is None or stated.total - stated.cache < WORTH_TELLING:
        return None
    return Progress(stated.processed, stated.total, is_prompt=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class _PromptProgress:
    total: int = 0
    cache: int = 0
    processed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _CompletionReply:
    content: str
    stop: bool = False
    stop_type: str = ""
    stopped_limit: bool = False  # what older builds say instead
    timings: Timings | None = None
    completion_probabilities: tuple[Token, ...] = ()
    prompt_progress: _PromptProgress | None = None


@dataclass(frozen=True, slots=True)
class _Delta:
    content: str | None = None
    reasoning_content: str | None = None


@dataclass(frozen=True, slots=True)
class _Logprobs:
    content: tuple[Token, ...] | None = None


@dataclass(frozen=True, slots=True)
class _Choice:
    delta: _Delta
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None


@dataclass(frozen=True, slots=True)
class _ChatReply:
    choices: tuple[_Choice, ...]
    timings: Timings | None = None
    prompt_progress: _PromptProgress | None = None
