"""One screen tells what would run and what is missing."""

import dataclasses
import io

import pytest
from rich.console import Console

from codeneedle.cli.doctor import (
    Diagnosis,
    Model,
    Problem,
    Programs,
    TypeFacts,
    doctor_screen,
)
from codeneedle.system.machine import MachineFacts

WHOLE = Diagnosis(
    codeneedle="0.1.0",
    machine=MachineFacts(
        system="Debian GNU/Linux 12",
        architecture="x86_64",
        processor="AMD EPYC 7B13",
        physical_cores=4,
        logical_cores=8,
        usable_cores=2,
        memory_bytes=64 << 30,
        available_bytes=60 << 30,
        python="3.12.1",
    ),
    cache="/home/me/.cache/codeneedle",
    cache_free_bytes=100 << 30,
    programs=Programs(
        server="/usr/local/bin/llama-server",
        source="PATH",
        perplexity="/usr/local/bin/llama-perplexity",
        bench=None,
        version="0.6.0 (build 11434, commit abc)",
        build=11434,
        k_types=("f16", "q8_0"),
        v_types=("f16", "q8_0"),
        devices=("CUDA0 NVIDIA L4 (22563 MiB)",),
    ),
    model=Model(
        path="/home/me/models/qwen3-4b-q4_k_m.gguf",
        is_built_in=False,
        size_bytes=2_500_000_000,
        architecture="qwen3",
        file_type="Q4_K_M",
        layers=36,
        kv_heads=(8,),
        key_length=128,
        value_length=128,
        training_context=40_960,
        vocabulary=151_936,
        has_chat_template=True,
        context=16_384,
        kv_bytes={"bf16/bf16": 2_415_919_104, "q4_0/q4_0": None},
    ),
    types=(
        TypeFacts(name="bf16", is_accepted=True, misfit=""),
        TypeFacts(name="q4_0", is_accepted=False, misfit="block of 32 does not"),
        TypeFacts(name="q5_0", is_accepted=None, misfit=None),
    ),
    problems=(),
)


def screen(diagnosis, *, width=80):
    out = io.StringIO()
    console = Console(file=out, width=width, highlight=False, color_system=None)
    console.print(doctor_screen(diagnosis))
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_all_facts_are_on_the_screen():
    """
    Programs, machine, model and types, each in its line.
    """
    lines = screen(WHOLE)

    assert [
        "llama-server      /usr/local/bin/llama-server (from PATH)",
        "llama-perplexity  /usr/local/bin/llama-perplexity",
        "llama-bench       missing",
        "build             0.6.0 (build 11434, commit abc)",
        "cache types       f16, q8_0",
        "devices           CUDA0 NVIDIA L4 (22563 MiB)",
    ] == lines[:6]
    assert "threads           2 usable of 8, on 4 cores" in lines
    assert (
        "model             qwen3 Q4_K_M, 36 layers, 8 KV heads, head size 128" in lines
    )
    assert "chat template     yes" in lines
    assert (
        "KV cache          bf16/bf16 2.2 GiB, q4_0/q4_0 unknown at 16,384 tokens"
        in lines
    )
    assert "bf16  accepts it    fits" in lines
    assert "q4_0  refuses it    block of 32 does not" in lines
    assert "q5_0  unknown       unknown" in lines
    assert "Nothing is missing." == lines[-1]


def test_problems_come_last_with_what_mends_them():
    """
    Errors and notes are told apart by a word, not by colour alone.
    """
    lines = screen(
        dataclasses.replace(
            WHOLE,
            programs=None,
            model=None,
            problems=(
                Problem(what="no llama-server", mend="codeneedle llama", stops=True),
                Problem(what="little memory", mend="buy some", stops=False),
            ),
        )
    )

    assert "llama-server  missing" == lines[0]
    assert [
        "error: no llama-server",
        "  mend: codeneedle llama",
        "note: little memory",
        "  mend: buy some",
    ] == lines[-4:]


@pytest.mark.parametrize("width", [80, 120])
def test_the_screen_is_one_screen(width):
    """
    At most 40 lines, none wider than the terminal, even with long paths.
    """
    assert WHOLE.model is not None
    long = dataclasses.replace(
        WHOLE,
        model=dataclasses.replace(WHOLE.model, path="/models/" + "x" * 200 + ".gguf"),
        types=WHOLE.types * 2,
        problems=(Problem(what="w " * 60, mend="m " * 60, stops=True),) * 2,
    )
    lines = screen(long, width=width)

    assert len(lines) <= 40
    assert max(map(len, lines)) <= width


def test_paths_cannot_move_the_cursor():
    """
    Markup and escapes in a path are shown as they are spelled.
    """
    assert WHOLE.model is not None
    odd = dataclasses.replace(
        WHOLE, model=dataclasses.replace(WHOLE.model, path="/m/[red]a\x1b[2J.gguf")
    )

    assert any("/m/[red]a\\x1b[2J.gguf" in line for line in screen(odd))


def test_the_v_types_are_shown_where_they_differ():
    """
    A fork may take other types for V.
    """
    assert WHOLE.programs is not None
    fork = dataclasses.replace(
        WHOLE, programs=dataclasses.replace(WHOLE.programs, v_types=("f16",))
    )

    assert "for V             f16" in screen(fork)
