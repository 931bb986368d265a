"""Throughput: measured by a llama-bench that obeys, misbehaves, or is real."""

import contextlib
import os
import sys
import types
from dataclasses import replace
from pathlib import Path

import pytest
from made_records import made_setup
from programs import script

from codeneedle.analysis.throughput import (
    METRICS,
    DepthSpeeds,
    more_metrics,
    throughput_of,
)
from codeneedle.engines.llama_cpp.installation import ServerFacts, Tools
from codeneedle.engines.llama_cpp.server import Mismatched
from codeneedle.errors import CellError
from codeneedle.grid import Pair
from codeneedle.probes import throughput
from codeneedle.probes.probe import Stage
from codeneedle.probes.throughput import (
    PROBE,
    BenchMissing,
    BenchTooOld,
    CommaInPath,
    DepthTooDeep,
    measure,
    patience_s,
)
from codeneedle.records.record import Effective, Status
from codeneedle.records.store import Store
from codeneedle.scoring.rounds import Reading
from codeneedle.sweep.request import Request
from codeneedle.sweep.runner import CellEnded, Player

LOGS = Path(__file__).parents[1] / "helpers" / "logs"
PAIR = Pair("q8_0", "q4_0")

BENCH = f"""\
if [ "$1" = --help ]; then cat {LOGS}/bench-help.txt; exit; fi
while [ $# -gt 0 ]; do
  case "$1" in
    --n-depth) D=$2;; --n-prompt) P=$2;; --n-gen) G=$2;;
    --cache-type-k) K=$2;; --cache-type-v) V=$2;; --repetitions) R=$2;;
    --n-gpu-layers) L=$2;;
  esac
  shift
done
log() {{
  echo "llama_context: n_ctx_seq             = $((D + P))"
  echo "llama_context: flash_attn            = enabled"
  echo "llama_kv_cache: size =    1.00 MiB ( $((D + P)) cells,   1 layers,  1/1 seqs),\
 K ($K):    0.50 MiB, V ($V):    0.50 MiB"
}}
row() {{
  echo "llama-bench: benchmark 1/2: prompt run 1/$R"
  printf '{{"build_commit": "abc", "build_number": 11434, "cpu_info": "C", '
  printf '"gpu_info": "", "backends": "CPU", "n_threads": 1, "type_k": "%s", ' "$K"
  printf '"type_v": "%s", "n_gpu_layers": %s, "flash_attn": 1, ' "$V" "$L"
  printf '"n_prompt": %s, "n_gen": %s, "n_depth": %s, ' "$1" "$2" "$D"
  printf '"samples_ns": [1000000000, 2000000000], "samples_ts": [1, 2]}}\\n'
}}
"""
"""In the manner of llama-bench; what it does then is added."""

OBEYS = "log; row $P 0; row 0 $G"


@pytest.fixture
def bench(tmp_path):
    """Makes a llama-bench that does as told, given a script."""

    def made(behaviour=OBEYS):
        return script(tmp_path / "bin" / "llama-bench", BENCH + behaviour)

    return made


@pytest.fixture
def planned(tmp_path):
    """Makes a plan on a llama-bench."""

    def made(binary, *, trained=32768, weights=Path("/w.gguf"), devices=(), **asked):
        asked = {"models": (weights,), "depths": (0, 64, 128), "repetitions": 2} | asked
        chosen = {name: asked.pop(name) for name in ("depths", "repetitions")}
        asked["settings"] = {PROBE.name: PROBE.settings(**chosen)}
        return types.SimpleNamespace(
            request=Request(**asked),
            tools=Tools(
                server=Path("/llama-server"), perplexity=None, bench=binary, source=""
            ),
            server=ServerFacts(
                version="v",
                build=11434,
                k_types=(),
                v_types=(),
                options=frozenset(),
                devices=devices,
            ),
            weights=types.SimpleNamespace(
                path=weights, training_context=trained, identity=""
            ),
            store=Store(tmp_path / "run"),
            is_built_in=not asked["models"],
        )

    return made


def staged(plan):
    """A stage with the settings of its plan."""
    setup = made_setup()
    setup = replace(setup, probes={PROBE.name: PROBE.conditions(plan, "")})
    return Stage(plan=plan, setup=setup, text="", pair=PAIR)


def played(stage):
    """The record of a stage's cell, and the steps before it."""
    player = Player(plan=stage.plan, setup=stage.setup, text="", probe=PROBE)
    *stepped, ended = player.play(stage.pair, 1)
    assert isinstance(ended, CellEnded)
    return ended.record, [event.step for event in stepped]


def at_depth(depth, behaviour):
    """Obeys at any other depth."""
    return f"if [ $D = {depth} ]; then {behaviour}; exit; fi; {OBEYS}"


