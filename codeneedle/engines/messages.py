"""
Questions to a server, its replies with the scores of their tokens, and its errors,
whatever API it has.
"""

import json
import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import fmean
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from codeneedle.errors import CellError
from codeneedle.records.record import Amount, Count, Json, LogProb, Nats, Status
from codeneedle.scores import (
    ROUNDING,
    ComputesNan,
    NoScore,
    NotANumber,
    checked_log_probability,
    refuse_contradiction,
    why_first_contradictory,
)
from codeneedle.text import replace_surrogates, size_text

Finish = Literal["stop", "length", "cut"]
"""Why a reply ended: an end token, the token limit, or we closed the stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """How a reply came about, by the server's counts, times and probabilities."""

    finish: Finish | None = None  # why the reply ended; None if there is none
    prompt_tokens: Count = 0  # length of the prompt, in tokens
    cached_tokens: Count = 0  # of these, taken from the cache
    prompt_ms: Amount = 0.0  # time to read the others, in milliseconds
    predicted_tokens: Count = 0  # length of the reply, in tokens
    predicted_ms: Amount = 0.0  # time to write them, in milliseconds
    wall_s: Amount = 0.0
    """From request to the end of the reply, in seconds, by our clock."""

    logprobs: tuple[LogProb, ...] = ()
    """
    Per token of the reply, natural logarithm of its probability. A server reports one
    value for a character that takes several tokens, so there may be fewer of these than
    tokens.
    """

    gaps: tuple[Nats, ...] = ()
    """
    Per token, its log-probability minus that of the most probable other token, never
    negative with greedy sampling; empty if the server does not name the other token
    everywhere.
    """

    lengths: tuple[Count, ...] = ()
    """Per token, the characters that it added to the reply."""

    drafted: Count = 0  # tokens that the server drafted by speculation
    accepted: Count = 0  # of these, the ones that verification accepted

    @property
    def fault(self) -> str:
        """Contradiction among its probabilities; empty without one, or without gaps."""
        is_told = len(self.logprobs) == len(self.gaps)
        return why_first_contradictory(self.logprobs, self.gaps) if is_told else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forced:
    """Tokens of a right continuation, each scored after the right ones before it."""

    logprobs: tuple[LogProb, ...] = ()
    """Per token, natural logarithm of its probability."""

    bounds: tuple[Count, ...] = ()
    """
    Numbers of the tokens, from 0, whose log-probability is only an upper bound: the
    server did not list them.
    """

    leads: tuple[Nats, ...] = ()
    """
    Per token, its log-probability minus that of the most probable other token: not
    negative for first choices. An upper bound where `bounds` names the token.
    """

    ends: tuple[Count, ...] = ()
    """
    Per token, how many characters of the continuation it completes; ascending, but for
    parts of one character.
    """

    untold: Count = 0
    """
    Further tokens, which are no scores: parts of characters, whose text the server does
    not tell.
    """

    prompt_tokens: Count = 0  # length of the prompt before the first of them, in tokens
    cached_tokens: Count = 0  # of these, taken from the cache
    wall_s: Amount = 0.0
    """From the first request to the last answer, in seconds, by our clock."""

    @property
    def has_matching_lengths(self) -> bool:
        """Whether there is a score, and all of them are of the same tokens."""
        tokens = len(self.logprobs)
        is_bound = all(at < tokens for at in self.bounds)
        return 0 < tokens == len(self.leads) == len(self.ends) and is_bound

    @property
    def fault(self) -> str:
        """Why these are no scores; empty if they are."""
        if not self.has_matching_lengths:
            return "they are not of the same tokens, or there is none"
        return why_first_contradictory(self.logprobs, self.leads, {*self.bounds})

    @property
    def mean_logprob(self) -> float:
        """Mean log-probability of a token, in nats; at most 0."""
        return fmean(self.logprobs)

    @property
    def mean_probability(self) -> float:
        """Mean probability of a token, from 0 to 1."""
        return fmean(map(math.exp, self.logprobs))

    @property
    def first_choice_share(self) -> float:
        """Share of tokens that were the first choice, from 0 to 1."""
        return fmean(lead > 0 for lead in self.leads)

    @property
    def leading_first_choices(self) -> int:
        """
        Tokens before the first that was no first choice; all of them without one.

        Until then greedy writing gives the same.
        """
        breaks = (at for at, lead in enumerate(self.leads) if lead <= 0)
        return next(breaks, len(self.leads))


def passage_token_ranges_and_costs(
    ends: Sequence[int], passages: Sequence[tuple[int, int]]
) -> list[tuple[range, int]]:
    """
    The tokens of each of *passages*, and how many it takes of what all together took.

    The tokens of a passage are those that end in it: the first may begin before it, and
    there may be none. It takes those from the passage before, too; the first one, its
    own alone.

    Args:
        ends: Per token, where it ends in the text.
        passages: Where each begins and ends in that text, ascending.
    """
    places = [range(bisect_right(ends, a), bisect_right(ends, b)) for a, b in passages]
    before = [places[0].start, *(place.stop for place in places[:-1])]
    return [(at, at.stop - begin) for at, begin in zip(places, before, strict=True)]


