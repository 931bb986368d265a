"""The child as a tool: distributions compared with a base file, speed measured."""

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from codeneedle.engines.base_file import (
    BaseFile,
    Identity,
    folder_errors,
    missing_bytes,
    predicted_bytes,
    refuse_few,
    scored_tokens,
    text_too_short,
)
from codeneedle.engines.engine import (
    CellSpec,
    Comparison,
    DivergenceTask,
    Reference,
    Speeds,
    SpeedTask,
    ToolRun,
    mismatched,
)
from codeneedle.engines.mlx import log as logs
from codeneedle.errors import CellError
from codeneedle.grid import Pair
from codeneedle.records.record import Status
from codeneedle.system import machine
from codeneedle.system.files import write_whole
from codeneedle.system.orphans import watched
from codeneedle.system.processes import FILE_LIMIT_BYTES

if TYPE_CHECKING:
    from codeneedle.engines.mlx.engine import Mlx

SILENCE_S = 3600.0
"""How long a child may write nothing: a chunk of a large model may take as long."""

Notify = Callable[[ToolRun], None]
Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """
    One run of a child.

    Attributes:
        engine: What starts it.
        cell: Pair, and the context that is verified.
        argv: Its arguments.
        log: Receives what it says.
        file: What it writes beside the log, if anything.
        file_bytes: Size that this file may have.
        silence_s: How long both may stay as they are.
    """

    engine: "Mlx"
    cell: CellSpec
    argv: Sequence[str]
    log: Path
    file: Path | None = None
    file_bytes: int = 0
    silence_s: float = SILENCE_S

    def run(self, note: Notify, grown: Callable[[str], None]) -> str:
        """
        Run it to its end.

        Returns:
            Its log.

        Raises:
            CellError: If it fails, is silent, or runs something else than asked for.
        """
        from codeneedle.engines.mlx.engine import died, environment

        note(ToolRun(command=tuple(self.argv)))

        def look() -> None:
            log_text = logs.read_log(self.log)
            self._verify(log_text, is_over=False)
            grown(log_text)

        returncode = watched(
            self.argv,
            env=environment(),
            files=(self.log,) if self.file is None else (self.log, self.file),
            grown=look,
            silence_s=self.silence_s,
            file_limit_bytes=FILE_LIMIT_BYTES + self.file_bytes,
        )
        log_text = logs.read_log(self.log)
        if returncode is None:
            raise CellError(
                f"mlx is running but has written nothing for {self.silence_s:g} s",
                hint=f"See {self.log}.",
                status=Status.TIMED_OUT,
                log_excerpt=logs.last_lines(log_text),
            )
        effective = logs.effective(log_text)
        note(ToolRun(command=tuple(self.argv), effective=effective))
        if returncode:
            raise died(returncode, self.log)
        self._verify(log_text, is_over=True)
        return log_text

    def _verify(self, log_text: str, *, is_over: bool) -> None:
        if not is_over and logs.what_runs(log_text) is None:
            return
        differences = logs.mismatches(self.engine.asked(self.cell), log_text)
        if differences:
            raise mismatched(differences, log_excerpt=logs.last_lines(log_text))


