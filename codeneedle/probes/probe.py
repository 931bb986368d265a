"""
What a probe is, and how it asks a server: question by question, again when a connection
breaks; and when a prompt counts as cut.
"""

import bisect
import hashlib
from abc import ABC, abstractmethod
from collections.abc import (
    Callable,
    Iterable,
    Iterator,
    Sequence,
)
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

from msgspec import Struct
from typing_extensions import override

from codeneedle.corpora.corpus import Corpus
from codeneedle.corpora.fitting import Room
from codeneedle.document import Document
from codeneedle.engines.engine import (
    Ability,
    Engine,
    Served,
)
from codeneedle.engines.messages import (
    BadReply,
    Chat,
    Completion,
    Forced,
    Generation,
    PromptCut,
    Rendered,
    Reply,
    ServerGone,
)
from codeneedle.engines.pace import Pace, Price
from codeneedle.errors import CellError
from codeneedle.probes import observations
from codeneedle.probes.answers import ScoredAnswer, Skipped
from codeneedle.probes.cell import ProbeContext, RunContext
from codeneedle.probes.estimates import Bill, Estimates
from codeneedle.probes.metrics import LossKind, Metric
from codeneedle.probes.observations import Answer, Observed
from codeneedle.probes.prompts import Prompts
from codeneedle.probes.thinking import thought_and_answer
from codeneedle.records.record import (
    CellRecord,
    Json,
    Run,
    Setup,
    as_json,
)
from codeneedle.text import one_line

if TYPE_CHECKING:
    from codeneedle.engines.engine import PromptScorer

BACK_OFF_S = (0.1, 0.5, 2.0)
"""How long to wait before each further attempt, in seconds."""

LEAST_READ = 0.9
"""
Least share of the tokens of a text that a server reads of a prompt that holds it.

Parts that are counted apart have some tokens more: each begins anew, maybe in a chat.
"""

PART_CHARACTERS = 2_000
"""Of a text, counted apart: engines that estimate lengths count so much exactly."""

_Answer = TypeVar("_Answer")
_Read = TypeVar("_Read", bound=Generation | Answer)


@dataclass(frozen=True, slots=True)
class Question:
    """What a probe asks of a pair."""

    key: str  # what makes it this question, for every pair of a run
    phrase: str = ""  # what it is, for the progress of a cell
    body: Any = None  # what its probe needs to ask it


class Answering(ABC):
    """What has the questions of a probe answered, by a server or a tool."""

    __slots__ = ()

    @abstractmethod
    def ask(self, question: Question) -> object:
        """
        The answer to *question*, as it is stored.

        Raises:
            CellError: If the server or the tool fails.
        """

    def why_pointless(self, _question: Question) -> str:
        """Why not to ask it, by other answers; empty if it is to be asked."""
        return ""


