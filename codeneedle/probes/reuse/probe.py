"""
The reuse probe: brings the cache into each state, checks how much of a prompt came from
it, and remarks on differences far above the reference's.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from typing_extensions import override

from codeneedle.cache_types import Pair, most_precise_first
from codeneedle.corpora.fitting import TooLong
from codeneedle.corpora.needles import NeedleFacts
from codeneedle.document import Document
from codeneedle.engines.engine import Ability, CannotSave, Engine, Served
from codeneedle.engines.messages import Completion, Forced, NoScores, Reply
from codeneedle.engines.pace import Price
from codeneedle.errors import CellError
from codeneedle.probes.answers import ScoredAnswer
from codeneedle.probes.cell import ProbeContext
from codeneedle.probes.cell_metrics import OF_CELL
from codeneedle.probes.estimates import Bill, Estimates
from codeneedle.probes.observations import (
    Answer,
    Observed,
    merge_chosen_settings,
    settings_in,
)
from codeneedle.probes.probe import Asker, Probe, Question
from codeneedle.probes.reuse.metrics import METRICS, PHRASES
from codeneedle.probes.reuse.prompts import (
    FirstTurn,
    ReuseText,
    build_lines_request,
    function_count_for_length,
    make_reuse_text,
)
from codeneedle.probes.reuse.record import (
    LEAST_LENGTH,
    LENGTH,
    NAME,
    QUESTIONS,
    REUSED,
    CacheState,
    Reuse,
    ReuseFacts,
    ReuseLayout,
    ReuseQuestion,
    ReuseSettings,
    parse_stored_reuse,
    reuse_layout,
    reuse_of,
)
from codeneedle.records.record import CellRecord, Run, Setup, Status, as_json
from codeneedle.reference import reference_among
from codeneedle.text import one_line, plural

ROOM = 512
"""Tokens beside the text: two questions, two answers, right lines, chat template."""

REPLY_TOKENS = 32
"""Tokens of each answer; those of a first turn are written one by one."""

RIGHT_TOKENS = 64
"""Estimate for the right lines of a function, used only by the plan."""

COLD_TOKENS = 16
"""Most tokens of a cold prompt that may be cached: those that begin every prompt."""

LEAST_REUSED = 0.5
"""Least share of a prompt that comes from a reused cache."""

NOTABLE_NATS = 1.0
NOTABLE_TIMES = 4.0
"""
Thresholds of a remark: least difference in nats, and as a multiple of the reference's.

