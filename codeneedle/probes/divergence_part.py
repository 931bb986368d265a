"""Compares one cell with the reference at one context; the base file is its affair."""

import contextlib
import hashlib
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from codeneedle import perplexitylog, serverlog
from codeneedle.basefile import LEAST_SCORED, BaseFile, Identity, Note, scored_tokens
from codeneedle.errors import CellError, RequestError
from codeneedle.files import write_whole
from codeneedle.grid import Pair
from codeneedle.perplexitylog import Statistics
from codeneedle.probes.divergence_checks import (
    PerplexityMissing,
    TextTooShort,
    TooFewScored,
)
from codeneedle.probes.divergence_metrics import NAME, Compared
from codeneedle.probes.divergence_settings import Settings, text_bytes
from codeneedle.probes.divergence_tool import (
    Job,
    NoStatistics,
    command,
    computing,
    verify,
)
from codeneedle.stage import Stage
from codeneedle.store import FolderUnwritable

Progress = Generator[tuple[int, str], None, Compared]
"""Yields the chunks behind it and what it does; returns the comparison."""


RETRIES = 5
"""
Further runs of the tool where the end of its log is missing, and so all numbers.

Measured with the built-in model on two busy cores: 3 runs of 30. A large model takes
longer to go than its log to be written.
"""


class TextChanged(RequestError):  # noqa: N818 - named after the fact
    """The text is no longer what it was when the sweep was prepared."""

    def __init__(self, *, name: str) -> None:
        super().__init__(
            f"{name} has changed since this sweep began",
            hint="Run the command again, with another --out for the new text.",
        )


class BaseIncomplete(CellError):  # noqa: N818 - named after the fact
    """The tool wrote a base file, and not all of it; it says nothing of a full disk."""

    def __init__(self, *, reason: str, folder: Path) -> None:
        super().__init__(
            f"the base file is not whole: {reason}",
            hint=f"Is the disk of {folder} full?",
        )


