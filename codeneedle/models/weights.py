"""
Weights: finds and checks GGUF files, reads the facts in their headers, and hashes the
files, with a cache.
"""

import contextlib
import hashlib
import itertools
import math
import mmap
import re
import shlex
import stat
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import msgspec

from codeneedle.errors import BadInput, WeightsUnusable, did_you_mean
from codeneedle.models import pieces, pretrained
from codeneedle.models.gguf import (
    MAGIC,
    BadHeader,
    EndsTooSoon,
    Header,
    guessed_kind_phrase,
    parse,
)
from codeneedle.models.kinds import has_non_model_name, non_model_kind
from codeneedle.system.files import (
    cache_folder,
    expand_home,
    file_state_text,
    read_json_or_none,
    reason_of,
    write_json_if_possible,
)
from codeneedle.text import replace_surrogates
from codeneedle.text import size_text as size_phrase

PART_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
"""Names of split models, as ``llama-gguf-split`` writes and llama.cpp finds them."""

_HASHED_NAME = re.compile(r"sha256-[0-9a-f]{64}")
"""Names of files in Ollama's store."""

UNFINISHED = "The download did not finish; resume or repeat it."

_ENDING = re.compile(r"\.gguf$", re.IGNORECASE)
_LONGEST_NAME = 100
_OFFERED = 5
_MOST_LISTED = 100
"""Of a folder; the header of each of them is read."""


_NAME = re.compile(r"[\w.-]{1,64}")
"""An architecture; the names of its keys begin with it."""

