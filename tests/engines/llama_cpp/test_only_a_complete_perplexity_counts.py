"""What llama-perplexity prints: real, broken, from the sources."""

from pathlib import Path

import pytest

from codeneedle.engines.llama_cpp.base_file import Lengths
from codeneedle.engines.llama_cpp.perplexity_log import (
    Size,
    announced_chunks_and_context,
    chunks_done,
    final_perplexity,
    find_error_line,
    first_nan_token_in_log,
    is_log_cut_off,
    lengths_if_text_too_short,
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

    assert golden == find_error_line(text)
    assert final_perplexity(text) is None


@pytest.mark.parametrize(
    ("name", "done", "early"),
    [("base", 4, False), ("disk-full", 1, True), ("base-unwritable", 0, False)],
)
def test_progress_and_early_ends_are_read(name, done, early):
    """The tool may exit with 0 before its log is written: no result and no error."""
    assert (done, early) == (chunks_done(printed(name)), is_log_cut_off(printed(name)))


def test_a_whole_log_that_says_nan_was_not_cut():
    """A bias of K beyond what the type holds: all that follows is NaN."""
    text = printed("base-nan")

    assert final_perplexity(text) is None
    assert (258, False) == (first_nan_token_in_log(text), is_log_cut_off(text))


def test_a_log_whose_last_line_alone_says_nan_names_no_token_and_was_not_cut():
    text = "Final estimate: PPL = -nan +/- -nan\n"

    assert (0, False) == (first_nan_token_in_log(text), is_log_cut_off(text))


def test_no_complete_log_says_nan():
    for name in ("base", "disk-full", "text-too-short"):
        assert first_nan_token_in_log(printed(name)) is None


def test_sizes_are_read():
    assert Size(chunks=4, context=512) == announced_chunks_and_context(COMPLETE)
    assert announced_chunks_and_context(printed("text-too-short")) is None
    assert Lengths(needed=1024, present=701) == lengths_if_text_too_short(
        printed("text-too-short")
    )
    assert lengths_if_text_too_short(COMPLETE) is None
