"""The plan of a sweep, and KV memory as predicted and as measured."""

from dataclasses import replace
from operator import attrgetter
from pathlib import Path

import msgspec
import pytest
from fake_engine import FakeEngine
from gguf_files import SHAPE, gguf_bytes, write_gguf
from made_plans import asking, made_world, measured, planned
from made_records import failed_record, made_record, made_run, made_setup
from printing import printed

from codeneedle.cache_types import Pair
from codeneedle.engines.engine import CacheTypes
from codeneedle.engines.pace import Pace
from codeneedle.engines.survey import PairSurvey, Survey
from codeneedle.models.gguf import parse
from codeneedle.models.kv_cache import (
    AvailableMemory,
    caches_of_plain_attention,
    predict_memory,
    why_misfit,
)
from codeneedle.models.weights import weights_of
from codeneedle.probes import PROBES
from codeneedle.records.record import (
    AGAIN,
    Attention,
    DeviceMemory,
    Effective,
    KvBuffer,
    Phases,
    Status,
)
from codeneedle.report.memory import (
    measured_memories,
    measured_memory_document,
    predicted_memory_document,
)
from codeneedle.report.plan import (
    plan_document,
    plan_object,
    survey_plan_memory,
    sweep_time_phrase,
)
from codeneedle.report.served import pair_with_fewest_bits
from codeneedle.sweep.measure import Options, with_next_task
from codeneedle.sweep.plan import plan as make_plan
from codeneedle.sweep.request import Execution
from codeneedle.sweep.running_order import running_order
from codeneedle.sweep.steps import with_steps
from codeneedle.verdict.limits import Limits

SETUP = made_setup(needles=2)
GIB = 1 << 30
WEIGHTS = weights_of(
    parse(gguf_bytes(SHAPE)), files=[Path("m.gguf")], size_bytes=3 << 20
)
"""4 layers, 2 KV heads of 64: 1 MiB of K per 1,024 tokens in f16."""


@pytest.fixture(autouse=True)
def world(tmp_path, monkeypatch):
    """A folder with a corpus and weights; nothing that could be started."""
    made_world(tmp_path, monkeypatch)


def shown(plan, *, width=100):
    """The screen of *plan*, as one text."""
    return printed(plan_document(plan), width=width)


def test_a_plan_of_a_run_that_goes_on_names_what_is_measured_next():
    asked = {"types": ("f16", "q8_0")}
    options = Options(limits=Limits())
    fresh = with_next_task(planned(**asked), options)
    assert plan_object(fresh)["next"] is None
    assert "next" not in [line.split()[0] for line in shown(fresh).split("\n") if line]

    measured(fresh)
    going_on = with_next_task(planned(**asked), options)
    task = plan_object(going_on)["next"]

    left = [str(pair) for pair in running_order(going_on, PROBES["recall"])]
    assert ("recall", "", None) == (task["probe"], task["how"], task["units"])
    assert [pair for pair in left if pair != "f16/f16"] == task["pairs"]
    assert f"recall of {', '.join(task['pairs'])}" in shown(going_on)


def test_the_smallest_pair_is_so_by_both_of_its_types():
    """By the order of K it was once q4_0/f16, of 20 bits."""
    pairs = [Pair("f16", "f16"), Pair("q4_0", "f16"), Pair("q8_0", "q4_0")]

    assert Pair("q8_0", "q4_0") == pair_with_fewest_bits(pairs)


def grid_of(text):
    """The rows of the predicted grid, by K type."""
    lines = text.split("tokens, MiB\n\n")[1].split("\n\n")[0].splitlines()
    return {words[0]: words[1:] for words in map(str.split, lines) if words}


def facts_of(text):
    """The first word of each fact with its phrase."""
    lines = text.split("\n\n")[0].splitlines()
    pairs = [line.split(maxsplit=1) for line in lines if not line.startswith(" ")]
    return {pair[0]: pair[1].strip() for pair in pairs}


