"""What llama-perplexity prints: real, broken, from the sources."""

import math
from dataclasses import astuple
from pathlib import Path
from statistics import fmean

import pytest

from codeneedle.engines.llama_cpp.base_file import Lengths
from codeneedle.engines.llama_cpp.statistics import (
    Size,
    announced_size,
    by_chunk,
    chunks_done,
    ends_early,
    failure,
    final_perplexity,
    impossible_statistics,
    nan_from,
    statistics,
    too_short,
)
from codeneedle.engines.tools import Estimate

LOGS = Path(__file__).parents[2] / "helpers" / "logs"


def printed(name):
    """What llama-perplexity printed."""
    return (LOGS / f"perplexity-{name}.txt").read_text(encoding="utf-8")


COMPLETE = printed("q4_0")
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


def test_each_chunk_by_itself_follows_from_the_means_so_far():
    """Their mean is that of all; shares are whole tokens: 221, 222, 227, 230 of 255."""
    found, whole = by_chunk(COMPLETE, tokens=255), statistics(COMPLETE)

    assert 4 == len(found)
    assert 1.1902 == found[0].kld
    assert -math.log(12192.7235) == pytest.approx(found[0].logp, abs=1e-6)
    assert 2 * 1.27243 - 1.1902 == pytest.approx(found[1].kld)
    assert [221, 222, 227, 230] == [round(2.55 * each.same_top, 3) for each in found]
    means = [fmean(values) for values in zip(*map(astuple, found), strict=True)]
    expected = [-math.log(whole.ppl.value), whole.kld.value, whole.same_top.value]
    assert expected == pytest.approx(means, abs=1e-3)


def test_chunks_without_a_number_have_no_values():
    """One that is none, or cannot be, spoils all that are subtracted from it."""
    for ppl, chunks in (("nan", 0), ("0.0000", 0), ("1.0000", 0)):
        told = COMPLETE.replace("12266.2220", ppl)
        assert chunks == len(by_chunk(told, tokens=255))


def test_a_divergence_of_minus_zero_is_zero():
    """The reference compared with itself prints -0.000000."""
    found = statistics(printed("self-f16"))

    assert found is not None
    assert "0.0" == str(found.kld.value)


def test_no_number_comes_from_an_output_that_is_cut_anywhere():
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
    assert statistics(text) is None


def test_the_95th_percentile_may_be_missing():
    """Old builds do not print it."""
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
    """The tool logs two errors and goes on; the numbers after them are wrong."""
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
    """The tool exits 0 on most of these; only its log tells."""
    text = printed(name)

    assert words in (failure(text) or "")
    assert statistics(text) is None
    assert final_perplexity(text) is None


def test_too_few_scored_tokens_have_rows_and_no_statistics():
    """The tool prints running values of 62 tokens, stops there, and exits 0."""
    text = printed("too-few-scored")

    assert 2 == chunks_done(text)
    assert failure(text) is None
    assert statistics(text) is None


def test_an_error_that_is_no_number_leaves_the_value():
    """An RMS of exactly zero has an error of zero by zero."""
    found = statistics(
        COMPLETE.replace("9.612 ± 1.370 %\nSame", "0.000 ±  -nan %\nSame")
    )

    assert found is not None
    assert Estimate(0.0, None) == found.dp_rms


def test_warnings_between_the_lines_are_ignored():
    """Drivers write to the same file."""
    noisy = COMPLETE.replace("Median  KLD", "0.01.000.000 W cuda: slow\nMedian  KLD")

    assert statistics(COMPLETE) == statistics(noisy)


def test_the_final_perplexity_ends_a_run_that_writes():
    """Without it, the base file may be incomplete."""
    text = printed("base")

    assert Estimate(14145.3098, 4242.15655) == final_perplexity(text)
    assert final_perplexity(text[: text.index("Final estimate") + 30]) is None
    assert final_perplexity(printed("disk-full")) is None
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
    """The tool may exit with 0 before its log is written: no result and no error."""
    assert (done, early) == (chunks_done(printed(name)), ends_early(printed(name)))


@pytest.mark.parametrize("name", ["q8_0-nan", "base-nan"])
def test_a_whole_log_that_says_nan_was_not_cut(name):
    """A bias of K beyond what the type holds: all that follows is NaN."""
    text = printed(name)

    assert (None, None) == (statistics(text), final_perplexity(text))
    assert (257, False) == (nan_from(text), ends_early(text))


@pytest.mark.parametrize(
    ("told", "instead", "fault"),
    [
        ("KLD:   1.173086", "KLD:       -nan", "kld is nan"),
        ("KLD:   1.173086", "KLD:        inf", "kld is inf"),
        ("KLD:   1.173086", "KLD:  -3.000000", "a mean divergence of -3 nats"),
        (": 13381.611444", ":     0.500000", "a perplexity below 1"),
        ("88.235 ± 1.009 %", "103.10 ± 1.009 %", "a share, a ratio or a spread"),
    ],
)
def test_statistics_that_cannot_be_are_no_cut_log(told, instead, fault):
    text = COMPLETE.replace(told, instead)

    assert text != COMPLETE
    assert statistics(text) is None
    assert impossible_statistics(text).startswith(fault)
    assert not ends_early(text)


def test_no_complete_log_says_nan():
    for name in ("q4_0", "self-f16", "base", "cut-at-exit", "base-truncated"):
        assert nan_from(printed(name)) is None


def test_sizes_are_read():
    assert (
        Size(chunks=4, context=512)
        == announced_size(printed("base"))
        == announced_size(COMPLETE)
    )
    assert announced_size(printed("text-too-short")) is None
    assert Lengths(needed=1024, present=701) == too_short(printed("text-too-short"))
    assert too_short(printed("base")) is None
