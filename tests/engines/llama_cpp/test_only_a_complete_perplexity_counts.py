"""What llama-perplexity prints: real, broken, from the sources."""

from pathlib import Path

import pytest

from codeneedle.engines.llama_cpp.base_file import Lengths
from codeneedle.engines.llama_cpp.perplexity_log import (
    Size,
    announced_size,
    chunks_done,
    ends_early,
    failure,
    final_perplexity,
    first_nan_in_log,
    short_text_lengths,
)
from codeneedle.engines.tools import Estimate

LOGS = Path(__file__).parents[2] / "helpers" / "logs"


def printed(name):
    """What llama-perplexity printed."""
    return (LOGS / f"perplexity-{name}.txt").read_text(encoding="utf-8")


COMPLETE = printed("base")
LAST = "Final estimate: PPL = 14145.3098 +/- 4242.15655"


def test_no_number_comes_from_an_output_that_is_cut_anywhere():
    whole = final_perplexity(COMPLETE)
    complete_from = COMPLETE.index(LAST) + len(LAST)
    offsets = {
        *range(0, len(COMPLETE), 61),
        *range(complete_from - 30, complete_from + 3),
    }

    assert Estimate(14145.3098, 4242.15655) == whole
    for offset in sorted(offsets):
        found = final_perplexity(COMPLETE[:offset])
        # Of the standard error digits may be missing, which nothing is made of.
        assert found is None or whole.value == found.value, offset
        assert found is not None or offset < complete_from, offset


@pytest.mark.parametrize(
    "text",
    [
        COMPLETE + COMPLETE,
        COMPLETE.replace("PPL = 14145.3098", "PPL = -nan"),
        printed("disk-full"),
    ],
    ids=["two outputs", "no number", "a full disk"],
)
def test_an_output_that_contradicts_itself_has_no_perplexity(text):
    assert final_perplexity(text) is None


@pytest.mark.parametrize("name", ["base-unwritable", "text-too-short"])
def test_each_way_to_fail_is_named_and_has_no_perplexity(name, golden):
    """The tool exits 0 on most of these; only its log tells."""
    text = printed(name)

    assert golden == failure(text)
    assert final_perplexity(text) is None


@pytest.mark.parametrize(
    ("name", "done", "early"),
    [("base", 4, False), ("disk-full", 1, True), ("base-unwritable", 0, False)],
)
def test_progress_and_early_ends_are_read(name, done, early):
    """The tool may exit with 0 before its log is written: no result and no error."""
    assert (done, early) == (chunks_done(printed(name)), ends_early(printed(name)))


def test_a_whole_log_that_says_nan_was_not_cut():
    """A bias of K beyond what the type holds: all that follows is NaN."""
    text = printed("base-nan")

    assert final_perplexity(text) is None
    assert (257, False) == (first_nan_in_log(text), ends_early(text))


def test_no_complete_log_says_nan():
    for name in ("base", "disk-full", "text-too-short"):
        assert first_nan_in_log(printed(name)) is None


def test_sizes_are_read():
    assert Size(chunks=4, context=512) == announced_size(COMPLETE)
    assert announced_size(printed("text-too-short")) is None
    assert Lengths(needed=1024, present=701) == short_text_lengths(
        printed("text-too-short")
    )
    assert short_text_lengths(COMPLETE) is None
