"""
The stored layout of retrieval: texts, answers, and what the reference has set; whether
it has enough right at a length for a loss to show.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from codeneedle.probes.answers import Skipped
from codeneedle.probes.metrics import ABLE
from codeneedle.probes.observations import (
    Answer,
    Observed,
    calibration_in,
    file_name_of,
    keep_results,
    observation_of,
    refuse_impossible_scores,
)
from codeneedle.probes.retrieval.tasks import Decoy, QuestionFields, TextQuestion
from codeneedle.records.record import (
    Amount,
    CellRecord,
    Count,
    Setup,
    Share,
    from_json,
    refuse_unless_possible,
    shared_field_values,
)
from codeneedle.records.store import SETUP

NAME = "retrieval"
"""Of the probe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextAnswer(QuestionFields):
    """One question of a text, as it was asked and answered."""

    decoys: tuple[Count, ...]  # numbers of the decoys, from 0, among those of the text
    answer: Answer
    """What was written; and the scores of the right answer, if the engine tells any."""

    def question(self, text: int, decoys: Sequence[Decoy]) -> TextQuestion:
        """
        The question as its task made it.

        Args:
            text: Number of its text.
            decoys: Those of the text.
        """
        own = tuple(decoys[at] for at in self.decoys)
        return TextQuestion(
            text=text, decoys=own, **shared_field_values(self, QuestionFields)
        )


class TextKey(NamedTuple):
    """What makes a text the same for every pair."""

    task: str  # name of the task
    length: int  # the length that was asked for, in tokens
    number: int  # of the text among those of this task and length, from 0

    @classmethod
    def parse(cls, name: str) -> "TextKey":
        """
        The key of that `name`.

        Raises:
            ValueError: If it is none.
        """
        task, length, number = name.rsplit("-", 2)
        return cls(task, int(length), int(number))

    @property
    def name(self) -> str:
        """``multikey-1024-0``: the unit of statistics."""
        return "-".join(map(str, self))


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRead:
    """One text, read once, and all that was asked of it."""

    task: str  # name of the task
    length: Count  # the length that was asked for, in tokens
    number: Count  # of the text among those of this task and length, from 0
    characters: Count  # its length
    sha256: str  # of the text, UTF-8
    decoys: tuple[Decoy, ...]  # wrong answers, which questions name by number
    prompt_tokens: Count  # length of the first prompt that held it, in tokens
    cached_tokens: Count  # of these, taken from the cache
    prompt_ms: Amount  # time to read the others
    answers: tuple[TextAnswer, ...]
    """To its questions; the unscored one before them is not among them."""

    @property
    def key(self) -> TextKey:
        """Task, length and number of the text."""
        return TextKey(self.task, self.length, self.number)


@dataclass(frozen=True, slots=True)
class DialStep:
    """A level that was tried on the reference."""

    level: Count  # number of the level, from 0, the easiest
    right: Share  # share of right answers, from 0 to 1
    questions: Count  # how many were asked


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialled:
    """The difficulty of a task for all pairs, found on the reference."""

    task: str  # name of the task
    level: int  # number of the level, from 0, the easiest
    is_fixed: bool  # whether the user chose it
    path: tuple[DialStep, ...]  # what was tried, in order; the level is among it

    @property
    def right_share(self) -> float:
        """Share of right answers of the reference at the level, from 0 to 1."""
        return next(step.right for step in self.path if step.level == self.level)


@dataclass(frozen=True, slots=True)
class Fitted:
    """How many characters make a text of a *task* as long as *length* tokens."""

    task: str
    length: Count
    characters: Count