MOST_LAYERS = 512
"""``LLAMA_MAX_LAYERS`` of llama.cpp."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """The facts in the header of a model file, or of the parts of a split one."""

    files: tuple[Path, ...]  # the parts in order; one where the model is not split
    size_bytes: int = 0  # length of all of them
    architecture: str = ""  # as llama.cpp names it: ``qwen3``
    name: str = ""  # chosen by its author; may be empty
    file_type: str = ""  # quantization of the weights: ``Q4_K_M``; may be empty
    layers: int = 0  # number of layers, without those for multi-token prediction
    embedding: int = 0  # width of the residual stream
    heads: tuple[int, ...] = ()  # attention heads of each layer
    kv_heads: tuple[int, ...] = ()
    """Heads of K and V of each layer; 0 where a layer keeps none."""

    key_length: int = 0  # head size of K
    value_length: int = 0  # head size of V
    key_length_swa: int = 0  # head size of K in layers with a sliding window
    value_length_swa: int = 0  # head size of V in those
    is_mla: bool = False  # whether K and V are compressed into one latent vector
    has_plain_attention: bool = False
    """Whether each layer keeps K and V of the whole context, as far as headers tell."""

    is_causal: bool = True
    """Whether a token sees those before it alone; encoders see all."""

    training_context: int = 0  # context it was trained on, in tokens; 0 if unknown
    vocabulary: int = 0  # tokens it knows
    chat_template: str | None = None  # text of its template; None where it has none
    identity: str = ""  # identity of the files when the header was read; may be empty
    folder: Path | None = None
    """Of a model that is a folder, which its engine alone reads; else None."""

    k_bias_norms: tuple[tuple[int, float], ...] = ()
    """Layers whose K has a bias, with its Euclidean norm."""

    has_sinks: bool = False  # whether attention has sinks
    tokenizer: str = ""  # `gguf.Header.tokenizer` of the first file; may be empty
    parameters: int = 0  # numbers in all tensors; 0 if unknown
    unused_bytes: int = 0  # of experts of a mixture that a token does not pass through

    @property
    def needs_equal_types(self) -> bool:
        """Whether llama.cpp refuses two types, as K and V are one."""
        return self.is_mla or self.architecture in _EQUAL_TYPES

    @property
    def shape_phrase(self) -> str:
        """Architecture and size of the model, whatever its quantization; or empty."""
        if not self.is_read:
            return ""
        heads = f"{max(self.heads, default=0)}/{max(self.kv_heads, default=0)} heads"
        return f"{self.architecture}, {self.layers} layers of {self.embedding}, {heads}"

    @property
    def is_read(self) -> bool:
        """Whether its files were read, so that more than a name is known."""
        return bool(self.architecture)

    @property
    def path(self) -> Path:
        """What is served: the only file, the first part, or the folder."""
        return self.folder or self.files[0]


MOST_PARAMETERS = 1 << 60

_EQUAL_TYPES = frozenset({"deepseek4"})
"""Architectures of models whose headers do not say that K and V are one."""

_OTHER_CACHES = (
    "attention.sliding_window",
    "attention.chunk",
    "attention.shared_kv_layers",
    "attention.recurrent_layers",
    "attention.indexer.",
    "full_attention_interval",
    "ssm.",
    "shortconv.",
    "kda.",
    "wkv.",
)
"""Beginnings of keys of models with caches of other kinds beside plain ones."""


def weights_of(
    header: Header, *, files: Sequence[Path], size_bytes: int, identity: str = ""
) -> Weights:
    """
    Read the facts from *header*, but for those that tensors tell: biases, parameters.

    Defaults are those of llama.cpp, ``llama_model_base::load_hparams``.

    Raises:
        BadHeader: If a key is missing that every language model has.
    """
    keys = _Keys(header)
    layers = keys.kv_layer_count()
    embedding = keys.positive_number("embedding_length")
    heads = keys.numbers_per_layer("attention.head_count", layers, (0,) * layers)
    kv_heads = keys.numbers_per_layer("attention.head_count_kv", layers, heads)
    head_size = embedding // heads[0] if heads[0] else 0
    key_length = keys.number_or_default("attention.key_length", head_size)
    value_length = keys.number_or_default("attention.value_length", head_size)
    return Weights(
        files=tuple(files),
        size_bytes=size_bytes,
        architecture=keys.architecture,
        name=keys.text_or_empty("general.name"),
        file_type=keys.file_type_name_or_empty(),
        layers=layers,
        embedding=embedding,
        heads=heads,
        kv_heads=kv_heads,
        key_length=key_length,
        value_length=value_length,
        key_length_swa=keys.number_or_default("attention.key_length_swa", key_length),
        value_length_swa=keys.number_or_default(
            "attention.value_length_swa", value_length
        ),
        is_mla=keys.number_or_default("attention.key_length_mla", 0) > 0
        and keys.number_or_default("attention.value_length_mla", 0) > 0,
        has_plain_attention=all(kv_heads) and not any(map(keys.has_any, _OTHER_CACHES)),
        is_causal=keys.number_or_default("attention.causal", 1) > 0,
        training_context=keys.number_or_default("context_length", 0),
        vocabulary=header.lengths.get("tokenizer.ggml.tokens")
        or keys.number_or_default("vocab_size", 0),
        chat_template=keys.text_or_empty("tokenizer.chat_template") or None,
        identity=identity,
        tokenizer=header.tokenizer,
    )


def _truncated_if_finite(number: float) -> int | None:
    """*number* without its fraction; None for infinity and NaN."""
    return int(number) if math.isfinite(number) else None


class _Keys:
    """The values of a header by their keys, without the prefix of the architecture."""

    def __init__(self, header: Header) -> None:
        self._values = header.values
        self.architecture = self.text_or_empty("general.architecture")
        if not _NAME.fullmatch(self.architecture):
            raise BadHeader("it names no architecture")

    def text_or_empty(self, name: str) -> str:
        """The text at key *name*, as it stands; empty if there is none."""
        value = self._values.get(name)
        return value if isinstance(value, str) else ""

    def file_type_name_or_empty(self) -> str:
        """What ``general.file_type`` means by ``enum llama_ftype``; may be empty."""
        from gguf import LlamaFileType

        number = self._values.get("general.file_type")
        name = next((kind.name for kind in LlamaFileType if kind == number), "")
        return name.removeprefix("MOSTLY_").removeprefix("ALL_")

    def number_or_none(self, name: str) -> int | None:
        """The number at key *name*, of a list the first; None if there is none."""
        value = self._values.get(f"{self.architecture}.{name}")
        if isinstance(value, tuple):
            # One number per layer.
            value = value[0] if value else None
        return _truncated_if_finite(value) if isinstance(value, (int, float)) else None

    def number_or_default(self, name: str, default: int) -> int:
        """The number at key *name*; *default* if there is none, or one below 0."""
        value = self.number_or_none(name)
        return default if value is None or value < 0 else value

    def positive_number(self, name: str) -> int:
        """The number at key *name*; stops if there is none above 0."""
        value = self.number_or_none(name)
        if value is None or value < 1:
            raise BadHeader(f"its key '{self.architecture}.{name}' is missing")
        return value

    def kv_layer_count(self) -> int:
        """
        Number of layers that keep K and V, without that of multi-token prediction.

        Raises:
            BadHeader: If it is larger than that of any model.
        """
        blocks = self.positive_number("block_count")
        if blocks > MOST_LAYERS:
            raise BadHeader(f"it claims to have {blocks} layers")
        return max(blocks - self.number_or_default("nextn_predict_layers", 0), 1)

    def numbers_per_layer(
        self, name: str, layers: int, default: tuple[int, ...]
    ) -> tuple[int, ...]:
        """A number for each layer at key *name*: a list, one for all, or *default*."""
        value = self._values.get(f"{self.architecture}.{name}")
        if isinstance(value, tuple) and len(value) >= layers:
            return tuple(
                max(_truncated_if_finite(number) or 0, 0) for number in value[:layers]
            )
        single = self.number_or_none(name)
        return default if single is None else (max(single, 0),) * layers

    def has_any(self, prefix: str) -> bool:
        """Whether any key of the architecture begins with *prefix*."""
        start = f"{self.architecture}.{prefix}"
        return any(name.startswith(start) for name in self._values)


# --- files


def read_weights_from_headers(path: Path) -> Weights:
    """
    The facts in the header of the model at *path*, whose files are complete.

    Args:
        path: A GGUF file, or any part of a split one.

    Raises:
        WeightsUnusable: If there is no usable model.
    """
    files = _checked_model_parts(_check_is_regular_file(expand_home(path)))
    # Before they are read, so that a change from here on is noticed.
    identity = file_state_identity(files)
    headers = [read_complete_header(file) for file in files]
    _refuse_non_models(files, headers)
    size_bytes = sum(map(_file_size, files))
    try:
        weights = weights_of(
            headers[0], files=files, size_bytes=size_bytes, identity=identity
        )
        return replace(
            weights,
            k_bias_norms=tuple(_k_bias_norms(files, headers)),
            has_sinks=any(
                "sinks" in name for header in headers for name in header.kept
            ),
            # A damaged header may claim more than can be stored.
            parameters=min(sum(header.elements for header in headers), MOST_PARAMETERS),
            unused_bytes=_unused_expert_bytes(headers, size_bytes),
        )
    except BadHeader as error:
        raise _no_support_error(files[0], str(error)) from error


def _unused_expert_bytes(headers: Sequence[Header], size_bytes: int) -> int:
    """
    Bytes of the experts that a token does not pass through; 0 where there are none.

    At most *size_bytes*, whatever a damaged header claims.
    """
    keys, stored = _Keys(headers[0]), sum(header.expert_bytes for header in headers)
    experts, used = (
        keys.number_or_default("expert_count", 0),
        keys.number_or_default("expert_used_count", 0),
    )
    if not 0 < used < experts:
        return 0
    return min(stored, size_bytes) * (experts - used) // experts


_FLOATS = {0: ("f", 4), 1: ("e", 2)}
"""Codes of `struct` and bytes of F32 and F16, by ``enum ggml_type``."""

MOST_BIASES = 1 << 16
"""Values of a bias that are read; models have some thousands."""


def _k_bias_norms(
    files: Sequence[Path], headers: Sequence[Header]
) -> Iterator[tuple[int, float]]:
    """The norm of each bias of K that is stored as numbers, by layer."""
    for path, header in zip(files, headers, strict=True):
        for name, tensor in header.kept.items():
            code, size = _FLOATS.get(tensor.kind, ("", 0))
            if not name.endswith("k.bias") or not code or tensor.elements > MOST_BIASES:
                continue
            with contextlib.suppress(OSError), path.open("rb") as file:
                file.seek(tensor.start)
                data = file.read(tensor.elements * size)
                if len(data) == tensor.elements * size:
                    values = struct.unpack(f"<{tensor.elements}{code}", data)
                    yield int(name.split(".")[1]), math.hypot(*values)


def file_state_identity(files: Sequence[Path]) -> str:
    """
    `files.file_state_text` of each of *files*, one a line.

    Raises:
        WeightsUnusable: If one of them is gone, or its folder cannot be searched.
    """
    try:
        return "\n".join(map(file_state_text, files))
    except FileNotFoundError as error:
        raise _missing_file_error(Path(error.filename)) from error
    except OSError as error:
        raise unreadable_error(files[0], error) from error


def slug_from_path(path: Path) -> str:
    """
    A short name for a run folder, by that of file or folder: ``qwen3-4b-q4_k_m``.

    Lower case, because some file systems ignore case.
    """
    name = path.absolute().name
    part = PART_NAME.fullmatch(name)
    stem = part["stem"] if part else _ENDING.sub("", name)
    slug = re.sub(r"[^a-z0-9._]+", "-", stem.lower()).strip("-._")
    return slug[:_LONGEST_NAME] or "model"


def run_folder_name(weights: Weights) -> str:
    """
    A name for a run folder: the `slug_from_path` of its file.

    What its author calls the model, where the file is called by its hash, as in
    Ollama's store.
    """
    name = weights.path.name
    if not _HASHED_NAME.fullmatch(name):
        return slug_from_path(weights.path)
    words = [word for word in (weights.name, weights.file_type) if word]
    return slug_from_path(Path("-".join(words).replace("/", "-") or name[:_SHORT_HASH]))


def weights_of_name_alone(path: Path) -> Weights:
    """Weights that only their server can read: all that is known is their name."""
    return Weights(files=(path,), name=str(path))


def _missing_file_error(path: Path, nearby: Sequence[str] = ()) -> WeightsUnusable:
    """The error for a file that is not there, with how to fetch it or one *nearby*."""
    hint = "Name the GGUF file where it is now: --model PATH"
    if nearby:
        hint = did_you_mean(path.name, nearby)
    for model in pretrained.models_to_fetch([path]):
        hint = f"Fetch it ({model.offer_phrase}): codeneedle fetch {model.name}"
    return WeightsUnusable(path=path, reason="does not exist", hint=hint)


def unreadable_error(path: Path, error: OSError) -> WeightsUnusable:
    """The error for a file that the system does not let us read."""
    reason = f"cannot be read: {reason_of(error)}"
    hint = f"Look at it with: ls -l {shlex.quote(str(path))}"
    return WeightsUnusable(path=path, reason=reason, hint=hint)


def _not_gguf_error(path: Path, looks_like: str) -> WeightsUnusable:
    return WeightsUnusable(
        path=path,
        reason=f"is not a GGUF file but {looks_like}",
        hint="Download a .gguf of the model, or convert it with llama.cpp's "
        "convert_hf_to_gguf.py.",
    )


def cut_short_error(
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


def _no_support_error(path: Path, reason: str) -> WeightsUnusable:
    return WeightsUnusable(
        path=path,
        reason=f"cannot be used: {reason}",
        hint="Give the GGUF file of a language model, made by a current llama.cpp.",
    )


def _check_is_regular_file(path: Path) -> Path:
    """*path*, if a regular file is there; else an error that names others."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError, ValueError) as error:
        if found := pieces.pieces_of(path):
            raise WeightsUnusable(
                path=path,
                reason="does not exist, its parts do",
                hint=pieces.join_or_fetch_advice(found),
            ) from error
        # ValueError: a NUL in it. A dangling link is not offered in its own place.
        others = [
            name for name in _model_file_names_in(path.parent) if name != path.name
        ]
        raise _missing_file_error(path, others) from error
    except OSError as error:
        raise unreadable_error(path, error) from error
    if stat.S_ISDIR(mode):
        inside = ", ".join(
            str(path / name) for name in _model_file_names_in(path)[:_OFFERED]
        )
        raise WeightsUnusable(
            path=path,
            reason="is a folder, not a GGUF file",
            hint=f"In it: {inside}."
            if inside
            else _advice_on_pieces(path)
            or "It holds no GGUF file of a language model.",
        )
    if not stat.S_ISREG(mode):
        raise _not_gguf_error(path, "no regular file")
    return path


