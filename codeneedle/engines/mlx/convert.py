"""Makes a model folder for MLX of a GGUF file, once, in the cache folder."""

import json
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from codeneedle.errors import WeightsUnusable
from codeneedle.models.gguf import Weights
from codeneedle.models.weights import (
    FOLDER_FILE,
    TOKENIZER,
    TOKENIZER_CONFIG,
    sha256,
    short_name,
)
from codeneedle.system.files import cache_folder
from codeneedle.system.machine import made_folder

ARCHITECTURE = "llama"
"""The one that is converted; of others there are folders made by mlx_lm.convert."""

VERSION = 2
"""Of what is written: folders of another one are not used."""

_OUTSIDE = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_INSIDE = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""
Names of a layer's tensors.

Source: ``MODEL_TENSOR`` of the ``gguf`` package, ``llama.py`` of mlx-lm.
"""

_BLOCK = re.compile(r"blk\.(?P<layer>\d+)\.(?P<name>\w+)\.(?P<kind>weight|bias)")

_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
_LLAMA_3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PRE_TOKENIZERS: dict[str, tuple[dict[str, Any], ...]] = {
    "gpt-2": (_BYTE_LEVEL | {"use_regex": True},),
    "smollm": (
        {"type": "Digits", "individual_digits": True},
        _BYTE_LEVEL | {"use_regex": True},
    ),
    "llama-bpe": (
        {
            "type": "Split",
            "pattern": {"Regex": _LLAMA_3_SPLIT},
            "behavior": "Isolated",
            "invert": False,
        },
        _BYTE_LEVEL | {"use_regex": False},
    ),
}
"""
How text is split before merges, by ``tokenizer.ggml.pre``.

