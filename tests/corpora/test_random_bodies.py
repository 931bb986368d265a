"""Random bodies: the same bytes everywhere, and none that can be guessed."""

import ast
import hashlib
import keyword
import lzma
import math
import re
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codeneedle.corpora import random_bodies
from codeneedle.corpora.random_bodies import (
    ALPHABET,
    MINI,
    Knobs,
    text_of,
    write,
)
from codeneedle.errors import BadInput, FolderUnusable

LINE = re.compile(r' +(\w+) = "(\w+)"')


def definitions(text):
    return [
        node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)
    ]


def names_and_literals(text):
    return [match.groups() for match in map(LINE.fullmatch, text.split("\n")) if match]


def test_the_default_bytes_are_pinned():
    """
    The default knobs make one text, on every platform and Python.
    """
    found = hashlib.sha256(text_of(Knobs()).encode("ascii")).hexdigest()

    assert "0b3a1ffebec15aa1462f209914b7cad56a2d84f809caca5e95a5b9671c012be7" == found


def test_the_bytes_of_the_mini_corpus_are_pinned():
    """
    The text of the built-in model's default sweep never changes by itself.
    """
    found = hashlib.sha256(text_of(MINI).encode("ascii")).hexdigest()

    assert "b76dcf4c9aa808c64494965011b629ab33c7e7854f06b217ea9c04dcf52c67fe" == found


def test_the_first_characters_follow_the_stated_construction():
    """
    The docstring is enough to compute the text with nothing but SHA-256.
    """
    stream = b"".join(hashlib.sha256(b"42:%d" % block).digest() for block in range(4))
    first, *rest = stream
    while first >= 208:
        first, *rest = rest
    others = [byte for byte in rest if byte < 248][:15]
    name = ALPHABET[first % 52] + "".join(ALPHABET[byte % 62] for byte in others)

    assert name == definitions(text_of(Knobs(functions=1)))[0].name


@given(
    knobs=st.builds(
        Knobs,
        functions=st.integers(1, 5),
        lines=st.integers(20, 30),
        value_length=st.integers(1, 30),
        name_length=st.integers(3, 20),
        seed=st.integers(-(2**63), 2**63 - 1),
    )
)
@settings(max_examples=40)
def test_the_text_is_what_the_knobs_say(knobs):
    """
    Any knobs make valid Python of the stated shape, size and names.
    """
    text = text_of(knobs)
    pairs = names_and_literals(text)
    functions = definitions(text)
    names = [*(name for name, _ in pairs), *(found.name for found in functions)]

    assert knobs.functions == len(functions)
    assert {knobs.lines} == {len(function.body) for function in functions}
    assert {knobs.name_length} == set(map(len, names))
    assert {knobs.value_length} == {len(literal) for _, literal in pairs}
    assert len(names) == len(set(names))
    assert knobs.size_bytes == len(text) - text.index("\n") - 1
    assert str(knobs) in text.split("\n")[0]


def test_short_names_are_never_keywords():
    """
    Where names are short enough to hit keywords, these are drawn anew.
    """
    text = text_of(Knobs(functions=40, name_length=2, value_length=1, seed=1))
    names = {name for name, _ in names_and_literals(text)}

    assert set() == names & {"as", "if", "in", "is", "or"}
    assert 40 == len(definitions(text))


def test_every_keyword_of_this_python_is_avoided():
    """
    Our list, kept apart so that the bytes cannot change, misses none.
    """
    assert {*keyword.kwlist, "match", "case", "type"} <= random_bodies._KEYWORDS


@pytest.mark.parametrize("compressed", [zlib.compress, lzma.compress])
def test_the_random_characters_do_not_compress(compressed):
    """
    No compressor gets below the entropy of the alphabet, and a good one gets near.
    """
    pairs = names_and_literals(text_of(Knobs()))
    characters = "".join(name[1:] + literal for name, literal in pairs)
    entropy_bytes = len(characters) * math.log2(len(ALPHABET)) / 8
    size = len(compressed(characters.encode()))

    assert 1.0 <= size / entropy_bytes < 1.05


def test_more_functions_continue_the_text_of_fewer():
    """
    A corpus that grows keeps its needles.
    """
    _, _, few = text_of(Knobs(functions=3)).partition("\n")
    _, _, many = text_of(Knobs(functions=5)).partition("\n")

    assert many.startswith(few)


def test_another_seed_makes_another_text():
    """
    Seeds share no line.
    """
    ours, theirs = (
        set(names_and_literals(text_of(Knobs(seed=seed)))) for seed in (42, 43)
    )

    assert set() == ours & theirs


@pytest.mark.parametrize(
    ("knob", "value"),
    [
        ("functions", 0),
        ("functions", -1),
        pytest.param("functions", 10**5000, id="huge"),
        ("functions", 1.5),
        ("lines", 19),
        ("value_length", 0),
        ("name_length", 0),
        ("seed", "42"),
        ("seed", None),
        ("seed", True),
        ("seed", 2**63),
    ],
)
def test_a_knob_that_cannot_be_is_named(knob, value):
    """
    The error names the knob, and the hint says what it must be.
    """
    with pytest.raises(BadInput) as caught:
        text_of(Knobs(**{knob: value}))

    assert knob in str(caught.value)
    assert f"{knob} must be" in caught.value.hint


@pytest.mark.parametrize(
    ("knobs", "advice"),
    [
        ({"name_length": 1}, "name_length"),
        ({"name_length": 2, "functions": 100}, "name_length"),
        ({"functions": 10**7}, "fewer functions"),
    ],
)
def test_knobs_that_do_not_go_together_say_which_to_turn(knobs, advice):
    """
    Too few names, or too much text, is refused before anything is made.
    """
    with pytest.raises(BadInput) as caught:
        text_of(Knobs(**knobs))

    assert advice in caught.value.hint


# --- files


FEW = Knobs(functions=2, value_length=6, name_length=5, lines=20, seed=7)


def test_a_corpus_is_written_and_told_with_its_hash(tmp_path):
    """
    What is told is true of the file.
    """
    path = tmp_path / "new" / "bodies.py"

    written = write(FEW, path)

    data = path.read_bytes()
    assert text_of(FEW).encode() == data
    assert hashlib.sha256(data).hexdigest() == written.sha256
    assert len(data) == written.size_bytes
    assert f"{path}: 2 functions, " in str(written)
    assert str(written).endswith(written.sha256)


def test_what_was_there_is_replaced(tmp_path):
    """
    By the same bytes for the same knobs.
    """
    path = tmp_path / "bodies.py"
    write(Knobs(functions=1, seed=1), path)

    assert write(FEW, path).sha256 == write(FEW, path).sha256
    assert text_of(FEW) == path.read_text(encoding="utf-8")


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    """
    As an error of this machine, with a hint.
    """
    (tmp_path / "file").write_text("")

    with pytest.raises(FolderUnusable) as caught:
        write(FEW, tmp_path / "file" / "bodies.py")

    assert str(tmp_path / "file") in str(caught.value)
    assert 3 == caught.value.exit_code


def test_knobs_that_cannot_be_write_nothing(tmp_path):
    """
    Not even a folder.
    """
    with pytest.raises(BadInput):
        write(Knobs(functions=0), tmp_path / "new" / "bodies.py")

    assert [] == list(tmp_path.iterdir())
