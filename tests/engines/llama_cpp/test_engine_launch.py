"""The arguments of a server."""

from pathlib import Path

import pytest

from codeneedle.engines.llama_cpp.arguments import (
    Launch,
    ReservedArgument,
    command,
    refuse_reserved,
    variables,
)
from codeneedle.grid import Pair

LAUNCH = Launch(
    binary=Path("/bin/llama-server"),
    weights=Path("/models/m.gguf"),
    alias="cell",
    context=4096,
    pair=Pair("q8_0", "q4_0"),
)


def launch(**changes):
    fields = {name: getattr(LAUNCH, name) for name in Launch.__slots__}
    return Launch(**(fields | changes))


def test_a_cell_is_one_slot_on_loopback_with_its_types():
    """
    Everything that could differ from pair to pair is stated.
    """
    assert [
        *("/bin/llama-server", "--model", "/models/m.gguf", "--alias", "cell"),
        *("--host", "127.0.0.1", "--port", "8000", "--ctx-size", "4096"),
        *("--parallel", "1", "--flash-attn", "on"),
        *("--cache-type-k", "q8_0", "--cache-type-v", "q4_0"),
        *("--n-gpu-layers", "999"),
    ] == command(LAUNCH, port=8000)


def test_a_server_may_be_left_to_choose_its_attention():
    """
    Only then does it say whether the accelerator has it.
    """
    argv = command(launch(flash_attention="auto"), port=1)

    assert "auto" == argv[argv.index("--flash-attn") + 1]


def test_arguments_that_a_binary_does_not_have_are_left_out():
    """
    Builds differ; an unknown argument would end a server.
    """
    argv = command(launch(options=frozenset({"--fit", "--jinja"})), port=1)

    assert ["--fit", "off", "--jinja"] == argv[-3:]
    assert "--cache-ram" not in argv


def test_further_arguments_come_last():
    """
    Of two, llama-server takes the last.
    """
    argv = command(launch(extra=("--rope-scaling", "yarn")), port=1)

    assert ["--rope-scaling", "yarn"] == argv[-2:]


@pytest.mark.parametrize("name", ["-ngl", "--gpu-layers", "--n_gpu_layers"])
def test_a_person_s_offload_replaces_ours(name):
    """
    It is said once, under whatever name.
    """
    argv = command(launch(extra=(name, "20")), port=1)

    assert "999" not in argv


def test_a_server_that_only_counts_needs_no_accelerator():
    """
    Nor a warm-up, nor cache types.
    """
    options = frozenset({"--device", "--no-warmup", "--no-repack"})
    argv = command(launch(pair=None, options=options), port=1)

    assert ["--device", "none", "--no-warmup", "--no-repack"] == argv[-4:]
    assert "0" == argv[argv.index("--n-gpu-layers") + 1]
    assert "--cache-type-k" not in argv


def test_threads_are_those_asked_for():
    """
    And sleep where they should.
    """
    chosen = launch(threads=1, batch_threads=2, sleeps=True, options={"--poll"})
    argv = command(chosen, port=1)

    assert ["--threads", "1", "--threads-batch", "2", "--poll", "0"] == argv[-6:]
    assert "passive" == variables(chosen, api_key="k")["OMP_WAIT_POLICY"]
    assert {"LLAMA_API_KEY": "k"} == variables(LAUNCH, api_key="k")


@pytest.mark.parametrize(
    "argument",
    [
        "-ctk",
        "--cache-type-v",
        "--cache_type_k",
        "--port",
        "-np",
        "--ctx-size=1",
        "-fa",
    ],
)
def test_an_argument_that_would_break_the_experiment_is_refused(argument):
    """
    Before anything starts, with what to do instead.
    """
    with pytest.raises(ReservedArgument) as caught:
        refuse_reserved(["-ngl", "99", argument, "1"])

    assert argument in str(caught.value)
    assert caught.value.hint


def test_other_arguments_are_handed_on():
    """
    A person knows their machine better.
    """
    refuse_reserved(["-ngl", "99", "-t", "8", "--no-mmap", "-ub", "2048"])