class Paced(FakeEngine):
    """
    An engine that knows how long its model takes.

    A second for a server, 1,929 ms to read, 2,082 tokens of 10 ms: 24 s a cell.
    """

    def pace(self, _pairs):
        return Pace(
            start_s=1.0, read_s=0.001, write_s=0.01, read_back_s=0, write_back_s=0
        )


def test_a_new_sweep_tells_what_it_would_do(golden):
    class Noting(FakeEngine):
        def notes(self):
            return ("look \x1b[2J",)

    plan = planned(engine=Noting())
    text = shown(plan, width=500)
    facts = facts_of(text)

    assert "8,192 tokens, completion prompt" == facts["context"]
    assert "sweeps/tiny/model" == facts["records"]
    assert f"{', '.join(map(str, plan.pairs[:3]))}, ..." == facts["order"]
    told = ("corpus", "cells", "time", "recall")
    assert golden == {name: facts[name] for name in told}
    assert r"note: look \x1b[2J" in text.splitlines()


def test_a_new_sweep_tells_a_time_where_the_engine_knows_its_pace(golden):
    assert golden == facts_of(shown(planned(engine=Paced()), width=500))["time"]


def test_a_plan_that_decides_tells_its_steps_and_when_it_can_answer(golden):
    types = ("bf16", "q8_0", "q4_0")
    pace = Pace(start_s=1.0, read_s=0.001, write_s=0.01, read_back_s=0, write_back_s=0)
    plan = planned(k_types=types, v_types=types, decide=True)
    silent = printed(plan_document(with_steps(plan)), width=200)
    text = printed(plan_document(with_steps(replace(plan, pace=pace))), width=200)

    for screen in (silent, text):
        assert golden == screen[screen.index("cells ") :].split("\n\n")[0]
    assert "first answer after" not in silent
    assert 4 <= len(plan_object(with_steps(plan))["steps"])
    assert [] == plan_object(with_steps(planned()))["steps"]


def test_a_text_that_is_cut_names_the_context_of_all_of_it():
    text = shown(planned(contexts=(1024,)), width=200)

    assert "whole corpus: --context 3072, about" in text


def test_a_probe_tells_its_price(golden):
    facts = facts_of(shown(planned(probes=("retrieval",)), width=500))

    assert golden == facts["retrieval"]


def test_a_sweep_of_one_pair(golden):
    plan = planned(k_types=("q8_0",), v_types=("q4_0",))
    facts = facts_of(shown(plan, width=500))

    assert golden == facts["recall"]
    assert "q8_0/q4_0" == facts["order"]


@pytest.mark.parametrize("width", [60, 100])
def test_the_grid_predicts_memory(width):
    """4 layers with 2 KV heads of 64: f16 takes 8 MiB of K at 8,192 tokens."""
    fork = FakeEngine(types=CacheTypes())
    plan = planned(
        engine=fork, k_types=("f16", "q8_0", "turbo3"), v_types=("f16", "q4_0")
    )
    found = grid_of(shown(plan, width=width))

    assert ["16.0=", "10.2"] == found["f16"]
    assert ["12.2", "6.5"] == found["q8_0"]
    assert ["?", "?"] == found["turbo3"]


