"""Messages to and from a server: JSON bodies of requests; responses, decoded."""

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

import msgspec

from codeneedle.errors import CellError
from codeneedle.records.record import Finish, Generation, Json, Status
from codeneedle.text import harmless, size

TOP_TOKENS = 2
"""Most probable tokens asked for per position: the one that comes, and the next."""

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


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a chat: its role (``user``, ``assistant``) and its text."""

    role: str
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """
    A text to continue.

    Attributes:
        prompt: The text.
        max_tokens: Tokens that the reply may have.
        seed: Of sampling; without effect on greedy sampling, but logged.
    """

    prompt: str
    max_tokens: int
    seed: int = 0

    def body(self) -> Json:
        """The body for ``/completion``."""
        return {
            "prompt": self.prompt,
            "n_predict": self.max_tokens,
            "seed": self.seed,
            "n_probs": TOP_TOKENS,
            "response_fields": FIELDS,
            **STREAMING,
            **NEUTRAL_SAMPLING,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """
    A conversation to answer.

    Attributes:
        messages: The messages; a last one of the assistant is continued.
        max_tokens: Tokens that the reply may have, thinking included.
        seed: Of sampling.
        template_args: Variables of the chat template: ``enable_thinking``.
    """

    messages: tuple[Message, ...]
    max_tokens: int
    seed: int = 0
    template_args: Mapping[str, object] = field(default_factory=dict)

    def body(self) -> Json:
        """The body for ``/v1/chat/completions``."""
        return {
            **conversation(self.messages, self.template_args),
            "max_tokens": self.max_tokens,
            "seed": self.seed,
            "logprobs": True,
            "top_logprobs": TOP_TOKENS,
            **STREAMING,
            **NEUTRAL_SAMPLING,
        }


def conversation(
    messages: tuple[Message, ...], template_args: Mapping[str, object]
) -> Json:
    """The part of a request from which the chat template is filled."""
    body: Json = {"messages": [asdict(message) for message in messages]}
    if template_args:
        body["chat_template_kwargs"] = dict(template_args)
    return body


QUOTE_CHARACTERS = 200
"""What an error quotes of an answer that cannot be read."""

EXCEEDED = "exceed_context_size_error"
"""llama-server's error type for a prompt that is longer than its context."""

LOWEST_LOGPROB = -104.0
"""
Stands for a probability of zero, NaN or nothing.

The smallest number that a 32-bit float can hold is exp(-103.97); llama-server
says -3.4e38 where a probability is less, and null where it is NaN.
"""

LONGEST_TOKEN = 1024
"""Characters; the longest of known vocabularies, runs of blanks, have some hundred."""

DIGITS = 4
"""Decimals kept of log-probabilities and milliseconds."""

NO_ID = -1
"""Number of a token whose number the server does not tell."""

_Layout = TypeVar("_Layout")


class ServerGone(CellError):  # noqa: N818 - named after the fact
    """There is no connection, or it broke; the process may have ended."""

    def __init__(self, *, reason: str) -> None:
        super().__init__(
            f"the connection to the server failed: {reason}",
            hint="See the server's log for the cause.",
        )


class ServerSilent(CellError):  # noqa: N818 - named after the fact
    """The server is connected and sends nothing that counts."""

    status = Status.TIMED_OUT.value

    def __init__(self, *, silence_s: float) -> None:
        super().__init__(
            f"the server said nothing for {silence_s:g} s",
            hint="Too slow a pair for this machine? Leave it out, or try a smaller "
            "context.",
        )


class BadReply(CellError):  # noqa: N818 - named after the fact
    """The server's answer cannot be read, or is longer than any answer could be."""

    def __init__(
        self, *, expected: str = "", found: str = "", limit_bytes: int = 0
    ) -> None:
        super().__init__(
            f"the server's answer is longer than {size(limit_bytes)}"
            if limit_bytes
            else f"the server did not answer with {expected}: {quoted(found)}",
            hint="Is it the kind of server that --engine names? Its log may tell more.",
        )


class Refused(CellError):  # noqa: N818 - named after the fact
    """
    The server answered with an error.

    Attributes:
        code: HTTP status.
        kind: The server's type of the error, such as ``invalid_request_error``.
        message: What it said.
        retry_after: When to ask again, as it says it in HTTP; mostly empty.
    """

    retry_after: str = ""

    def __init__(self, *, code: int, kind: str, message: str) -> None:
        super().__init__(
            f"the server refused with {code} {kind}: {quoted(message)}",
            hint="The server's log may tell more.",
        )
        self.code = code
        self.kind = kind
        self.message = message


class PromptTooLong(Refused):
    """
    The prompt exceeds the context.

    Attributes:
        prompt_tokens: Length of the prompt.
        context: Size of the context, in tokens.
    """

    def __init__(self, *, message: str, prompt_tokens: int, context: int) -> None:
        super().__init__(code=400, kind=EXCEEDED, message=message)
        # One token more than the prompt, so that there is room for a reply.
        self.hint = f"Use --context {(prompt_tokens // 256 + 1) * 256} or more."
        self.prompt_tokens = prompt_tokens
        self.context = context


