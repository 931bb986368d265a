"""Runs llama-perplexity and parses its output."""

import contextlib
import hashlib
import math
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from codeneedle.engines.engine import (
    Comparison,
    DivergenceTask,
    Estimate,
    ModelSpec,
    Reference,
    Statistics,
    ToolRun,
    mismatched,
)
from codeneedle.engines.llama_cpp import base_file
from codeneedle.engines.llama_cpp import log as serverlog
from codeneedle.engines.llama_cpp.arguments import (
    ALL_LAYERS,
    OFFLOAD,
    ROTATION_VARIABLE,
    has,
    shared_arguments,
)
from codeneedle.engines.llama_cpp.base_file import (
    LEAST_SCORED,
    BaseFile,
    Identity,
    Note,
    scored_tokens,
)
from codeneedle.engines.llama_cpp.installation import ServerFacts, Tools
from codeneedle.engines.llama_cpp.log import (
    Asked,
    exit_cause,
    exit_phrase,
    mismatches,
    printable,
    read_log,
)
from codeneedle.errors import (
    BadInput,
    CellError,
    FolderUnusable,
    ToolFailed,
    ToolMissing,
)
from codeneedle.grid import Pair
from codeneedle.records.record import Status
from codeneedle.system import processes
from codeneedle.system.files import write_whole
from codeneedle.system.machine import usable_cores
from codeneedle.system.orphans import noted
from codeneedle.system.processes import AwakeClock, ends_within
from codeneedle.text import plural


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
            silent = exit_cause(returncode)
            found = replace(silent, reason=failure(log_text) or silent.reason)
        super().__init__(
            f"llama-perplexity ended with {exit_phrase(returncode)}: {found.reason}",
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


def run(job: Job, *, progress: Callable[[int], None]) -> str:
    """
    Run *job* to its end; the tool is gone when this is left, however it is left.

    Args:
        job: What to run.
        progress: Called with the chunks computed so far, whenever it has written
            something.

    Returns:
        Its log. Exit code 0 says nothing about success: look for the statistics.

    Raises:
        PerplexityDied: If it ends with anything but 0.
        PerplexityHangs: If it writes nothing for `SILENCE_S`.
        CellError: If other cache types run than asked for.
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
                progress(chunks_done(log_text))
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
        CellError: If they do, or if the log does not tell.
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
        raise mismatched(differences, log_excerpt=serverlog.evidence(log_text))


def _task(job: Job) -> Iterator[str]:
    if job.text is None:
        yield "--kl-divergence"
    else:
        yield from ("--file", str(job.text), "--chunks", str(job.chunks))


def _offload(job: Job) -> Iterator[str]:
    if not _chooses_layers(job):
        yield from ("--n-gpu-layers", ALL_LAYERS)


def _chooses_layers(job: Job) -> bool:
    return has(job.arguments, OFFLOAD)


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


VERSION_TIMEOUT_S = 60.0

FIRST_WIDE_BUILD = 9512
"""
A build of 2026-06-04, with 64-bit sizes of the base file.

They came on 2026-05-24 (llama.cpp #23496 and #23623); b9292 of the day before still
crashes. A build between the two may be refused without need.
"""

RETRIES = 5
"""
Further runs of the tool where the end of its log is missing, and so all numbers.

Measured with the built-in model on two busy cores: 3 runs of 30. A large model takes
longer to exit than its log to be written.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Perplexity:
    """
    llama-perplexity as a divergence tool. Implements `engine.DivergenceTool`.

    Attributes:
        tool: The program.
        facts: What the llama-server beside it says of itself.
        model: What is measured.
        version: As the tool states it.
        arguments: The user's arguments for llama-server that it takes, too.
        ignored: The others.
    """

    tool: Path
    facts: ServerFacts
    model: ModelSpec
    version: str
    arguments: tuple[str, ...]
    ignored: tuple[str, ...]

    @classmethod
    def of(cls, tools: Tools, facts: ServerFacts, model: ModelSpec) -> "Perplexity":
        """
        The tool of an installation.

        Raises:
            MachineError: If it is missing, cannot be started, or hangs.
        """
        if tools.perplexity is None:
            raise ToolMissing(
                tool="llama-perplexity",
                reason=f"is not beside {tools.server}",
                hint="Build both with 'codeneedle llama'.",
            )
        arguments, ignored = shared_arguments(model.arguments)
        return cls(
            tool=tools.perplexity,
            facts=facts,
            model=model,
            version=_version(tools.perplexity),
            arguments=arguments,
            ignored=ignored,
        )

    def check(
        self, *, text_name: str, text_bytes: int, context: int, chunks: int
    ) -> None:
        """As of `engine.DivergenceTool`."""
        # No tokenizer makes more tokens than bytes, but for one or two at the start.
        needed = max(2, chunks) * context
        if text_bytes + 2 < needed:
            raise _text_too_short(text_name, text_bytes, needed, context)
        _refuse_few(chunks, context)
        # Builds from an archive call themselves 0: their age is not known.
        build = self.facts.build or FIRST_WIDE_BUILD
        values = base_file.row_values(self.model.weights.vocabulary)
        if build < FIRST_WIDE_BUILD and context * values >= 2**31:
            raise ToolFailed(
                tool=f"llama-perplexity of build {build}",
                reason=f"crashes at a context of {context:,}: {context:,} x {values:,} "
                f"(vocabulary) = {context * values:,} is not below 2^31",
                hint=f"Use --divergence-context {(2**31 - 1) // values} or less, or a "
                f"llama.cpp of build {FIRST_WIDE_BUILD} or later: 'codeneedle llama'.",
            )

    def missing_bytes(self, folder: Path, *, context: int, chunks: int) -> int:
        """As of `engine.DivergenceTool`."""
        size = base_file.predicted_bytes(
            vocabulary=self.model.weights.vocabulary, chunks=chunks, context=context
        )
        return max(0, size - BaseFile.of(folder, context=context).present_bytes())

    def reference(self, task: DivergenceTask) -> Reference | None:
        """As of `engine.DivergenceTool`."""
        note = _base(task).usable(self._identity(task))
        return None if note is None else _reference(note)

    def write_reference(
        self, task: DivergenceTask, *, log: Path, progress: Callable[[int], None]
    ) -> Reference:
        """As of `engine.DivergenceTool`: keeps what the tool wrote if it is whole."""
        base = _base(task)
        with _folder_errors(base):
            base.make_room()
            text = _text_file(task)
        job = replace(
            self._job(task, log=log), pair=task.reference, base=base.draft, text=text
        )
        started = time.monotonic()
        try:
            log_text, _ = _complete_log(job, progress)
            seconds = round(time.monotonic() - started, 4)
            return self._kept(task, job, log_text, seconds=seconds)
        finally:
            base.drop_draft()

    def compare(
        self,
        task: DivergenceTask,
        reference: Reference,
        *,
        log: Path,
        progress: Callable[[int], None],
    ) -> Comparison:
        """As of `engine.DivergenceTool`."""
        job = self._job(task, log=log)
        log_text, retries = _complete_log(job, progress)
        found = statistics(log_text)
        expected = Size(chunks=reference.chunks, context=task.context)
        if found is None or size(log_text) != expected:
            raise NoStatistics(log=log, log_text=log_text)
        verify(job, log_text)
        return Comparison(
            statistics=found,
            tokens=scored_tokens(chunks=reference.chunks, context=task.context),
            run=ToolRun(
                command=tuple(command(job)),
                effective=serverlog.read(log_text),
                fallback=serverlog.fallback(log_text),
            ),
            retries=retries,
        )

    def _kept(
        self, task: DivergenceTask, job: Job, log_text: str, *, seconds: float
    ) -> Reference:
        said = too_short(log_text)
        if said is not None:
            raise _text_too_short(task.text_name, said.found, said.needed, task.context)
        ppl, written = final_perplexity(log_text), size(log_text)
        if ppl is None or written is None:
            raise NoStatistics(log=job.log, log_text=log_text)
        verify(job, log_text)
        base, identity = _base(task), self._identity(task)
        fault = base.fault(base.draft, identity, chunks=written.chunks)
        if fault is not None:
            raise CellError(
                f"the base file is not whole: {fault}",
                hint=f"Is the disk of {base.path.parent} full?",
            )
        _refuse_few(written.chunks, task.context)
        with _folder_errors(base):
            note = base.keep(
                identity, chunks=written.chunks, ppl=ppl.value, seconds=seconds
            )
        return _reference(note)

    def _job(self, task: DivergenceTask, *, log: Path) -> Job:
        return Job(
            tool=self.tool,
            weights=self.model.weights.path,
            pair=task.pair,
            context=task.context,
            chunks=task.chunks,
            base=_base(task).path,
            text=None,
            log=log,
            arguments=self.arguments,
            options=self.facts.options,
            rotation=self.model.rotation,
            is_tiny=self.model.is_tiny,
        )

    def _identity(self, task: DivergenceTask) -> Identity:
        return Identity(
            text_sha256=hashlib.sha256(task.text).hexdigest(),
            weights_sha256=task.weights_sha256,
            llama=self.version,
            reference=str(task.reference),
            context=task.context,
            chunks_asked=task.chunks,
            vocabulary=self.model.weights.vocabulary,
            arguments=self.arguments,
            rotation=self.model.rotation,
        )


def _version(tool: Path) -> str:
    """What the tool calls itself; ``unknown`` if it does not tell."""
    answer = processes.output_of((str(tool), "--version"), timeout_s=VERSION_TIMEOUT_S)
    for line in f"{answer.stdout}\n{answer.stderr}".splitlines():
        if line.startswith("version:"):
            return line.removeprefix("version:").strip()
    return "unknown"


def _base(task: DivergenceTask) -> BaseFile:
    return BaseFile.of(task.folder, context=task.context)


def _reference(note: Note) -> Reference:
    return Reference(chunks=note.chunks, ppl=note.ppl, seconds=note.seconds)


def _text_file(task: DivergenceTask) -> Path:
    """The text as a file beside the base files."""
    name = f"{hashlib.sha256(task.text).hexdigest()[:16]}.txt"
    path = _base(task).path.with_name(name)
    write_whole(path, task.text)
    return path


def _complete_log(job: Job, progress: Callable[[int], None]) -> tuple[str, int]:
    """The tool's log, and how often it ran again because the end was missing."""
    log_text = run(job, progress=progress)
    retries = 0
    while retries < RETRIES and ends_early(log_text):
        log_text = run(job, progress=progress)
        retries += 1
    return log_text, retries


def _text_too_short(name: str, has: int, needed: int, context: int) -> BadInput:
    return BadInput(
        source=name,
        reason=f"it has at most {has:,} tokens; to compare distributions at "
        f"{context:,} tokens takes {needed:,}",
        hint=f"Use --divergence-context {max(1, has // 2)} or less, fewer --chunks, or "
        "a longer --text.",
    )


def _refuse_few(chunks: int, context: int) -> None:
    scored = scored_tokens(chunks=chunks, context=context)
    if scored < LEAST_SCORED:
        raise BadInput(
            source="--chunks",
            reason=f"{plural(chunks, 'chunk')} of {context:,} tokens score {scored} "
            "tokens; llama-perplexity makes no statistics of fewer than "
            f"{LEAST_SCORED}",
            hint="Use more --chunks, a larger --divergence-context or a longer --text.",
        )


@contextlib.contextmanager
def _folder_errors(base: BaseFile) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise FolderUnusable(folder=base.path.parent, reason=str(error)) from error
