"""
Make a model folder for MLX of a GGUF file of architecture llama, in the cache folder.

    python scripts/gguf_to_mlx.py MODEL.gguf   # prints the folder

The tests and the golden runs compare both engines on the same weights by it.
"""

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from codeneedle.engines.mlx.folder import CONFIG, TOKENIZER, TOKENIZER_CONFIG
from codeneedle.errors import WeightsUnusable
from codeneedle.models.weights import (
    Weights,
    load_or_compute_sha256,
    read_weights_from_headers,
    slug_from_path,
)
from codeneedle.system.files import cache_folder, ensure_whole_folder

ARCHITECTURE = "llama"
"""The one that is converted here; `mlx_lm.convert` makes folders of others."""

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

_LLAMA_3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

_CONTROL, _USER_DEFINED = 3, 4
"""Kinds of tokens that are found in text before it is split."""

Array = npt.NDArray[Any]
Tensors = dict[str, Array]


def folder_of(weights: Weights) -> Path:
    """Where the converted model is, or will be; the name carries the hash."""
    digest = load_or_compute_sha256(weights)[:12]
    name = f"{slug_from_path(weights.path)}-{digest}-{VERSION}"
    return cache_folder() / "mlx" / name


def converted(weights: Weights) -> Path:
    """
    The folder of the model for MLX, made if it is not there yet.

    Matrices get 16 bits a value: a 4-bit file of 98 MB makes a folder of 270 MB.

    Raises:
        WeightsUnusable: If it holds what MLX's llama does not have.
        FolderUnusable: If the cache folder cannot be written to.
    """
    if weights.architecture != ARCHITECTURE:
        raise _unusable(
            weights.path, f"its architecture is {weights.architecture}, not llama"
        )
    folder = folder_of(weights)
    return ensure_whole_folder(
        folder,
        lambda draft: _convert(weights, draft / "model"),
        is_whole=(folder / CONFIG).is_file,
    )


def _convert(weights: Weights, folder: Path) -> Path:
    """All files, written into *folder*."""
    folder.mkdir()
    try:
        _write(_GgufSource.of(weights), folder)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        reason = f"it lacks what a llama has: {error!r}"
        raise _unusable(weights.path, reason) from error
    return folder


def _write(source: "_GgufSource", draft: Path) -> None:
    from safetensors.numpy import save

    made = tokenizer(source.keys, path=source.weights.path)
    (draft / TOKENIZER).write_text(made.to_str(), encoding="utf-8")
    _write_json(draft / TOKENIZER_CONFIG, _tokenizer_config(source.keys))
    for number, tensors in enumerate(source.parts()):
        file = draft / f"model-{number:05}.safetensors"
        file.write_bytes(save(tensors, {"format": "mlx"}))
    # Last: a folder without it is none.
    _write_json(draft / CONFIG, source.config())


@dataclass(frozen=True, slots=True, kw_only=True)
class _GgufSource:
    """A GGUF file, or several parts of one."""

    weights: Weights
    keys: Mapping[str, Any]
    tensors: Mapping[str, Any]

    @classmethod
    def of(cls, weights: Weights) -> "_GgufSource":
        import gguf

        readers = [gguf.GGUFReader(str(file)) for file in weights.files]
        keys = {name: field.contents() for name, field in readers[0].fields.items()}
        tensors = {each.name: each for reader in readers for each in reader.tensors}
        return cls(weights=weights, keys=keys, tensors=tensors)

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
            "tie_word_embeddings": "output.weight" not in self.tensors,
            "eos_token_id": sorted(_ends(keys)),
        }

    def parts(self) -> Iterator[Tensors]:
        """Every tensor under its new name: each layer, and before them the others."""
        layers: dict[str, list[str]] = {}
        for name in self.tensors:
            block = _BLOCK.fullmatch(name)
            if name != "rope_freqs.weight":
                layers.setdefault(block["layer"] if block else "", []).append(name)
        for layer, names in sorted(layers.items()):
            made = {self._renamed(name): self._tensor(name) for name in names}
            if layer and self._has_bias():
                _add_biases(made, f"model.layers.{layer}.self_attn")
            yield made

    def _has_bias(self) -> bool:
        return any(".attn_" in name and name.endswith(".bias") for name in self.tensors)

    def _rope_scaling(self) -> dict[str, Any] | None:
        """
        How rotary frequencies are changed; None if they are not.

        Source:
            ``rope_freqs.weight`` in ``ggml_rope_ext`` of llama.cpp divides that of each
            pair by a factor; so does ``SuScaledRoPE`` of mlx-lm, whose values are not
            scaled where the context is the original one.
        """
        factors = self.tensors.get("rope_freqs.weight")
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

    def _tensor(self, name: str) -> Array:
        from gguf import quants

        tensor = self.tensors[name]
        shape = tuple(int(size) for size in reversed(tensor.shape))
        values = quants.dequantize(tensor.data, tensor.tensor_type).reshape(shape)
        heads = self._rotated_heads(name)
        return _stored(unpermuted(values, heads) if heads else values)

    def _rotated_heads(self, name: str) -> int:
        """Heads of a tensor whose rows are permuted in GGUF; 0 for others."""
        if ".attn_q." in name:
            return self.weights.heads[0]
        return self.weights.kv_heads[0] if ".attn_k." in name else 0