Source: ``llm_tokenizer_bpe`` in ``llama-vocab.cpp`` of b11434, and the
``tokenizer.json`` files of the models that the names stand for.
"""

_CONTROL, _USER_DEFINED = 3, 4
"""Kinds of tokens that are found in text before it is split."""

Array = npt.NDArray[Any]


def folder_of(weights: Weights) -> Path:
    """Where the converted model is, or will be; the name carries the hash."""
    name = f"{short_name(weights.path)}-{sha256(weights)[:12]}-{VERSION}"
    return cache_folder() / "mlx" / name


def refuse_unconvertible(weights: Weights) -> None:
    """
    Stop at a model that cannot be converted, as far as its header tells.

    Raises:
        WeightsUnusable: If its architecture is another one.
    """
    if weights.architecture != ARCHITECTURE:
        raise _unusable(
            weights.path, f"its architecture is {weights.architecture}, not llama"
        )


def converted(weights: Weights) -> Path:
    """
    The folder of the model for MLX, made if it is not there yet.

    Matrices get 16 bits a value: a 4-bit file of 98 MB makes a folder of 270 MB.

    Raises:
        WeightsUnusable: If it holds what MLX's llama does not have.
        FolderUnusable: If the cache folder cannot be written to.
    """
    refuse_unconvertible(weights)
    folder = folder_of(weights)
    return made_folder(
        folder,
        lambda draft: _convert(weights, draft / "model"),
        is_whole=(folder / FOLDER_FILE).is_file,
    )


def _convert(weights: Weights, folder: Path) -> Path:
    """All files, written into *folder*."""
    folder.mkdir()
    try:
        _write(_Source.of(weights), folder)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        reason = f"it lacks what a llama has: {error!r}"
        raise _unusable(weights.path, reason) from error
    return folder


def _write(source: "_Source", draft: Path) -> None:
    path = source.weights.path
    _write_json(draft / TOKENIZER, tokenizer(source.keys, path=path))
    _write_json(draft / TOKENIZER_CONFIG, _tokenizer_config(source.keys))
    write_safetensors(draft / "model.safetensors", source.tensors())
    # Last: a folder without it is none.
    _write_json(draft / FOLDER_FILE, source.config())


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """
    A tensor to be written.

    Attributes:
        dtype: As safetensors names it: ``F16``.
        shape: Its shape.
        data: Makes its values, when it is their turn.
    """

    dtype: str
    shape: tuple[int, ...]
    data: Callable[[], Array]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """A GGUF file, or several parts of one."""

    weights: Weights
    keys: Mapping[str, Any]
    found: Mapping[str, Any]

    @classmethod
    def of(cls, weights: Weights) -> "_Source":
        import gguf

        readers = [gguf.GGUFReader(str(file)) for file in weights.files]
        keys = {name: field.contents() for name, field in readers[0].fields.items()}
        found = {each.name: each for reader in readers for each in reader.tensors}
        return cls(weights=weights, keys=keys, found=found)

    def config(self) -> dict[str, Any]:
        """What ``config.json`` says."""
        weights, keys = self.weights, self.keys
        return {
            "model_type": ARCHITECTURE,
            "hidden_size": weights.embedding,
            "num_hidden_layers": weights.layers,
            "intermediate_size": int(keys["llama.feed_forward_length"]),
            "num_attention_heads": weights.heads[0],
            "num_key_value_heads": weights.kv_heads[0],
            "head_dim": weights.key_length,
            "rms_norm_eps": float(keys["llama.attention.layer_norm_rms_epsilon"]),
            "vocab_size": weights.vocabulary,
            "max_position_embeddings": weights.training_context,
            "rope_theta": float(keys.get("llama.rope.freq_base", 10_000.0)),
            "rope_scaling": self._rope_scaling(),
            "attention_bias": self._has_bias(),
            "mlp_bias": False,
            "tie_word_embeddings": "output.weight" not in self.found,
            "eos_token_id": sorted(_ends(keys)),
        }

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor under its new name; biases that the file leaves out are 0."""
        made = {
            self._renamed(name): self._tensor(name)
            for name in self.found
            if name != "rope_freqs.weight"
        }
        if not self._has_bias():
            return made
        for layer in range(self.weights.layers):
            for part in ("q_proj", "k_proj", "v_proj", "o_proj"):
                name = f"model.layers.{layer}.self_attn.{part}"
                rows = made[f"{name}.weight"].shape[0]
                made.setdefault(f"{name}.bias", _zeros(rows))
        return made

    def _has_bias(self) -> bool:
        return any(".attn_" in name and name.endswith(".bias") for name in self.found)

    def _rope_scaling(self) -> dict[str, Any] | None:
        """
        How rotary frequencies are changed; None if they are not.

        Source:
            ``rope_freqs.weight`` in ``ggml_rope_ext`` of llama.cpp divides that of each
            pair by a factor; so does ``SuScaledRoPE`` of mlx-lm, whose values are not
            scaled where the context is the original one.
        """
        factors = self.found.get("rope_freqs.weight")
        if factors is not None:
            listed = [float(each) for each in factors.data]
            return {
                "type": "longrope",
                "short_factor": listed,
                "long_factor": listed,
                "original_max_position_embeddings": self.weights.training_context,
            }
        kind = self.keys.get("llama.rope.scaling.type", "none")
        if kind == "none":
            return None
        if kind != "linear":
            raise _unusable(self.weights.path, f"its rope scaling is {kind}")
        factor = float(self.keys["llama.rope.scaling.factor"])
        return {"type": "linear", "factor": factor}

    def _renamed(self, name: str) -> str:
        block = _BLOCK.fullmatch(name)
        if block and block["name"] in _INSIDE:
            inside = _INSIDE[block["name"]]
            return f"model.layers.{block['layer']}.{inside}.{block['kind']}"
        stem, _, kind = name.rpartition(".")
        if stem not in _OUTSIDE or kind != "weight":
            raise _unusable(self.weights.path, f"it has a tensor '{name}'")
        return f"{_OUTSIDE[stem]}.weight"

    def _tensor(self, name: str) -> Tensor:
        found = self.found[name]
        shape = tuple(int(size) for size in reversed(found.shape))
        is_bf16 = found.tensor_type.name == "BF16"
        dtype = "F32" if len(shape) == 1 else "BF16" if is_bf16 else "F16"
        heads = self._rotated_heads(name)

        def data() -> Array:
            from gguf import quants

            values = quants.dequantize(found.data, found.tensor_type).reshape(shape)
            return _encoded(unpermuted(values, heads) if heads else values, dtype)

        return Tensor(dtype=dtype, shape=shape, data=data)

    def _rotated_heads(self, name: str) -> int:
        """Heads of a tensor whose rows are permuted in GGUF; 0 for others."""
        if ".attn_q." in name:
            return self.weights.heads[0]
        return self.weights.kv_heads[0] if ".attn_k." in name else 0