def test_each_depth_is_measured_by_a_process_of_its_own(bench, planned):
    """
    Speeds are tokens over seconds, per repetition and depth.
    """
    record, steps = played(staged(planned(bench())))

    speeds = throughput_of(record).speeds
    assert Status.FINISHED == record.status
    assert [0, 64, 128] == [at.depth for at in speeds]
    assert {(512.0, 256.0)} == {at.pp for at in speeds}
    assert {(128.0, 64.0)} == {at.tg for at in speeds}
    assert [(0, 3), (1, 3), (2, 3)] == sorted({(at.done, at.total) for at in steps})
    assert "11434 (abc)" == record.effective.build == throughput_of(record).build
    assert record.phases.measure_s


def test_metrics_are_those_of_the_depths(bench, planned):
    """
    The headline is the deepest depth; every depth has metrics of its own.
    """
    stage = staged(planned(bench()))
    record, _ = played(stage)
    metrics = {m.name: m for m in (*METRICS, *more_metrics(stage.setup))}

    assert ["tg", "pp", "tg@0", "pp@0", "tg@64", "pp@64", "tg@128", "pp@128"] == list(
        metrics
    )
    assert {"tg": (128.0, 64.0), "pp@0": (512.0, 256.0)} == {
        name: metrics[name].values(record, stage.setup, Reading())
        for name in ("tg", "pp@0")
    }


def test_a_depth_that_does_not_fit_is_a_gap_and_so_are_deeper_ones(bench, planned):
    """
    The cell is finished, with what was measured; nothing deeper is tried.
    """
    binary = bench(at_depth(64, f"cat {LOGS}/bench-out-of-memory.txt; exit 1"))
    stage = staged(planned(binary))
    record, _ = played(stage)

    shallow, failed, skipped = throughput_of(record).speeds
    assert Status.FINISHED == record.status
    assert (128.0, 64.0) == shallow.tg
    assert ("out-of-memory", ()) == (failed.status, failed.tg)
    assert "failed to allocate" in failed.gap
    assert "depth 64 failed" == skipped.gap
    assert () == METRICS[0].values(record, stage.setup, Reading())
    assert (
        not stage.plan.store.log(PAIR)
        .with_name("q8_0-q4_0.throughput-128.log")
        .exists()
    )


def test_a_cell_without_any_depth_has_failed(bench, planned):
    """
    What ends the shallowest depth ends the cell.
    """
    binary = bench(f"cat {LOGS}/bench-out-of-memory.txt; exit 1")
    record, _ = played(staged(planned(binary)))

    assert Status.OUT_OF_MEMORY == record.status
    assert record.observation is None
    assert record.log_excerpt


@pytest.mark.parametrize(
    ("behaviour", "status", "reason"),
    [
        (f"cat {LOGS}/bench-unknown-type.txt; exit 1", "unsupported", "does not know"),
        ("kill -9 $$", "out-of-memory", "SIGKILL"),
        ("kill -11 $$", "crashed", "SIGSEGV"),
        ("exit 7", "crashed", "exit code 7"),
        ("log; echo 'error: no luck'", "crashed", "0 result lines"),
        ("log; row $P 0", "crashed", "1 result lines"),
        ("log; row $P 0; row 0 $G | head -c 99", "crashed", "cannot be read"),
        (f"({OBEYS}) | sed s/2000000000/0/", "crashed", "a sample of 0"),
        (f"({OBEYS}) | sed s/2000000000/-5/", "crashed", "a sample of -5"),
    ],
)
def test_what_is_no_result_is_no_number(bench, planned, behaviour, status, reason):
    """
    Whatever llama-bench does instead, the cell ends with a status and its reason.
    """
    record, _ = played(staged(planned(bench(behaviour))))

    assert status == record.status
    assert reason in record.reason


def test_a_hang_ends_with_the_patience(bench, planned, monkeypatch):
    """
    A kernel that never returns costs its own depth and the deeper ones.
    """
    monkeypatch.setattr(throughput, "SHORTEST_PATIENCE_S", 0.0)
    monkeypatch.setattr(throughput, "PATIENCE", 0.001)
    binary = bench(at_depth(64, "log; exec sleep 3600"))
    record, _ = played(staged(planned(binary)))

    assert Status.FINISHED == record.status
    assert ["finished", "timed-out", "timed-out"] == [
        at.status for at in throughput_of(record).speeds
    ]


