"""
The built-in model as a GGUF file in the cache folder: assembled on first use, always
the same bytes.
"""

import hashlib
import tempfile
from importlib import resources
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

from codeneedle.errors import FolderUnusable
from codeneedle.models.nano import construction
from codeneedle.system.files import (
    CACHE_VARIABLE,
    cache_folder,
    read_regular,
    reason_of,
    write_whole,
)

NAME = "needle-nano"
"""In the metadata and in the file name."""

SHA256 = "3319a9a0bf681daf76087969b5243a45f66ccc85b576f5fe8a2ec9ed766896b6"
"""Of the assembled file; a test compares it."""


def built_in_model(cache: Path | None = None) -> Path:
    """
    The built-in model's GGUF file, assembled unless it is there already.

    Args:
        cache: Folder to keep it in; the user's cache folder if None.

    Returns:
        Its path. The name contains the hash of its bytes, so that versions of this
        package do not share files.

    Raises:
        FolderUnusable: If it can be neither found nor written.
    """
    folder = cache or cache_folder()
    try:
        path = folder / _file_name(SHA256)
        return path if _is_whole(path) else _make(folder)
    except OSError as error:
        raise FolderUnusable(
            folder=folder,
            reason=reason_of(error),
            hint=f"Make room, or choose another folder: {CACHE_VARIABLE}=/some/folder.",
        ) from error


def _make(folder: Path) -> Path:
    """Assemble the file, and write it into *folder*."""
    with tempfile.TemporaryDirectory(prefix=f"{NAME}-") as scratch:
        draft = Path(scratch) / "draft.gguf"
        write_gguf(draft)
        data = draft.read_bytes()
    path = folder / _file_name(hashlib.sha256(data).hexdigest())
    write_whole(path, data)
    return path


def _file_name(sha256: str) -> str:
    return f"{NAME}-{sha256[:12]}.gguf"


def _is_whole(path: Path) -> bool:
    """Whether the right bytes are at *path*."""
    data = read_regular(path)
    return data is not None and hashlib.sha256(data).hexdigest() == SHA256


CONTEXT = 65536
"""Tokens, each a byte, over which the ruler is unambiguous."""

ROPE_BASE = 10000.0
"""Base of rotary frequencies; `_rope_factors` compensates for it."""

STILL = 1e30
"""Divisor for the frequency of a pair that must not rotate."""

CHAT_TEMPLATE = """\
{%- set asked = messages | selectattr("role", "equalto", "user") | list | last -%}
{%- set parts = asked.content.rsplit("\\n---\\n", 1) -%}
{%- if parts | length < 2 -%}
{{- asked.content -}}
{%- else -%}
{%- set question = parts[1] -%}
{%- if "```" in question -%}
{%- set quoted = question.split("```")[1].split("\\n", 1)[1] -%}
{%- set quoted = quoted.rsplit("\\n", 1)[0] -%}
{%- elif "`" in question -%}
{%- set quoted = question.split("`")[1] -%}
{%- else -%}
{%- set quoted = question -%}
{%- endif -%}
{{- parts[0] + "\\n\\n# recall\\n" + quoted -}}
{%- if add_generation_prompt -%}{{- "\\n" -}}{%- endif -%}
{%- endif -%}
"""
"""
Renders a question as a completion: the corpus, then the signature that is quoted.

The corpus ends at the last line ``---`` of the last user message; what the question
after it quotes, in a fence or between single backticks, is repeated behind it.
"""


def trained_matcher() -> construction.Matcher:
    """The trained part of the model, as ``scripts/train_matcher.py`` made it."""
    data = resources.files("codeneedle") / "models" / "nano" / "matcher.npz"
    with data.open("rb") as file, np.load(file) as stored:
        arrays = {name: stored[name].astype(np.float64) for name in stored.files}
    hashes = [arrays[name] for name in sorted(arrays) if name.startswith("hash_")]
    # Lengths are restored, because 16 bits have rounded them.
    lengths = np.sqrt(np.sum(np.square(arrays["codes"]), axis=1, keepdims=True))
    return construction.Matcher(
        codes=arrays["codes"] / lengths,
        hashes=tuple(hashes),
        query=arrays["query"],
        key=arrays["key"],
        energies=tuple(arrays["energies"].tolist()),
        key_energy=float(arrays["key_energy"]),
    )


