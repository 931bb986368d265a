"""The part of a corpus that fits a context with what is asked of it."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from codeneedle.corpora.corpus import Corpus, longest
from codeneedle.errors import BadInput
from codeneedle.models.kv_cache import padded
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


def fitted(fit: Fit) -> tuple[Corpus, Room]:
    """
    As many whole functions as fit the context, and what they leave room for.

    Raises:
        BadInput: If the corpus does not fit and must not be trimmed, or if no function
            fits.
    """
    tried: list[Room] = []
    for room in fit.rooms(fit.corpus):
        if not fit.may_trim:
            needed = room.tokens(fit.corpus.text)
            if needed > fit.context:
                raise _too_long(fit, needed)
            return fit.corpus, room
        shorter = _longest(fit, room)
        if shorter is not None:
            return shorter, room
        tried.append(room)
    raise _nothing_fits(fit, tried[-1])


def _longest(fit: Fit, room: Room) -> Corpus | None:
    def fits(text: str) -> bool:
        return room.tokens(text) <= fit.context

    return longest(fit.corpus, fits, lines=room.lines)


def facts_of(sent: Corpus, whole: Corpus, *, tokens: int = 0) -> CorpusFacts:
    """Of what is *sent* of the *whole* corpus; without *tokens*, it is not counted."""
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
    """*corpus* as far as *text* goes, with which it begins."""
    shorter = replace(corpus, text=text)
    end = shorter.line_count
    return replace(
        shorter, functions=tuple(each for each in corpus.functions if each.end <= end)
    )


def larger_context(tokens: int, trained: int | None) -> int | None:
    """The context that holds *tokens*; None if weights were not *trained* for it."""
    context = padded(tokens)
    if trained is None:
        return context
    return min(context, trained) if tokens <= trained else None


def _too_long(fit: Fit, needed: int) -> BadInput:
    larger = larger_context(needed, fit.trained)
    ways = [*([f"--context {larger}"] if larger else []), "--fit"]
    return BadInput(
        source=f"corpus {fit.corpus.name}",
        reason=f"it needs {needed:,} tokens with question and answer, the "
        f"context has {fit.context:,}",
        hint=f"Use {' or '.join(ways)}: it trims the text to whole functions.",
    )


def _nothing_fits(fit: Fit, room: Room) -> BadInput:
    """The error that names the smallest context that works, and a text that fits."""
    from codeneedle.corpora.registry import SMALL_CORPORA, load

    needed = room.tokens(fit.corpus.shortest(room.lines))
    larger = larger_context(needed, fit.trained)
    smaller = (name for name in SMALL_CORPORA if _fits_whole(fit, load(name)))
    options = [
        *([f"--context {larger}"] if larger else []),
        *(f"--corpus {name}" for name in itertools.islice(smaller, 1)),
    ]
    return BadInput(
        source=f"corpus {fit.corpus.name}",
        reason=f"its shortest part with a function to ask for needs {needed:,} tokens "
        f"with question and answer, the context has {fit.context:,}",
        hint=f"Use {', or '.join(options) or 'a --corpus with shorter functions'}.",
    )


def _fits_whole(fit: Fit, corpus: Corpus) -> bool:
    return any(room.tokens(corpus.text) <= fit.context for room in fit.rooms(corpus))


MOSTLY_FILLED = 0.75
"""Share of a context from which on a text fills it: questions need room, too."""

LONG_CORPUS = "random-bodies"
"""The built-in text that fills long contexts."""


def fills(tokens: int, context: int) -> bool:
    """Whether a text of so many *tokens* fills its *context*; True without a text."""
    return not 0 < tokens < MOSTLY_FILLED * context


def filled_phrase(tokens: int, context: int) -> str:
    """``8,192 tokens``, or ``7,109 of 32,768 tokens`` of a text that ends before."""
    phrase = plural(context, "token")
    return phrase if fills(tokens, context) else f"{tokens:,} of {phrase}"


def beyond_text(corpus: str, filled: str) -> str:
    """That nothing is measured beyond the text of *corpus*, which is *filled*."""
    longer = "a longer --corpus" if corpus == LONG_CORPUS else f"--corpus {LONG_CORPUS}"
    return f"the text fills {filled}: what happens beyond is not measured ({longer})"
