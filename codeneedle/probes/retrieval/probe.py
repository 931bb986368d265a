"""
The retrieval probe: refuses unknown tasks, and lengths that do not fit the context with
question and answer; runs of another difficulty are not compared.
"""

from collections.abc import Iterable, Iterator

from typing_extensions import override

from codeneedle.corpora.fitting import (
    STRETCHED,
    TooLong,
    Untrained,
    context_holding_tokens,
)
from codeneedle.document import Document
from codeneedle.engines.engine import Ability, Engine, Served
from codeneedle.engines.pace import CELL, Price
from codeneedle.errors import BadInput, UnknownName
from codeneedle.probes.answers import ScoredAnswer
from codeneedle.probes.cell import ProbeContext, RunContext
from codeneedle.probes.cell_metrics import OF_CELL
from codeneedle.probes.estimates import Bill, Estimates
from codeneedle.probes.metrics import Metric
from codeneedle.probes.observations import Observed
from codeneedle.probes.probe import (
    Calibrating,
    Probe,
    Question,
    check_and_dump_observation,
    previous_answers,
)
from codeneedle.probes.reading import (
    answer_by_reading,
    padded_chunk_tokens,
    refuse_impossible_reading,
)
from codeneedle.probes.retrieval.asker import TextAsker, TextReader
from codeneedle.probes.retrieval.calibrating import measure_calibration
from codeneedle.probes.retrieval.gate import Gate, skipped_lengths
from codeneedle.probes.retrieval.metrics import (
    METRICS,
    dial_and_survival_remarks,
    metrics_of_tasks,
)
from codeneedle.probes.retrieval.record import NAME, calibration_of
from codeneedle.probes.retrieval.settings import (
    LENGTHS,
    RetrievalLayout,
    RetrievalSettings,
    check_template_keeps_text,
    expected_calibration,
    layout_of,
    most_question_and_answer_tokens,
    parse_fixed_levels,
    retrieval_layout,
    sorted_distinct_lengths,
)
from codeneedle.probes.retrieval.task_kinds import TASKS
from codeneedle.probes.retrieval.texts import questions_per_text, text_keys_to_ask
from codeneedle.records.record import (
    CellRecord,
    Json,
    Run,
    Setup,
    as_json,
)
from codeneedle.text import plural

USUAL_ANSWER_TOKENS = 30
"""Written and forced together, for the time that a plan tells."""


def _refuse_unfit_lengths(
    settings: RetrievalSettings, context: int, trained: int | None
) -> None:
    """
    Stop at a length that does not fit the context with question and answer.

    Args:
        settings: What the user chose.
        context: Its size, in tokens; not above *trained*.
        trained: What the weights were trained for; None if that does not bind.

    Raises:
        Untrained: If the weights were not trained for it.
        TooLong: If the context does not hold it.
    """
    shortest, *_ = lengths = sorted_distinct_lengths(settings)
    length, room = lengths[-1], most_question_and_answer_tokens(settings, context)
    needed = length + room
    if trained and length > trained:
        raise Untrained(
            source=f"--lengths {length}",
            trained=trained,
            way=f"lengths up to {max(1, trained - room)}, or {STRETCHED}",
        )
    if needed > context:
        fits = context_holding_tokens(needed, trained) is not None
        left = (context if fits else trained or context) - room
        least = min(shortest, LENGTHS[0])
        raise TooLong(
            source=f"--lengths {length}",
            needed=needed,
            context=context,
            trained=trained,
            ways=[f"lengths up to {left}" if left >= least else "fewer --tasks"],
        )


