"""The retrieval probe: questions on made texts, from a dial that the reference sets."""

import functools
import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from typing_extensions import override

from codeneedle.corpora.fitting import (
    STRETCHED,
    TooLong,
    Untrained,
    larger_context,
)
from codeneedle.document import Document
from codeneedle.engines.engine import Ability, Engine, Served
from codeneedle.engines.messages import Chat, Completion, Reply
from codeneedle.engines.pace import CELL, Price
from codeneedle.errors import BadInput, UnknownName
from codeneedle.probes.answers import ScoredAnswer
from codeneedle.probes.cell import ProbeContext, RunContext
from codeneedle.probes.estimates import Bill, Estimates
from codeneedle.probes.metrics import METRICS as OF_CELL
from codeneedle.probes.metrics import Metric
from codeneedle.probes.observations import Answer, Observed
from codeneedle.probes.probe import (
    Answering,
    Asker,
    Calibrating,
    Probe,
    Question,
    checked_observation,
    previous_answers,
)
from codeneedle.probes.prompts import PromptForm, build_request
from codeneedle.probes.reading import (
    Group,
    Passage,
    Read,
    answer_by_reading,
    chunk_tokens,
    refuse_reading,
)
from codeneedle.probes.retrieval.dial import (
    DIAL_QUESTIONS,
    TOLERANCE,
    fitted_character_count,
    turn_dial,
)
from codeneedle.probes.retrieval.gate import Gate, skipped_lengths
from codeneedle.probes.retrieval.metrics import METRICS, metrics_of_tasks, run_remarks
from codeneedle.probes.retrieval.prompts import (
    WORDING,
    messages,
    right_answer_text,
    without_last_blank,
)
from codeneedle.probes.retrieval.record import (
    NAME,
    Calibration,
    Dialled,
    DialStep,
    Fitted,
    TextAnswer,
    TextKey,
    TextRead,
    calibration_of,
)
from codeneedle.probes.retrieval.scoring import is_enough, score_answer
from codeneedle.probes.retrieval.settings import (
    ANSWER_EXTRA_TOKENS,
    ANSWER_FACTOR,
    CHARACTERS_PER_TOKEN,
    LENGTHS,
    RetrievalLayout,
    RetrievalSettings,
    answer_room,
    check_template_keeps_text,
    expected_calibration,
    layout_of,
    lengths_of,
    parse_fixed_levels,
    retrieval_layout,
)
from codeneedle.probes.retrieval.task_kinds import TASKS, make_texts
from codeneedle.probes.retrieval.tasks import (
    Decoy,
    QuestionFields,
    Shape,
    TaskText,
    TextQuestion,
)
from codeneedle.probes.retrieval.texts import (
    questions_per_text,
    text_keys_to_ask,
    text_of,
    texts_of,
)
from codeneedle.records.record import (
    CellRecord,
    Json,
    Run,
    Setup,
    as_json,
    shared_field_values,
)
from codeneedle.text import plural

PRIMING_TOKENS = 1
"""Enough to make the server read a text; the reply is not scored."""


# --- measuring

USUAL_ANSWER_TOKENS = 30
"""Written and forced together, for the time that a plan tells."""


