"""What the child says, read; MLX need not be installed."""

from dataclasses import replace

from codeneedle.engines.engine import CellSpec
from codeneedle.engines.mlx.log import (
    Asked,
    comparison,
    effective,
    line,
    mismatches,
    trouble,
)
from codeneedle.grid import Pair
from codeneedle.records.record import Status

ASKED = Asked(
    cell=CellSpec(Pair("kv8", "kv4"), 512), group_size=(64, 32), quantized_kv_start=0
)


def layer(number=0, **changes):
    """A layer that is what `ASKED` asks for."""
    told = {
        "layer": number,
        "class_name": "SplitKVCache",
        "k": "kv8",
        "v": "kv4",
        "k_group_size": 64,
        "v_group_size": 32,
        "k_bytes_per_token": 72.0,
        "v_bytes_per_token": 48.0,
    }
    return told | changes


def said(*layers, **changes):
    """A log in which a child says what runs."""
    facts = {"build": "mlx 1, cpu", "context": 512, "layers": layers} | changes
    return f"a library's line\n{line('effective', facts)}\nanother\n"


def test_what_was_asked_for_is_no_mismatch():
    """
    Layers that keep a state instead of K and V change nothing, and are named.
    """
    log = said(layer(), {"layer": 1, "class_name": "ArraysCache"})

    assert () == mismatches(ASKED, log)
    assert ("layer 1: ArraysCache",) == effective(log).unquantized


def test_each_difference_is_named_once():
    """
    However many layers have it.
    """
    log = said(
        layer(0, v="kv8", v_group_size=64),
        layer(1, v="kv8", v_group_size=64),
        context=256,
        quantized_kv_start=5000,
    )

    assert (
        "context 256 instead of 512",
        "quantized from token 5000 on instead of 0",
        "K kv8, V kv8 instead of kv8/kv4",
        "group size 64 instead of 32",
    ) == mismatches(ASKED, log)


def test_a_cache_that_could_not_be_quantized_is_a_mismatch():
    """
    A layer with K and V that stay as they are does not run the pair.
    """
    log = said(layer(), {"layer": 1, "class_name": "ChunkedKVCache"})

    assert ("layer 1 keeps a ChunkedKVCache, not quantized",) == mismatches(ASKED, log)


def test_a_cache_without_the_bound_asked_for_is_a_mismatch():
    """
    Most models make their own caches, and ignore a size.
    """
    asked = replace(ASKED, max_kv_size=128)

    assert ("a cache of any size instead of 128 tokens",) == mismatches(
        asked, said(layer())
    )
    assert () == mismatches(asked, said(layer(tokens=128)))


def test_a_child_that_says_nothing_is_a_mismatch():
    """
    What cannot be read is not believed.
    """
    assert ("it does not say what its caches are",) == mismatches(ASKED, "hello\n")
    assert ("it does not say what its caches are",) == mismatches(
        ASKED, said(layer(), context="many")
    )


def test_memory_is_counted_by_layers_and_cells():
    """
    A cache of bounded size holds no more than its bound.
    """
    log = said(layer(0), layer(1), layer(2, tokens=128))

    found = effective(log)

    mib = 2**20
    assert [(512, 2), (128, 1)] == [
        (each.cells, each.layers) for each in sorted(found.kv, key=lambda e: -e.cells)
    ]
    assert round((2 * 512 + 128) * 120 / mib, 3) == round(found.kv_mib, 3)


def test_statistics_that_are_not_whole_are_none():
    """
    A child that was cut short has no result.
    """
    assert None is comparison(line("statistics", {"tokens": 3, "values": {"kld": 1}}))
    assert None is comparison("")


def test_a_failure_has_the_reason_of_its_last_exception():
    """
    And a status by its kind.
    """
    oom = "Traceback\nRuntimeError: [malloc] Unable to allocate 9 bytes.\n"
    group = (
        "ValueError: [quantize] The last dimension of the matrix needs to be divisible "
        "by the quantization group size 64.\n"
    )

    assert Status.OUT_OF_MEMORY is trouble(oom, 1).status
    assert Status.UNSUPPORTED is trouble(group, 1).status
    assert Status.CRASHED is trouble("KeyError: 'x'\n", 1).status
    assert "SIGSEGV" in trouble("", -11).reason
