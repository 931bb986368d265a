"""Commands that give the figures of a run with the tools of llama.cpp alone."""

from collections.abc import Iterable, Sequence

from codeneedle.grid import Pair

BASE, TEXT = "base.kld", "text.txt"
"""Files of these commands."""

_BASE, _COMPARES = "--kl-divergence-base", "--kl-divergence"


def base_command(command: Sequence[str], chunks: int) -> list[str]:
    """
    What writes the base file of a comparison.

    Args:
        command: What compared the reference with its base file, as a record has it.
        chunks: Chunks of text.
    """
    kept = [word for word in comparison(command) if word != _COMPARES]
    return [*kept, "--file", TEXT, "--chunks", str(chunks)]


def comparison(command: Sequence[str]) -> list[str]:
    """*command*, a comparison that a record has, with the base file of this folder."""
    words = list(command)
    if _BASE in words[:-1]:
        words[words.index(_BASE) + 1] = BASE
    return words


def build_option(pairs: Iterable[Pair]) -> str:
    """The option of a CUDA build that has kernels for *pairs*: llama.cpp #28079."""
    return f'-DGGML_CUDA_FA_QUANTS="{";".join(f"{p.k}-{p.v}" for p in pairs)}"'
