"""
The log of the child process: lines that the parent reads, what its caches are beside
those asked for, why it ended; and the variables that it gets.
"""

import contextlib
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import TypeVar

import msgspec

from codeneedle.engines import exit_causes, mismatch, reasons
from codeneedle.engines.engine import CellSpec
from codeneedle.engines.exit_causes import Died
from codeneedle.engines.llama_cpp.base_file import BaseFileStatistics, Lengths
from codeneedle.engines.mismatch import RequestedSettings
from codeneedle.engines.mlx.settings import MlxSettings
from codeneedle.engines.tools import Comparison
from codeneedle.records.record import Effective, KvBuffer, Status, Trouble
from codeneedle.system.inherited_variables import inherited_variables
from codeneedle.text import MIB

KEY_VARIABLE = "CODENEEDLE_MLX_KEY"
"""Environment variable from which the child takes the key of its requests."""

MARK = "codeneedle-mlx: "
"""How the lines begin that the parent reads; libraries write others."""

MOST_LOG_BYTES = 8 << 20

_LACKS = ((Status.OUT_OF_MEMORY, reasons.MEMORY),)
_UNSUPPORTED = re.compile(
    r"divisible by the quantization group size|NotImplementedError"
    r"|requested (group size|bits)|not support",
    re.IGNORECASE,
)


def child_environment() -> dict[str, str]:
    """Variables of a child: it asks no server for models, and may use another BLAS."""
    offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    preloaded = {n: os.environ[n] for n in ("LD_PRELOAD",) if n in os.environ}
    return inherited_variables() | offline | preloaded


class LogEvent(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag=str.lower
):
    """What a line of the log says, beside others that libraries write."""


class Memory(LogEvent, frozen=True, kw_only=True):
    """What MLX has allocated."""

    peak_bytes: int  # at most, so far
    active_bytes: int = 0
    """For what is in use now: weights and caches, between requests."""


class LayerCache(msgspec.Struct, frozen=True, kw_only=True):
    """The cache of one layer, as its arrays show it."""

    layer: int  # its number, from 0
    class_name: str  # of the cache
    k: str = ""  # type of K; empty if it keeps none that can be quantized
    v: str = ""  # type of V; empty if it keeps none that can be quantized
    k_group_size: int = 0  # values that share a scale; 0 if K is not quantized
    v_group_size: int = 0  # values that share a scale; 0 if V is not quantized
    k_bytes_per_token: float = 0.0  # memory of K by token
    v_bytes_per_token: float = 0.0  # memory of V by token
    tokens: int | None = None  # what it holds at most; None for the whole context


class Running(LogEvent, frozen=True, kw_only=True):
    """What runs."""

    build: str  # versions of MLX and mlx-lm, and what computes
    context: int  # tokens of a prompt and its reply
    layers: tuple[LayerCache, ...]  # the cache of each
    quantized_kv_start: int  # tokens that stay as they are at first
    rope_factor: float | None = None
    """By which positions are stretched; None if they are not."""


class Short(LogEvent, frozen=True, kw_only=True):
    """A text is too short to be compared."""

    lengths: Lengths


class ChunkRead(LogEvent, frozen=True, kw_only=True):
    """A chunk of a text has been read."""


class Wrote(LogEvent, frozen=True, kw_only=True):
    """The distributions of the reference are in the base file."""

    base: BaseFileStatistics


class NanComputed(LogEvent, frozen=True, kw_only=True):
    """A scored token has NaN; nothing is computed behind it."""

    token: int  # its number in the text, from 1


class TextCompared(LogEvent, frozen=True, kw_only=True):
    """All chunks are compared with the reference."""

    comparison: Comparison


class Speed(LogEvent, frozen=True, kw_only=True):
    """One repetition of both tests."""

    pp: float  # reading speed, in tokens per second
    tg: float  # writing speed
    peak_bytes: int  # most memory that MLX has allocated so far


_KINDS = (
    Memory | Running | Short | ChunkRead | Wrote | NanComputed | TextCompared | Speed
)
_decoder = msgspec.json.Decoder(_KINDS)
_Kind = TypeVar("_Kind", bound=LogEvent)


def emit(line: LogEvent) -> None:
    """Write *line* to the log at once: the process that started this one reads it."""
    sys.stdout.write(f"{MARK}{msgspec.json.encode(line).decode()}\n")
    sys.stdout.flush()


def read_log(path: Path) -> str:
    """
    The log so far, its first `MOST_LOG_BYTES` at most; empty if there is none.

    Bytes that are no UTF-8 are U+FFFD.
    """
    try:
        with path.open("rb") as file:
            return file.read(MOST_LOG_BYTES).decode(errors="replace")
    except OSError:
        return ""


def events_of_kind(log_text: str, kind: type[_Kind]) -> list[_Kind]:
    """The lines of *kind*, in order; damaged ones are left out."""
    stated = []
    for log_line in log_text.splitlines():
        if log_line.startswith(MARK):
            with contextlib.suppress(msgspec.DecodeError, RecursionError):
                stated.append(_decoder.decode(log_line.removeprefix(MARK)))
    return [line for line in stated if isinstance(line, kind)]


