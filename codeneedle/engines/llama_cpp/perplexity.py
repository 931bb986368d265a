"""Runs llama-perplexity and parses its output."""

import contextlib
import math
import os
import re
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from codeneedle.engines.engine import Estimate, Statistics
from codeneedle.engines.llama_cpp import log as serverlog
from codeneedle.engines.llama_cpp.arguments import (
    ALL_LAYERS,
    OFFLOAD,
    ROTATION_VARIABLE,
)
from codeneedle.engines.llama_cpp.log import Asked, mismatches, printable, read_log
from codeneedle.engines.llama_cpp.server import Mismatched, how, without_words
from codeneedle.errors import CellError
from codeneedle.grid import Pair
from codeneedle.records.record import Status
from codeneedle.system import processes
from codeneedle.system.machine import usable_cores
from codeneedle.system.orphans import noted
from codeneedle.system.processes import AwakeClock, ends_within


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """
    How much the tool set out to compute.

    Attributes:
        chunks: Pieces of text.
        context: Length of each, in tokens.
    """

    chunks: int
    context: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TooShort:
    """
    What the tool says of a text that is too short, in tokens.

    Attributes:
        needed: At least so many.
        found: What the text has.
    """

    needed: int
    found: int


def statistics(log_text: str) -> Statistics | None:
    """
    The statistics of a comparison; None unless they are there to the last line.

    The tool exits 0 whatever happened, prints running values before it fails,
    and logs two errors that it then ignores. So everything must be said, once
    and in order; every value must be a number, and nothing may be wrong.
    """
    lines = list(_lines(log_text))
    found = [read for read in map(_labelled, lines) if read is not None]
    names = [name for name, _ in found]
    if names not in (_ORDER, _ORDER_WITHOUT_95) or failure(log_text) is not None:
        return None
    asked = size(log_text)
    if asked is None or _rows(lines) != list(range(1, asked.chunks + 1)):
        return None
    values = dict(found)
    if not all(math.isfinite(estimate.value) for estimate in values.values()):
        return None
    return _statistics(values)


def final_perplexity(log_text: str) -> Estimate | None:
    """The perplexity of a run that wrote a base file; None unless it got to its end."""
    found = _only(_FINAL.fullmatch(line) for line in _lines(log_text))
    if found is None or failure(log_text) is not None:
        return None
    estimate = _estimate(found["value"], found["error"])
    return estimate if math.isfinite(estimate.value) else None


def ends_early(log_text: str) -> bool:
    """
    Whether the log says neither that all went well, nor what did not.

    A thread of the tool writes its log, and dies with the process, whatever it still
    had to write: llama.cpp #22142. Seen with b11434, where a small model was through
    while the machine was busy.
    """
    is_through = statistics(log_text) or final_perplexity(log_text)
    return is_through is None and failure(log_text) is None


def size(log_text: str) -> Size | None:
    """What the tool set out to compute; None if it did not get so far."""
    found = _only(_SIZE.search(line) for line in _lines(log_text))
    if found is None:
        return None
    return Size(chunks=int(found["chunks"]), context=int(found["context"]))


def chunks_done(log_text: str) -> int:
    """How many chunks are behind the tool, in either of its two modes."""
    written = [int(number) for number in _WRITTEN.findall(log_text)]
    return max([*written, *_rows(_lines(log_text))], default=0)


def failure(log_text: str) -> str | None:
    """The line with which the tool gave up, or should have; None if there is none."""
    for line in _lines(log_text):
        if _FAILURE.search(line):
            return " ".join(line.split())
    return None


def too_short(log_text: str) -> TooShort | None:
    """How much text is missing, if that is what the tool complains of."""
    needed, found = _NEEDED.search(log_text), _FOUND.search(log_text)
    if needed is None or found is None:
        return None
    return TooShort(needed=int(needed[1]), found=int(found[1]))


_PREFIX = re.compile(r"^\d+\.\d\d\.\d{3}\.\d{3} [IWED] ")
_NUMBER = r"[-+]?(?:\d+\.\d+|nan|inf)"

_FINAL = re.compile(
    rf"Final estimate: PPL = (?P<value>{_NUMBER}) \+/- (?P<error>{_NUMBER})"
)
_COUNT = r"\d{1,15}(?!\d)"
"""What counts; Python refuses to read numbers of thousands of digits."""