TOP_TOKENS = 2
"""Most probable tokens requested per position: the one that comes, and the next."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a chat: its role (``user``, ``assistant``) and its text."""

    role: str
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """A text to continue."""

    prompt: str  # the text
    max_tokens: int  # tokens that the reply may have
    seed: int = 0  # of sampling; without effect on greedy sampling, but logged


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered(Completion):
    """
    A chat as its template has rendered it, to be continued.

    The answer is plain text: one that begins with a thought has it in front.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """A conversation to answer."""

    messages: tuple[Message, ...]
    """The messages; a last one of the assistant is continued."""

    max_tokens: int  # tokens that the reply may have, thinking included
    seed: int = 0  # of sampling
    template_args: Mapping[str, object] = field(default_factory=dict)
    """Variables of the chat template: ``enable_thinking``."""


CODES = range(100, 600)
"""Of HTTP; a server may state any number in an error."""

QUOTE_CHARACTERS = 200
"""What an error quotes of an answer that cannot be read."""

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

    def __init__(self, *, silence_s: float, known: str = "") -> None:
        why = f"; {known}" if known else ""
        super().__init__(
            f"the server said nothing for {silence_s:g} s{why}",
            hint="Too slow a pair for this machine? Leave it out, or try a smaller "
            "context.",
        )


class PromptCut(CellError):  # noqa: N818 - named after the fact
    """A server that does not read all of a prompt: its answers measure nothing."""

    def __init__(self, cut_phrase: str) -> None:
        super().__init__(
            f"the server cut the prompt: {cut_phrase}",
            hint="Start it with a larger context (vLLM: --max-model-len, Ollama: "
            "num_ctx), or ask for a smaller --context.",
            status=Status.MISMATCHED,
        )


class BadReply(CellError):  # noqa: N818 - named after the fact
    """The server's answer cannot be read, or is longer than any answer could be."""

    def __init__(
        self, *, expected: str = "", answer: str = "", limit_bytes: int = 0
    ) -> None:
        super().__init__(
            f"the server's answer is longer than {size_text(limit_bytes)}"
            if limit_bytes
            else f"the server did not answer with {expected}"
            f"{f': {quote_beginning(answer)}' if answer else ', but with nothing'}",
            hint="Is it the kind of server that --engine names? Its log may tell more.",
        )


class ReadOtherwise(BadReply):
    """A server that read another number of tokens than it was sent: no score of it."""

    def __init__(self, *, read: int, sent: int) -> None:
        super().__init__(
            expected="a score of the prompt that it was sent",
            answer=f"it read {read:,} of {sent:,} tokens",
        )


class NoScores(BadReply):
    """Probabilities that cannot be; says why without a word of the prompt."""

    def __init__(self, fault: str) -> None:
        super().__init__(expected="probabilities that can be", answer=fault)
        self.fault = fault


class BrokenOff(BadReply):
    """The server ended a reply for a reason of its own, such as a filter."""

    def __init__(self, reason: str) -> None:
        super().__init__(expected="a whole reply", answer=f"finish_reason: {reason}")