@pytest.mark.parametrize(
    ("behaviour", "difference"),
    [
        ("K=f16; log; row $P 0; row 0 $G", "K is f16, not q8_0"),
        ("(V=f16; log); row $P 0; row 0 $G", "V is f16, not q4_0"),
        ("row $P 0; row 0 $G", "the log names no KV cache"),
        (f"({OBEYS}) | sed s/enabled/disabled/", "flash attention is off"),
        (f"({OBEYS}) | sed s/11434/9999/", "llama-bench is build 9999, not 11434"),
    ],
)
def test_another_thing_than_asked_for_is_mismatched(
    bench, planned, behaviour, difference
):
    """
    The whole cell is, and no speed of it is stored, even if only one depth differs.
    """
    record, _ = played(staged(planned(bench(at_depth(64, behaviour)))))

    assert Status.MISMATCHED == record.status
    assert difference in record.reason
    assert record.observation is None


def test_a_llama_bench_without_the_accelerator_is_mismatched(bench, planned):
    """
    A build for the processor beside a server for a GPU measures something else.
    """
    plan = planned(bench(), devices=("CUDA0 NVIDIA L4 (22563 MiB)",))
    # A pair that is in no doubt: no server is asked about it before.
    record, _ = played(replace(staged(plan), pair=Pair("q8_0", "q8_0")))

    assert Status.MISMATCHED == record.status
    assert "CUDA0" in record.reason


def test_a_fallback_keeps_its_speeds_and_is_marked(bench, planned):
    """
    Only a verbose llama-bench tells that it converts to f16; it is asked to be.
    """
    converts = "echo 'ggml_cuda: converting K and V to f16 instead (slow).'"
    record, _ = played(staged(planned(bench(at_depth(64, f"{OBEYS}; {converts}")))))

    assert Status.FALLBACK_F16 == record.status
    assert 3 == len(throughput_of(record).speeds)
    assert "--verbose" in record.command


def test_an_abandoned_measurement_leaves_no_child(bench, planned, tmp_path):
    """
    Whoever stops iterating has stopped llama-bench, too.
    """
    binary = bench(f"echo $$ > {tmp_path}/pid; log; sleep 3600")
    with contextlib.closing(measure(staged(planned(binary)))) as steps:
        for step in steps:
            if "loading" in step.what:
                break

    pid = int((tmp_path / "pid").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_patience_grows_with_what_the_depth_before_took():
    """
    The first depth may take as long as loading; a deeper one its square, and more.
    """
    before = DepthSpeeds(depth=0, seconds=10.0)

    assert 1800 == patience_s(0, 512)
    assert 120 + 3 * 10 * 9**2 == patience_s(4096, 512, before)


def test_default_depths_are_those_of_the_corpus(bench, planned):
    """
    Without a wish: an empty cache, 4096 tokens, and the corpus as it is sent.
    """
    plan = planned(bench(), depths=(), repetitions=None)
    plan.store.adopt(made_setup())

    chosen = PROBE.conditions(plan, "")

    assert [0, 4096, 8912] == chosen["depths"]
    assert (3, 512, 128) == (
        chosen["repetitions"],
        chosen["prompt_tokens"],
        chosen["generated_tokens"],
    )


def test_default_depths_end_where_training_did(bench, planned):
    """
    What would be too deep by itself is as deep as it may be.
    """
    plan = planned(bench(), depths=(), trained=4096)
    plan.store.adopt(made_setup())

    assert [0, 4096 - 512] == PROBE.conditions(plan, "")["depths"]


def test_wished_depths_are_taken_once_and_in_order(bench, planned):
    """
    The shallowest comes first, whatever the order of the wish.
    """
    plan = planned(bench(), depths=(64, 0, 64, 8))

    assert [0, 8, 64] == PROBE.conditions(plan, "")["depths"]


def test_the_built_in_model_has_depths_of_seconds(bench, planned):
    """
    A sweep of all its pairs is a matter of minutes.
    """
    chosen = PROBE.conditions(planned(bench(), models=(), depths=()), "")

    assert [0, 1024, 4096] == chosen["depths"]
    assert "1" == chosen["arguments"]["--threads"]


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        ({"depths": (32768,)}, DepthTooDeep),
        ({"weights": Path("/a,b.gguf")}, CommaInPath),
    ],
)
def test_the_impossible_is_refused_before_anything_starts(bench, planned, asked, error):
    """
    A wish that cannot be met is told at once, with what can be done.
    """
    with pytest.raises(error) as caught:
        PROBE.conditions(planned(bench(), **asked), "")

    assert caught.value.hint


def test_a_context_that_is_stretched_on_purpose_may_be_deeper(bench, planned):
    """
    Whoever gives rope arguments knows about the training context.
    """
    plan = planned(bench(), depths=(65536,), server_args=("--rope-scale", "4"))

    chosen = PROBE.conditions(plan, "")

    assert [65536] == chosen["depths"]
    assert ["--rope-scale", "4"] == chosen["ignored"]


