"""What a comparison of distributions is made of, checked before a cell starts."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import msgspec

from codeneedle import process
from codeneedle.planning import Plan
from codeneedle.probes.divergence_arguments import shared_arguments
from codeneedle.probes.divergence_checks import (
    PerplexityMissing,
    TextUnreadable,
    check,
    check_disk,
)
from codeneedle.records import BadRecord, Json
from codeneedle.units import size as size_phrase

DEFAULT_CONTEXT = 4096
"""Tokens, where text and training allow it; more than the 512 that hide so much."""

SMALLEST_DEFAULT_CONTEXT = 256
DEFAULT_CHUNKS = 8

BYTES_PER_TOKEN = 4
"""Of English and code, roughly; only for the choice of a default context."""

MAX_TEXT_BYTES = 256 << 20
"""The tool reads and tokenizes all of a text, however few chunks it computes."""

_ASK_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """
    What must be equal for divergences to be comparable.

    Attributes:
        contexts: Lengths of chunks, in tokens; the first is the headline's.
        chunks: Chunks at each of them, at most.
        text: Name of the text.
        text_sha256: Of the text, as it is handed to the tool.
        llama: The tool's version, as it states it.
        arguments: Of the arguments for llama-server, those the tool takes too.
        ignored: The others, which change nothing here.
    """

    contexts: tuple[int, ...]
    chunks: tuple[int, ...]
    text: str
    text_sha256: str
    llama: str
    arguments: tuple[str, ...]
    ignored: tuple[str, ...]


def settings(plan: Plan, text: str) -> Json:
    """
    What *plan* compares distributions on, checked as far as can be without a model.

    Args:
        plan: Tool, weights, request.
        text: The corpus as it is sent; used unless the request names a text.

    Raises:
        PerplexityMissing: If the tool is.
        TextUnreadable: If ``--text`` is no text.
        TextTooShort: If it cannot have enough tokens.
        TooFewScored: If the tool would make no statistics.
        DivergenceContextTooLong: If the weights were not trained for a context.
        SizeOverflows: If the tool is too old for this vocabulary and context.
        NoRoomForBase: If the base files do not fit on the disk.
    """
    if plan.tools.perplexity is None:
        raise PerplexityMissing(server=plan.tools.server)
    data = text_bytes(plan, text)
    contexts = chosen_contexts(plan, len(data))
    arguments, ignored = shared_arguments(plan.request.server_args)
    chosen = Settings(
        contexts=contexts,
        chunks=tuple(_chunks(plan, context, len(data)) for context in contexts),
        text=text_name(plan),
        text_sha256=hashlib.sha256(data).hexdigest(),
        llama=tool_version(plan.tools.perplexity),
        arguments=arguments,
        ignored=ignored,
    )
    sizes = list(zip(chosen.contexts, chosen.chunks, strict=True))
    for context, chunks in sizes:
        check(plan, chosen.text, len(data), context=context, chunks=chunks)
    check_disk(plan, sizes)
    stored: Json = msgspec.json.decode(msgspec.json.encode(chosen), type=Json)
    return stored


def read_settings(stored: Json, *, file: str) -> Settings:
    """
    Read what `settings` returned.

    Raises:
        BadRecord: If it is something else.
    """
    try:
        return msgspec.convert(stored, type=Settings)
    except msgspec.ValidationError as error:
        raise BadRecord(file=file, reason=str(error)) from error


def text_bytes(plan: Plan, text: str) -> bytes:
    """
    The text to compare on: the file asked for, else the corpus as it is sent.

    Raises:
        TextUnreadable: If the file is none, or too large.
    """
    path = plan.request.text
    if path is None:
        return text.encode()
    try:
        if not path.is_file():
            reason = "it is a folder" if path.is_dir() else "there is no such file"
            raise TextUnreadable(path=path, reason=reason)
        if path.stat().st_size > MAX_TEXT_BYTES:
            reason = f"it has more than {size_phrase(MAX_TEXT_BYTES)}"
            raise TextUnreadable(path=path, reason=reason)
        return path.read_bytes()
    except OSError as error:
        reason = error.strerror or str(error)
        raise TextUnreadable(path=path, reason=reason) from error


def text_name(plan: Plan) -> str:
    """What the text is called: the name of its file, else the corpus'."""
    return plan.request.text.name if plan.request.text else plan.corpus.name


def chosen_contexts(plan: Plan, text_size: int) -> tuple[int, ...]:
    """
    The contexts asked for, else one for which the text most likely suffices.

    Args:
        plan: Request, weights and the context of the sweep.
        text_size: Length of the text, in bytes.
    """
    if plan.request.divergence_contexts:
        return tuple(dict.fromkeys(plan.request.divergence_contexts))
    trained = plan.weights.training_context or DEFAULT_CONTEXT
    context = min(DEFAULT_CONTEXT, trained, plan.context)
    tokens = text_size // (1 if plan.is_built_in else BYTES_PER_TOKEN)
    while 2 * context > tokens and context // 2 >= SMALLEST_DEFAULT_CONTEXT:
        context //= 2
    return (context,)


def tool_version(tool: Path) -> str:
    """
    What llama-perplexity calls itself; ``unknown`` if it does not tell.

    Raises:
        MachineError: If it cannot be started, or hangs.
    """
    answer = process.output_of((str(tool), "--version"), timeout_s=_ASK_TIMEOUT_S)
    for line in f"{answer.stdout}\n{answer.stderr}".splitlines():
        if line.startswith("version:"):
            return line.removeprefix("version:").strip()
    return "unknown"


def _chunks(plan: Plan, context: int, text_size: int) -> int:
    """Chunks at *context*; of a short text fewer, but not of those asked for."""
    if plan.request.chunks is not None:
        return plan.request.chunks
    return min(DEFAULT_CHUNKS, max(2, text_size // max(1, context)))
