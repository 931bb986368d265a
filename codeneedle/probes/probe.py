"""The probe protocol, and what a probe is given to measure one cell."""

import bisect
import contextlib
import itertools
import math
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import (
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from msgspec import Struct

from codeneedle.corpora.corpus import Corpus
from codeneedle.corpora.fitting import Room
from codeneedle.document import Document
from codeneedle.engines.engine import (
    Ability,
    CellSpec,
    Engine,
    Pace,
    Served,
    Tokenizer,
)
from codeneedle.engines.evidence import mismatched
from codeneedle.engines.messages import Progress
from codeneedle.engines.patience import Patience, patience
from codeneedle.engines.survey import Survey, with_attention
from codeneedle.engines.tools import ToolRun
from codeneedle.errors import CellError
from codeneedle.grid import Pair
from codeneedle.models.weights import Weights
from codeneedle.probes import stored
from codeneedle.probes.answers import Answer, Skipped
from codeneedle.probes.metrics import Metric
from codeneedle.probes.prompts import PromptForm, Prompts
from codeneedle.probes.stored import Observed
from codeneedle.records.record import (
    Attention,
    CellRecord,
    Effective,
    Json,
    Phases,
    Run,
    Setup,
    as_json,
    base_name,
)
from codeneedle.records.store import LOGS
from codeneedle.system.files import emptied, made_own

_Settings = TypeVar("_Settings", bound=Struct)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """What is the same for every cell of a run."""

    engine: Engine  # serves the model, and has the tools beside the server
    weights: Weights  # header of the model
    is_built_in: bool  # whether it is the built-in model
    setup: Setup  # text, prompt form, sampling; settings of the probes
    text: str  # the corpus as it is sent
    settings: Mapping[str, Struct]  # what the user chose for each probe, by its name
    folder: Path  # the run folder
    prefill_no_think: bool = False  # whether to begin answers with an empty thought
    survey: Survey | None = None
    """Where attention would run for each pair; None if the engine cannot say."""

    preparation: "Preparation | None" = None  # None from the first cell on
    notes: tuple[str, ...] = ()
    """What a user should know before the first cell, one sentence each."""

    workers: int = 1  # cells that are measured side by side
    may_grow: bool = False
    """
    Whether a probe may ask for more units than it was told to where these take no
    longer: of a sweep that decides, for which no number was named.
    """

    def settings_of(self, kind: type[_Settings], name: str) -> _Settings:
        """What the user chose for the probe *name*, whose settings are a *kind*."""
        settings = self.settings.get(name, kind())
        if not isinstance(settings, kind):
            raise TypeError(f"settings of {name} are {type(settings).__name__}")
        return settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """What probes choose from before the first cell, where a run is new to them."""

    corpus: Corpus  # as far as it is sent
    whole: Corpus
    trained: int | None  # as of `Estimates`
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
    log = made_own(folder / LOGS) / "counting.log"
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

    @property
    def part(self) -> float:
        """How much of all steps is done, from 0 to 1; reading a text counts as none."""
        at = self.within
        begun = 0.0
        if at and at.total and not at.is_prompt:
            begun = min(1.0, at.done / at.total)
        return (self.done + begun) / self.total

    @property
    def phrase(self) -> str:
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

    former: CellRecord | None = None
    """
    What an earlier server of this cell has measured, before it ended early or the
    settings grew; None if nothing.
    """

    goal: int | None = None
    """
    Units to ask for, of those that were answered and others; None for as many as every
    sweep asks.
    """

    is_check: bool = False  # whether `Probe.checks` are asked, and nothing else
    keep: Callable[[Json], None] = lambda _observation: None
    """Called with all that was observed so far, once an answer is new."""

    calibrate: Callable[[Json], None] = lambda _facts: None
    """
    Called with what this cell, the reference, sets for all others; the setup of the run
    keeps it as `Setup.calibrated`.
    """

    others: Sequence[CellRecord] = ()
    """Finished records of other pairs, which were asked the same."""

    previous_end: float | None = None
    """
    When the server of the cell before had ended, in monotonic seconds; from `serving`
    on, that of this cell. None if there was none.
    """

    command: tuple[str, ...] = ()  # what the server or tool was started with
    effective: Effective = field(default_factory=Effective)
    """What runs, once it is known."""

    phases: Phases = field(default_factory=Phases)  # where the time went, so far
    peak_rss_bytes: int | None = None
    """Largest resident size of the server that was seen."""

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

    @property
    def cell(self) -> CellSpec:
        """What the server is asked for."""
        return CellSpec(self.pair, self.run.setup.context)

    def step(self, done: int, total: int, what: str) -> None:
        """Tell how far the probe is."""
        self._now = Step(done, total, what)
        self.tell(self._now)

    def substep(self, what: str) -> None:
        """Tell *what* is done now of the same step."""
        self.step(self._now.done, self._now.total, what)

    def set_for_all(self, probe: str, facts: Json) -> None:
        """Go on with what this cell, the reference, sets for all others; keep it."""
        self.calibrate(facts)
        calibrated = {**self.run.setup.calibrated, probe: facts}
        self.run = replace(
            self.run, setup=replace(self.run.setup, calibrated=calibrated)
        )

    def _tell_progress(self, within: Progress) -> None:
        self.tell(replace(self._now, within=within))

    def log(self, name: str = "") -> Path:
        """A log file of this cell; *name* tells it from the server's."""
        return self.logs / f"{self.pair.slug}{f'.{name}' if name else ''}.log"

    @contextlib.contextmanager
    def serving(self, *, saves: bool = False, thinks: bool = False) -> Iterator[Served]:
        """
        A verified server with the cell's cache types, for the length of a block.

        Args:
            saves: Whether it may save its cache, in a folder that is deleted later.
            thinks: Whether the model may think before it answers.

        Raises:
            CellError: If it does not get ready, or is not what was asked for.
            FolderUnusable: If the folder cannot be made.
        """
        moments: list[float | None] = [self.previous_end, time.monotonic()]
        self._forget_requests()
        try:
            with contextlib.ExitStack() as stack:
                slots = stack.enter_context(self._slots()) if saves else None
                cell = replace(self.cell, slots=slots, thinks=thinks)
                serving = self.run.engine.serving(cell, log=self.log())
                served = stack.enter_context(serving)
                differences = served.verify(self.cell)
                self._observe(served)
                if differences:
                    raise mismatched(differences)
                moments.append(time.monotonic())
                served.client.tell = self._tell_progress
                try:
                    with self.patience() as served.client.patience:
                        yield served
                    # Only once it is through: a driver may take seconds.
                    self.device_bytes = served.device_bytes()
                    self.device_peak_bytes = served.device_peak_bytes()
                finally:
                    self._observe(served)
                    left = self._last_reply or time.monotonic()
                    moments += (self._first_request, left)
        finally:
            self.previous_end = time.monotonic()
            phases = _phases(moments, end=self.previous_end)
            tools = Phases(measure_s=self._measured_s)
            self.phases = phases.after(tools) if self._measured_s else phases

    def _forget_requests(self) -> None:
        """Before a server starts: those of an earlier one of the cell are its own."""
        self._first_request = self._last_reply = None

    @contextlib.contextmanager
    def _slots(self) -> Iterator[Path]:
        """A folder for the cache, which is deleted later: it holds the text."""
        # There may be one of a program that was killed.
        folder = emptied(self.log().with_suffix(".slots"), mode=0o700)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    @contextlib.contextmanager
    def patience(self) -> Iterator[Patience]:
        """With the silence of a server or tool, which is kept when the block ends."""
        survey = self.run.survey
        here = self.effective.attention or (survey and survey.attention(self.pair))
        chosen = patience(
            {
                each.pair: each.silence_s
                for each in self.others
                if here and each.attention is here and each.silence_s is not None
            }
        )
        try:
            yield chosen
        finally:
            self.silence_s = round(max(self.silence_s or 0.0, chosen.longest_s), 3)

    @contextlib.contextmanager
    def asking(self) -> Iterator[None]:
        """Mark the time of a request and its reply, as opposed to waiting."""
        self._first_request = self._first_request or time.monotonic()
        yield
        self._last_reply = time.monotonic()

    @contextlib.contextmanager
    def measuring(self) -> Iterator[None]:
        """Count the time of the block as measured: that of a tool, not a server."""
        began = time.monotonic()
        try:
            yield
        finally:
            spent_s = time.monotonic() - began
            self._measured_s += spent_s
            measure_s = round((self.phases.measure_s or 0.0) + spent_s, 4)
            self.phases = replace(self.phases, measure_s=measure_s)

    def observe_tool(self, run: ToolRun) -> None:
        """Keep the command of a tool, and what runs once it is known."""
        self.command = run.command
        if run.effective:
            self.effective = self._placed(run.effective)

    def _placed(self, effective: Effective) -> Effective:
        run = self.run
        if run.engine.is_on_cpu:
            evidence = "attention was put on the CPU, without flash attention"
            return replace(
                effective, attention=Attention.CPU, attention_evidence=evidence
            )
        is_split = run.engine.splits_graph
        return with_attention(effective, run.survey, self.pair, is_split=is_split)

    def _observe(self, served: Served) -> None:
        self.command = served.command
        self.effective = self._placed(served.effective())
        seen = served.peak_rss_bytes()
        self.peak_rss_bytes = max(seen or 0, self.peak_rss_bytes or 0) or None


def _phases(moments: Sequence[float | None], *, end: float) -> Phases:
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


BYTES_PER_TOKEN = {"incompressible": 1.4}
"""
Of generated text, whose names and values are random: 1.39 of random-bodies and 1.43 of
random-bodies-mini by SmolLM2's vocabulary.
"""

TEXT_SHARE = 0.85
"""Of a context, what a text may fill beside a question and its answer, about."""

USUAL_BYTES_PER_TOKEN = 3.5
"""Of source code, likewise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimates:
    """What is known of a run before its first cell, without a server."""

    corpus: Corpus  # all of it
    context: int  # in tokens
    engine: Engine  # serves the model, and has the tools beside the server
    weights: Weights  # header of the model
    is_built_in: bool  # whether it is the built-in model, whose tokens are bytes
    folder: Path  # the run folder
    seed: int  # of the run
    prompt_form: PromptForm  # form of the prompts
    prefill_no_think: bool = False  # whether to begin answers with an empty thought
    setup: Setup | None = None
    """Of the run folder; None of a new one, whose lengths are estimated."""

    is_whole: bool = False  # whether the corpus must not be trimmed to the context
    decides: bool = False
    """Whether what was measured chooses the pair that is measured next."""

    pace: Pace | None = None  # how fast the model is; None if that is unknown
    cells: int = 1  # pairs that may be measured, the reference included
    unread: str = "the engine was not asked"
    """As of `Engine.unread`."""

    workers: int = 1  # as of `RunContext`
    may_grow: bool = False  # as of `RunContext`
    functions: int | None = None
    """Functions of a cell, in place of those that were chosen; None for these."""

    @property
    def trained(self) -> int | None:
        """Tokens that the weights were trained for; None if that does not bind."""
        if self.engine.stretches_context:
            return None
        return self.weights.training_context or None

    @property
    def can_read(self) -> bool:
        """Whether the engine reads right tokens of a text here."""
        return not self.unread

    def knows(self, probe: str) -> bool:
        """Whether the run folder has been asked *probe* before."""
        return self.setup is not None and probe in self.setup.probes

    def tokens(self, characters: float) -> int:
        """About how many tokens *characters* of the corpus are."""
        known = self.setup.corpus if self.setup else None
        each = BYTES_PER_TOKEN.get(self.corpus.kind, USUAL_BYTES_PER_TOKEN)
        if self.is_built_in:
            each = 1.0
        elif known and known.is_counted:
            each = known.characters / known.tokens
        return math.ceil(characters / each)

    @property
    def share(self) -> float:
        """About how much of the corpus is sent, from 0 to 1."""
        if self.setup and self.setup.corpus.is_counted:
            return self.setup.corpus.characters / len(self.corpus.text)
        if self.is_whole:
            return 1.0
        room = TEXT_SHARE * self.context
        return min(1.0, room / self.tokens(len(self.corpus.text)))

    @property
    def text_tokens(self) -> int:
        """About how many tokens of the corpus are sent."""
        return self.tokens(self.share * len(self.corpus.text))


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a cell takes, about, for the time that a plan tells."""

    texts: tuple[int, ...] = ()
    """Lengths of the texts that are read, each from an empty cache, in tokens."""

    written: int = 0  # tokens that are written or forced one after the other
    depth: int = 0  # tokens before these, a mean
    phrase: str = ""  # what is asked, for the plan
    first: "Work | None" = None
    """What the reference takes beside that, as it leads; None for nothing."""

    spared: "Work | None" = None
    """
    What is left of it where the reference shows that a part of it says nothing; None if
    it shows no such thing.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """What the questions of a record took, in seconds."""

    units: tuple[float, ...] = ()
    """Each unit of those that open pairs can be asked for in addition."""

    questions_s: float = 0.0  # all questions, these included
    servers: int = 1  # servers that it took; each read the text once
    text_s: float | None = None
    """
    A further text without its questions; None for what is left of the time of a server.
    """


@dataclass(frozen=True, slots=True)
class Question:
    """What a probe asks of a pair."""

    key: str  # what makes it this question, for every pair of a run
    phrase: str = ""  # what it is, for the progress of a cell
    body: Any = None  # what its probe needs to ask it


class Asking(Protocol):
    """Asks one server the questions of a probe."""

    def why_pointless(self, question: Question) -> str:
        """Why not to ask *question*, by other answers; empty if it is to be asked."""

    def ask(self, question: Question) -> object:
        """
        The answer to *question*, as it is stored.

        Raises:
            CellError: If the server fails.
        """

    def settle(self) -> None:
        """Wait until the server is idle, before it is stopped."""


@dataclass(frozen=True, slots=True)
class Growth(ABC):
    """What can be added to the settings of a probe in a run folder: `Probe.growth`."""

    names: tuple[str, ...]
    """Conditions that have more values then, as settings of these names ask for."""

    def joined(self, stored: Json, wanted: Json) -> Json:
        """The *wanted* conditions, with what those of a run folder ask in addition."""
        return wanted | {
            name: sorted({*stored[name], *wanted[name]}) for name in self.names
        }

    def choice(self, settings: type[Struct], conditions: Json) -> dict[str, Any]:
        """Values for *settings* that ask for *conditions* again."""
        names = {*self.names} & {*settings.__struct_fields__}
        values = {name: conditions[name] for name in self.names if name in names}
        return {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}

    @abstractmethod
    def narrowed(self, setup: Setup, records: Sequence[CellRecord]) -> Json:
        """The conditions in *setup*, of what all *records* have answers to."""


class Further(ABC):
    """How open pairs are asked for further units by a probe: `Probe.further`."""

    metric: str  # name of the metric by which pairs are open
    setting: str  # name of the setting that says how many units every sweep asks for

    @abstractmethod
    def unit_ends(self, setup: Setup) -> Sequence[int]:
        """
        After how many units a pair is judged, ascending: those of every sweep first.

        Empty where every pair is asked the same.
        """

    @abstractmethod
    def planned_ends(self, settings: Any, outlook: Estimates) -> Sequence[int]:
        """As `unit_ends`, by an estimate before any unit was counted."""

    @abstractmethod
    def reads_again(self, settings: Any, outlook: Estimates) -> bool:
        """Whether a pair is likely to read its text again behind each of these ends."""

    @abstractmethod
    def times(self, record: CellRecord) -> Times:
        """What the questions of a record took."""

    @abstractmethod
    def checks(self, setup: Setup) -> Sequence[Question]:
        """
        What checks a pair that is to be set, another way than all pairs are measured.

        The reference is asked the same. Empty where there is no other way.
        """

    def unchecked(self, record: CellRecord, setup: Setup) -> bool:
        """Whether *record* lacks an answer to one of `checks`."""
        return not {each.key for each in self.checks(setup)} <= answered(record)

    def units(self, record: CellRecord) -> int:
        """How many units a record holds of those that open pairs are asked for."""
        return len(self.times(record).units)

    def look(self, record: CellRecord, setup: Setup) -> int:
        """How often *record* got further units: 0 for what every sweep asks."""
        return bisect.bisect_left(self.unit_ends(setup), self.units(record))


class NoSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of a probe that has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """
    One way to measure a cell. To add one is to add a folder, and a line to `PROBES`.

    Methods that take settings get an instance of its own `settings`.
    """

    name: str  # what ``--probe`` takes; part of its records' file names
    purpose: str  # what it measures, in a few words, for ``--help``
    metrics: tuple[Metric, ...]
    """What its records can be asked for; the first is its headline."""

    settings: type[Struct] = NoSettings
    """
    What a user may choose, all fields with a default: the table of the probe's name in
    a sweep file, and the options that the fields' metadata names.
    """

    layout: type | None = None
    """Of its conditions, as a setup stores them; None if it has none."""

    growth: Growth | None = None
    """What can be added to its settings in a run folder; None for nothing."""

    needs: frozenset[Ability] = frozenset()
    """What an engine must be able to do, beside answering."""

    further: Further | None = None
    """How open pairs are asked for further units; None if all are asked the same."""

    repeats: bool = False
    """
    Whether the most precise pair is measured again after all others: its two values
    differ by noise alone.
    """

    neutral: frozenset[str] = frozenset()
    """Names of settings that change no answer, only how many there are."""

    asked_by: str = ""
    """
    Name of the setting that asks for the probe where its name is not given; empty for
    none.
    """

    makes_texts: bool = False
    """
    Whether the seed of a run decides its texts, and its conditions do not tell them.
    """

    calibrates: bool = False
    """
    Whether the first pair that it measures, the reference, sets what holds for all
    others, which wait for it: `ProbeContext.calibrate`.
    """

    saves_cache: bool = False  # whether its server may save its cache
    thinks: bool = False  # whether the model may think before it answers
    is_timed: bool = False
    """
    Whether it measures time, and has the machine for itself; its first metric is the
    speed of writing.
    """

    step: str = "round"  # what one of its steps is, for the progress of a cell

    # --- before the first cell

    def adapt(self, settings: Any, _outlook: "Estimates") -> Struct:
        """
        *settings* as they suit engine, weights, corpus, context and run folder.

        Called once, before a server is started; what can be refused without one is
        refused here.

        Raises:
            BadInput: With settings that work.
            MachineError: If a tool is missing, or disk or memory do not suffice.
        """
        adapted: Struct = settings
        return adapted

    def may_lead(self, _settings: Any, _outlook: Estimates) -> bool:
        """Whether the reference may set something for all: it is measured first."""
        return self.calibrates

    def own_text(self, _settings: Any, _engine: Engine) -> str | None:
        """
        What it reads in place of the corpus: a name; empty if that has none.

        None if it reads the corpus. Where no probe does, the corpus is neither counted
        nor fitted, and a run is filed under the first name.
        """
        return None

    def rooms(
        self, _settings: Any, _corpus: Corpus, _prompts: Prompts
    ) -> Iterator[Room]:
        """
        What the text of a corpus leaves room for, the preferred first.

        Nothing where any text will do: then there is room for what recall asks, which
        may be measured later.
        """
        yield from ()

    def notes(self, _settings: Any, _outlook: Estimates) -> tuple[str, ...]:
        """What a user should know before it starts, one sentence each."""
        return ()

    def work(self, _settings: Any, _outlook: Estimates) -> Work | None:
        """What a cell takes; None where nothing can be said before the first one."""
        return None

    def as_stored(self, run: RunContext) -> Json:
        """
        Its settings as the setup of *run* stores them, once its text is counted.

        They must be equal for records to be comparable, but for those in `growth`.
        What a probe chooses from text or engine is what *run* has stored of it, or is
        chosen of `RunContext.preparation`.

        Raises:
            CodeneedleError: If it cannot measure this run.
        """
        return as_json(run.settings_of(self.settings, self.name))

    def questions(self, _setup: Setup, _goal: int | None = None) -> Iterable[Question]:
        """
        What *setup* asks of every pair, in asking order.

        Args:
            _setup: With what the reference has set.
            _goal: As of `ProbeContext.goal`.
        """
        return ()

    def leads(self, _setup: Setup) -> bool:
        """Whether the first cell of a run, the reference, sets something for all."""
        return self.calibrates

    def set_by_reference(self, _setup: Setup) -> tuple[str, ...]:
        """What it has set that users should know while a sweep runs, a line each."""
        return ()

    # --- cell by cell

    def measure(self, context: ProbeContext) -> Json:
        """
        Ask a server what has no answer yet, and return the observation to store.

        Raises:
            CellError: If the server fails, or no answer can be used.
        """
        observed = known(context)
        ask(
            self,
            context,
            observed,
            lambda: self.questions(context.run.setup, context.goal),
        )
        return usable(self, observed)

    def asker(
        self, served: Served, context: ProbeContext, observed: Observed
    ) -> Asking:
        """
        What asks *served*, once it is ready to: it has read a text, if there is one.

        Adds the facts of the cell to *observed*.

        Raises:
            CellError: If the server fails.
        """
        raise NotImplementedError

    def useless(self, _observed: Observed) -> CellError | None:
        """Why no answer so far can be used; None if one can."""
        return None

    # --- what was stored

    def metrics_of(self, _setup: Setup) -> tuple[Metric, ...]:
        """
        `metrics`, with those that only these conditions have.

        The first is what reports show where none is named.
        """
        return self.metrics

    def remarks(self, _run: Run) -> tuple[str, ...]:
        """What its records of a run say in words, a line each."""
        return ()

    def told(self, setup: Setup) -> Json:
        """Its settings under *setup*, as reports tell them."""
        return setup.probes.get(self.name, {})

    def asks(self, _setup: Setup, _units: int | None = None) -> tuple[str, ...]:
        """
        What it asks under a setup, a phrase each, where settings tell too little.

        Of so many units of `Further` where these are not those of the settings.
        """
        return ()

    def refusal(self, _first: Setup, _second: Setup) -> str:
        """Why answers under equal settings are not compared; empty if they are."""
        return ""

    def has_same_units(self, _first: Setup, _second: Setup) -> bool:
        """Whether units of one name are the same question under both setups."""
        return True

    def answers(self, _run: Run, _record: CellRecord) -> Iterable[Answer]:
        """What became of each question of a finished record."""
        return ()

    def skipped(self, _run: Run, _record: CellRecord) -> Sequence[Skipped]:
        """What a finished record was not asked on purpose."""
        return ()

    def overview(self, _run: Run, _record: CellRecord) -> Document:
        """All answers of a finished record, a line each."""
        return ()


# --- the one loop that asks a server


def known(context: ProbeContext) -> Observed:
    """What an earlier server of the cell was asked; nothing without one."""
    if context.former and context.former.observation:
        return stored.observed(context.former, Observed)
    return Observed(answers={})


def ask(
    probe: Probe,
    context: ProbeContext,
    observed: Observed,
    questions: Callable[[], Iterable[Question]],
) -> None:
    """
    Ask a server all *questions* that *observed* has no answer to, and keep each answer.

    Args:
        probe: Whose they are.
        context: The cell.
        observed: What is known of it; answers are added.
        questions: Called behind each answer, as one may set what is asked then.

    Raises:
        CellError: If the server fails.
    """
    observed.starts += 1
    context.step(0, 1, "loading")
    with context.serving(saves=probe.saves_cache, thinks=probe.thinks) as served:
        asker, done = probe.asker(served, context, observed), 0
        while left := [each for each in questions() if observed.lacks(each.key)]:
            question, *_ = left
            context.step(done, done + len(left), question.phrase)
            if reason := asker.why_pointless(question):
                observed.skipped[question.key] = reason
            else:
                observed.answers[question.key] = as_json(asker.ask(question))
                done += 1
            if probe.useless(observed) is None:
                context.keep(as_json(observed))
        asker.settle()
        context.step(1, 1, "stopping")


def usable(probe: Probe, observed: Observed) -> Json:
    """
    What was *observed* of a cell, to be stored.

    Raises:
        CellError: If no answer can be used.
    """
    if error := probe.useless(observed):
        raise error
    return as_json(observed)


def answered(record: CellRecord) -> set[str]:
    """Keys of the questions that *record* has an answer to, or has skipped."""
    observation = record.observation or {}
    return {*observation.get("answers", ()), *observation.get("skipped", ())}


def lacks(probe: Probe, record: CellRecord, setup: Setup) -> bool:
    """
    Whether *setup* asks more of *probe* than the cell of *record* was asked.

    It is then measured with its record as `ProbeContext.former`, for what it lacks.
    Repeated measurements stay as they are.
    """
    is_whole = record.observation is not None and not record.is_partial
    if not is_whole or base_name(record.probe) != record.probe:
        return False
    keys = {question.key for question in probe.questions(setup)}
    return not keys <= answered(record)
