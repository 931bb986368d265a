"""llama-perplexity's output, real and broken."""

from pathlib import Path

import pytest

from codeneedle.engines.engine import Estimate
from codeneedle.engines.llama_cpp.log import (
    Size,
    TooShort,
    chunks_done,
    ends_early,
    failure,
    final_perplexity,
    size,
    statistics,
    too_short,
)

LOGS = Path(__file__).parents[2] / "helpers" / "logs"


def log(name):
    return (LOGS / f"perplexity-{name}.txt").read_text(encoding="utf-8")


COMPLETE = log("q4_0")
LAST = "Same top p: 88.235 ± 1.009 %"
REQUIRED = (
    "Mean PPL(Q)  ",
    "Mean PPL(base)  ",
    "Mean PPL(Q)/PPL(base)",
    "Mean    KLD",
    "Maximum KLD",
    "99.9%   KLD",
    "99.0%   KLD",
    "90.0%   KLD",
    "Median  KLD",
    "Minimum KLD",
    "Mean    Δp",
    "RMS Δp",
    "Same top p:",
)


def test_all_statistics_of_a_complete_output_are_read():
    """
    Values and their errors, perplexities, divergences, probabilities.
    """
    found = statistics(COMPLETE)

    assert found is not None
    assert Estimate(13381.611444, 3983.09685) == found.ppl
    assert Estimate(2976.113205, 694.97974) == found.ppl_base
    assert Estimate(4.496338, 0.583749) == found.ppl_ratio
    assert Estimate(1.173086, 0.114657) == found.kld
    percentiles = (found.kld_90, found.kld_95, found.kld_99, found.kld_999)
    assert (3.174846, 10.47472, 18.045601, 23.566275) == percentiles
    extremes = (found.kld_min, found.kld_median, found.kld_max)
    assert (-4e-06, 6e-06, 23.709171) == extremes
    assert Estimate(0.077, 0.301) == found.dp_mean
    assert Estimate(9.612, 1.370) == found.dp_rms
    assert Estimate(88.235, 1.009) == found.same_top


def test_a_divergence_of_minus_zero_is_zero():
    """
    The reference compared with itself prints -0.000000.
    """
    found = statistics(log("self-f16"))

    assert found is not None
    assert "0.0" == str(found.kld.value)


def test_no_number_comes_from_an_output_that_is_cut_anywhere():
    """
    There are all statistics or none.
    """
    whole = statistics(COMPLETE)
    complete_from = COMPLETE.index(LAST) + len(LAST)
    offsets = {
        *range(0, len(COMPLETE), 61),
        *range(complete_from - 90, len(COMPLETE), 7),
        *range(complete_from - 30, complete_from + 3),
    }

    for offset in sorted(offsets):
        expected = whole if offset >= complete_from else None
        assert expected == statistics(COMPLETE[:offset]), offset


@pytest.mark.parametrize("label", REQUIRED)
def test_a_missing_line_makes_the_statistics_incomplete(label):
    """
    Each stored number is required.
    """
    lines = COMPLETE.splitlines(keepends=True)
    without = [line for line in lines if not line.startswith(label)]

    assert 1 == len(lines) - len(without)
    assert statistics("".join(without)) is None


@pytest.mark.parametrize(
    "text",
    [
        COMPLETE + COMPLETE,
        f"{COMPLETE}\n{LAST}\n",
        COMPLETE.replace("KLD:   1.173086", "KLD:       -nan"),
        COMPLETE.replace("over 4 chunks", "over 5 chunks"),
    ],
    ids=["two outputs", "a line twice", "no number", "other chunks than announced"],
)
def test_statistics_that_contradict_are_refused(text):
    """
    Two outputs in one file are neither averaged nor chosen from; NaN is not measured.
    """
    assert statistics(text) is None


def test_the_95th_percentile_may_be_missing():
    """
    Old builds do not print it.
    """
    found = statistics(COMPLETE.replace("95.0%   KLD:  10.474720\n", ""))

    assert found is not None
    assert found.kld_95 is None


@pytest.mark.parametrize(
    "ignored",
    [
        (
            "b.kld has been computed with 512, while the current context is 256. "
            "Increase it with -c and retry"
        ),
        "inconsistent vocabulary (300 vs 260)",
    ],
)
def test_errors_that_the_tool_ignores_are_not_ignored(ignored):
    """
    The tool logs two errors and goes on; the numbers after them are wrong.
    """
    text = f"0.00.024.815 E kl_divergence: {ignored}\n{COMPLETE}"

    assert statistics(text) is None
    assert f"kl_divergence: {ignored}" == failure(text).split(" E ")[-1]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("base-foreign", "does not look like a file containing log-probabilities"),
        ("base-truncated", "failed reading log-probs for chunk 2"),
        ("base-of-another-context", "computed with 512, while the current context"),
        ("base-of-another-vocabulary", "inconsistent vocabulary (300 vs 260)"),
        ("base-unwritable", "failed to open /nonexistent/x.kld for writing"),
        ("text-too-short", "you need at least 1024 tokens"),
    ],
)
def test_each_way_to_fail_is_named_and_has_no_statistics(name, words):
    """
    The tool exits 0 on most of these; only its log tells.
    """
    text = log(name)

    assert words in (failure(text) or "")
    assert statistics(text) is None
    assert final_perplexity(text) is None


def test_too_few_scored_tokens_have_rows_and_no_statistics():
    """
    The tool prints running values of 62 tokens, stops there, and exits 0.
    """
    text = log("too-few-scored")

    assert 2 == chunks_done(text)
    assert failure(text) is None
    assert statistics(text) is None


def test_an_error_that_is_no_number_leaves_the_value():
    """
    An RMS of exactly zero has an error of zero by zero.
    """
    found = statistics(
        COMPLETE.replace("9.612 ± 1.370 %\nSame", "0.000 ±  -nan %\nSame")
    )

    assert found is not None
    assert Estimate(0.0, None) == found.dp_rms


def test_warnings_between_the_lines_are_ignored():
    """
    Drivers write to the same file.
    """
    noisy = COMPLETE.replace("Median  KLD", "0.01.000.000 W cuda: slow\nMedian  KLD")

    assert statistics(COMPLETE) == statistics(noisy)


def test_the_final_perplexity_ends_a_run_that_writes():
    """
    Without it, the base file may be incomplete.
    """
    text = log("base")

    assert Estimate(14145.3098, 4242.15655) == final_perplexity(text)
    assert final_perplexity(text[: text.index("Final estimate") + 30]) is None
    assert final_perplexity(log("disk-full")) is None
    assert final_perplexity(COMPLETE) is None


@pytest.mark.parametrize(
    ("name", "done", "early"),
    [
        ("base", 4, False),
        ("q4_0", 4, False),
        ("disk-full", 1, True),
        ("cut-at-exit", 3, True),
        ("base-truncated", 2, False),
        ("base-foreign", 0, False),
    ],
)
def test_progress_and_early_ends_are_read_in_both_modes(name, done, early):
    """
    Writing prints ``[1]12.3,``, comparing prints a row. The tool may exit, with 0,
    before its log is written: no result and no error.
    """
    assert (done, early) == (chunks_done(log(name)), ends_early(log(name)))


def test_sizes_are_read():
    """
    Chunks and context before the first chunk, or how many tokens the text lacks.
    """
    assert Size(chunks=4, context=512) == size(log("base")) == size(COMPLETE)
    assert size(log("text-too-short")) is None
    assert TooShort(needed=1024, found=701) == too_short(log("text-too-short"))
    assert too_short(log("base")) is None
