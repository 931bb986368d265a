"""
Parses llama.cpp's logs: which cache types, context, flash attention and devices run,
and which lines mean unsupported, out of memory, or attention without a kernel.
"""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from codeneedle.engines import exit_causes, reasons
from codeneedle.engines.reasons import printable_line_beginning
from codeneedle.records.record import (
    Attention,
    DeviceMemory,
    Effective,
    KvBuffer,
    Status,
    Trouble,
)
from codeneedle.system.files import masked_log_tail
from codeneedle.system.processes import END_BYTES, OMISSION
from codeneedle.text import MIB

_SHUTDOWN = "cleaning up before exit"
_STOPPED = "it received a termination signal from outside codeneedle"
_TAIL_BYTES = 16 << 10

_NEW_CONTEXT = "constructing llama_context"
"""Begins a context; a second one belongs to a draft model."""


def effective_settings(log_text: str) -> Effective:
    """
    The effective settings, from a log written with ``-lv 4``.

    If there is also a draft model, the first context counts.
    """
    everything = list(cleaned_lines(log_text))
    model = list(_lines_of_first_context(everything))
    return Effective(
        build=_last_group(_BUILD, everything),
        context=_context_length(everything),
        flash_attention=_flash_attention_state(model),
        kv=tuple(_kv_buffers(model, lazily=any(map(_LAZY.search, everything)))),
        rotation_k=_first_number(_ROTATION_K, model),
        rotation_v=_first_number(_ROTATION_V, model),
        offloaded_layers=_first_number(_OFFLOADED, everything),
        total_layers=_first_number(_OFFLOADABLE, everything),
        graph_splits=max(map(int, _first_groups(_SPLITS, model)), default=None),
        devices=tuple(dict.fromkeys(_first_groups(_KV_DEVICE, model))),
        compute_mib=_compute_mib(model),
        memory=tuple(_device_memory(everything, model)),
        recurrent_bytes=sum(_recurrent_bytes(model)),
        threads=_first_number(_THREADS, everything),
        **_attention_fields(everything),
    )


def find_trouble(log_text: str) -> Trouble | None:
    """Why the program failed, by the line of its log that tells most; None if none."""
    return _find_known_trouble(log_text) or reasons.find_most_telling_trouble(
        cleaned_lines(log_text)
    )


def cause(log_text: str, returncode: int) -> Trouble:
    """
    Why the program ended, by its log and *returncode*; see `subprocess.Popen`.

    What has a meaning of its own first, then signals, then complaints.
    """
    complaint = reasons.find_most_telling_trouble(cleaned_lines(log_text))
    if _SHUTDOWN in log_text and (returncode == 0 or complaint is None):
        complaint = Trouble(Status.CRASHED, _STOPPED)
    return _find_known_trouble(log_text) or exit_causes.exit_cause(
        returncode, complaint
    )


def _find_known_trouble(log_text: str) -> Trouble | None:
    """The first of `_TROUBLES` that a line shows; None without any."""
    return reasons.find_trouble_by_signs(_TROUBLES, cleaned_lines(log_text))


def setting_lines(log_text: str) -> tuple[str, ...]:
    """The lines that state cache types, context, flash attention and offload."""
    signs = (_KV, _FLASH, _FLASH_RESOLVED, _OFFLOADED, *_CONTEXTS)
    telling = [
        line for line in cleaned_lines(log_text) if any(s.search(line) for s in signs)
    ]
    return tuple(dict.fromkeys(" ".join(line.split()) for line in telling))


def last_lines(log_text: str) -> tuple[str, ...]:
    """The last lines of a log, without those that never explain a failure."""
    return exit_causes.last_lines(
        line
        for line in cleaned_lines(log_text)
        if not any(noise in line for noise in _NOISE)
    )


def cleaned_lines(log_text: str) -> Iterator[str]:
    """The beginnings of lines that are not blank: printable, without time stamps."""
    for shown in map(printable_line_beginning, log_text.splitlines()):
        if shown and not shown.isspace():
            yield _PREFIX.sub("", shown)


COMMAND_SIGN = "$ "
"""Before the command with which the log of a server begins."""


def is_shutting_down(path: Path) -> bool:
    """Whether the end of a server's log says that it is shutting down."""
    return _SHUTDOWN in masked_log_tail(path, _TAIL_BYTES)


def read_log(path: Path, *, end_bytes: int = END_BYTES) -> str:
    """
    The first and last *end_bytes* of a log; empty if it cannot be read.

    Without the command that it begins with: paths may hold any words.
    """
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            text = file.read(end_bytes)
            if size - len(text) > end_bytes:
                file.seek(size - end_bytes)
                text += OMISSION
            text += file.read(end_bytes)
    except OSError:
        return ""
    shown = text.decode(errors="replace")
    return shown.partition("\n")[2] if shown.startswith(COMMAND_SIGN) else shown


