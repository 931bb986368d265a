"""Workers, devices and shares of a grid."""

from dataclasses import replace

import pytest
from fake_engine import FakeEngine
from made_contexts import run_context
from made_records import made_record

from codeneedle.cache_types import Pair, shuffle_pairs, whole_grid
from codeneedle.errors import BadInput
from codeneedle.records.store import Store
from codeneedle.sweep import workers
from codeneedle.sweep.grid_shares import Share, slurm_task_share
from codeneedle.sweep.runner import Runner
from codeneedle.sweep.schedule import (
    Schedule,
    Task,
    Variant,
    Wanted,
    one_device_per_other_kind,
)
from codeneedle.sweep.workers import Place, Worker, worker_places
from codeneedle.verdict.limits import Limits

TYPES = ("f16", "q8_0", "q4_0")
PAIRS = shuffle_pairs(whole_grid(TYPES, TYPES), seed=42)
L4 = "NVIDIA L4 (22563 MiB)"


@pytest.fixture(autouse=True)
def cores(monkeypatch):
    """A machine of eight cores."""
    monkeypatch.setattr(workers, "usable_cores", lambda: 8)


def test_cores_are_divided_between_workers_and_devices(golden):
    assert (Place(),) == worker_places()
    assert (Place("2"),) == worker_places(devices=["2"])
    assert (Place("", 2),) * 4 == worker_places(workers=4)
    assert (Place("0", 2), Place("1", 2), Place("2", 2)) == worker_places(devices="012")
    assert Place("9", 1) == worker_places(devices=[str(n) for n in range(10)])[-1]
    for asked in ({"workers": 9}, {"devices": ["0"], "workers": 2}):
        with pytest.raises(BadInput) as caught:
            worker_places(**asked)
        assert golden == str(caught.value)


def test_devices_of_one_kind_have_one_phrase_and_those_of_two_have_two():
    def phrase(device, place):
        return place.phrase(FakeEngine(devices=(device,)))

    assert f"{L4}, 2 threads" == phrase(f"CUDA0 {L4}", Place("0", 2))
    assert f"{L4}, 2 threads" == phrase(f"CUDA3 {L4}", Place("3", 2))
    assert L4 == phrase(f"CUDA3 {L4}", Place("3", 2).with_all_cores())
    assert "1 thread" == phrase(f"CUDA0 {L4}", Place("", 1))
    assert not phrase(f"CUDA0 {L4}", Place())


@pytest.mark.parametrize("of", [1, 2, 3, 8, 20])
def test_shares_cover_the_grid_and_overlap_in_the_reference_alone(of):
    shares = [
        Share(number, of).own_pairs_and_reference(PAIRS) for number in range(1, of + 1)
    ]

    assert set(PAIRS) == set().union(*shares)
    reference = Pair("f16", "f16")
    assert all(reference in share for share in shares)
    others = [pair for share in shares for pair in share if pair != reference]
    assert sorted(others) == sorted(set(PAIRS) - {reference})
    for first, *rest in shares:
        assert (reference, rest) == (first, sorted(rest, key=PAIRS.index))


@pytest.mark.parametrize(
    ("measured_on", "devices", "others"),
    [
        ("2 threads", [""], []),
        ("", ["1 thread", "1 thread"], []),
        ("NVIDIA L4, 2 threads", ["NVIDIA L4, 4 threads", ""], []),
        (
            "NVIDIA L4, 2 threads",
            ["NVIDIA L4, 2 threads", "AMD 1, 2 threads", "AMD 1, 2 threads"],
            [("on-amd-1", "AMD 1, 2 threads")],
        ),
    ],
)
def test_the_reference_is_measured_on_other_kinds_of_devices_alone(
    measured_on, devices, others
):
    """Another number of threads is no other kind."""
    record = replace(made_record("f16/f16", []), device=measured_on)
    found = [
        Task(
            probe="recall",
            pairs=(record.pair,),
            variant=Variant.ELSEWHERE,
            device=device,
        )
        for device in one_device_per_other_kind(record, devices)
    ]

    assert others == [(task.record_variant, task.device) for task in found]


class PlacedEngine(FakeEngine):
    """An engine that can put attention on the CPU."""

    def with_attention_on_cpu(self, _pair):
        return ON_CPU


ON_CPU = FakeEngine()
"""With attention on the CPU."""


@pytest.mark.parametrize(
    ("variant", "device", "expected"),
    [
        ("", "", [L4, "AMD 1", "AMD 1"]),
        (Variant.ELSEWHERE, "AMD 1", ["AMD 1"]),
        (Variant.ON_CPU, "", [L4]),
    ],
)
def test_a_variant_is_measured_by_one_worker_and_all_else_by_all(
    tmp_path, variant, device, expected
):
    engine, names = PlacedEngine(), (L4, "AMD 1", "AMD 1")
    workers = [Worker(engine=engine, device=name) for name in names]
    runner = Runner(run=run_context(tmp_path), store=Store(tmp_path), workers=workers)
    wanted = Wanted(probes=(), pairs=())
    schedule = Schedule(runner=runner, wanted=wanted, limits=Limits())
    task = Task(
        probe="recall", pairs=(Pair("f16", "f16"),), variant=variant, device=device
    )

    there = schedule.runner_of(task).workers

    assert expected == [worker.device for worker in there]
    of_task = ON_CPU if variant is Variant.ON_CPU else engine
    assert all(worker.engine is of_task for worker in there)


@pytest.mark.parametrize("text", ["0/8", "9/8", "3", "3/0", "-1/8", "3/8/9", "a/b", ""])
def test_what_is_no_share_is_refused(text, golden):
    with pytest.raises(BadInput) as caught:
        Share.parse(text)
    assert golden == str(caught.value)


@pytest.mark.parametrize(
    ("said", "share"),
    [
        ({"ID": "3", "COUNT": "8", "MIN": "1", "STEP": "1"}, "3/8"),
        ({"ID": "0", "COUNT": "8", "MIN": "0", "STEP": "1"}, "1/8"),
        ({"ID": "14", "COUNT": "4", "MIN": "2", "STEP": "4"}, "4/4"),
    ],
)
def test_a_task_of_an_array_knows_its_share(said, share):
    environment = {f"SLURM_ARRAY_TASK_{name}": text for name, text in said.items()}
    assert share == str(slurm_task_share(environment))
    assert slurm_task_share({"SLURM_ARRAY_TASK_ID": "3"}) is None
    assert slurm_task_share({}) is None


def test_an_array_with_gaps_has_no_shares():
    """Some tasks sent again would take other shares than the first time."""
    said = {"ID": "5", "COUNT": "2", "MIN": "3", "STEP": "1"}
    with pytest.raises(BadInput, match="has gaps") as caught:
        slurm_task_share({f"SLURM_ARRAY_TASK_{k}": v for k, v in said.items()})
    assert "--shard" in caught.value.hint