def _advice_on_pieces(folder: Path) -> str:
    """What to do with the pieces of a file in *folder*; empty if there are none."""
    try:
        named = [pieces.parse_piece_name(path) for path in sorted(folder.iterdir())]
    except OSError:
        return ""
    wholes = [piece.whole for piece in named if piece]
    return pieces.join_or_fetch_advice(pieces.pieces_of(wholes[0])) if wholes else ""


def _model_file_names_in(folder: Path) -> list[str]:
    """Names of `_MOST_LISTED` models in *folder* at most; of parts, the first alone."""
    if not folder.is_dir():
        return []
    names = sorted(file.name for file in folder.iterdir())
    parts = {name: PART_NAME.fullmatch(name) for name in names if _ENDING.search(name)}
    firsts = (
        n for n, part in parts.items() if part is None or int(part["number"]) == 1
    )
    models = (name for name in firsts if _has_language_model_header(folder / name))
    return [*itertools.islice(models, _MOST_LISTED)]


def _has_language_model_header(path: Path) -> bool:
    """Whether the header of the file at *path* is that of a language model."""
    if has_non_model_name(path.name) or not path.is_file():
        return False
    try:
        return not non_model_kind(read_complete_header(path))
    except WeightsUnusable:
        return False


def present_model_parts(path: Path) -> tuple[Path, ...]:
    """The parts that are there of the weights at *path*, sorted; itself if no part."""
    part = PART_NAME.fullmatch(path.name)
    if part is None:
        return (path,)
    others = (PART_NAME.fullmatch(file.name) for file in path.parent.glob("*.gguf"))
    names = (
        other[0]
        for other in others
        if other and (other["stem"], other["count"]) == (part["stem"], part["count"])
    )
    return tuple(path.with_name(name) for name in sorted(names))