_SIZE = re.compile(
    rf"(?:over|computing) (?P<chunks>{_COUNT}) chunks, n_ctx=(?P<context>{_COUNT})"
)
_WRITTEN = re.compile(rf"\[({_COUNT})\][-\d.naif]+,")
_ROW = re.compile(
    rf"\s*(?P<chunk>\d+)\s+{_NUMBER} ± +{_NUMBER}\s+{_NUMBER} ± +{_NUMBER}"
    rf"\s+{_NUMBER} ± +{_NUMBER}(?:\s+{_NUMBER} ± +{_NUMBER} %){{2}}"
)
_NEEDED = re.compile(rf"you need at least ({_COUNT}) tokens")
_FOUND = re.compile(rf"tokenizes to only ({_COUNT}) tokens")

_FAILURE = re.compile(
    r"failed to decode"
    r"|failed reading"
    r"|does not look like a file containing log-probabilities"
    r"|you need at least \d+ tokens"
    r"|failed to open"
    r"|Unexpected negative standard deviation"
    # These two are said and then ignored.
    r"|has been computed with \d+, while the current context is"
    r"|inconsistent vocabulary"
)

_LABELS: dict[str, str] = {
    "Mean PPL(Q)": "ppl",
    "Mean PPL(base)": "ppl_base",
    "Mean PPL(Q)/PPL(base)": "ppl_ratio",
    "Mean KLD": "kld",
    "Maximum KLD": "kld_max",
    "99.9% KLD": "kld_999",
    "99.0% KLD": "kld_99",
    "95.0% KLD": "kld_95",
    "90.0% KLD": "kld_90",
    "Median KLD": "kld_median",
    "Minimum KLD": "kld_min",
    "Mean Δp": "dp_mean",
    "RMS Δp": "dp_rms",
    "Same top p": "same_top",
}
"""The lines that are kept, white space aside, in the order they are printed."""

_ORDER = list(_LABELS.values())
_ORDER_WITHOUT_95 = [name for name in _ORDER if name != "kld_95"]
_WITH_ERROR = frozenset(
    {"ppl", "ppl_base", "ppl_ratio", "kld", "dp_mean", "dp_rms", "same_top"}
)
_LINE = re.compile(
    rf"(?P<label>[^\s:]+(?:\s+[^\s:]+)*)\s*: +(?P<value>{_NUMBER})"
    rf"(?: ± +(?P<error>{_NUMBER}))?(?P<percent> ?%)?"
)


def _lines(log_text: str) -> Iterator[str]:
    for line in log_text.splitlines():
        yield _PREFIX.sub("", printable(line)).rstrip()


def _labelled(line: str) -> tuple[str, Estimate] | None:
    """A line of the statistics by its name here; None if it is another, or half."""
    found = _LINE.fullmatch(line.strip())
    if found is None:
        return None
    name = _LABELS.get(" ".join(found["label"].split()))
    if name is None or (found["error"] is not None) != (name in _WITH_ERROR):
        return None
    if (found["percent"] is not None) != (name in {"dp_mean", "dp_rms", "same_top"}):
        return None
    return name, _estimate(found["value"], found["error"])


def _estimate(value: str, error: str | None) -> Estimate:
    # A number of next to nothing is printed with a sign: -0.000000.
    number = float(value) + 0.0
    spread = math.nan if error is None else float(error)
    return Estimate(number, spread if math.isfinite(spread) else None)


def _rows(lines: Iterable[str]) -> list[int]:
    """The chunks of a comparison that have a line, in order."""
    matches = map(_ROW.fullmatch, lines)
    return [int(found["chunk"]) for found in matches if found]


def _only(matches: Iterable[re.Match[str] | None]) -> re.Match[str] | None:
    """The one match there is; None if there are none or several."""
    found = [match for match in matches if match is not None]
    return found[0] if len(found) == 1 else None


def _statistics(values: dict[str, Estimate]) -> Statistics:
    pairs = {name: values[name] for name in values if name in _WITH_ERROR}
    plain = {
        name: values[name].value
        for name in values
        if name not in _WITH_ERROR and name != "kld_95"
    }
    kld_95 = values["kld_95"].value if "kld_95" in values else None
    return Statistics(**pairs, **plain, kld_95=kld_95)  # type: ignore[arg-type]


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
            silent = without_words(returncode)
            found = replace(silent, reason=failure(log_text) or silent.reason)
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
        reason = failure(log_text) or (found.reason if found else "")
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
    env = processes.clean(os.environ) | variables(job)
    with noted(command(job), env=env, log=job.log, file_limit_bytes=None) as child:
        lived_s = AwakeClock(longest_s=LONGEST_LOOK_S)
        written, heard = -1, lived_s()
        while not ends_within(child, LOOK_S):
            size = _written(job)
            if size != written:
                written, heard = size, lived_s()
                log_text = read_log(job.log)
                _refuse_mismatch(job, log_text, is_over=False)
                yield chunks_done(log_text)
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
