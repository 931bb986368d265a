"""
The transcript probe: forces the assistant's turns of recorded conversations; refuses a
file that has changed since the sweep began, and one of which no turn fits.
"""

import itertools
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from typing_extensions import override

from codeneedle.corpora.registry import slug
from codeneedle.document import Document
from codeneedle.engines.engine import Ability, Engine, Served
from codeneedle.engines.messages import (
    BadReply,
    Completion,
    NoScores,
    Refused,
)
from codeneedle.engines.pace import Price
from codeneedle.errors import BadInput, CellError
from codeneedle.models.kv_cache import pad_context
from codeneedle.probes.answers import ScoredAnswer
from codeneedle.probes.cell import ProbeContext, RunContext
from codeneedle.probes.estimates import Bill, Estimates
from codeneedle.probes.metrics import Metric
from codeneedle.probes.observations import Answer, AnswerGroup, Observed
from codeneedle.probes.probe import Asker, Probe, Question
from codeneedle.probes.prompts import template_with_past_date
from codeneedle.probes.transcript.choice import (
    CountedTurn,
    caveats,
    dropped_field_phrases,
    render_and_count_turns,
)
from codeneedle.probes.transcript.conversations import (
    is_about_unreadable,
    read_hash_and_conversations,
    unread_part_lines,
    unread_part_phrases,
)
from codeneedle.probes.transcript.metrics import (
    CONVERSATIONS,
    FEWEST_UNITS,
    OVER_ALL,
    TURNS,
    token_class_metrics,
)
from codeneedle.probes.transcript.record import (
    NAME,
    TranscriptLayout,
    TranscriptSettings,
    TurnFacts,
    transcript_layout,
    turn_answers,
)
from codeneedle.probes.transcript.rendering import Kind, RenderedTurn
from codeneedle.records.comparability import OtherSetup
from codeneedle.records.record import (
    CellRecord,
    Frame,
    Json,
    Run,
    Setup,
    as_json,
)
from codeneedle.records.store import SWEEP
from codeneedle.system import files
from codeneedle.text import plural