def _checked_model_parts(path: Path) -> tuple[Path, ...]:
    """All parts of the model at *path*, in order; stops if one is missing."""
    part = PART_NAME.fullmatch(path.name)
    if part is None or not int(part["count"]):
        return (path,)
    count = int(part["count"])
    parts = tuple(
        path.with_name(f"{part['stem']}-{number:05}-of-{count:05}.gguf")
        for number in range(1, count + 1)
    )
    missing = [file.name for file in parts if not file.is_file()]
    if missing:
        named = ", ".join(missing[:_OFFERED])
        raise WeightsUnusable(
            path=path,
            reason=f"lacks {len(missing)} of the {count} parts of its model: {named}",
            hint=f"Put all parts into {path.parent}, under their own names.",
        )
    return parts


def _file_size(path: Path) -> int:
    """The size of a file; stops if it cannot be looked at."""
    try:
        return path.stat().st_size
    except OSError as error:
        raise unreadable_error(path, error) from error


def read_complete_header(path: Path) -> Header:
    """
    The header of the GGUF file at *path*, whose data is all there.

    Raises:
        WeightsUnusable: If it is none, or cut short.
    """
    size = _file_size(path)
    if not size:
        raise _piece_error_or_none(path) or _not_gguf_error(path, "an empty file")
    try:
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
            memoryview(mapped) as data,
        ):
            start = bytes(data[:64])
            header = parse(data)
    except OSError as error:
        raise unreadable_error(path, error) from error
    except BadHeader as error:
        if not start.startswith(MAGIC):
            kind = guessed_kind_phrase(start)
            raise _piece_error_or_none(path, kind) or _not_gguf_error(
                path, kind
            ) from error
        if isinstance(error, EndsTooSoon):
            raise _piece_error_or_none(path) or cut_short_error(path, size) from error
        raise _no_support_error(path, str(error)) from error
    if size < header.needed_bytes:
        is_split = "split.count" in header.values
        short = cut_short_error(path, size, header.needed_bytes)
        raise short if is_split else _piece_error_or_none(path) or short
    return header


