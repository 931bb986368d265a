"""The recall probe: asks for functions verbatim and stores the replies."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from msgspec import structs
from typing_extensions import override

from codeneedle.corpora.corpus import LIMIT, Corpus
from codeneedle.corpora.needles import (
    WRITTEN_LINES,
    NeedleFacts,
    block_ends,
)
from codeneedle.document import Document
from codeneedle.engines.engine import Ability, Engine, Served
from codeneedle.errors import BadInput, CellError, CodeneedleError
from codeneedle.models.kv_cache import padded
from codeneedle.probes import frames
from codeneedle.probes.answers import ScoredAnswer
from codeneedle.probes.cell import ProbeContext, RunContext
from codeneedle.probes.estimates import Estimates, Times, Work
from codeneedle.probes.metrics import Metric
from codeneedle.probes.observations import Observed, chosen_over
from codeneedle.probes.probe import (
    Calibrating,
    Further,
    Probe,
    Question,
    Telling,
    ask,
    checked_observation,
    known,
)
from codeneedle.probes.recall.asker import FunctionAsker
from codeneedle.probes.recall.choice import (
    FORCED_BESIDE,
    ask_phrase,
    choice_phrase,
    known_choice,
    planned_choice,
    seen_choice,
    tried_choice,
    without_reading,
)
from codeneedle.probes.recall.fitting import PRIMING_TOKENS, functions_of, rooms
from codeneedle.probes.recall.metrics import (
    FORCED,
    METRICS,
    forced_metrics,
)
from codeneedle.probes.recall.prompts import WORDING
from codeneedle.probes.recall.reading import (
    Group,
    chunks_read,
    groups,
    question_lines,
    reader,
    refuse_reading,
)
from codeneedle.probes.recall.record import (
    NAME,
    READ,
    WRITTEN,
    ForcedRound,
    Round,
    recall_in,
    recall_of,
)
from codeneedle.probes.recall.settings import (
    DECIDING_FUNCTIONS,
    DECIDING_LINES,
    FUNCTIONS_KEYS,
    Ask,
    By,
    RecallCalibration,
    RecallLayout,
    RecallSettings,
    choice_in,
    functions_in,
    leaves_open,
    settings_of,
    stated_in,
    with_choice,
)
from codeneedle.records.record import (
    CellRecord,
    Json,
    Phases,
    Run,
    Setup,
    Status,
    as_json,
)
from codeneedle.text import plural

CEILING_LINES = 19.95
"""Matched lines, a mean, from which no more can be told than that nothing is lost."""

FLOOR_LINES = 1.0
"""Matched lines of the reference, a mean, up to which next to nothing can be lost."""


def _phrase(chosen: RecallSettings, written: int, forced: int) -> str:
    """What is asked of so many functions."""
    phrases = []
    if Ask.WRITTEN in chosen.parts:
        functions, limit = plural(written, "function"), chosen.reply_tokens
        until = f", up to {plural(limit, 'token')} each" if limit else ""
        phrases.append(f"{WRITTEN_LINES} lines of {functions} written{until}")
    if Ask.FORCED in chosen.parts:
        functions, lines = plural(forced, "function"), plural(chosen.line_count, "line")
        phrases.append(f"{lines} of {functions} {chosen.how}")
    return "; ".join(phrases)


def _least(corpus: Corpus, chosen: RecallSettings, estimates: Estimates) -> int:
    """About the tokens of the shortest part with a function, as it is asked for."""
    if not corpus.of_length(chosen.line_count):
        return 0
    lines_before_and_right = WRITTEN_LINES / corpus.line_count * len(corpus.text)
    shortest = len(corpus.shortest(chosen.line_count))
    return estimates.tokens(shortest + lines_before_and_right)


def _too_little(least: int) -> str:
    """What a plan says where the sweep is likely to refuse the context."""
    return (
        f"the context is too small: one function takes about {least:,} tokens with "
        f"question and answer; use --context {padded(least)} or more"
    )


def _expected(chosen: RecallSettings, estimates: Estimates) -> tuple[int, int]:
    """About how many functions of the text as sent are written, and forced."""
    corpus, share = estimates.corpus, estimates.share
    long = math.floor(share * len(corpus.of_length(WRITTEN_LINES)))
    all_lines = math.floor(share * len(corpus.of_length(chosen.line_count)))
    return min(long, corpus.sample_k), min(all_lines, chosen.function_count)


def _last_of_every_sweep(setup: Setup) -> NeedleFacts:
    return (
        *functions_in(setup).forced[: settings_of(setup).function_count],
        *functions_in(setup).written,
    )[-1]


def _settings_alone(stored: Json) -> Json:
    """What a setup has *stored* of recall, without what follows from the text."""
    return {key: stored[key] for key in stored if key not in FUNCTIONS_KEYS}


def _gaps(run: Run) -> Iterator[str]:
    """Why no record has forced scores, or margins, where the same is true of all."""
    records = [r for r in run.records if r.probe == NAME and r.has_numbers]
    recalls = [recall_of(record) for record in records]
    forced = [answer for each in recalls for answer in each.scored]
    errors = {answer.error for answer in forced}
    if forced and "" not in errors:
        yield f"no forced recall: {min(errors)}"
    written = [answer for each in recalls for answer in each.rounds if not answer.error]
    drafts = any(answer.drafted for answer in written)
    if written and not drafts and not any(answer.logprobs for answer in written):
        unscored = {record.effective.unscored for record in records} - {""}
        told = min(unscored, default="no probabilities")
        yield f"no margins: the server tells {told}"


def _left_open(run: RunContext, chosen: RecallSettings) -> RecallSettings:
    """*chosen* settings of a new run, with what is left to its reference."""
    if chosen.ask is None and Ability.FORCED in run.engine.abilities:
        chosen = structs.replace(chosen, ask=Ask.AUTOMATIC)
    is_forced = Ask.FORCED in chosen.parts
    is_open = chosen.by is None and is_forced
    context, workers = run.setup.context, run.workers
    if is_open and not run.engine.unread(context, workers=workers):
        chosen = structs.replace(chosen, by=By.AUTOMATIC)
    return chosen


def _is_only_reference(context: ProbeContext) -> bool:
    """Whether this is the reference, and no other pair was measured in this run."""
    previous = context.previous_record
    # Such a cell is told of no other pair.
    is_timed_out = previous is not None and previous.status is Status.TIMED_OUT
    return not context.others and not is_timed_out


def _forget_read(observed: Observed) -> None:
    """Drop right lines that were read in vain, but for the time that this took."""
    recall = recall_in(observed, file=NAME)
    for key in [key for key in observed.answers if key.startswith(f"{READ} ")]:
        del observed.answers[key]
    observed.facts.pop("texts_s", None)
    if recall.read:
        observed.facts["tried_s"] = round(recall.reading_s, 4)


def _require_forced(engine: Engine) -> None:
    """Stop at an *engine* that cannot score right lines: they can be written."""
    try:
        engine.require(Ability.FORCED)
    except CodeneedleError as error:
        error.hint = f"{error.hint.removesuffix('.')}, or --ask written."
        raise


def _refuse_unused(settings: RecallSettings, engine: Engine) -> None:
    """
    Stop at *settings* of lines that are forced: they are written alone.

    Raises:
        BadInput: With what works with this engine.
    """
    reason, hint = f"--engine {engine.name} forces none here", "Leave it out."
    if Ability.FORCED in engine.abilities:
        reason = "--ask written forces none"
        hint = "Leave it out, or use --ask both."
    for name in ("functions", "lines"):
        value = getattr(settings, name)
        if value is not None:
            raise BadInput(
                source=f"--{name} {value}",
                reason=f"is of lines that are forced; {reason}",
                hint=hint,
            )


def _as_engine_can(settings: RecallSettings, engine: Engine) -> RecallSettings:
    """
    *settings* as *engine* can ask them: without a choice, what it can.

    Raises:
        CodeneedleError: If it cannot score right lines, and is to; or if settings of
            forced lines are given where lines are written alone, or a limit of replies
            where they are forced alone.
    """
    if settings.reply_tokens and settings.ask is Ask.FORCED:
        raise BadInput(
            source=f"--reply-tokens {settings.reply_tokens}",
            reason="is of lines that are written; --ask forced writes none",
            hint="Leave it out, or use --ask written.",
        )
    can_force = Ability.FORCED in engine.abilities
    if settings.ask in {Ask.FORCED, Ask.BOTH}:
        _require_forced(engine)
    elif settings.ask is Ask.WRITTEN or not can_force:
        _refuse_unused(settings, engine)
        return structs.replace(settings, ask=Ask.WRITTEN)
    elif settings.reply_tokens:
        return structs.replace(settings, ask=Ask.BOTH)
    return settings


def _brief(chosen: RecallSettings, estimates: Estimates) -> RecallSettings:
    """*chosen* for a sweep that decides: a few functions, forced alone."""
    if Ability.FORCED not in estimates.engine.abilities:
        return chosen
    if chosen.ask is None:
        chosen = structs.replace(chosen, ask=Ask.FORCED)
    if Ask.FORCED not in chosen.parts:
        return chosen
    return structs.replace(
        chosen,
        functions=chosen.functions or DECIDING_FUNCTIONS,
        lines=chosen.lines or DECIDING_LINES,
    )


def _refuse_short(chosen: RecallSettings, corpus: Corpus) -> None:
    """
    Stop at lines that no function of *corpus* has.

    Raises:
        BadInput: With a setting that works.
    """
    longest = max(function.content_lines for function in corpus.functions)
    if chosen.ask in {Ask.WRITTEN, Ask.BOTH} and longest < WRITTEN_LINES:
        raise BadInput(
            source=f"--ask {chosen.ask}",
            reason=f"no function of corpus {corpus.name} has {WRITTEN_LINES} lines "
            f"to write; the longest has {longest} that are not blank",
            # Whoever is asked for both can force.
            hint="Use another --corpus"
            f"{', or --ask forced' if chosen.ask is Ask.BOTH else ''}.",
        )
    if chosen.lines and longest < chosen.lines:
        raise BadInput(
            source=f"--lines {chosen.lines}",
            reason=f"no function of corpus {corpus.name} has so many; the longest "
            f"has {longest} that are not blank",
            hint=f"Use --lines {longest} or less, or another --corpus.",
        )


class FurtherFunctions(Further):
    """Open pairs are asked for further functions whose lines are forced, or read."""

    metric = FORCED[0].name
    setting = "functions"

    @override
    def planned_ends(
        self, settings: RecallSettings, estimates: Estimates
    ) -> Sequence[int]:
        if Ask.FORCED not in settings.parts:
            return []
        there = len(estimates.corpus.of_length(settings.line_count))
        functions = math.floor(estimates.share * there)
        choice = planned_choice(settings, estimates)
        first = (choice and choice.functions) or settings.function_count
        return block_ends(first, min(functions, LIMIT)) if functions else []

    @override
    def reads_again(self, settings: RecallSettings, estimates: Estimates) -> bool:
        chosen = planned_choice(settings, estimates)
        return (chosen or with_choice(settings, estimates.setup)).by is By.READING

    @override
    def times(self, record: CellRecord) -> Times:
        recall = recall_of(record)
        return Times(
            units=tuple(each.wall_s for each in recall.scored),
            questions_s=recall.tried_s
            + math.fsum(each.wall_s for each in recall.answers),
            servers=max(recall.starts, 1),
            text_s=fmean(recall.texts_s) if recall.texts_s else None,
        )

    @override
    def checks(self, setup: Setup) -> Sequence[Question]:
        # Where lines are read, the first functions are forced.
        chosen = settings_of(setup)
        if not chosen.is_reading:
            return ()
        few = min(FORCED_BESIDE, chosen.function_count)
        return [
            Question(key, phrase=key, body=(Ask.FORCED, needle))
            for needle in functions_in(setup).forced[:few]
            for key in [f"{Ask.FORCED} {needle.name}"]
        ]

    @override
    def unit_ends(self, setup: Setup) -> list[int]:
        first = settings_of(setup).function_count
        return (
            block_ends(first, len(functions_in(setup).forced))
            if functions_in(setup).forced
            else []
        )


FURTHER = FurtherFunctions()


class Choosing(Calibrating):
    """How lines are scored, and whether any are written, where that is left open."""

    @override
    def may_calibrate(self, _settings: RecallSettings, estimates: Estimates) -> bool:
        return estimates.can_read

    @override
    def calibrates(self, setup: Setup) -> bool:
        return leaves_open(setup)

    @override
    def told(self, setup: Setup) -> tuple[str, ...]:
        # What is asked from then on, how right lines are scored, and why.
        choice, others = choice_in(setup), len(setup.grid) - 1
        phrases = [ask_phrase(choice, others), choice_phrase(choice)] if choice else []
        return tuple(filter(None, phrases))


class RecallTelling(Telling):
    """What is asked, as the reference has set it."""

    neutral = frozenset({"ask", "functions"})

    @override
    def settings(self, setup: Setup) -> Json:
        # As the reference has set them; what is read is not forced.
        chosen = settings_of(setup)
        told = _settings_alone(setup.probes[NAME]) | as_json(chosen)
        is_alone = Ask.WRITTEN not in chosen.parts
        hidden = {"ask" if is_alone else ""} if chosen.is_reading else {"by"}
        return {name: each for name, each in told.items() if name not in hidden}

    @override
    def phrases(self, setup: Setup, units: int | None = None) -> tuple[str, ...]:
        # How many functions are written, and how many lines of others are forced.
        if setup.probes and NAME not in setup.probes:
            return ()
        phrases = []
        chosen = settings_of(setup)
        if functions_in(setup).written and Ask.WRITTEN in chosen.parts:
            phrases.append(
                f"{plural(len(functions_in(setup).written), 'function')} written"
            )
        if functions_in(setup).forced:
            functions = plural(units or chosen.function_count, "function")
            phrases.append(
                f"{plural(chosen.line_count, 'line')} of {functions} {chosen.how}"
            )
        return tuple(phrases)


class RecallProbe(Probe):
    """Asks for functions verbatim, and scores their right lines."""

    @override
    def notes(self, settings: RecallSettings, estimates: Estimates) -> tuple[str, ...]:
        may_read = Ask.FORCED in settings.parts and settings.by is not By.WRITING
        can = (
            Ability.READING in estimates.engine.abilities and not estimates.is_built_in
        )
        if may_read and can and estimates.unread:
            return (f"right lines are forced, not read: {estimates.unread}",)
        return ()

    @override
    def refusal(self, first: Setup, second: Setup) -> str:
        if first.corpus.sha256 != second.corpus.sha256:
            return "another text"
        ours, theirs = (
            {each.name: each.lines for each in functions_in(setup).forced}
            for setup in (first, second)
        )
        both = ours.keys() & theirs.keys()
        # The seed of the choice of functions decides where their lines begin, too.
        is_other = any(ours[name] != theirs[name] for name in both)
        return "other lines of the functions" if is_other else ""

    @override
    def adapt(self, settings: RecallSettings, estimates: Estimates) -> RecallSettings:
        """
        *settings* as engine and corpus can do them, on those of the run folder.

        Raises:
            BadInput: With a setting that works.
            ToolMissing: If the engine cannot score right lines, and is to.
        """
        chosen = _as_engine_can(settings, estimates.engine)
        _refuse_short(chosen, estimates.corpus)
        if estimates.setup:
            chosen = chosen_over(stated_in(estimates.setup), chosen)
        if estimates.decides and not estimates.knows(NAME):
            chosen = _brief(chosen, estimates)
        if chosen.is_reading:
            refuse_reading(estimates, chosen)
        return chosen

    @override
    def as_stored(self, run: RunContext) -> Json:
        """
        What is asked, with the functions of the text as sent.

        Lines are forced alone where none are to be written and nothing else was chosen.
        """
        setup, chosen = run.setup, run.settings_of(RecallSettings, NAME)
        is_new, functions = NAME not in setup.probes, functions_in(setup)
        if is_new and run.preparation:
            functions = functions_of(run, run.preparation, chosen)
        if chosen.ask is None and not functions.written:
            chosen = structs.replace(chosen, ask=Ask.FORCED)
        if is_new and not run.is_built_in:
            chosen = _left_open(run, chosen)
        if functions.forced:
            most = min(chosen.function_count, len(functions.forced))
            chosen = structs.replace(chosen, functions=most)
        asked = structs.asdict(chosen.decided)
        return as_json(structs.replace(functions, wording=WORDING, **asked))

    @override
    def work(self, settings: RecallSettings, estimates: Estimates) -> Work:
        """The corpus once, and lines of as many functions as are likely to fit."""
        setup, corpus = estimates.setup, estimates.corpus
        there = functions_in(setup) if setup else RecallLayout()
        chosen, first = with_choice(settings, setup), None
        choice = planned_choice(settings, estimates)
        if choice and choice.by is By.READING:
            few = min(FORCED_BESIDE, chosen.function_count)
            first = replace(estimates, functions=few, unread="forced", may_grow=False)
            functions = choice.functions or chosen.functions
            chosen = structs.replace(chosen, by=By.READING, functions=functions)
        if estimates.functions is not None:
            chosen = structs.replace(chosen, functions=estimates.functions)
        lines = corpus.line_count
        a_line = estimates.tokens(len(corpus.text)) / lines
        if there.written or there.forced:
            written = len(there.written)
            forced = min(len(there.forced), chosen.function_count)
        else:
            least = _least(corpus, chosen, estimates)
            if least > estimates.context:
                return Work(phrase=_too_little(least))
            written, forced = _expected(chosen, estimates)
            if settings.ask is None and not written:
                chosen = structs.replace(chosen, ask=Ask.FORCED)
        written *= Ask.WRITTEN in chosen.parts
        forced *= Ask.FORCED in chosen.parts
        tokens: float = written * (chosen.reply_tokens or WRITTEN_LINES * a_line)
        texts: tuple[int, ...] = (
            (estimates.text_tokens,) if written or not chosen.is_reading else ()
        )
        if chosen.is_reading:
            asked = forced * question_lines(corpus, chosen.line_count) * a_line
            texts += chunks_read(
                estimates.text_tokens, asked, forced, estimates.context
            )
        else:
            tokens += forced * chosen.line_count * a_line
        return Work(
            texts=texts,
            written=math.ceil(tokens),
            depth=estimates.text_tokens,
            phrase=_phrase(chosen, written, forced),
            first=self.work(settings, first) if first else None,
            spared=self._spared(settings, estimates) if written and forced else None,
        )

    def _spared(self, settings: RecallSettings, estimates: Estimates) -> Work | None:
        """What is left where the reference writes too little; None if it is asked."""
        is_open = with_choice(settings, estimates.setup).ask in {None, Ask.AUTOMATIC}
        can = Ability.FORCED in estimates.engine.abilities and not estimates.is_built_in
        if not (is_open and can):
            return None
        return self.work(structs.replace(settings, ask=Ask.FORCED), estimates)

    @override
    def questions(self, setup: Setup, goal: int | None = None) -> Iterator[Question]:
        """Functions to be written, then those whose lines are forced."""
        chosen = settings_of(setup)
        wanted = {
            Ask.WRITTEN: functions_in(setup).written,
            Ask.FORCED: functions_in(setup).forced[: goal or chosen.function_count],
        }
        for part in chosen.parts:
            for needle in wanted[part]:
                key = f"{part} {needle.name}"
                if part is Ask.WRITTEN or not chosen.is_reading:
                    yield Question(key, phrase=key, body=(part, needle))
        if chosen.is_reading:
            for group in self.groups(setup, goal):
                for needle in group.needles:
                    yield Question(group.key_of(needle), body=(Ask.FORCED, needle))

    def groups(self, setup: Setup, goal: int | None = None) -> Iterator[Group]:
        """The functions whose lines are read, by the chunk that they are read in."""
        most = goal or settings_of(setup).function_count
        ends = [end for end in FURTHER.unit_ends(setup) if end < most]
        return groups(setup, [*ends, most])

    @override
    def measure(self, context: ProbeContext) -> Json:
        observed, setup = known(context), context.run.setup
        if context.is_check:
            ask(self, context, observed, lambda: FURTHER.checks(setup))
            return checked_observation(self, observed)
        if leaves_open(setup) and choice_in(setup) is None and context.others:
            # Of a setup that was lost: what others were asked tells what it said.
            choice = known_choice(setup, context.others)
            context.set_for_all(NAME, as_json(choice))
        self._read_if_possible(context, observed)
        if self._needs_server(context, observed):
            read_in = context.phases if context.phases.ready_s is not None else None
            ask(self, context, observed, lambda: self._for_server(context))
            if read_in:
                context.phases = context.phases.after(read_in)
            self._after_server(context, observed)
        return checked_observation(self, observed)

    def _for_server(self, context: ProbeContext) -> Iterator[Question]:
        """Questions without lines that are read: no server is asked for these."""
        for question in self.questions(context.run.setup, context.goal):
            if not question.key.startswith(f"{READ} "):
                yield question

    def _needs_server(self, context: ProbeContext, observed: Observed) -> bool:
        """False where lines were read alone: that shows what runs, too."""
        is_known = bool(context.command) or context.phases.ready_s is not None
        has_read = settings_of(context.run.setup).is_reading and is_known
        return not has_read or self._is_short(context, observed)

    def _is_short(self, context: ProbeContext, observed: Observed) -> bool:
        """Whether a server is to be asked more than is *observed*."""
        return any(observed.lacks(each.key) for each in self._for_server(context))

    def _after_server(self, context: ProbeContext, observed: Observed) -> None:
        """The reference is read, too, where it has chosen that."""
        setup = context.run.setup
        if leaves_open(setup) and choice_in(setup) is None:
            recall = recall_in(observed, file=NAME)
            choice = seen_choice(setup, recall, may_grow=context.run.may_grow)
            context.set_for_all(NAME, as_json(choice))
        served, phases = (context.command, context.effective), context.phases
        self._read_if_possible(context, observed)
        if not settings_of(context.run.setup).is_reading:
            if self._is_short(context, observed):
                # A tool has no phases of its own.
                is_served = context.run.engine.scores_prompts
                phases = context.phases if is_served else phases
                ask(self, context, observed, lambda: self._for_server(context))
                context.phases = context.phases.after(phases)
            return
        if Ask.WRITTEN in settings_of(context.run.setup).parts:
            # As in all other cells, whose lines are read before their server starts.
            context.command, context.effective = served

    def _read_if_possible(self, context: ProbeContext, observed: Observed) -> None:
        """
        As `_read`; a reference that is to try it goes on with what takes less time.

        Where it cannot be read, all are forced.

        Raises:
            BadInput: As of `read`; of a pair that is compared with others, or told to.
            CellError: As of `read`, of such a pair.
        """
        choice = choice_in(context.run.setup)
        is_stated = stated_in(context.run.setup).by is not By.AUTOMATIC
        is_set = is_stated or not _is_only_reference(context)
        if choice is None or choice.is_tried or is_set:
            self._read(context, observed)
            return
        phases = context.phases
        try:
            self._read(context, observed)
        except (BadInput, CellError) as error:
            choice = without_reading(choice, error)
        else:
            choice = self._tried(context, observed, choice, phases)
        context.set_for_all(NAME, as_json(choice))
        if choice.by is By.WRITING:
            _forget_read(observed)

    def _tried(
        self,
        context: ProbeContext,
        observed: Observed,
        choice: RecallCalibration,
        phases: Phases,
    ) -> RecallCalibration:
        """*choice* of a reference that was read, if it was, behind those *phases*."""
        if choice.by is not By.READING:
            return choice
        recall = recall_in(observed, file=NAME)
        start_s = math.fsum((phases.ready_s or 0.0, phases.stop_s or 0.0))
        return tried_choice(context.run.setup, choice, recall, start_s=start_s)

    def _read(self, context: ProbeContext, observed: Observed) -> None:
        """Have right lines read that have no scores yet, if they are to be read."""
        if not settings_of(context.run.setup).is_reading:
            return
        setup = context.run.setup
        every = self.groups(setup, len(functions_in(setup).forced))
        known = {each.key_of(needle) for each in every for needle in each.needles}
        # Of another layout, of a setup that was lost: the same functions once more.
        for key in [key for key in observed.answers if key.startswith(f"{READ} ")]:
            if key not in known:
                del observed.answers[key]
        wanted = [
            group
            for group in self.groups(setup, context.goal)
            if any(observed.lacks(group.key_of(each)) for each in group.needles)
        ]
        if not wanted:
            return
        with reader(context) as read:
            for at, group in enumerate(wanted):
                context.step(at, len(wanted) + 1, "reading right lines")
                answers, text_s = read(group)
                observed.answers |= answers
                texts_s = [*observed.facts.get("texts_s", ()), text_s]
                observed.facts["texts_s"] = texts_s
                context.keep(as_json(observed))

    @override
    def asker(
        self, served: Served, context: ProbeContext, observed: Observed
    ) -> "RecallAsker":
        """
        What asks for functions, behind an unscored round.

        That asks for a function of every sweep, so that each scored round finds the
        corpus in the cache and nothing else: the same path for all. Written rounds come
        before forced ones, and are the same with and without them.
        """
        setup, asker = context.run.setup, RecallAsker(served, context, observed)
        context.step(0, 1, "reading the corpus")
        priming = asker.primed(
            context.run.text,
            setup.corpus.tokens,
            lambda: asker.round(_last_of_every_sweep(setup), tokens=PRIMING_TOKENS),
        )
        if "priming" not in observed.facts:
            observed.facts["priming"] = as_json(priming)
        return asker

    @override
    def useless(self, observed: Observed) -> CellError | None:
        """Each answer has an error."""
        errors = {key: answer.get("error") for key, answer in observed.answers.items()}
        if not all(errors.values()):
            return None
        error, *_ = errors.values() or ("",)
        if not any(key.startswith(WRITTEN) for key in errors):
            return CellError(
                f"no right lines could be scored: {error}; --ask written needs none",
                hint="Use --ask written.",
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
        Forced recall leads wherever it was asked for.

        Beside it, written recall is the same in most cells of most grids, at 20 of 20
        or near none.
        """
        forced = forced_metrics(setup)
        return (*forced[:1], METRICS[0], *forced[1:], *METRICS[1:])

    @override
    def remarks(self, run: Run) -> tuple[str, ...]:
        """
        What its records do not tell: written recall that no pair can change; and why
        nothing was forced, where the engine cannot do that.
        """
        lines = []
        cells = frames.cells_frame(frames.of_probe(run, NAME), METRICS[0])
        values = [cell.value for cell in cells if cell.has_value]
        if values and min(values) >= CEILING_LINES:
            lines.append(
                f"written recall is at its ceiling: {min(values):.2f} lines of "
                f"{WRITTEN_LINES} or more with each pair, which tells none from another"
            )
        reference = frames.reference(cells)
        lost = frames.value_at(cells, reference) if reference else math.inf
        if lost <= FLOOR_LINES:
            lines.append(
                f"written recall is at its floor: {lost:.2f} lines of {WRITTEN_LINES} "
                f"with {reference}, so no pair has anything to lose"
            )
        return (*lines, *_gaps(run))

    @override
    def answers(self, run: Run, record: CellRecord) -> Iterable[ScoredAnswer]:
        """Functions that were written, then those that were forced."""
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
    settings=RecallSettings,
    layout=RecallLayout,
    further=FURTHER,
    telling=RecallTelling(),
    calibrating=Choosing(is_needed=False),
    rooms=rooms,
    repeats=True,
)


@dataclass(slots=True)
class RecallAsker(FunctionAsker):
    """Asks for functions; the reference chooses how others are asked."""

    observed: Observed = field(default_factory=lambda: Observed(answers={}))
    """What is known of the cell."""

    @override
    def ask(self, question: Question) -> Round | ForcedRound:
        answer, setup = FunctionAsker.ask(self, question), self.context.run.setup
        if isinstance(answer, ForcedRound) and leaves_open(setup):
            self._choose(answer)
        return answer

    def _choose(self, answer: ForcedRound) -> None:
        """Choose how right lines are scored, once *answer* is enough to tell."""
        run = self.context.run
        if choice_in(run.setup) is not None:
            return
        recall = recall_in(self.observed, file=NAME)
        recall = replace(recall, forced=(*recall.forced, answer))
        few = min(FORCED_BESIDE, settings_of(run.setup).function_count)
        if len(recall.forced) >= few:
            choice = seen_choice(run.setup, recall, may_grow=run.may_grow)
            self.context.set_for_all(NAME, as_json(choice))
