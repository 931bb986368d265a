"""What the events of a server say, put together; how they travel is not known here."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from codeneedle.answers import OverlongReply, StreamEnded, shaped
from codeneedle.records import Json
from codeneedle.rounds import Finish
from codeneedle.units import harmless

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """
    What a model said, and what the server says about that.

    Attributes:
        text: The answer, verbatim; lone surrogates are U+FFFD.
        reasoning: What it thought before, where the server keeps that apart.
        finish: Why it ended: ``cut`` if we had enough.
        prompt_tokens: Length of the prompt, in tokens.
        cached_tokens: Of these, taken from the cache.
        prompt_ms: Time to read the others.
        predicted_tokens: Tokens written.
        predicted_ms: Time to write them.
        wall_s: From request to the end of the reply, seen from here.
        logprobs: Per token, natural logarithm of its probability. Bytes of a
            character that takes several tokens are told apart by no server, so
            there may be fewer of these than tokens.
        gaps: Per token, its log-probability minus the best other one's.
        lengths: Per token, the characters that it added to the text.
        ids: Per token, its number; empty where the server does not tell.
        drafted: Tokens that were guessed before they were computed.
        accepted: Of these, the right ones.
    """

    text: str
    reasoning: str = ""
    finish: Finish
    prompt_tokens: int = 0
    cached_tokens: int = 0
    prompt_ms: float = 0.0
    predicted_tokens: int = 0
    predicted_ms: float = 0.0
    wall_s: float = 0.0
    logprobs: tuple[float, ...] = ()
    gaps: tuple[float, ...] = ()
    lengths: tuple[int, ...] = ()
    ids: tuple[int, ...] = ()
    drafted: int = 0
    accepted: int = 0


@dataclass(frozen=True, slots=True)
class Other:
    """A token that might have come, with its log-probability."""

    id: int = -1
    logprob: float | None = None


@dataclass(frozen=True, slots=True)
class Token:
    """A token that came, and the most probable ones in its place."""

    id: int = -1
    logprob: float | None = None
    top_logprobs: tuple[Other, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Counts and milliseconds so far, as the server states them."""

    cache_n: int = 0
    prompt_n: int = 0
    prompt_ms: float | None = 0.0
    predicted_n: int = 0
    predicted_ms: float | None = 0.0
    draft_n: int = 0
    draft_n_accepted: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One event of a stream, whichever endpoint sent it."""

    text: str = ""
    reasoning: str = ""
    tokens: tuple[Token, ...] = ()
    ids: tuple[int, ...] = ()
    timings: Timings | None = None
    finish: Finish | None = None


def reply_of(
    events: Iterable[Json],
    *,
    read: Callable[[Json], Piece],
    enough: Callable[[str], bool],
    max_tokens: int,
) -> Reply:
    """
    Put a stream's *events* together, up to the first token with which it is enough.

    *enough* is asked of the text so far, after each event with a line break: how
    the bytes were cut on their way makes no difference.

    Raises:
        OverlongReply: If it is longer than *max_tokens* tokens can be.
        WrongShape: If an event is none.
        StreamEnded: If there is no last event, and it never was enough.
    """
    said = _Said()
    for event in events:
        piece = read(event)
        said.add(piece)
        if said.characters > LONGEST_TOKEN * max_tokens:
            raise OverlongReply(limit_bytes=LONGEST_TOKEN * max_tokens)
        if "\n" in piece.text and piece.finish is None and enough(said.text):
            said.finish = "cut"
            break
    if said.finish is None:
        raise StreamEnded(tokens=len(said.logprobs))
    return said.reply(said.finish)


def completion_piece(event: Json) -> Piece:
    """Read an event of ``/completion``."""
    found = shaped(event, _CompletionEvent, expected="an event of a completion")
    limited = found.stop_type == "limit" or found.stopped_limit
    ending: Finish = "length" if limited else "stop"
    return Piece(
        text=found.content,
        tokens=found.completion_probabilities,
        # Events on the progress of reading name a token, though none has come.
        ids=() if found.stop or found.prompt_progress else found.tokens,
        timings=found.timings,
        finish=ending if found.stop else None,
    )


def chat_piece(event: Json) -> Piece:
    """Read an event of ``/v1/chat/completions``."""
    found = shaped(event, _ChatEvent, expected="an event of a chat")
    if not found.choices:  # the one that states usage
        return Piece(timings=found.timings)
    choice = found.choices[0]
    reason = choice.finish_reason
    ending: Finish = "length" if reason == "length" else "stop"
    return Piece(
        text=choice.delta.content or "",
        reasoning=choice.delta.reasoning_content or "",
        tokens=(choice.logprobs and choice.logprobs.content) or (),
        timings=found.timings,
        finish=ending if reason else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _CompletionEvent:
    content: str
    tokens: tuple[int, ...] = ()
    prompt_progress: object = None
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
class _ChatEvent:
    choices: tuple[_Choice, ...]
    timings: Timings | None = None


@dataclass(slots=True)
class _Said:
    """A reply while it grows."""

    characters: int = 0
    texts: list[str] = field(default_factory=list)
    reasonings: list[str] = field(default_factory=list)
    finish: Finish | None = None
    timings: Timings = field(default_factory=Timings)
    logprobs: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)

    def add(self, piece: Piece) -> None:
        self.texts.append(harmless(piece.text))
        self.reasonings.append(harmless(piece.reasoning))
        self.characters += len(piece.text) + len(piece.reasoning)
        self.timings = piece.timings or self.timings
        self.finish = self.finish or piece.finish
        self.ids += piece.ids
        for token in piece.tokens:
            self.logprobs.append(_rounded(_logarithm(token.logprob)))
            self.gaps.append(_rounded(_gap(token)))
            self.lengths.append(0)
        # Servers send a token with its text, or several with theirs.
        if self.lengths:
            self.lengths[-1] += len(piece.text)

    @property
    def text(self) -> str:
        # Joined when it is asked for: each event would copy all that came before.
        self.texts[:] = ["".join(self.texts)]
        return self.texts[0]

    def reply(self, finish: Finish) -> Reply:
        timings = self.timings
        return Reply(
            text=self.text,
            reasoning="".join(self.reasonings),
            finish=finish,
            prompt_tokens=timings.cache_n + timings.prompt_n,
            cached_tokens=timings.cache_n,
            prompt_ms=_rounded(timings.prompt_ms or 0.0),
            predicted_tokens=timings.predicted_n,
            predicted_ms=_rounded(timings.predicted_ms or 0.0),
            logprobs=tuple(self.logprobs),
            gaps=tuple(self.gaps),
            lengths=tuple(self.lengths),
            ids=tuple(self.ids),
            drafted=timings.draft_n,
            accepted=timings.draft_n_accepted,
        )


def _gap(token: Token) -> float:
    """Zero where the server names no other token: it is no observation of a lead."""
    others = [_logarithm(o.logprob) for o in token.top_logprobs if o.id != token.id]
    return _logarithm(token.logprob) - max(others) if others else 0.0


def _logarithm(logprob: float | None) -> float:
    if logprob is None or math.isnan(logprob):
        return LOWEST_LOGPROB
    return min(0.0, max(LOWEST_LOGPROB, logprob))


def _rounded(number: float) -> float:
    # Adding zero turns -0.0 into 0.0.
    return round(number, DIGITS) + 0.0 if math.isfinite(number) else 0.0