class TranscriptProbe(Probe):
    """Forces the assistant's turns; units are turns, or conversations if many."""

    @override
    def adapt(
        self, settings: TranscriptSettings, estimates: Estimates
    ) -> TranscriptSettings:
        """
        *settings* as they are, if there is a turn that can be forced.

        Raises:
            BadInput: If the file cannot be read, naming the line; if the template does
                not take a conversation, or no turn fits.
            CodeneedleError: If rendering fails.
        """
        read_hash_and_conversations(_require_transcript_file(settings))
        if not estimates.has_asked_probe(NAME):
            turns = _read_and_count_turns_once(
                settings, estimates.engine, estimates.context
            )
            if all(turn.left_out for turn in turns):
                raise _no_forceable_turn_error(settings, turns)
        return settings

    @override
    def own_text_name(self, settings: TranscriptSettings, _engine: Engine) -> str:
        """The name of the file; empty without one."""
        return slug(settings.file.stem) if settings.file else ""

    @override
    def notes(
        self, settings: TranscriptSettings, estimates: Estimates
    ) -> tuple[str, ...]:
        """Notes that text is not stored, and on what turns say nothing about."""
        note = "is not stored: 'codeneedle show' reads the file again"
        chosen = _stored_or_new_layout(settings, estimates)
        limits = caveats(chosen, estimates.context)
        return (f"the text of {_require_transcript_file(settings)} {note}", *limits)

    @override
    def bill(self, settings: TranscriptSettings, estimates: Estimates) -> Bill:
        """Each conversation is read once, and its turns are forced if they fit."""
        turns = _stored_or_new_layout(settings, estimates).turns
        depths = [turn.prompt_tokens for turn in turns]
        longest: dict[str, int] = {}
        for turn in turns:
            before = longest.get(turn.conversation_number, 0)
            longest[turn.conversation_number] = max(before, turn.prompt_tokens)
        forced = sum(turn.tokens for turn in turns)
        return Bill(
            price=Price.of_cell(
                longest.values(),
                written=forced,
                depth=sum(depths) // max(len(depths), 1),
            ),
            phrase=f"{plural(len(turns), 'turn')}, {plural(forced, 'token')}",
        )

    @override
    def as_stored(self, settings: TranscriptSettings, run: RunContext) -> Json:
        """
        The turns that every pair is forced to.

        The stored ones of the same file and tokens; otherwise they are rendered.

        Raises:
            BadInput: If the template does not take a conversation, or no turn fits.
            OtherSetup: If the run folder is that of another transcript.
            CodeneedleError: If rendering fails.
        """
        sha256, _ = read_hash_and_conversations(_require_transcript_file(settings))
        known = run.setup.probes.get(NAME)
        if known:
            stored = transcript_layout(run.setup)
            if (stored.sha256, stored.tokens) == (sha256, settings.tokens):
                return known
            if stored.sha256 != sha256:
                raise _other_file_error(run.folder, _require_transcript_file(settings))
        chosen = _layout_of_file(settings, run.engine, run.setup.context)
        if not chosen.turns:
            turns = _read_and_count_turns_once(settings, run.engine, run.setup.context)
            raise _no_forceable_turn_error(settings, turns)
        return as_json(chosen)

    @override
    def questions(self, setup: Setup, _goal: int | None = None) -> Iterator[Question]:
        """
        A question for each conversation, with all its turns as body.

        No question if *setup* lacks the probe. The server reads each once: forced turns
        stay in its cache, and the next turn continues from there. One that was
        interrupted is asked again from its start, so that every turn has the same cache
        before it as in other cells.
        """
        if NAME in setup.probes:
            turns = transcript_layout(setup).turns
            for name, group in itertools.groupby(
                turns, lambda t: t.conversation_number
            ):
                yield Question(name, phrase=f"conversation {name}", body=tuple(group))

    @override
    def measure(self, context: ProbeContext) -> Json:
        """
        Force the turns that have no answer yet.

        Raises:
            BadInput: If the file or its rendering has changed.
            CellError: If the server fails, or reports no probabilities.
        """
        _render_and_check_turns(context.run)  # before a server is started
        return super().measure(context)

    @override
    def asker(
        self, served: Served, context: ProbeContext, observed: Observed
    ) -> "_Forcer":
        """What forces turns."""
        setup = context.run.setup
        asked = self.questions(setup)
        left = sum(
            len(question.body)
            for question in asked
            if observed.needs_asking(question.key)
        )
        return _Forcer(
            served, context, rendered=_render_and_check_turns(context.run), left=left
        )

    @override
    def useless_answers_error(self, observed: Observed) -> CellError | None:
        """The error if each turn has one; None once one can be scored."""
        errors = observed.error_of_each_answer
        if not all(errors):
            return None
        return CellError(
            f"no turn could be scored: {next(iter(errors), '')}",
            hint="See the server's log for the cause.",
        )

    @override
    def metrics_of(self, setup: Setup) -> tuple[Metric, ...]:
        """With the classes of tokens that occur, and the noun of its units."""
        metrics = (*self.metrics, *token_class_metrics(setup))
        if (
            NAME not in setup.probes
            or not transcript_layout(setup).has_conversation_units
        ):
            return metrics
        return tuple(
            replace(metric, unit_kind=CONVERSATIONS)
            if metric.unit_kind is TURNS
            else metric
            for metric in metrics
        )

    @override
    def answers(self, run: Run, record: CellRecord) -> Iterable[ScoredAnswer]:
        """Turns of the assistant."""
        from codeneedle.probes.transcript import answers

        return answers.answers(run, record)

    @override
    def overview(self, run: Run, record: CellRecord) -> Document:
        """A line for each turn."""
        from codeneedle.probes.transcript import answers

        return answers.overview(run, record)

    @override
    def left_out_lines(self, run: Run) -> tuple[str, ...]:
        """Turns that are not asked or not read, and those without scores, and why."""
        if NAME not in run.setup.probes:
            return ()
        chosen = transcript_layout(run.setup)
        reasons = Counter(reason for _, reason in chosen.left_out)
        return (
            *(
                f"left out: {plural(count, 'turn')}, {reason}"
                for reason, count in reasons.items()
            ),
            *(
                f"left out: {phrase}"
                for phrase in chosen.aside
                if is_about_unreadable(phrase)
            ),
            *(
                line
                for record in run.records
                if record.probe == NAME and record.has_numbers
                for line in _unscored_turn_lines(record)
            ),
        )

    @override
    def caveats(self, run: Run) -> tuple[str, ...]:
        """What is not read of the file, what the template drops, how far turns go."""
        if NAME not in run.setup.probes:
            return ()
        return tuple(caveats(transcript_layout(run.setup), run.setup.context))

    @override
    def remarks(self, run: Run) -> tuple[str, ...]:
        """Turns left out, fields that the template drops, and classes too rare."""
        if NAME not in run.setup.probes:
            return ()
        chosen = transcript_layout(run.setup)
        lines = [*self.left_out_lines(run), *self.caveats(run)]
        for kind in Kind:
            units = len(chosen.unit_names(kind))
            if 0 < units < FEWEST_UNITS:
                noun = "conversation" if chosen.has_conversation_units else "turn"
                lines.append(
                    f"{kind} tokens are in {plural(units, noun)}: shown, too few for a "
                    "verdict"
                )
        return tuple(lines)


