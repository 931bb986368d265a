"""Commands that give the figures of a run with the tools of llama.cpp alone."""

from codeneedle.engines.llama_cpp.by_hand import base_command, build_option, comparison
from codeneedle.grid import Pair

STORED = (
    *("/bin/llama-perplexity", "--model", "a.gguf"),
    *("--kl-divergence-base", "run/base/512.kld", "--kl-divergence"),
)


def test_the_base_file_is_written_from_a_text_and_then_compared_with():
    model = ["/bin/llama-perplexity", "--model", "a.gguf"]
    base = ["--kl-divergence-base", "base.kld"]

    assert [*model, *base, "--file", "text.txt", "--chunks", "4"] == (
        base_command(STORED, 4)
    )
    assert [*model, *base, "--kl-divergence"] == comparison(STORED)


def test_the_build_option_lists_pairs_as_llama_cpp_spells_them():
    pairs = [Pair("f16", "f16"), Pair("q8_0", "q4_0")]

    assert '-DGGML_CUDA_FA_QUANTS="f16-f16;q8_0-q4_0"' == build_option(pairs)
