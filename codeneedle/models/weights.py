"""
Model files, GGUF or folders of MLX: found, checked for completeness, their facts read,
their hashes cached.
"""

import hashlib
import json
import mmap
import re
import shlex
import stat
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import msgspec

from codeneedle.errors import BadInput, WeightsUnusable, did_you_mean
from codeneedle.models import pretrained
from codeneedle.models.gguf import (
    MOST_LAYERS,
    BadHeader,
    EndsTooSoon,
    Header,
    Weights,
    looks_like,
    parse,
    weights_of,
)
from codeneedle.system.files import (
    cache_folder,
    expanded,
    identity,
    read_note,
    reason_of,
    write_note,
)
from codeneedle.text import harmless
from codeneedle.text import size as size_phrase

FOLDER_FILE = "config.json"
"""Stands for a folder of MLX as the `Weights.path` of its model."""

_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
"""Names of split models, as ``llama-gguf-split`` writes and llama.cpp finds them."""

UNFINISHED = "The download did not finish; resume or repeat it."

_LONGEST_NAME = 100
_OFFERED = 5


def read_header(path: Path) -> Weights:
    """
    The facts in the header of the model at *path*, its files found to be complete.

    Args:
        path: A GGUF file, or any part of a split one.

    Raises:
        WeightsUnusable: If there is no usable model.
    """
    files = _parts(_checked(expanded(path)))
    # Before they are read, so that a change from here on is noticed.
    identity = identity_of(files)
    headers = [_header(file) for file in files]
    _refuse_other_kinds(files, headers)
    size_bytes = sum(map(_size, files))
    try:
        return weights_of(
            headers[0], files=files, size_bytes=size_bytes, identity=identity
        )
    except BadHeader as error:
        raise _unsupported(files[0], str(error)) from error


def identity_of(files: Sequence[Path]) -> str:
    """
    `files.identity` of each of *files*, one a line.

    Raises:
        WeightsUnusable: If one of them is gone, or cannot be looked at.
    """
    try:
        return "\n".join(map(identity, files))
    except FileNotFoundError as error:
        raise _missing(Path(error.filename)) from error
    except OSError as error:
        raise unreadable(files[0], error) from error


def short_name(path: Path) -> str:
    """
    A name for a folder, from the file's: ``qwen3-4b-q4_k_m``.

    Lower case, because some file systems ignore case.
    """
    part = _PART.fullmatch(path.name)
    stem = part["stem"] if part else path.name.removesuffix(".gguf")
    if path.name == FOLDER_FILE:
        stem = path.absolute().parent.name
    slug = re.sub(r"[^a-z0-9._]+", "-", stem.lower()).strip("-._")
    return slug[:_LONGEST_NAME] or "model"


def known_by_name(path: Path) -> Weights:
    """Weights that only their server can read: all that is known is their name."""
    return Weights(files=(path,), name=str(path))


def _missing(path: Path, nearby: Sequence[str] = ()) -> WeightsUnusable:
    hint = "Give the path of a GGUF file, or leave --model out."
    if nearby:
        hint = did_you_mean(path.name, nearby)
    for model in pretrained.unfetched([path]):
        hint = f"Fetch it ({model.offer}): codeneedle fetch {model.name}"
    return WeightsUnusable(path=path, reason="does not exist", hint=hint)


def unreadable(path: Path, error: OSError) -> WeightsUnusable:
    """The error for a file that the system does not let us read."""
    reason = f"cannot be read: {reason_of(error)}"
    hint = f"Look at it with: ls -l {shlex.quote(str(path))}"
    return WeightsUnusable(path=path, reason=reason, hint=hint)


def _not_gguf(path: Path, looks_like: str) -> WeightsUnusable:
    return WeightsUnusable(
        path=path,
        reason=f"is not a GGUF file but {looks_like}",
        hint="Download a .gguf of the model, or convert it with llama.cpp's "
        "convert_hf_to_gguf.py.",
    )


def cut_short(
    path: Path, has_bytes: int, needs_bytes: int | None = None
) -> WeightsUnusable:
    """The error for a file of *has_bytes*, of which the others never arrived."""
    has, of = size_phrase(has_bytes), ""
    if needs_bytes and has == size_phrase(needs_bytes):
        has, of = f"{has_bytes:,}", f" of {needs_bytes:,} bytes"
    elif needs_bytes:
        of = f" of {size_phrase(needs_bytes)}"
    return WeightsUnusable(
        path=path,
        reason=f"is cut short: it has {has}{of}",
        hint=UNFINISHED,
    )


