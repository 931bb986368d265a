"""The throughput probe, with a tool that a test controls, and the real one."""

import os
import sys
from dataclasses import replace

import pytest
from fake_engine import made_weights
from fake_tools import FakeSpeed, ToolEngine
from made_contexts import made_outlook, real_context, run_context, stored_by
from made_records import made_run as recall_run
from made_records import made_setup
from programs import script

from codeneedle.cache_types import Pair
from codeneedle.engines.llama_cpp import installation
from codeneedle.errors import BadInput, CellError
from codeneedle.probes.cell import ProbeContext
from codeneedle.probes.throughput.probe import (
    ONCE,
    OVERLOADED,
    PROBE,
    ThroughputSettings,
    silence_limit_s,
)
from codeneedle.probes.throughput.record import NAME, DepthSpeeds, Throughput
from codeneedle.records.record import (
    Attention,
    CellRecord,
    Run,
    Status,
    as_json,
    from_json,
)
from codeneedle.system.machine import usable_cores

PAIR = Pair("q8_0", "q4_0")


@pytest.fixture
def made_run(tmp_path):
    """Makes the context of a run with a fake tool; *chosen* are settings."""

    def made(tool=None, *, stretched=False, changes=(), **chosen):
        chosen = {"depths": (0, 64, 128), "repetitions": 2, **chosen}
        facts = {
            "weights": made_weights(training_context=32768),
            "settings": {NAME: ThroughputSettings(**chosen)},
            **dict(changes),
        }
        tool = tool or FakeSpeed()
        engine = ToolEngine(speed=tool, stretches_context=stretched)
        return run_context(tmp_path, engine, **facts)

    return made


def context_of(run, pair=PAIR, **changes):
    """One cell of *run*, after planning."""
    probes = {NAME: stored_by(PROBE, run)}
    run = replace(run, setup=replace(run.setup, probes=probes))
    return ProbeContext(run=run, pair=pair, logs=run.folder, **changes)


def measured(run, pair=PAIR, **changes):
    """The observation of one cell, and its context."""
    cell = context_of(run, pair, **changes)
    return from_json(PROBE.measure(cell), Throughput, file="x"), cell


def fails_at(depth, status=Status.OUT_OF_MEMORY):
    """An outcome that is an error at one depth."""
    error = CellError("failed to\nallocate", hint="Look.", status=status)
    return lambda task: error if task.depth == depth else None


# Conditions


def adapted(run):
    """*run* with its settings as they suit engine and weights."""
    estimates = made_outlook(engine=run.engine, weights=run.weights)
    return replace(run, settings={NAME: PROBE.adapt(run.settings[NAME], estimates)})


def test_chosen_settings_are_conditions(made_run):
    assert {
        "depths": [0, 8, 64],
        "repetitions": 2,
        "prompt_tokens": 512,
        "generated_tokens": 128,
        "arguments": {"--threads": "1"},
    } == stored_by(PROBE, adapted(made_run(depths=(64, 0, 64, 8))))


@pytest.mark.parametrize(
    ("changes", "depths", "sizes"),
    [
        ({}, [0, 4096, 8912], (512, 128)),
        ({"weights": made_weights(training_context=4096)}, [0, 4096 - 512], (512, 128)),
        (
            {"weights": made_weights(training_context=None)},
            [0, 4096, 8912],
            (512, 128),
        ),
        ({"is_built_in": True}, [0, 1024, 4096], (128, 32)),
    ],
    ids=["corpus", "training", "no training", "built-in"],
)
def test_default_depths_suit_corpus_and_weights(made_run, changes, depths, sizes):
    run = made_run(depths=(), repetitions=None, changes=changes)
    chosen = stored_by(PROBE, run)

    assert (depths, 3, sizes) == (
        chosen["depths"],
        chosen["repetitions"],
        (chosen["prompt_tokens"], chosen["generated_tokens"]),
    )


def test_a_depth_beyond_the_training_is_refused_unless_stretched(made_run):
    assert adapted(made_run(depths=(32768 - 512,)))
    with pytest.raises(BadInput, match="--depths 32257: ") as caught:
        adapted(made_run(depths=(32768 - 511,)))

    assert "Use 32256 or less" in caught.value.hint
    assert adapted(made_run(depths=(65536,), stretched=True))
    untold = {"weights": made_weights(training_context=None)}
    assert adapted(made_run(depths=(999_999,), changes=untold))


# Measuring


def test_each_depth_is_measured_by_a_run_of_its_own(made_run, golden):
    tool, steps = FakeSpeed(), []
    found, cell = measured(made_run(tool), tell=steps.append)

    assert [0, 64, 128] == [task.depth for task in tool.tasks]
    assert {(PAIR, 512, 128, 2)} == {
        (t.pair, t.prompt_tokens, t.generated_tokens, t.repetitions) for t in tool.tasks
    }
    assert [0, 64, 128] == [at.depth for at in found.speeds]
    assert {((200.0, 100.0), (20.0, 10.0))} == {(at.pp, at.tg) for at in found.speeds}
    assert ("7 (fake)", "C", "", "CPU", 1) == (
        found.build,
        found.cpu,
        found.gpu,
        found.backends,
        found.threads,
    )
    assert ("bench", "128") == cell.command
    assert "7 (fake)" == cell.effective.build
    assert cell.phases.measure_s is not None
    assert [(0, 3), (0, 3), (1, 3), (1, 3), (2, 3), (2, 3)] == [
        (step.done, step.total) for step in steps
    ]
    assert golden == steps[-1].what


