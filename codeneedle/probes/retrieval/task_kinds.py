"""
The tasks by name (multikey, twins, ledger and so on): what each writes and asks, with
its words, from a seed, and the levels of its dial.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from codeneedle.errors import BadInput, UnknownName
from codeneedle.probes.retrieval.tasks import (
    Chance,
    Level,
    Material,
    PlacedLine,
    QuestionDraft,
    Shape,
    Task,
    TaskText,
    TextSpec,
    compose_text,
)
from codeneedle.text import plural

# 1 - first version
TASKS_VERSION = 1
"""Raised with every change of a text, a question or a level; part of the setup."""


def make_texts(
    name: str,
    *,
    dial: int,
    characters: int,
    depths: Sequence[float],
    questions: int,
    seed: int,
    only: int | None = None,
) -> tuple[TaskText, ...]:
    """
    The texts of a task, with *questions* questions for each of *depths*.

    As many questions as possible share a text, of all depths in turn. The same
    arguments give the same bytes on any platform and Python; with more questions,
    further texts come behind those that have as many as they can.

    Args:
        name: A key of `TASKS`.
        dial: Number of a level of that task, from 0, the easiest.
        characters: Length of each text: at most 200 characters less, never more.
        depths: Places of what is asked for, from 0 to 1; ignored by a task without.
        questions: At least 1.
        seed: Any integer.
        only: Number of the single text to make; all if None.

    Raises:
        UnknownName: If there is no such task.
        BadInput: If there is no such level, or *characters* are too few for it.
    """
    task, level = _task_and_level(name, dial)
    wanted = tuple(depths) * questions if task.has_depth else (0.5,) * questions
    size = task.per_text(level)
    texts = []
    numbers = range(math.ceil(len(wanted) / size)) if only is None else (only,)
    for number in numbers:
        spec = TextSpec(
            level=level,
            characters=characters,
            depths=wanted[number * size :][:size],
            chance=Chance(f"{TASKS_VERSION}:{name}:{dial}:{seed}:{number}"),
        )
        texts.append(compose_text(task, spec, number))
    return tuple(texts)


def _task_and_level(name: str, dial: int) -> tuple[Task, Level]:
    """The task *name* and its level *dial*; refuses what there is not."""
    if name not in TASKS:
        raise UnknownName(kind="task", name=name, known=TASKS)
    levels = TASKS[name].levels
    if not 0 <= dial < len(levels):
        raise BadInput(
            source=f"task {name}",
            key="dial",
            reason=f"there is no level {dial}",
            hint=f"Choose one from 0 to {len(levels) - 1}.",
        )
    return TASKS[name], levels[dial]


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


def _draw_endless_sentences(chance: Chance) -> Iterator[str]:
    """Sentences of 40 to 75 characters, drawn from words that no task asks for."""
    while True:
        yield (
            f"The {chance.pick(_ADJECTIVES)} {chance.pick(_NOUNS)}"
            f" {chance.pick(_VERBS)} the {chance.pick(_ADJECTIVES)}"
            f" {chance.pick(_NOUNS)} {chance.pick(_PREPOSITIONS)}"
            f" the {chance.pick(_NOUNS)}."
        )


_DIGITS = "0123456789"
_HEX = "0123456789abcdef"
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def _draw_number(chance: Chance, digits: int) -> str:
    """A number of so many *digits*, the first of them not 0."""
    return chance.pick(_DIGITS[1:]) + chance.word(_DIGITS, digits - 1)


def _draw_uuid(chance: Chance) -> str:
    return "-".join(chance.word(_HEX, n) for n in (8, 4, 4, 4, 12))


def _invent_word(chance: Chance) -> str:
    """A word of six letters that can be spoken and means nothing."""
    syllables = (chance.pick("bdfgklmnprstvz") + chance.pick("aeiou") for _ in range(3))
    return "".join(syllables)


# --- single


def _make_single_number(spec: TextSpec) -> Material:
    """The needle of the published tables: its wording, its five digits."""
    key = spec.chance.pick(_ANIMALS)
    value = _draw_number(spec.chance, 5)
    (depth,) = spec.depths
    question = QuestionDraft(
        depth=depth,
        key=key,
        prompt=f"What is the magic number for {key} mentioned in the text above?"
        " Answer with the number alone.",
        begin=f"The magic number for {key} is ",
        items=(value,),
        at=(0,),
    )
    line = PlacedLine(depth, f"The magic number for {key} is {value}.")
    return Material([line], [question], _draw_endless_sentences(spec.chance))


# --- multikey, multivalue, multiquery, nth

_ORDINALS = _words("first second third fourth fifth sixth seventh eighth")


@dataclass(frozen=True, slots=True)
class _Pairs:
    """Keys with values, and how they are written."""

    keys: list[str]
    values: list[str]
    form: str = "The code of {} is {}."

    def line(self, n: int) -> str:
        return self.form.format(self.keys[n], self.values[n])

    def line_up_to_value(self, n: int) -> str:
        """The line up to its value."""
        return self.form.partition("{}")[0] + self.keys[n] + self.form.split("{}")[1]

    def decoys_except(self, wanted: Sequence[int]) -> Iterator[tuple[str, str, int]]:
        """Key, value and number of each pair but those of the numbers *wanted*."""
        for n, value in enumerate(self.values):
            if n not in wanted:
                yield self.keys[n], value, n


def _draw_keys_and_values(spec: TextSpec, count: int) -> _Pairs:
    """
    Keys and values of the kind of the level, none twice.

    A *count* of 0 is as many UUIDs as fill the text.
    """
    chance, kind = spec.chance, spec.level.kind
    if kind == "uuid":
        count = count or (spec.characters - 1) // (2 * 36 + len(" -> \n"))
        uuids = chance.make_distinct(lambda: _draw_uuid(chance), 2 * count)
        return _Pairs(uuids[:count], uuids[count:], "{} -> {}")
    if kind == "word":
        keys, digits = chance.make_distinct(lambda: _invent_word(chance), count), 5
    else:
        keys, digits = chance.pick_several(_CITIES, count), 3
    return _Pairs(
        keys, chance.make_distinct(lambda: _draw_number(chance, digits), count)
    )


def _make_multikey(spec: TextSpec) -> Material:
    """Keys with a value each; the first ones are asked for, one at a time."""
    pairs = _draw_keys_and_values(spec, spec.level.count)
    places = _asked_then_even_depths(spec, len(pairs.keys))
    questions = [
        QuestionDraft(
            depth=depth,
            key=pairs.keys[n],
            prompt=f"What does the text above say: {pairs.line_up_to_value(n)}... "
            "Answer with what stands in place of the dots, and nothing else.",
            begin=pairs.line_up_to_value(n),
            items=(pairs.values[n],),
            at=(n,),
            decoys=pairs.decoys_except([n]),
        )
        for n, depth in enumerate(spec.depths)
    ]
    lines = [PlacedLine(place, pairs.line(n)) for n, place in enumerate(places)]
    return Material(lines, questions, _draw_endless_sentences(spec.chance))


def _asked_then_even_depths(spec: TextSpec, count: int) -> list[float]:
    """
    Places of *count* lines: the asked depths first, the others evenly.

    Raises:
        BadInput: If there are more depths than *count*.
    """
    others = count - len(spec.depths)
    if others < 0:
        raise BadInput(
            source=f"a text of {spec.characters:,} characters",
            reason=f"{spec.level.says}: {count} lines for {len(spec.depths)} questions",
            hint="Choose a greater length, or fewer questions.",
        )
    return [*spec.depths, *((n + 0.5) / others for n in range(others))]


_APART = 0.03
"""Distance of the lines of one group, as a share of the text."""


def _depths_around(depth: float, count: int) -> list[float]:
    """Places of *count* lines whose middle is *depth*."""
    return [depth + _APART * (n - (count - 1) / 2) for n in range(count)]


def _make_multivalue(spec: TextSpec) -> Material:
    """Two keys, so that the values of one are decoys for the other."""
    count = spec.level.count
    numbers = spec.chance.make_distinct(lambda: _draw_number(spec.chance, 3), 2 * count)
    keys = [key for key in spec.chance.pick_several(_CITIES, 2) for _ in range(count)]
    pairs = _Pairs(keys, numbers, "One of the codes of {} is {}.")
    lines, questions = [], []
    for half, depth in enumerate((*spec.depths, 1 - spec.depths[0])[:2]):
        mine = range(half * count, (half + 1) * count)
        places = _depths_around(depth, count)
        lines += [
            PlacedLine(p, pairs.line(n)) for p, n in zip(places, mine, strict=True)
        ]
        key = keys[mine[0]]
        if half < len(spec.depths):
            questions.append(
                QuestionDraft(
                    depth=depth,
                    key=key,
                    prompt=f"Which are the {count} codes of {key} in the text above?"
                    " Answer with the codes alone, separated by commas.",
                    begin=f"The {count} codes of {key} are ",
                    items=tuple(numbers[n] for n in mine),
                    at=tuple(mine),
                    decoys=pairs.decoys_except(mine),
                    shape=Shape.ITEMS,
                )
            )
    return Material(lines, questions, _draw_endless_sentences(spec.chance))


def _make_multiquery(spec: TextSpec) -> Material:
    """Groups of keys that are asked at once, and as many keys that are not."""
    count = spec.level.count
    groups = len(spec.depths)
    pairs = _draw_keys_and_values(spec, (groups + 1) * count)
    places = [place for depth in spec.depths for place in _depths_around(depth, count)]
    places += [(n + 0.5) / count for n in range(count)]
    questions = []
    for group, depth in enumerate(spec.depths):
        mine = range(group * count, (group + 1) * count)
        keys = ", ".join(pairs.keys[n] for n in mine)
        questions.append(
            QuestionDraft(
                depth=depth,
                key=keys,
                prompt=f"What are the codes of {keys}, by the text above? Answer with"
                " the codes alone, in this order, separated by commas.",
                begin=f"The codes of {keys} are ",
                items=tuple(pairs.values[n] for n in mine),
                at=tuple(mine),
                decoys=pairs.decoys_except(mine),
                shape=Shape.ITEMS,
            )
        )
    lines = [PlacedLine(place, pairs.line(n)) for n, place in enumerate(places)]
    return Material(lines, questions, _draw_endless_sentences(spec.chance))


def _make_nth_code(spec: TextSpec) -> Material:
    """All lines have one key; the rank of a line follows from its place."""
    count = spec.level.count
    city = spec.chance.pick(_CITIES)
    numbers = spec.chance.make_distinct(lambda: _draw_number(spec.chance, 3), count)
    places = _asked_then_even_depths(spec, count)
    order = sorted(range(count), key=lambda n: places[n])
    ranks = {n: _ORDINALS[rank] for rank, n in enumerate(order)}
    pairs = _Pairs([ranks[n] for n in range(count)], numbers)
    questions = [
        QuestionDraft(
            depth=depth,
            key=ranks[n],
            prompt=f"The text above states {count} codes of {city}, one after the"
            f" other. Which is the {ranks[n]}? Answer with the code alone.",
            begin=f"The {ranks[n]} code of {city} in the text above is ",
            items=(numbers[n],),
            at=(n,),
            decoys=pairs.decoys_except([n]),
        )
        for n, depth in enumerate(spec.depths)
    ]
    lines = [
        PlacedLine(p, f"A code of {city} is {numbers[n]}.")
        for n, p in enumerate(places)
    ]
    return Material(lines, questions, _draw_endless_sentences(spec.chance))


# --- variables


@dataclass(frozen=True, slots=True)
class _Chain:
    """Variables that have one value by way of one another, and their lines."""

    value: str
    names: list[str]
    at: tuple[int, ...]


def _make_variable_chains(spec: TextSpec) -> Material:
    """Two chains of assignments; each line stands behind the one that it refers to."""
    chance, size = spec.chance, spec.level.count + 1
    names = chance.make_distinct(lambda: chance.word(_LETTERS, 5), 2 * size)
    values = chance.make_distinct(lambda: _draw_number(chance, 5), 2)
    chains = [
        _Chain(value, names[first : first + size], tuple(range(first, first + size)))
        for value, first in zip(values, (0, size), strict=True)
    ]
    lines = []
    depths = (*spec.depths, 1 - spec.depths[0])[:2]
    for chain, depth in zip(chains, depths, strict=True):
        assigned = zip(chain.names, [chain.value, *chain.names], strict=False)
        texts = [f"VAR {name} = {meant}" for name, meant in assigned]
        lines += [
            PlacedLine(p, t)
            for p, t in zip(_depths_around(depth, size), texts, strict=True)
        ]
    ask = (
        _question_for_chain_names
        if spec.level.kind == "list"
        else _question_for_chain_value
    )
    # Of one question, the second chain holds the decoys alone.
    sides = zip(spec.depths, chains, reversed(chains), strict=False)
    return Material(
        lines, [ask(*side) for side in sides], _draw_endless_sentences(chance)
    )


def _question_for_chain_names(
    depth: float, chain: _Chain, other: _Chain
) -> QuestionDraft:
    """The question for all names of *chain*."""
    count = len(chain.names)
    return QuestionDraft(
        depth=depth,
        key=chain.value,
        prompt=f"Which {count} variables of the text above have the value"
        f" {chain.value}, directly or by way of others? Answer with their names alone,"
        " separated by commas.",
        begin=f"The {count} variables with the value {chain.value} are ",
        items=tuple(chain.names),
        at=chain.at,
        decoys=[
            (other.value, name, at)
            for name, at in zip(other.names, other.at, strict=True)
        ],
        shape=Shape.ITEMS,
    )


def _question_for_chain_value(
    depth: float, chain: _Chain, other: _Chain
) -> QuestionDraft:
    """The question for the value of the last name of *chain*."""
    last = chain.names[-1]
    return QuestionDraft(
        depth=depth,
        key=last,
        prompt=f"Which number is the value of the variable {last} in the text above?"
        " Answer with the number alone.",
        begin=f"The value of {last} is the number ",
        items=(chain.value,),
        at=chain.at,
        decoys=[(other.names[-1], other.value, other.at[0])],
    )


# --- twins


def _make_twin_functions(spec: TextSpec) -> Material:
    """Functions whose names differ in the last character, and bodies in some lines."""
    chance, level, family = spec.chance, spec.level, spec.level.count
    keys = chance.pick_several(_NOUNS, level.lines)
    stem = "_".join(chance.pick_several(_NOUNS, 2))
    names = [
        f"{stem}_{letter}" for letter in chance.pick_several(_LETTERS.lower(), family)
    ]
    bodies = [
        "\n".join(
            f'    {key} = "{value}"' for key, value in zip(keys, body, strict=True)
        )
        for body in _line_values_by_twin(spec)
    ]
    questions = [
        QuestionDraft(
            depth=depth,
            key=names[n],
            prompt=f"Repeat the body of the function {names[n]} in the text above,"
            " verbatim, and nothing else.",
            # Up to the last blank of the indentation, which tokenizers join to a word.
            begin=f"def {names[n]}():\n   ",
            items=tuple(bodies[n].removeprefix("   ").split("\n")),
            at=(n,),
            decoys=[(names[m], bodies[m], m) for m in range(family) if m != n],
            shape=Shape.LINES,
            joint="\n",
        )
        for n, depth in enumerate(spec.depths)
    ]
    lines = [
        PlacedLine(place, f"\ndef {names[n]}():\n{bodies[n]}\n")
        for n, place in enumerate(_asked_then_even_depths(spec, family))
    ]
    return Material(lines, questions, _draw_endless_sentences(chance))


def _line_values_by_twin(spec: TextSpec) -> Iterator[list[str]]:
    """For each twin, the values of its lines, which differ in a few lines."""
    level, chance = spec.level, spec.chance

    def draw_value() -> str:
        return f"{chance.pick(_ADJECTIVES)} {chance.pick(_ANIMALS)}"

    family, differ = level.count, level.differ
    values = chance.make_distinct(draw_value, level.lines + family * differ)
    own = iter(values[level.lines :])
    changed = {n * level.lines // differ for n in range(differ)}
    for _ in range(family):
        yield [next(own) if n in changed else values[n] for n in range(level.lines)]


# --- meaning

_WHICH = {
    "even": "n % 2 == 0",
    "odd": "n % 2 == 1",
    "positive": "n > 0",
    "negative": "n < 0",
    "three-figure": "99 < abs(n) < 1000",
    "one-digit": "-10 < n < 10",
}
_WHAT = {
    "adds up": "sum(chosen)",
    "doubles": "[n + n for n in chosen]",
    "averages": "sum(chosen) / len(chosen)",
    "multiplies": "math.prod(chosen)",
    "finds the largest of": "max(chosen)",
    "finds the smallest of": "min(chosen)",
    "reverses the order of": "chosen[::-1]",
    "squares": "[n * n for n in chosen]",
}
"""What a function does with which numbers: in words, and in code without them."""


def _make_described_functions(spec: TextSpec) -> Material:
    """Functions of invented names; no two do the same, so a description fits one."""
    chance, count = spec.chance, spec.level.count
    kinds = chance.pick_several([*itertools.product(_WHAT, _WHICH)], count)
    names = chance.make_distinct(lambda: _invent_word(chance), count)
    questions = [
        QuestionDraft(
            depth=depth,
            key=f"{what} the {which} numbers",
            prompt=f"Which function of the text above {what} the {which} numbers?"
            " Answer with its name alone.",
            # Not up to ``def``: small models invent a name that says what it does.
            begin=f'The function above that {what} the {which} numbers is named "',
            items=(names[n],),
            at=(n,),
            decoys=[
                (f"{other} the {others} numbers", names[m], m)
                for m, (other, others) in enumerate(kinds)
                if m != n
            ],
        )
        for n, (depth, (what, which)) in enumerate(
            zip(spec.depths, kinds, strict=False)
        )
    ]
    lines = [
        PlacedLine(
            place,
            f"\ndef {name}(numbers):\n    chosen = [n for n in numbers if"
            f" {_WHICH[which]}]\n    return {_WHAT[what]}\n",
        )
        for place, name, (what, which) in zip(
            _asked_then_even_depths(spec, count), names, kinds, strict=True
        )
    ]
    return Material(lines, questions, _draw_endless_sentences(chance))


# --- ledger


def _make_ledger(spec: TextSpec) -> Material:
    """Numbered records in one block whose middle is at the depth."""
    count, chance = spec.level.count, spec.chance
    pairs = _draw_keys_and_values(spec, count)
    records = [f"{n + 1:02}: {pairs.keys[n]} {pairs.values[n]}" for n in range(count)]
    if spec.level.kind == "word":
        records = [f"{record} {chance.word(_HEX, 8)}" for record in records]
    block = sum(len(record) + 1 for record in records)
    (depth,) = spec.depths
    top = max(depth - block / 2 / spec.characters, 0.0)
    lines = [
        PlacedLine(top, "The ledger:"),
        *(PlacedLine(top, record) for record in records),
    ]
    question = QuestionDraft(
        depth=depth,
        key="the ledger",
        prompt=f"Repeat the {count} records of the ledger in the text above, in order,"
        " verbatim, one on a line, and nothing else.",
        begin="The ledger:\n",
        items=tuple(records),
        at=tuple(range(1, count + 1)),
        decoys=[(f"record {n + 1}", record, n + 1) for n, record in enumerate(records)],
        shape=Shape.LINES,
        joint="\n",
    )
    return Material(lines, [question], _draw_endless_sentences(chance))


# --- common-words

_RARE_WORDS = 30
_ROW = 10


def _make_common_words(spec: TextSpec) -> Material:
    """Words in random order, of which some occur several times as often as others."""
    chance, count, more = spec.chance, spec.level.count, spec.level.differ
    words = chance.pick_several([*_NOUNS, *_ANIMALS], _RARE_WORDS + count)
    common, rare = words[:count], words[count:]
    deck = [*rare, *(common * more)]
    length = sum(len(word) + 1 for word in deck)
    if length > spec.characters:
        raise BadInput(
            source="task common-words",
            reason=f"{spec.level.says}: {length:,} characters do not fit a text of"
            f" {spec.characters:,}",
            hint="Choose a greater length, or an easier level.",
        )
    placed: list[str] = []
    decks = iter(lambda: chance.pick_several(deck, len(deck)), None)
    room = spec.characters
    for word in itertools.chain.from_iterable(decks):
        room -= len(word) + 1
        if room < 0:
            break
        placed.append(word)
    which, begin = f"Which {count} words occur", f"The {count} words that occur"
    if count == 1:
        which, begin = "Which word occurs", "The word that occurs"
    rows = [" ".join(placed[n : n + _ROW]) for n in range(0, len(placed), _ROW)]
    question = QuestionDraft(
        depth=spec.depths[0],
        key="the most common words",
        prompt=f"{which} most often in the text above? Answer with nothing else.",
        begin=f'{begin} most often in the text above {"is" if count == 1 else "are"} "',
        items=tuple(common),
        at=(len(rows) // 2,),
        decoys=[(word, word, placed.index(word) // _ROW) for word in rare],
        shape=Shape.ITEMS,
        joint='", "',
    )
    return Material([PlacedLine(0.0, row) for row in rows], [question], iter(()))


# --- the list


def _city_levels(*counts: int) -> tuple[Level, ...]:
    return tuple(Level(f"{n} cities, three digits", n, "city") for n in counts)


def _invented_word_levels(*counts: int) -> tuple[Level, ...]:
    return tuple(Level(f"{n} invented words, five digits", n, "word") for n in counts)


TASKS: Mapping[str, Task] = {
    task.name: task
    for task in (
        Task(
            name="single",
            about="one magic number in unrelated sentences",
            levels=(Level("one number of five digits"),),
            make=_make_single_number,
            per_text=lambda _: 1,
        ),
        Task(
            name="multikey",
            about="the value of one of many keys of the same kind",
            levels=(
                *_city_levels(2, 4, 6, 8, 16),
                *_invented_word_levels(8, 16, 32),
                Level("UUIDs throughout", 0, "uuid"),
            ),
            make=_make_multikey,
            per_text=lambda level: level.count or 16,
        ),
        Task(
            name="multivalue",
            about="all values of one of two keys",
            levels=tuple(Level(f"{n} values", n) for n in (2, 3, 4, 6, 8)),
            make=_make_multivalue,
            per_text=lambda _: 2,
        ),
        Task(
            name="multiquery",
            about="the values of several keys, asked at once",
            levels=(
                *(Level(f"{n} cities", n, "city") for n in (2, 3, 4, 8)),
                *(Level(f"{n} UUIDs", n, "uuid") for n in (2, 4, 8)),
            ),
            make=_make_multiquery,
            per_text=lambda _: 2,
        ),
        Task(
            name="variables",
            about="a chain of assignments, resolved or listed",
            levels=(
                *(Level(f"resolve, {plural(n, 'hop')}", n) for n in (0, 1, 2, 3, 4)),
                *(Level(f"list, {plural(n, 'hop')}", n, "list") for n in (1, 2, 4, 8)),
            ),
            make=_make_variable_chains,
            per_text=lambda _: 2,
        ),
        Task(
            name="twins",
            about="a function among others of nearly the same name and body",
            levels=tuple(
                Level(
                    f"{plural(n, 'function')}, {differ} of {lines} lines of their own",
                    n,
                    differ=differ,
                    lines=lines,
                )
                for n, lines, differ in (
                    *((1, 1, 1), (2, 1, 1), (2, 4, 4), (2, 4, 2), (4, 4, 4)),
                    *((4, 4, 2), (4, 4, 1), (16, 4, 1), (16, 20, 2)),
                )
            ),
            make=_make_twin_functions,
            per_text=lambda level: level.count,
        ),
        Task(
            name="meaning",
            about="a function by what it does, instead of its name",
            levels=tuple(Level(f"one of {n}", n) for n in (2, 4, 8, 16, 32)),
            make=_make_described_functions,
            per_text=lambda level: level.count,
        ),
        Task(
            name="nth",
            about="the n-th of several lines of the same name",
            levels=tuple(Level(f"one of {n}", n) for n in (2, 3, 4, 6, 8)),
            make=_make_nth_code,
            per_text=lambda level: level.count,
        ),
        Task(
            name="ledger",
            about="numbered records, repeated in order",
            levels=(
                *(Level(f"{n} short records", n, "city") for n in (2, 4, 8, 16)),
                *(Level(f"{n} records", n, "word") for n in (8, 16, 32, 64)),
            ),
            make=_make_ledger,
            per_text=lambda _: 1,
        ),
        Task(
            name="common-words",
            about="which words occur most often",
            levels=tuple(
                Level(f"{plural(n, 'word')}, {more} times as often", n, differ=more)
                for n, more in (
                    (1, 30),
                    (1, 10),
                    (2, 10),
                    (3, 10),
                    (5, 10),
                    (10, 10),
                    (10, 4),
                )
            ),
            has_depth=False,
            make=_make_common_words,
            per_text=lambda _: 1,
        ),
    )
}
