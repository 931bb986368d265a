"""
Options of retrieval with their defaults, the aim of its dials, and what a setup stores;
the room of the longest question; refuses a chat template that changes the text.
"""

import math
from typing import Annotated

from msgspec import Meta, Struct

from codeneedle.engines.engine import LostText
from codeneedle.errors import BadInput, UnknownName
from codeneedle.probes.cell import RunContext, tokenizing
from codeneedle.probes.observations import settings_in
from codeneedle.probes.prompts import PromptForm
from codeneedle.probes.retrieval.prompts import WORDING, question_and_begun_answer
from codeneedle.probes.retrieval.record import (
    NAME,
    Calibration,
    Dialled,
    DialStep,
    Fitted,
)
from codeneedle.probes.retrieval.task_kinds import TASKS, TASKS_VERSION, make_texts
from codeneedle.probes.retrieval.tasks import TaskText
from codeneedle.probes.thinking import NO_THINK_ARGS
from codeneedle.records.record import (
    MOST_TOKENS,
    Setup,
)

TASK_NAMES = ("single", "multikey")
LENGTHS = (1024, 2048, 4096)
DEPTHS = (0.1, 0.3, 0.5, 0.7, 0.9)
"""The depths of the published tables of retrieval by length, depth and precision."""

QUESTIONS = 4
"""Of each task at each length and depth."""

MOST_QUESTIONS = 1000

AIM = (0.6, 0.9)
"""Share of right answers of the reference that a dial aims at, ends included."""

ANSWER_FACTOR = 1.5
ANSWER_EXTRA_TOKENS = 48
"""A reply may have so many times the tokens of the right answer, and so many more."""

CHARACTERS_PER_TOKEN = 4
"""Of English, roughly: where fitting begins, or all of it without a tokenizer."""

ANSWER_CHARACTERS_PER_TOKEN = 2
"""Characters per token of digits and names."""

TEMPLATE_TOKENS = 128
"""What a chat template may add to text and question."""


# --- what a user may choose


_TextLength = Annotated[int, Meta(ge=1, le=MOST_TOKENS)]


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
        tuple[_TextLength, ...],
        Meta(
            description="Lengths of its texts, in tokens: 512 or 1K.",
            extra={
                "option": "--lengths",
                "metavar": "LIST",
                "unit": "tokens",
                "default": "1K,2K,4K",
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
            le=MOST_QUESTIONS,
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
            description="Skip lengths above the first at which the reference fails at "
            "all depths, and of another pair those above the first at which it answers "
            "nothing.",
            extra={"option": "--gate/--no-gate", "default": "gate"},
        ),
    ] = True
    reads: Annotated[
        bool,
        Meta(
            description="Score right answers of retrieval where they stand in a text "
            "that is read in batches, which an accelerator and servers that score "
            "prompts do faster. No answer is written but those that set a dial.",
            extra={
                "option": "--read-answers/--no-read-answers",
                "default": "no-read-answers",
            },
        ),
    ] = False


def sorted_distinct_lengths(settings: RetrievalSettings) -> tuple[int, ...]:
    """The lengths asked for, in tokens, each once, shortest first."""
    return tuple(sorted({*settings.lengths}))


def parse_fixed_levels(settings: RetrievalSettings) -> dict[str, int]:
    """
    The settings of dials that the user chose, by task; empty if none.

    A number alone is of all tasks; of several for one task the last counts.

    Raises:
        BadInput: If one is no level of its task.
        UnknownName: If a task is not among those asked for.
    """
    fixed = {}
    for word in map(str, settings.dial):
        named, _, number = word.rpartition("=")
        if named and named not in settings.tasks:
            raise UnknownName(
                kind="task of --dial", name=named, known=list(settings.tasks)
            )
        for task in (named,) if named else settings.tasks:
            last = len(TASKS[task].levels) - 1
            if not (number.isascii() and number.isdecimal() and int(number) <= last):
                raise BadInput(
                    source=f"--dial {word}",
                    reason=f"is no level of {task}",
                    hint=f"Choose one from 0 to {last}, or leave --dial out.",
                )
            fixed[task] = int(number)
    return fixed


def most_question_and_answer_tokens(settings: RetrievalSettings, context: int) -> int:
    """
    Tokens that the longest question of the tasks and its answer may take.

    In a text of the shortest length asked for, or of *context* if that is shorter;
    levels that do not fit it are left out.
    """
    characters = CHARACTERS_PER_TOKEN * min(
        context, sorted_distinct_lengths(settings)[0]
    )
    longest = max(
        (
            len(question.prompt)
            + len(question.begin)
            + ANSWER_FACTOR * len(question.payload)
            for task in settings.tasks
            for dial in range(len(TASKS[task].levels))
            for text in _one_text_if_it_fits(task, dial, characters)
            for question in text.questions
        ),
        default=0,
    )
    own = math.ceil(longest / ANSWER_CHARACTERS_PER_TOKEN)
    return own + TEMPLATE_TOKENS + ANSWER_EXTRA_TOKENS


