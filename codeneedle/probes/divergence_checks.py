"""Why distributions could not be compared, found out before a cell starts."""

from collections.abc import Sequence
from pathlib import Path

from codeneedle import basefile, machine
from codeneedle.basefile import LEAST_SCORED, BaseFile, scored_tokens
from codeneedle.errors import MachineError, RequestError
from codeneedle.planning import Plan, is_stretched
from codeneedle.units import plural
from codeneedle.units import size as size_phrase

SPARE_BYTES = 64 << 20
"""Disk that logs and records may need beside the base files."""

FIRST_WIDE_BUILD = 9512
"""
A build of 2026-06-04, with 64-bit sizes of the base file.

They came on 2026-05-24 (llama.cpp #23496 and #23623); b9292 of the day before still
crashes. A build between the two may be refused without need.
"""


class PerplexityMissing(MachineError):  # noqa: N818 - named after the fact
    """No llama-perplexity beside the llama-server in use."""

    def __init__(self, *, server: Path) -> None:
        super().__init__(
            f"there is no llama-perplexity beside {server}",
            hint="Build both with 'codeneedle llama', or point --llama-server at an "
            "installation that has it, or leave out --probe divergence.",
        )


class TextUnreadable(RequestError):  # noqa: N818 - named after the fact
    """The file named with ``--text`` is no text that could be read."""

    def __init__(self, *, path: Path, reason: str) -> None:
        super().__init__(
            f"--text {path}: {reason}",
            hint="Name a plain text file, or leave --text out to use the corpus.",
        )


class TextTooShort(RequestError):  # noqa: N818 - named after the fact
    """The tool wants two chunks of text, or those that were asked for."""

    def __init__(self, *, name: str, has: int, needed: int, context: int) -> None:
        super().__init__(
            f"{name} has at most {has:,} tokens; to compare distributions at "
            f"{context:,} tokens takes {needed:,}",
            hint=f"Use --divergence-context {max(1, has // 2)} or less, fewer "
            "--chunks, or a longer --text.",
        )


class TooFewScored(RequestError):  # noqa: N818 - named after the fact
    """Fewer tokens than the tool makes statistics of."""

    def __init__(self, *, chunks: int, context: int) -> None:
        scored = scored_tokens(chunks=chunks, context=context)
        super().__init__(
            f"{plural(chunks, 'chunk')} of {context:,} tokens score {scored} tokens; "
            f"llama-perplexity makes no statistics of fewer than {LEAST_SCORED}",
            hint="Use more --chunks, a larger --divergence-context or a longer --text.",
        )


class DivergenceContextTooLong(RequestError):  # noqa: N818 - named after the fact
    """More tokens than the weights were trained for."""

    def __init__(self, *, context: int, trained: int) -> None:
        super().__init__(
            f"--divergence-context {context:,} exceeds the {trained:,} tokens that "
            "these weights were trained for",
            hint=f"Use --divergence-context {trained} or less.",
        )


class SizeOverflows(MachineError):  # noqa: N818 - named after the fact
    """An old llama-perplexity counts this base file with 32 bits."""

    def __init__(self, *, context: int, vocabulary: int, build: int) -> None:
        values = basefile.row_values(vocabulary)
        super().__init__(
            f"llama-perplexity of build {build} crashes at a context of {context:,}: "
            f"{context:,} x {values:,} (vocabulary) = {context * values:,} is not "
            f"below 2^31",
            hint=f"Use --divergence-context {(2**31 - 1) // values} or less, or a "
            f"llama.cpp of build {FIRST_WIDE_BUILD} or later: 'codeneedle llama'.",
        )


class NoRoomForBase(MachineError):  # noqa: N818 - named after the fact
    """The base files would not fit on the disk."""

    def __init__(self, *, needed: int, free: int, folder: Path) -> None:
        super().__init__(
            f"the base files take {size_phrase(needed)}, and {folder} has "
            f"{size_phrase(free)} free",
            hint="Use fewer --chunks, a smaller --divergence-context, or a disk with "
            "more room: --out.",
        )


def check(plan: Plan, name: str, text_size: int, *, context: int, chunks: int) -> None:
    """
    Stop at what could not be compared at one context.

    Args:
        plan: Weights, build, and arguments that stretch a context on purpose.
        name: Of the text.
        text_size: Its length, in bytes.
        context: Length of a chunk, in tokens.
        chunks: How many.

    Raises:
        DivergenceContextTooLong: If the weights were not trained for it.
        TextTooShort: If the text cannot have enough tokens.
        TooFewScored: If the tool would make no statistics.
        SizeOverflows: If the tool is too old for it.
    """
    trained = plan.weights.training_context
    if trained and context > trained and not is_stretched(plan.request):
        raise DivergenceContextTooLong(context=context, trained=trained)
    # No tokenizer makes more tokens than bytes, but for one or two at the start.
    needed = max(2, chunks) * context
    if text_size + 2 < needed:
        raise TextTooShort(name=name, has=text_size, needed=needed, context=context)
    if scored_tokens(chunks=chunks, context=context) < LEAST_SCORED:
        raise TooFewScored(chunks=chunks, context=context)
    _check_overflow(plan, context)


def _check_overflow(plan: Plan, context: int) -> None:
    # Builds from an archive call themselves 0: nothing is known of their age.
    build = plan.server.build or FIRST_WIDE_BUILD
    vocabulary = plan.weights.vocabulary
    overflows = context * basefile.row_values(vocabulary) >= 2**31
    if overflows and build < FIRST_WIDE_BUILD:
        raise SizeOverflows(context=context, vocabulary=vocabulary, build=build)


def check_disk(plan: Plan, sizes: Sequence[tuple[int, int]]) -> None:
    """
    Stop if the base files would not fit on the disk.

    Args:
        plan: Weights, and the run folder.
        sizes: Context and chunks of each base file.

    Raises:
        NoRoomForBase: If they would not.
    """
    needed = 0
    for context, chunks in sizes:
        size = basefile.predicted_bytes(
            vocabulary=plan.weights.vocabulary, chunks=chunks, context=context
        )
        needed += max(
            0, size - BaseFile.of(plan.store.folder, context=context).present_bytes()
        )
    free = machine.free_disk_bytes(plan.store.folder)
    if needed + SPARE_BYTES > free:
        raise NoRoomForBase(needed=needed, free=free, folder=plan.store.folder)