def test_what_is_done_is_marked_and_tells_what_is_left(golden):
    plan = planned()
    plan.store.check_and_store_setup(SETUP)
    slow = Phases(ready_s=1.0, measure_s=9.0)
    plan.store.write_record(replace(made_record("q8_0/q8_0", []), phases=slow))
    plan.store.write_record(failed_record("q4_0/q4_0", Status.OUT_OF_MEMORY, "no room"))

    text = shown(plan, width=200)
    facts, grid = facts_of(text), grid_of(text)

    assert golden == {name: facts[name] for name in ("cells", "time", "corpus")}
    assert "8.5=+" == grid["q8_0"][0]
    assert "oom" in grid["q4_0"][1].lower()
    assert "q4_0/q4_0 out-of-memory: no room" in text
    assert "+ finished" in " ".join(text.split())
    both = shown(planned(probes=("throughput", "recall")), width=200)
    assert "0 of 4 finished" in both
    assert "1 of 5 finished" in both
    plan.store.write_record(failed_record("q4_0/q4_0", Status.INTERRUPTED, "stopped"))
    two = replace(plan, workers=plan.workers * 2)
    one = replace(plan, pairs=(Pair("q8_0", "q8_0"),))
    assert golden == [facts_of(shown(each))["time"] for each in (plan, two, one)]


def test_the_corpus_of_a_plan_claims_no_length_of_its_functions(golden):
    assert golden == facts_of(shown(planned(), width=500))["corpus"]


def test_all_time_is_told_before_a_sweep_where_it_is_known():
    probes = ("divergence", "recall")
    assert "" == sweep_time_phrase([planned(probes=probes)])

    plan = planned(engine=Paced(), probes=probes)
    deciding = replace(plan, request=msgspec.structs.replace(plan.request, decide=True))

    assert sweep_time_phrase([plan]).startswith("about ")
    assert sweep_time_phrase([deciding]).startswith("at most ")


def test_the_reference_counts_twice_and_its_repeat_is_priced(golden):
    plan = planned()
    again = replace(made_record("q8_0/q8_0", []), variant=AGAIN)
    plan.store.check_and_store_setup(SETUP)
    plan.store.write_record(replace(again, phases=Phases(measure_s=20.0)))

    text = shown(plan)
    facts = facts_of(text)
    [meaning] = [line for line in text.splitlines() if line.startswith("=  ")]

    assert golden == (facts["cells"], facts["time"], meaning)
    assert ["8.5=", "6.5"] == grid_of(text)["q8_0"]
    built_in = shown(planned(models=()))
    assert "0 of 4 finished" == facts_of(built_in)["cells"]
    assert ["4.2", "3.2"] == grid_of(built_in)["q8_0"]


def test_a_pair_that_the_weights_cannot_take_says_why(tmp_path, golden):
    odd = {**SHAPE, "llama.embedding_length": 320}
    write_gguf(tmp_path / "odd.gguf", odd)

    grid = {"k_types": ("f16", "q8_0"), "v_types": ("f16", "q4_0")}
    text = shown(planned(models=("odd.gguf",), **grid))

    assert ["cannot", "cannot"] == grid_of(text)["q8_0"]
    assert golden == [x for x in text.splitlines() if x.startswith("cannot ")]


def lines_of(view):
    """The lines on a terminal of 80 columns, without trailing blanks."""
    return [line.rstrip() for line in printed(view, width=80).splitlines()]


def table_of(*pairs, room=8 * GIB, weights=WEIGHTS):
    """The predicted table of *pairs*."""
    plan = predict_memory(
        weights,
        caches_of_plain_attention(weights, weights.training_context),
        map(Pair.parse, pairs),
        AvailableMemory(room, "of this machine"),
        refusal=lambda pair: why_misfit(weights, pair),
    )
    return lines_of(predicted_memory_document(plan))


def served(pair, *, k_mib, v_mib, context=4096, **changes):
    """A finished record whose server named these sizes."""
    parsed = Pair.parse(pair)
    kv = KvBuffer(
        cells=context,
        layers=4,
        k_type=parsed.k,
        v_type=parsed.v,
        k_mib=k_mib,
        v_mib=v_mib,
    )
    effective = Effective(context=context, kv=(kv,), compute_mib=6.52)
    return replace(made_record(pair, []), effective=effective, **changes)


def run_of(*records):
    """A run of *records* alone."""
    return replace(made_run(), records=records)