@dataclass(slots=True)
class Asker(Answering):
    """
    Asks one server the questions of a probe.

    It retries broken connections, never a completed reply: that is not asked for again.

    Its methods raise CellError if the server fails, or if the connection breaks at each
    attempt.
    """

    served: Served  # the server
    context: ProbeContext  # the cell
    retries: tuple[str, ...] = field(default=(), init=False)
    """Why attempts of the last request failed before it was answered."""

    @override
    def ask(self, question: Question) -> object:
        raise NotImplementedError

    def wait_until_idle(self) -> None:
        """Wait, with retries, until the server is idle, before it is stopped."""
        self.ask_with_retries(self.served.client.wait_idle)

    def ask_and_refuse_cut_prompt(
        self, text: str, tokens: int, ask: Callable[[], _Read]
    ) -> _Read:
        """
        What *ask* returns: the first reply to a prompt that holds *text*.

        If too little seems to be read, the text is counted, and asked about again:
        lengths that an engine estimates are too high for uneven texts, by a third.
        One without a length is counted in any case.

        Args:
            text: What the prompt holds.
            tokens: Its length as it was counted or estimated; 0 if neither.
            ask: Sends the prompt.

        Raises:
            PromptCut: If the server counts fewer tokens in the prompt than in the text.
        """
        reply = ask()
        read, tokenizer = reply.prompt_tokens, self.served.tokenizer
        # 0: the server does not count.
        if not read or tokenizer is None or (tokens and read >= LEAST_READ * tokens):
            return reply
        is_estimated = bool(self.context.run.setup.lengths)
        size = PART_CHARACTERS if is_estimated else max(1, len(text))
        parts = (text[at : at + size] for at in range(0, len(text), size))
        counted = sum(map(tokenizer.count_tokens, parts))
        if read < LEAST_READ * counted:
            raise PromptCut(
                f"it counts {read:,} tokens, the text alone has about {counted:,}"
            )
        return ask() if tokens else reply

    def request_reply(
        self, question: Chat | Completion, enough: Callable[[str], bool]
    ) -> Reply:
        """The reply to *question*, ended once there is *enough* of it."""
        with self.context.record_request_span():
            return self.ask_with_retries(lambda: self.send_once(question, enough))

    def score_reply(self, name: str, question: Chat | Completion, right: str) -> Answer:
        """
        The answer with the scores of the *right* reply to *question*, token by token.

        What a server tells no possible score of has an error in their place.

        Raises:
            CellError: If the server fails, or the connection breaks at each attempt.
        """
        blank = Answer(name=name, prompt_sha256=prompt_sha256(question))
        try:
            with self.context.record_request_span():
                scores = self.ask_with_retries(
                    lambda: self.served.client.force(question, right)
                )
        except BadReply as error:
            return replace(blank, error=self.why_unscored(error))
        return replace(blank, scores=scores, retries=self.retries)

    def why_unscored(self, error: BadReply) -> str:
        """What an answer says of the *error* that it has in place of scores."""
        return one_line(str(error))

    def send_once(
        self,
        question: Chat | Completion,
        enough: Callable[[str], bool] = lambda _so_far: False,
    ) -> Reply:
        """
        The reply to *question*, at the first attempt; ended once there is *enough*.

        Of a rendered chat, its thought is told apart, and only the answer counts.
        """
        client = self.served.client
        if isinstance(question, Chat):
            return client.chat(question, enough=enough)
        if not isinstance(question, Rendered):
            return client.complete(question, enough=enough)
        reply = client.complete(
            question, enough=lambda so_far: enough(thought_and_answer(so_far)[1])
        )
        thought, answer = thought_and_answer(reply.text)
        return replace(reply, text=answer, reasoning=thought) if thought else reply

    def score_passages(
        self, prompt: str, passages: Sequence[tuple[int, int]]
    ) -> list[Forced]:
        """
        The scores of *passages* of a *prompt* where they stand in it, by one request.

        For engines that score prompts; see `PromptScorer`.
        """
        seed = self.context.run.setup.seed
        question = Completion(prompt=prompt, seed=seed, max_tokens=1)
        client = cast("PromptScorer", self.served.client)
        with self.context.record_request_span():
            return self.ask_with_retries(lambda: client.force_each(question, passages))

    def ask_with_retries(self, ask: Callable[[], _Answer]) -> _Answer:
        """
        What *ask* returns; again after each of `BACK_OFF_S` if the connection breaks.

        Only as long as the server lives. `retries` says why earlier attempts failed.
        """
        self.retries = ()
        for wait_s in BACK_OFF_S:
            try:
                return ask()
            except ServerGone as error:
                # A connection also breaks when a server dies, before it is gone.
                if self.served.wait_for_end(wait_s):
                    raise
                self.retries += (one_line(str(error)),)
        return ask()


def prompt_sha256(question: Chat | Completion) -> str:
    """Hash of what was sent; of a chat, each message on a line of its own."""
    if isinstance(question, Completion):
        text = str(question.prompt)
    else:
        text = "\n".join(f"{said.role}: {said.content}" for said in question.messages)
    return hashlib.sha256(text.encode()).hexdigest()


class Further(ABC):
    """How open pairs are asked for further units by a probe: `Probe.further`."""

    metric: str  # name of the metric by which pairs are open
    setting: str  # name of the setting that says how many units every sweep asks for

    @abstractmethod
    def units_at_looks(self, setup: Setup) -> Sequence[int]:
        """
        After how many units a pair is judged, ascending: those of every sweep first.

        Empty where every pair is asked the same.
        """

    @abstractmethod
    def planned_units_at_looks(
        self, settings: Any, estimates: Estimates
    ) -> Sequence[int]:
        """
        `units_at_looks`, estimated before any unit was counted.

        Numbers of units, what every pair is asked first; empty where nothing fits.
        """

    @abstractmethod
    def planned_check(self, settings: Any, estimates: Estimates) -> Bill | None:
        """What `checks` take of a pair, by an estimate; None without any."""

    @abstractmethod
    def price(self, setup: Setup, goal: int, known: int) -> Price:
        """What a pair takes until it has *goal* units, of which so many are *known*."""

    @abstractmethod
    def pace(self, record: CellRecord, setup: Setup) -> Pace:
        """How fast the cell of *record* was, which has units."""

    @abstractmethod
    def units(self, record: CellRecord) -> int:
        """How many units a record holds of those that open pairs are asked for."""

    @abstractmethod
    def checks(self, setup: Setup) -> Sequence[Question]:
        """
        What checks a pair that is to be set, another way than all pairs are measured.

        The reference is asked the same. Empty where there is no other way.
        """

    def needs_check(self, record: CellRecord, setup: Setup) -> bool:
        """Whether *record* lacks an answer to one of `checks`."""
        return not {
            check.key for check in self.checks(setup)
        } <= answered_or_skipped_keys(record)

    def look_number(self, record: CellRecord, setup: Setup) -> int:
        """How many looks *record* is beyond what every sweep asks: 0 for that."""
        return bisect.bisect_left(self.units_at_looks(setup), self.units(record))