On a healthy server (llama.cpp b11434, CPU) no way differs on the built-in model. With
SmolLM2 only the second turn of f16/f16 does, by up to 0.33 nats, as its values were
computed token by token instead of in a batch; q8_0/q8_0 and q4_0/q4_0 do not differ.
"""


class ReuseProbe(Probe):
    """Compares answers from a cold cache with answers from a reused one."""

    @override
    def own_text_name(self, _settings: ReuseSettings, _engine: Engine) -> str:
        """Empty: in place of the corpus it reads a text of its own, without a name."""
        return ""

    @override
    def adapt(self, settings: ReuseSettings, estimates: Estimates) -> ReuseLayout:
        """
        *settings*, else those of the run folder, else what the context holds.

        Raises:
            TooLong: If the text does not fit with its questions and answers.
        """
        if estimates.setup:
            known = settings_in(estimates.setup, NAME, ReuseSettings)
            settings = merge_chosen_settings(known, settings)
        context, length = estimates.context, settings.length or LEAST_LENGTH
        if length + ROOM <= context:
            return ReuseLayout(
                length=settings.length or min(LENGTH, context - ROOM),
                questions=settings.questions or QUESTIONS,
            )
        option = f"--reuse-length {length}" if settings.length else f"--probe {NAME}"
        raise TooLong(
            source=option,
            needed=length + ROOM,
            context=context,
            beside="questions and answers",
        )

    @override
    def bill(self, settings: ReuseSettings, _estimates: Estimates) -> Bill:
        """The text is read once, and again twice for each question."""
        texts = (settings.text_tokens,) * (1 + 2 * settings.question_count)
        # A reply and right lines in each way; the first turn is written three times.
        answers = len(CacheState) * (REPLY_TOKENS + RIGHT_TOKENS) + 3 * REPLY_TOKENS
        questions = plural(settings.question_count, "question")
        return Bill(
            price=Price.of_cell(
                texts,
                written=settings.question_count * answers,
                depth=settings.text_tokens,
            ),
            phrase=f"{questions}, each in {len(CacheState)} ways",
        )

    @override
    def questions(self, setup: Setup, _goal: int | None = None) -> Iterator[Question]:
        """Questions by their number, each to be asked in all ways."""
        asked = reuse_layout(setup).question_count if NAME in setup.probes else 0
        for number in range(asked):
            yield Question(str(number), phrase="reading the text", body=number)

    @override
    def asker(
        self, served: Served, context: ProbeContext, observed: Observed
    ) -> "_ReuseAsker":
        """What asks about a text, as long as the first server has found out."""
        setup = context.run.setup
        if not observed.facts:
            length = reuse_layout(setup).text_tokens
            functions = function_count_for_length(
                length, served.tokenizer, seed=setup.seed
            )
            observed.facts = as_json(ReuseFacts(functions))
        text = make_reuse_text(observed.facts["functions"], seed=setup.seed)
        return _ReuseAsker(served, context, text=text)

    @override
    def useless_answers_error(self, observed: Observed) -> CellError | None:
        """The error if no way could be compared; None before the first reason."""
        reuse = parse_stored_reuse(observed, file=NAME)
        gaps = [gap for way in REUSED for gap in reuse.gap_reasons(way)]
        if not gaps or any(
            reuse.largest_nats_difference(way) is not None for way in REUSED
        ):
            return None
        return CellError(
            f"the cache was never reused: {gaps[0]}",
            hint="Leave the probe reuse out for this model and engine.",
            status=Status.UNSUPPORTED,
        )

    @override
    def answers(self, _run: Run, record: CellRecord) -> Iterable[ScoredAnswer]:
        """Functions, with the reply of each way."""
        from codeneedle.probes.reuse import answers

        return answers.answers(record)

    @override
    def overview(self, _run: Run, record: CellRecord) -> Document:
        """Each way of each question, then the replies that differ."""
        from codeneedle.probes.reuse import answers

        return answers.overview(record)

    @override
    def remarks(self, run: Run) -> tuple[str, ...]:
        """Pairs whose reused cache differs notably; if none, the largest difference."""
        records = [r for r in run.records if r.probe == NAME and r.has_numbers]
        by_pair = {record.pair: reuse_of(record) for record in records}
        reference = reference_among(records)
        if reference is None:
            return ()
        return tuple(_difference_phrases(by_pair, reference))

    @override
    def gap_phrases(self, record: CellRecord, _setup: Setup) -> tuple[str, ...]:
        """Ways in which no cache could be compared."""
        reuse = reuse_of(record)
        return tuple(
            f"not compared {PHRASES[way]}: {gap}"
            for way in REUSED
            for gap in reuse.gap_reasons(way)
        )


PROBE = ReuseProbe(
    name=NAME,
    purpose="a cache that is used again",
    metrics=(*METRICS, *OF_CELL),
    chats=("user", "user assistant user"),
    settings=ReuseSettings,
    layout=ReuseLayout,
    needs=frozenset({Ability.FORCED}),
    makes_texts=True,
    saves_cache=True,
)


@dataclass(slots=True)
class _ReuseAsker(Asker):
    """Prepares the cache and asks; repeats both if a connection breaks."""

    text: ReuseText = field(kw_only=True)  # the text that holds the functions
    cannot_save: str | None = None
    """Why the cache cannot be saved, empty if it can; None before a try."""

    @override
    def ask(self, question: Question) -> ReuseQuestion:
        """The answers in all ways."""
        functions = self.text.functions
        of = reuse_layout(self.context.run.setup).question_count
        number = question.body
        at = (2 * number + 1) * len(functions) // (2 * of)
        needle, before, other = (
            functions[(at + away) % len(functions)]
            for away in (0, len(functions) // 2, len(functions) // 4)
        )
        if self.cannot_save is None:
            self.cannot_save = self.ask_with_retries(
                lambda: self._save_cache_or_why_not(other)
            )
        first = self.ask_and_refuse_cut_prompt(
            self.text.text,
            reuse_layout(self.context.run.setup).text_tokens,
            lambda: self.ask_with_retries(lambda: self._ask_first_question(before)),
        )
        turn = FirstTurn(before, first.text)
        answers = []
        for way in CacheState:
            self.context.report_substep(f"{needle.name}: {way}")
            answers.append(self._ask_and_score_in_way(way, needle, turn, other))
        return ReuseQuestion(
            function=needle.name,
            before=before.name,
            first=turn.answer,
            answers=tuple(answers),
        )

    def _ask_and_score_in_way(
        self, way: CacheState, needle: NeedleFacts, turn: FirstTurn, other: NeedleFacts
    ) -> Answer:
        """
        The answer in one *way*, written and scored, the cache prepared before each.

        One that reused too little has the reason; a cold one from the cache ends the
        cell.
        """
        run, text = self.context.run, self.text.text
        question = build_lines_request(
            run, text, needle, tokens=REPLY_TOKENS, before=turn
        )
        right = "\n".join(needle.lines)

        def prepare_cache_and_write() -> Reply:
            self._prepare_cache(way, turn.needle, other)
            return self.send_once(question)

        def prepare_cache_and_force() -> Forced:
            self._prepare_cache(way, turn.needle, other)
            return self.served.client.force(question, right)

        try:
            with self.context.record_request_span():
                reply, scored = (
                    self.ask_with_retries(prepare_cache_and_write),
                    self.ask_with_retries(prepare_cache_and_force),
                )
        except (CannotSave, NoScores) as error:
            return Answer(name=way, error=one_line(str(error)))
        prompt = reply.prompt_tokens
        cached = sorted((reply.cached_tokens, scored.cached_tokens))
        if way is CacheState.COLD and cached[1] > COLD_TOKENS:
            raise CellError(
                f"of a cold prompt of {prompt:,} tokens {cached[1]:,} came from the "
                "cache: another prompt does not clear it",
                hint="Leave the probe reuse out for this engine.",
                status=Status.UNSUPPORTED,
            )
        if way is not CacheState.COLD and cached[0] < LEAST_REUSED * prompt:
            gap = f"{cached[0]:,} of {prompt:,} tokens came from the cache"
            return Answer(name=way, reply=reply, error=gap)
        return Answer(name=way, reply=reply, scores=scored)

    def _prepare_cache(
        self, way: CacheState, before: NeedleFacts, other: NeedleFacts
    ) -> None:
        """
        Bring the cache into the state of *way*.

        *before* is what a first turn asks, *other* what is asked behind a shared text.

        Raises:
            CannotSave: If it is to be restored, and could not be saved.
        """
        if way is CacheState.TURN:
            self._ask_first_question(before)
        elif way is CacheState.PREFIX:
            self._ask_first_question(other, tokens=1)
        else:
            # Another prompt replaces all that is in the cache.
            self.served.client.complete(Completion(prompt="\n", max_tokens=1))
        if way is CacheState.RESTORE:
            if self.cannot_save:
                raise CannotSave(self.cannot_save)
            self.served.restore_cache()

    def _save_cache_or_why_not(self, other: NeedleFacts) -> str:
        """Save a cache with the text and *other*; why that failed, or empty."""
        self._ask_first_question(other, tokens=1)
        try:
            self.served.save_cache()
        except CannotSave as error:
            return one_line(str(error))
        return ""

    def _ask_first_question(
        self, needle: NeedleFacts, *, tokens: int = REPLY_TOKENS
    ) -> Reply:
        """The reply to *needle* as the first question of a conversation."""
        run, text = self.context.run, self.text.text
        return self.send_once(build_lines_request(run, text, needle, tokens=tokens))


# --- remarks


def _difference_phrases(
    by_pair: Mapping[Pair, Reuse], reference: Pair
) -> Iterator[str]:
    """Ways in which pairs differ notably; if there are none, the largest difference."""
    largest, is_notable = 0.0, False
    for pair, way in itertools.product(most_precise_first(by_pair), REUSED):
        nats = by_pair[pair].largest_nats_difference(way) or 0.0
        largest = max(largest, nats)
        noise = (
            0.0
            if pair == reference
            else by_pair[reference].largest_nats_difference(way) or 0.0
        )
        if nats < max(NOTABLE_NATS, NOTABLE_TIMES * noise):
            continue
        is_notable = True
        questions = by_pair[pair].questions
        others = sum(
            question.differs_from_cold_reply(way) or False for question in questions
        )
        beside = "" if pair == reference else f", with {reference} by {noise:.2f}"
        yield (
            f"{pair} differs {PHRASES[way]}: by up to {nats:.2f} nats per token"
            f"{beside}; changed replies: {others} of {len(questions)}"
        )
    if not is_notable:
        by = f"up to rounding: at most {largest:.2f} nats per token"
        by = by if largest else "in every digit"
        yield f"a reused cache gives the same as a cold one, {by}"
