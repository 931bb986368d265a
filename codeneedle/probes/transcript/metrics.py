"""
Metrics of transcripts, over all tokens and by class of tokens, and how many units a
class needs to enter the verdict.
"""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from codeneedle.engines.messages import Forced
from codeneedle.probes.cell_metrics import OF_CELL
from codeneedle.probes.metrics import Metric, RightTokens, UnitKind
from codeneedle.probes.transcript.record import (
    NAME,
    scores_by_turn,
    scores_of_kind,
    transcript_layout,
    turn_answers,
)
from codeneedle.probes.transcript.rendering import Kind
from codeneedle.records.record import CellRecord, Setup

TURNS = UnitKind(
    noun="turns",
    more="--transcript",
    others="other conversations",
    others_by="--transcript",
)

CONVERSATIONS = replace(TURNS, noun="conversations")

FEWEST_UNITS = 6
"""Units with tokens of a class that the class needs to enter the verdict."""


def _scores_by_unit_or_turn(
    record: CellRecord, setup: Setup, *, kind: Kind | None, by_turn: bool = False
) -> Iterator[tuple[str, Forced | None]]:
    """
    The scores of tokens of one *kind*, None for all, by their unit or by their turn.

    None for a unit with a turn that has no scores: what is left of a conversation would
    be compared with all of it. Units without such tokens are left out.
    """
    chosen, scored = transcript_layout(setup), scores_by_turn(record, setup)
    for name, turns in chosen.turns_by(
        lambda t: t.name if by_turn else chosen.unit_name(t)
    ):
        if not any(turn.has_tokens_of_kind(kind) for turn in turns):
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
            yield name, None
        elif whole.logprobs:
            yield name, whole


def _every_score(record: CellRecord) -> Iterator[Forced | None]:
    """Scores of all turns that *record* was asked; None for those without."""
    return (turn.scores for turn in turn_answers(record))


def metrics_of_token_class(
    kind: Kind | None, *, enters_verdict: bool
) -> Iterator[Metric]:
    """
    Log-probability, first choices and where it breaks, of a class of tokens.

    None is for all tokens; breaks are of turns, the others of units.
    """
    units = RightTokens(partial(_scores_by_unit_or_turn, kind=kind))
    turns = RightTokens(partial(_scores_by_unit_or_turn, kind=kind, by_turn=True))

    def facts_of(name: str) -> dict[str, Any]:
        whole = f"{NAME}-{name}"
        if kind is None:
            return {"name": whole, "unit_kind": TURNS}
        facet = {"of": whole, "facet": f"tokens={kind}"}
        return {"name": f"{whole}@{kind}", "unit_kind": TURNS, **facet}

    loss = units.loss(_every_score) if enters_verdict else None
    yield units.log_probability_metric(**facts_of("logp"))(loss=loss)
    yield units.first_choice_percent_metric(**facts_of("right"))()
    yield turns.leading_first_choices_metric(**facts_of("breaks-at"))()


OVER_ALL: tuple[Metric, ...] = (
    *metrics_of_token_class(None, enters_verdict=True),
    *OF_CELL,
)
"""Metrics of all tokens; the first is the headline."""


def token_class_metrics(setup: Setup) -> tuple[Metric, ...]:
    """Metrics of each class of tokens that the turns of *setup* have."""
    if NAME not in setup.probes:
        return ()
    chosen = transcript_layout(setup)
    return tuple(
        metric
        for kind in Kind
        if (units := chosen.unit_names(kind))
        for metric in metrics_of_token_class(
            kind, enters_verdict=len(units) >= FEWEST_UNITS
        )
    )