def _one_text_if_it_fits(task: str, dial: int, characters: int) -> tuple[TaskText, ...]:
    """A text of one question; none if the level takes a longer one."""
    try:
        return make_texts(
            task, dial=dial, characters=characters, depths=(0.5,), questions=1, seed=0
        )
    except BadInput:
        return ()


# --- what a setup stores


class RetrievalLayout(
    RetrievalSettings, frozen=True, kw_only=True, forbid_unknown_fields=False
):
    """
    What a setup stores: the settings, lists in order and each value once, with what
    follows from them.
    """

    graded: str = ""  # why right answers are not forced; empty if they are
    texts: int = TASKS_VERSION  # version of the texts and questions
    wording: int = WORDING  # version of how they are joined

    def __post_init__(self) -> None:
        """
        Refuse what a damaged setup may hold.

        Raises:
            ValueError: If nothing is asked, a task is unknown, or a depth is none.
        """
        if not (self.tasks and self.lengths and self.depths):
            raise ValueError("it names no task, no length or no depth")
        unknown = [
            task for task in (*self.tasks, *self.fixed_levels) if task not in TASKS
        ]
        if unknown:
            raise ValueError(f"there is no task '{unknown[0]}'")
        if not all(0 <= depth <= 1 for depth in self.depths):
            raise ValueError("a depth is not from 0 to 1")

    @property
    def fixed_levels(self) -> dict[str, int]:
        """The settings of dials that the user chose, by task."""
        words = (str(word).split("=") for word in self.dial)
        return {task: int(level) for task, level in words}

    def questions_per_length(self, task: str) -> int:
        """Questions of *task* at each length, those of all depths."""
        return self.questions * (len(self.depths) if TASKS[task].has_depth else 1)


def retrieval_layout(setup: Setup) -> RetrievalLayout:
    """
    What *setup* stores of the probe.

    Raises:
        BadRecord: If it has another layout.
    """
    return settings_in(setup, NAME, RetrievalLayout)


def layout_of(settings: RetrievalSettings, graded: str = "") -> RetrievalLayout:
    """What a setup stores of *settings*; *graded* says why no answer is forced."""
    return RetrievalLayout(
        tasks=tuple(dict.fromkeys(settings.tasks)),
        lengths=sorted_distinct_lengths(settings),
        depths=tuple(sorted(set(settings.depths))),
        questions=settings.questions,
        dial=tuple(
            f"{task}={dial}" for task, dial in parse_fixed_levels(settings).items()
        ),
        gate=settings.gate,
        reads=settings.reads,
        graded=graded,
    )


def check_template_keeps_text(run: RunContext, length: int) -> None:
    """
    Stop at a chat template that does not render a text of *length* tokens verbatim.

    Nothing is checked of completions, or of engines that estimate lengths: they do not
    tell what their template renders.

    Raises:
        LostText: If the text or the question is not in the prompt.
    """
    is_told = run.setup.prompt_form == PromptForm.CHAT and not run.setup.lengths
    if not is_told:
        return
    (text,) = make_texts(
        "single",
        dial=0,
        characters=CHARACTERS_PER_TOKEN * max(length, LENGTHS[0]),
        depths=(0.5,),
        questions=1,
        seed=run.setup.seed,
    )
    (question,) = text.questions
    with tokenizing(run.engine, run.folder) as tokenizer:
        prompt = tokenizer.render(
            question_and_begun_answer(run, text, question), NO_THINK_ARGS
        )
    # Templates may drop white space around a message.
    for what, part in (("the text", text.text.strip()), ("question", question.prompt)):
        if part not in prompt:
            raise LostText(f"{what} of the probe {NAME}")


def expected_calibration(chosen: RetrievalLayout) -> Calibration:
    """What the first cell is likely to find out: each dial where it begins."""
    levels = {task: TASKS[task].start for task in chosen.tasks} | chosen.fixed_levels
    return Calibration(
        reference="",
        dials=tuple(
            Dialled(
                task=task,
                level=levels[task],
                is_fixed=task in chosen.fixed_levels,
                path=(DialStep(levels[task], AIM[0], 0),),
            )
            for task in chosen.tasks
        ),
        sizes=tuple(
            Fitted(task, length, 0)
            for task in chosen.tasks
            for length in chosen.lengths
        ),
    )
