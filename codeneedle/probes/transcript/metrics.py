"""The metrics of transcripts: over all tokens, and by class of tokens."""

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from statistics import fmean

from codeneedle.engines.messages import Forced
from codeneedle.probes.metrics import METRICS as OF_CELL
from codeneedle.probes.metrics import Loss, LossKind, Metric, bounded_share, of_units
from codeneedle.probes.transcript.record import (
    NAME,
    scored_turns,
    scores_of_kind,
    transcript_layout,
    turns_of,
)
from codeneedle.probes.transcript.rendering import Kind
from codeneedle.records.record import CellRecord, Setup

FEWEST_UNITS = 6
"""Units with tokens of a class that the class needs to enter the verdict."""

_Grouped = Callable[[CellRecord, Setup], dict[str, Forced | None]]
"""
The scores of a record by name of their unit or turn; None of one that is not whole.
"""


def _scores_by(
    record: CellRecord, setup: Setup, *, kind: Kind | None, by_turn: bool = False
) -> dict[str, Forced | None]:
    """
    The scores of tokens of one *kind*, None for all, by their unit or by their turn.

    None of a unit with a turn that has no scores: what is left of a conversation would
    be compared with all of it. Units without such tokens are left out.
    """
    chosen, scored = transcript_layout(setup), scored_turns(record, setup)
    grouped: dict[str, Forced | None] = {}
    for name, turns in chosen.turns_by(lambda t: t.name if by_turn else chosen.unit(t)):
        if not any(turn.has_kind(kind) for turn in turns):
            continue
        parts = [
            scores_of_kind(turn, scored[turn.name], kind)
            for turn in turns
            if turn.name in scored
        ]
        whole = Forced(
            logprobs=tuple(itertools.chain.from_iterable(e.logprobs for e in parts)),
            leads=tuple(itertools.chain.from_iterable(part.leads for part in parts)),
        )
        if len(parts) < len(turns):
            grouped[name] = None
        elif whole.logprobs:
            grouped[name] = whole
    return grouped


def _loss(kind: Kind | None, grouped: _Grouped) -> Loss:
    def by_unit(record: CellRecord, setup: Setup) -> dict[str, float]:
        units = grouped(record, setup)
        return {name: of.probability for name, of in units.items() if of}

    def able(record: CellRecord, setup: Setup) -> float:
        whole = filter(None, grouped(record, setup).values())
        return fmean([scores.first_choices for scores in whole] or [0])

    return Loss(
        kind=LossKind.PROBABILITY,
        by_unit=by_unit,
        units=lambda _record, setup: transcript_layout(setup).units(kind),
        bounded=lambda record: bounded_share(turn.scores for turn in turns_of(record)),
        able=able,
    )


def of_class(kind: Kind | None, *, enters_verdict: bool) -> Iterator[Metric]:
    """The three metrics of a class of tokens; None for all."""
    suffix = f"@{kind}" if kind else ""
    by_unit = partial(_scores_by, kind=kind)
    by_turn = partial(_scores_by, kind=kind, by_turn=True)

    def metric(
        name: str, number: Callable[[Forced], float], grouped: _Grouped
    ) -> partial[Metric]:
        return partial(
            of_units(lambda *of: grouped(*of).items(), number),
            name=f"{NAME}-{name}{suffix}",
            of=f"{NAME}-{name}" if kind else "",
            facet=f"tokens={kind}" if kind else "",
            better="higher",
            noun="turns",
        )

    loss = _loss(kind, by_unit) if enters_verdict else None
    yield metric("logp", lambda scores: scores.logp, by_unit)(unit="nats", loss=loss)
    yield metric("right", lambda scores: 100 * scores.first_choices, by_unit)(unit="%")
    yield metric("breaks-at", lambda scores: scores.kept_tokens, by_turn)(unit="tokens")


OVER_ALL: tuple[Metric, ...] = (*of_class(None, enters_verdict=True), *OF_CELL)
"""Metrics of all tokens; the first is the headline."""


def class_metrics(setup: Setup) -> tuple[Metric, ...]:
    """Metrics of each class of tokens that the turns of *setup* have."""
    if NAME not in setup.probes:
        return ()
    chosen = transcript_layout(setup)
    return tuple(
        metric
        for kind in Kind
        if (units := chosen.units(kind))
        for metric in of_class(kind, enters_verdict=len(units) >= FEWEST_UNITS)
    )
