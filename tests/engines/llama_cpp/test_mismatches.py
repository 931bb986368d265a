"""In what a server differs from what was asked for, by a real log."""

from dataclasses import replace
from pathlib import Path

import pytest

from codeneedle.engines.llama_cpp.log import Asked, mismatches, read
from codeneedle.grid import Pair
from codeneedle.records.record import Effective

LOG = Path(__file__).parents[2] / "helpers" / "logs" / "real-q8_0-q4_0.log"
ASKED = Asked(pair=Pair("q8_0", "q4_0"), context=8192)
RUNS = read(LOG.read_text(encoding="utf-8"))


def test_what_was_asked_for_is_no_mismatch():
    """
    A context that was rounded up to the next 256 tokens is the one asked for.
    """
    assert () == mismatches(ASKED, RUNS)
    assert () == mismatches(replace(ASKED, context=8000), RUNS)


def test_each_difference_is_named():
    """
    Types of any cache, context and flash attention: each that differs is said.
    """
    asked = Asked(pair=Pair("q4_0", "q4_0"), context=4096)
    effective = replace(RUNS, flash_attention="disabled")

    assert (
        "K is q8_0, not q4_0",
        "the context is 8192 tokens, not 4096",
        "flash attention is off, not on",
    ) == mismatches(asked, effective)


def test_types_that_the_log_does_not_name_are_not_taken_for_granted():
    """
    A server that keeps silent about its caches is not measured.
    """
    (difference,) = mismatches(ASKED, Effective())

    assert "cannot be verified" in difference


@pytest.mark.parametrize(
    ("on_device", "layers", "expected"),
    [
        (20, 33, ("20 of 33 layers are on the accelerator, not all",)),
        (33, 33, ()),
        (0, 33, ()),
        (None, None, ()),
    ],
)
def test_a_part_of_the_layers_is_not_all_of_them(on_device, layers, expected):
    """
    Without an accelerator none is there, or the log does not say; that is no part.
    """
    effective = replace(RUNS, offloaded_layers=on_device, total_layers=layers)

    assert expected == mismatches(replace(ASKED, all_layers=True), effective)
    assert () == mismatches(ASKED, effective)


def test_a_server_that_only_counts_may_run_as_it_likes():
    """
    Where no types are asked for, nothing differs.
    """
    assert () == mismatches(Asked(pair=None, context=512), Effective(context=4))