def _unsupported(path: Path, reason: str) -> WeightsUnusable:
    return WeightsUnusable(
        path=path,
        reason=f"cannot be used: {reason}",
        hint="Give the GGUF file of a language model, made by a current llama.cpp.",
    )


def _checked(path: Path) -> Path:
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError, ValueError) as error:
        # ValueError: a NUL in it. A dangling link is not offered in its own place.
        others = [name for name in _models_in(path.parent) if name != path.name]
        raise _missing(path, others) from error
    except OSError as error:
        raise unreadable(path, error) from error
    if stat.S_ISDIR(mode):
        inside = ", ".join(str(path / name) for name in _models_in(path)[:_OFFERED])
        raise WeightsUnusable(
            path=path,
            reason="is a folder, not a GGUF file",
            hint=f"In it: {inside}." if inside else _folder_hint(path),
        )
    if not stat.S_ISREG(mode):
        raise _not_gguf(path, "no regular file")
    return path


def _folder_hint(folder: Path) -> str:
    if (folder / FOLDER_FILE).is_file():
        return "It looks like a model for MLX: serve it with --engine mlx."
    return "It holds no GGUF file."


def _models_in(folder: Path) -> list[str]:
    """Names of the models in *folder*; of a split one only the first part."""
    if not folder.is_dir():
        return []
    names = sorted(file.name for file in folder.glob("*.gguf"))
    parts = {name: _PART.fullmatch(name) for name in names}
    return [
        name
        for name, part in parts.items()
        if (part is None or int(part["number"]) == 1) and not name.startswith("mmproj")
    ]


def _parts(path: Path) -> tuple[Path, ...]:
    part = _PART.fullmatch(path.name)
    if part is None or not int(part["count"]):
        return (path,)
    count = int(part["count"])
    parts = tuple(
        path.with_name(f"{part['stem']}-{number:05}-of-{count:05}.gguf")
        for number in range(1, count + 1)
    )
    missing = [each.name for each in parts if not each.is_file()]
    if missing:
        named = ", ".join(missing[:_OFFERED])
        raise WeightsUnusable(
            path=path,
            reason=f"lacks {len(missing)} of the {count} parts of its model: {named}",
            hint=f"Put all parts into {path.parent}, under their own names.",
        )
    return parts


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise unreadable(path, error) from error


def _header(path: Path) -> Header:
    size = _size(path)
    if not size:
        raise _not_gguf(path, "an empty file")
    try:
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
            memoryview(mapped) as data,
        ):
            start = bytes(data[:64])
            header = parse(data)
    except OSError as error:
        raise unreadable(path, error) from error
    except BadHeader as error:
        if start[:4] != b"GGUF":
            raise _not_gguf(path, looks_like(start)) from error
        if isinstance(error, EndsTooSoon):
            raise cut_short(path, size) from error
        raise _unsupported(path, str(error)) from error
    if size < header.needed_bytes:
        raise cut_short(path, size, header.needed_bytes)
    return header


def _refuse_other_kinds(files: Sequence[Path], headers: Sequence[Header]) -> None:
    values = headers[0].values
    kind = values.get("general.type", "model")
    if kind == "adapter":
        raise _unsupported(files[0], "it is a LoRA adapter")
    if kind == "mmproj" or values.get("general.architecture") == "clip":
        raise _unsupported(files[0], "it is a projector for images")
    if not sum(header.tensors for header in headers):
        raise _unsupported(files[0], "it holds a vocabulary alone")
    count = values.get("split.count", 0)
    if isinstance(count, int) and count > 1 and len(files) == 1:
        raise _unsupported(
            files[0],
            f"it is one of {count} parts, but was renamed: llama.cpp finds the "
            "others by names such as model-00001-of-00002.gguf",
        )


# --- folders of MLX


INDEX = "model.safetensors.index.json"
TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
TEMPLATE = "chat_template.jinja"

MOST_JSON_BYTES = 64 << 20
"""Of one file; tokenizers of 256,000 tokens have 35 MB."""

_LENGTH = struct.Struct("<Q")
_MOST_HEADER_BYTES = 100 << 20
"""The limit of the safetensors format itself."""


def is_folder_of_mlx(path: Path) -> bool:
    """Whether *path* is such a folder, or the file that stands for one."""
    file = path if path.name == FOLDER_FILE else path / FOLDER_FILE
    return file.is_file()


