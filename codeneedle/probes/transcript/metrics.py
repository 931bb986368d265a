"""The metrics of transcripts: over all tokens, and of each class of them."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from codeneedle.probes.metrics import METRICS as MEMORY
from codeneedle.probes.metrics import Loss, LossKind, Metric, Values
from codeneedle.probes.transcript.record import (
    NAME,
    ScoredToken,
    conditions_of,
    scored_turns,
    transcript_of,
)
from codeneedle.probes.transcript.rendering import Kind
from codeneedle.records.record import CellRecord, Setup

FEWEST_UNITS = 6
"""Units with tokens of a class from which on the class enters the verdict."""

_Number = Callable[[Sequence[ScoredToken]], float]


def _by_unit(
    record: CellRecord, setup: Setup, kind: Kind | None
) -> dict[str, list[ScoredToken]]:
    """The tokens of that *kind*, None for all, by the name of their unit."""
    chosen, scored = conditions_of(setup), scored_turns(record, setup)
    found: dict[str, list[ScoredToken]] = {}
    for turn in chosen.turns:
        for token in scored.get(turn.name, ()):
            if kind in {None, token.kind}:
                found.setdefault(chosen.unit(turn), []).append(token)
    return found


def _values(number: _Number, kind: Kind | None) -> Values:
    """One value for each unit that has tokens of that *kind*."""

    def values(record: CellRecord, setup: Setup) -> list[float]:
        return [number(each) for each in _by_unit(record, setup, kind).values()]

    return values


def _breaks_at(kind: Kind | None) -> Values:
    """Tokens of each turn before the first that was no first choice."""

    def values(record: CellRecord, setup: Setup) -> list[float]:
        turns = (
            [token for token in tokens if kind in {None, token.kind}]
            for tokens in scored_turns(record, setup).values()
        )
        return [float(_before_break(tokens)) for tokens in turns if tokens]

    return values


def _before_break(tokens: Sequence[ScoredToken]) -> int:
    breaks = (at for at, token in enumerate(tokens) if token.lead < 0)
    return next(breaks, len(tokens))


def _turn_names(record: CellRecord, setup: Setup, kind: Kind | None) -> list[str]:
    return [
        name
        for name, tokens in scored_turns(record, setup).items()
        if any(kind in {None, token.kind} for token in tokens)
    ]


def _logp(tokens: Sequence[ScoredToken]) -> float:
    return math.fsum(token.logprob for token in tokens) / len(tokens)


def _probability(tokens: Sequence[ScoredToken]) -> float:
    return math.fsum(math.exp(token.logprob) for token in tokens) / len(tokens)


def _right(tokens: Sequence[ScoredToken]) -> float:
    return 100 * sum(token.lead >= 0 for token in tokens) / len(tokens)


def _bounded(record: CellRecord) -> float:
    """Share of all tokens of whose probability a bound alone is known."""
    turns = transcript_of(record).turns
    tokens = sum(len(turn.logprobs) for turn in turns)
    return sum(len(turn.bounds) for turn in turns) / tokens if tokens else 0.0


def _loss(kind: Kind | None) -> Loss:
    def by_unit(record: CellRecord, setup: Setup) -> dict[str, float]:
        units = _by_unit(record, setup, kind)
        return {name: _probability(tokens) for name, tokens in units.items()}

    def able(record: CellRecord, setup: Setup) -> float:
        rights = list(map(_right, _by_unit(record, setup, kind).values()))
        return math.fsum(rights) / len(rights) / 100 if rights else 0.0

    return Loss(
        kind=LossKind.PROBABILITY,
        by_unit=by_unit,
        units=lambda _record, setup: conditions_of(setup).units(kind),
        bounded=_bounded,
        able=able,
    )


def _of_kind(kind: Kind | None, *, is_judged: bool) -> Iterator[Metric]:
    """The three metrics of a class of tokens; None for all."""
    behind = f"@{kind}" if kind else ""
    what = f"{kind} tokens" if kind else "the assistant's tokens"

    def units(record: CellRecord, setup: Setup) -> list[str]:
        return list(_by_unit(record, setup, kind))

    metric = partial(Metric, better="higher", noun="turns")
    yield metric(
        name=f"{NAME}-logp{behind}",
        label=f"log-probability of {what}",
        unit="nats",
        bounds=(None, 0),
        digits=3,
        least_span=0.5,
        values=_values(_logp, kind),
        names=units,
        in_table=True,
        loss=_loss(kind) if is_judged else None,
    )
    yield metric(
        name=f"{NAME}-right{behind}",
        label=f"{what} that were the first choice",
        unit="%",
        bounds=(0, 100),
        digits=1,
        least_span=10,
        values=_values(_right, kind),
        names=units,
        in_table=kind is None,
    )
    yield metric(
        name=f"{NAME}-breaks-at{behind}",
        label=f"{what} before greedy writing would leave a turn",
        unit="tokens",
        bounds=(0, None),
        digits=1,
        least_span=5,
        values=_breaks_at(kind),
        names=partial(_turn_names, kind=kind),
    )


OVER_ALL: tuple[Metric, ...] = (*_of_kind(None, is_judged=True), *MEMORY)
"""Those of all tokens; the first is the headline."""


def class_metrics(setup: Setup) -> tuple[Metric, ...]:
    """Those of the classes that the turns of *setup* have tokens of."""
    if NAME not in setup.probes:
        return ()
    chosen = conditions_of(setup)
    return tuple(
        metric
        for kind in Kind
        if (units := chosen.units(kind))
        for metric in _of_kind(kind, is_judged=len(units) >= FEWEST_UNITS)
    )
