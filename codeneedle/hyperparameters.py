"""What the header of a model says about its shape, in llama.cpp's own words."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from codeneedle.gguf_header import BadHeader, Header
from codeneedle.gguf_types import FILE_TYPES

_NAME = re.compile(r"[\w.-]{1,64}")
"""Of an architecture; part of the names of keys."""

MOST_LAYERS = 512
"""``LLAMA_MAX_LAYERS`` of llama.cpp."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """
    A model file, or the parts of one, by what its header says.

    Attributes:
        files: The parts in order; one where the model is not split.
        size_bytes: Length of all of them.
        architecture: What llama.cpp calls it: ``qwen3``.
        name: As its author calls it; may be empty.
        size_label: ``4B``, ``30B-A3B``; may be empty.
        file_type: Quantization of the weights: ``Q4_K_M``; may be empty.
        layers: Layers that answer; those that only draft ahead are not counted.
        embedding: Width of the residual stream.
        heads: Attention heads of each layer.
        kv_heads: Heads of K and V of each layer; 0 where a layer keeps none.
        key_length: Head size of K.
        value_length: Head size of V.
        key_length_swa: Head size of K in layers with a sliding window.
        value_length_swa: Head size of V in those.
        is_mla: Whether K and V are compressed into one latent vector.
        shared_kv_layers: Last layers that reuse the cache of earlier ones.
        sliding_window: Its size in tokens; None where the file has no such key.
        window_pattern: Which layers have a window, or every how many-th has
            none; None where the file does not say.
        recurrent_layers: Which layers keep a state instead of K and V; empty
            where the file does not say.
        full_attention_interval: Every how many-th layer of a hybrid keeps K and
            V; None where the file does not say.
        has_state: Whether it has a state-space or another recurrent part.
        has_indexer: Whether it keeps an index beside K and V (sparse attention).
        training_context: Context it was trained on, in tokens; 0 if unknown.
        vocabulary: Tokens it knows.
        chat_template: Text of its template; None where it has none.
        identity: By what the files are told from others in their place; empty where
            there are none.
    """

    files: tuple[Path, ...]
    size_bytes: int
    architecture: str
    name: str
    size_label: str
    file_type: str
    layers: int
    embedding: int
    heads: tuple[int, ...]
    kv_heads: tuple[int, ...]
    key_length: int
    value_length: int
    key_length_swa: int
    value_length_swa: int
    is_mla: bool
    shared_kv_layers: int
    sliding_window: int | None
    window_pattern: int | tuple[bool, ...] | None
    recurrent_layers: tuple[bool, ...]
    full_attention_interval: int | None
    has_state: bool
    has_indexer: bool
    training_context: int
    vocabulary: int
    chat_template: str | None
    identity: str = ""

    @property
    def path(self) -> Path:
        """What llama-server is given: the file, or the first part of it."""
        return self.files[0]


def weights_of(
    header: Header, *, files: Sequence[Path], size_bytes: int, identity: str = ""
) -> Weights:
    """
    Take from *header* what a sweep wants to know.

    Defaults are those of llama.cpp, ``llama_model_base::load_hparams``.

    Raises:
        BadHeader: If a number is missing that every language model has.
    """
    keys = _Keys(header)
    block_count = keys.least("block_count", at_least=1)
    if block_count > MOST_LAYERS:
        raise BadHeader(f"it claims to have {block_count} layers")
    layers = max(block_count - keys.whole("nextn_predict_layers", 0), 1)
    embedding = keys.least("embedding_length", at_least=1)
    heads = keys.per_layer("attention.head_count", layers, (0,) * layers)
    head_size = embedding // heads[0] if heads[0] else 0
    key_length = keys.whole("attention.key_length", head_size)
    value_length = keys.whole("attention.value_length", head_size)
    return Weights(
        files=tuple(files),
        size_bytes=size_bytes,
        architecture=keys.architecture,
        name=keys.text("general.name"),
        size_label=keys.text("general.size_label"),
        file_type=keys.file_type(),
        layers=layers,
        embedding=embedding,
        heads=heads,
        kv_heads=keys.per_layer("attention.head_count_kv", layers, heads),
        key_length=key_length,
        value_length=value_length,
        key_length_swa=keys.whole("attention.key_length_swa", key_length),
        value_length_swa=keys.whole("attention.value_length_swa", value_length),
        is_mla=bool(
            keys.whole("attention.key_length_mla", 0)
            and keys.whole("attention.value_length_mla", 0)
        ),
        shared_kv_layers=keys.whole("attention.shared_kv_layers", 0),
        sliding_window=keys.maybe("attention.sliding_window"),
        window_pattern=keys.pattern("attention.sliding_window_pattern", layers),
        recurrent_layers=keys.flags("attention.recurrent_layers", layers),
        full_attention_interval=keys.maybe("full_attention_interval"),
        has_state=keys.has_any("ssm.", "wkv.", "shortconv.", "kda."),
        has_indexer=keys.has_any("attention.indexer."),
        training_context=keys.whole("context_length", 0),
        vocabulary=header.lengths.get("tokenizer.ggml.tokens")
        or keys.whole("vocab_size", 0),
        chat_template=keys.text("tokenizer.chat_template") or None,
        identity=identity,
    )


def _whole(number: float) -> int | None:
    """*number* without its fraction; None of infinity, and of what is no number."""
    return int(number) if math.isfinite(number) else None


class _Keys:
    """The keys of one architecture, by what follows its name."""

    def __init__(self, header: Header) -> None:
        self._values = header.values
        self.architecture = self.text("general.architecture")
        if not _NAME.fullmatch(self.architecture):
            raise BadHeader("it names no architecture")

    def text(self, name: str) -> str:
        value = self._values.get(name)
        return value if isinstance(value, str) else ""

    def file_type(self) -> str:
        number = self._values.get("general.file_type")
        return FILE_TYPES.get(number, "") if isinstance(number, int) else ""

    def maybe(self, name: str) -> int | None:
        value = self._values.get(f"{self.architecture}.{name}")
        if isinstance(value, tuple):
            # Written per layer where a single number would do.
            value = value[0] if value else None
        return _whole(value) if isinstance(value, (int, float)) else None

    def whole(self, name: str, default: int) -> int:
        value = self.maybe(name)
        return default if value is None or value < 0 else value

    def least(self, name: str, *, at_least: int) -> int:
        value = self.maybe(name)
        if value is None or value < at_least:
            raise BadHeader(f"its key '{self.architecture}.{name}' is missing")
        return value

    def per_layer(
        self, name: str, layers: int, default: tuple[int, ...]
    ) -> tuple[int, ...]:
        value = self._values.get(f"{self.architecture}.{name}")
        if isinstance(value, tuple) and len(value) >= layers:
            return tuple(max(_whole(each) or 0, 0) for each in value[:layers])
        single = self.maybe(name)
        return default if single is None else (max(single, 0),) * layers

    def flags(self, name: str, layers: int) -> tuple[bool, ...]:
        value = self._values.get(f"{self.architecture}.{name}")
        if not isinstance(value, tuple) or len(value) < layers:
            return ()
        return tuple(bool(each) for each in value[:layers])

    def pattern(self, name: str, layers: int) -> int | tuple[bool, ...] | None:
        return self.flags(name, layers) or self.maybe(name)

    def has_any(self, *prefixes: str) -> bool:
        starts = tuple(f"{self.architecture}.{prefix}" for prefix in prefixes)
        return any(name.startswith(starts) for name in self._values)