def test_of_many_pairs_the_memory_of_those_of_one_type_is_shown_by_context():
    types = ("bf16", "f16", "q8_0", "q4_0")
    text = shown(planned(k_types=types, v_types=types)).partition("by context")[2]

    rows = [line.split()[0] for line in text.splitlines() if "/" in line]
    assert ["K/V", *sorted(f"{each}/{each}" for each in types)] == sorted(rows)


def test_a_plan_has_a_row_per_pair(golden):
    assert golden == "\n".join(table_of("q8_0/q4_0", "f16/f16"))
    assert "*" not in "".join(table_of("f16/f16", room=530 << 20))


def test_a_pair_that_cannot_be_served_and_a_wide_table(golden):
    odd = replace(WEIGHTS, key_length=80)
    large = replace(
        WEIGHTS, layers=36, kv_heads=(8,) * 36, training_context=262_144, key_length=128
    )

    lines = table_of("q8_0/q4_0", weights=odd)
    wide = table_of("bf16/bf16", "iq4_nl/iq4_nl", weights=large, room=64 * GIB)

    assert lines[3].endswith("cannot")
    assert golden == lines[5]
    assert 80 >= max(map(len, wide))


def test_an_unknown_size_is_a_question_mark(golden):
    lines = table_of("turbo3/f16")

    assert ["turbo3/f16", "?", "?", "?", "?"] == lines[3].split()
    assert golden == lines[5]


def test_measured_sizes_are_exact_although_the_log_rounds_them(golden):
    record = served("f16/q4_0", k_mib=4.0, v_mib=1.12, peak_rss_bytes=64 << 20)

    lines = lines_of(measured_memory_document(run_of(record)))

    assert golden == "\n".join(lines)
    assert 1.125 == measured_memories(run_of(record))[0].sizes_mib["kv-v"]


def test_per_1k_is_what_grows_and_a_recurrent_state_has_a_column():
    """A window of 1,024 of 4,096 tokens; 8 MiB for the 4,096 that grow."""
    record = served("f16/f16", k_mib=4.0, v_mib=4.0)
    (cache,) = record.effective.kv
    window = replace(cache, cells=1024)
    effective = replace(record.effective, kv=(cache, window), recurrent_bytes=3 << 20)

    lines = lines_of(
        measured_memory_document(run_of(replace(record, effective=effective)))
    )

    assert "state" in lines[2]
    assert ["8.00", "8.00", "1.953", "3.0"] == lines[3].split()[1:5]


def test_measured_sizes_on_a_large_accelerator_fit_80_columns():
    sizes = {"k_mib": 2048.0, "v_mib": 2048.0, "context": 32_768}
    peak, held = 70_000 << 20, 79_000 << 20
    record = served("bf16/bf16", **sizes, peak_rss_bytes=peak, device_bytes=held)
    record = replace(record, effective=replace(record.effective, compute_mib=1250.5))
    unknown = served("q4_0/q4_0", k_mib=4.0, v_mib=1.12)

    lines = lines_of(measured_memory_document(run_of(record, unknown)))

    expected = [*["2,048"] * 2, "125.0", "1,250", "70,000", "79,000"]
    assert expected == lines[3].split()[1:]
    assert ("device", "-") == (lines[2].split()[-1], lines[4].split()[-1])
    assert 80 >= max(map(len, lines[1:5]))
    assert "peak" == lines_of(measured_memory_document(run_of(unknown)))[2].split()[-1]


def test_the_longest_context_of_a_pair_counts(golden):
    coarse = served("q4_0/f16", k_mib=1.0, v_mib=1.0)
    short = served("f16/f16", k_mib=1.0, v_mib=1.0, context=1024)
    long = served("f16/f16", k_mib=4.0, v_mib=4.0)
    stopped = replace(short, status=Status.INTERRUPTED, probe="throughput")
    run = run_of(coarse, short, long, replace(short, probe="other"), stopped)

    found = measured_memories(run)
    lines = lines_of(measured_memory_document(run))

    assert ["f16/f16", "q4_0/f16"] == [str(each.pair) for each in found]
    sizes = found[0].sizes_mib
    assert (4.0, 4.0) == (sizes["kv-k"], sizes["kv-v"])
    assert golden == lines[0]
    assert "left out" not in "\n".join(lines)


