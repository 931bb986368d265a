"""
A run and one of its cells, as a probe is given them: a server that is verified before
it is asked, progress, log files, and the phases of its time.
"""

import contextlib
import itertools
import shutil
import time
from collections.abc import (
    Callable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from msgspec import Struct

from codeneedle.cache_types import Pair
from codeneedle.corpora.corpus import Corpus
from codeneedle.engines.attention_place import with_attention_place
from codeneedle.engines.engine import (
    CellSpec,
    Engine,
    Served,
    Tokenizer,
)
from codeneedle.engines.messages import Progress
from codeneedle.engines.mismatch import mismatch_error
from codeneedle.engines.silence_limits import SilenceLimit, silence_limit_of
from codeneedle.engines.survey import Survey
from codeneedle.engines.tools import ToolRun
from codeneedle.models.weights import Weights
from codeneedle.probes.prompts import Prompts
from codeneedle.records.record import (
    Attention,
    CellRecord,
    Effective,
    Json,
    Phases,
    Setup,
)
from codeneedle.records.store import LOGS
from codeneedle.system.files import make_or_empty_folder, make_unlinked_folder

_Settings = TypeVar("_Settings", bound=Struct)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """What is the same for every cell of a run."""

    engine: Engine  # serves the model, and has the tools beside the server
    weights: Weights  # header of the model
    is_built_in: bool  # whether it is the built-in model
    setup: Setup  # text, prompt form, sampling; settings of the probes
    text: str  # the corpus as it is sent
    settings: Mapping[str, Struct]
    """
    What the user chose for each probe, by its name, for what is read anew by each
    sweep and is in the setup by its hash alone: a file, or a command.
    """

    folder: Path  # the run folder
    prefill_no_think: bool = False  # whether to begin answers with an empty thought
    survey: Survey | None = None
    """Where attention would run for each pair; None if the engine cannot say."""

    preparation: "Preparation | None" = None  # None from the first cell on
    notes: tuple[str, ...] = ()
    """What a user should know before the first cell, one sentence each."""

    def chosen_or_default_settings(self, kind: type[_Settings], name: str) -> _Settings:
        """
        What the user chose for the probe *name*, whose settings are a *kind*.

        The defaults of *kind* if nothing was chosen.
        """
        settings = self.settings.get(name, kind())
        if not isinstance(settings, kind):
            raise TypeError(f"settings of {name} are {type(settings).__name__}")
        return settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """What probes choose from before the first cell, where a run is new to them."""

    corpus: Corpus  # as far as it is sent
    whole: Corpus
    trained: int | None  # see `Estimates`
    prompts: Callable[[], Prompts]
    """Gives what renders and counts prompts; its tokenizer is started once."""

    notes: list[str]  # what a user should know of what was chosen, one sentence each


@contextlib.contextmanager
def tokenizing(engine: Engine, folder: Path) -> Iterator[Tokenizer]:
    """
    The tokenizer of *engine* before the first cell, its log in the run *folder*.

    Raises:
        BadInput: If the engine does not take the user's arguments.
        FolderUnusable: If the log cannot be written.
        ToolFailed: If it fails otherwise.
    """
    log = make_unlinked_folder(folder / LOGS) / "counting.log"
    with engine.tokenizing(log=log) as tokenizer:
        yield tokenizer


@dataclass(frozen=True, slots=True)
class Step:
    """How far a probe is."""

    done: int  # steps behind it; `Probe.step` says of what
    total: int  # steps that it takes
    what: str  # what it does now, as a phrase
    within: Progress | None = None
    """How far the request of this step is; None before a server says so."""

    is_wait: bool = False
    """Whether nothing is done, and users should know even without a terminal."""

    @property
    def share_done(self) -> float:
        """
        Share of all steps that is done, from 0 to 1.

        Reading a text counts as none.
        """
        at = self.within
        begun = 0.0
        if at and at.total and not at.is_prompt:
            begun = min(1.0, at.done / at.total)
        return (self.done + begun) / self.total

    @property
    def step_progress_phrase(self) -> str:
        """What it does now, with how far that is: tokens read, or written."""
        at = self.within
        if at is None:
            return self.what
        if not at.is_prompt:
            return f"{self.what}, token {at.done:,} of {at.total:,}"
        return f"{self.what}: {at.done / at.total:.0%} of {at.total:,} tokens"


@dataclass(slots=True, kw_only=True)
class ProbeContext:
    """One cell while a probe measures it."""

    run: RunContext  # what is the same for every cell
    pair: Pair  # the cache types of this cell
    logs: Path  # folder of the log files; it exists
    tell: Callable[[Step], None] = lambda _step: None
    """Called with how far the probe is."""

    previous_record: CellRecord | None = None
    """
    What an earlier server of this cell has measured, before it ended early or the
    settings grew; None if nothing.
    """

    goal: int | None = None
    """
    Units to ask for, of those that were answered and others; None for as many as every
    sweep asks.
    """

    variant: str = ""  # see `CellRecord`
    is_check: bool = False  # whether `Probe.checks` are asked, and nothing else
    store_observation_so_far: Callable[[Json], None] = lambda _observation: None
    """Called with all observed so far once an answer is new; the runner sets it."""

    calibrate: Callable[[Json], None] = lambda _facts: None
    """
    Called with what this cell, the reference, sets for all others; the setup of the run
    keeps it as `Setup.calibrated`.
    """

    identify: Callable[[str], None] = lambda _program: None
    """
    Called with a hash of the program that serves the cell, before anything is asked;
    raises `OtherSetup` if other cells were served by another one.
    """

    others: Sequence[CellRecord] = ()
    """Finished records of other pairs, which were asked the same."""

    previous_end: float | None = None
    """
    When the server of the cell before had ended, in monotonic seconds; from `serving`
    on, that of this cell. None if there was none.
    """

    clock: Callable[[], float] = time.monotonic
    """Seconds from any moment on: phases, and what a tool takes, are told by it."""

    command: tuple[str, ...] = ()  # what the server or tool was started with
    effective: Effective = field(default_factory=Effective)
    """What runs, once it is known."""

    phases: Phases = field(default_factory=Phases)  # where the time went, so far
    peak_rss_bytes: int | None = None
    """Largest resident size that was seen of its servers, earlier ones included."""

    silence_s: float | None = None
    """
    Longest wait for the server or tool to say something; None if that was not measured.
    """

    device_bytes: int | None = None
    """What the server held on accelerators when it was through."""

    device_peak_bytes: int | None = None
    """The most that it held there, where the engine tells."""

    _now: Step = field(default=Step(0, 1, ""), init=False)
    _first_request: float | None = field(default=None, init=False)
    _last_reply: float | None = field(default=None, init=False)
    _measured_s: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        """Begin with the memory and silence of the previous record: they may stay."""
        if previous := self.previous_record:
            self.peak_rss_bytes = previous.peak_rss_bytes
            self.silence_s = previous.silence_s
            self.device_bytes = previous.device_bytes
            self.device_peak_bytes = previous.device_peak_bytes

    @property
    def cell(self) -> CellSpec:
        """What the server is asked for."""
        return CellSpec(self.pair, self.run.setup.context)

    def report_step(self, done: int, total: int, what: str) -> None:
        """Note and tell how far the probe is; arguments are those of `Step`."""
        self._now = Step(done, total, what)
        self.tell(self._now)

    def report_wait(self, what: str) -> None:
        """Tell that nothing is done but to wait for something, *what* as a phrase."""
        self.tell(Step(0, 1, what, is_wait=True))

    def report_substep(self, what: str) -> None:
        """Tell *what* is done now of the same step."""
        self.report_step(self._now.done, self._now.total, what)

    def keep_calibration(self, probe: str, facts: Json) -> None:
        """
        Keep the *facts* that this cell, the reference, sets for all.

        Use them from now on.
        """
        self.calibrate(facts)
        calibrated = {**self.run.setup.calibrated, probe: facts}
        self.run = replace(
            self.run, setup=replace(self.run.setup, calibrated=calibrated)
        )

    def _report_progress(self, within: Progress) -> None:
        """Tell the present step again, with how far the request *within* it is."""
        self.tell(replace(self._now, within=within))

    def cell_log_path(self, name: str = "") -> Path:
        """
        Path of a log of this cell, which may not exist.

        *name* tells it from the server's.
        """
        return self.logs / f"{self.pair.slug}{f'.{name}' if name else ''}.log"

    @contextlib.contextmanager
    def serving(self, *, saves: bool = False, thinks: bool = False) -> Iterator[Served]:
        """
        A verified server with the cell's cache types, for the length of a block.

        Keeps its command, what runs, the time of its phases, and its largest memory.

        Args:
            saves: Whether it may save its cache, in a folder that is deleted later.
            thinks: Whether the model may think before it answers.

        Raises:
            CellError: If it does not get ready, or is not what was asked for.
            FolderUnusable: If the folder cannot be made.
            OtherSetup: See `identify`.
        """
        # Reports know probes, and do not wait for what asks servers.
        from codeneedle.engines.started_servers import reporting_waits

        moments: list[float | None] = [self.previous_end, self.clock()]
        self._forget_request_times()
        try:
            with contextlib.ExitStack() as stack:
                slots = (
                    stack.enter_context(self._temporary_slot_folder())
                    if saves
                    else None
                )
                cell = replace(self.cell, slots=slots, thinks=thinks)
                stack.enter_context(reporting_waits(self.report_wait))
                serving = self.run.engine.serving(cell, log=self.cell_log_path())
                served = stack.enter_context(serving)
                differences = served.differences_from_cell(self.cell)
                self._record_server_facts(served)
                if differences:
                    raise mismatch_error(differences)
                if program := served.program_hash():
                    self.identify(program)
                moments.append(self.clock())
                served.client.tell = self._report_progress
                try:
                    with self.limit_and_record_silence() as served.client.silence_limit:
                        yield served
                    # Only once it is through: a driver may take seconds.
                    self._record_device_memory(served)
                finally:
                    self._record_server_facts(served)
                    left = self._last_reply or self.clock()
                    moments += (self._first_request, left)
        finally:
            self.previous_end = self.clock()
            phases = _phases_between(moments, end=self.previous_end)
            tools = Phases(measure_s=self._measured_s)
            self.phases = (
                phases.with_previous_added(tools) if self._measured_s else phases
            )

    def _forget_request_times(self) -> None:
        """Forget the requests of an earlier server of the cell, before one starts."""
        self._first_request = self._last_reply = None

    @contextlib.contextmanager
    def _temporary_slot_folder(self) -> Iterator[Path]:
        """A folder for the cache, which is deleted later: it holds the text."""
        # There may be one of a program that was killed.
        folder = make_or_empty_folder(
            self.cell_log_path().with_suffix(".slots"), mode=0o700
        )
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    @contextlib.contextmanager
    def limit_and_record_silence(self) -> Iterator[SilenceLimit]:
        """
        The limit of silence by other cells whose attention runs in the same place.

        The longest silence in the block is kept when it ends.
        """
        survey = self.run.survey
        here = self.effective.attention or (
            survey and survey.expected_attention_place(self.pair)
        )
        chosen = silence_limit_of(
            {
                other.pair: other.silence_s
                for other in self.others
                if here and other.attention is here and other.silence_s is not None
            }
        )
        try:
            yield chosen
        finally:
            self.silence_s = round(max(self.silence_s or 0.0, chosen.longest_s), 3)

    @contextlib.contextmanager
    def record_request_span(self) -> Iterator[None]:
        """
        Note when the first request of the server begins, and when the last one ended.

        A request that fails moves only the beginning.
        """
        self._first_request = self._first_request or self.clock()
        yield
        self._last_reply = self.clock()

    @contextlib.contextmanager
    def record_tool_time(self) -> Iterator[None]:
        """Count the time of the block as measured: that of a tool, not a server."""
        began = self.clock()
        try:
            yield
        finally:
            spent_s = self.clock() - began
            self._measured_s += spent_s
            measure_s = round((self.phases.measure_s or 0.0) + spent_s, 4)
            self.phases = replace(self.phases, measure_s=measure_s)

    def record_tool_run(self, run: ToolRun) -> None:
        """Keep the command of a tool, and what runs once it is known."""
        self.command = run.command
        if run.effective:
            self.effective = self._with_attention_place(run.effective)

    def _with_attention_place(self, effective: Effective) -> Effective:
        """*effective* with where attention ran, by engine, splits or survey."""
        run = self.run
        if run.engine.has_attention_on_cpu:
            evidence = "attention was put on the CPU, without flash attention"
            return replace(
                effective, attention=Attention.CPU, attention_evidence=evidence
            )
        is_split = run.engine.splits_graph
        return with_attention_place(effective, run.survey, self.pair, is_split=is_split)

    def _record_server_facts(self, served: Served) -> None:
        """Keep the command, what runs, and the largest resident size of *served*."""
        self.command = served.command
        self.effective = self._with_attention_place(served.effective())
        seen = served.peak_rss_bytes()
        self.peak_rss_bytes = max(seen or 0, self.peak_rss_bytes or 0) or None

    def _record_device_memory(self, served: Served) -> None:
        """Keep what *served* holds on accelerators; what it does not tell stays."""
        now, most = served.device_bytes(), served.device_peak_bytes()
        self.device_bytes = self.device_bytes if now is None else now
        if most is not None:
            self.device_peak_bytes = max(most, self.device_peak_bytes or 0)


def _phases_between(moments: Sequence[float | None], *, end: float) -> Phases:
    """
    The spans between moments, in monotonic seconds; None for one not reached.

    Args:
        moments: End of the previous server, launch, ready, first request, last reply.
        end: End of this server.
    """
    padded = [*moments, None, None, None]
    previous, launch, ready, first, last = padded[:5]
    ends = (launch or end, ready or end, first or end, last or end, end)
    spans = [round(b - a, 4) for a, b in itertools.pairwise(ends)]
    return Phases(
        between_s=None if previous is None else round(ends[0] - previous, 4),
        ready_s=spans[0],
        start_s=spans[1] if ready else None,
        measure_s=spans[2] if first else None,
        stop_s=spans[3] if ready else None,
    )
