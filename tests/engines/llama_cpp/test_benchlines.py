"""What llama-bench says."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codeneedle.engines.llama_cpp.bench import (
    AskedTests,
    NoResult,
    differences,
    is_unknown_type,
    last_phase,
    read_result,
)
from codeneedle.grid import Pair
from codeneedle.records.record import Status, Trouble

LOGS = Path(__file__).parents[2] / "helpers" / "logs"
REAL = (LOGS / "bench-q8_0-q4_0.txt").read_text()
ASKED = AskedTests(
    pair=Pair("q8_0", "q4_0"),
    depth=256,
    prompt_tokens=64,
    generated_tokens=8,
    repetitions=2,
    offload=999,
)


def line(**changes):
    """A result line of reading, with *changes*."""
    row = next(json.loads(text) for text in REAL.splitlines() if text[:1] == "{")
    return json.dumps(row | changes)


def both(**changes):
    """Both result lines, with *changes*."""
    return f"{line(**changes)}\n{line(n_prompt=0, n_gen=8, **changes)}\n"


def test_a_real_output_is_read_by_field():
    """
    Reading and writing are told apart by their sizes, among hundreds of log lines.
    """
    result = read_result(REAL, ASKED)

    assert (64, 0, 256) == (result.pp.n_prompt, result.pp.n_gen, result.pp.n_depth)
    assert (0, 8, 256) == (result.tg.n_prompt, result.tg.n_gen, result.tg.n_depth)
    assert () == differences(result, ASKED)
    assert 11434 == result.pp.build_number


def test_speeds_follow_from_durations():
    """
    64 tokens in a quarter and in half a second are 256 and 128 tokens per second.
    """
    output = both(samples_ns=[250_000_000, 500_000_000])

    assert (256.0, 128.0) == read_result(output, ASKED).pp.speeds


def test_the_order_of_the_tests_does_not_matter():
    """
    A build that writes first is read all the same.
    """
    swapped = "\n".join(reversed(both().splitlines()))

    assert read_result(both(), ASKED) == read_result(swapped, ASKED)


def test_fields_of_later_builds_are_left_out():
    """
    A field that nobody asked for breaks nothing.
    """
    assert read_result(both(), ASKED) == read_result(both(n_new=[{}]), ASKED)


@given(st.integers(0, len(both()) - 3))
def test_an_output_that_is_cut_is_never_a_result(length):
    """
    Wherever the disk fills up or the program dies, there is no half of a result.
    """
    with pytest.raises(NoResult):
        read_result(both()[:length], ASKED)


@pytest.mark.parametrize(
    "changes",
    [
        {"samples_ns": [5, 0]},
        {"samples_ns": [5, -5]},
        {"samples_ns": [5]},
        {"samples_ns": []},
        {"samples_ns": [5, None]},
        {"samples_ts": [5, "fast"]},
        {"samples_ts": [5.0, 0.0]},
        {"samples_ts": []},
        {"type_k": None},
        {"n_depth": 0},
        {"n_depth": "256"},
    ],
)
def test_a_line_of_another_shape_is_no_result(changes):
    """
    A speed of nothing, a missing sample, another depth: none of it is a number.
    """
    with pytest.raises(NoResult):
        read_result(both(**changes), ASKED)


@pytest.mark.parametrize("field", ["type_k", "samples_ns", "n_gen", "flash_attn"])
def test_a_missing_field_is_no_result(field):
    """
    What is not said is not guessed.
    """
    row = json.loads(line())
    del row[field]

    with pytest.raises(NoResult, match="cannot be read"):
        read_result(json.dumps(row), ASKED)


@pytest.mark.parametrize(
    "output",
    ["", line(), line() + "\n" + line(), both() + line(), "inf"],
    ids=["nothing", "one", "twice the same", "three", "no line"],
)
def test_both_tests_must_be_there_once(output):
    """
    A missing or a further test is no result.
    """
    with pytest.raises(NoResult):
        read_result(output, ASKED)


def test_infinite_speed_is_no_result():
    """
    A division by zero in C++ prints inf, which is no JSON.
    """
    with pytest.raises(NoResult):
        read_result(both().replace('"avg_ts": ', '"avg_ts": inf, "x": '), ASKED)


@pytest.mark.parametrize(
    ("changes", "phrase"),
    [
        ({"type_k": "f16"}, "K is f16, not q8_0"),
        ({"type_v": "f16"}, "V is f16, not q4_0"),
        ({"flash_attn": 0}, "flash attention is 0, not on"),
        ({"flash_attn": -1}, "flash attention is -1, not on"),
        ({"flash_attn": False}, "flash attention is False, not on"),
        ({"n_gpu_layers": -1}, "-1 layers are to be offloaded, not 999"),
    ],
)
def test_what_was_understood_is_compared_with_what_was_asked(changes, phrase):
    """
    Each difference is told once, though both tests have it.
    """
    assert (phrase,) == differences(read_result(both(**changes), ASKED), ASKED)


def test_older_builds_say_true_for_flash_attention():
    """
    It was a truth value before it became a choice of three.
    """
    assert () == differences(read_result(both(flash_attn=True), ASKED), ASKED)


def test_the_last_phase_counts():
    """
    Progress is read from the newest line that tells any.
    """
    assert "generation run 2/2" == last_phase(REAL)
    assert "warmup prompt run" == last_phase(REAL.partition(": depth run")[0])
    assert last_phase("llama_context: n_ctx = 512") is None


def test_a_type_that_llama_bench_does_not_know_is_recognized():
    """
    It knows fewer types than the server, and says so with a usage text.
    """
    assert is_unknown_type((LOGS / "bench-unknown-type.txt").read_text())
    assert not is_unknown_type(REAL)


def test_words_of_a_tool_are_safe_to_show():
    """
    Terminal escapes in them reach neither a reason, nor a phase, nor a report.
    """
    evil = "q8_0\x1b]0;title\x07\u202e"
    result = read_result(both(type_k=evil, cpu_info=evil), ASKED)
    phase = last_phase("llama-bench: benchmark 1/2: prompt run\x1b[2J 1/2\n")

    assert ("q8_0 ", "q8_0 ") == (result.pp.type_k, result.tg.cpu_info)
    assert "prompt run 1/2" == phase


def test_what_the_log_says_of_a_missing_result_is_told():
    """
    Exit code 0 says nothing about success.
    """
    found = Trouble(Status.OUT_OF_MEMORY, "failed to allocate")
    error = NoResult(reason="0 result lines instead of 2", found=found)

    assert "0 result lines instead of 2; its log: failed to allocate" in str(error)
    assert "out-of-memory" == error.status