def test_a_server_counts_before_a_tool_with_a_longer_context():
    server = served("f16/f16", k_mib=4.0, v_mib=4.0, peak_rss_bytes=64 << 20)
    tool = served("f16/f16", k_mib=8.0, v_mib=8.0, context=8192)

    (found,) = measured_memories(run_of(tool, server))

    assert (64.0, 4096) == (found.sizes_mib["rss"], found.context)


def test_a_run_without_finished_cells_has_no_memory(golden):
    none = lines_of(measured_memory_document(run_of(failed_record("f16/f16"))))

    assert golden == "\n".join(none)


@pytest.mark.parametrize("status", [Status.INTERRUPTED, Status.CRASHED])
def test_memory_leaves_out_cells_that_did_not_finish(status):
    sizes = {"k_mib": 4.0, "v_mib": 4.0}
    stopped = replace(served("f16/q4_0", **sizes), status=status, reason="Ctrl-C")

    lines = lines_of(
        measured_memory_document(run_of(stopped, served("f16/f16", **sizes)))
    )

    assert "f16/q4_0" not in "".join(lines[:-1])
    assert f"left out: f16/q4_0 {status}: Ctrl-C" == lines[-1]


@pytest.mark.parametrize("is_known", [True, False])
def test_caches_with_settings_of_their_own_are_not_predicted(is_known):
    class Sized(FakeEngine):
        has_usual_cache_sizes = is_known

    memory = survey_plan_memory(planned(engine=Sized()))

    assert {is_known} == {each.kv_bytes[0] is not None for each in memory.pairs}


class Telling(FakeEngine):
    """An engine that tells a cache and 100 bytes of buffers for each token."""

    def survey_attention_and_memory(self, pairs, *, context, log):
        cache = KvBuffer(
            cells=context, layers=4, k_type="f16", v_type="f16", k_mib=1.0, v_mib=1.0
        )
        host = DeviceMemory(device="Host", weights=0, context=0, compute=100 * context)
        answers = {
            pair: PairSurvey(
                pair=pair, attention=Attention.KERNEL, kv=(cache,), memory=(host,)
            )
            for pair in pairs
        }
        return Survey(context=context, pairs=answers)


def test_a_plan_has_the_buffers_that_the_engine_tells_at_each_context():
    memory = survey_plan_memory(planned(engine=Telling()))
    layer = 2 * 2 * (64 + 64)  # of a token, two heads in f16

    assert (1024, 4096, 8192) == memory.contexts
    assert memory.allowance_bytes == tuple(
        (100 + layer) * each + (1 << 29) for each in memory.contexts
    )


def test_a_plan_on_several_devices_has_the_memory_of_one():
    names = ("CUDA0 a GPU (64 MiB)", "CUDA1 a GPU (64 MiB)")

    def engine_for(spec):
        devices = (names[int(spec.device)],) if spec.device else names
        return FakeEngine(model=spec, devices=devices)

    plan = make_plan(asking(), Execution(devices=("0", "1")), engine_for=engine_for)

    assert (64 << 20, "of CUDA") == attrgetter("size_bytes", "where")(
        survey_plan_memory(plan).room
    )


def test_a_plan_uses_the_memory_of_devices_or_of_the_machine():
    engine = FakeEngine(devices=("CUDA0 tiny (64 MiB)",))
    small = survey_plan_memory(planned(engine=engine))
    lines = lines_of(predicted_memory_document(small))

    assert "of this machine" == survey_plan_memory(planned()).room.where
    assert "of CUDA" == small.room.where
    assert {"0"} == {line.split()[-1] for line in lines[3:7]}
