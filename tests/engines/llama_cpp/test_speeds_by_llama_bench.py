"""llama-bench: its output, real and broken, and runs of a stand-in."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from fake_engine import made_weights
from hypothesis import given
from hypothesis import strategies as st
from made_tools import fake_tools, made_bench, made_facts, made_model, speed_task
from programs import script

from codeneedle.engines.llama_cpp.bench import (
    Bench,
    differences,
    last_phase,
    read_result,
)
from codeneedle.engines.llama_cpp.installation import Program
from codeneedle.errors import BadInput, CellError, ToolMissing

pytestmark = pytest.mark.slow

LOGS = Path(__file__).parents[2] / "helpers" / "logs"
REAL = (LOGS / "bench-q8_0-q4_0.txt").read_text()
TASK = speed_task(depth=256, prompt_tokens=64, generated_tokens=8)


def line(**changes):
    """A result line of reading, with *changes*."""
    row = next(json.loads(text) for text in REAL.splitlines() if text[:1] == "{")
    return json.dumps(row | changes)


def both(**changes):
    """Both result lines, with *changes*."""
    return f"{line(**changes)}\n{line(n_prompt=0, n_gen=8, **changes)}\n"


def test_a_real_output_is_read_by_field():
    result = read_result(REAL, TASK)

    assert (64, 0, 256) == (result.pp.n_prompt, result.pp.n_gen, result.pp.n_depth)
    assert (0, 8, 256) == (result.tg.n_prompt, result.tg.n_gen, result.tg.n_depth)
    assert [] == list(differences(result, TASK, layers=999))
    assert 11434 == result.pp.build_number


def test_order_and_further_fields_do_not_matter():
    swapped = "\n".join(reversed(both(n_new=[{}]).splitlines()))

    assert read_result(both(), TASK) == read_result(swapped, TASK)


def test_speeds_follow_from_durations():
    """64 tokens in a quarter and in half a second are 256 and 128 tokens per second."""
    output = both(samples_ns=[250_000_000, 500_000_000])

    assert (256.0, 128.0) == read_result(output, TASK).pp.speeds


@given(st.integers(0, len(both()) - 3))
def test_an_output_that_is_cut_is_never_a_result(length):
    with pytest.raises(CellError):
        read_result(both()[:length], TASK)


def without(field):
    """Both result lines, but for *field*."""
    rows = [json.loads(text) for text in both().splitlines()]
    return "\n".join(json.dumps({k: row[k] for k in row if k != field}) for row in rows)


@pytest.mark.parametrize(
    ("output", "words"),
    [
        (both(samples_ns=[5, 0]), "a sample of 0"),
        (both(samples_ns=[5, -5]), "a sample of -5"),
        (both(samples_ns=[5]), "1 samples, not 2"),
        (both(samples_ns=[]), "0 samples, not 2"),
        (both(samples_ns=[5, None]), "cannot be read"),
        (both(samples_ts=[5, "fast"]), "cannot be read"),
        (both(samples_ts=[5.0, 0.0]), "a sample of 0.0"),
        (both(samples_ts=[]), "0 samples, not 2"),
        (both(type_k=None), "cannot be read"),
        (both(n_depth=0), "0 tests that read 64"),
        (both(n_depth="256"), "cannot be read"),
        # A division by zero in C++ prints inf, which is no JSON.
        (both().replace('"avg_ts": ', '"avg_ts": inf, "x": '), "cannot be read"),
        *((without(n), "cannot be read") for n in ("type_k", "samples_ns", "n_gen")),
        (without("flash_attn"), "cannot be read"),
        ("", "0 result lines"),
        (line(), "1 result lines"),
        (line() + "\n" + line(), "2 tests that read 64"),
        (both() + line(), "3 result lines"),
        ("inf", "0 result lines"),
    ],
)
def test_an_output_of_another_shape_is_no_result(output, words):
    with pytest.raises(CellError, match=words):
        read_result(output, TASK)


@pytest.mark.parametrize(
    ("changes", "unlike"),
    [
        ({"type_k": "f16"}, 1),
        ({"type_v": "f16"}, 1),
        ({"flash_attn": 0}, 1),
        ({"flash_attn": -1}, 1),
        ({"flash_attn": False}, 1),
        ({"flash_attn": True}, 0),  # a boolean in older builds
        ({"n_gpu_layers": -1}, 1),
    ],
    ids=str,
)
def test_what_was_understood_is_compared_with_what_was_asked(changes, unlike, golden):
    result = read_result(both(**changes), TASK)
    found = [*dict.fromkeys(differences(result, TASK, layers=999))]

    assert unlike == len(found)
    assert golden == found


def test_the_last_phase_counts():
    assert "generation run 2/2" == last_phase(REAL)
    assert "warmup prompt run" == last_phase(REAL.partition(": depth run")[0])
    assert last_phase("llama_context: n_ctx = 512") is None


def test_texts_of_the_tool_hold_no_terminal_escapes():
    evil = "q8_0\x1b]0;title\x07\u202e"
    result = read_result(both(type_k=evil, cpu_info=evil), TASK)
    phase = last_phase("llama-bench: benchmark 1/2: prompt run\x1b[2J 1/2\n")

    assert ("q8_0 ", "q8_0 ") == (result.pp.type_k, result.tg.cpu_info)
    assert "prompt run 1/2" == phase


def test_the_cause_of_a_missing_result_is_read_from_the_log(golden):
    """Exit code 0 is no sign of success."""
    with pytest.raises(CellError) as caught:
        read_result("ggml: failed to allocate buffer\n", TASK)

    assert golden == str(caught.value)
    assert "out-of-memory" == caught.value.status
    assert caught.value.log_excerpt


# Runs of a stand-in


def ignore(_):
    """A callback that nothing depends on."""


def measured(tool, task, *, runs=None, silence_s=60.0, progress=ignore):
    """Measure as a probe does."""
    return tool.measure(
        task,
        log=tool.tool.path.parent / "bench.log",
        silence_s=silence_s,
        note=ignore if runs is None else runs.append,
        progress=progress,
    )


def test_speeds_of_each_repetition_are_measured(tmp_path):
    runs = []
    found = measured(made_bench(tmp_path), speed_task(), runs=runs)

    assert ((512.0, 512.0), (128.0, 128.0)) == (found.pp, found.tg)
    assert ("11434 (fake)", "C", "", "CPU", 1) == (
        found.build,
        found.cpu,
        found.gpu,
        found.backends,
        found.threads,
    )
    assert [None, "11434 (fake)"] == [r.effective and r.effective.build for r in runs]
    assert "q8_0" == runs[1].effective.kv[0].k_type
    assert runs[0].command == runs[1].command


@pytest.mark.parametrize(
    ("fault", "status", "reason"),
    [
        ("print=bench-unknown-type.txt", "unsupported", "does not know"),
        ("print=bench-out-of-memory.txt", "out-of-memory", "insufficient memory"),
        ("signal=9", "crashed", "SIGKILL"),
        ("signal=11", "crashed", "SIGSEGV"),
        ("die=7", "crashed", "exit code 7"),
        ("error", "crashed", "0 result lines"),
    ],
)
def test_a_tool_that_fails_is_an_error_with_a_status(tmp_path, fault, status, reason):
    with pytest.raises(CellError, match=reason) as caught:
        measured(made_bench(tmp_path, fault), speed_task())

    assert status == caught.value.status
    assert caught.value.hint


PARTLY = "say=load_tensors: offloaded 20/33 layers to GPU"


@pytest.mark.parametrize(
    "fault",
    [
        'row={"type_k": "f16"}',
        "no-kv",
        "say=llama_context: flash_attn = disabled",
        'row={"build_number": 9999}',
        PARTLY,
    ],
    ids=["another K", "no cache", "no flash attention", "another build", "layers"],
)
def test_something_else_than_asked_for_is_a_mismatch(tmp_path, fault, golden):
    tool = made_bench(tmp_path, fault)

    with pytest.raises(CellError) as caught:
        measured(tool, speed_task())

    assert "mismatched" == caught.value.status
    assert golden == str(caught.value)
    assert caught.value.log_excerpt or fault == "no-kv"


def test_the_first_context_that_a_bench_makes_counts(tmp_path):
    tool = made_bench(tmp_path, "say=llama_context: n_ctx_seq = 64")

    measured(tool, speed_task())


def test_a_bench_without_the_accelerator_of_the_server_is_a_mismatch(tmp_path, golden):
    tool = made_bench(tmp_path, devices=("CUDA0 NVIDIA L4 (22563 MiB)",))

    with pytest.raises(CellError) as caught:
        measured(tool, speed_task())

    assert golden == str(caught.value)


@pytest.fixture
def hanging(tmp_path):
    """A tool that says a word, and no other."""
    body = f"echo $$ > {tmp_path}/pid; echo start; exec sleep 600"
    hangs = Program(script(tmp_path / "slow" / "llama-bench", body))
    return replace(made_bench(tmp_path), tool=hangs)


def test_a_tool_that_goes_on_without_end_is_ended(tmp_path):
    body = "while sleep 0.05; do echo on; done"
    talks = Program(script(tmp_path / "talk" / "llama-bench", body))
    tool = replace(made_bench(tmp_path), tool=talks)
    with pytest.raises(CellError, match="llama-bench"):
        measured(tool, speed_task(), silence_s=0.4)


def test_a_tool_that_hangs_is_ended(hanging):
    with pytest.raises(CellError, match="not done after") as caught:
        measured(hanging, speed_task(), silence_s=0.2)

    assert "timed-out" == caught.value.status


def test_a_part_of_the_layers_is_accepted_if_asked_for(tmp_path):
    tool = made_bench(tmp_path, PARTLY, arguments=("--n_gpu_layers", "20"))

    assert "20" == tool.arguments["--n-gpu-layers"]
    assert measured(tool, speed_task()).tg


def test_a_conversion_to_f16_is_noted_beside_the_speeds(tmp_path):
    """Only a verbose llama-bench logs that it converts to f16."""
    runs = []
    converts = "say=ggml_cuda: converting K and V to f16 instead (slow)."
    found = measured(made_bench(tmp_path, converts), speed_task(), runs=runs)

    assert found.tg
    assert "converted" == runs[1].effective.attention
    assert "--verbose" in runs[1].command


def test_arguments_are_those_of_the_server_where_the_tool_has_them(tmp_path):
    tool = made_bench(
        tmp_path, arguments=("-ngl", "7", "--rope-scale", "4"), is_tiny=True
    )

    assert {
        "--n-gpu-layers": "7",
        "--progress": "",
        "--threads": "1",
        "--poll": "0",
    } == tool.arguments


def test_rotation_is_switched_off_by_a_variable(tmp_path):
    for rotation in (True, False):
        measured(made_bench(tmp_path, rotation=rotation), speed_task())
    rotates = made_bench(tmp_path, "say=llama: attn_rot_k = 64", rotation=False)

    assert ["rotation on", "rotation 1"] == (tmp_path / "asked").read_text().split(
        "\n"
    )[:2]
    with pytest.raises(CellError, match="are rotated"):
        measured(rotates, speed_task())


@pytest.mark.parametrize("option", ["--n-depth", "--output jsonl"])
def test_a_bench_without_a_needed_option_is_too_old(tmp_path, option):
    help_text = (LOGS / "bench-help.txt").read_text()
    missing = "jsonl" if "jsonl" in option else option
    (tmp_path / "help").write_text(help_text.replace(missing, "gone"))
    old = Program(script(tmp_path / "llama-bench", f"cat {tmp_path}/help"))

    with pytest.raises(ToolMissing, match=f"has no option {option}") as caught:
        Bench.of_checked_installation(
            fake_tools(tmp_path, bench=old), made_facts(), made_model()
        )

    assert "codeneedle llama" in caught.value.hint


def test_weights_with_a_comma_in_their_path_are_refused(tmp_path):
    """llama-bench would take the path for several."""
    with pytest.raises(BadInput, match="comma"):
        made_bench(tmp_path, weights=made_weights(path="/a,b.gguf"))
