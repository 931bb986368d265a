"""Metrics of generation: first difference from the reference, loops, endings."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import median

from codeneedle.probes.generation.record import (
    NAME,
    Compared,
    compared,
    written_of,
)
from codeneedle.probes.metrics import METRICS as OF_CELL
from codeneedle.probes.metrics import Loss, LossKind, Metric, Values, of_cell
from codeneedle.probes.stored import Observed, observed
from codeneedle.records.record import CellRecord, Setup

LEAST_LOST = 0.10
"""Share of answers lost that is the usual limit, ``--max-lost``."""


def prompts_without_loss(share: float) -> int:
    """
    Prompts whose answers must all be kept to show that at most `LEAST_LOST` are lost.

    Args:
        share: Chance of an error, as of `verdict.statistics.error_share`.

    Source:
        Clopper and Pearson's interval without a loss: 1 - share^(1/n).
    """
    return math.ceil(math.log(share) / math.log1p(-LEAST_LOST))


def usable(record: CellRecord, setup: Setup) -> list[Compared]:
    """The answers to prompts that are not out."""
    return [each for each in compared(record, setup) if not each.is_out]


def _kept(record: CellRecord, setup: Setup) -> Iterator[tuple[str, float, float]]:
    """By prompt: 1.0 if the answer is whole, and if the model wrote and ended one."""
    for each in usable(record, setup):
        yield each.prompt, float(each.is_whole), float(_is_ended(each))


def _is_ended(each: Compared) -> bool:
    return each.ours.ends and not each.ours.is_empty


def _unlooped(record: CellRecord, setup: Setup) -> dict[str, float]:
    kept = {name: is_whole for name, is_whole, _ in _kept(record, setup)}
    return kept or _nothing_to_lose(record, setup)


def _ended(record: CellRecord, setup: Setup) -> dict[str, float]:
    """Of prompts whose answer the reference ended: others cannot be lost."""
    can_end = {each.prompt for each in usable(record, setup) if each.theirs.ends}
    kept = {name: ends for name, _, ends in _kept(record, setup) if name in can_end}
    return kept or _nothing_to_lose(record, setup)


def _nothing_to_lose(record: CellRecord, setup: Setup) -> dict[str, float]:
    """Of every prompt nothing is right, so that the verdict says why it is silent."""
    return {each.prompt: 0.0 for each in compared(record, setup)}


def _answers_lost(by_unit: Callable[[CellRecord, Setup], dict[str, float]]) -> Loss:
    def able(record: CellRecord, setup: Setup) -> float:
        asked = len(compared(record, setup))
        return sum(by_unit(record, setup).values()) / asked if asked else 0.0

    return Loss(
        kind=LossKind.ANSWERS, by_unit=by_unit, lost_from=1.0, units=_asked, able=able
    )


def _asked(record: CellRecord, setup: Setup) -> list[str]:
    return [each.prompt for each in compared(record, setup)]


def _names(record: CellRecord, setup: Setup) -> list[str]:
    return [each.prompt for each in usable(record, setup)]


def kept_tokens(each: Compared) -> int:
    """Tokens until an answer leaves the reference's; all of them if it never does."""
    return each.difference.tokens if each.difference else each.theirs.tokens


def _kept_tokens(record: CellRecord, setup: Setup) -> list[float]:
    return [float(kept_tokens(each)) for each in usable(record, setup)]


def _lead(record: CellRecord, setup: Setup) -> list[float]:
    """The median; none where no answer differs, or the server told no leads."""
    every = usable(record, setup)
    leads = [e.difference.lead for e in every if e.difference]
    known = [lead for lead in leads if lead is not None]
    return [median(known)] if known else []


def _median(values: Values) -> Values:
    def of(record: CellRecord, setup: Setup) -> Sequence[float]:
        found = values(record, setup)
        return [median(found)] if found else []

    return of


def _share(
    of_answer: Callable[[Compared], bool],
) -> Callable[[CellRecord, Setup], list[float]]:
    def values(record: CellRecord, setup: Setup) -> list[float]:
        return [100.0 * of_answer(each) for each in usable(record, setup)]

    return values


def _lengths(record: CellRecord, setup: Setup) -> list[float]:
    return [float(each.ours.tokens) for each in usable(record, setup)]


def reference_of(record: CellRecord) -> str | None:
    """The pair whose answers those of *record* are compared with."""
    return observed(record, Observed).facts.get("against")


def _accepted(record: CellRecord) -> float | None:
    """Drafted tokens that were accepted, in percent; None if none was drafted."""
    answers = written_of(record).values()
    drafted = sum(each.drafted for each in answers)
    accepted = sum(each.accepted for each in answers)
    return 100 * accepted / drafted if drafted else None


_answers = partial(Metric, noun="prompts", names=_names, reference=reference_of)

METRICS: tuple[Metric, ...] = (
    _answers(
        name="diverges-at",
        unit="tokens",
        better="higher",
        values=_median(_kept_tokens),
        units=_kept_tokens,
    ),
    Metric(
        name="diverges-lead",
        unit="nats",
        better="lower",
        values=_lead,
        noun="prompts",
        reference=reference_of,
        why_none=lambda _setup: "no answer differs, or its server tells no leads",
    ),
    _answers(
        name="loops",
        unit="%",
        better="lower",
        values=_share(lambda each: not each.is_whole),
        loss=_answers_lost(_unlooped),
    ),
    _answers(
        name="ends",
        unit="%",
        better="higher",
        values=_share(_is_ended),
        loss=_answers_lost(_ended),
    ),
    _answers(
        name="length",
        unit="tokens",
        better="neither",
        values=_lengths,
    ),
    Metric(
        name=f"{NAME}-accepted",
        unit="%",
        better="neither",
        values=of_cell(_accepted),
        quantity="speed",
    ),
    *OF_CELL,
)
"""
The first is the headline.

Where answers leave those of the reference is a change and no loss: it enters nothing.
An answer that loops, that its limit ends, or that is empty, where the reference's is
none of these, is lost.
"""