def unpermuted(values: Array, heads: int) -> Array:
    """
    *values* with the rows of each head in the order of MLX.

    GGUF puts the two dimensions that are rotated together beside each other; MLX
    rotates the first half of a head with the second.

    Args:
        values: Shape (rows, columns), or (rows,) of a bias.
        heads: Heads that the rows belong to.

    Source:
        ``LlamaModel.permute`` of llama.cpp's ``convert_hf_to_gguf.py``, reversed.
    """
    rows = values.shape[0]
    apart = values.reshape(heads, rows // heads // 2, 2, *values.shape[1:])
    return apart.swapaxes(1, 2).reshape(values.shape)


def write_safetensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """
    Write *tensors*, one after the other: no more than one is in memory.

    Source:
        The format: 8 bytes of length, a JSON header, the data without gaps.
    """
    at, header = 0, {}
    for name, tensor in tensors.items():
        end = at + _size(tensor)
        header[name] = {
            "dtype": tensor.dtype,
            "shape": tensor.shape,
            "data_offsets": (at, end),
        }
        at = end
    encoded = json.dumps(header | {"__metadata__": {"format": "mlx"}}).encode()
    encoded += b" " * (-len(encoded) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(encoded)) + encoded)
        for tensor in tensors.values():
            file.write(np.ascontiguousarray(tensor.data()).tobytes())


def tokenizer(keys: Mapping[str, Any], *, path: Path) -> dict[str, Any]:
    """
    The ``tokenizer.json`` of a byte-level tokenizer.

    Args:
        keys: Of the GGUF file.
        path: Of the file, for the error.

    Raises:
        WeightsUnusable: If the tokenizer is of another kind.
    """
    kind, split = keys.get("tokenizer.ggml.model"), keys.get("tokenizer.ggml.pre")
    if kind != "gpt2" or split not in PRE_TOKENIZERS:
        raise _unusable(path, f"its tokenizer is {kind}/{split}")
    tokens: Sequence[str] = keys["tokenizer.ggml.tokens"]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": list(_added(tokens, keys["tokenizer.ggml.token_type"])),
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": PRE_TOKENIZERS[split]},
        "post_processor": _beginning(keys, tokens),
        "decoder": _BYTE_LEVEL | {"use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": split == "llama-bpe",
            "vocab": {token: number for number, token in enumerate(tokens)},
            "merges": [each.split(" ") for each in keys["tokenizer.ggml.merges"]],
        },
    }


def _added(tokens: Sequence[str], kinds: Sequence[int]) -> Iterator[dict[str, Any]]:
    for number, (token, kind) in enumerate(zip(tokens, kinds, strict=True)):
        if kind in {_CONTROL, _USER_DEFINED}:
            yield {
                "id": number,
                "content": token,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": kind == _CONTROL,
            }


def _beginning(keys: Mapping[str, Any], tokens: Sequence[str]) -> dict[str, Any] | None:
    """What puts the token that begins a text before it; None if none does."""
    if not keys.get("tokenizer.ggml.add_bos_token", False):
        return None
    number = int(keys["tokenizer.ggml.bos_token_id"])
    token = tokens[number]
    first = {"SpecialToken": {"id": token, "type_id": 0}}
    text = [{"Sequence": {"id": name, "type_id": 0}} for name in "AB"]
    return {
        "type": "TemplateProcessing",
        "single": [first, text[0]],
        "pair": [first, *text],
        "special_tokens": {token: {"id": token, "ids": [number], "tokens": [token]}},
    }


def _tokenizer_config(keys: Mapping[str, Any]) -> dict[str, Any]:
    tokens = keys["tokenizer.ggml.tokens"]
    named = {"bos_token": "bos_token_id", "eos_token": "eos_token_id"}
    found = {
        name: tokens[int(keys[f"tokenizer.ggml.{key}"])]
        for name, key in named.items()
        if f"tokenizer.ggml.{key}" in keys
    }
    template = keys.get("tokenizer.chat_template")
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **found,
        **({"chat_template": template} if template else {}),
    }


def _ends(keys: Mapping[str, Any]) -> set[int]:
    names = ("eos_token_id", "eot_token_id", "eom_token_id")
    found = (keys.get(f"tokenizer.ggml.{name}") for name in names)
    return {int(each) for each in found if each is not None}


_ITEM = {"F32": 4, "F16": 2, "BF16": 2}


def _size(tensor: Tensor) -> int:
    return _ITEM[tensor.dtype] * int(np.prod(tensor.shape, dtype=np.int64))


def _zeros(rows: int) -> Tensor:
    return Tensor(
        dtype="F32", shape=(rows,), data=lambda: np.zeros(rows, dtype=np.float32)
    )


def _encoded(values: Array, dtype: str) -> Array:
    single = np.asarray(values, dtype=np.float32)
    if dtype == "F32":
        return single
    if dtype == "BF16":  # its source has no more than these bits
        return (single.view(np.uint32) >> 16).astype(np.uint16)
    return single.astype(np.float16)


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")


def _unusable(path: Path, reason: str) -> WeightsUnusable:
    return WeightsUnusable(
        path=path,
        reason=f"cannot be converted for MLX: {reason}",
        hint="Give the folder of the same model for MLX, as mlx_lm.convert makes it.",
    )
