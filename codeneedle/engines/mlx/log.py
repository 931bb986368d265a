"""What the child is told by variables, and what its log tells the parent."""

import json
import os
import re
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from codeneedle.engines.engine import (
    CellSpec,
    ChunkValues,
    Comparison,
    Estimate,
    Statistics,
)
from codeneedle.errors import CellError
from codeneedle.records.record import Effective, KvBuffer, Status, Trouble
from codeneedle.system import processes
from codeneedle.text import harmless, one_line

KEY_VARIABLE = "CODENEEDLE_MLX_KEY"
"""Environment variable from which the child takes the key of its requests."""

MARK = "codeneedle-mlx: "
"""How the lines begin that the parent reads; libraries write others."""

MOST_LOG_BYTES = 8 << 20
EXCERPT_LINES = 12

_MIB = 1 << 20
_OUT_OF_MEMORY = re.compile(
    r"unable to allocate|insufficient memory|out of memory|MemoryError|bad_alloc"
    r"|attempting to allocate",
    re.IGNORECASE,
)
_UNSUPPORTED = re.compile(
    r"divisible by the quantization group size|NotImplementedError"
    r"|requested (group size|bits)|not supported",
    re.IGNORECASE,
)
_RAISED = re.compile(r"^[A-Za-z_][\w.]*(Error|Exception|Exit|Interrupt)\b.*")

_Layout = TypeVar("_Layout")


def environment() -> dict[str, str]:
    """Of a child: it asks no server for models, and may use another BLAS."""
    offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    preloaded = {n: os.environ[n] for n in ("LD_PRELOAD",) if n in os.environ}
    return processes.clean(os.environ) | offline | preloaded


def line(kind: str, facts: Mapping[str, Any]) -> str:
    """A line of *kind*, without its line break."""
    return MARK + json.dumps({"kind": kind, **facts})


def read_log(path: Path) -> str:
    """The log so far; empty if there is none. Bytes that are no UTF-8 are U+FFFD."""
    try:
        with path.open("rb") as file:
            return file.read(MOST_LOG_BYTES).decode(errors="replace")
    except OSError:
        return ""


def told(log_text: str, kind: str) -> Iterator[dict[str, Any]]:
    """What the lines of *kind* say, in order; damaged ones are left out."""
    for each in log_text.splitlines():
        if not each.startswith(MARK):
            continue
        try:
            found = json.loads(each.removeprefix(MARK))
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict) and found.get("kind") == kind:
            yield found


def last(log_text: str, kind: str, layout: type[_Layout]) -> _Layout | None:
    """What the last line of *kind* says, as a *layout*; None if it does not fit."""
    found = None
    for each in told(log_text, kind):
        try:
            found = msgspec.convert(each, type=layout)
        except msgspec.ValidationError:
            found = None
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """
    The child is ready.

    Attributes:
        port: On loopback.
    """

    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """
    What MLX has allocated, in bytes.

    Attributes:
        active_bytes: After a reply.
        peak_bytes: At most, so far.
    """

    active_bytes: int
    peak_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCache:
    """
    The cache of one layer, as its arrays show it.

    Attributes:
        layer: Its number, from 0.
        class_name: Of the cache.
        k: Type of K; empty if it keeps none that can be quantized.
        v: Type of V; likewise.
        k_group_size: Values that share a scale; 0 if K is not quantized.
        v_group_size: Likewise of V.
        k_bytes_per_token: Memory of K by token.
        v_bytes_per_token: Memory of V by token.
        tokens: What it holds at most; None for the whole context.
    """

    layer: int
    class_name: str
    k: str = ""
    v: str = ""
    k_group_size: int = 0
    v_group_size: int = 0
    k_bytes_per_token: float = 0.0
    v_bytes_per_token: float = 0.0
    tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """
    What runs.

    Attributes:
        build: Versions of MLX and mlx-lm, and what computes.
        context: Tokens of a prompt and its reply.
        layers: The cache of each.
        quantized_kv_start: Tokens that stay as they are at first.
    """

    build: str
    context: int
    layers: tuple[LayerCache, ...]
    quantized_kv_start: int = 0


def what_runs(log_text: str) -> Told | None:
    """What the child says of its caches; None if it has not said it."""
    return last(log_text, "effective", Told)


def effective(log_text: str) -> Effective:
    """The same for a record: layers of one kind are one cache."""
    found = what_runs(log_text)
    if found is None:
        return Effective()
    held = [each for each in found.layers if each.k]
    kinds = groupby(
        sorted(held, key=lambda each: _kind(each, found.context)),
        key=lambda each: _kind(each, found.context),
    )
    return Effective(
        build=found.build,
        context=found.context,
        kv=tuple(_buffer(list(layers), found.context) for _, layers in kinds),
        devices=("CPU",) if found.build.endswith("cpu") else ("GPU",),
        unquantized=tuple(
            f"layer {each.layer}: {each.class_name}"
            for each in found.layers
            if not each.k
        ),
        quantized_kv_start=found.quantized_kv_start,
    )


