"""What the throughput of a run says in words: which pairs overtake the reference."""

from collections import defaultdict

from codeneedle.grid import Pair, most_precise, precision
from codeneedle.probes.throughput_metrics import NAME, crossover
from codeneedle.records import Run

NAMED = 4
"""Pairs that a remark names before it counts the others."""


def remarks(run: Run) -> tuple[str, ...]:
    """
    From which depth on each pair writes faster than the most precise one.

    Pairs of which the same can be said share a line.
    """
    records = {r.pair: r for r in run.records if r.probe == NAME and r.is_finished}
    if not records:
        return ()
    reference = most_precise(records)
    said: dict[str, list[Pair]] = defaultdict(list)
    for pair in sorted(records, key=lambda p: (*precision(p.k), *precision(p.v))):
        crossed = crossover(records[pair], records[reference])
        if pair != reference and crossed is not None:
            said[str(crossed)].append(pair)
    return tuple(
        f"writes faster than {reference} {when}: {_named(pairs)}"
        for when, pairs in said.items()
    )


def _named(pairs: list[Pair]) -> str:
    named = ", ".join(str(pair) for pair in pairs[:NAMED])
    more = len(pairs) - NAMED
    return f"{named} and {more} more" if more > 0 else named