class Readiness(StrEnum):
    """State of a server; a stranger is one that is not ours."""

    READY = "ready"
    LOADING = "loading"
    SILENT = "silent"
    STRANGER = "stranger"


@dataclass(frozen=True, slots=True)
class Tokens:
    """Answer of ``/tokenize``: numbers of tokens."""

    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TokenPiece:
    """
    A token and its part of the text.

    Attributes:
        id: Its number.
        piece: The part; its bytes, where they are no valid UTF-8.
    """

    id: int
    piece: str | tuple[int, ...]

    @property
    def size(self) -> int:
        """Length of the part, in bytes of UTF-8."""
        if isinstance(self.piece, str):
            # Lone surrogates cannot be encoded; no vocabulary has them.
            return len(self.piece.encode(errors="replace"))
        return len(self.piece)


@dataclass(frozen=True, slots=True)
class Pieces:
    """Answer of ``/tokenize`` to a request with ``with_pieces``."""

    tokens: tuple[TokenPiece, ...]


@dataclass(frozen=True, slots=True)
class Rendered:
    """Answer of ``/apply-template``: a chat as one text."""

    prompt: str


def parsed(data: bytes, *, expected: str) -> Json:
    """
    The JSON object that *data* is; bytes that are no UTF-8 become U+FFFD.

    Raises:
        BadReply: If it is anything else.
    """
    text = data.decode(errors="replace")
    try:
        # Not msgspec's decoder: this one also reads the NaN of older builds.
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadReply(expected=expected, found=text) from error
    if not isinstance(found, dict):
        raise BadReply(expected=expected, found=text)
    return found


def refuse_beyond(limit: int, length: int) -> None:
    """
    Stop at an answer of more than *limit* bytes or characters.

    Raises:
        BadReply: If *length* is more.
    """
    if length > limit:
        raise BadReply(limit_bytes=limit)


def refusal(data: bytes, *, code: int) -> Refused:
    """The error that a server states in *data*, or one that quotes it."""
    try:
        stated = shaped(
            parsed(data, expected="an error"), _Refusal, expected="an error"
        ).error
    except BadReply:
        text = data[: 4 * QUOTE_CHARACTERS].decode(errors="replace")
        return Refused(code=code, kind="answer", message=text)
    if stated.type == EXCEEDED and stated.n_prompt_tokens and stated.n_ctx:
        return PromptTooLong(
            message=harmless(stated.message),
            prompt_tokens=stated.n_prompt_tokens,
            context=stated.n_ctx,
        )
    # An error in the middle of a stream comes after a 200, and has its own code.
    code = stated.code if isinstance(stated.code, int) else code
    kind, message = harmless(stated.type), harmless(stated.message)
    return Refused(code=code, kind=kind, message=message)


def shaped(answer: Any, layout: type[_Layout], *, expected: str) -> _Layout:
    """
    Check what came as JSON against *layout*; what it does not name is ignored.

    Raises:
        BadReply: If it does not fit.
    """
    try:
        return msgspec.convert(answer, type=layout)
    except (msgspec.ValidationError, OverflowError, RecursionError) as error:
        # Not the answer itself: its text may be far longer than its bytes were.
        raise BadReply(expected=expected, found=str(error)) from error


def quoted(text: str) -> str:
    """The beginning of *text*, in one line and without control characters."""
    start = harmless(text[:QUOTE_CHARACTERS])
    line = " ".join("".join(c if c.isprintable() else " " for c in start).split())
    return f"'{line}…'" if len(text) > QUOTE_CHARACTERS else f"'{line}'"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stated:
    message: str = ""
    type: str = "error"
    code: int | str | None = None
    n_prompt_tokens: int | None = None
    n_ctx: int | None = None


@dataclass(frozen=True, slots=True)
class _Refusal:
    error: _Stated


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply(Generation):
    """
    A model's reply.

    Attributes:
        text: The answer, verbatim; lone surrogates are U+FFFD.
        reasoning: The thinking before it, where the server separates that.
        finish: Why it ended; ``cut`` if we ended it.
    """

    text: str
    reasoning: str = ""
    finish: Finish


