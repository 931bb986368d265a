"""Model folders as mlx_lm.convert makes them: checked, and their facts read."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from codeneedle.engines.mlx.settings import missing_package_error
from codeneedle.errors import WeightsUnusable
from codeneedle.models.weights import (
    MOST_LAYERS,
    UNFINISHED,
    Weights,
    file_state_identity,
)
from codeneedle.system.files import reason_of

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
TEMPLATE = "chat_template.jinja"

MOST_JSON_BYTES = 64 << 20
"""Of one file; tokenizers of 256,000 tokens have 35 MB."""


def is_mlx_folder_or_config(path: Path) -> bool:
    """Whether *path* is a folder with a ``config.json``, or that file."""
    file = path if path.name == CONFIG else path / CONFIG
    return file.is_file()


def read_folder(path: Path) -> Weights:
    """
    The facts of a model folder, its files found to be complete.

    Args:
        path: The folder, or the ``config.json`` in it.

    Raises:
        WeightsUnusable: If a file is missing, cut short, or says too little.
    """
    folder = path.parent if path.name == CONFIG else path
    config = read_json(folder / CONFIG)
    parts = _tensor_files(folder)
    for part in parts:
        _refuse_damaged(part)
    tokenizer = folder / TOKENIZER
    if not tokenizer.is_file():
        raise WeightsUnusable(
            path=folder,
            reason=f"has no {TOKENIZER}",
            hint="Download all files of the model, not its weights alone.",
        )
    files = (folder / CONFIG, *_tokenizer_files(folder), *parts)
    return _weights_of_config(folder, files, _with_nested_text_config(config))


def read_json(path: Path) -> dict[str, Any]:
    """
    The JSON object in the file at *path*.

    Raises:
        WeightsUnusable: If it cannot be read, is too large, or holds anything else.
    """
    try:
        if path.stat().st_size > MOST_JSON_BYTES:
            raise WeightsUnusable(
                path=path,
                reason=f"is larger than {MOST_JSON_BYTES >> 20} MiB",
                hint="Is it the file of a model? Download it again.",
            )
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise WeightsUnusable(
            path=path,
            reason=f"cannot be read: {reason_of(error)}",
            hint="Give the folder of a model for MLX, with all its files.",
        ) from error
    except (ValueError, RecursionError) as error:
        raise _damage_error(path, str(error)) from error
    if not isinstance(content, dict):
        raise _damage_error(path, "it holds no object")
    return content


def chat_template_of(folder: Path) -> str | None:
    """
    The chat template of the model in *folder*; None if it has none.

    A file of its own wins over the tokenizer's; of several there, ``default``.
    """
    file = folder / TEMPLATE
    if file.is_file():
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise _damage_error(file, str(error)) from error
    if not (folder / TOKENIZER_CONFIG).is_file():
        return None
    template = read_json(folder / TOKENIZER_CONFIG).get("chat_template")
    if isinstance(template, list):  # several, by name
        named = {
            entry.get("name"): entry for entry in template if isinstance(entry, dict)
        }
        template = named.get("default", {}).get("template")
    return template if isinstance(template, str) else None


def _weights_of_config(
    folder: Path, files: tuple[Path, ...], config: dict[str, Any]
) -> Weights:
    """Facts of a model by its *config*; heads and layers are taken to be alike."""
    keys = _Config(folder / CONFIG, config)
    layers = keys.required_number("num_hidden_layers")
    if layers > MOST_LAYERS:
        raise _damage_error(keys.file, f"it claims to have {layers} layers")
    embedding, heads = (
        keys.required_number("hidden_size"),
        keys.required_number("num_attention_heads"),
    )
    head_size = keys.number_or_zero("head_dim") or embedding // heads
    bits = config.get("quantization")
    return Weights(
        files=files,
        folder=folder,
        size_bytes=sum(file.stat().st_size for file in files),
        architecture=str(config.get("model_type", "")),
        name=folder.name,
        file_type=f"{bits.get('bits')} bits" if isinstance(bits, dict) else "",
        layers=layers,
        embedding=embedding,
        heads=(heads,) * layers,
        kv_heads=(keys.number_or_zero("num_key_value_heads") or heads,) * layers,
        key_length=head_size,
        value_length=head_size,
        key_length_swa=head_size,
        value_length_swa=head_size,
        is_mla="kv_lora_rank" in config,
        has_plain_attention=_has_plain_attention(config),
        training_context=keys.number_or_zero("max_position_embeddings"),
        vocabulary=keys.required_number("vocab_size"),
        chat_template=chat_template_of(folder),
        identity=file_state_identity(files),
    )


def _has_plain_attention(config: Mapping[str, Any]) -> bool:
    """Whether each layer keeps K and V of the whole context, as far as that is said."""
    has_window = config.get("sliding_window") and config.get("use_sliding_window", True)
    kinds = config.get("layer_types") or ()
    return not (
        has_window
        or {*kinds} - {"full_attention"}
        or any(key.startswith(_OTHER_CACHES) for key in config)
    )


_OTHER_CACHES = ("kv_lora_rank", "num_kv_shared_layers", "linear_", "mamba_", "conv_")
"""Beginnings of keys of models with caches of other kinds."""


class _Config:
    """Whole numbers of a ``config.json``."""

    def __init__(self, file: Path, values: Mapping[str, Any]) -> None:
        self.file = file
        self._values = values

    def number_or_zero(self, key: str) -> int:
        """The value of *key*; 0 where there is none, or no whole number above 0."""
        value = self._values.get(key)
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        return max(0, value) if is_whole and value is not None else 0

    def required_number(self, key: str) -> int:
        """The value of *key*; stops where there is none above 0."""
        if not self.number_or_zero(key):
            raise _damage_error(self.file, f"its key '{key}' is missing")
        return self.number_or_zero(key)


def _with_nested_text_config(config: dict[str, Any]) -> dict[str, Any]:
    """The keys of the language model; those with a vision part nest them."""
    nested = config.get("text_config")
    return {**config, **nested} if isinstance(nested, dict) else config


def _tokenizer_files(folder: Path) -> Iterator[Path]:
    """The files that decide what is computed, beside configuration and weights."""
    for name in (TOKENIZER, TOKENIZER_CONFIG, TEMPLATE, "generation_config.json"):
        if (folder / name).is_file():
            yield folder / name


def _tensor_files(folder: Path) -> tuple[Path, ...]:
    """Files of the tensors; stops where one that the index names is missing."""
    names: set[str] = set()
    if (folder / INDEX).is_file():
        listed = read_json(folder / INDEX).get("weight_map")
        if isinstance(listed, dict):
            names = {name for name in listed.values() if isinstance(name, str)}
    missing = sorted(name for name in names if not (folder / name).is_file())
    parts = tuple(sorted(folder.glob("model*.safetensors")))
    if missing or not parts:
        named = ", ".join(missing[:5]) or "model.safetensors"
        raise WeightsUnusable(
            path=folder,
            reason=f"lacks {named}",
            hint=UNFINISHED,
        )
    return parts


def _refuse_damaged(path: Path) -> None:
    """Stop at a safetensors file whose length is not what its header says."""
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        raise missing_package_error("safetensors") from error
    try:
        with safe_open(path, framework="np"):
            pass
    except (SafetensorError, OSError) as error:
        raise WeightsUnusable(
            path=path, reason=f"is cut short or damaged: {error}", hint=UNFINISHED
        ) from error


def _damage_error(path: Path, reason: str) -> WeightsUnusable:
    return WeightsUnusable(
        path=path,
        reason=f"cannot be used: {reason}",
        hint="Give the folder of a model for MLX, as mlx_lm.convert makes it.",
    )
