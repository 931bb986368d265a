"""What may come back from a server: JSON of the right shape, a refusal, or neither."""

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

import msgspec

from codeneedle.errors import CellError
from codeneedle.records import Json, Status
from codeneedle.units import harmless, size

QUOTE_CHARACTERS = 200
"""What an error quotes of an answer that makes no sense."""

_Layout = TypeVar("_Layout")


class WrongShape(CellError):  # noqa: N818 - named after the fact
    """The server answered with something that is no answer."""

    def __init__(self, *, expected: str, found: str) -> None:
        super().__init__(
            f"the server did not answer with {expected}: {quoted(found)}",
            hint="Is this a llama-server? codeneedle doctor shows its build.",
        )


class StreamEnded(CellError):  # noqa: N818 - named after the fact
    """A stream of tokens stopped without its last event."""

    def __init__(self, *, tokens: int) -> None:
        super().__init__(
            f"the stream ended after {tokens} tokens, without its last event",
            hint="The server's log tells what happened to it.",
        )


class Refused(CellError):  # noqa: N818 - named after the fact
    """
    The server answered with an error.

    Attributes:
        code: HTTP status.
        kind: The server's word for it, such as ``invalid_request_error``.
        message: What it said.
    """

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
        self.hint = f"Use --context {-(-prompt_tokens // 256) * 256} or more."
        self.prompt_tokens = prompt_tokens
        self.context = context


class ServerGone(CellError):  # noqa: N818 - named after the fact
    """Nobody is there, or the connection broke; the process may have died."""

    def __init__(self, *, reason: str) -> None:
        super().__init__(
            f"the connection to the server failed: {reason}",
            hint="The server's log tells what happened to it.",
        )


class ServerSilent(CellError):  # noqa: N818 - named after the fact
    """The server is connected and says nothing."""

    status = Status.TIMED_OUT.value

    def __init__(self, *, silence_s: float) -> None:
        super().__init__(
            f"the server said nothing for {silence_s:g} s",
            hint="Too slow a pair for this machine? Leave it out, or try a smaller "
            "context.",
        )


class OverlongReply(CellError):  # noqa: N818 - named after the fact
    """The server sends more than any answer to our question could have."""

    def __init__(self, *, limit_bytes: int) -> None:
        super().__init__(
            f"the server's answer is longer than {size(limit_bytes)}",
            hint="Is this a llama-server? codeneedle doctor shows its build.",
        )


class Readiness(StrEnum):
    """How far a server is."""

    READY = "ready"
    LOADING = "loading"
    SILENT = "silent"
    STRANGER = "stranger"


@dataclass(frozen=True, slots=True)
class Tokens:
    """What ``/tokenize`` says: numbers of tokens."""

    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TokenPiece:
    """
    A token and its part of the text.

    Attributes:
        id: Its number.
        piece: The part; its bytes, where they are no text of their own.
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
    """What ``/tokenize`` says if it is asked for the parts of the text, too."""

    tokens: tuple[TokenPiece, ...]


@dataclass(frozen=True, slots=True)
class Rendered:
    """What ``/apply-template`` says: a chat as one text."""

    prompt: str


EXCEEDED = "exceed_context_size_error"
"""What llama-server calls a prompt that is longer than its context."""


def parsed(data: bytes, *, expected: str) -> Json:
    """
    The JSON object that *data* is; bytes that are no UTF-8 become U+FFFD.

    Raises:
        WrongShape: If it is anything else.
    """
    text = data.decode(errors="replace")
    try:
        # Not msgspec's decoder: this one also reads the NaN of older builds.
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise WrongShape(expected=expected, found=text) from error
    if not isinstance(found, dict):
        raise WrongShape(expected=expected, found=text)
    return found


def refusal(data: bytes, *, code: int) -> Refused:
    """The error that a server states in *data*, or one that quotes it."""
    try:
        stated = shaped(
            parsed(data, expected="an error"), _Refusal, expected="an error"
        ).error
    except WrongShape:
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
        WrongShape: If it does not fit.
    """
    try:
        return msgspec.convert(answer, type=layout)
    except (msgspec.ValidationError, OverflowError, RecursionError) as error:
        raise WrongShape(expected=expected, found=f"{error} in {answer}") from error


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
