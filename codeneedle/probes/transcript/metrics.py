"""The metrics of transcripts: over all tokens, and by class of tokens."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import fmean

from codeneedle.probes.metrics import METRICS as OF_CELL
from codeneedle.probes.metrics import Loss, LossKind, Metric, bounded_share
from codeneedle.probes.transcript.record import (
    NAME,
    ScoredToken,
    conditions_of,
    scored_turns,
    turns_of,
)
from codeneedle.probes.transcript.rendering import Kind
from codeneedle.records.record import CellRecord, Setup

FEWEST_UNITS = 6
"""Units with tokens of a class that the class needs to enter the verdict."""

_Grouped = Callable[[CellRecord, Setup], dict[str, list[ScoredToken]]]
"""The tokens of a record by name of their unit or turn; none without tokens."""


def _tokens_by(
    record: CellRecord, setup: Setup, *, kind: Kind | None, by_turn: bool = False
) -> dict[str, list[ScoredToken]]:
    """The tokens of one *kind*, None for all, by their unit or by their turn."""
    chosen, scored = conditions_of(setup), scored_turns(record, setup)
    grouped: dict[str, list[ScoredToken]] = {}
    for turn in chosen.turns:
        name = turn.name if by_turn else chosen.unit(turn)
        for token in scored.get(turn.name, ()):
            if kind in {None, token.kind}:
                grouped.setdefault(name, []).append(token)
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
        }

    def able(record: CellRecord, setup: Setup) -> float:
        return fmean([*map(right, grouped(record, setup).values())] or [0]) / 100

    return Loss(
        kind=LossKind.PROBABILITY,
        by_unit=by_unit,
        units=lambda _record, setup: conditions_of(setup).units(kind),
        bounded=lambda record: bounded_share(turns_of(record)),
        able=able,
    )


def _of_kind(kind: Kind | None, *, enters_verdict: bool) -> Iterator[Metric]:
    """The three metrics of a class of tokens; None for all."""
    suffix = f"@{kind}" if kind else ""
    what = f"{kind} tokens" if kind else "the assistant's tokens"
    by_unit = partial(_tokens_by, kind=kind)
    by_turn = partial(_tokens_by, kind=kind, by_turn=True)

    def metric(
        name: str, number: Callable[[Sequence[ScoredToken]], float], grouped: _Grouped
    ) -> partial[Metric]:
        return partial(
            Metric,
            name=f"{NAME}-{name}{suffix}",
            of=f"{NAME}-{name}" if kind else "",
            facet=f"tokens={kind}" if kind else "",
            better="higher",
            noun="turns",
            digits=1,
            values=lambda *of: [number(tokens) for tokens in grouped(*of).values()],
            names=lambda *of: list(grouped(*of)),
        )

    yield metric("logp", logp, by_unit)(
        label=f"log-probability of {what}",
        unit="nats",
        bounds=(None, 0),
        digits=3,
        least_span=0.2,
        in_table=True,
        loss=_loss(kind, by_unit) if enters_verdict else None,
    )
    yield metric("right", right, by_unit)(
        label=f"{what} that were the first choice",
        unit="%",
        bounds=(0, 100),
        least_span=10,
        in_table=kind is None,
    )
    yield metric("breaks-at", breaks_at, by_turn)(
        label=f"{what} before greedy writing would leave a turn",
        unit="tokens",
        bounds=(0, None),
        least_span=5,
    )


OVER_ALL: tuple[Metric, ...] = (*_of_kind(None, enters_verdict=True), *OF_CELL)
"""Metrics of all tokens; the first is the headline."""


def class_metrics(setup: Setup) -> tuple[Metric, ...]:
    """Metrics of each class of tokens that the turns of *setup* have."""
    if NAME not in setup.probes:
        return ()
    chosen = conditions_of(setup)
    return tuple(
        metric
        for kind in Kind
        if (units := chosen.units(kind))
        for metric in _of_kind(kind, enters_verdict=len(units) >= FEWEST_UNITS)
    )