def _kind(layer: LayerCache, context: int) -> tuple[str, str, str, int]:
    return layer.class_name, layer.k, layer.v, layer.tokens or context


def _buffer(layers: Sequence[LayerCache], context: int) -> KvBuffer:
    first = layers[0]
    cells = min(first.tokens or context, context)
    return KvBuffer(
        cells=cells,
        layers=len(layers),
        k_type=first.k,
        v_type=first.v,
        k_mib=round(cells * sum(e.k_bytes_per_token for e in layers) / _MIB, 4),
        v_mib=round(cells * sum(e.v_bytes_per_token for e in layers) / _MIB, 4),
        class_name=first.class_name,
        k_group_size=first.k_group_size,
        v_group_size=first.v_group_size,
        k_bytes_per_token=first.k_bytes_per_token,
        v_bytes_per_token=first.v_bytes_per_token,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """
    What a child is asked for.

    Attributes:
        cell: Pair and context.
        group_size: Of K and of V.
        quantized_kv_start: Tokens that stay as they are at first.
        max_kv_size: Tokens that a cache holds; None for all.
    """

    cell: CellSpec
    group_size: tuple[int, int]
    quantized_kv_start: int
    max_kv_size: int | None = None


def mismatches(asked: Asked, log_text: str) -> tuple[str, ...]:
    """In what the child differs from what was asked for, one phrase each."""
    found = what_runs(log_text)
    if found is None:
        return ("it does not say what its caches are",)
    return tuple(dict.fromkeys(_differences(asked, found)))


def _differences(asked: Asked, found: Told) -> Iterator[str]:
    if found.context != asked.cell.context:
        yield f"context {found.context} instead of {asked.cell.context}"
    if found.quantized_kv_start != asked.quantized_kv_start:
        start = found.quantized_kv_start
        yield f"quantized from token {start} on instead of {asked.quantized_kv_start}"
    held = [each for each in found.layers if each.k]
    if not held:
        yield "no layer keeps K and V that can be quantized"
    for each in held:
        yield from _layer_differences(asked, each)
    for each in found.layers:
        # Layers with a state instead of K and V have nothing to quantize.
        if not each.k and "KV" in each.class_name:
            yield f"layer {each.layer} keeps a {each.class_name}, not quantized"


def _layer_differences(asked: Asked, found: LayerCache) -> Iterator[str]:
    pair, size = asked.cell.pair, asked.max_kv_size
    if (found.k, found.v) != (pair.k, pair.v):
        yield f"K {found.k}, V {found.v} instead of {pair}"
    if size is not None and found.tokens is None:
        yield f"a cache of any size instead of {size:,} tokens"
    groups = (found.k_group_size, found.v_group_size)
    for runs, wanted in zip(groups, asked.group_size, strict=True):
        if runs not in {0, wanted}:
            yield f"group size {runs} instead of {wanted}"


def comparison(log_text: str) -> Comparison | None:
    """The statistics that the child ended with; None if it did not."""
    found = next(told(log_text, "statistics"), None)
    if found is None:
        return None
    chunks = [each["values"] for each in told(log_text, "chunk") if "values" in each]
    try:
        values = {
            name: Estimate(*value) if isinstance(value, list) else value
            for name, value in found["values"].items()
        }
        return Comparison(
            statistics=msgspec.convert(values, type=Statistics),
            tokens=int(found["tokens"]),
            by_chunk=msgspec.convert(chunks, type=tuple[ChunkValues, ...]),
        )
    except (msgspec.ValidationError, KeyError, TypeError, AttributeError):
        return None


def trouble(log_text: str, returncode: int) -> Trouble:
    """Why a child ended, by the end of its log and its exit code."""
    lines = [each for each in last_lines(log_text) if _RAISED.match(each)]
    reason = one_line(lines[-1]) if lines else _exit_cause(returncode)
    if returncode == -signal.SIGKILL or _OUT_OF_MEMORY.search(reason):
        return Trouble(Status.OUT_OF_MEMORY, reason)
    if _UNSUPPORTED.search(reason):
        return Trouble(Status.UNSUPPORTED, reason)
    return Trouble(Status.CRASHED, reason)


def died(returncode: int | None, log: Path) -> CellError:
    """The error for a child that has ended, or does not answer under its name."""
    log_text = read_log(log)
    found = trouble(log_text, returncode or 0)
    return CellError(
        f"mlx ended: {found.reason}",
        hint=f"The end of its log is in {log}.",
        status=found.status,
        log_excerpt=last_lines(log_text),
    )


def last_lines(log_text: str) -> tuple[str, ...]:
    """The last lines that are not for the parent, safe to show."""
    lines = (each for each in log_text.splitlines() if not each.startswith(MARK))
    shown = [harmless(each) for each in lines if each.strip()]
    return tuple(shown[-EXCERPT_LINES:])


def _exit_cause(returncode: int) -> str:
    if returncode == -signal.SIGKILL:
        return "killed by SIGKILL, most likely by the kernel's out-of-memory killer"
    if returncode < 0:
        return f"ended by signal {signal.Signals(-returncode).name}"
    return f"ended with exit code {returncode}, and its log does not say why"
