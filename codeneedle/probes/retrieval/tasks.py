"""
What a task is: a text with questions, the right answers, and the wrong ones that a
model which mixes things up would give; and how a text is composed of lines and filler.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

from codeneedle.corpora.random_bodies import random_bytes
from codeneedle.errors import BadInput
from codeneedle.records.record import Share

_Value = TypeVar("_Value")


class Shape(StrEnum):
    """
    How an answer is compared with the payload.

    ``one``: a single item; ``items``: several, in any order; ``lines``: several
    lines, in order.
    """

    ONE = "one"
    ITEMS = "items"
    LINES = "lines"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoy:
    """A wrong answer that belongs to another key, twin or position of the same text."""

    key: str  # what it belongs to
    payload: str  # the answer, verbatim
    place: float  # of the payload in the text, from 0 to 1


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionFields:
    """
    What is asked of a text, and what would be right.

    A chat gets the text, then `prompt`. A completion gets the text, an empty line,
    then `begin`, which states the question by itself; the payload follows it
    immediately. An answer of a chat may be begun with `begin` as well.
    """

    name: str
    """
    Unique among the questions of one call of `make_texts`; in a record, of all of them,
    and the same for every pair.
    """

    depth: Share  # the depth that was asked for, from 0 to 1
    key: str  # what is asked for, as the text names it
    prompt: str  # the question, for a chat
    begin: str  # how the answer begins, for a completion
    payload: str  # the right answer, verbatim; items are joined as `begin` invites to
    items: tuple[str, ...]
    """The parts of the payload that are scored; the payload alone if one."""

    shape: Shape  # how an answer is compared with it
    place: float
    """
    Of the payload in the text, from 0 to 1; the middle one of several items, or of the
    lines of a chain.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class TextQuestion(QuestionFields):
    """A question with its wrong answers."""

    text: int  # number of the text that it asks about, from 0
    decoys: tuple[Decoy, ...]  # wrong answers, in order of their places


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskText:
    """A text, which ends with a newline, and the questions that share its reading."""

    text: str
    questions: tuple[TextQuestion, ...]


class Chance:
    """Choices that a seed decides: the same on every platform and Python."""

    def __init__(self, seed: str) -> None:
        self._bytes = random_bytes(seed)

    def below(self, limit: int) -> int:
        """A number from 0 to *limit* - 1, all equally likely; *limit* up to 2^32."""
        fair = 2**32 - 2**32 % limit
        while True:
            drawn = int.from_bytes(itertools.islice(self._bytes, 4))
            if drawn < fair:
                return drawn % limit

    def pick(self, values: Sequence[_Value]) -> _Value:
        """One of *values*."""
        return values[self.below(len(values))]

    def pick_several(self, values: Sequence[_Value], count: int) -> list[_Value]:
        """*count* of *values* in random order, each drawn once at most."""
        left = list(values)
        return [left.pop(self.below(len(left))) for _ in range(count)]

    def word(self, alphabet: str, length: int) -> str:
        """*length* characters of *alphabet*."""
        return "".join(self.pick(alphabet) for _ in range(length))

    def make_distinct(self, make: Callable[[], str], count: int) -> list[str]:
        """*count* results of *make*, none twice."""
        made: dict[str, None] = {}
        while len(made) < count:
            made[make()] = None
        return list(made)


@dataclass(frozen=True, slots=True)
class Level:
    """One level of a dial."""

    says: str  # what it means, as a phrase
    count: int = 1  # of what the task counts: keys, values, hops, twins, records, words
    kind: str = ""  # of names and values, in words of the task
    differ: int = 0
    """Lines in which twins differ; how much more often common words occur."""

    lines: int = 0  # of the body of a twin


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSpec:
    """What a task makes a text of: its level, and the depths of its questions."""

    level: Level
    characters: int
    depths: tuple[float, ...]
    chance: Chance


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionDraft:
    """A question before it has a number and places: `at` is of its lines."""

    depth: float
    key: str
    prompt: str
    begin: str
    items: tuple[str, ...]
    at: tuple[int, ...]
    decoys: Iterable[tuple[str, str, int]] = ()
    shape: Shape = Shape.ONE
    joint: str = ", "


@dataclass(frozen=True, slots=True)
class PlacedLine:
    """Something that stands in the text, and where its beginning should, 0 to 1."""

    place: float
    text: str


@dataclass(frozen=True, slots=True)
class Material:
    """What stands in a text, what is asked of it, and what fills it up."""

    lines: list[PlacedLine]
    questions: list[QuestionDraft]
    filler: Iterator[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A kind of text and question."""

    name: str  # as the user writes it
    about: str  # what it asks, as a phrase
    levels: tuple[Level, ...]  # from easy to hard
    start: int = 0  # number of the level to begin with
    has_depth: bool = True  # whether the answer has a place in the text
    make: Callable[[TextSpec], Material] = field(repr=False)
    per_text: Callable[[Level], int] = field(repr=False)


def compose_text(task: Task, spec: TextSpec, number: int) -> TaskText:
    """
    The text of that *number* which *task* makes of *spec*, with its questions.

    Raises:
        BadInput: If its lines do not fit the characters of *spec*.
    """
    made = task.make(spec)
    text, places = _join_lines_and_filler(made, spec, name=task.name)
    questions = [
        _finish_question(
            draft, f"{task.name}-{draft.depth:.2f}-{number}-{n}", number, places
        )
        for n, draft in enumerate(made.questions)
    ]
    return TaskText(text=text, questions=tuple(questions))


def _join_lines_and_filler(
    made: Material, spec: TextSpec, *, name: str
) -> tuple[str, list[float]]:
    """
    The lines in order of their places among filler, and where each then begins, 0 to 1.

    Lines are never dropped: filler ends where the characters do.

    Raises:
        BadInput: If the lines alone have more characters.
    """
    lines = made.lines
    spare = spec.characters - sum(len(line.text) + 1 for line in lines)
    if spare < 0:
        raise BadInput(
            source=f"task {name}",
            reason=f"{spec.level.says}: {spec.characters - spare:,} characters do"
            f" not fit a text of {spec.characters:,}",
            hint="Choose a greater length, or an easier level.",
        )
    following = next(made.filler, None)
    parts, length, starts = [], 0, {}
    order = sorted(range(len(lines)), key=lambda n: lines[n].place)
    for n in (*order, None):
        goal = spec.characters if n is None else lines[n].place * spec.characters
        while following and length < goal and spare > len(following):
            parts.append(following)
            length += len(following) + 1
            spare -= len(following) + 1
            following = next(made.filler, None)
        if n is not None:
            starts[n] = length
            parts.append(lines[n].text)
            length += len(lines[n].text) + 1
    return "\n".join(parts) + "\n", [starts[n] / length for n in range(len(lines))]


def _finish_question(
    draft: QuestionDraft, name: str, text_number: int, item_places: Sequence[float]
) -> TextQuestion:
    """The question of *draft*, whose decoys are sorted by place."""
    payload = draft.joint.join(draft.items)
    decoys = [
        Decoy(key=k, payload=p, place=item_places[at]) for k, p, at in draft.decoys
    ]
    return TextQuestion(
        name=name,
        text=text_number,
        depth=draft.depth,
        key=draft.key,
        prompt=draft.prompt,
        begin=draft.begin,
        payload=payload,
        items=draft.items,
        shape=draft.shape,
        decoys=tuple(sorted(decoys, key=lambda decoy: decoy.place)),
        place=item_places[draft.at[len(draft.at) // 2]],
    )
