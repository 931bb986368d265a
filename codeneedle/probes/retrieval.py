"""The retrieval probe: questions on made texts, from a dial that the reference sets."""

import functools
import hashlib
import math
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from msgspec import Meta, Struct

from codeneedle.analysis.retrieval import (
    METRICS,
    NAME,
    USABLE,
    Asked,
    Dialled,
    DialStep,
    Fitted,
    Frozen,
    LeftOut,
    Retrieval,
    TextRead,
    more_metrics,
    remarks,
    retrieval_of,
)
from codeneedle.corpora.corpus import BLOCK, LIMIT, Corpus
from codeneedle.corpora.task_kinds import TASKS, TASKS_VERSION, make_texts
from codeneedle.corpora.tasks import Decoy, Posed, Question, Shape, TaskText
from codeneedle.engines.engine import Ability, Tokenizer
from codeneedle.engines.messages import Chat, Completion, Message, Reply
from codeneedle.errors import BadInput, UnknownName
from codeneedle.grid import Pair, precision
from codeneedle.probes.probe import (
    Blocks,
    Effort,
    Probe,
    ProbeContext,
    RunContext,
    tokenizing,
)
from codeneedle.probes.prompts import (
    NO_THINK_ARGS,
    NO_THINK_PREFILL,
    PromptForm,
    lost_text,
)
from codeneedle.probes.recall import Asker
from codeneedle.records.record import (
    CellRecord,
    Forced,
    Json,
    Setup,
    as_json,
    from_json,
    shared_with,
)
from codeneedle.scoring.tasks import is_enough, judge
from codeneedle.text import plural

# 1 - first version
WORDING = 1
"""Raised with every change of how text and question are joined; a condition."""

TASK_NAMES = ("single", "multikey")
LENGTHS = ("1K", "2K", "4K")
DEPTHS = (0.1, 0.3, 0.5, 0.7, 0.9)
"""The depths of the published tables of retrieval by length, depth and precision."""

QUESTIONS = 4
"""Of each task at each length and depth."""

DIAL_QUESTIONS = 10
"""Fewest questions that try a setting of a dial: one in ten is a step of the score."""

AIM = (0.6, 0.9)
"""Share of right answers of the reference that a dial aims at, ends included."""

FAILS_BELOW = USABLE[0]
"""Share of right answers under which the reference fails at a length and depth."""

PRIMING_TOKENS = 1
"""Enough to make the server read a text; the reply is not scored."""

ANSWER_FACTOR = 1.5
ANSWER_EXTRA_TOKENS = 48
"""A reply may have so many times the tokens of the right answer, and so many more."""

TOLERANCE = 0.03
"""How much shorter than its length a text may be; it is never longer on purpose."""

FITTING_ROUNDS = 6
"""How often a text is made anew so that it gets the right number of tokens."""

CHARACTERS_PER_TOKEN = 4
"""Of English, roughly: where fitting begins, or all of it without a tokenizer."""

ANSWER_CHARACTERS_PER_TOKEN = 2
"""Of random digits and names, fewer."""

TEMPLATE_TOKENS = 128
"""What a chat template may add to text and question."""

KIBI = 1024


# --- what a user may choose


class RetrievalSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """What a user may choose."""

    tasks: Annotated[
        tuple[str, ...],
        Meta(
            description="Tasks of the probe retrieval.",
            extra={
                "option": "--tasks",
                "metavar": "LIST",
                "default": ",".join(TASK_NAMES),
            },
        ),
    ] = TASK_NAMES
    lengths: Annotated[
        tuple[int | str, ...],
        Meta(
            description="Lengths of its texts, in tokens: 512 or 1K.",
            extra={
                "option": "--lengths",
                "metavar": "LIST",
                "default": ",".join(LENGTHS),
            },
        ),
    ] = LENGTHS
    depths: Annotated[
        tuple[float, ...],
        Meta(
            description="Depths of questions of retrieval, from 0 to 1.",
            extra={
                "option": "--depths",
                "metavar": "LIST",
                "default": ",".join(map(str, DEPTHS)),
            },
        ),
    ] = DEPTHS
    questions: Annotated[
        int,
        Meta(
            ge=1,
            description="Questions of each task at each length and depth.",
            extra={"option": "--questions", "default": str(QUESTIONS)},
        ),
    ] = QUESTIONS
    dial: Annotated[
        tuple[int | str, ...],
        Meta(
            description="Difficulty of all tasks, 3, or of some, multikey=3,nth=0.",
            extra={
                "option": "--dial",
                "metavar": "LIST",
                "default": "found on the most precise pair",
            },
        ),
    ] = ()
    gate: Annotated[
        bool,
        Meta(
            description="Ask no pair at lengths beyond one where the most precise pair "
            "fails at every depth.",
            extra={"option": "--gate/--no-gate", "default": "gate"},
        ),
    ] = True


