"""The child as a tool: distributions compared with a base file, speed measured."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

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
from codeneedle.engines.llama_cpp.base_file import (
    BaseFileTool,
    Identity,
    Job,
    Lengths,
    Notify,
    Progress,
    Written,
    predicted_bytes,
    scored_tokens,
)
from codeneedle.engines.mlx import log as logs
from codeneedle.errors import CellError
from codeneedle.records.record import Status
from codeneedle.system import machine
from codeneedle.system.orphans import watched
from codeneedle.system.processes import FILE_LIMIT_BYTES

if TYPE_CHECKING:
    from codeneedle.engines.mlx.engine import Mlx

SILENCE_S = 3600.0
"""How long a child may write nothing: a chunk of a large model may take as long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
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

    def to_end(self, note: Notify, grown: Callable[[str], None]) -> str:
        """
        Run it to its end.

        Returns:
            Its log.

        Raises:
            CellError: If it fails, is silent, or runs something else than asked for.
        """
        note(ToolRun(command=tuple(self.argv)))

        def look() -> None:
            log_text = logs.read_log(self.log)
            self._verify(log_text, is_over=False)
            grown(log_text)

        returncode = watched(
            self.argv,
            env=logs.environment(),
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
            raise logs.died(returncode, self.log)
        self._verify(log_text, is_over=True)
        return log_text

    def _verify(self, log_text: str, *, is_over: bool) -> None:
        if not is_over and logs.what_runs(log_text) is None:
            return
        differences = logs.mismatches(self.engine.asked(self.cell), log_text)
        if differences:
            raise mismatched(differences, log_excerpt=logs.last_lines(log_text))


@dataclass(frozen=True, slots=True, kw_only=True)
class MlxDivergence(BaseFileTool):
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

    @property
    def vocabulary(self) -> int:
        """As of `BaseFileTool`."""
        return self.engine.model.weights.vocabulary

    def identity(self, task: DivergenceTask) -> Identity:
        """As of `BaseFileTool`."""
        return Identity.of(
            task,
            version=self.version,
            vocabulary=self.vocabulary,
            arguments=self.arguments,
        )

    def written(self, job: Job, note: Notify, progress: Progress) -> Written:
        """As of `BaseFileTool`."""
        log_text = self._completed(job, note, progress)
        found = logs.last(log_text, "base", Written)
        if found is not None and found.chunks:
            return found
        said = logs.last(log_text, "tokens", Lengths)
        if said is None or said.found >= said.needed:
            raise _incomplete(log_text)
        raise job.too_short(said)

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
        log_text = self._completed(Job(task=task, text=None, log=log), note, progress)
        found = logs.comparison(log_text)
        scored = scored_tokens(chunks=reference.chunks, context=task.context)
        if found is None or found.tokens != scored:
            raise _incomplete(log_text)
        return found

    def _completed(self, job: Job, note: Notify, progress: Progress) -> str:
        """The log of *job*."""
        task, text = job.task, job.text
        argv = self.engine.command("divergence", job.pair, context=task.context)
        argv += ["--base", str(job.base)]
        if text is not None:
            argv += ["--text", str(text), "--chunks", str(task.chunks)]
        run = _Run(
            engine=self.engine,
            cell=CellSpec(job.pair, task.context),
            argv=argv,
            log=job.log,
            file=job.base if text else None,
            file_bytes=predicted_bytes(
                vocabulary=self.vocabulary, chunks=task.chunks, context=task.context
            ),
        )
        return run.to_end(
            note,
            lambda log_text: progress(sum(1 for _ in logs.told(log_text, "chunk"))),
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
        run = _Run(
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

        found = _speeds(run.to_end(note, told))
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