_PREFIX = re.compile(r"^.*?(?<![\d.])\d+\.\d\d\.\d{3}\.\d{3} [IWED] ")
"""A time stamp, and what the runtime of C++ writes before it while it aborts."""

_NOISE = ("memory_breakdown", "cleaning up before exit", "to show complete usage")

COUNT = r"\d{1,15}(?!\d)"
_MIB = r"\d{1,15}(?:\.\d+)?"
"""Numbers as a server writes them: no more digits than a float can tell apart."""

_BUILD = re.compile(r"\bbuild:? (\d+ \([^)]*\))")
_CONTEXTS = (
    re.compile(rf"\bn_ctx_slot = ({COUNT})"),
    re.compile(rf"\bn_ctx(?:_seq|_per_seq)\s+= ({COUNT})"),
    re.compile(rf"llama_context: n_ctx\s+= ({COUNT})"),
)
_FLASH = re.compile(r"\bflash_attn\s+= (\w+)")
_FLASH_RESOLVED = re.compile(
    r"Flash Attention (?:was auto, set to |not supported, set to )?(enabled|disabled)"
)
_KV = re.compile(
    rf"llama_kv_cache\w*: size =\s*{_MIB} MiB "
    rf"\(\s*({COUNT}) cells,\s*({COUNT}) layers,[^)]*\), "
    rf"K \((\w+)\):\s*({_MIB}) MiB, V \((\w+)\):\s*({_MIB}) MiB"
)
_LAZY = re.compile(r"lazy[ _-]?quant|kv_cache\w*:.*\blazy", re.IGNORECASE)
"""Of a build whose q8_0 is f16 until the cache is half full: llama.cpp #28267."""

_KV_DEVICE = re.compile(r"llama_kv_cache\w*:\s+(\S+) KV buffer size =")
_ROTATION_K = re.compile(rf"\b(?:n|attn)_rot_k = ({COUNT})")
_ROTATION_V = re.compile(rf"\b(?:n|attn)_rot_v = ({COUNT})")
_OFFLOADED = re.compile(rf"offloaded ({COUNT})/{COUNT} layers to GPU")
_OFFLOADABLE = re.compile(rf"offloaded {COUNT}/({COUNT}) layers to GPU")
_SPLITS = re.compile(rf"\bsplits = ({COUNT})")
_COMPUTE = re.compile(rf"(?<!\S)(\S+)\s+compute buffer size =\s*({_MIB}) MiB")
_BUFFER = re.compile(
    rf"(?<!\S)(\S+)\s+(?:DSV4 \w+ )?(model|KV|RS|state|compute|output) buffer size "
    rf"=\s*({_MIB}) MiB"
)
_OF_CONTEXT = ("KV", "RS", "state")
"""Buffers that grow with a context, or stand beside its cache."""

_RECURRENT = re.compile(
    rf"(?:llama_memory_recurrent\w*: size|DSV4 \S+ state buffer size) =\s*({_MIB}) MiB"
)
_THREADS = re.compile(rf"\bn_threads = ({COUNT})")

_TROUBLES: reasons.Signs = (
    (
        Status.UNSUPPORTED,
        re.compile(
            r"Unsupported cache type"
            r"|V cache (?:quantization )?(?:was requested, but this )?requires"
            r" flash(?:_attn| attention)"
            r"|block size \d+ does not divide"
            r"|model does not support different K"
            r"|cannot run the operation \(SET_ROWS\)"
            # Of builds that split no quantized cache by tensors, and some models.
            r"|SPLIT_MODE_TENSOR (?:and|requires|not)"
            # What splits by tensors has no rule for a block of this type.
            r"|GGML_ASSERT\(.*SPLIT_AXIS_UNKNOWN\)",
            re.IGNORECASE,
        ),
    ),
    (Status.OUT_OF_MEMORY, reasons.MEMORY),
    (Status.CRASHED, re.compile(r"gguf_init_from_\w+: (?:invalid|failed|bad|un)")),
    (
        Status.CRASHED,
        re.compile(
            r"couldn't bind|address already in use|error while handling argument"
            r"|invalid argument|unknown argument|error loading model|GGML_ASSERT"
            r"|Thread creation failed",
            re.IGNORECASE,
        ),
    ),
)
"""What has a meaning of its own, most specific first."""

_ATTENTION = (
    (
        Attention.PLAIN,
        re.compile(
            r"flash[ _]att(?:n|ention)\b.*\bforc(?:ing|ed) (?:it )?(?:to )?off",
            re.IGNORECASE,
        ),
    ),
    (Attention.CONVERTED, re.compile(r"converting K and V to f16")),
    (Attention.CPU, re.compile(r"Flash Attention (tensor )?is assigned to device CPU")),
)
"""Lines that tell where attention runs if not in a kernel; some at the first token."""


