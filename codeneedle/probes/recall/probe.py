"""
The recall probe: what is asked in which order, behind an unscored round; when written
recall is at its ceiling or its floor; why runs are not compared.
"""

import math
from collections.abc import Iterable, Iterator, Sequence

from msgspec import structs
from typing_extensions import override

from codeneedle.corpora.needles import WRITTEN_LINES, NeedleFacts
from codeneedle.document import Document
from codeneedle.engines.engine import Served
from codeneedle.errors import CellError
from codeneedle.probes import frames
from codeneedle.probes.answers import ScoredAnswer
from codeneedle.probes.cell import ProbeContext, RunContext
from codeneedle.probes.estimates import Bill, Estimates
from codeneedle.probes.metrics import Metric
from codeneedle.probes.observations import Observed, merge_chosen_settings
from codeneedle.probes.probe import (
    Probe,
    Question,
    check_and_dump_observation,
    previous_answers,
    start_server_and_ask,
)
from codeneedle.probes.reading import answer_by_reading, refuse_impossible_reading
from codeneedle.probes.recall.asked_functions import (
    PRIMING_TOKENS,
    choose_asked_functions,
    rooms,
)
from codeneedle.probes.recall.asker import (
    FunctionAsker,
    FunctionReader,
    forcing_question,
)
from codeneedle.probes.recall.bill import bill_of_functions
from codeneedle.probes.recall.further_functions import FURTHER, groups_to_read
from codeneedle.probes.recall.metrics import METRICS, right_line_metrics
from codeneedle.probes.recall.passages import reading_question
from codeneedle.probes.recall.prompts import WORDING
from codeneedle.probes.recall.record import READ, WRITTEN, recall_of
from codeneedle.probes.recall.settings import (
    FUNCTIONS_KEYS,
    NAME,
    RecallLayout,
    RecallSettings,
    Way,
    recall_layout,
    settings_of,
)
from codeneedle.probes.recall.ways import (
    default_ways,
    missing_way_phrases,
    refuse_impossible_ways,
    refuse_lines_no_function_has,
    why_not_asked_to_write,
    with_few_functions_if_open,
    would_read_lines_if_possible,
)
from codeneedle.records.record import CellRecord, Json, Run, Setup, Status, as_json
from codeneedle.text import plural

CEILING_LINES = 19.95
"""Matched lines, a mean, from which no more can be told than that nothing is lost."""

FLOOR_LINES = 1.0
"""Matched lines of the reference, a mean, up to which next to nothing can be lost."""


def _last_function_always_asked(setup: Setup) -> NeedleFacts:
    """The last function that every sweep asks for: written, else forced."""
    return (
        *recall_layout(setup).forced[: settings_of(setup).function_count],
        *recall_layout(setup).written,
    )[-1]


def _why_no_margins(run: Run) -> Iterator[str]:
    """A line that no written lines have margins, with the reason; else nothing."""
    records = [r for r in run.records if r.probe == NAME and r.has_numbers]
    rounds = [answer for record in records for answer in recall_of(record).rounds]
    written = [answer for answer in rounds if not answer.error]
    replies = [answer.reply for answer in written if answer.reply]
    drafts = any(reply.drafted for reply in replies)
    if written and not drafts and not any(reply.logprobs for reply in replies):
        unscored = {record.effective.unscored for record in records} - {""}
        told = min(unscored, default="no probabilities")
        yield f"no margins: the server tells {told}"