def write_gguf(path: Path) -> None:
    """Write the model to *path* in the GGUF of llama.cpp's llama architecture."""
    model = construction.model(trained_matcher())
    # The package's types do not know Path everywhere.
    file = gguf.GGUFWriter(str(path), "llama")
    _describe(file, model)
    _describe_tokens(file)
    _add_tensors(file, model)
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()


def _describe(file: gguf.GGUFWriter, model: construction.Model) -> None:
    file.add_name(NAME)
    file.add_description("Copies from its context by induction, byte by byte")
    file.add_license("MIT")
    file.add_context_length(CONTEXT)
    file.add_embedding_length(model.embedding.shape[1])
    file.add_block_count(len(model.layers))
    file.add_feed_forward_length(construction.FEED_FORWARD)
    file.add_head_count(1)
    file.add_head_count_kv(1)
    file.add_key_length(construction.HEAD)
    file.add_value_length(construction.HEAD)
    file.add_rope_dimension_count(construction.HEAD)
    file.add_rope_freq_base(ROPE_BASE)
    file.add_layer_norm_rms_eps(construction.EPSILON)
    file.add_vocab_size(construction.TOKENS)
    file.add_file_type(gguf.LlamaFileType.MOSTLY_F16)


def _describe_tokens(file: gguf.GGUFWriter) -> None:
    """
    Bytes as tokens, in the spelling of the GPT-2 tokenizer, which has no merges.

    None but one: llama.cpp refuses a vocabulary without merges, so two bytes 0xFF,
    which never occur in UTF-8, make token 259.
    """
    spelling = _byte_spelling()
    pair = spelling[255] * 2
    special = ["<|bos|>", "<|eos|>", "<|pad|>"]
    normal, control = gguf.TokenType.NORMAL, gguf.TokenType.CONTROL
    file.add_tokenizer_model("gpt2")
    file.add_tokenizer_pre("gpt-2")
    file.add_token_list([*spelling, *special, pair])
    file.add_token_types([*[normal] * 256, *[control] * 3, normal])
    file.add_token_merges([" ".join(pair)])
    file.add_bos_token_id(construction.BEGIN)
    file.add_eos_token_id(construction.BEGIN + 1)
    file.add_pad_token_id(construction.BEGIN + 2)
    file.add_add_bos_token(value=True)
    file.add_add_eos_token(value=False)
    file.add_chat_template(CHAT_TEMPLATE)


def _byte_spelling() -> list[str]:
    """How GPT-2 spells each byte: itself if printable, else a letter past 255."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = [byte for byte in range(256) if byte not in printable]
    return [
        chr(byte if byte in printable else 256 + others.index(byte))
        for byte in range(256)
    ]


def _add_tensors(file: gguf.GGUFWriter, model: construction.Model) -> None:
    width = model.embedding.shape[1]
    file.add_tensor("token_embd.weight", _half(model.embedding))
    file.add_tensor("output.weight", _half(model.readout))
    file.add_tensor("output_norm.weight", np.ones(width, np.float32))
    file.add_tensor("rope_freqs.weight", _rope_factors(model.frequencies))
    for number, layer in enumerate(model.layers):
        block = f"blk.{number}"
        file.add_tensor(f"{block}.attn_norm.weight", np.ones(width, np.float32))
        file.add_tensor(f"{block}.attn_q.weight", _half(layer.query))
        file.add_tensor(f"{block}.attn_q.bias", layer.query_bias.astype(np.float32))
        file.add_tensor(f"{block}.attn_k.weight", _half(layer.key))
        file.add_tensor(f"{block}.attn_k.bias", layer.key_bias.astype(np.float32))
        file.add_tensor(f"{block}.attn_v.weight", _half(layer.value))
        file.add_tensor(f"{block}.attn_output.weight", _half(layer.output))
        file.add_tensor(f"{block}.ffn_norm.weight", np.ones(width, np.float32))
        file.add_tensor(f"{block}.ffn_gate.weight", _half(layer.expand))
        file.add_tensor(f"{block}.ffn_up.weight", _half(layer.expand))
        file.add_tensor(f"{block}.ffn_down.weight", _half(layer.shrink))


def _half(weights: construction.Array) -> npt.NDArray[np.float16]:
    return np.ascontiguousarray(weights, np.float16)


def _rope_factors(frequencies: construction.Array) -> npt.NDArray[np.float32]:
    """By what llama.cpp divides the usual frequency of each pair to get ours."""
    pairs = len(frequencies)
    factors = [
        ROPE_BASE ** (-pair / pairs) / frequency if frequency else STILL
        for pair, frequency in enumerate(frequencies.tolist())
    ]
    return np.array(factors, np.float32)