@dataclass(frozen=True, slots=True)
class Part:
    """
    One context of one cell.

    Attributes:
        stage: The cell.
        chosen: Settings of the probe.
        reference: What the cell is compared with; may be the cell itself.
        context: Length of a chunk, in tokens.
        chunks: Chunks, at most.
    """

    stage: Stage
    chosen: Settings
    reference: Pair
    context: int
    chunks: int

    def steps(self) -> int:
        """Chunks to compute: twice as many if the base file is to be written."""
        is_there = self._base().usable(self._identity()) is not None
        return self.chunks if is_there else 2 * self.chunks

    def compared(self) -> Progress:
        """Compare with the reference, its base file written first if need be."""
        note = self._base().usable(self._identity())
        behind = 0
        if note is None:
            yield 0, f"writing down {self.reference}"
            note = yield from self._written()
            behind = self.chunks
        yield behind, "comparing"
        started = time.monotonic()
        job = self._job()
        self._note_command(job)
        log_text, retries = yield from self._computed(job, behind, "comparing")
        statistics = self._statistics(job, log_text, note)
        return Compared(
            context=self.context,
            chunks=note.chunks,
            tokens=scored_tokens(chunks=note.chunks, context=self.context),
            seconds=round(time.monotonic() - started, 4),
            base_seconds=note.seconds,
            reference_ppl=note.ppl,
            statistics=statistics,
            retries=retries,
        )

    def _written(self) -> Generator[tuple[int, str], None, Note]:
        """Run the reference, and keep what it wrote if that is whole."""
        base = self._base()
        with self._translated():
            base.make_room()
            text = self._text()
        job = replace(
            self._job(),
            pair=self.reference,
            base=base.draft,
            text=text,
            log=self._log(f"{self.reference.slug}.{NAME}-base.{self.context}"),
        )
        self._note_command(job)
        started = time.monotonic()
        try:
            log_text, _ = yield from self._computed(
                job, 0, f"writing down {self.reference}"
            )
            seconds = round(time.monotonic() - started, 4)
            return self._kept(base, job, log_text, seconds=seconds)
        finally:
            base.drop_draft()

    def _kept(self, base: BaseFile, job: Job, log_text: str, *, seconds: float) -> Note:
        said = perplexitylog.too_short(log_text)
        if said is not None:
            raise TextTooShort(
                name=self.chosen.text,
                has=said.found,
                needed=said.needed,
                context=self.context,
            )
        ppl = perplexitylog.final_perplexity(log_text)
        size = perplexitylog.size(log_text)
        if ppl is None or size is None:
            raise NoStatistics(log=job.log, log_text=log_text)
        verify(job, log_text)
        fault = base.fault(base.draft, self._identity(), chunks=size.chunks)
        if fault is not None:
            raise BaseIncomplete(reason=fault, folder=base.path.parent)
        self._refuse_few(size.chunks)
        with self._translated():
            return base.keep(
                self._identity(), chunks=size.chunks, ppl=ppl.value, seconds=seconds
            )

    def _computed(
        self, job: Job, behind: int, doing: str
    ) -> Generator[tuple[int, str], None, tuple[str, int]]:
        """Its log, and how often it ran again because the end of that was missing."""
        log_text = yield from self._run_once(job, behind, doing)
        retries = 0
        while retries < RETRIES and perplexitylog.ends_early(log_text):
            log_text = yield from self._run_once(job, behind, doing)
            retries += 1
        if job.pair == self.stage.pair:  # or else the reference, run in its cell
            self.stage.effective = serverlog.read(log_text)
            self.stage.trouble = self.stage.trouble or serverlog.fallback(log_text)
        return log_text, retries

    def _run_once(
        self, job: Job, behind: int, doing: str
    ) -> Generator[tuple[int, str], None, str]:
        with contextlib.closing(computing(job)) as tool:
            while True:
                try:
                    done = next(tool)
                except StopIteration as end:
                    log_text: str = end.value
                    return log_text
                yield behind + min(done, self.chunks), doing

    def _statistics(self, job: Job, log_text: str, note: Note) -> Statistics:
        statistics = perplexitylog.statistics(log_text)
        size = perplexitylog.size(log_text)
        expected = perplexitylog.Size(chunks=note.chunks, context=self.context)
        if statistics is None or size != expected:
            raise NoStatistics(log=job.log, log_text=log_text)
        verify(job, log_text)
        return statistics

    def _refuse_few(self, chunks: int) -> None:
        if scored_tokens(chunks=chunks, context=self.context) < LEAST_SCORED:
            raise TooFewScored(chunks=chunks, context=self.context)

    def _job(self) -> Job:
        plan = self.stage.plan
        if plan.tools.perplexity is None:
            raise PerplexityMissing(server=plan.tools.server)
        return Job(
            tool=plan.tools.perplexity,
            weights=plan.weights.path,
            pair=self.stage.pair,
            context=self.context,
            chunks=self.chunks,
            base=self._base().path,
            text=None,
            log=self._log(f"{self.stage.pair.slug}.{NAME}.{self.context}"),
            arguments=self.chosen.arguments,
            options=plan.server.options,
            rotation=plan.request.rotation,
            is_tiny=plan.is_built_in,
        )

    def _base(self) -> BaseFile:
        return BaseFile.of(self.stage.plan.store.folder, context=self.context)

    def _identity(self) -> Identity:
        return Identity(
            text_sha256=self.chosen.text_sha256,
            weights_sha256=self.stage.setup.weights.sha256,
            llama=self.chosen.llama,
            reference=str(self.reference),
            context=self.context,
            chunks_asked=self.chunks,
            vocabulary=self.stage.plan.weights.vocabulary,
            arguments=self.chosen.arguments,
            rotation=self.stage.plan.request.rotation,
        )

    def _text(self) -> Path:
        """
        The text as a file beside the base files.

        Raises:
            TextChanged: If it is another one than the settings name.
        """
        data = text_bytes(self.stage.plan, self.stage.text)
        if hashlib.sha256(data).hexdigest() != self.chosen.text_sha256:
            raise TextChanged(name=self.chosen.text)
        path = self._base().path.with_name(f"{self.chosen.text_sha256[:16]}.txt")
        write_whole(path, data)
        return path

    def _log(self, name: str) -> Path:
        # The store makes the folder of its logs.
        return self.stage.plan.store.log(self.stage.pair).with_name(f"{name}.log")

    def _note_command(self, job: Job) -> None:
        self.stage.command = tuple(command(job))

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        folder = self._base().path.parent
        try:
            yield
        except OSError as error:
            raise FolderUnwritable(folder=folder, reason=str(error)) from error
