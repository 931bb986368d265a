"""Texts of tasks: the same bytes everywhere, each answer once, at its depth."""

import hashlib
import itertools
import json
import math
import re
import zlib
from dataclasses import asdict

import pytest

from codeneedle.errors import BadInput, UnknownName
from codeneedle.probes.retrieval.task_kinds import (
    _WHAT,
    _WHICH,
    TASKS,
    TASKS_VERSION,
    make_texts,
)
from codeneedle.probes.retrieval.tasks import Chance, Shape

DEPTHS = (0.1, 0.3, 0.5, 0.7, 0.9)

LEVELS = [(name, n) for name in TASKS for n in range(len(TASKS[name].levels))]

PLACED = [level for level in LEVELS if TASKS[level[0]].has_depth]


def texts(name, dial, *, characters=12_000, depths=DEPTHS, questions=1, seed=5):
    return make_texts(
        name,
        dial=dial,
        characters=characters,
        depths=depths,
        questions=questions,
        seed=seed,
    )


def asked(name, dial, **options):
    return [
        (text.text, question)
        for text in texts(name, dial, **options)
        for question in text.questions
    ]


@pytest.mark.parametrize(("name", "dial"), LEVELS)
def test_the_same_seed_makes_the_same_texts_and_another_makes_others(name, dial):
    assert texts(name, dial) == texts(name, dial)
    assert texts(name, dial)[0].text != texts(name, dial, seed=6)[0].text


def test_the_bytes_of_all_tasks_are_pinned():
    """Who changes a text or a question raises the version that setups hold."""
    made = [asdict(text) for level in LEVELS for text in texts(*level)]
    data = json.dumps(made, sort_keys=True).encode()

    assert 1 == TASKS_VERSION
    assert "346d728127f2884c" == hashlib.sha256(data).hexdigest()[:16]


@pytest.mark.parametrize(("name", "dial"), LEVELS)
def test_a_text_is_as_long_as_asked_and_never_longer(name, dial):
    for text in texts(name, dial):
        assert 11_800 <= len(text.text) <= 12_000
        assert text.text.endswith("\n")


@pytest.mark.parametrize(("name", "dial"), LEVELS)
def test_every_depth_has_its_number_of_questions(name, dial):
    depths = DEPTHS if TASKS[name].has_depth else [0.5]
    found = [question for _, question in asked(name, dial, questions=3)]

    assert sorted(3 * [*depths]) == sorted(question.depth for question in found)
    assert 3 * len(depths) == len({question.name for question in found})


@pytest.mark.parametrize(("name", "dial"), PLACED)
def test_what_is_asked_for_stands_at_its_depth_and_nowhere_else(name, dial):
    for text, question in asked(name, dial):
        near = 0.1 if len(question.payload) > 300 else 0.03
        is_list = question.shape is Shape.ITEMS
        parts = question.items if is_list else [question.payload]

        most = 2 if name == "variables" and is_list else 1
        assert all(1 <= text.count(part) <= most for part in parts)
        assert question.depth == pytest.approx(question.place, abs=near)


@pytest.mark.parametrize(("name", "dial"), PLACED)
def test_decoys_stand_where_they_say_and_are_no_right_answers(name, dial):
    for text, question in asked(name, dial):
        places = [decoy.place for decoy in question.decoys]

        assert sorted(places) == places
        for decoy in question.decoys:
            at = text.index(decoy.payload)
            assert decoy.place == pytest.approx(at / len(text), abs=0.01)
            assert decoy.payload not in question.items or name == "ledger"


@pytest.mark.parametrize(
    ("name", "dial", "characters", "least"),
    [
        ("multikey", 8, 12_000, 0.5),
        ("ledger", 7, 2_000, 0.5),
        ("single", 0, 12_000, 0.2),
    ],
)
def test_what_is_to_be_remembered_does_not_compress(name, dial, characters, least):
    """UUIDs are hexadecimal, so half of their bytes; sentences have fewer bits."""
    text = texts(name, dial, characters=characters)[0].text.encode()

    assert least < len(zlib.compress(text, 9)) / len(text)


def test_filler_is_never_repeated():
    lines = texts("single", 0)[0].text.splitlines()

    assert len(lines) == len(set(lines))


def test_the_needle_has_the_wording_of_the_published_tables(golden):
    """Such as 'The magic number for Aardvark': five digits, one needle."""
    wordings = set()
    for text, question in asked("single", 0):
        [line] = [each for each in text.splitlines() if "magic" in each]
        assert 1 == text.count(question.payload) == line.count("magic")
        assert 5 == len(question.payload) == len(str(int(question.payload)))
        wordings.add(line.replace(question.key, "KEY").replace(question.payload, "N"))
    assert golden == wordings