def _add_biases(tensors: Tensors, attention: str) -> None:
    """Add those of a layer's attention that the file leaves out, which are 0."""
    for part in ("q_proj", "k_proj", "v_proj", "o_proj"):
        rows = len(tensors[f"{attention}.{part}.weight"])
        tensors.setdefault(f"{attention}.{part}.bias", _stored(np.zeros(rows)))


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


def tokenizer(keys: Mapping[str, Any], *, path: Path) -> Any:
    """
    The ``tokenizers.Tokenizer`` of a byte-level tokenizer.

    Args:
        keys: Of the GGUF file.
        path: Of the file, for the error.

    Raises:
        WeightsUnusable: If the tokenizer is of another kind.

    Source:
        ``llm_tokenizer_bpe`` in ``llama-vocab.cpp`` of b11434, and the
        ``tokenizer.json`` files of the models that the names of splits stand for.
    """
    from tokenizers import Regex, Tokenizer, decoders, models
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence, Split

    words = ByteLevel(add_prefix_space=False)
    splits = {
        "gpt-2": [words],
        "smollm": [Digits(individual_digits=True), words],
        "llama-bpe": [
            Split(Regex(_LLAMA_3_SPLIT), "isolated"),
            ByteLevel(add_prefix_space=False, use_regex=False),
        ],
    }
    kind, split = keys.get("tokenizer.ggml.model"), keys.get("tokenizer.ggml.pre")
    if kind != "gpt2" or split not in splits:
        raise _unusable(path, f"its tokenizer is {kind}/{split}")
    tokens: list[str] = keys["tokenizer.ggml.tokens"]
    made = Tokenizer(
        models.BPE(
            vocab={token: number for number, token in enumerate(tokens)},
            merges=[tuple(each.split(" ")) for each in keys["tokenizer.ggml.merges"]],
            ignore_merges=split == "llama-bpe",
        )
    )
    made.pre_tokenizer = Sequence(splits[split])
    made.decoder = decoders.ByteLevel()
    made.add_tokens(list(_added(tokens, keys["tokenizer.ggml.token_type"])))
    if keys.get("tokenizer.ggml.add_bos_token", False):
        made.post_processor = _beginning(
            int(keys["tokenizer.ggml.bos_token_id"]), tokens
        )
    return made


def _added(tokens: Sequence[str], kinds: Sequence[int]) -> Iterator[Any]:
    from tokenizers import AddedToken

    for token, kind in zip(tokens, kinds, strict=True):
        if kind in {_CONTROL, _USER_DEFINED}:
            yield AddedToken(token, normalized=False, special=kind == _CONTROL)


def _beginning(number: int, tokens: Sequence[str]) -> Any:
    """What puts the token that begins a text before it."""
    from tokenizers.processors import TemplateProcessing

    token = tokens[number]
    return TemplateProcessing(
        single=[token, "$A"], pair=[token, "$A", "$B"], special_tokens=[(token, number)]
    )


def _tokenizer_config(keys: Mapping[str, Any]) -> dict[str, Any]:
    tokens = keys["tokenizer.ggml.tokens"]
    named = {"bos_token": "bos_token_id", "eos_token": "eos_token_id"}
    special = {
        name: tokens[int(keys[f"tokenizer.ggml.{key}"])]
        for name, key in named.items()
        if f"tokenizer.ggml.{key}" in keys
    }
    template = keys.get("tokenizer.chat_template")
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **special,
        **({"chat_template": template} if template else {}),
    }


def _ends(keys: Mapping[str, Any]) -> set[int]:
    names = ("eos_token_id", "eot_token_id", "eom_token_id")
    ends = (keys.get(f"tokenizer.ggml.{name}") for name in names)
    return {int(each) for each in ends if each is not None}


def _stored(values: Array) -> Array:
    """Matrices have 16 bits a value, vectors 32."""
    matrix = len(values.shape) > 1
    return np.ascontiguousarray(values, dtype=np.float16 if matrix else np.float32)


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")


def _unusable(path: Path, reason: str) -> WeightsUnusable:
    return WeightsUnusable(
        path=path,
        reason=f"cannot be converted for MLX: {reason}",
        hint="Give the folder of the same model for MLX, as mlx_lm.convert makes it.",
    )


if __name__ == "__main__":
    print(converted(read_weights_from_headers(Path(sys.argv[1]))))