def tokens_of(length: int | str) -> int:
    """
    A length in tokens: ``1K`` is 1,024.

    Raises:
        BadInput: If it is none.
    """
    word = str(length).strip().upper()
    digits = word.removesuffix("K")
    if not (digits.isascii() and digits.isdecimal() and int(digits)):
        raise BadInput(
            source=f"--lengths {length}",
            reason="is no length in tokens",
            hint="Write 512, or 4K for 4,096, separated by commas.",
        )
    return int(digits) * (KIBI if word.endswith("K") else 1)


def lengths_of(settings: RetrievalSettings) -> tuple[int, ...]:
    """The lengths asked for, in tokens, shortest first."""
    return tuple(sorted({tokens_of(length) for length in settings.lengths}))


def fixed_dials(settings: RetrievalSettings) -> dict[str, int]:
    """
    The settings of dials that the user chose, by task; empty if none.

    Raises:
        BadInput: If one is no setting of its task.
        UnknownName: If a task is not among those asked for.
    """
    found = {}
    for word in map(str, settings.dial):
        named, _, number = word.rpartition("=")
        if named and named not in settings.tasks:
            raise UnknownName(
                kind="task of --dial", name=named, known=list(settings.tasks)
            )
        for task in (named,) if named else settings.tasks:
            last = len(TASKS[task].settings) - 1
            if not (number.isascii() and number.isdecimal() and int(number) <= last):
                raise BadInput(
                    source=f"--dial {word}",
                    reason=f"is no setting of {task}",
                    hint=f"Choose one from 0 to {last}, or leave --dial out.",
                )
            found[task] = int(number)
    return found