def read_folder(path: Path) -> Weights:
    """
    The facts of a model folder, its files found to be complete.

    Args:
        path: The folder, or the ``config.json`` in it.

    Raises:
        WeightsUnusable: If a file is missing, cut short, or says too little.
    """
    folder = path.parent if path.name == FOLDER_FILE else path
    config = read_json(folder / FOLDER_FILE)
    parts = _tensor_files(folder)
    for part in parts:
        _refuse_truncated(part)
    tokenizer = folder / TOKENIZER
    if not tokenizer.is_file():
        raise WeightsUnusable(
            path=folder,
            reason=f"has no {TOKENIZER}",
            hint="Download all files of the model, not its weights alone.",
        )
    files = (folder / FOLDER_FILE, *_beside(folder), *parts)
    return _weights(folder, files, _text_part(config))


def read_json(path: Path) -> dict[str, Any]:
    """
    The JSON object in the file at *path*.

    Raises:
        WeightsUnusable: If it holds anything else.
    """
    try:
        if path.stat().st_size > MOST_JSON_BYTES:
            raise WeightsUnusable(
                path=path,
                reason=f"is larger than {MOST_JSON_BYTES >> 20} MiB",
                hint="Is it the file of a model? Download it again.",
            )
        found = json.loads(path.read_bytes())
    except OSError as error:
        raise WeightsUnusable(
            path=path,
            reason=f"cannot be read: {reason_of(error)}",
            hint="Give the folder of a model for MLX, with all its files.",
        ) from error
    except (ValueError, RecursionError) as error:
        raise _damaged(path, str(error)) from error
    if not isinstance(found, dict):
        raise _damaged(path, "it holds no object")
    return found


def template_of(folder: Path) -> str | None:
    """The chat template of the model in *folder*; None if it has none."""
    file = folder / TEMPLATE
    if file.is_file():
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise _damaged(file, str(error)) from error
    if not (folder / TOKENIZER_CONFIG).is_file():
        return None
    found = read_json(folder / TOKENIZER_CONFIG).get("chat_template")
    if isinstance(found, list):  # several, by name
        named = {each.get("name"): each for each in found if isinstance(each, dict)}
        found = named.get("default", {}).get("template")
    return found if isinstance(found, str) else None


def _weights(folder: Path, files: tuple[Path, ...], config: dict[str, Any]) -> Weights:
    keys = _Config(folder / FOLDER_FILE, config)
    layers = keys.least("num_hidden_layers")
    if layers > MOST_LAYERS:
        raise _damaged(keys.file, f"it claims to have {layers} layers")
    embedding, heads = keys.least("hidden_size"), keys.least("num_attention_heads")
    head_size = keys.whole("head_dim") or embedding // heads
    bits = config.get("quantization")
    window = keys.whole("sliding_window") if config.get("sliding_window") else None
    return Weights(
        files=files,
        size_bytes=sum(file.stat().st_size for file in files),
        architecture=str(config.get("model_type", "")),
        name=folder.name,
        file_type=f"{bits.get('bits')} bits" if isinstance(bits, dict) else "",
        layers=layers,
        embedding=embedding,
        heads=(heads,) * layers,
        kv_heads=(keys.whole("num_key_value_heads") or heads,) * layers,
        key_length=head_size,
        value_length=head_size,
        key_length_swa=head_size,
        value_length_swa=head_size,
        is_mla="kv_lora_rank" in config,
        shared_kv_layers=keys.whole("num_kv_shared_layers"),
        sliding_window=window,
        training_context=keys.whole("max_position_embeddings"),
        vocabulary=keys.least("vocab_size"),
        chat_template=template_of(folder),
        identity=identity_of(files),
    )


class _Config:
    """Whole numbers of a ``config.json``."""

    def __init__(self, file: Path, values: Mapping[str, Any]) -> None:
        self.file = file
        self._values = values

    def whole(self, key: str) -> int:
        """The value of *key*; 0 where there is none, or no whole number above 0."""
        value = self._values.get(key)
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        return max(0, value) if is_whole and value is not None else 0

    def least(self, key: str) -> int:
        if not self.whole(key):
            raise _damaged(self.file, f"its key '{key}' is missing")
        return self.whole(key)


def _text_part(config: dict[str, Any]) -> dict[str, Any]:
    """The keys of the language model; those with a vision part nest them."""
    nested = config.get("text_config")
    return {**config, **nested} if isinstance(nested, dict) else config


def _beside(folder: Path) -> Iterator[Path]:
    """The files that decide what is computed, beside configuration and weights."""
    for name in (TOKENIZER, TOKENIZER_CONFIG, TEMPLATE, "generation_config.json"):
        if (folder / name).is_file():
            yield folder / name


def _tensor_files(folder: Path) -> tuple[Path, ...]:
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