def last_event(log_text: str, kind: type[_Kind]) -> _Kind | None:
    """The last line of *kind*; None if there is none."""
    stated = events_of_kind(log_text, kind)
    return stated[-1] if stated else None


def running_settings(log_text: str) -> Effective:
    """
    What runs, for a record: layers of one kind are one cache.

    Nothing is known before the child says so.
    """
    running = last_event(log_text, Running)
    if running is None:
        return Effective()
    held = [layer for layer in running.layers if layer.k]
    kinds = groupby(
        sorted(held, key=lambda layer: _cache_group_key(layer, running.context)),
        key=lambda layer: _cache_group_key(layer, running.context),
    )
    return Effective(
        build=running.build,
        context=running.context,
        kv=tuple(
            _kv_buffer_of_layers(list(layers), running.context) for _, layers in kinds
        ),
        devices=("CPU",) if running.build.endswith("cpu") else ("GPU",),
        unquantized=tuple(
            f"layer {layer.layer}: {layer.class_name}"
            for layer in running.layers
            if not layer.k
        ),
        quantized_kv_start=running.quantized_kv_start,
    )


def _cache_group_key(layer: LayerCache, context: int) -> tuple[str, str, str, int]:
    """What layers of one cache have in common."""
    return layer.class_name, layer.k, layer.v, layer.tokens or context


def _kv_buffer_of_layers(layers: Sequence[LayerCache], context: int) -> KvBuffer:
    """One cache of *layers*, which are of one kind; sizes of all of them."""
    first = layers[0]
    cells = min(first.tokens or context, context)
    return KvBuffer(
        cells=cells,
        layers=len(layers),
        k_type=first.k,
        v_type=first.v,
        k_mib=round(cells * sum(e.k_bytes_per_token for e in layers) / MIB, 4),
        v_mib=round(cells * sum(e.v_bytes_per_token for e in layers) / MIB, 4),
        class_name=first.class_name,
        k_group_size=first.k_group_size,
        v_group_size=first.v_group_size,
        k_bytes_per_token=first.k_bytes_per_token,
        v_bytes_per_token=first.v_bytes_per_token,
    )


def differences(
    cell: CellSpec, settings: MlxSettings, log_text: str
) -> tuple[str, ...]:
    """
    In what the child differs from *cell* and *settings*, one phrase each.

    One that does not say what its caches are differs in that.
    """
    running = last_event(log_text, Running)
    if running is None:
        return ("it does not say what its caches are",)
    asked = RequestedSettings(pair=cell.pair, context=cell.context)
    own = _differences(settings, running)
    common = mismatch.differences(asked, running_settings(log_text))
    return tuple(dict.fromkeys((*common, *own)))


def _differences(settings: MlxSettings, running: Running) -> Iterator[str]:
    """In what caches differ from *settings*, a phrase each; of layers, repeated."""
    start = settings.quantized_kv_start
    if running.quantized_kv_start != start:
        yield f"quantized from token {running.quantized_kv_start} on, not {start}"
    if running.rope_factor != settings.rope_factor:
        wanted = settings.rope_factor or "none"
        yield f"the rope factor is {running.rope_factor or 'none'}, not {wanted}"
    size = settings.max_kv_size
    for layer in running.layers:
        if layer.k and size is not None and layer.tokens is None:
            yield f"the cache has any size, not {size:,} tokens"
        groups = (layer.k_group_size, layer.v_group_size)
        for runs, group in zip(groups, settings.group_sizes, strict=True):
            if layer.k and runs not in {0, group}:
                yield f"the group size is {runs}, not {group}"
        # Layers with a state instead of K and V have nothing to quantize.
        if not layer.k and "KV" in layer.class_name:
            yield f"layer {layer.layer} keeps a {layer.class_name}, not quantized"


def cause(log_text: str, returncode: int) -> Trouble:
    """
    Why a child ended, by its log and its exit code.

    A lack of memory first, then the last complaint, which may say "unsupported".
    """
    own = list(_lines_without_events(log_text))
    if lack := reasons.find_trouble_by_signs(_LACKS, own):
        return lack
    complaint = reasons.find_most_telling_trouble(own)
    if complaint and _UNSUPPORTED.search(complaint.reason):
        complaint = replace(complaint, status=Status.UNSUPPORTED)
    return exit_causes.exit_cause(returncode, complaint)


def error_of_end(returncode: int, log: Path) -> Died:
    """The error for a child that has ended."""
    log_text = read_log(log)
    return Died(
        "mlx",
        returncode=returncode,
        log=log,
        cause=cause(log_text, returncode),
        excerpt=last_lines(log_text),
    )


def last_lines(log_text: str) -> tuple[str, ...]:
    """The last lines that are not for the parent, safe to show."""
    return exit_causes.last_lines(_lines_without_events(log_text))


def _lines_without_events(log_text: str) -> Iterator[str]:
    """The lines of a log that are not for the parent."""
    return (line for line in log_text.splitlines() if not line.startswith(MARK))