_NAMELESS = ("a GGUF file", "something else", "a text file", "a stretch of zeros")
"""How a piece of a file may look; others, such as archives, are what they are."""


def _piece_error_or_none(
    path: Path, looks: str = _NAMELESS[0]
) -> WeightsUnusable | None:
    """
    The error for a piece of a file, or of a download; None if *path* is called neither.

    Args:
        path: A file that is no whole GGUF file.
        looks: A phrase of `guessed_kind_phrase`; by default, that it begins as GGUF.
    """
    if pieces.has_download_name(path):
        return WeightsUnusable(
            path=path,
            reason="is what a download has so far",
            hint="Let the program that fetches it end, or fetch it again.",
        )
    piece = pieces.parse_piece_name(path) if looks.startswith(_NAMELESS) else None
    if piece is None:
        return None
    return WeightsUnusable(
        path=path,
        reason=f"is {pieces.part_phrase(piece)}, which was cut by size",
        hint=pieces.join_or_fetch_advice(pieces.pieces_of(piece.whole)),
    )


def _refuse_non_models(files: Sequence[Path], headers: Sequence[Header]) -> None:
    """Stop at what is no language model, and at a renamed part of one."""
    if kind := non_model_kind(*headers):
        others = [
            n for n in _model_file_names_in(files[0].parent) if n != files[0].name
        ]
        raise WeightsUnusable(
            path=files[0],
            reason=f"is no language model: it holds {kind}",
            hint=f"Models beside it: {', '.join(others[:_OFFERED])}."
            if others
            else "Give the GGUF file of a language model.",
        )
    count = headers[0].values.get("split.count", 0)
    if isinstance(count, int) and count > 1 and len(files) == 1:
        raise _no_support_error(
            files[0],
            f"it is one of {count} parts, but was renamed: llama.cpp finds the "
            "others by names such as model-00001-of-00002.gguf",
        )