@dataclass(frozen=True, slots=True)
class Calibrating:
    """
    What the first pair that a probe measures, the reference, sets for all others, which
    wait for it: `ProbeContext.calibrate`, `Probe.calibrating`.
    """

    decides: bool = True
    """Whether it decides what is asked or counts; else what a tool compares with."""

    def calibration_lines(self, _setup: Setup) -> tuple[str, ...]:
        """What it has set that users should know while a sweep runs, a line each."""
        return ()

    def recover_calibration(self, _records: Sequence[CellRecord]) -> Json | None:
        """What *records* of the probe tell of it after a loss; None if nothing."""
        return None


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
    """Type of what a setup stores of it, by which it is checked; None if it is not."""

    needs: frozenset[Ability] = frozenset()
    """What an engine must be able to do, beside answering."""

    further: Further | None = None
    """How open pairs are asked for further units; None if all are asked the same."""

    repeats: bool = False
    """
    Whether the most precise pair is measured again after all others: its two values
    differ by noise alone. Not for the built-in model.
    """

    rooms: Callable[[Any, Corpus, Prompts], Iterator[Room]] | None = None
    """
    What the text of a corpus leaves room for, by its settings, the preferred first.

    None where any text will do: then there is room for what recall asks, which may be
    measured later.
    """

    skipped: Callable[[Run, CellRecord], Sequence[Skipped]] | None = None
    """What a finished record was not asked on purpose; None if nothing is left out."""

    asks_by_length: bool = False
    """Whether it asks about texts of several lengths, which its answers name."""

    asked_by: str = ""
    """
    Name of the setting that asks for the probe where its name is not given; empty for
    none.
    """

    chats: tuple[str, ...] = ()
    """
    Roles of the messages that it sends as chats, ``user assistant user``, each of which
    is rendered once for all cells; without a begun answer.
    """

    makes_texts: bool = False
    """
    Whether the seed of a run decides its texts, and its layout does not tell them.
    """

    calibrating: Calibrating | None = None
    """What the reference sets for all pairs; None for nothing."""

    saves_cache: bool = False  # whether its server may save its cache
    thinks: bool = False  # whether the model may think before it answers
    is_timed: bool = False
    """
    Whether it measures time, and has the machine for itself; its first metric is the
    speed of writing.
    """

    step: str = "round"  # what one of its steps is, for the progress of a cell

    @property
    def has_loss_metric(self) -> bool:
        """Whether it measures losses, rather than speeds or a change alone."""
        kinds = {metric.loss.kind for metric in self.metrics if metric.loss}
        return bool(kinds - {LossKind.CHANGE})

    # --- before the first cell

    def needs_of(self, _engine: Engine) -> frozenset[Ability]:
        """What an engine must be able to do: `needs`, unless engines differ in that."""
        return self.needs

    def adapt(self, settings: Any, _estimates: "Estimates") -> Struct:
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

    def own_text_name(self, _settings: Any, _engine: Engine) -> str | None:
        """
        What it reads in place of the corpus: a name; empty if that has none.

        None if it reads the corpus. Where no probe does, the corpus is neither counted
        nor fitted, and a run is filed under the first name.
        """
        return None

    def notes(self, _settings: Any, _estimates: Estimates) -> tuple[str, ...]:
        """What a user should know before it starts, one sentence each."""
        return ()

    def bill(self, _settings: Any, _estimates: Estimates) -> Bill | None:
        """What a cell takes; None where nothing can be said before the first one."""
        return None

    def as_stored(self, settings: Any, _run: RunContext) -> Json:
        """
        *settings* as the setup of a run stores them, once its text is counted.

        They must be equal for records to be comparable.
        What a probe chooses from text or engine is what the run has stored of it, or is
        chosen of `RunContext.preparation`.

        Raises:
            CodeneedleError: If it cannot measure this run.
        """
        return as_json(settings)

    def questions(self, _setup: Setup, _goal: int | None = None) -> Iterable[Question]:
        """
        What *setup* asks of every pair, in asking order.

        Args:
            _setup: With what the reference has set.
            _goal: See `ProbeContext.goal`.
        """
        return ()

    # --- cell by cell

    def measure(self, context: ProbeContext) -> Json:
        """
        Ask a server what has no answer yet, and return the observation to store.

        Raises:
            CellError: If the server fails, or no answer can be used.
        """
        observed = previous_answers(context)
        start_server_and_ask(
            self,
            context,
            observed,
            lambda: self.questions(context.run.setup, context.goal),
        )
        return check_and_dump_observation(self, observed)

    def asker(self, served: Served, context: ProbeContext, observed: Observed) -> Asker:
        """
        What asks *served*, once it is ready to: it has read a text, if there is one.

        Adds the facts of the cell to *observed*.

        Raises:
            CellError: If the server fails.
        """
        raise NotImplementedError

    def useless_answers_error(self, _observed: Observed) -> CellError | None:
        """Why no answer so far can be used; None if one can, whatever comes behind."""
        return None

    # --- what was stored

    def metrics_of(self, _setup: Setup) -> tuple[Metric, ...]:
        """
        `metrics`, with those that only this layout has.

        The first is what reports show where none is named.
        """
        return self.metrics

    def shown_settings(self, setup: Setup) -> Json:
        """Its settings under *setup*, as reports tell them; empty for none."""
        return setup.probes.get(self.name, {})

    def deciding_settings(self, setup: Setup) -> Json:
        """Those of `shown_settings` that decide answers, not how many there are."""
        return self.shown_settings(setup)

    def asked_phrases(
        self, _setup: Setup, _units: Sequence[int] = ()
    ) -> tuple[str, ...]:
        """
        What it asks under a setup, a phrase each, beside the text and the context.

        Of so many units of `Further`, ascending, as cells have; empty for those of the
        settings.
        """
        return ()

    def remarks(self, run: Run) -> tuple[str, ...]:
        """What its records of a run say in words, a line each."""
        return self.left_out_lines(run)

    def left_out_lines(self, _run: Run) -> tuple[str, ...]:
        """
        What of its units is in no number of a run, and why, a line each: copies, and
        units an answer of which has no score. Verdicts say it, too.
        """
        return ()

    def gap_phrases(self, _record: CellRecord, _setup: Setup) -> tuple[str, ...]:
        """Parts that a record was asked for and has nothing of: a phrase with why."""
        return ()

    def caveats(self, _run: Run) -> tuple[str, ...]:
        """What its numbers say nothing about, though it was asked for, a line each."""
        return ()

    def why_incomparable(self, _first: Setup, _second: Setup) -> str:
        """
        Why answers under equal settings are not compared; empty if they are.

        Then units of one name are the same question under both setups.
        """
        return ""

    def answers(self, _run: Run, _record: CellRecord) -> Iterable[ScoredAnswer]:
        """What became of each question of a finished record."""
        return ()

    def overview(self, _run: Run, _record: CellRecord) -> Document:
        """All answers of a finished record, a line each."""
        return ()