def check(settings: RetrievalSettings, _corpus_bytes: int | None) -> None:
    """
    Stop at settings that no model can satisfy.

    Raises:
        UnknownName: If there is no such task.
        BadInput: If a length, a depth or a setting of a dial is none.
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
    lengths_of(settings)
    fixed_dials(settings)


def check_context(
    settings: RetrievalSettings, context: int, trained: int | None
) -> None:
    """
    Stop at a length that does not fit the context with question and answer.

    Args:
        settings: What the user chose.
        context: Its size, in tokens; not above *trained*.
        trained: What the weights were trained for; None if that does not bind.

    Raises:
        BadInput: Naming a context that is enough, or the longest text.
    """
    shortest, *_ = lengths = lengths_of(settings)
    length, room = lengths[-1], answer_room(settings)
    needed = length + room
    if trained and length > trained:
        raise BadInput(
            source=f"--lengths {length}",
            reason=f"these weights were trained for {trained:,} tokens",
            hint=f"Use lengths up to {max(1, trained - room)}, or stretch the context "
            "on purpose with rope arguments after --.",
        )
    if needed > context:
        enough = -(-needed // 256) * 256
        fits = not trained or enough <= trained
        left = (context if fits else trained or context) - room
        least = min(shortest, tokens_of(LENGTHS[0]))
        less = f"lengths up to {left}" if left >= least else "fewer --tasks"
        raise BadInput(
            source=f"--lengths {length}",
            reason=f"with question and answer it needs {needed:,} tokens, the context "
            f"has {context:,}",
            hint=f"Use --context {enough}, or {less}."
            if fits
            else f"These weights were trained for {trained:,} tokens: use {less}.",
        )


def answer_room(settings: RetrievalSettings) -> int:
    """Tokens that the longest question of the tasks and its answer may take."""
    characters = CHARACTERS_PER_TOKEN * lengths_of(settings)[0]
    longest = max(
        (
            len(each.prompt) + len(each.begin) + ANSWER_FACTOR * len(each.payload)
            for task in settings.tasks
            for dial in range(len(TASKS[task].settings))
            for text in _texts_that_fit(task, dial, characters)
            for each in text.questions
        ),
        default=0,
    )
    own = math.ceil(longest / ANSWER_CHARACTERS_PER_TOKEN)
    return own + TEMPLATE_TOKENS + ANSWER_EXTRA_TOKENS


def _texts_that_fit(task: str, dial: int, characters: int) -> tuple[TaskText, ...]:
    """A text of one question; none if the setting takes a longer one."""
    try:
        return make_texts(
            task, dial=dial, characters=characters, depths=(0.5,), questions=1, seed=0
        )
    except BadInput:
        return ()


def price(settings: RetrievalSettings, _setup: Setup | None = None) -> str:
    """What a pair takes, as a phrase for the plan."""
    chosen = _conditions(settings)
    texts, (first, *_) = texts_of(_expected(chosen), chosen)
    read = sum(size.length for size, _ in texts[:first])
    asked = sum(map(chosen.questions_of, chosen.tasks)) * len(chosen.lengths)
    found = len(chosen.tasks) - len(chosen.dial)
    dials = f"; the first pair also sets {plural(found, 'dial')}" if found else ""
    lengths = ", ".join(map(str, chosen.lengths))
    return (
        f"{plural(asked, 'question')} and about {read:,} tokens of text a pair: "
        f"{', '.join(chosen.tasks)} at {lengths} tokens{dials}"
    )


# --- what must be equal


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """
    What must be equal for answers to be comparable, beside what is frozen.

    Attributes:
        tasks: Names of tasks, in asking order.
        lengths: Of texts, in tokens, ascending.
        depths: From 0 to 1.
        questions: Of each task, at each length and depth.
        dial: Settings that the user chose: ``multikey=3``.
        gate: ``on`` or ``off``.
        graded: Why right answers are not forced; empty if they are.
        texts: Version of the texts and questions.
        wording: Version of how they are joined.
    """

    tasks: tuple[str, ...]
    lengths: tuple[int, ...]
    depths: tuple[float, ...]
    questions: int
    dial: tuple[str, ...]
    gate: str
    graded: str
    texts: int = TASKS_VERSION
    wording: int = WORDING

    @property
    def settings(self) -> dict[str, int]:
        """The settings of dials that the user chose, by task."""
        words = (word.split("=") for word in self.dial)
        return {task: int(setting) for task, setting in words}

    def questions_of(self, task: str) -> int:
        """Questions of *task* at each length."""
        return self.questions * (len(self.depths) if TASKS[task].has_depth else 1)


def conditions(run: RunContext) -> Json:
    """
    What is asked; without log-probabilities, that no answer is forced.

    Raises:
        BadInput: If the chat template drops the text. A run folder that has records
            of this probe was looked at before.
        ToolFailed: If that cannot be found out.
    """
    asked = run.settings_of(RetrievalSettings, NAME)
    if NAME not in run.setup.probes:
        _refuse_lost_text(run, lengths_of(asked)[-1])
    can_force = Ability.LOG_PROBABILITIES in run.engine.abilities
    graded = "" if can_force else f"{run.engine.name} tells no probabilities"
    return as_json(_conditions(asked, graded))


def _conditions(asked: RetrievalSettings, graded: str = "") -> Conditions:
    return Conditions(
        tasks=tuple(dict.fromkeys(asked.tasks)),
        lengths=lengths_of(asked),
        depths=tuple(sorted(set(asked.depths))),
        questions=asked.questions,
        dial=tuple(f"{task}={dial}" for task, dial in fixed_dials(asked).items()),
        gate="on" if asked.gate else "off",
        graded=graded,
    )


def _refuse_lost_text(run: RunContext, length: int) -> None:
    """
    Stop at a chat template that does not render a text of *length* tokens verbatim.

    Engines that estimate lengths do not tell what their template renders.
    """
    is_told = run.setup.prompt_form == PromptForm.CHAT and not run.setup.lengths
    if not is_told:
        return
    (text,) = make_texts(
        "single",
        dial=0,
        characters=CHARACTERS_PER_TOKEN * max(length, KIBI),
        depths=(0.5,),
        questions=1,
        seed=run.setup.seed,
    )
    (asked,) = text.questions
    with tokenizing(run.engine, run.folder) as tokenizer:
        prompt = tokenizer.render(_messages(run, text, asked), NO_THINK_ARGS)
    # Templates may drop white space around a message.
    for what, said in (("the text", text.text.strip()), ("question", asked.prompt)):
        if said not in prompt:
            raise lost_text(f"{what} of the probe {NAME}")


def _conditions_of(settings: RetrievalSettings, setup: Setup | None) -> Conditions:
    """Those of *setup*, or what they will be with *settings*."""
    if setup and NAME in setup.probes:
        return from_json(setup.probes[NAME], Conditions, file="setup.json")
    return _conditions(settings)


def _expected(chosen: Conditions) -> Frozen:
    """What the first cell is likely to find out: each dial where it begins."""
    settings = {task: TASKS[task].start for task in chosen.tasks} | chosen.settings
    return Frozen(
        reference="",
        dials=tuple(
            Dialled(
                task=task,
                setting=settings[task],
                is_fixed=task in chosen.settings,
                path=(DialStep(settings[task], AIM[0], 0),),
            )
            for task in chosen.tasks
        ),
        sizes=tuple(
            Fitted(task, length, 0)
            for task in chosen.tasks
            for length in chosen.lengths
        ),
    )


# --- blocks


def texts_of(
    frozen: Frozen, chosen: Conditions
) -> tuple[list[tuple[Fitted, int]], tuple[int, ...]]:
    """
    The texts of a run: task and length of each with its number, in asking order.

    Those of any sweep come first, then blocks of further ones, of the informative
    tasks alone: about `BLOCK` in each, as many of each task and length.

    Returns:
        The texts, and after how many of them each block ends.
    """
    sizes = [size for size in frozen.sizes if not _is_out(size, frozen.left_out)]
    firsts = {size: _first_texts(size.task, frozen, chosen) for size in sizes}
    found = [(size, number) for size in sizes for number in range(firsts[size])]
    telling = {dial.task for dial in frozen.dials if dial.is_informative}
    more = [size for size in sizes if size.task in telling]
    of_each = math.ceil(BLOCK / max(len(more), 1))
    step, first = of_each * len(more), len(found)
    room = max(0, LIMIT - sum(firsts[size] for size in more))
    blocks = room // step if step else 0
    for block in range(blocks):
        found += [
            (size, firsts[size] + block * of_each + number)
            for size in more
            for number in range(of_each)
        ]
    return found, tuple(first + step * block for block in range(blocks + 1))


def _first_texts(task: str, frozen: Frozen, chosen: Conditions) -> int:
    """Texts of *task* at each length that any sweep asks."""
    return math.ceil(chosen.questions_of(task) / _per_text(task, frozen))


def _per_text(task: str, frozen: Frozen) -> int:
    return TASKS[task].per_text(TASKS[task].settings[frozen.settings[task]])


def ends(
    settings: RetrievalSettings,
    _corpus: Corpus,
    setup: Setup | None,
    record: CellRecord | None,
) -> tuple[int, ...]:
    """After how many texts each block ends; as of `Blocks.ends`."""
    chosen = _conditions_of(settings, setup)
    found = retrieval_of(record) if record else None
    return texts_of(found.frozen if found else _expected(chosen), chosen)[1]


def effort(record: CellRecord) -> Effort:
    """What *record* took; as of `Blocks.effort`."""
    found = retrieval_of(record)
    texts = found.texts if found else ()
    asked = [each for text in texts for each in text.asked]
    walls = (e.wall_s + (e.scored.wall_s if e.scored else 0.0) for e in asked)
    return Effort(readings=len(texts), rounds=len(asked), asking_s=math.fsum(walls))


def effort_for(settings: RetrievalSettings, setup: Setup | None, units: int) -> Effort:
    """What a server takes that asks everything of *units* texts."""
    chosen = _conditions_of(settings, setup)
    questions = sum(map(chosen.questions_of, chosen.tasks)) * len(chosen.lengths)
    _, (first, *_) = texts_of(_expected(chosen), chosen)
    return Effort(readings=units, rounds=round(units * questions / first))


def most_precise_first(pairs: Sequence[Pair]) -> Sequence[Pair]:
    """The running order: the first pair sets the dials for all others."""
    return sorted(pairs, key=lambda pair: (*precision(pair.k), *precision(pair.v)))


# --- measuring


def measure(context: ProbeContext) -> Json:
    """
    Ask every question of the tasks, lengths and depths.

    The first pair of a run, the most precise one, sets the dials and the gate before;
    the records of the others hold the same settings.

    Raises:
        BadInput: If no setting of a task fits its shortest length.
        CellError: If the server fails.
    """
    return measure_blocks(context, iter([""]))


def measure_blocks(
    context: ProbeContext,
    blocks: Iterator[str],
    former: CellRecord | None = None,
    keep: Callable[[Retrieval], None] = lambda _found: None,
) -> Json:
    """
    Ask one server, as `measure` does, for as many blocks of texts as it takes.

    Args:
        context: The cell.
        blocks: Asked for the next one only when the one before is through; all
            metrics are read from the same texts.
        former: What servers of this cell answered before.
        keep: Called with all that was answered, after each text.

    Raises:
        BadInput: As of `measure`.
        CellError: As of `measure`.
    """
    chosen = from_json(context.run.setup.probes[NAME], Conditions, file="setup.json")
    found = retrieval_of(former) if former else None
    context.step(0, 1, "loading")
    with context.serving() as served:
        asker = _Questioner(served, context)
        cell = _Measuring(context=context, asker=asker, chosen=chosen)
        frozen = found.frozen if found else frozen_of(context.records)
        cell.leads = found is not None or frozen is None
        found = found or Retrieval(frozen=frozen or cell.dialled(), texts=())
        for _ in blocks:
            for so_far in cell.block(found):
                found = so_far
                keep(found)
        asker.settle()
        context.step(1, 1, "stopping")
    return as_json(found)


def frozen_of(records: Mapping[Pair, CellRecord]) -> Frozen | None:
    """What the first cell of *records* found out for all; None if there is none yet."""
    for pair in most_precise_first(tuple(records)):
        found = retrieval_of(records[pair])
        if found is not None:
            return found.frozen
    return None


PROBE = Probe(
    name=NAME,
    metrics=METRICS,
    measure=measure,
    reads_corpus=lambda _settings: False,
    settings=RetrievalSettings,
    check=check,
    check_context=check_context,
    conditions=conditions,
    more_metrics=more_metrics,
    order=most_precise_first,
    remarks=remarks,
    price=price,
    repeats=True,
    leads=True,
    blocks=Blocks(
        ends=ends,
        asked=lambda record, _setup, _metric: effort(record).readings,
        measure=measure_blocks,
        effort=effort,
        effort_for=effort_for,
    ),
)


@dataclass(slots=True, kw_only=True)
class _Measuring:
    """One cell: its texts so far, and how far it is."""

    context: ProbeContext
    asker: "_Questioner"
    chosen: Conditions
    leads: bool = False
    steps: tuple[int, int] = (0, 1)

    def dialled(self) -> Frozen:
        """The settings for all pairs, found on questions that are not scored."""
        dials = [self._dialled(task) for task in self.chosen.tasks]
        sizes = [
            Fitted(d.task, length, self._characters(d.task, d.setting, length))
            for d in dials
            for length in self.chosen.lengths
        ]
        return Frozen(
            reference=str(self.context.pair), dials=tuple(dials), sizes=tuple(sizes)
        )

    def block(self, found: Retrieval) -> Iterator[Retrieval]:
        """*found* with each text that its next block, or the rest of one, has more."""
        begin = len(found.texts)
        while left := self._left(found.frozen, begin)[len(found.texts) - begin :]:
            done = len(found.texts) - begin
            self.steps = done, done + len(left)
            size, number = left[0]
            read = self._read(size, self._text(size, number, found.frozen), number)
            found = replace(found, texts=(*found.texts, read))
            if number + 1 == _first_texts(size.task, found.frozen, self.chosen):
                found = self._gated(found, size)
            yield found

    def _left(self, frozen: Frozen, begin: int) -> list[tuple[Fitted, int]]:
        """The texts of the block behind the first *begin* ones."""
        texts, block_ends = texts_of(frozen, self.chosen)
        return texts[begin : next((end for end in block_ends if end > begin), begin)]

    def _gated(self, found: Retrieval, size: Fitted) -> Retrieval:
        """*found*, without what is longer than *size* if the reference fails there."""
        frozen = found.frozen
        is_gated = self.chosen.gate == "on" and self.leads
        if not is_gated or frozen.reference != str(self.context.pair):
            return found
        texts = [
            t for t in found.texts if (t.task, t.length) == (size.task, size.length)
        ]
        if not _fails_everywhere(texts):
            return found
        left_out = (*frozen.left_out, *_beyond(size, frozen))
        return replace(found, frozen=replace(frozen, left_out=left_out))

    def _text(self, size: Fitted, number: int, frozen: Frozen) -> TaskText:
        """The text of that *number*, the same for every pair."""
        depths = self.chosen.questions_of(size.task) // self.chosen.questions
        questions = self.chosen.questions
        if number >= _first_texts(size.task, frozen, self.chosen):
            questions = math.ceil((number + 1) * _per_text(size.task, frozen) / depths)
        setting = frozen.settings[size.task]
        return self._made(size, setting, questions, "", only=number)[0]

    def _made(
        self,
        size: Fitted,
        setting: int,
        questions: int,
        purpose: str,
        *,
        only: int | None = None,
    ) -> tuple[TaskText, ...]:
        """Texts that depend on the run's seed, the length and the purpose alone."""
        words = f"{self.context.run.setup.seed}:{size.length}:{purpose}"
        return make_texts(
            size.task,
            dial=setting,
            characters=size.characters,
            depths=self.chosen.depths,
            questions=questions,
            seed=zlib.crc32(words.encode()),
            only=only,
        )

    # The dial

    def _dialled(self, task: str) -> Dialled:
        fixed = self.chosen.settings.get(task)
        if fixed is None:
            return dialled(task, lambda setting: self._tried(task, setting))
        step = self._tried(task, fixed)
        return Dialled(task=task, setting=fixed, is_fixed=True, path=(step,))

    def _tried(self, task: str, setting: int) -> DialStep:
        """How many questions of their own the reference has right at *setting*."""
        says = TASKS[task].settings[setting].says
        self.context.step(0, 1, f"dial of {task} at {setting}: {says}")
        length = self.chosen.lengths[0]
        size = Fitted(task, length, self._characters(task, setting, length))
        depths = self.chosen.questions_of(task) // self.chosen.questions
        questions = -(-DIAL_QUESTIONS // depths)
        shares = [
            judge(asked, self.asker.answered(text, asked).text).share
            for text in self._made(size, setting, questions, "dial")
            for asked in text.questions
        ]
        right = math.fsum(shares) / len(shares)
        return DialStep(setting, round(right, 4), len(shares))

    def _characters(self, task: str, setting: int, length: int) -> int:
        """Characters of a text of *length* tokens."""
        return fitted_characters(
            lambda characters: (
                make_texts(
                    task,
                    dial=setting,
                    characters=characters,
                    depths=self.chosen.depths[:1],
                    questions=1,
                    seed=self.context.run.setup.seed,
                )[0].text
            ),
            length=length,
            tokenizer=self.asker.served.tokenizer,
            begin=length
            * (1 if self.context.run.is_built_in else CHARACTERS_PER_TOKEN),
        )

    # Texts

    def _read(self, size: Fitted, text: TaskText, number: int) -> TextRead:
        """Ask all questions of *text*, after an unscored one that makes it be read."""
        what = f"{size.task} at {size.length:,} tokens"
        self.context.step(*self.steps, f"{what}: reading")
        # Each scored question then finds the text in the cache, and nothing else.
        priming = self.asker.primed(text, text.questions[-1])
        self.context.observe_fallback(self.asker.served)
        decoys = tuple(dict.fromkeys(d for q in text.questions for d in q.decoys))
        asked = []
        for question in text.questions:
            self.context.step(*self.steps, f"{what}: {question.key}")
            asked.append(self._round(size, text, question, decoys))
        return TextRead(
            task=size.task,
            length=size.length,
            number=number,
            characters=len(text.text),
            sha256=hashlib.sha256(text.text.encode()).hexdigest(),
            decoys=decoys,
            prompt_tokens=priming.prompt_tokens,
            cached_tokens=priming.cached_tokens,
            prompt_ms=priming.prompt_ms,
            asked=tuple(asked),
        )

    def _round(
        self, size: Fitted, text: TaskText, asked: Question, decoys: Sequence[Decoy]
    ) -> Asked:
        reply = self.asker.answered(text, asked)
        retries = self.asker.retries
        forced = None if self.chosen.graded else self.asker.forced(text, asked)
        numbers = {decoy: at for at, decoy in enumerate(decoys)}
        named = replace(asked, name=f"{size.length}-{asked.name}")
        return Asked(
            **shared_with(named, Posed),
            decoys=tuple(numbers[decoy] for decoy in asked.decoys),
            reply=reply.text,
            finish=reply.finish,
            prompt_tokens=reply.prompt_tokens,
            cached_tokens=reply.cached_tokens,
            predicted_tokens=reply.predicted_tokens,
            predicted_ms=reply.predicted_ms,
            wall_s=reply.wall_s,
            retries=retries,
            scored=forced,
        )


def dialled(task: str, tried: Callable[[int], DialStep]) -> Dialled:
    """
    Turn the dial of *task* until the reference is within `AIM`.

    It goes up from a setting that is too easy, down from one that is too hard, and
    stops where it turns back, at an end, and at a setting that does not fit the text.
    Without one within, the nearest that is tried is taken; an easier one of two.

    Args:
        task: Name of the task.
        tried: Asks questions at a setting. Raises BadInput if it does not fit.

    Raises:
        BadInput: If none fits.
    """
    settings = TASKS[task].settings
    steps: dict[int, DialStep] = {}
    at, misfit = TASKS[task].start, None
    while 0 <= at < len(settings) and at not in steps:
        try:
            step = steps[at] = tried(at)
        except BadInput as error:
            if steps or not at:
                misfit = error
                break
            at -= 1
            continue
        if _distance(step) == 0:
            break
        at += 1 if step.right > AIM[1] else -1
    if not steps and misfit:
        raise misfit
    best = min(steps.values(), key=lambda step: (_distance(step), step.setting))
    path = tuple(steps.values())
    return Dialled(task=task, setting=best.setting, is_fixed=False, path=path)


def _distance(step: DialStep) -> float:
    """How far its share is from `AIM`; those that tell nothing are far away."""
    low, high = AIM
    away = max(low - step.right, step.right - high, 0.0)
    return away if USABLE[0] <= step.right < USABLE[1] else away + 1


def fitted_characters(
    make: Callable[[int], str],
    *,
    length: int,
    tokenizer: Tokenizer | None,
    begin: int,
) -> int:
    """
    How many characters make a text of *length* tokens or slightly fewer.

    Args:
        make: Makes a text of about so many characters.
        length: In tokens.
        tokenizer: Counts them; None if the engine has none.
        begin: Where to begin.

    Raises:
        BadInput: If a text of so many characters cannot be made.
    """
    characters = begin
    for _ in range(FITTING_ROUNDS if tokenizer else 0):
        tokens = tokenizer.count_tokens(make(characters)) if tokenizer else 0
        if (1 - TOLERANCE) * length <= tokens <= length:
            break
        characters = max(1, int(characters * (1 - TOLERANCE / 3) * length / tokens))
    else:
        make(characters)
    return characters


def _is_out(size: Fitted, left_out: Iterable[LeftOut]) -> bool:
    return (size.task, size.length) in {(each.task, each.length) for each in left_out}


def _beyond(failed: Fitted, frozen: Frozen) -> list[LeftOut]:
    """The greater lengths of the task that *failed*, and why they are left out."""
    reason = (
        f"{frozen.reference} has less than {FAILS_BELOW:.0%} right at "
        f"{failed.length:,} tokens at every depth"
    )
    return [
        LeftOut(each.task, each.length, reason)
        for each in frozen.sizes
        if each.task == failed.task and each.length > failed.length
    ]


def _fails_everywhere(texts: Sequence[TextRead]) -> bool:
    """Whether less than `FAILS_BELOW` of the answers is right at each depth."""
    shares: dict[float, list[float]] = {}
    for text in texts:
        for each in text.asked:
            judged = judge(each.question(text.number, text.decoys), each.reply)
            shares.setdefault(each.depth, []).append(judged.share)
    return all(math.fsum(s) / len(s) < FAILS_BELOW for s in shares.values())


# --- asking


class _Questioner(Asker):
    """Sends questions of tasks; retries connection errors, never a completed reply."""

    @property
    def retries(self) -> tuple[str, ...]:
        """Why attempts of the last request failed before it was answered."""
        return tuple(self._retries)

    def primed(self, text: TaskText, asked: Question) -> Reply:
        """The beginning of the reply to a question that makes *text* be read."""
        return self._sent(text, asked, tokens=PRIMING_TOKENS)

    def answered(self, text: TaskText, asked: Question) -> Reply:
        """
        The reply to *asked* about *text*.

        Raises:
            CellError: If the server fails, or the connection breaks at each attempt.
        """
        tokenizer = self.served.tokenizer
        right = asked.payload
        tokens = tokenizer.counts([right])[0] if tokenizer else len(right)
        budget = math.ceil(ANSWER_FACTOR * tokens) + ANSWER_EXTRA_TOKENS
        return self._sent(text, asked, tokens=budget)

    def forced(self, text: TaskText, asked: Question) -> Forced:
        """The right answer to *asked*, token by token."""
        question = self._asking(text, asked, tokens=1)
        right = f"{asked.begin[len(_unblanked(asked.begin)) :]}{asked.payload}"
        self._retries.clear()
        with self.context.asking():
            return self._retried(lambda: self.served.client.force(question, right))

    def _sent(self, text: TaskText, asked: Question, *, tokens: int) -> Reply:
        question = self._asking(text, asked, tokens=tokens)
        client = self.served.client
        enough = enough_for(asked, self.context.run.setup.prompt_form)
        self._retries.clear()
        with self.context.asking():
            if isinstance(question, Chat):
                return self._retried(lambda: client.chat(question, enough=enough))
            return self._retried(lambda: client.complete(question, enough=enough))

    def _asking(
        self, text: TaskText, asked: Question, *, tokens: int
    ) -> Chat | Completion:
        run = self.context.run
        if run.setup.prompt_form == PromptForm.COMPLETION:
            prompt = f"{text.text}\n{_unblanked(asked.begin)}"
            return Completion(prompt=prompt, max_tokens=tokens, seed=run.setup.seed)
        return Chat(
            messages=_messages(run, text, asked),
            max_tokens=tokens,
            seed=run.setup.seed,
            template_args=NO_THINK_ARGS,
        )


def _messages(
    run: RunContext, text: TaskText, asked: Question
) -> tuple[Message, Message]:
    """The chat that asks a question of *text*, its answer begun."""
    thought = NO_THINK_PREFILL if run.prefill_no_think else ""
    return (
        Message("user", f"{text.text}---\n{asked.prompt}"),
        # Small models go on with the text where no answer is begun.
        Message("assistant", f"{thought}{_unblanked(asked.begin)}"),
    )


def _unblanked(begin: str) -> str:
    """*begin* without the blank behind a word, which is a part of the next token."""
    return begin[:-1] if re.search(r"\S $", begin) else begin


def enough_for(asked: Question, form: str) -> Callable[[str], bool]:
    """
    A judge of a reply so far: true once reading on would tell nothing more.

    Args:
        asked: What it answers.
        form: Of the prompt. A completion has answered with its first line that is
            not blank; behind it, the text goes on. A chat may begin with a preamble.
    """
    if form == PromptForm.COMPLETION and asked.shape is not Shape.LINES:
        return _has_a_line
    return functools.partial(is_enough, asked)


def _has_a_line(so_far: str) -> bool:
    return any(line.strip() for line in so_far.split("\n")[:-1])
