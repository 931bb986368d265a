"""Made records of the throughput probe."""

from dataclasses import replace

from made_records import failed_record, made_setup

from codeneedle.cache_types import Pair
from codeneedle.probes.throughput.record import (
    NAME,
    DepthSpeeds,
    Throughput,
    ThroughputLayout,
)
from codeneedle.records.record import CellRecord, Run, Status, as_json

F16, Q8, Q4 = Pair("f16", "f16"), Pair("q8_0", "q8_0"), Pair("q4_0", "q4_0")


def measured(pair: Pair, speeds: dict[int, float | None]) -> CellRecord:
    """A finished record that writes at *speeds*, by depth; None is a gap."""
    stored = Throughput(
        answers={
            str(depth): DepthSpeeds(depth=depth, tg=(speed, speed), pp=(1.0, 1.0))
            if speed
            else DepthSpeeds(depth=depth, status="out-of-memory", gap="full")
            for depth, speed in speeds.items()
        },
        build="1 (a)",
        cpu="",
        gpu="",
        backends="CPU",
        threads=1,
    )
    record = replace(failed_record(pair), probe=NAME, status=Status.FINISHED, reason="")
    return replace(record, observation=as_json(stored))


def run_of(*records: CellRecord, depths: tuple[int, ...] = (0, 100)) -> Run:
    """A run with these records."""
    settings = ThroughputLayout(
        depths=depths,
        repetitions=2,
        prompt_tokens=1,
        generated_tokens=1,
        arguments={},
    )
    setup = replace(made_setup(), probes={NAME: as_json(settings)})
    return Run(name="c/m", setup=setup, records=records)
