"""Runs llama-perplexity on one pair and one context, watched until it is through."""

import contextlib
import os
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from codeneedle import environment, perplexitylog, serverlog
from codeneedle.clock import Lived
from codeneedle.engine.claim import noted
from codeneedle.engine.endings import Mismatched, how, without_words
from codeneedle.engine.launch import ALL_LAYERS, OFFLOAD, ROTATION_VARIABLE
from codeneedle.engine.logfile import read_log
from codeneedle.errors import CellError
from codeneedle.grid import Pair
from codeneedle.machine import usable_cores
from codeneedle.mismatches import Asked, mismatches
from codeneedle.process import ends_within
from codeneedle.records import Status

LOOK_S = 0.2
"""Between looks at how far the tool is."""

LONGEST_LOOK_S = 10.0
"""What is longer between two looks was not lived through: we were suspended."""

SILENCE_S = 3600.0
"""How long it may write nothing: of a large model, a chunk may take the better part."""

BATCH = 2048
"""Tokens handed over at once, at most: the tool's own default. With more than a
context, it would compute several chunks side by side, in a cache of another shape."""

OPTIONAL: tuple[tuple[str, ...], ...] = (
    ("--verbosity", "4"),  # below, the log names no cache types
    ("--fit", "off"),  # fits unset arguments to free memory, pair by pair
    ("--offline",),
)
"""Arguments for those builds that have them."""


class PerplexityDied(CellError):  # noqa: N818 - named after the fact
    """The tool ended badly."""

    def __init__(self, *, returncode: int, log: Path, log_text: str) -> None:
        found = serverlog.trouble(log_text)
        if found is None:
            silent, failure = without_words(returncode), perplexitylog.failure(log_text)
            found = replace(silent, reason=failure or silent.reason)
        super().__init__(
            f"llama-perplexity ended with {how(returncode)}: {found.reason}",
            hint=f"Its last words are in {log}.",
        )
        self.status = found.status.value
        self.log_excerpt = serverlog.last_words(log_text)


class PerplexityHangs(CellError):  # noqa: N818 - named after the fact
    """The tool lives, and says nothing any more."""

    status = Status.TIMED_OUT.value

    def __init__(self, *, silence_s: float, log: Path, log_text: str) -> None:
        super().__init__(
            f"llama-perplexity has written nothing for {silence_s:g} s",
            hint=f"See {log}. Does the pair lack a kernel on this device?",
        )
        self.log_excerpt = serverlog.last_words(log_text)