def test_arguments_of_the_server_reach_llama_bench(bench, planned):
    """
    The offload is that of the server, and the readback is compared with it.
    """
    plan = planned(bench(), server_args=("-ngl", "7"), depths=(0,))
    record, _ = played(staged(plan))

    at = record.command.index("--n-gpu-layers")
    assert "7" == record.command[at + 1]
    assert Status.FINISHED == record.status


def test_a_page_without_rotation_is_measured_without_it(bench, planned, tmp_path):
    """
    llama-bench is told as the server is, by its environment.
    """
    behaviour = f'echo "[$LLAMA_ATTN_ROT_DISABLE]" >> {tmp_path}/told; {OBEYS}'
    for rotation in (True, False):
        played(staged(planned(bench(behaviour), depths=(0,), rotations=(rotation,))))

    assert ["[]", "[1]"] == (tmp_path / "told").read_text().split()


def test_a_page_without_rotation_is_not_measured_with_it(bench, planned):
    """
    A build that does not know how to leave it out rotates all the same.
    """
    rotates = f'echo "llama_kv_cache: attn_rot_k = 64"; {OBEYS}'
    plain, rotated = (
        played(staged(planned(bench(rotates), depths=(0,), rotations=(rotation,))))[0]
        for rotation in (False, True)
    )

    assert Status.MISMATCHED == plain.status
    assert "values are rotated" in plain.reason
    assert Status.FINISHED == rotated.status


@pytest.mark.parametrize(
    ("args", "status"), [((), Status.MISMATCHED), (("-ngl", "20"), Status.FINISHED)]
)
def test_a_part_of_the_layers_is_measured_only_if_asked_for(
    bench, planned, args, status
):
    """
    Where nobody chose a number, all of them are to be on the accelerator.
    """
    partly = f'echo "load_tensors: offloaded 20/33 layers to GPU"; {OBEYS}'
    record, _ = played(staged(planned(bench(partly), depths=(0,), server_args=args)))

    assert status == record.status


def test_a_missing_llama_bench_is_told(planned):
    """
    The other probes do without it; this one cannot.
    """
    with pytest.raises(BenchMissing, match="llama-bench is not beside"):
        PROBE.conditions(planned(None), "")


@pytest.mark.parametrize("option", ["--n-depth", "jsonl"])
def test_an_old_llama_bench_is_refused(planned, tmp_path, option):
    """
    Depths and JSON lines came late; nothing can be measured without.
    """
    old = tmp_path / "old.txt"
    old.write_text((LOGS / "bench-help.txt").read_text().replace(option, ""))
    binary = script(tmp_path / "bin" / "llama-bench", f"cat {old}")

    with pytest.raises(BenchTooOld, match=option):
        throughput.asked_options(binary)


@pytest.fixture
def real_stage(llama_server, nano, planned):
    """Makes a stage of the real llama-bench and the built-in model."""
    binary = llama_server.with_name("llama-bench")

    def made(pair, **asked):
        asked = {"depths": (0, 256), "repetitions": 1} | asked
        plan = planned(binary, models=(), weights=nano, trained=65536, **asked)
        return replace(staged(plan), pair=pair)

    return made


@pytest.mark.real
def test_the_real_llama_bench_is_measured_and_verified(real_stage):
    """
    Its types, context and attention are read from its log.
    """
    record, _ = played(real_stage(PAIR))

    assert Status.FINISHED == record.status, record.reason
    assert [1, 1] == [len(at.tg) for at in throughput_of(record).speeds]
    assert {("q8_0", "q4_0")} == {(b.k_type, b.v_type) for b in record.effective.kv}
    assert "enabled" == record.effective.flash_attention


@pytest.mark.real
def test_a_type_that_the_real_one_does_not_know_is_unsupported(real_stage):
    """
    f32 is a cache type of the server alone.
    """
    record, _ = played(real_stage(Pair("f32", "f32")))

    assert Status.UNSUPPORTED == record.status
    assert Effective() == record.effective


@pytest.mark.real
@pytest.mark.skipif(sys.platform != "linux", reason="others have no such limit")
def test_a_depth_that_the_real_one_cannot_hold_is_a_gap(
    llama_server, nano, planned, tmp_path
):
    """
    Where the cache does not fit, the system says no; the empty cache was measured.
    """
    real = llama_server.with_name("llama-bench")
    binary = script(tmp_path / "little", f'ulimit -v 900000; exec {real} "$@"')
    plan = planned(
        binary,
        models=(),
        weights=nano,
        depths=(0, 3_000_000),
        server_args=("--rope-scale", "99"),
    )
    record, _ = played(staged(plan))

    _, failed = throughput_of(record).speeds
    assert Status.FINISHED == record.status, record.reason
    assert "out-of-memory" == failed.status, failed.gap


def test_errors_of_a_cell_are_cell_errors():
    """
    None of them ends a sweep.
    """
    assert issubclass(Mismatched, CellError)