@dataclass(frozen=True, slots=True)
class Token:
    """
    A generated token, or a candidate for its position.

    Attributes:
        id: Its number.
        logprob: Natural logarithm of its probability, as the server states it.
        top_logprobs: The most probable candidates; of a candidate, none.
    """

    id: int = NO_ID
    logprob: float | None = None
    top_logprobs: "tuple[Token, ...]" = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Counts of tokens and milliseconds so far, as the server states them."""

    cache_n: int = 0
    prompt_n: int = 0
    prompt_ms: float | None = 0.0
    predicted_n: int = 0
    predicted_ms: float | None = 0.0
    draft_n: int = 0
    draft_n_accepted: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamEvent:
    """One event of a stream, whichever endpoint sent it."""

    text: str = ""
    reasoning: str = ""
    tokens: tuple[Token, ...] = ()
    timings: Timings | None = None
    finish: Finish | None = None


def reply_of(
    events: Iterable[Json],
    *,
    read: Callable[[Json], StreamEvent],
    enough: Callable[[str], bool],
    max_tokens: int,
) -> Reply:
    """
    Join a stream's *events* into one reply.

    Args:
        events: As decoded from JSON.
        read: Reads one event of the endpoint in use.
        enough: Called with the text so far after each event with a line break,
            however the bytes arrived; ends the reply when it returns True.
        max_tokens: Tokens that were asked for.

    Raises:
        BadReply: If an event is none, or the reply is longer than *max_tokens*
            tokens can be.
        ServerGone: If the stream ends without a last event.
    """
    partial = _PartialReply()
    for each in events:
        event = read(each)
        partial.add(event)
        refuse_beyond(LONGEST_TOKEN * max_tokens, partial.characters)
        if "\n" in event.text and event.finish is None and enough(partial.joined()):
            partial.finish = "cut"
            break
    if partial.finish is None:
        tokens = len(partial.logprobs)
        raise ServerGone(
            reason=f"the stream ended after {tokens} tokens, without its last event"
        )
    return partial.reply(partial.finish)


def completion_event(event: Json) -> StreamEvent:
    """Read an event of ``/completion``."""
    found = shaped(event, _Completion, expected="an event of a completion")
    limited = found.stop_type == "limit" or found.stopped_limit
    ending: Finish = "length" if limited else "stop"
    return StreamEvent(
        text=found.content,
        tokens=found.completion_probabilities,
        timings=found.timings,
        finish=ending if found.stop else None,
    )


def chat_event(event: Json) -> StreamEvent:
    """Read an event of ``/v1/chat/completions``."""
    found = shaped(event, _Chat, expected="an event of a chat")
    if not found.choices:  # the one that states usage
        return StreamEvent(timings=found.timings)
    choice = found.choices[0]
    reason = choice.finish_reason
    ending: Finish = "length" if reason == "length" else "stop"
    return StreamEvent(
        text=choice.delta.content or "",
        reasoning=choice.delta.reasoning_content or "",
        tokens=(choice.logprobs and choice.logprobs.content) or (),
        timings=found.timings,
        finish=ending if reason else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Completion:
    content: str
    stop: bool = False
    stop_type: str = ""
    stopped_limit: bool = False  # what older builds say instead
    timings: Timings | None = None
    completion_probabilities: tuple[Token, ...] = ()


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
class _Chat:
    choices: tuple[_Choice, ...]
    timings: Timings | None = None


@dataclass(slots=True)
class _PartialReply:
    """The part of a reply that has been received."""

    characters: int = 0
    texts: list[str] = field(default_factory=list)
    reasonings: list[str] = field(default_factory=list)
    finish: Finish | None = None
    timings: Timings = field(default_factory=Timings)
    logprobs: list[float] = field(default_factory=list)
    gaps: list[float | None] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)

    def add(self, event: StreamEvent) -> None:
        """Append one event."""
        self.texts.append(harmless(event.text))
        self.reasonings.append(harmless(event.reasoning))
        self.characters += len(event.text) + len(event.reasoning)
        self.timings = event.timings or self.timings
        self.finish = self.finish or event.finish
        for token in event.tokens:
            self.logprobs.append(rounded(logarithm(token.logprob)))
            self.gaps.append(_gap(token))
            self.lengths.append(0)
        # Servers send a token with its text, or several with theirs.
        if self.lengths:
            self.lengths[-1] += len(event.text)

    def joined(self) -> str:
        """The text so far; only joined on request, as that copies all of it."""
        self.texts[:] = ["".join(self.texts)]
        return self.texts[0]

    def reply(self, finish: Finish) -> Reply:
        """What has been received, as a complete reply."""
        timings = self.timings
        gaps = [gap for gap in self.gaps if gap is not None]
        return Reply(
            text=self.joined(),
            reasoning="".join(self.reasonings),
            finish=finish,
            prompt_tokens=timings.cache_n + timings.prompt_n,
            cached_tokens=timings.cache_n,
            prompt_ms=rounded(timings.prompt_ms or 0.0),
            predicted_tokens=timings.predicted_n,
            predicted_ms=rounded(timings.predicted_ms or 0.0),
            logprobs=tuple(self.logprobs),
            gaps=tuple(gaps) if len(gaps) == len(self.gaps) else (),
            lengths=tuple(self.lengths),
            drafted=timings.draft_n,
            accepted=timings.draft_n_accepted,
        )


def _gap(token: Token) -> float | None:
    """The lead over the best other token; None where the server names none."""
    others = [logarithm(o.logprob) for o in token.top_logprobs if o.id != token.id]
    if token.id == NO_ID or not others:
        return None
    return rounded(logarithm(token.logprob) - max(others))


def logarithm(logprob: float | None) -> float:
    """*logprob* within its range; the lowest where it is none."""
    if logprob is None or math.isnan(logprob):
        return LOWEST_LOGPROB
    return min(0.0, max(LOWEST_LOGPROB, logprob))


def rounded(number: float) -> float:
    """*number* with the decimals that are kept; 0 where it is infinite or none."""
    # Adding zero turns -0.0 into 0.0.
    return round(number, DIGITS) + 0.0 if math.isfinite(number) else 0.0