# --- hashes


Progress = Callable[[int, int], None]
"""Called with the bytes read so far and the bytes there are."""

_CHUNK_BYTES = 4 << 20
_SHORT_HASH = 12
_TRIES = 3


def load_or_compute_sha256(
    weights: Weights, *, progress: Progress | None = None
) -> str:
    """
    The hash of the file, or of all parts in order, as hexadecimal digits; that of
    the name where only that is known.

    Kept in the cache folder, for as long as `files.file_state_text` is the same.

    Args:
        weights: The model.
        progress: Called as the file is read.

    Raises:
        WeightsUnusable: If a file is gone, cannot be read, or has another header than
            when *weights* was read from it.
    """
    if not weights.is_read:
        return hashlib.sha256(weights.name.encode(errors="replace")).hexdigest()
    digest = _load_or_compute_stable_sha256(weights, progress)
    if file_state_identity(weights.files) != weights.identity:
        # A model's folder is read by its engine alone: any change of it counts.
        now = None if weights.folder else read_weights_from_headers(weights.path)
        if now is None or replace(now, identity=weights.identity) != weights:
            raise _changing_error(weights.path)
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
        progress: See `load_or_compute_sha256`.

    Raises:
        BadInput: If they have another hash.
        WeightsUnusable: If a file is gone, cannot be read, or keeps changing.
    """
    # Made-up weights are no files.
    if weights.identity and file_state_identity(weights.files) != weights.identity:
        digest = _load_or_compute_stable_sha256(weights, progress)
        if digest != expected:
            raise BadInput(
                source=weights.path,
                reason="other weights than those that the sweep began with: sha256 "
                f"{digest[:_SHORT_HASH]}, was {expected[:_SHORT_HASH]}",
                hint="What has finished is kept. Put the earlier file back and sweep "
                "again, or choose another folder with --out.",
            )


def _load_or_compute_stable_sha256(weights: Weights, progress: Progress | None) -> str:
    """The hash of the files, whose identity is the same before and after reading."""
    for _ in range(_TRIES):
        identity = file_state_identity(weights.files)
        note = _note_path(identity)
        known = read_json_or_none(note, _Hash)
        digest = known.sha256 if known else _digest_of_files(weights, progress)
        # Repeated: making a link or a backup meanwhile changes the identity, too.
        if file_state_identity(weights.files) == identity:
            if not known:
                write_json_if_possible(
                    note, _Hash(replace_surrogates(str(weights.path)), digest)
                )
            return digest
    raise _changing_error(weights.path)


def _changing_error(path: Path) -> WeightsUnusable:
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


def _note_path(identity: str) -> Path:
    """Where the hash of files of this *identity* is kept."""
    data = identity.encode(errors="surrogateescape")
    name = hashlib.sha256(data).hexdigest()[:32]
    return cache_folder() / "weights" / f"{name}.json"


def _digest_of_files(weights: Weights, progress: Progress | None) -> str:
    """The hash of all files, one behind the other."""
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
            raise unreadable_error(path, error) from error
    return digest.hexdigest()
