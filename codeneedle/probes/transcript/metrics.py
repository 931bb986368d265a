"""The metrics of transcripts: over all tokens, and by class of tokens."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import fmean

from codeneedle.probes.metrics import METRICS as OF_CELL
from codeneedle.probes.metrics import Loss, LossKind, Metric, bounded_share, of_units
from codeneedle.probes.transcript.record import (
    NAME,
    ScoredToken,
    scored_turns,
    transcript_layout,
    turns_of,
)
from codeneedle.probes.transcript.rendering import Kind
from codeneedle.records.record import CellRecord, Setup

FEWEST_UNITS = 6
"""Units with tokens of a class that the class needs to enter the verdict."""

_Grouped = Callable[[CellRecord, Setup], dict[str, list[ScoredToken] | None]]
"""
The tokens of a record by name of their unit or turn; None of one that is not whole.
"""


def _tokens_by(
    record: CellRecord, setup: Setup, *, kind: Kind | None, by_turn: bool = False
) -> dict[str, list[ScoredToken] | None]:
    """
    The tokens of one *kind*, None for all, by their unit or by their turn.

    None of a unit with a turn that has no scores: what is left of a conversation would
    be compared with all of it. Units without such tokens are left out.
    """
    chosen, scored = transcript_layout(setup), scored_turns(record, setup)
    grouped: dict[str, list[ScoredToken] | None] = {}
    for name, turns in chosen.turns_by(lambda t: t.name if by_turn else chosen.unit(t)):
        if not any(turn.has_kind(kind) for turn in turns):
            continue
        of_turns = [scored.get(turn.name) for turn in turns]
        tokens = [token for turn in of_turns for token in turn or ()]
        chosen_tokens = [token for token in tokens if kind in {None, token.kind}]
        if None in of_turns or chosen_tokens:
            grouped[name] = None if None in of_turns else chosen_tokens
    return grouped


def logp(tokens: Sequence[ScoredToken]) -> float:
    """Mean log-probability of a token, in nats."""
    return fmean(token.logprob for token in tokens)


def right(tokens: Sequence[ScoredToken]) -> float:
    """Tokens that were the first choice, in percent."""
    return 100 * sum(token.lead > 0 for token in tokens) / len(tokens)


def breaks_at(tokens: Sequence[ScoredToken]) -> float:
    """Number of tokens before the first that was not the first choice."""
    breaks = (at for at, token in enumerate(tokens) if token.lead <= 0)
    return float(next(breaks, len(tokens)))


def _loss(kind: Kind | None, grouped: _Grouped) -> Loss:
    def by_unit(record: CellRecord, setup: Setup) -> dict[str, float]:
        units = grouped(record, setup)
        return {
            name: fmean(math.exp(token.logprob) for token in tokens)
            for name, tokens in units.items()
            if tokens
        }

    def able(record: CellRecord, setup: Setup) -> float:
        whole = filter(None, grouped(record, setup).values())
        return fmean([*map(right, whole)] or [0]) / 100

    return Loss(
        kind=LossKind.PROBABILITY,
        by_unit=by_unit,
        units=lambda _record, setup: transcript_layout(setup).units(kind),
        bounded=lambda record: bounded_share(turns_of(record)),
        able=able,
    )


def of_class(kind: Kind | None, *, enters_verdict: bool) -> Iterator[Metric]:
    """The three metrics of a class of tokens; None for all."""
    suffix = f"@{kind}" if kind else ""
    by_unit = partial(_tokens_by, kind=kind)
    by_turn = partial(_tokens_by, kind=kind, by_turn=True)

    def metric(
        name: str, number: Callable[[Sequence[ScoredToken]], float], grouped: _Grouped
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
    yield metric("logp", logp, by_unit)(unit="nats", loss=loss)
    yield metric("right", right, by_unit)(unit="%")
    yield metric("breaks-at", breaks_at, by_turn)(unit="tokens")


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
