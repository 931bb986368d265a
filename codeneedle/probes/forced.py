"""
Shows right tokens, forced or read, beside the reference's: what each lost, from which
loss on it is coloured, and which lost most.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any

from rich.text import Text

from codeneedle.document import Document, Lines, Table
from codeneedle.engines.messages import Forced
from codeneedle.probes.answers import ScoredAnswer, View
from codeneedle.records.record import CellRecord, Run
from codeneedle.reference import reference_among
from codeneedle.text import (
    NO_VALUE_WORD,
    escape_invisible_in_lines,
    number_text,
    plural,
)

UNKNOWN = "·"
"""Stands for a character that a template adds, and for text that is not known."""

LOSS_STYLES = ((0.5, "bold red"), (0.1, "red"), (0.01, "yellow"))
"""Losses of probability from which on a token is coloured so."""

LEAST_LOST = 0.01
"""What a token has lost at least to be named."""

WORST = 3
"""Tokens that are named before the list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedToken:
    """A right token, as a pair and the reference scored it."""

    at: int  # its number, from 1
    text: str  # what it adds to the text; `UNKNOWN` where that is not known
    kind: str  # its class; empty where there are none
    chance: float  # its probability, from 0 to 1
    lost: float  # how much less likely it is than with the reference; NaN without one
    is_bound: bool  # whether its probability is only an upper bound
    is_first: bool  # whether it is the first choice


def reference_record(run: Run, probe: str) -> CellRecord | None:
    """The record of the reference, of those of *probe* with numbers; None if none."""
    records = {
        record.pair: record
        for record in run.records
        if record.probe == probe and record.has_numbers
    }
    reference = reference_among(records.values())
    return records[reference] if reference else None


def scored_answers(
    run: Run,
    record: CellRecord,
    scored: Callable[[CellRecord], Mapping[str, Forced]],
    text_of: Callable[[str], str],
) -> Iterator[ScoredAnswer]:
    """
    The answers of *record*, each shown as its right tokens beside the reference's.

    Args:
        run: Of the record.
        record: A finished one.
        scored: The scores of a record, by the name of the answer.
        text_of: The right text of an answer, by its name.
    """

    def answer_document(name: str, _view: View) -> Document:
        text = text_of(name)
        return compared_tokens_document(
            tokens_beside_reference(run, record, name, scored, text=text)
        )

    for name in scored(record):
        yield ScoredAnswer(name=name, show=partial(answer_document, name))


def tokens_beside_reference(
    run: Run,
    record: CellRecord,
    name: str,
    scored: Callable[[CellRecord], Mapping[str, Forced]],
    **shown: Any,
) -> list[ComparedToken]:
    """
    The right tokens of one answer of *record*, beside those of the reference.

    Args:
        run: Of the record.
        record: A finished one.
        name: Of the answer.
        scored: The scores of a record, by the name of the answer.
        shown: The text and its classes; see `compare_right_tokens`.
    """
    reference = reference_record(run, record.probe)
    theirs = scored(reference).get(name) if reference else None
    return compare_right_tokens(ours=scored(record)[name], theirs=theirs, **shown)


def compare_right_tokens(
    text: str,
    ours: Forced,
    theirs: Forced | None,
    *,
    kind_at: Callable[[int], str] = lambda _place: "",
) -> list[ComparedToken]:
    """
    The right tokens of *text*.

    Args:
        text: What they make; empty where it is not known.
        ours: As the pair scored them.
        theirs: As the reference did; None, or of other tokens, for no comparison.
        kind_at: The class of the character at a place in the text.
    """
    chances = [math.exp(logprob) for logprob in ours.logprobs]
    is_comparable = theirs is not None and theirs.ends == ours.ends
    base = [math.exp(e) for e in theirs.logprobs] if theirs and is_comparable else []
    return [
        ComparedToken(
            at=at + 1,
            text=text[begin:end] or UNKNOWN,
            kind=kind_at(begin),
            chance=chances[at],
            lost=base[at] - chances[at] if base else math.nan,
            is_bound=at in ours.bounds,
            is_first=ours.leads[at] > 0,
        )
        for at, (begin, end) in enumerate(itertools.pairwise((0, *ours.ends)))
    ]


def compared_tokens_document(
    tokens: Sequence[ComparedToken], *, hint: str = "", most: int | None = None
) -> Document:
    """
    The text in the colours of what its tokens lost, and a list of them.

    Args:
        tokens: Of the whole text.
        hint: Stands for the text where that is not known.
        most: How many of those that lost something are listed, the worst first; None
            to list all in their order.
    """
    text = Text()
    for token in tokens:
        shown = token.text if token.text.strip(UNKNOWN) else UNKNOWN
        text.append(escape_invisible_in_lines(shown), style=_loss_style(token.lost))
    yield Lines([hint or text])
    yield Lines([_worst_tokens_line(tokens)])
    listed = list(tokens)
    if most is not None:
        lost = (token for token in tokens if token.lost > 0)
        listed = sorted(lost, key=lambda token: -token.lost)[:most]
    has_kinds = any(token.kind for token in tokens)
    columns = [
        ("at", [str(token.at) for token in listed], most is not None),
        ("token", [f"'{token.text}'" for token in listed], True),
        ("class", [token.kind for token in listed], has_kinds),
        ("probability", list(map(_pair_probability_text, listed)), True),
        ("reference", list(map(_reference_probability_text, listed)), True),
        ("lost", [number_text(100 * token.lost, digits=1) for token in listed], True),
        ("first choice", ["yes" if e.is_first else "no" for e in listed], True),
    ]
    heading = [name for name, _, is_shown in columns if is_shown]
    texts = [column for _, column, is_shown in columns if is_shown]
    words = {"token", "class", "first choice"}
    yield Table(heading, list(zip(*texts, strict=True)), words=words)


def _loss_style(lost: float) -> str:
    """The style of a token that *lost* so much of its probability, empty below all."""
    return next((style for least, style in LOSS_STYLES if lost >= least), "")


def _pair_probability_text(token: ComparedToken) -> str:
    """The probability of *token* in percent, as a bound if it is one."""
    return f"{'at most ' if token.is_bound else ''}{token.chance:.1%}"


def _reference_probability_text(token: ComparedToken) -> str:
    """The probability of *token* with the reference; `NO_VALUE_WORD` without one."""
    reference = token.chance + token.lost
    return f"{reference:.1%}" if math.isfinite(reference) else NO_VALUE_WORD


def _worst_tokens_line(tokens: Sequence[ComparedToken]) -> str:
    """The `WORST` tokens that lost most, with the mean of all; or why none is named."""
    if any(math.isnan(token.lost) for token in tokens):
        return "nothing to compare with: the reference has no scores of these tokens"
    lost = sorted((e for e in tokens if e.lost >= LEAST_LOST), key=lambda e: -e.lost)
    if not lost:
        return f"no token lost {LEAST_LOST:.0%} or more"
    named = ", ".join(f"'{token.text}' {token.lost:.0%}" for token in lost[:WORST])
    mean = fmean(token.lost for token in tokens)
    return f"lost most: {named}; mean of {plural(len(tokens), 'token')} {mean:.1%}"