@pytest.mark.parametrize(("name", "dial"), LEVELS)
def test_a_completion_is_begun_up_to_the_payload(name, dial):
    for text, question in asked(name, dial):
        if question.begin in text:
            assert question.begin + question.payload in text
        if name in {"single", "multikey", "twins", "ledger"}:
            assert question.begin in text


@pytest.mark.parametrize("dial", range(9))
def test_twins_differ_in_as_many_lines_as_the_setting_says(dial):
    level = TASKS["twins"].levels[dial]
    for _, question in asked("twins", dial, characters=16_000):
        own = question.payload.lstrip().split("\n")
        assert level.lines == len(own)
        assert level.count - 1 == len(question.decoys)
        for decoy in question.decoys:
            lines = decoy.payload.lstrip().split("\n")
            changed = [a != b for a, b in zip(own, lines, strict=True)]
            assert level.differ == sum(changed)
            assert question.key[:-1] == decoy.key[:-1]


@pytest.mark.parametrize("dial", range(5))
def test_a_chain_can_be_followed_in_the_order_of_the_text(dial):
    for text, question in asked("variables", dial):
        values = {}
        for line in text.splitlines():
            if line.startswith("VAR "):
                _, name, _, told = line.split()
                values[name] = values.get(told, told)
        assert question.payload == values[question.key]


def test_common_words_occur_as_much_more_often_as_the_setting_says():
    (text,) = texts("common-words", 4, characters=60_000)
    words = text.text.split()
    right = [words.count(word) for word in text.questions[0].items]
    wrong = [words.count(decoy.payload) for decoy in text.questions[0].decoys]

    assert 10 == pytest.approx(min(right) / max(wrong), rel=0.1)
    assert set(words) == {
        *text.questions[0].items,
        *(decoy.payload for decoy in text.questions[0].decoys),
    }


def test_the_rank_of_a_line_follows_from_its_place():
    for text, question in asked("nth", 2):
        codes = [line[-4:-1] for line in text.splitlines() if line.startswith("A code")]
        ranks = {decoy.payload: decoy.key for decoy in question.decoys}
        ranks[question.payload] = question.key
        assert ["first", "second", "third", "fourth"] == [ranks[code] for code in codes]


def test_no_two_functions_that_are_described_do_the_same():
    lists = [
        [7, -12, 4, 230, -351, 9, -8, 1041, -1023],
        [-5, 6, 306, -2, 1041, 1100],
        [-700, 3, 52, 8, -1, -33, 400],
    ]

    def returned(what, which):
        for numbers in lists:
            chosen = [n for n in numbers if eval(which)]  # noqa: S307 - our own words
            yield str(eval(what, {"chosen": chosen, "math": math}))  # noqa: S307

    kinds = [*itertools.product(_WHAT.values(), _WHICH.values())]
    assert len(kinds) == len({tuple(returned(*kind)) for kind in kinds})


@pytest.mark.parametrize("dial", range(len(TASKS["meaning"].levels)))
def test_a_function_is_described_in_words_that_its_code_has_not(dial):
    for text, question in asked("meaning", dial):
        code = text.partition(f"def {question.payload}(")[2].partition("\n\n")[0]
        what, _, which = question.key.removesuffix(" numbers").rpartition(" the ")

        assert f"if {_WHICH[which]}]\n    return {_WHAT[what]}" in code
        words = {*re.findall(r"[a-z]+", f"{what} {which}")}
        assert not words & {*re.findall(r"[a-z]+", code)}
        assert question.key in question.prompt
        assert question.key in question.begin


def test_an_unknown_task_is_told_with_the_nearest_known():
    with pytest.raises(UnknownName, match="multikeys") as caught:
        texts("multikeys", 0)
    assert "multikey" in caught.value.hint


@pytest.mark.parametrize("dial", [-1, len(TASKS["multikey"].levels)])
def test_a_setting_that_is_not_there_is_told_with_those_that_are(dial):
    with pytest.raises(BadInput) as caught:
        texts("multikey", dial)
    assert "from 0 to 8" in caught.value.hint


@pytest.mark.parametrize(
    ("name", "dial"),
    [("multikey", 7), ("multikey", 8), ("ledger", 7), ("common-words", 0)],
)
def test_what_does_not_fit_is_told_before_anything_is_asked(name, dial, golden):
    with pytest.raises(BadInput) as caught:
        texts(name, dial, characters=200)
    assert golden == caught.value.hint


def test_chance_is_even():
    chance = Chance("even")
    found = [chance.below(6) for _ in range(6000)]

    assert all(900 < found.count(n) < 1100 for n in range(6))
