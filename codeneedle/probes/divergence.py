"""
Divergence: how far each pair's next-token distributions are from the reference's.

The reference of a run is the pair of its first record that has statistics. Cells are
played most precise first, so that is the most precise pair that ran; and it stays
what it is, so that no run mixes references.
"""

import contextlib
import time
from collections.abc import Generator, Sequence

from codeneedle.grid import Pair, precision
from codeneedle.phases import Phases
from codeneedle.probe import Measurement, Probe, Step
from codeneedle.probes.divergence_metrics import (
    METRICS,
    NAME,
    Compared,
    Divergence,
    divergence_of,
    more_metrics,
    observation_of,
)
from codeneedle.probes.divergence_part import Part, Progress
from codeneedle.probes.divergence_settings import read_settings, settings
from codeneedle.stage import Stage
from codeneedle.store import Store

__all__ = ["NAME", "PROBE", "measure", "most_precise_first", "reference_of"]


def most_precise_first(pairs: Sequence[Pair]) -> Sequence[Pair]:
    """
    The running order: the reference first, then those that would step in for it.

    The other probes shuffle, against heat and drift; here nothing is timed.
    """
    return sorted(pairs, key=lambda pair: (*precision(pair.k), *precision(pair.v)))


def reference_of(store: Store) -> Pair | None:
    """What the stored divergences are compared with; None if there are none yet."""
    for record in store.records():
        found = divergence_of(record)
        if found is not None:
            return Pair.parse(found.reference)
    return None


def measure(stage: Stage) -> Measurement:
    """
    Compare the cell with the reference, at each context of the settings.

    A base file that is missing, truncated or foreign is written again, by running
    the reference. The reference is compared with itself, too: the noise floor.

    Raises:
        RequestError: If the text turns out to be too short.
        CellError: If the tool fails, or runs other cache types than asked for.
    """
    chosen = read_settings(stage.setup.probes[NAME], file="setup.json")
    reference = reference_of(stage.plan.store) or stage.pair
    sizes = list(zip(chosen.contexts, chosen.chunks, strict=True))
    parts = [Part(stage, chosen, reference, *size) for size in sizes]
    started = time.monotonic()
    total = sum(part.steps() for part in parts)
    behind = 0
    compared: list[Compared] = []
    try:
        for part in parts:
            steps = part.steps()
            what = f"{part.context:,} tokens"
            compared.append((yield from _counted(part.compared(), what, behind, total)))
            behind += steps
    finally:
        seconds = round(time.monotonic() - started, 4)
        stage.phases = Phases(measure_s=seconds)
    return observation_of(
        Divergence(reference=str(reference), contexts=tuple(compared))
    )


def _counted(
    part: Progress, what: str, behind: int, total: int
) -> Generator[Step, None, Compared]:
    with contextlib.closing(part):
        while True:
            try:
                done, doing = next(part)
            except StopIteration as end:
                compared: Compared = end.value
                return compared
            yield Step(min(behind + done, total), total, f"{doing} at {what}")


PROBE = Probe(
    name=NAME,
    metrics=METRICS,
    measure=measure,
    settings=settings,
    more_metrics=more_metrics,
    order=most_precise_first,
)
