"""What a table says of speeds in words."""

from dataclasses import replace

from made_records import made_run, made_setup

from codeneedle.analysis.throughput import NAME, DepthSpeeds, Throughput
from codeneedle.grid import Pair
from codeneedle.probes.throughput import NAMED, remarks
from codeneedle.records.record import CellRecord, Run, Status, as_json


def record(pair: str, *speeds: float) -> CellRecord:
    """Writing speeds at depths 0, 1,000, 2,000 ... in tokens per second."""
    measured = tuple(
        DepthSpeeds(depth=1000 * at, pp=(100.0,), tg=(speed,), seconds=1.0)
        for at, speed in enumerate(speeds)
    )
    return CellRecord(
        pair=Pair.parse(pair),
        probe=NAME,
        status=Status.FINISHED,
        started="2026-01-01T00:00:00+00:00",
        observation=as_json(
            Throughput(
                speeds=measured, build="b1", cpu="", gpu="", backends="CPU", threads=1
            )
        ),
    )


def of(*records: CellRecord) -> tuple[str, ...]:
    """The remarks of a run of these records."""
    return remarks(Run(name="a/b", setup=made_setup(), records=records))


def test_a_run_without_speeds_says_nothing():
    """
    Other probes' records are none of its business.
    """
    assert () == remarks(made_run())


def test_pairs_that_overtake_alike_share_a_line():
    """
    The depth is told once, and the pairs in order of precision.
    """
    lines = of(
        record("f16/f16", 100, 100, 100),
        record("q4_0/q4_0", 50, 100, 150),
        record("q8_0/q8_0", 50, 100, 150),
        record("q8_0/q4_0", 10, 10, 10),
    )

    assert (
        "writes faster than f16/f16 from 1,000 tokens: q8_0/q8_0, q4_0/q4_0",
        "writes faster than f16/f16 never: q8_0/q4_0",
    ) == lines


def test_many_pairs_are_counted():
    """
    A line stays a line.
    """
    types = ("q8_0", "q5_1", "q5_0", "q4_1", "q4_0")
    slow = [record(f"{k}/q8_0", 1, 1) for k in types]

    (line,) = of(record("f16/f16", 9, 9), *slow)

    assert line.endswith(f"and {len(types) - NAMED} more")


def test_a_failed_cell_is_not_compared():
    """
    A gap has no speed.
    """
    failed = replace(record("q8_0/q8_0"), status=Status.CRASHED, observation=None)

    assert () == of(record("f16/f16", 9, 9), failed)
