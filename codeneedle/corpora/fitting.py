"""
Fits a corpus to the context with its longest question and the answer: what is too long,
which ``--context`` would hold it, and whether a text fills its context.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from codeneedle.corpora.corpus import Corpus, longest_beginning
from codeneedle.errors import BadInput
from codeneedle.models.kv_cache import pad_context
from codeneedle.records.record import CorpusFacts
from codeneedle.text import plural


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What a text leaves room for: its longest question, and the answer."""

    lines: int  # lines that are not blank of a function that must remain
    tokens: Callable[[str], int]  # length of a text with these, in tokens
    prompt: Callable[[str], str]  # the question about a text, as a model reads it


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """What a corpus is fitted to."""

    corpus: Corpus  # all of it
    context: int  # its size, in tokens
    trained: int | None
    """What the weights were trained for, in tokens; None if that does not bind."""

    may_trim: bool  # whether the corpus may be cut to whole functions
    rooms: Callable[[Corpus], Iterator[Room]]
    """What the text of a corpus leaves room for, the preferred first."""


def fit_corpus_to_context(fit: Fit) -> tuple[Corpus, Room]:
    """
    What fits the context, the corpus or its first whole functions, and its room.

    The first room that lets a part with a function fit wins.

    Raises:
        TooLong: If the corpus does not fit and must not be trimmed, or if no function
            fits.
    """
    tried: list[Room] = []
    for room in fit.rooms(fit.corpus):
        if not fit.may_trim:
            needed = room.tokens(fit.corpus.text)
            if needed > fit.context:
                raise _too_long_error(fit, needed)
            return fit.corpus, room
        shorter = _longest_fitting_beginning(fit, room)
        if shorter is not None:
            return shorter, room
        tried.append(room)
    raise _nothing_fits_error(fit, tried[-1])


def _longest_fitting_beginning(fit: Fit, room: Room) -> Corpus | None:
    """The longest beginning of the corpus that *room* lets fit; None if none does."""

    def fits(text: str) -> bool:
        return room.tokens(text) <= fit.context

    return longest_beginning(fit.corpus, fits, lines=room.lines)


def corpus_facts(sent: Corpus, whole: Corpus, *, tokens: int = 0) -> CorpusFacts:
    """What is *sent* of the *whole* corpus; without *tokens*, it is not counted."""
    return CorpusFacts(
        name=sent.name,
        origin=sent.origin,
        kind=sent.kind,
        sha256=sent.sha256,
        characters=len(sent.text),
        source_sha256=whole.sha256,
        sample_k=sent.sample_k,
        sample_seed=sent.sample_seed,
        tokens=tokens,
        functions=len(sent.functions),
        functions_before=len(whole.functions),
    )


def cut_to_text(corpus: Corpus, text: str) -> Corpus:
    """
    *corpus* as far as *text* goes, with which it begins.

    Functions that end behind it are dropped.
    """
    shorter = replace(corpus, text=text)
    end = shorter.line_count
    return replace(
        shorter,
        functions=tuple(
            function
            for function in corpus.functions
            if function.last_line_number <= end
        ),
    )


def context_holding_tokens(tokens: int, trained: int | None) -> int | None:
    """
    The context that holds *tokens*: padded, or what weights were *trained* for.

    None if that is less.
    """
    context = pad_context(tokens)
    if trained is None:
        return context
    return min(context, trained) if tokens <= trained else None


class TooLong(BadInput):
    """What a user asks for takes more tokens than the context has."""

    needed: int  # tokens of it, with what is asked behind it
    context: int  # tokens of the context
    larger: int | None  # a context that holds it; None if weights were trained for less
    ways: tuple[str, ...]  # what else makes it fit, as options

    def __init__(
        self,
        *,
        source: object,
        needed: int,
        context: int,
        trained: int | None = None,
        beside: str = "question and answer",
        ways: Sequence[str] = (),
    ) -> None:
        self.needed, self.context, self.ways = needed, context, tuple(ways)
        self.larger = context_holding_tokens(needed, trained)
        super().__init__(
            source=source,
            reason=f"it needs {needed:,} tokens with {beside}, the context has "
            f"{context:,}",
            hint=self._hint_text(trained),
        )

    def _hint_text(self, trained: int | None) -> str:
        """What to do: a longer context, if weights allow it, or one of `ways`."""
        longer = [f"--context {self.larger} or more"] if self.larger else []
        ways = ", or ".join([*longer, *self.ways])
        if not ways:
            return "Shorten it, or leave it out."
        if trained and not self.larger:
            return f"The weights were trained for {trained:,} tokens: use {ways}."
        return f"Use {ways}."


class Untrained(BadInput):
    """What a user asks for is longer than what the weights were trained for."""

    trained: int  # the longest context of the training, in tokens

    def __init__(self, *, source: str, trained: int, way: str) -> None:
        self.trained = trained
        super().__init__(
            source=source,
            reason=f"these weights were trained for {trained:,} tokens",
            hint=f"Use {way}.",
        )


STRETCHED = "stretch the context on purpose with the rope options of the engine"
"""A way to use more tokens than weights were trained for."""


def _too_long_error(fit: Fit, needed: int) -> TooLong:
    """The error for a corpus that does not fit and must not be trimmed."""
    return TooLong(
        source=f"corpus {fit.corpus.name}",
        needed=needed,
        context=fit.context,
        trained=fit.trained,
        ways=["--fit (it trims the text to whole functions)"],
    )


def _nothing_fits_error(fit: Fit, room: Room) -> TooLong:
    """The error that names the smallest context that works, and a text that fits."""
    from codeneedle.corpora.registry import SMALL_CORPORA, load

    needed = room.tokens(fit.corpus.shortest_beginning(room.lines))
    smaller = (name for name in SMALL_CORPORA if _fits_whole(fit, load(name)))
    ways = [f"--corpus {name}" for name in itertools.islice(smaller, 1)]
    if not ways and context_holding_tokens(needed, fit.trained) is None:
        ways = ["a --corpus with shorter functions"]
    return TooLong(
        source=f"corpus {fit.corpus.name}, its shortest part with a function",
        needed=needed,
        context=fit.context,
        trained=fit.trained,
        ways=ways,
    )


def _fits_whole(fit: Fit, corpus: Corpus) -> bool:
    """Whether all of *corpus* fits with any of its rooms."""
    return any(room.tokens(corpus.text) <= fit.context for room in fit.rooms(corpus))


MOSTLY_FILLED = 0.75
"""Share of a context from which on a text fills it: questions need room, too."""

LONG_CORPUS = "random-bodies"
"""The built-in text that fills long contexts."""


def is_context_filled(tokens: int, context: int) -> bool:
    """Whether a text of so many *tokens* fills its *context*; True without a text."""
    return not 0 < tokens < MOSTLY_FILLED * context


def filled_context_phrase(tokens: int, context: int) -> str:
    """``8,192 tokens``, or ``7,109 of 32,768 tokens`` of a text that ends before."""
    phrase = plural(context, "token")
    return phrase if is_context_filled(tokens, context) else f"{tokens:,} of {phrase}"


def unmeasured_beyond_phrase(corpus: str, filled: str) -> str:
    """What is not measured: all beyond the text of *corpus*, which fills *filled*."""
    longer = "a longer --corpus" if corpus == LONG_CORPUS else f"--corpus {LONG_CORPUS}"
    return f"the text fills {filled}: what happens beyond is not measured ({longer})"