@dataclass(frozen=True, slots=True)
class Answered:
    """Share of a *task* that the reference has *right* at a *length*, from 0 to 1."""

    task: str
    length: Count
    right: Share


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What the reference has set for all cells; `Setup.calibrated` keeps it."""

    reference: str  # the pair: ``f16/f16``
    dials: tuple[Dialled, ...]  # one for each task
    sizes: tuple[Fitted, ...]  # one for each task and length
    left_out: tuple[Skipped, ...] = ()
    """Tasks that are too hard for the reference from a length on."""

    answered: tuple[Answered, ...] = ()
    """What the reference has right, one for each task and length asked."""

    @property
    def levels(self) -> dict[str, int]:
        """The level of each dial, by task."""
        return {dial.task: dial.level for dial in self.dials}

    def fitted_size(self, task: str, length: int) -> Fitted:
        """How many characters texts of *task* have at *length*."""
        place = (task, length)
        return next(size for size in self.sizes if (size.task, size.length) == place)

    def is_informative(self, task: str, length: int) -> bool:
        """
        Whether the reference answers *task* at *length*, so that a loss can show.

        A length that it was not asked to its end is judged by the dial.
        """
        right = self.right_share_at(task, length)
        if right is None:
            dials = (dial.right_share for dial in self.dials if dial.task == task)
            right = next(dials, 0.0)
        return right >= ABLE

    def right_share_at(self, task: str, length: int) -> float | None:
        """Share of *task* at *length* that the reference has right; None if unknown."""
        rights = {
            (answer.task, answer.length): answer.right for answer in self.answered
        }
        return rights.get((task, length))


@dataclass(frozen=True, slots=True, kw_only=True)
class Retrieval:
    """What the retrieval probe has observed of a cell."""

    answers: dict[str, TextRead]
    """What was asked of each text, by `TextKey.name`, in asking order."""

    skipped: dict[str, str] = field(default_factory=dict)
    """
    Why texts beyond a length at which this pair answers nothing were not asked, by
    `TextKey.name`.
    """

    @property
    def texts(self) -> tuple[TextRead, ...]:
        """The texts that were asked about, in asking order."""
        return tuple(self.answers.values())

    @property
    def skipped_lengths(self) -> tuple[Skipped, ...]:
        """Tasks and lengths of which texts were skipped, with the last reason."""
        lengths = {
            (key.task, key.length): reason
            for key, reason in zip(
                map(TextKey.parse, self.skipped), self.skipped.values(), strict=True
            )
        }
        return tuple(Skipped(*place, reason) for place, reason in lengths.items())


@keep_results()
def calibration_of(setup: Setup) -> Calibration | None:
    """
    What the reference has set for all cells; None before it has.

    Raises:
        BadRecord: If what the setup keeps is something else.
    """
    calibration = calibration_in(setup, NAME, Calibration)
    for dial in calibration.dials if calibration else ():
        is_possible = any(step.level == dial.level for step in dial.path)
        what = f"the level of {dial.task} was never tried"
        refuse_unless_possible(is_possible, what, file=SETUP)
    if calibration is None:
        return None
    for task in setup.probes.get(NAME, {}).get("tasks", ()):
        what = f"nothing says how hard {task} is"
        refuse_unless_possible(task in calibration.levels, what, file=SETUP)
    return calibration


def known_calibration(setup: Setup) -> Calibration:
    """
    What the reference has set for all cells.

    Raises:
        ValueError: If it has not yet.
    """
    calibration = calibration_of(setup)
    if calibration is None:
        raise ValueError("a cell before its reference")
    return calibration


@keep_results()
def retrieval_of(record: CellRecord) -> Retrieval | None:
    """
    What *record* holds of this probe; None if it holds nothing of it.

    Raises:
        BadRecord: If what it holds cannot be read.
    """
    if record.probe != NAME or record.observation is None:
        return None
    stored = observation_of(record, Observed)
    answers = {
        name: from_json(answer, TextRead, file=file_name_of(record))
        for name, answer in stored.answers.items()
    }
    retrieval = Retrieval(answers=answers, skipped=stored.skipped)
    for name in retrieval.skipped:
        with_numbers = re.fullmatch(r".+-\d+-\d+", name)
        what = f"'{name}' is no text"
        refuse_unless_possible(bool(with_numbers), what, file=file_name_of(record))
    for name, text in retrieval.answers.items():
        is_possible = name == text.key.name
        what = f"'{name}' is another text"
        refuse_unless_possible(is_possible, what, file=file_name_of(record))
        for asked in text.answers:
            is_possible = bool(asked.items) and all(
                at < len(text.decoys) for at in asked.decoys
            )
            what = f"the answer to {asked.name} does not belong to its question"
            refuse_unless_possible(is_possible, what, file=file_name_of(record))
        refuse_impossible_scores(
            (asked.answer for asked in text.answers), file=file_name_of(record)
        )
    return retrieval