class Refused(CellError):  # noqa: N818 - named after the fact
    """The server answered with an error."""

    code: int  # HTTP status
    kind: str  # the server's type of the error, such as ``invalid_request_error``
    message: str  # its text
    counts: Mapping[str, int]  # further fields of the error that are whole numbers
    retry_after: str = ""  # when to ask again, as it says it in HTTP; mostly empty

    def __init__(
        self,
        *,
        code: int,
        kind: str,
        message: str,
        counts: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__(
            f"the server refused with {code} {kind}: {quote_beginning(message)}",
            hint="The server's log may tell more.",
        )
        self.code = code
        self.kind = kind
        self.message = message
        self.counts = counts or {}


class Readiness(StrEnum):
    """State of a server; a stranger is one that is not ours."""

    READY = "ready"
    LOADING = "loading"
    SILENT = "silent"
    STRANGER = "stranger"


@dataclass(frozen=True, slots=True)
class TokenPiece:
    """A token and its part of the text."""

    id: Annotated[int, msgspec.Meta(ge=-(1 << 31), lt=1 << 31)]  # its number
    piece: str | tuple[Annotated[int, msgspec.Meta(ge=0, le=255)], ...]
    """The part; its bytes, where they are no valid UTF-8."""

    @property
    def utf8_size(self) -> int:
        """Length of the part, in bytes of UTF-8."""
        if isinstance(self.piece, str):
            # Lone surrogates cannot be encoded; no vocabulary has them.
            return len(self.piece.encode(errors="replace"))
        return len(self.piece)


def parse_json_object(data: bytes, *, expected: str) -> Json:
    """
    The JSON object that *data* is; bytes that are no UTF-8 become U+FFFD.

    Raises:
        BadReply: If it is anything else.
    """
    text = data.decode(errors="replace")
    try:
        # Not msgspec's decoder: this one also reads the NaN of older builds.
        answer = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadReply(expected=expected, answer=text) from error
    if not isinstance(answer, dict):
        raise BadReply(expected=expected, answer=text)
    return answer


def refuse_too_long_answer(limit: int, length: int) -> None:
    """
    Stop at an answer of more than *limit* bytes or characters.

    Raises:
        BadReply: If *length* is more.
    """
    if length > limit:
        raise BadReply(limit_bytes=limit)


def parse_stated_error(data: bytes, *, code: int) -> Refused:
    """The error that a server states in *data*, or one that quotes it."""
    try:
        answer = parse_json_object(data, expected="an error")
        stated = check_and_convert_answer(
            answer, _ErrorReply, expected="an error"
        ).error
    except BadReply:
        text = data[: 4 * QUOTE_CHARACTERS].decode(errors="replace")
        return Refused(code=code, kind="answer", message=text)
    # An error in the middle of a stream comes after a 200, and has its own code.
    if isinstance(stated.code, int) and stated.code in CODES:
        code = stated.code
    kind, message = (
        replace_surrogates(stated.type[:QUOTE_CHARACTERS]),
        replace_surrogates(stated.message),
    )
    numbers = {key: n for key, n in answer["error"].items() if isinstance(n, int)}
    return Refused(code=code, kind=kind, message=message, counts=numbers)


def check_and_convert_answer(
    answer: Any, layout: type[_Layout], *, expected: str
) -> _Layout:
    """
    Check what came as JSON against *layout*; what it does not name is ignored.

    Raises:
        BadReply: If it does not fit.
    """
    try:
        return msgspec.convert(answer, type=layout)
    except (msgspec.ValidationError, OverflowError, RecursionError) as error:
        # Not the answer itself: its text may be far longer than its bytes were.
        raise BadReply(expected=expected, answer=str(error)) from error


def quote_beginning(text: str) -> str:
    """The beginning of *text*, in one line and without control characters."""
    start = replace_surrogates(text[:QUOTE_CHARACTERS])
    line = " ".join("".join(c if c.isprintable() else " " for c in start).split())
    return f"'{line}…'" if len(text) > QUOTE_CHARACTERS else f"'{line}'"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stated:
    message: str = ""
    type: str = "error"
    code: int | str | None = None


@dataclass(frozen=True, slots=True)
class _ErrorReply:
    error: _Stated


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply(Generation):
    """A model's reply."""

    text: str  # the answer, verbatim; lone surrogates are U+FFFD
    reasoning: str = ""  # the thinking before it, where the server separates that
    finish: Finish  # why it ended; ``cut`` if we ended it
    unscored: str = ""
    """Why it has no log-probabilities, though the server stated some; else empty."""


@dataclass(frozen=True, slots=True)
class Token:
    """A generated token, or a candidate for its position."""

    id: int = NO_ID  # its number
    logprob: float | None = None
    """Natural logarithm of its probability, as the server states it."""

    top_logprobs: "tuple[Token, ...]" = ()
    """The most probable candidates; of a candidate, none."""


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


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a request is."""

    done: int  # tokens of the prompt that are read, or of the reply that have come
    total: int  # tokens of the prompt, or those that the reply may have
    is_prompt: bool = False  # whether they are tokens of the prompt


def ignore_progress(_progress: Progress) -> None:
    """Nobody wants to know how far a request is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamEvent:
    """One event of a stream, whichever endpoint sent it."""

    text: str = ""  # what it adds to the answer
    reasoning: str = ""  # what it adds to the thinking before it
    tokens: tuple[Token, ...] = ()  # those of both
    timings: Timings | None = None  # counts and times so far
    finish: Finish | None = None  # why the reply ended; None if it has not
    progress: Progress | None = None
    """How far the server has read the prompt; None if it does not say so."""


def read_reply_stream(
    events: Iterable[Json],
    *,
    read: Callable[[Json], StreamEvent],
    enough: Callable[[str], bool],
    max_tokens: int,
    tell: Callable[[Progress], None] = ignore_progress,
) -> Reply:
    """
    Join a stream's *events* into one reply.

    Args:
        events: As decoded from JSON.
        read: Reads one event of the endpoint in use.
        enough: Called with the text so far after each event with a line break,
            however the bytes arrived; ends the reply when it returns True.
        max_tokens: Tokens that it may have.
        tell: Called with how far the reply is.

    Raises:
        BadReply: If an event is none, or the reply is longer than *max_tokens*
            tokens can be.
        ComputesNan: If a log-probability is NaN.
        ServerGone: If the stream ends without a last event.
    """
    partial = _PartialReply()
    for raw_event in events:
        event = read(raw_event)
        partial.add(event)
        tell(event.progress or Progress(partial.token_count, max_tokens))
        refuse_too_long_answer(LONGEST_TOKEN * max_tokens, partial.characters)
        if (
            "\n" in event.text
            and event.finish is None
            and enough(partial.joined_text())
        ):
            partial.finish = "cut"
            break
    if partial.finish is None:
        tokens = len(partial.lengths)
        raise ServerGone(
            reason=f"the stream ended after {tokens} tokens, without its last event"
        )
    return partial.reply(partial.finish)


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
    unscored: str = ""

    def add(self, event: StreamEvent) -> None:
        self.texts.append(replace_surrogates(event.text))
        self.reasonings.append(replace_surrogates(event.reasoning))
        self.characters += len(event.text) + len(event.reasoning)
        self.timings = event.timings or self.timings
        self.finish = self.finish or event.finish
        for token in event.tokens:
            self.lengths.append(0)
            self._append_score(token)
        # Servers send a token with its text, or several with theirs.
        if self.lengths:
            self.lengths[-1] += len(event.text)

    def _append_score(self, token: Token) -> None:
        """
        Append log-probability and gap of *token*, or keep why it has none.

        Raises:
            ComputesNan: If one is NaN.
        """
        try:
            listed = own_and_listed_logprobs(token)
        except NotANumber as error:
            read = self.timings.cache_n + self.timings.prompt_n
            raise ComputesNan(token=read + len(self.lengths)) from error
        except NoScore as error:
            self.unscored = self.unscored or str(error)
            return
        others = [number for other, number in listed.items() if other != token.id]
        self.logprobs.append(round_finite_score_or_zero(listed[token.id]))
        is_told = others and token.id != NO_ID
        gap = (
            round_finite_score_or_zero(listed[token.id] - max(others))
            if is_told
            else None
        )
        self.gaps.append(gap)

    @property
    def token_count(self) -> int:
        """Tokens that have come, as the server counts them or else by their scores."""
        return max(self.timings.predicted_n, len(self.lengths))

    def joined_text(self) -> str:
        """The text so far; only joined on request, as that copies all of it."""
        self.texts[:] = ["".join(self.texts)]
        return self.texts[0]

    def reply(self, finish: Finish) -> Reply:
        """What has been received, as a complete reply."""
        timings = self.timings
        gaps = [gap for gap in self.gaps if gap is not None]
        is_scored = not self.unscored
        return Reply(
            text=self.joined_text(),
            reasoning="".join(self.reasonings),
            finish=finish,
            prompt_tokens=timings.cache_n + timings.prompt_n,
            cached_tokens=timings.cache_n,
            prompt_ms=_plausible_ms_or_zero(timings.prompt_ms),
            predicted_tokens=timings.predicted_n,
            predicted_ms=_plausible_ms_or_zero(timings.predicted_ms),
            logprobs=tuple(self.logprobs) if is_scored else (),
            gaps=tuple(gaps) if is_scored and len(gaps) == len(self.gaps) else (),
            lengths=tuple(self.lengths),
            unscored=self.unscored,
            drafted=timings.draft_n,
            accepted=timings.draft_n_accepted,
        )


def own_and_listed_logprobs(token: Token) -> dict[int, float]:
    """
    Log-probabilities at the place of *token*, by number: its own, and those listed.

    Raises:
        NotANumber: If one is NaN.
        NoScore: If one cannot be, or they contradict each other: a token comes twice.
    """
    own = checked_log_probability(token.logprob)
    stated = [
        (top_logprob.id, checked_log_probability(top_logprob.logprob))
        for top_logprob in token.top_logprobs
    ]
    listed = dict(stated)
    is_named = token.id != NO_ID and NO_ID not in listed
    differs = abs(listed.get(token.id, own) - own) > ROUNDING
    if is_named and (len(listed) < len(stated) or differs):
        raise NoScore("a token that is listed twice")
    listed[token.id] = own
    if is_named:
        refuse_contradiction(listed.values())
    return listed


LONGEST_MS = 1e12
"""Longest plausible duration; longer ones count as missing."""


def _plausible_ms_or_zero(number: float | None) -> float:
    """A time that a server states; 0 where it cannot be."""
    number = round_finite_score_or_zero(number or 0.0)
    return number if 0 <= number <= LONGEST_MS else 0.0


def round_finite_score_or_zero(number: float) -> float:
    """*number* with the decimals that are kept; 0 where it is infinite or none."""
    # Adding zero turns -0.0 into 0.0.
    return round(number, DIGITS) + 0.0 if math.isfinite(number) else 0.0
