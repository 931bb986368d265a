"""Answers to tasks: what they are by rule, whatever their wording."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codeneedle.probes.retrieval.scoring import Mode, is_score_settled, score_answer
from codeneedle.probes.retrieval.task_kinds import TASKS, make_texts
from codeneedle.probes.retrieval.tasks import Decoy, Shape, TextQuestion


def question(*items, shape=Shape.ONE, decoys=(), key="Paris", joint=", ", begin=""):
    """A question in the middle of a text, with decoys of the form (key, payload)."""
    return TextQuestion(
        name="q",
        text=0,
        depth=0.5,
        key=key,
        prompt="?",
        begin=begin,
        payload=joint.join(items),
        items=items,
        shape=shape,
        decoys=tuple(Decoy(key=k, payload=p, place=0.75) for k, p in decoys),
        place=0.5,
    )


CODE = question("48213", decoys=[("Rome", "70111"), ("Oslo", "90333")])
CODES = question("482", "139", "777", shape=Shape.ITEMS, decoys=[("Rome", "555")])
FRUIT = ("kiwi", "lime", "pear", "plum")
RECORDS = [f"{n:02}: {word}" for n, word in enumerate(FRUIT, 1)]
LEDGER = question(
    *RECORDS,
    shape=Shape.LINES,
    joint="\n",
    begin="The ledger:\n",
    decoys=[(f"record {n}", each) for n, each in enumerate(RECORDS, 1)],
)
TWIN = question(
    ' a = "kiwi"',
    '    b = "lime"',
    shape=Shape.LINES,
    joint="\n",
    key="f_x",
    begin="def f_x():\n   ",
    decoys=[("f_y", '    a = "kiwi"\n    b = "plum"')],
)

LETTERS = question("abcde", "fghij", shape=Shape.LINES, joint="\n")
ALPHABET = question("abcdefghij", "klmnopqrst", shape=Shape.LINES, joint="\n")
NORTH = question("48213", decoys=[("Paris Nord", "70111")])

SEEN = {
    "Llama, 64K": "The first, the first, the first, the first, the first, the first",
    "Llama, 192K": ". The is was a. The is of be the.",
    "Qwen, 128K": "I'm trying to the / of the / the same as the / of the / the / of the"
    " / to the / of the",
    "Qwen, 64K": "The magic number for Aardvark is 42. To find the magic number for"
    " Aardvark, we need to determine the value of a such that 42a + 42 = 2023.",
}
"""What the published tables quote of failures."""


@pytest.mark.parametrize(
    ("asked", "reply", "mode"),
    [
        (CODE, "48213", "correct"),
        (CODE, "The code is **48,213**.", "correct"),
        (CODE, "<think>70111?</think>48213", "correct"),
        (CODE, "Rome has 70111, and Paris has 48213.", "correct"),
        (CODE, "48213, not 70111.", "correct"),
        (CODE, "70111", "intrusion"),
        (CODE, "Rome: 70111", "intrusion"),
        (CODE, "The code of Paris is 70111, that of Oslo 48213.", "intrusion"),
        (CODE, "48214", "near-miss"),
        (CODE, "148213", "near-miss"),
        (CODE, "48299", "wrong"),
        (CODE, SEEN["Llama, 64K"], "repetition"),
        (
            CODE,
            "old man: 316. old man: 316. old man: 316. old man: 31",
            "repetition",
        ),
        (CODE, f"one two three four five six{' go' * 8}", "repetition"),
        (CODE, f"one two three four five six seven eight nine{' go' * 8}", "wrong"),
        (CODE, "go go go go", "repetition"),
        (CODE, "go go go", "wrong"),
        (CODE, "go north go north go north", "repetition"),
        (CODE, "go north go north go north go nor", "repetition"),
        (CODE, "go north go north go north go north then stop", "wrong"),
        (CODE, "go north go north", "wrong"),
        (CODE, "one two three four five north go north go north", "wrong"),
        (CODE, "Rome: 90333. Paris: 48213", "intrusion"),
        (NORTH, "Paris Nord has 70111, and Paris has 48213.", "correct"),
        (LETTERS, "abcXX\nfghij", "near-miss"),
        (LETTERS, "abXXX\nfghij", "wrong"),
        (ALPHABET, "abcdefXXXX\nklmnopqrst", "near-miss"),
        (ALPHABET, "abcdeXXXXX\nklmnopqrst", "wrong"),
        (CODE, SEEN["Llama, 192K"], "salad"),
        (CODE, SEEN["Qwen, 128K"], "salad"),
        (CODE, "||<>##//--..~~&&", "salad"),
        (CODE, "the of and to in it kiwi plum lemon pear", "salad"),
        (CODE, "the of and to in kiwi plum lemon pear fig", "wrong"),
        (CODE, "the of and to in it kiwi plum", "salad"),
        (CODE, "the of and to in it an", "wrong"),
        (CODE, "||<>##abcd", "salad"),
        (CODE, "||<>#abcde", "wrong"),
        (CODE, "||<>##ab", "salad"),
        (CODE, "||<>##a", "wrong"),
        (CODE, SEEN["Qwen, 64K"], "wrong"),
        (CODE, "I'm sorry, I can't find it.", "refusal"),
        (CODE, "The text does not mention a code of Paris.", "refusal"),
        (CODE, "There is no such code.", "refusal"),
        (CODE, " \n", "empty"),
        (CODE, "<think>It could be 48213", "empty"),
        (CODES, "482, 139, 777", "correct"),
        (CODES, "777 and 139, also 482.", "correct"),
        (CODES, "482, 555, 139, 777", "intrusion"),
        (CODES, "482, 139, 778", "near-miss"),
        (CODES, "482, 139", "wrong"),
        (LEDGER, "\n".join(RECORDS), "correct"),
        (LEDGER, "</think>\n" + "\n".join(RECORDS), "correct"),
        (LEDGER, "The ledger:\n```\n" + "\n".join(RECORDS) + "\n```\nDone.", "correct"),
        (LEDGER, "\n".join(RECORDS[1:]), "intrusion"),
        (LEDGER, "01: kiwi\n02: lime\n03: bear\n04: plum", "near-miss"),
        (LEDGER, "01: kiwi\n01: kiwi\n01: kiwi\n01: kiwi", "repetition"),
        (LEDGER, "01: kiwi\n02: lime\nThe soft farmer", "wrong"),
        (TWIN, 'a = "kiwi"\n    b = "lime"', "correct"),
        (TWIN, 'def f_x():\n    a = "kiwi"\n    b = "lime"\n    c = 1', "correct"),
        (TWIN, 'a = "kiwi"\n    b = "plum"', "intrusion"),
        (TWIN, 'a = "kiwi"\n    b = "line"', "near-miss"),
    ],
)
def test_every_answer_is_of_one_kind(asked, reply, mode):
    assert mode == score_answer(asked, reply).mode


@pytest.mark.parametrize("reply", ["", "<think>48213"])
def test_an_empty_answer_has_nothing_right(reply):
    assert 0.0 == score_answer(CODE, reply).share


def test_an_intrusion_is_named_with_its_distances():
    score = score_answer(CODE, "It is 90333.")
    of_lines = score_answer(LEDGER, "\n".join(RECORDS[1:]))

    assert ("Oslo", 0.25) == (score.decoy, score.away)
    assert 4 == score.edits
    assert ("record 2", 0.25) == (of_lines.decoy, of_lines.away)


def test_a_near_miss_has_its_edit_distance():
    assert 1 == score_answer(CODE, "4821").edits
    assert 2 == score_answer(question("48213907"), "48213988").edits
    assert None is score_answer(question("48213907"), "48213888").edits
    assert None is score_answer(question("4821390755"), "4821390111").edits
    assert 1 == score_answer(LEDGER, "01: kiwi\n02: lime\n03: bear\n04: plum").edits


@pytest.mark.parametrize(
    ("reply", "share"),
    [
        ("482, 139, 777", 1.0),
        ("482", 1 / 3),
        ("482, 482, 139", 2 / 3),
        ("555, 482, 139, 777", 2 / 3),
        ("nothing", 0.0),
    ],
)
def test_of_several_items_as_many_are_looked_at_as_are_asked_for(reply, share):
    assert share == pytest.approx(score_answer(CODES, reply).share)


@pytest.mark.parametrize(
    ("reply", "share"),
    [
        ("01: kiwi\n02: lime", 0.5),
        ("01: kiwi\n02: lame\n03: pear", 0.5),
        ("02: lime", 0.25),
        ("\n".join(RECORDS), 1.0),
    ],
)
def test_lines_count_wherever_they_are(reply, share):
    assert share == score_answer(LEDGER, reply).share


@pytest.mark.parametrize(
    ("asked", "reply", "enough"),
    [
        (CODE, "It is 48213.\n", True),
        (CODE, "It is 70111.\n", True),
        (CODE, "Let me see:\n", False),
        (CODES, "482, 139\n", False),
        (LEDGER, "\n".join(RECORDS), False),
        (LEDGER, "\n".join([*RECORDS, "05"]), True),
    ],
)
def test_an_answer_is_cut_when_no_more_can_change_it(asked, reply, enough):
    assert enough is is_score_settled(asked, reply)


@pytest.mark.parametrize(
    ("name", "dial"),
    [(name, n) for name in TASKS for n in range(len(TASKS[name].levels))],
)
def test_the_payloads_of_all_tasks_are_right_and_their_decoys_intrude(name, dial):
    texts = make_texts(
        name, dial=dial, characters=16_000, depths=[0.2, 0.8], questions=1, seed=9
    )
    for asked in (asked for text in texts for asked in text.questions):
        decoys = [decoy for decoy in asked.decoys if decoy.payload not in asked.items]
        given = score_answer(asked, decoys[0].payload) if decoys else None

        assert (
            Mode.CORRECT is score_answer(asked, f"{asked.begin}{asked.payload}\n.").mode
        )
        assert given is None or Mode.INTRUSION is given.mode
        assert given is None or name == "twins" or decoys[0].key == given.decoy


@given(st.text(max_size=60))
def test_any_answer_can_be_judged(reply):
    for asked in (CODE, CODES, LEDGER, TWIN):
        score = score_answer(asked, reply)
        assert 0.0 <= score.share <= 1.0
        assert score.mode is not Mode.CORRECT or score.share == 1.0