@dataclass(frozen=True, slots=True, kw_only=True)
class MlxDivergence:
    """Compares pairs in a child. Implements `engine.DivergenceTool`."""

    engine: "Mlx"

    @property
    def version(self) -> str:
        """As of `engine.DivergenceTool`."""
        return self.engine.identity().version

    @property
    def arguments(self) -> tuple[str, ...]:
        """As of `engine.DivergenceTool`."""
        return self.engine.identity().arguments

    @property
    def ignored(self) -> tuple[str, ...]:
        """None."""
        return ()

    def check(
        self, *, text_name: str, text_bytes: int, context: int, chunks: int
    ) -> None:
        """As of `engine.DivergenceTool`."""
        # A text has no more tokens than bytes, but for one or two at the start.
        needed, most = max(2, chunks) * context, text_bytes + 2
        if most < needed:
            raise text_too_short(
                text_name, most, needed, context=context, chunks=chunks
            )
        refuse_few(chunks=chunks, context=context)

    def missing_bytes(self, folder: Path, *, context: int, chunks: int) -> int:
        """As of `engine.DivergenceTool`."""
        vocabulary = self.engine.model.weights.vocabulary
        return missing_bytes(
            folder, context=context, chunks=chunks, vocabulary=vocabulary
        )

    def reference(self, task: DivergenceTask) -> Reference | None:
        """As of `engine.DivergenceTool`."""
        base = BaseFile.of(task.folder, context=task.context)
        return base.usable(self._identity(task))

    def write_reference(
        self, task: DivergenceTask, *, log: Path, note: Notify, progress: Progress
    ) -> Reference:
        """As of `engine.DivergenceTool`."""
        base = BaseFile.of(task.folder, context=task.context)
        identity = self._identity(task)
        text = base.path.with_name(f"{identity.text_sha256[:16]}.txt")
        with folder_errors(base.path.parent):
            base.make_room()
            write_whole(text, task.text)
        more = ("--text", str(text), "--chunks", str(task.chunks))
        job = self._job(task, task.reference, base.draft, more, log)
        started = time.monotonic()
        try:
            log_text = job.run(note, _chunks_told(progress))
            found = logs.last(log_text, "base", _Written)
            if found is None or not found.chunks:
                raise _too_short_or_incomplete(task, log_text)
            refuse_few(chunks=found.chunks, context=task.context)
            fault = base.fault(base.draft, identity, chunks=found.chunks)
            if fault is not None:
                raise CellError(
                    f"the base file is not whole: {fault}",
                    hint=f"Is the disk of {base.path.parent} full?",
                )
            seconds = round(time.monotonic() - started, 4)
            kept = Reference(chunks=found.chunks, ppl=found.ppl, seconds=seconds)
            with folder_errors(base.path.parent):
                base.keep(identity, kept)
            return kept
        finally:
            with contextlib.suppress(OSError):
                base.draft.unlink(missing_ok=True)

    def compare(
        self,
        task: DivergenceTask,
        reference: Reference,
        *,
        log: Path,
        note: Notify,
        progress: Progress,
    ) -> Comparison:
        """As of `engine.DivergenceTool`."""
        base = BaseFile.of(task.folder, context=task.context)
        job = self._job(task, task.pair, base.path, (), log)
        log_text = job.run(note, _chunks_told(progress))
        found = logs.comparison(log_text)
        scored = scored_tokens(chunks=reference.chunks, context=task.context)
        if found is None or found.tokens != scored:
            raise _incomplete(log_text)
        return found

    def _job(
        self,
        task: DivergenceTask,
        pair: Pair,
        file: Path,
        more: Sequence[str],
        log: Path,
    ) -> _Job:
        command = self.engine.command("divergence", pair, context=task.context)
        return _Job(
            engine=self.engine,
            cell=CellSpec(pair, task.context),
            argv=[*command, "--base", str(file), *more],
            log=log,
            file=file if more else None,
            file_bytes=predicted_bytes(
                vocabulary=self.engine.model.weights.vocabulary,
                chunks=task.chunks,
                context=task.context,
            ),
        )

    def _identity(self, task: DivergenceTask) -> Identity:
        return Identity.of(
            task,
            version=self.version,
            vocabulary=self.engine.model.weights.vocabulary,
            arguments=self.arguments,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    chunks: int
    ppl: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Length:
    found: int
    needed: int


def _chunks_told(progress: Progress) -> Callable[[str], None]:
    return lambda log_text: progress(sum(1 for _ in logs.told(log_text, "chunk")))


def _too_short_or_incomplete(task: DivergenceTask, log_text: str) -> Exception:
    said = logs.last(log_text, "tokens", _Length)
    if said is None or said.found >= said.needed:
        return _incomplete(log_text)
    return text_too_short(
        task.text_name,
        said.found,
        said.needed,
        context=task.context,
        chunks=task.chunks,
    )


def _incomplete(log_text: str) -> CellError:
    return CellError(
        "mlx ended without complete statistics",
        hint="See the end of its log.",
        status=Status.CRASHED,
        log_excerpt=logs.last_lines(log_text),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Speed:
    pp: float
    tg: float
    peak_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MlxSpeed:
    """Measures speed in a child. Implements `engine.SpeedTool`."""

    engine: "Mlx"

    @property
    def arguments(self) -> Mapping[str, str]:
        """As of `engine.SpeedTool`."""
        words = (each.partition(" ") for each in self.engine.identity().arguments)
        return {name: value for name, _, value in words}

    @property
    def ignored(self) -> tuple[str, ...]:
        """None."""
        return ()

    def measure(
        self,
        task: SpeedTask,
        *,
        log: Path,
        silence_s: float,
        note: Notify,
        progress: Callable[[str], None],
    ) -> Speeds:
        """As of `engine.SpeedTool`."""
        context = task.depth + max(task.prompt_tokens, task.generated_tokens)
        job = _Job(
            engine=self.engine,
            cell=CellSpec(task.pair, context),
            argv=[
                *self.engine.command("speed", task.pair, context=context),
                *("--depth", str(task.depth)),
                *("--prompt-tokens", str(task.prompt_tokens)),
                *("--generated-tokens", str(task.generated_tokens)),
                *("--repetitions", str(task.repetitions)),
            ],
            log=log,
            silence_s=silence_s,
        )

        def told(log_text: str) -> None:
            done = sum(1 for _ in logs.told(log_text, "speed"))
            progress(f"repetition {done + 1} of {task.repetitions}")

        found = _speeds(job.run(note, told))
        if len(found) != task.repetitions:
            raise _incomplete(logs.read_log(log))
        gpu = ", ".join(self.engine.identity().devices)
        return Speeds(
            pp=tuple(each.pp for each in found),
            tg=tuple(each.tg for each in found),
            build=self.engine.identity().version,
            cpu=machine.facts().processor,
            gpu=gpu,
            backends=gpu,
            threads=machine.usable_cores(),
            peak_bytes=max(each.peak_bytes for each in found),
        )


def _speeds(log_text: str) -> list[_Speed]:
    try:
        return msgspec.convert(list(logs.told(log_text, "speed")), type=list[_Speed])
    except msgspec.ValidationError:
        return []