def _refuse_truncated(path: Path) -> None:
    """
    Stop at a safetensors file that is shorter than its header says.

    Source:
        The format: 8 bytes of length, a JSON header with ``data_offsets`` counted from
        its end, the data.
    """
    has = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(_LENGTH.size)
        length = _LENGTH.unpack(start)[0] if len(start) == _LENGTH.size else 0
        if not 0 < length <= min(_MOST_HEADER_BYTES, has):
            raise _damaged(path, "it does not begin as a safetensors file does")
        header = file.read(length)
    try:
        tensors = json.loads(header)
        ends = [
            each["data_offsets"][1]
            for name, each in tensors.items()
            if name != "__metadata__"
        ]
        needed = _LENGTH.size + length + max(ends)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise _damaged(path, "its header cannot be read") from error
    if has < needed:
        raise cut_short(path, has, needed)


def _damaged(path: Path, reason: str) -> WeightsUnusable:
    return WeightsUnusable(
        path=path,
        reason=f"cannot be used: {reason}",
        hint="Give the folder of a model for MLX, as mlx_lm.convert makes it.",
    )


# --- hashes


Progress = Callable[[int, int], None]
"""Called with the bytes read so far and the bytes there are."""

_CHUNK_BYTES = 4 << 20
_SHORT_HASH = 12
_TRIES = 3


def sha256(weights: Weights, *, progress: Progress | None = None) -> str:
    """
    The hash of the file, or of all parts in order, as hexadecimal digits; that of
    the name where only that is known.

    Kept in the cache folder, for as long as `files.identity` is the same.

    Args:
        weights: The model.
        progress: Told how far the reading is.

    Raises:
        WeightsUnusable: If a file is gone, cannot be read, or has another header than
            when *weights* was read from it.
    """
    if not weights.is_read:
        return hashlib.sha256(weights.name.encode(errors="replace")).hexdigest()
    digest = _sha256(weights, progress)
    if identity_of(weights.files) != weights.identity:
        read = read_folder if weights.path.name == FOLDER_FILE else read_header
        now = read(weights.path)
        if replace(now, identity=weights.identity) != weights:
            raise _changing(weights.path)
    return digest


def refuse_replaced(
    weights: Weights, *, expected: str, progress: Progress | None = None
) -> None:
    """
    Stop if the files have other contents than when *weights* was read from them.

    Microseconds if their identity is the same; else they are hashed again, since
    renaming them, linking to them or restoring a copy changes their identity, too.

    Args:
        weights: The model as it was.
        expected: Its hash.
        progress: As of `sha256`.

    Raises:
        BadInput: If they have another hash.
        WeightsUnusable: If a file is gone, cannot be read, or keeps changing.
    """
    # Made-up weights are no files.
    if weights.identity and identity_of(weights.files) != weights.identity:
        found = _sha256(weights, progress)
        if found != expected:
            raise BadInput(
                source=weights.path,
                reason="other weights than those that the sweep began with: sha256 "
                f"{found[:_SHORT_HASH]}, was {expected[:_SHORT_HASH]}",
                hint="What has finished is kept. Put the former file back and sweep "
                "again, or choose another folder with --out.",
            )


def _sha256(weights: Weights, progress: Progress | None) -> str:
    """The hash of the files, whose identity is the same before and after reading."""
    for _ in range(_TRIES):
        identity = identity_of(weights.files)
        note = _note(identity)
        known = read_note(note, _Hash)
        digest = known.sha256 if known else _digest(weights, progress)
        # Tried again: making a link or a backup meanwhile changes the identity, too.
        if identity_of(weights.files) == identity:
            if not known:
                write_note(note, _Hash(harmless(str(weights.path)), digest))
            return digest
    raise _changing(weights.path)


def _changing(path: Path) -> WeightsUnusable:
    return WeightsUnusable(
        path=path,
        reason="changes while it is read",
        hint="Is it still being downloaded or copied? Wait for the end of that.",
    )


@dataclass(frozen=True, slots=True)
class _Hash:
    """The note of a hash, and of the file that it was of."""

    file: str
    sha256: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]


def _note(identity: str) -> Path:
    data = identity.encode(errors="surrogateescape")
    name = hashlib.sha256(data).hexdigest()[:32]
    return cache_folder() / "weights" / f"{name}.json"


def _digest(weights: Weights, progress: Progress | None) -> str:
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(_CHUNK_BYTES))
    done = 0
    for path in weights.files:
        try:
            with path.open("rb", buffering=0) as file:
                while count := file.readinto(buffer):
                    digest.update(buffer[:count])
                    done += count
                    if progress is not None:
                        progress(done, weights.size_bytes)
        except OSError as error:
            raise unreadable(path, error) from error
    return digest.hexdigest()