def _refuse_unfit(
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
    shortest, *_ = lengths = lengths_of(settings)
    length, room = lengths[-1], answer_room(settings, context)
    needed = length + room
    if trained and length > trained:
        raise Untrained(
            source=f"--lengths {length}",
            trained=trained,
            way=f"lengths up to {max(1, trained - room)}, or {STRETCHED}",
        )
    if needed > context:
        fits = larger_context(needed, trained) is not None
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
            refuse_reading(
                estimates, wanted="--read-answers", otherwise="--no-read-answers"
            )
        _refuse_unfit(settings, estimates.context, estimates.trained_context_limit)
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
            chunks = map(chunk_tokens, texts, own)
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
            check_template_keeps_text(run, lengths_of(settings)[-1])
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
        """With those of each task, and of each of several lengths."""
        return (*self.metrics, *metrics_of_tasks(setup))

    @override
    def asker(
        self, served: Served, context: ProbeContext, observed: Observed
    ) -> "_Examiner":
        """
        What asks about texts, as hard as the reference can bear.

        The first pair of a run, the most precise one, sets the dials before, and the
        gate.

        Raises:
            BadInput: If no level of a task fits its shortest length.
            CellError: If the server fails.
        """
        gate = Gate(context, observed, retrieval_layout(context.run.setup))
        asker = _Examiner(served, context, gate=gate)
        asker.calibrate()
        return asker

    @override
    def measure(self, context: ProbeContext) -> Json:
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
            lambda: self.questions(setup),
            lambda read: _TextReader(gate, read),
        )
        return checked_observation(self, observed)

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
        return run_remarks(run)

    @override
    def gaps_in(self, record: CellRecord, setup: Setup) -> tuple[str, ...]:
        """Lengths that were not asked on purpose."""
        return tuple(
            f"{each.task} at {each.length:,} tokens was not asked: {each.reason}"
            for each in skipped_lengths(setup, record)
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


class _Questioner(Asker):
    """Sends questions of tasks."""

    def ask_priming_question(self, text: TaskText, question: TextQuestion) -> Reply:
        """The beginning of the reply to a question that makes *text* be read."""
        return self._short_reply(text, question, tokens=PRIMING_TOKENS)

    def reply_to(self, text: TaskText, question: TextQuestion) -> Reply:
        """The reply to *question*, limited by the length of the right one."""
        tokenizer = self.served.tokenizer
        right = question.payload
        tokens = tokenizer.token_counts([right])[0] if tokenizer else len(right)
        budget = math.ceil(ANSWER_FACTOR * tokens) + ANSWER_EXTRA_TOKENS
        return self._short_reply(text, question, tokens=budget)

    def force_right_answer(self, text: TaskText, question: TextQuestion) -> Answer:
        """The scores of the right answer to *question*, which is forced."""
        asked = self._request(text, question, tokens=1)
        return self.score_reply(question.name, asked, right_answer_text(question))

    def _short_reply(
        self, text: TaskText, question: TextQuestion, *, tokens: int
    ) -> Reply:
        """The reply of at most *tokens*, ended where more would tell nothing."""
        enough = enough_for_question(question, self.context.run.setup.prompt_form)
        return self.request_reply(self._request(text, question, tokens=tokens), enough)

    def _request(
        self, text: TaskText, question: TextQuestion, *, tokens: int
    ) -> Chat | Completion:
        """The request for *question*, in the form of prompts that the run has."""
        run = self.context.run
        return build_request(
            run.setup,
            prompt=f"{text.text}\n{without_last_blank(question.begin)}",
            messages=messages(run, text, question),
            tokens=tokens,
        )


@dataclass(frozen=True, slots=True)
class _TextReader(Answering):
    """Has right answers about texts read behind them."""

    gate: Gate
    read: Read  # what reads them

    @override
    def ask(self, question: Question) -> TextRead:
        key, setup = question.body, self.gate.context.run.setup
        return self.gate.keep_read_text(
            key, score_answers_behind_text(key, text_of(setup, key), self.read)
        )

    @override
    def why_pointless(self, question: Question) -> str:
        return self.gate.why_pointless(question.body)


@dataclass(slots=True)
class _Examiner(_Questioner):
    """Reads texts and asks about them; on the reference, sets how hard they are."""

    gate: Gate = field(kw_only=True)

    def calibrate(self) -> None:
        """Set for all pairs what is not set yet."""
        if calibration_of(self.context.run.setup) is None:
            self.context.keep_calibration(NAME, as_json(self.find_levels()))

    @override
    def ask(self, question: Question) -> TextRead:
        return self.gate.keep_read_text(question.body, self._ask_text(question.body))

    @override
    def why_pointless(self, question: Question) -> str:
        return self.gate.why_pointless(question.body)

    def find_levels(self) -> Calibration:
        """Level and characters of texts for all pairs, found on unscored questions."""
        dials = [self._find_dial_level(task) for task in self.gate.chosen.tasks]
        sizes = [
            Fitted(d.task, length, self._character_count(d.task, d.level, length))
            for d in dials
            for length in self.gate.chosen.lengths
        ]
        return Calibration(
            reference=str(self.context.pair), dials=tuple(dials), sizes=tuple(sizes)
        )

    # The dial

    def _find_dial_level(self, task: str) -> Dialled:
        """The level of *task*: the one of the user, or found on the reference."""
        fixed = self.gate.chosen.fixed_levels.get(task)
        if fixed is None:
            return turn_dial(task, lambda level: self._try_level(task, level))
        step = self._try_level(task, fixed)
        return Dialled(task=task, level=fixed, is_fixed=True, path=(step,))

    def _try_level(self, task: str, level: int) -> DialStep:
        """
        How many questions of their own the reference has right at *level*.

        Raises:
            BadInput: If the shortest texts of the run have no room for it.
        """
        says = TASKS[task].levels[level].says
        self.context.report_step(0, 1, f"dial of {task} at {level}: {says}")
        length = self.gate.chosen.lengths[0]
        size = Fitted(task, length, self._character_count(task, level, length))
        setup = self.context.run.setup
        # What does not fit here would end the run, after minutes of other settings.
        texts_of(setup, size, level, self.gate.chosen.questions)
        depths = len(self.gate.chosen.depths) if TASKS[task].has_depth else 1
        tried = -(-DIAL_QUESTIONS // depths)
        shares = [
            score_answer(question, self.reply_to(text, question).text).share
            for text in texts_of(setup, size, level, tried, purpose="dial")
            for question in text.questions
        ]
        return DialStep(level, round(fmean(shares), 4), len(shares))

    def _character_count(self, task: str, level: int, length: int) -> int:
        """Characters of a text of *length* tokens of *task* at *level*."""
        return fitted_character_count(
            lambda characters: (
                make_texts(
                    task,
                    dial=level,
                    characters=characters,
                    depths=self.gate.chosen.depths[:1],
                    questions=1,
                    seed=self.context.run.setup.seed,
                )[0].text
            ),
            length=length,
            tokenizer=self.served.tokenizer,
            begin=length
            * (1 if self.context.run.is_built_in else CHARACTERS_PER_TOKEN),
        )

    # Texts

    def _ask_text(self, key: TextKey) -> TextRead:
        """Ask all questions of a text, after an unscored one that makes it be read."""
        text = text_of(self.context.run.setup, key)
        what = f"{key.task} at {key.length:,} tokens"
        # Each scored question then finds the text in the cache, and nothing else.
        priming = self.ask_and_refuse_cut_prompt(
            text.text,
            round((1 - TOLERANCE) * key.length),
            lambda: self.ask_priming_question(text, text.questions[-1]),
        )
        decoys = _decoys(text)
        answers = []
        for question in text.questions:
            self.context.report_substep(f"{what}: {question.key}")
            answers.append(self._ask_question(key.length, text, question, decoys))
        return TextRead(
            **key._asdict(),
            characters=len(text.text),
            sha256=hashlib.sha256(text.text.encode()).hexdigest(),
            decoys=decoys,
            prompt_tokens=priming.prompt_tokens,
            cached_tokens=priming.cached_tokens,
            prompt_ms=priming.prompt_ms,
            answers=tuple(answers),
        )

    def _ask_question(
        self,
        length: int,
        text: TaskText,
        question: TextQuestion,
        decoys: Sequence[Decoy],
    ) -> TextAnswer:
        """
        Ask *question*, and score its right answer unless texts are graded.

        What is stored is named ``LENGTH-NAME``, with *decoys* beside it.
        """
        named = replace(question, name=f"{length}-{question.name}")
        reply = self.reply_to(text, question)
        answer = Answer(name=named.name, reply=reply, retries=self.retries)
        if not self.gate.chosen.graded:
            right = self.force_right_answer(text, question)
            answer = replace(answer, scores=right.scores, error=right.error)
        return _stored_answer(named, answer, decoys)


def score_answers_behind_text(
    key: TextKey, text: TaskText, read: Read, *, wording: int = WORDING
) -> TextRead:
    """*text* with the scores of its right answers, read where they stand behind it."""
    sha256 = hashlib.sha256(text.text.encode()).hexdigest()
    named = [replace(q, name=f"{key.length}-{q.name}") for q in text.questions]
    passages = [
        Passage(q.name, f"\n\n{without_last_blank(q.begin)}", right_answer_text(q))
        for q in named
    ]
    group = Group.of(passages, str(wording), sha256)
    found = read(group, text.text.removesuffix("\n"))
    first, *_ = (answer.scores for answer in found.answers)
    return TextRead(
        **key._asdict(),
        characters=len(text.text),
        sha256=sha256,
        decoys=_decoys(text),
        prompt_tokens=first.prompt_tokens if first else 0,
        cached_tokens=0,
        prompt_ms=1000 * found.text_s,
        answers=tuple(
            _stored_answer(question, answer, _decoys(text))
            for question, answer in zip(named, found.answers, strict=True)
        ),
    )


def _decoys(text: TaskText) -> tuple[Decoy, ...]:
    """The wrong answers of all questions of *text*, each once."""
    return tuple(
        dict.fromkeys(d for question in text.questions for d in question.decoys)
    )


def _stored_answer(
    question: TextQuestion, answer: Answer, decoys: Sequence[Decoy]
) -> TextAnswer:
    """*answer* to *question*, whose decoys are stored as places among *decoys*."""
    return TextAnswer(
        **shared_field_values(question, QuestionFields),
        decoys=tuple(map(decoys.index, question.decoys)),
        answer=answer,
    )


def enough_for_question(question: TextQuestion, form: str) -> Callable[[str], bool]:
    """
    A judge of a reply so far: true once reading on would tell nothing more.

    Args:
        question: What it answers.
        form: Of the prompt. A completion has answered with its first line that is
            not blank; behind it, the text goes on. A chat may begin with a preamble.
    """
    if form == PromptForm.COMPLETION and question.shape is not Shape.LINES:
        return _has_a_line
    return functools.partial(is_enough, question)


def _has_a_line(so_far: str) -> bool:
    """Whether a whole line that is not blank has come."""
    return any(line.strip() for line in so_far.split("\n")[:-1])