PROBE = TranscriptProbe(
    name=NAME,
    purpose="recorded conversations",
    metrics=OVER_ALL,
    settings=TranscriptSettings,
    layout=TranscriptLayout,
    asked_by="file",
    chats=("user",),
    needs=frozenset({Ability.FORCED, Ability.CONVERSATIONS}),
    repeats=True,
)


def _unscored_turn_lines(record: CellRecord) -> Iterator[str]:
    """How many turns of a pair have no score, and why; nothing if all have one."""
    turns = turn_answers(record)
    reasons = Counter(turn.error for turn in turns if turn.error)
    if count := reasons.total():
        (reason, _), *_ = reasons.most_common()
        has = "has" if count == 1 else "have"
        of = plural(len(turns), "turn")
        yield f"{record.pair}: {count} of {of} {has} no score: {reason}; left out"


def _require_transcript_file(settings: TranscriptSettings) -> Path:
    """The file that *settings* name; refuses those without one."""
    if settings.file is None:
        raise BadInput(
            source="--probe transcript",
            reason="needs recorded conversations",
            hint="Name a file: --transcript FILE",
        )
    return settings.file


def _other_file_error(folder: Path, wanted: Path) -> OtherSetup:
    """The error that *folder* holds a run of another transcript than *wanted*."""
    kept = files.read_regular(folder / SWEEP) or b""
    stored = str(tomllib.loads(kept.decode()).get(NAME, {}).get("file", wanted))
    if stored == str(wanted):
        stored = f"{stored} as it was then"
    error = OtherSetup(folder=folder, key=NAME, stored=stored, wanted=str(wanted))
    error.hint = "A folder holds one transcript: choose another one with --out."
    return error


def _no_forceable_turn_error(
    settings: TranscriptSettings, turns: Sequence[CountedTurn]
) -> BadInput:
    """The error where no turn can be forced, with what would allow one."""
    reasons = dict.fromkeys(turn.left_out for turn in turns)
    rendered = [turn.facts for turn in turns if turn.turn.text]
    least = min((turn.prompt_tokens + turn.tokens for turn in rendered), default=0)
    shortest = min((turn.tokens for turn in rendered), default=0)
    hint = f"Use --context {pad_context(least + 1)} or more."
    if not rendered:
        hint = "Name a chat template that does in the arguments after '--'."
    elif settings.tokens and shortest > settings.tokens:
        hint = f"Use --transcript-tokens {shortest} or more."
    return BadInput(
        source=f"--transcript {settings.file}",
        reason=f"no turn of the assistant can be forced: {'; '.join(reasons)}",
        hint=hint,
    )


def read_unread_part_lines(settings: TranscriptSettings) -> tuple[str, ...]:
    """
    What is not read of the file of *settings*, as lines.

    Raises:
        BadInput: If it cannot be read.
    """
    _, conversations = read_hash_and_conversations(_require_transcript_file(settings))
    return tuple(unread_part_lines(unread_part_phrases(conversations)))


def read_and_count_turns(
    settings: TranscriptSettings,
    engine: Engine,
    context: int,
    *,
    then: Frame | None = None,
) -> tuple[CountedTurn, ...]:
    """
    All turns of the assistant in the file of *settings*, rendered and counted.

    Args:
        settings: What the user chose.
        engine: Renders them.
        context: Its size in tokens.
        then: What the template gave when the run began; None for now.

    Raises:
        CodeneedleError: See `TranscriptProbe.adapt`.
    """
    _, conversations = read_hash_and_conversations(_require_transcript_file(settings))
    with engine.templating() as template:
        counted = render_and_count_turns(
            conversations,
            template_with_past_date(template, then),
            context=context,
            limit=settings.tokens,
        )
    return tuple(counted)