def _lines_of_first_context(everything: Iterable[str]) -> Iterator[str]:
    """The lines up to the second context, which is that of a draft model."""
    contexts = 0
    for line in everything:
        contexts += _NEW_CONTEXT in line
        if contexts > 1:
            return
        yield line


def _kv_buffers(lines: Iterable[str], *, lazily: bool) -> Iterator[KvBuffer]:
    """The KV caches; if quantized *lazily*, q8_0 is called ``q8_0, f16 at first``."""
    names = {"q8_0": "q8_0, f16 at first"} if lazily else {}
    for line in lines:
        match = _KV.search(line)
        if match:
            cells, layers, k_type, k_mib, v_type, v_mib = match.groups()
            yield KvBuffer(
                cells=int(cells),
                layers=int(layers),
                k_type=names.get(k_type, k_type),
                v_type=names.get(v_type, v_type),
                k_mib=float(k_mib),
                v_mib=float(v_mib),
            )


def _context_length(lines: Sequence[str]) -> int | None:
    """Context of a slot, else of a sequence, else of all; None if none is told."""
    for pattern in _CONTEXTS:
        context = _first_number(pattern, lines)
        if context is not None:
            return context
    return None


def _flash_attention_state(lines: Sequence[str]) -> str | None:
    """``enabled``, ``disabled``, or what was asked for (``auto``); None if untold."""
    # Some models have it switched off although it was asked for.
    return _last_group(_FLASH_RESOLVED, lines) or _last_group(_FLASH, lines)


def _compute_mib(lines: Iterable[str]) -> float | None:
    """Compute buffers of all devices, in MiB, each as told last; None if untold."""
    sizes: dict[str, float] = {}
    for line in lines:
        match = _COMPUTE.search(line)
        if match:  # a graph that is reserved again says so again
            sizes[match[1]] = float(match[2])
    return round(sum(sizes.values()), 2) if sizes else None


def _device_memory(
    everything: Iterable[str], first_context: Iterable[str]
) -> Iterator[DeviceMemory]:
    """
    The buffers of each device, in bytes.

    Those of the weights add up, as a split model has several; those of the graph are
    stated again when it is reserved again. A draft model's, behind the lines of the
    *first_context*, are left out, but for weights.
    """
    sizes: dict[str, dict[str, float]] = {}
    of_model = (
        buffer for buffer in _device_kind_and_mib(everything) if buffer[1] == "model"
    )
    of_context = (
        buffer for buffer in _device_kind_and_mib(first_context) if buffer[1] != "model"
    )
    for device, kind, mib in (*of_model, *of_context):
        of_device = sizes.setdefault(device, {})
        again = kind in {"compute", "output"}
        of_device[kind] = mib + (0.0 if again else of_device.get(kind, 0.0))
    for device, of_device in sizes.items():
        known = {kind: round(mib * MIB) for kind, mib in of_device.items()}
        yield DeviceMemory(
            device=device,
            weights=known.get("model", 0),
            context=sum(known.get(kind, 0) for kind in _OF_CONTEXT),
            compute=known.get("compute", 0) + known.get("output", 0),
        )


def _device_kind_and_mib(lines: Iterable[str]) -> Iterator[tuple[str, str, float]]:
    """Device, kind and size in MiB of each buffer."""
    for line in lines:
        match = _BUFFER.search(line)
        if match:
            yield match[1], match[2], float(match[3])


def _recurrent_bytes(lines: Iterable[str]) -> Iterator[int]:
    """Sizes of recurrent states, in bytes."""
    for mib in _first_groups(_RECURRENT, lines):
        yield round(float(mib) * MIB)


def _attention_fields(lines: Sequence[str]) -> dict[str, Any]:
    """The fields of `Effective` on attention that a line tells; empty if none does."""
    for attention, sign in _ATTENTION:
        for line in lines:
            if sign.search(line):
                evidence = " ".join(line.split())
                return {"attention": attention, "attention_evidence": evidence}
    return {}


def _first_groups(pattern: re.Pattern[str], lines: Iterable[str]) -> Iterator[str]:
    """The first group of *pattern* in each line that matches, in order."""
    for line in lines:
        match = pattern.search(line)
        if match:
            yield match.group(1)


def _last_group(pattern: re.Pattern[str], lines: Iterable[str]) -> str | None:
    """The last of `_first_groups`; None without any."""
    return next(iter([*_first_groups(pattern, lines)][::-1]), None)


def _first_number(pattern: re.Pattern[str], lines: Iterable[str]) -> int | None:
    """The first of `_first_groups`, a whole number; None without any."""
    number = next(_first_groups(pattern, lines), None)
    return None if number is None else int(number)
