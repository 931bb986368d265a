"""
Tasks: seeded texts with questions, the right answers, and the wrong ones that a model
which mixes things up would give.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

from codeneedle.corpora.random_bodies import random_bytes
from codeneedle.errors import BadInput, UnknownName

# 1 - first version
TASKS_VERSION = 1
"""Raised with every change of a text, a question or a setting; part of the setup."""

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
    """
    A wrong answer that belongs to another key, twin or position of the same text.

    Attributes:
        key: What it belongs to.
        payload: The answer, verbatim.
        place: Of the payload in the text, from 0 to 1.
    """

    key: str
    payload: str
    place: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """
    What is asked of a text, and what would be right.

    A chat gets the text, then `prompt`. A completion gets the text, an empty line,
    then `begin`, which states the question by itself; the payload follows it
    immediately. An answer of a chat may be begun with `begin` as well.

    Attributes:
        name: Unique among the questions of one call of `make_texts`.
        text: Number of the text that it asks about, from 0.
        depth: The depth that was asked for, from 0 to 1.
        key: What is asked for, as the text names it.
        prompt: The question, for a chat.
        begin: How the answer begins, for a completion.
        payload: The right answer, verbatim; items are joined as `begin` invites to.
        items: The parts of the payload that are scored; the payload alone if one.
        shape: How an answer is compared with it.
        decoys: Wrong answers, in order of their places.
        place: Of the payload in the text, from 0 to 1; the middle of several.
        budget_characters: Longest answer worth waiting for.
    """

    name: str
    text: int
    depth: float
    key: str
    prompt: str
    begin: str
    payload: str
    items: tuple[str, ...]
    shape: Shape
    decoys: tuple[Decoy, ...]
    place: float
    budget_characters: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskText:
    """A text, which ends with a newline, and the questions that share its reading."""

    text: str
    questions: tuple[Question, ...]


class Chance:
    """Choices that a seed decides: the same on every platform and Python."""

    def __init__(self, seed: str) -> None:
        self._bytes = random_bytes(seed)

    def below(self, limit: int) -> int:
        """A number from 0 to *limit* - 1, all equally likely; *limit* up to 2^32."""
        fair = 2**32 - 2**32 % limit
        while True:
            found = int.from_bytes(itertools.islice(self._bytes, 4))
            if found < fair:
                return found % limit

    def pick(self, values: Sequence[_Value]) -> _Value:
        """One of *values*."""
        return values[self.below(len(values))]

    def distinct(self, values: Sequence[_Value], count: int) -> list[_Value]:
        """*count* of *values*, none twice, in random order."""
        left = list(values)
        return [left.pop(self.below(len(left))) for _ in range(count)]

    def word(self, alphabet: str, length: int) -> str:
        """*length* characters of *alphabet*."""
        return "".join(self.pick(alphabet) for _ in range(length))

    def different(self, make: Callable[[], str], count: int) -> list[str]:
        """*count* results of *make*, none twice."""
        found: dict[str, None] = {}
        while len(found) < count:
            found[make()] = None
        return list(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """
    One setting of a dial.

    Attributes:
        says: What it means, as a phrase.
        count: Of what the task counts: keys, values, hops, twins, records.
        kind: Of names and values, in words of the task.
    """

    says: str
    count: int = 1
    kind: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Draft:
    """What a task makes a text of: its setting, and the depths of its questions."""

    setting: Setting
    characters: int
    depths: tuple[float, ...]
    chance: Chance


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """A question before it has a number and places: `at` is of its lines."""

    depth: float
    key: str
    prompt: str
    begin: str
    items: tuple[str, ...]
    at: tuple[int, ...]
    decoys: tuple[tuple[str, str, int], ...] = ()
    shape: Shape = Shape.ONE
    joint: str = ", "


@dataclass(frozen=True, slots=True)
class _Line:
    """Something that stands in the text, and where its beginning should, 0 to 1."""

    place: float
    text: str


_Made = tuple[list[_Line], list[_Asked]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """
    A kind of text and question.

    Attributes:
        name: As the user writes it.
        about: What it asks, as a phrase.
        dial: What the settings change, as a phrase.
        settings: From easy to hard.
        start: Number of the setting to begin with.
        has_depth: Whether the answer has a place in the text.
    """

    name: str
    about: str
    dial: str
    settings: tuple[Setting, ...]
    start: int = 0
    has_depth: bool = True
    make: Callable[[_Draft], _Made] = field(repr=False)
    per_text: Callable[[Setting], int] = field(repr=False)


def make_texts(
    name: str,
    *,
    dial: int,
    characters: int,
    depths: Sequence[float],
    questions: int,
    seed: int,
) -> tuple[TaskText, ...]:
    """
    The texts of a task, with *questions* questions for each of *depths*.

    As many questions as possible share a text, of all depths in turn. The same
    arguments give the same bytes on any platform and Python.

    Args:
        name: A key of `TASKS`.
        dial: Number of a setting of that task, from 0, the easiest.
        characters: Length of each text: at most 100 characters less, never more.
        depths: Places of what is asked for, from 0 to 1; ignored by a task without.
        questions: At least 1.
        seed: Any integer.

    Raises:
        UnknownName: If there is no such task.
        BadInput: If there is no such setting, or *characters* are too few for it.
    """
    task, setting = _setting(name, dial)
    wanted = tuple(depths) * questions if task.has_depth else (0.5,) * questions
    size = task.per_text(setting)
    found = []
    for number in range(-(-len(wanted) // size)):
        draft = _Draft(
            setting=setting,
            characters=characters,
            depths=wanted[number * size :][:size],
            chance=Chance(f"{TASKS_VERSION}:{name}:{dial}:{seed}:{number}"),
        )
        lines, asked = task.make(draft)
        text, places = _composed(lines, draft, name=name)
        made = [
            _question(each, f"{name}-{each.depth:.2f}-{number}-{n}", number, places)
            for n, each in enumerate(asked)
        ]
        found.append(TaskText(text=text, questions=tuple(made)))
    return tuple(found)


def _setting(name: str, dial: int) -> tuple[Task, Setting]:
    if name not in TASKS:
        raise UnknownName(kind="task", name=name, known=TASKS)
    settings = TASKS[name].settings
    if not 0 <= dial < len(settings):
        raise BadInput(
            source=f"task {name}",
            key="dial",
            reason=f"there is no setting {dial}",
            hint=f"Choose one from 0 to {len(settings) - 1}.",
        )
    return TASKS[name], settings[dial]


def _composed(
    lines: Sequence[_Line], draft: _Draft, *, name: str
) -> tuple[str, list[float]]:
    """The *lines* at their places among filler, and where each then begins, 0 to 1."""
    spare = draft.characters - sum(len(line.text) + 1 for line in lines)
    if spare < 0:
        raise BadInput(
            source=f"task {name}",
            reason=f"{draft.setting.says}: {draft.characters - spare:,} characters do"
            f" not fit a text of {draft.characters:,}",
            hint="Choose a greater length, or an easier setting.",
        )
    filler = _filler(draft.chance)
    following = next(filler)
    parts, length, starts = [], 0, {}
    order = sorted(range(len(lines)), key=lambda n: lines[n].place)
    for n in (*order, None):
        goal = draft.characters if n is None else lines[n].place * draft.characters
        while length < goal and spare > len(following):
            parts.append(following)
            length += len(following) + 1
            spare -= len(following) + 1
            following = next(filler)
        if n is not None:
            starts[n] = length
            parts.append(lines[n].text)
            length += len(lines[n].text) + 1
    return "\n".join(parts) + "\n", [starts[n] / length for n in range(len(lines))]


def _question(
    asked: _Asked, name: str, number: int, places: Sequence[float]
) -> Question:
    payload = asked.joint.join(asked.items)
    decoys = [Decoy(key=k, payload=p, place=places[at]) for k, p, at in asked.decoys]
    return Question(
        name=name,
        text=number,
        depth=asked.depth,
        key=asked.key,
        prompt=asked.prompt,
        begin=asked.begin,
        payload=payload,
        items=asked.items,
        shape=asked.shape,
        decoys=tuple(sorted(decoys, key=lambda decoy: decoy.place)),
        place=places[asked.at[len(asked.at) // 2]],
        budget_characters=2 * len(payload) + 80,
    )


# --- words


def _words(text: str) -> list[str]:
    return text.split()


_CITIES = _words(
    "Paris London Rome Madrid Berlin Vienna Lisbon Dublin Athens Oslo Moscow Cairo "
    "Tokyo Seoul Delhi Sydney Toronto Boston Chicago Miami Lima Havana Nairobi Lagos "
    "Warsaw Prague Zurich Geneva Munich Hamburg Milan Venice"
)
_ANIMALS = _words(
    "aardvark badger camel dolphin eagle falcon gazelle hedgehog iguana jaguar koala "
    "lemur meerkat otter panther rabbit salmon tortoise walrus zebra"
)
_ADJECTIVES = _words(
    "old quiet small green heavy broken bright young warm narrow empty cheap dry early "
    "plain round soft tall wide strange"
)
_NOUNS = _words(
    "baker lamp bridge farmer window river basket doctor garden engine teacher coat "
    "mirror sailor kitchen letter wagon painter ladder field bottle tailor barn clock "
    "singer blanket tower market pilot shelf road candle"
)
_VERBS = _words(
    "carries watches paints finds follows leaves holds moves opens keeps draws sells "
    "cleans loses mends counts"
)
_PREPOSITIONS = _words("near behind under beside above before after without")


def _filler(chance: Chance) -> Iterator[str]:
    """Sentences of 40 to 75 characters, drawn from words that no task asks for."""
    while True:
        yield (
            f"The {chance.pick(_ADJECTIVES)} {chance.pick(_NOUNS)}"
            f" {chance.pick(_VERBS)} the {chance.pick(_ADJECTIVES)}"
            f" {chance.pick(_NOUNS)} {chance.pick(_PREPOSITIONS)}"
            f" the {chance.pick(_NOUNS)}."
        )


_DIGITS = "0123456789"


def _number(chance: Chance, digits: int) -> str:
    return chance.pick(_DIGITS[1:]) + chance.word(_DIGITS, digits - 1)


def _uuid(chance: Chance) -> str:
    return "-".join(chance.word("0123456789abcdef", n) for n in (8, 4, 4, 4, 12))


def _invented(chance: Chance) -> str:
    """A word of six letters that can be spoken and means nothing."""
    syllables = (chance.pick("bdfgklmnprstvz") + chance.pick("aeiou") for _ in range(3))
    return "".join(syllables)


# --- single


def _single(draft: _Draft) -> _Made:
    """The needle of the published tables: its wording, its five digits."""
    key = draft.chance.pick(_ANIMALS)
    value = _number(draft.chance, 5)
    (depth,) = draft.depths
    asked = _Asked(
        depth=depth,
        key=key,
        prompt=f"What is the magic number for {key} mentioned in the text above?"
        " Answer with the number alone.",
        begin=f"The magic number for {key} is ",
        items=(value,),
        at=(0,),
    )
    return [_Line(depth, f"The magic number for {key} is {value}.")], [asked]


# --- multikey


@dataclass(frozen=True, slots=True)
class _Pairs:
    """Keys with values, and how they are written."""

    keys: list[str]
    values: list[str]
    form: str

    def line(self, n: int) -> str:
        return self.form.format(self.keys[n], self.values[n])


def _pairs(draft: _Draft) -> _Pairs:
    chance, count, kind = draft.chance, draft.setting.count, draft.setting.kind
    if kind == "uuid":
        count = count or (draft.characters - 1) // (2 * 36 + len(" -> \n"))
        uuids = chance.different(lambda: _uuid(chance), 2 * count)
        return _Pairs(uuids[:count], uuids[count:], "{} -> {}")
    if kind == "city":
        keys, digits = chance.distinct(_CITIES, count), 3
    else:
        keys, digits = chance.different(lambda: _invented(chance), count), 5
    values = chance.different(lambda: _number(chance, digits), count)
    return _Pairs(keys, values, "The code of {} is {}.")


def _multikey(draft: _Draft) -> _Made:
    pairs = _pairs(draft)
    places = _spread(draft, len(pairs.keys))
    asked = [
        _Asked(
            depth=depth,
            key=pairs.keys[n],
            prompt=f"What does the text above say: "
            f"{pairs.form.format(pairs.keys[n], '...')} Answer with what stands in"
            " place of the dots, and nothing else.",
            begin=pairs.form.format(pairs.keys[n], "|").partition("|")[0],
            items=(pairs.values[n],),
            at=(n,),
            decoys=tuple(
                (pairs.keys[other], pairs.values[other], other)
                for other in range(len(pairs.keys))
                if other != n
            ),
        )
        for n, depth in enumerate(draft.depths)
    ]
    lines = [_Line(place, pairs.line(n)) for n, place in enumerate(places)]
    return lines, asked


def _spread(draft: _Draft, count: int) -> list[float]:
    """Places of *count* lines: the asked depths first, the others anywhere."""
    if count < len(draft.depths):
        raise BadInput(
            source=f"a text of {draft.characters:,} characters",
            reason=f"{draft.setting.says}: {count} lines for {len(draft.depths)}"
            " questions",
            hint="Choose a greater length, or fewer questions.",
        )
    others = count - len(draft.depths)
    step = 1 / max(others, 1)
    return [*draft.depths, *((n + 0.5) * step for n in range(others))]


TASKS: Mapping[str, Task] = {
    task.name: task
    for task in (
        Task(
            name="single",
            about="one magic number in unrelated sentences",
            dial="nothing: length and depth alone",
            settings=(Setting(says="one number of five digits"),),
            make=_single,
            per_text=lambda _: 1,
        ),
        Task(
            name="multikey",
            about="one of many keys with values of the same kind",
            dial="how many keys, and how long they and their values are",
            settings=(
                *(
                    Setting(says=f"{n} cities, three digits", count=n, kind="city")
                    for n in (2, 4, 6, 8, 16)
                ),
                *(
                    Setting(
                        says=f"{n} invented words, five digits", count=n, kind="word"
                    )
                    for n in (8, 16, 32)
                ),
                Setting(says="UUIDs throughout", count=0, kind="uuid"),
            ),
            make=_multikey,
            per_text=lambda setting: setting.count or 16,
        ),
    )
}