def _layout_of_file(
    settings: TranscriptSettings, engine: Engine, context: int
) -> TranscriptLayout:
    """What a setup stores of the file of *settings*; it may have no turns."""
    sha256, conversations = read_hash_and_conversations(
        _require_transcript_file(settings)
    )
    turns = _read_and_count_turns_once(settings, engine, context)
    return TranscriptLayout(
        sha256=sha256,
        conversations=len(conversations),
        tokens=settings.tokens,
        turns=tuple(turn.facts for turn in turns if not turn.left_out),
        left_out=tuple((t.facts.name, t.left_out) for t in turns if t.left_out),
        dropped=tuple(dropped_field_phrases(turns)),
        aside=tuple(unread_part_phrases(conversations)),
    )


def _stored_or_new_layout(
    settings: TranscriptSettings, estimates: Estimates
) -> TranscriptLayout:
    """The layout in the run folder, or that of a new one."""
    if estimates.setup and NAME in estimates.setup.probes:
        return transcript_layout(estimates.setup)
    return _layout_of_file(settings, estimates.engine, estimates.context)


_COUNTED: dict[tuple[object, ...], tuple[CountedTurn, ...]] = {}
"""The turns that this process has rendered, by all that they depend on."""


def _read_and_count_turns_once(
    settings: TranscriptSettings,
    engine: Engine,
    context: int,
    *,
    then: Frame | None = None,
) -> tuple[CountedTurn, ...]:
    """`read_and_count_turns`, rendered once for all cells."""
    sha256, _ = read_hash_and_conversations(_require_transcript_file(settings))
    model = engine.model
    key = (
        *(sha256, settings.tokens, context, model.weights.path, model.arguments),
        then,
    )
    if key not in _COUNTED:
        _COUNTED[key] = read_and_count_turns(settings, engine, context, then=then)
    return _COUNTED[key]


def _render_and_check_turns(run: RunContext) -> dict[str, RenderedTurn]:
    """
    The turns of *run* by name, as they are rendered now, else as when the run began.

    Raises:
        BadInput: If neither is what the setup has.
    """
    chosen = transcript_layout(run.setup)
    settings = run.chosen_or_default_settings(TranscriptSettings, NAME)
    # As it is rendered today; else as on the day on which the run began.
    for then in dict.fromkeys((None, run.setup.frames.get("user"))):
        context = run.setup.context
        counted = _read_and_count_turns_once(settings, run.engine, context, then=then)
        turns = {t.facts.name: t for t in counted if not t.left_out}
        if tuple(turn.facts for turn in turns.values()) == chosen.turns:
            return {name: turn.turn for name, turn in turns.items()}
    raise BadInput(
        source=f"--transcript {settings.file}",
        reason="it, or what the chat template makes of it, has changed since this "
        "sweep began",
        hint="Use the file as it was, or choose another folder with --out.",
    )


@dataclass(slots=True)
class _Forcer(Asker):
    """Forces turns."""

    rendered: Mapping[str, RenderedTurn] = field(kw_only=True)  # all turns, by name
    left: int = field(kw_only=True)  # how many there are to force
    _done: int = field(default=0, init=False)

    @override
    def ask(self, question: Question) -> AnswerGroup:
        """The answers to all turns of a conversation."""
        turns = []
        for turn in question.body:
            self.context.report_step(self._done, self.left, f"turn {turn.name}")
            turns.append(self.force_turn(turn, self.rendered[turn.name]))
            self._done += 1
        return AnswerGroup(answers=tuple(turns))

    def force_turn(self, turn: TurnFacts, rendered: RenderedTurn) -> Answer:
        """
        The answer with the scores of a turn, or with why it has none.

        Raises:
            CellError: If the server fails. It does not quote the server's message,
                which may contain text of the conversation.
        """
        question = Completion(
            prompt=rendered.prompt, max_tokens=1, seed=self.context.run.setup.seed
        )
        try:
            return self.score_reply(turn.name, question, rendered.text)
        except Refused as refused:
            raise CellError(
                f"the server refused turn {turn.name} with {refused.code} "
                f"{refused.kind}",
                hint=refused.hint,
            ) from None

    @override
    def why_unscored(self, error: BadReply) -> str:
        """A reason without a word of the conversation."""
        if isinstance(error, NoScores):
            return error.fault
        return "the server reported no token probabilities"