# --- the one loop that has questions answered


def previous_answers(context: ProbeContext) -> Observed:
    """What an earlier server of the cell was asked and observed; empty without one."""
    if context.previous_record and context.previous_record.observation:
        return observations.observation_of(context.previous_record, Observed)
    return Observed(answers={})


def start_server_and_ask(
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
        observed: What is known of it; this start and answers are added.
        questions: Called behind each answer, as one may set what is asked then.

    Raises:
        CellError: If the server fails.
    """
    observed.starts += 1
    context.report_step(0, 1, "loading")
    with context.serving(saves=probe.saves_cache, thinks=probe.thinks) as served:
        asker = probe.asker(served, context, observed)
        ask_and_keep_missing_answers(probe, context, observed, questions, asker)
        asker.wait_until_idle()
        context.report_step(1, 1, "stopping")


def ask_and_keep_missing_answers(
    probe: Probe,
    context: ProbeContext,
    observed: Observed,
    questions: Callable[[], Iterable[Question]],
    asker: Answering,
) -> None:
    """
    Have *asker* answer all *questions* without an answer, or skip pointless ones.

    Each is kept once one answer can be used; other arguments are those of
    `start_server_and_ask`.

    Raises:
        CellError: If what answers fails.
    """
    done, is_useful = 0, False
    while left := [
        probe_question
        for probe_question in questions()
        if observed.needs_asking(probe_question.key)
    ]:
        question, *_ = left
        context.report_step(done, done + len(left), question.phrase)
        if reason := asker.why_pointless(question):
            observed.skipped[question.key] = reason
        else:
            observed.answers[question.key] = as_json(asker.ask(question))
            done += 1
        # Once is enough: it may read all answers.
        is_useful = is_useful or probe.useless_answers_error(observed) is None
        if is_useful:
            context.store_observation_so_far(as_json(observed))


def check_and_dump_observation(probe: Probe, observed: Observed) -> Json:
    """
    What was *observed* of a cell, to be stored.

    Raises:
        CellError: If no answer can be used.
    """
    if error := probe.useless_answers_error(observed):
        raise error
    return as_json(observed)


def answered_or_skipped_keys(record: CellRecord) -> set[str]:
    """Keys of the questions that *record* has an answer to, or has skipped."""
    observation = record.observation or {}
    return {*observation.get("answers", ()), *observation.get("skipped", ())}
