"""Metrics of memory, of any record whose server said how large it is; and samples."""

from dataclasses import replace

import pytest
from made_records import failed_record, made_record, made_setup

from codeneedle.probes.cell_metrics import OF_CELL
from codeneedle.probes.metrics import metric_by_unit, samples_needed
from codeneedle.records.record import CellRecord, DeviceMemory, Effective, KvBuffer

METRIC = {metric.name: metric for metric in OF_CELL}
SETUP = made_setup()


def buffer(*, cells: int, k_mib: float, v_mib: float) -> KvBuffer:
    """A cache of two layers."""
    return KvBuffer(
        cells=cells, layers=2, k_type="f16", v_type="f16", k_mib=k_mib, v_mib=v_mib
    )


WINDOWED = Effective(
    context=4000,
    kv=(
        buffer(cells=4096, k_mib=8.0, v_mib=4.0),
        buffer(cells=512, k_mib=1.0, v_mib=0.5),
    ),
    compute_mib=300.25,
    recurrent_bytes=3 << 20,
)


def value(name: str, record: CellRecord) -> list[float]:
    """What *record* has of the metric *name*."""
    return list(METRIC[name].values(record, SETUP))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("kv", 13.5),
        ("kv-k", 9.0),
        ("kv-v", 4.5),
        ("kv-per-1k", 12 / 4.096),
        ("state", 3.0),
        ("compute", 300.25),
        ("rss", 2.0),
        ("device", 5.0),
    ],
)
def test_all_caches_of_a_model_count_and_a_window_does_not_grow(name, expected):
    record = replace(
        made_record("q8_0/q4_0", []),
        effective=WINDOWED,
        peak_rss_bytes=2 << 20,
        device_bytes=5 << 20,
    )

    assert [expected] == value(name, record)


def test_memory_of_devices_is_told_by_the_log_where_no_driver_does():
    def held(device):
        return DeviceMemory(
            device=device, weights=90 << 20, context=8 << 20, compute=2 << 20
        )

    places = ("Vulkan0", "Vulkan1", "CPU_Mapped", "Vulkan_Host")
    effective = replace(WINDOWED, memory=tuple(map(held, places)))
    record = replace(made_record("q8_0/q4_0", []), effective=effective)

    assert [200.0] == value("device", record)


def test_without_a_stated_context_the_longest_cache_tells_it():
    """Old builds print no line for the context."""
    effective = replace(WINDOWED, context=None)
    record = replace(made_record("q8_0/q4_0", []), effective=effective)

    assert [12 / 4.096] == value("kv-per-1k", record)


@pytest.mark.parametrize("name", METRIC)
def test_a_silent_log_gives_no_value(name):
    assert [] == value(name, failed_record("q8_0/q4_0"))


@pytest.mark.parametrize(("samples", "points"), [(240, 5.7), (1319, 2.5)])
def test_published_sizes_tell_what_they_can(samples, points):
    """Of one sample in ten that differs, at 80 % power: two sizes of test sets."""
    needed = samples_needed(0.1, share=0.025, loss=points / 100)

    assert samples == pytest.approx(needed, rel=0.06)


def test_more_pairs_take_more_samples_and_few_flips_no_fewer_than_the_loss():
    assert samples_needed(0.1, share=0.025 / 35) > samples_needed(0.1, share=0.025)
    assert samples_needed(0.0, share=0.025) == samples_needed(0.05, share=0.025)


def test_a_metric_of_units_has_a_value_for_each_item_that_has_a_number():
    items = [("a", 1), ("b", None), ("a", 3), ("c", 0)]
    counted = metric_by_unit(lambda *_: items, lambda each: each)
    metric = counted(name="made", unit="", better="higher")
    record = made_record("q8_0/q4_0", [])

    assert [1.0, 3.0, 0.0] == metric.values(record, made_setup())
    assert {"a": [1.0, 3.0], "c": [0.0]} == metric.values_by_unit(record, made_setup())