class RetrievalProbe(Probe):
    """Asks questions on made texts, as hard as the reference can bear."""

    @override
    def own_text_name(self, _settings: RetrievalSettings, _engine: Engine) -> str:
        """Empty: it makes its texts."""
        return ""

    @override
    def adapt(
        self, settings: RetrievalSettings, estimates: Estimates
    ) -> RetrievalSettings:
        """
        *settings* as they are, if texts fit the context with question and answer.

        Raises:
            UnknownName: If there is no such task.
            BadInput: If a length, a depth or a level of a dial is none; or naming a
                context that is enough, or the longest text.
        """
        for task in settings.tasks:
            if task not in TASKS:
                raise UnknownName(kind="task", name=task, known=list(TASKS))
        for depth in settings.depths:
            if not 0 <= depth <= 1:
                raise BadInput(
                    source=f"--depths {depth:g}",
                    reason="is no depth from 0 to 1",
                    hint="Write 0.5 for the middle of a text.",
                )
        parse_fixed_levels(settings)
        if settings.reads:
            refuse_impossible_reading(
                estimates, wanted="--read-answers", otherwise="--no-read-answers"
            )
        _refuse_unfit_lengths(
            settings, estimates.context, estimates.trained_context_limit
        )
        return settings

    @override
    def bill(self, settings: RetrievalSettings, estimates: Estimates) -> Bill:
        """Each text, and an answer to each question, written and forced."""
        chosen = layout_of(settings)
        keys = text_keys_to_ask(expected_calibration(chosen), chosen)
        texts = [key.length for key in keys]
        asked = sum(map(chosen.questions_per_length, chosen.tasks)) * len(
            chosen.lengths
        )
        unset = len(chosen.tasks) - len(chosen.dial)
        dials = f"; the first pair also sets {plural(unset, 'dial')}" if unset else ""
        lengths = ", ".join(map(str, chosen.lengths))
        price = Price.of_cell(
            texts,
            written=asked * USUAL_ANSWER_TOKENS,
            depth=sum(texts) // len(texts),
        )
        if chosen.reads:
            likely = expected_calibration(chosen)
            own = [
                USUAL_ANSWER_TOKENS * questions_per_text(key.task, likely)
                for key in keys
            ]
            chunks = map(padded_chunk_tokens, texts, own)
            # A tool starts for each text, a server once.
            starts = 1 if estimates.engine.scores_prompts else len(texts)
            price = CELL * starts + Price.of_texts(*chunks)
        return Bill(
            price=price,
            phrase=f"{plural(asked, 'question')}: {', '.join(chosen.tasks)} at "
            f"{lengths} tokens{dials}",
        )

    @override
    def as_stored(self, settings: RetrievalSettings, run: RunContext) -> Json:
        """
        What is asked; without log-probabilities, that no answer is forced.

        Raises:
            BadInput: If the chat template drops the text. A run folder that has records
                of this probe was looked at before.
            ToolFailed: If that cannot be found out.
        """
        if NAME not in run.setup.probes:
            check_template_keeps_text(run, sorted_distinct_lengths(settings)[-1])
        can_force = Ability.LOG_PROBABILITIES in run.engine.abilities
        graded = "" if can_force else f"{run.engine.name} tells no probabilities"
        return as_json(layout_of(settings, graded))

    @override
    def questions(self, setup: Setup, _goal: int | None = None) -> Iterator[Question]:
        """The texts, once the reference has set how hard they are."""
        if calibration := calibration_of(setup):
            for key in text_keys_to_ask(calibration, retrieval_layout(setup)):
                what = f"{key.task} at {key.length:,} tokens: reading"
                yield Question(key.name, phrase=what, body=key)

    @override
    def metrics_of(self, setup: Setup) -> tuple[Metric, ...]:
        """`metrics`, with those of each task, and of each of several lengths."""
        return (*self.metrics, *metrics_of_tasks(setup))

    @override
    def asker(
        self, served: Served, context: ProbeContext, observed: Observed
    ) -> TextAsker:
        """
        What asks about texts, as hard as the reference can bear.

        The first pair of a run, the most precise one, sets the dials before, and the
        gate.

        Raises:
            BadInput: If no level of a task fits its shortest length.
            CellError: If the server fails.
        """
        gate = Gate(context, observed, retrieval_layout(context.run.setup))
        asker = TextAsker(served, context, gate=gate)
        if calibration_of(context.run.setup) is None:
            context.keep_calibration(NAME, as_json(measure_calibration(asker)))
        return asker

    @override
    def measure(self, context: ProbeContext) -> Json:
        """Ask a server, or read right answers; then only what sets dials is written."""
        if not retrieval_layout(context.run.setup).reads:
            return super().measure(context)
        observed = previous_answers(context)
        if calibration_of(context.run.setup) is None:
            with context.serving() as served:
                self.asker(served, context, observed)
        setup = context.run.setup
        gate = Gate(context, observed, retrieval_layout(setup))
        answer_by_reading(
            self,
            context,
            observed,
            lambda: self.questions(context.run.setup),
            lambda read: TextReader(gate, read),
        )
        return check_and_dump_observation(self, observed)

    @override
    def why_incomparable(self, first: Setup, second: Setup) -> str:
        """Why dials that found different settings are not compared; empty if equal."""
        dials = [
            [(dial.task, dial.level) for dial in calibration.dials]
            for setup in (first, second)
            if (calibration := calibration_of(setup))
        ]
        return (
            "tasks of another difficulty" if dials[1:] and dials[0] != dials[1] else ""
        )

    @override
    def answers(self, run: Run, record: CellRecord) -> Iterable[ScoredAnswer]:
        """Questions about texts."""
        from codeneedle.probes.retrieval import answers

        return answers.answers(run, record)

    @override
    def overview(self, _run: Run, record: CellRecord) -> Document:
        """How many were right, and how the others failed."""
        from codeneedle.probes.retrieval import answers

        return answers.overview(record)

    @override
    def remarks(self, run: Run) -> tuple[str, ...]:
        """The path of each dial, how long answers survive."""
        return dial_and_survival_remarks(run)

    @override
    def gap_phrases(self, record: CellRecord, setup: Setup) -> tuple[str, ...]:
        """Lengths that were not asked on purpose."""
        return tuple(
            f"{gap.task} at {gap.length:,} tokens was not asked: {gap.reason}"
            for gap in skipped_lengths(setup, record)
        )


PROBE = RetrievalProbe(
    name=NAME,
    purpose="questions by length and depth",
    metrics=(*METRICS, *OF_CELL),
    chats=("user",),
    settings=RetrievalSettings,
    layout=RetrievalLayout,
    asks_by_length=True,
    makes_texts=True,
    repeats=True,
    calibrating=Calibrating(),
    skipped=lambda run, record: skipped_lengths(run.setup, record),
)