def test_a_depth_that_fails_is_a_gap_and_so_are_deeper_ones(made_run):
    tool = FakeSpeed(outcome=fails_at(64), attention=Attention.CONVERTED)
    found, cell = measured(made_run(tool))

    shallow, failed, skipped = found.speeds
    assert (20.0, 10.0) == shallow.tg
    assert ("out-of-memory", "failed to allocate", ()) == (
        failed.status,
        failed.gap,
        failed.tg,
    )
    assert ("out-of-memory", "depth 64 failed") == (skipped.status, skipped.gap)
    assert [0, 64] == [task.depth for task in tool.tasks]
    assert Attention.CONVERTED is cell.effective.attention


@pytest.mark.parametrize(
    ("depth", "status"), [(0, Status.OUT_OF_MEMORY), (64, Status.MISMATCHED)]
)
def test_the_shallowest_depth_or_a_mismatch_ends_the_cell(made_run, depth, status):
    cell = context_of(made_run(FakeSpeed(outcome=fails_at(depth, status))))

    with pytest.raises(CellError, match="failed to"):
        PROBE.measure(cell)
    assert ("bench", str(depth)) == cell.command


def test_the_time_limit_grows_with_what_the_depth_before_took(made_run):
    before = DepthSpeeds(depth=0, seconds=10.0)
    tool = FakeSpeed()
    measured(made_run(tool))

    assert 1800 + 4096 / 4 == silence_limit_s(4096, 512)
    assert 120 + 3 * 10 * 9**2 == silence_limit_s(4096, 512, before)
    assert silence_limit_s(0, 512) == tool.limits_s[0]
    assert 120 <= tool.limits_s[2] < 180


# Remarks


def record(pair, *speeds, times=2):
    """Writing speeds at depths 0, 1,000, 2,000 ... in tokens per second."""
    measured = {
        str(1000 * at): DepthSpeeds(
            depth=1000 * at, pp=(100.0,) * times, tg=(speed,) * times
        )
        for at, speed in enumerate(speeds)
    }
    stored = Throughput(
        answers=measured, build="b1", cpu="", gpu="", backends="CPU", threads=1
    )
    return CellRecord(
        pair=Pair.parse(pair),
        probe=NAME,
        status=Status.FINISHED,
        started="2026-01-01T00:00:00+00:00",
        observation=as_json(stored),
    )


def remarks_of(*records):
    """The remarks of a run of these records."""
    return PROBE.remarks(Run(name="a/b", setup=made_setup(), records=records))


def test_what_was_measured_once_is_not_called_faster():
    lines = remarks_of(
        record("f16/f16", 100, times=1), record("q4_0/q4_0", 150, times=1)
    )

    assert (f"{ONCE}: f16/f16, q4_0/q4_0",) == lines


def test_pairs_that_overtake_at_the_same_depth_share_a_line(golden):
    lines = remarks_of(
        record("f16/f16", 100, 100, 100),
        record("q4_0/q4_0", 50, 100, 150),
        record("q8_0/q8_0", 50, 100, 150),
        *(record(f"{k}/q4_0", 10, 10) for k in ("q8_0", "q5_1", "q5_0", "q4_1")),
        record("f16/q4_0", 10, 10),
        replace(record("q5_1/q5_1"), status=Status.CRASHED, observation=None),
    )

    assert golden == lines
    assert () == PROBE.remarks(recall_run())


def test_the_speed_of_a_cell_without_a_kernel_is_reported_and_not_compared(golden):
    slow = record("q8_0/q4_0", 50, 3)
    slow = replace(slow, effective=replace(slow.effective, attention=Attention.CPU))

    assert golden == remarks_of(record("f16/f16", 100, 102), slow)


def test_speeds_taken_beside_many_programs_are_said_to_be_such(made_run, monkeypatch):
    monkeypatch.setattr(os, "getloadavg", lambda: (4.3 * usable_cores(), 0.0, 0.0))
    found, _ = measured(made_run())
    busy = record("q4_0/q4_0", 50, 100)
    busy = replace(busy, observation=busy.observation | {"load": found.load})

    lines = remarks_of(record("f16/f16", 100, 100), busy)

    assert 4.3 == found.load
    assert f"{OVERLOADED}: q4_0/q4_0" in lines


# The real tool


@pytest.mark.real
@pytest.mark.skipif(sys.platform != "linux", reason="others have no such limit")
def test_a_depth_that_the_real_one_cannot_hold_is_a_gap(tmp_path, llama_server):
    """With little address space, the cache of millions of tokens does not fit."""
    real = installation.locate_tools(llama_server=llama_server).bench
    binary = script(tmp_path / "little", f'ulimit -v 900000; exec {real} "$@"')
    chosen = ThroughputSettings(depths=(0, 3_000_000), repetitions=1)

    found, _ = measured(
        real_context(
            tmp_path,
            tools={"bench": binary},
            arguments=("--rope-scale", "99"),
            settings={NAME: chosen},
        )
    )

    assert found.speeds[0].tg
    assert "out-of-memory" == found.speeds[1].status, found.speeds[1].gap