class NoStatistics(CellError):  # noqa: N818 - named after the fact
    """The tool said that all was well, and left out what it was asked for."""

    def __init__(self, *, log: Path, log_text: str) -> None:
        found = serverlog.trouble(log_text)
        reason = perplexitylog.failure(log_text) or (found.reason if found else "")
        super().__init__(
            "llama-perplexity ended without complete statistics: "
            f"{reason or 'it does not say why'}",
            hint=f"Its last words are in {log}.",
        )
        self.status = (found.status if found else Status.CRASHED).value
        self.log_excerpt = serverlog.last_words(log_text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """
    One run of the tool.

    Attributes:
        tool: llama-perplexity.
        weights: The model's file.
        pair: Cache types.
        context: Length of a chunk, in tokens.
        chunks: Chunks, at most.
        base: The base file to write, or to compare with.
        text: The text to write it from; None to compare.
        log: Receives what the tool says.
        arguments: A person's further arguments. They come last, and win.
        options: Long options that the build has.
        rotation: Whether quantized values may be rotated, as llama.cpp does by itself.
        is_tiny: Whether the model is so small that its threads had better sleep.
    """

    tool: Path
    weights: Path
    pair: Pair
    context: int
    chunks: int
    base: Path
    text: Path | None
    log: Path
    arguments: tuple[str, ...] = ()
    options: frozenset[str] = frozenset()
    rotation: bool = True
    is_tiny: bool = False


def command(job: Job) -> list[str]:
    """The argv of *job*. Pure, so that a test can read it."""
    return [
        str(job.tool),
        *("--model", str(job.weights)),
        *("--ctx-size", str(job.context)),
        *("--batch-size", str(min(job.context, BATCH))),
        *("--flash-attn", "on"),
        *("--cache-type-k", job.pair.k, "--cache-type-v", job.pair.v),
        *_offload(job),
        *_threads(job),
        *(word for option in OPTIONAL if option[0] in job.options for word in option),
        *("--kl-divergence-base", str(job.base)),
        *_task(job),
        *job.arguments,
    ]


def variables(job: Job) -> dict[str, str]:
    """Environment variables of *job*, beside those that it may inherit."""
    # OpenMP's own word for it; builds without OpenMP have --poll.
    waiting = {"OMP_WAIT_POLICY": "passive"} if job.is_tiny else {}
    still = {} if job.rotation else {ROTATION_VARIABLE: "1"}
    return waiting | still


def computing(job: Job) -> Generator[int, None, str]:
    """
    Run *job* to its end; the tool is gone when this is left, however it is left.

    Yields:
        The chunks behind it, whenever it has written something.

    Returns:
        Its log. Exit code 0 says nothing about success: look for the statistics.

    Raises:
        PerplexityDied: If it ends with anything but 0.
        PerplexityHangs: If it writes nothing for `SILENCE_S`.
        Mismatched: If other cache types run than asked for.
        MachineError: If it cannot be started or stopped.
    """
    env = environment.clean(os.environ) | variables(job)
    with noted(command(job), env=env, log=job.log) as child:
        lived_s = Lived(longest_s=LONGEST_LOOK_S)
        written, heard = -1, lived_s()
        while not ends_within(child, LOOK_S):
            size = _written(job)
            if size != written:
                written, heard = size, lived_s()
                log_text = read_log(job.log)
                _refuse_mismatch(job, log_text, is_over=False)
                yield perplexitylog.chunks_done(log_text)
            elif lived_s() - heard > SILENCE_S:
                log_text = read_log(job.log)
                raise PerplexityHangs(
                    silence_s=SILENCE_S, log=job.log, log_text=log_text
                )
    log_text = read_log(job.log)
    if child.returncode != 0:
        raise PerplexityDied(
            returncode=child.returncode, log=job.log, log_text=log_text
        )
    return log_text


def verify(job: Job, log_text: str) -> None:
    """
    Stop at cache types, or a context, that differ from what *job* asked for.

    Raises:
        Mismatched: If they do, or if the log does not tell.
    """
    _refuse_mismatch(job, log_text, is_over=True)


def _refuse_mismatch(job: Job, log_text: str, *, is_over: bool) -> None:
    effective = serverlog.read(log_text)
    asked = Asked(
        pair=job.pair,
        context=job.context,
        rotation=job.rotation,
        all_layers=not _chooses_layers(job),
    )
    differences = mismatches(asked, effective)
    # Before the log names a cache, there is nothing to compare yet.
    if differences and (is_over or effective.kv):
        raise Mismatched(differences=differences, log_text=log_text)


def _task(job: Job) -> Iterator[str]:
    if job.text is None:
        yield "--kl-divergence"
    else:
        yield from ("--file", str(job.text), "--chunks", str(job.chunks))


def _offload(job: Job) -> Iterator[str]:
    if not _chooses_layers(job):
        yield from ("--n-gpu-layers", ALL_LAYERS)


def _chooses_layers(job: Job) -> bool:
    return bool(OFFLOAD & {argument.partition("=")[0] for argument in job.arguments})


def _threads(job: Job) -> Iterator[str]:
    if job.is_tiny:
        yield from ("--threads", "1", "--threads-batch", str(usable_cores()))
        if "--poll" in job.options:
            yield from ("--poll", "0")


def _written(job: Job) -> int:
    """Bytes of what the tool writes: a base file grows while its log is silent."""
    paths = [job.log] if job.text is None else [job.log, job.base]
    written = 0
    for path in paths:
        with contextlib.suppress(OSError):  # not yet there, or taken away
            written += path.stat().st_size
    return written