class RecallProbe(Probe):
    """Asks for functions verbatim, and scores their right lines."""

    @override
    def notes(self, settings: RecallSettings, estimates: Estimates) -> tuple[str, ...]:
        is_forced = (
            settings.scores_right_lines and not settings.reads_instead_of_forcing
        )
        if is_forced and would_read_lines_if_possible(estimates) and estimates.unread:
            return (f"right lines are forced, not read: {estimates.unread}",)
        return ()

    @override
    def shown_settings(self, setup: Setup) -> Json:
        """The settings without the functions, which are many."""
        stored = setup.probes.get(NAME, {})
        return {key: stored[key] for key in stored if key not in FUNCTIONS_KEYS}

    @override
    def deciding_settings(self, setup: Setup) -> Json:
        # What is written beside them changes no scores, nor does how many there are.
        shown, neutral = self.shown_settings(setup), {"functions", "way"}
        settings = {name: shown[name] for name in shown if name not in neutral}
        return settings | (
            {"way": [Way.READ]} if settings_of(setup).reads_instead_of_forcing else {}
        )

    @override
    def asked_phrases(self, setup: Setup, units: Sequence[int] = ()) -> tuple[str, ...]:
        """How many functions are written, and how many lines of others are scored."""
        if setup.probes and NAME not in setup.probes:
            return ()
        chosen, functions, phrases = settings_of(setup), recall_layout(setup), []
        if functions.written and chosen.writes_lines:
            phrases.append(f"{plural(len(functions.written), 'function')} written")
        if functions.forced:
            fewest, *more = units or [chosen.function_count]
            count = plural(more[-1] if more else fewest, "function")
            count = f"{fewest:,} to {count}" if more else count
            lines = plural(chosen.lines_per_function, "line")
            phrases.append(f"{lines} of {count} {chosen.read_or_forced_word}")
        return tuple(phrases)

    @override
    def why_incomparable(self, first: Setup, second: Setup) -> str:
        if first.corpus.sha256 != second.corpus.sha256:
            return "another text"
        ours, theirs = (
            {needle.name: needle.lines for needle in recall_layout(setup).forced}
            for setup in (first, second)
        )
        both = ours.keys() & theirs.keys()
        # The seed of the choice of functions decides where their lines begin, too.
        is_other = any(ours[name] != theirs[name] for name in both)
        return "other lines of the functions" if is_other else ""

    @override
    def adapt(self, settings: RecallSettings, estimates: Estimates) -> RecallSettings:
        """
        *settings*; where they are open, as in the run folder, or by engine and corpus.

        Raises:
            BadInput: With a setting that works.
            ToolMissing: If the engine cannot score right lines, and is to.
        """
        chosen = settings
        refuse_impossible_ways(chosen, estimates.engine)
        refuse_lines_no_function_has(chosen, estimates.corpus)
        if estimates.setup:
            chosen = merge_chosen_settings(settings_of(estimates.setup), chosen)
        if not chosen.way:
            way = default_ways(chosen, estimates)
            chosen = structs.replace(chosen, way=way)
        if estimates.decides and not estimates.has_asked_probe(NAME):
            chosen = with_few_functions_if_open(chosen)
        if chosen.reads_instead_of_forcing:
            refuse_impossible_reading(
                estimates, wanted=f"--way {Way.READ}", otherwise="--way force"
            )
        return chosen

    @override
    def as_stored(self, settings: RecallSettings, run: RunContext) -> Json:
        """
        What is asked, with the functions of the text as sent.

        Lines are scored alone where none of it is long enough to be written.
        """
        setup, chosen = run.setup, settings
        is_new, functions = NAME not in setup.probes, recall_layout(setup)
        if is_new and run.preparation:
            functions = choose_asked_functions(run, run.preparation, chosen)
        if is_new and chosen.scores_right_lines and not functions.written:
            chosen = chosen.without_writing
        if functions.forced:
            most = min(chosen.function_count, len(functions.forced))
            chosen = structs.replace(chosen, functions=most)
        stored = RecallLayout(
            wording=WORDING,
            written=functions.written,
            forced=functions.forced,
            text=functions.text,
            **structs.asdict(chosen.with_defaults),
        )
        return as_json(stored)

    @override
    def bill(self, settings: RecallSettings, estimates: Estimates) -> Bill:
        return bill_of_functions(settings, estimates)

    @override
    def questions(self, setup: Setup, goal: int | None = None) -> Iterator[Question]:
        """Functions to be written, then those whose lines are forced, or read."""
        chosen, functions = settings_of(setup), recall_layout(setup)
        for needle in functions.written if chosen.writes_lines else ():
            key = f"{WRITTEN} {needle.name}"
            yield Question(key, phrase=key, body=(Way.WRITE, needle))
        if chosen.reads_instead_of_forcing:
            yield from map(reading_question, groups_to_read(setup, goal))
        elif chosen.scores_right_lines:
            for needle in functions.forced[: goal or chosen.function_count]:
                yield forcing_question(needle)

    @override
    def measure(self, context: ProbeContext) -> Json:
        """
        Have right lines read where they are to be, then ask a server all else.

        For a check, it asks for the functions of `Further.checks` alone.
        """
        observed, setup = previous_answers(context), context.run.setup
        if context.is_check:
            start_server_and_ask(self, context, observed, lambda: FURTHER.checks(setup))
            return check_and_dump_observation(self, observed)
        if reason := why_not_asked_to_write(context):
            unwritten = (
                question.key
                for question in self.questions(setup, context.goal)
                if question.body[0] is Way.WRITE and observed.needs_asking(question.key)
            )
            observed.skipped |= dict.fromkeys(unwritten, reason)
        if settings_of(setup).reads_instead_of_forcing:
            self._drop_stale_and_read_missing(context, observed)
        if self._needs_server(context, observed):
            read_in = context.phases if context.phases.ready_s is not None else None
            start_server_and_ask(
                self, context, observed, lambda: self._questions_for_server(context)
            )
            if read_in:
                context.phases = context.phases.with_previous_added(read_in)
        return check_and_dump_observation(self, observed)

    def _questions_for_server(self, context: ProbeContext) -> Iterator[Question]:
        """Questions without lines that are read: no server is asked for these."""
        for question in self.questions(context.run.setup, context.goal):
            if question.body[0] is not Way.READ:
                yield question

    def _needs_server(self, context: ProbeContext, observed: Observed) -> bool:
        """
        Whether a server is to start.

        Not where lines are read, all else has its answer, and the command or the time
        of a start is known.
        """
        is_known = bool(context.command) or context.phases.ready_s is not None
        has_read = settings_of(context.run.setup).reads_instead_of_forcing and is_known
        return not has_read or any(
            observed.needs_asking(question.key)
            for question in self._questions_for_server(context)
        )

    def _drop_stale_and_read_missing(
        self, context: ProbeContext, observed: Observed
    ) -> None:
        """
        Have right lines read that have no scores yet.

        Answers of another layout go.
        """
        setup = context.run.setup
        every = map(
            reading_question,
            groups_to_read(setup, len(recall_layout(setup).forced)),
        )
        # Of another layout, of a setup that was lost: the same functions once more.
        read = {key for key in observed.answers if key.startswith(f"{READ} ")}
        for key in read.difference(question.key for question in every):
            del observed.answers[key]
        answer_by_reading(
            self,
            context,
            observed,
            lambda: map(reading_question, groups_to_read(setup, context.goal)),
            lambda read: FunctionReader(read, context.run.text),
        )

    @override
    def asker(
        self, served: Served, context: ProbeContext, observed: Observed
    ) -> FunctionAsker:
        """
        What asks for functions, behind an unscored round.

        That asks for a function of every sweep, so that each scored round finds the
        corpus in the cache and nothing else: the same path for all. Written rounds come
        before forced ones, and are the same with and without them.
        """
        setup, asker = context.run.setup, FunctionAsker(served, context)
        context.report_step(0, 1, "reading the corpus")
        priming = asker.ask_and_refuse_cut_prompt(
            context.run.text,
            setup.corpus.tokens,
            lambda: asker.ask_for_needle(
                _last_function_always_asked(setup), tokens=PRIMING_TOKENS
            ),
        )
        if "priming" not in observed.facts:
            observed.facts["priming"] = as_json(priming)
        return asker

    @override
    def useless_answers_error(self, observed: Observed) -> CellError | None:
        """The error if each answer has one; None once one can be scored."""
        errors = observed.error_of_each_answer
        if not all(errors):
            return None
        error, *_ = errors or ("",)
        if not any(key.startswith(WRITTEN) for key in observed.answers):
            return CellError(
                f"no right lines could be scored: {error}; --way write needs none",
                hint="Use --way write.",
                status=Status.UNSUPPORTED,
            )
        return CellError(
            f"no round has an answer: {error}",
            hint="Try --prompt-form completion, or --prefill-no-think for a model "
            "that thinks although it is told not to.",
        )

    @override
    def metrics_of(self, setup: Setup) -> tuple[Metric, ...]:
        """
        `metrics`, behind that of forced recall wherever it was asked for.

        Beside it, written recall is the same in most cells of most grids, at 20 of 20
        or near none.
        """
        forced = right_line_metrics(setup)
        return (*forced[:1], METRICS[0], *forced[1:], *METRICS[1:])

    @override
    def remarks(self, run: Run) -> tuple[str, ...]:
        """
        What its records do not tell: written recall that no pair can change; and why
        there are no margins of what was written.
        """
        lines = []
        cells = frames.cells_frame(run.of_probe(NAME), METRICS[0])
        values = [cell.value for cell in cells if cell.has_value]
        if values and min(values) >= CEILING_LINES:
            lines.append(
                f"written recall is at its ceiling: {min(values):.2f} lines of "
                f"{WRITTEN_LINES} or more with each pair, which tells none from another"
            )
        reference = frames.reference_pair(cells)
        lost = frames.value_at(cells, reference) if reference else math.inf
        if lost <= FLOOR_LINES:
            lines.append(
                f"written recall is at its floor: {lost:.2f} lines of {WRITTEN_LINES} "
                f"with {reference}, so no pair has anything to lose"
            )
        return (*lines, *_why_no_margins(run))

    @override
    def gap_phrases(self, record: CellRecord, setup: Setup) -> tuple[str, ...]:
        """Why there are no lines that were forced or read, or none written."""
        return tuple(missing_way_phrases(record, setup))

    @override
    def answers(self, run: Run, record: CellRecord) -> Iterable[ScoredAnswer]:
        """Functions that were written, then those that were forced, or read."""
        from codeneedle.probes.recall import answers

        return answers.answers(run, record)

    @override
    def overview(self, run: Run, record: CellRecord) -> Document:
        """A line for each function."""
        from codeneedle.probes.recall import answers

        return answers.overview(run, record)


PROBE = RecallProbe(
    name=NAME,
    purpose="lines of functions, verbatim",
    metrics=METRICS,
    chats=("user",),
    settings=RecallSettings,
    layout=RecallLayout,
    further=FURTHER,
    rooms=rooms,
    repeats=True,
)
