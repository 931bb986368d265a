"""Random bodies: the same bytes everywhere, and none that can be guessed."""

import ast
import hashlib
import itertools
import keyword
import lzma
import math
import operator
import re
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codeneedle.corpora import random_bodies
from codeneedle.corpora.random_bodies import (
    ALPHABET,
    MINI,
    SHORT,
    Knobs,
    generate_text,
    write_and_describe_corpus,
)
from codeneedle.errors import BadInput, FolderUnusable

LINE = re.compile(r' +(\w+) = "(\w+)"')


def definitions(text):
    return [
        node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)
    ]


def names_and_literals(text):
    return [match.groups() for match in map(LINE.fullmatch, text.split("\n")) if match]


@pytest.mark.parametrize(
    ("knobs", "sha256"),
    [
        (Knobs(), "0b3a1ffebec15aa1462f209914b7cad56a2d84f809caca5e95a5b9671c012be7"),
        (MINI, "b76dcf4c9aa808c64494965011b629ab33c7e7854f06b217ea9c04dcf52c67fe"),
        (SHORT, "feb30cfc0ae127c2d48df1b9040b193d5e90ca0a0578f8128ce26d6bcda0c02d"),
    ],
)
def test_the_bytes_of_built_in_corpora_are_pinned(knobs, sha256):
    assert sha256 == hashlib.sha256(generate_text(knobs).encode("ascii")).hexdigest()


@given(
    knobs=st.builds(
        Knobs,
        functions=st.integers(1, 5),
        lines=st.integers(5, 30),
        value_length=st.integers(1, 30),
        name_length=st.integers(3, 20),
        seed=st.integers(-(2**63), 2**63 - 1),
    )
)
@settings(max_examples=40)
def test_the_text_is_what_the_knobs_say(knobs):
    text = generate_text(knobs)
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
    """Where names are short enough to hit keywords, these are drawn anew."""
    text = generate_text(Knobs(functions=40, name_length=2, value_length=1, seed=1))
    names = {name for name, _ in names_and_literals(text)}

    assert set() == names & {"as", "if", "in", "is", "or"}
    assert 40 == len(definitions(text))


def test_every_keyword_of_this_python_is_avoided():
    """Our list, kept apart so that the bytes cannot change, misses none."""
    assert {*keyword.kwlist, "match", "case", "type"} <= random_bodies._KEYWORDS


@given(
    knobs=st.builds(
        Knobs,
        functions=st.integers(2, 9),
        lines=st.just(20),
        value_length=st.integers(4, 8),
        name_length=st.integers(9, 12),
        twins=st.integers(2, 4),
        differ=st.integers(1, 20),
    )
)
@settings(max_examples=40)
def test_twins_differ_in_as_many_lines_as_asked_and_families_in_all(knobs):
    text = generate_text(knobs)
    found = definitions(text)
    bodies = [[ast.unparse(line) for line in function.body] for function in found]

    assert knobs.functions == len({function.name for function in found})
    assert knobs.size_bytes == len(text) - text.index("\n") - 1
    for (n, one), (m, two) in itertools.combinations(enumerate(bodies), 2):
        are_twins = n // knobs.twins == m // knobs.twins
        changed = [a != b for a, b in zip(one, two, strict=True)]
        assert (knobs.differ if are_twins else knobs.lines) == sum(changed)
        apart = [n for n, changes in enumerate(changed) if changes]
        assert max(map(operator.sub, [*apart, 20], [-1, *apart])) <= 20 / len(apart) + 1
        assert are_twins is (found[n].name[:-1] == found[m].name[:-1])


def test_the_bytes_of_twins_are_pinned():
    """More than 62 have names that differ in the last two characters."""
    text = generate_text(Knobs(functions=80, twins=70, differ=3, seed=3))
    names = [function.name for function in definitions(text)]

    assert "twins=70 differ=3" in text.split("\n")[0]
    assert 2 == len({name[:-2] for name in names})
    assert 80 == len(set(names))
    assert "08366ad426658242" == hashlib.sha256(text.encode()).hexdigest()[:16]


@pytest.mark.parametrize("compressed", [zlib.compress, lzma.compress])
def test_the_random_characters_do_not_compress(compressed):
    """No compressor gets below the entropy of the alphabet."""
    pairs = names_and_literals(generate_text(Knobs()))
    characters = "".join(name[1:] + literal for name, literal in pairs)
    entropy_bytes = len(characters) * math.log2(len(ALPHABET)) / 8
    size = len(compressed(characters.encode()))

    assert 1.0 <= size / entropy_bytes < 1.05


def test_more_functions_continue_the_text_of_fewer():
    _, _, few = generate_text(Knobs(functions=3)).partition("\n")
    _, _, many = generate_text(Knobs(functions=5)).partition("\n")

    assert many.startswith(few)


@pytest.mark.parametrize(
    "knobs",
    [
        pytest.param({"functions": 0}, id="no functions"),
        pytest.param({"functions": 10**5000}, id="huge"),
        pytest.param({"lines": 4}, id="lines"),
        pytest.param({"value_length": 0}, id="value_length"),
        pytest.param({"name_length": 0}, id="name_length"),
        pytest.param({"indent": 0}, id="indent"),
        pytest.param({"twins": 0}, id="twins"),
        pytest.param({"differ": 2}, id="differ without twins"),
        pytest.param({"twins": 2, "differ": 21}, id="differ"),
        pytest.param({"twins": 2, "name_length": 8}, id="short names of twins"),
        pytest.param({"seed": 2**63}, id="seed"),
        pytest.param({"name_length": 1}, id="shortest names"),
        pytest.param({"name_length": 2, "functions": 100}, id="short names"),
        pytest.param({"functions": 10**7}, id="a long text"),
    ],
)
def test_knobs_that_cannot_be_say_which_to_turn(knobs, golden):
    with pytest.raises(BadInput) as caught:
        Knobs(**knobs)
    assert golden == caught.value.hint


@pytest.mark.parametrize(
    ("knobs", "beyond"),
    [
        ({"functions": 1}, {"functions": 0}),
        ({"lines": 5}, {"lines": 4}),
        ({"value_length": 1}, {"value_length": 0}),
        ({"indent": 1}, {"indent": 0}),
        ({"seed": 2**63 - 1}, {"seed": 2**63}),
        ({"seed": -(2**63)}, {"seed": -(2**63) - 1}),
        ({"twins": 62**2}, {"twins": 62**2 + 1}),
        ({"twins": 1}, {"twins": 0}),
        ({"twins": 2, "differ": 20}, {"twins": 2, "differ": 21}),
        ({"twins": 2, "differ": 1}, {"twins": 2, "differ": 0}),
        ({"twins": 1, "differ": 1}, {"twins": 1, "differ": 2}),
        (
            {"twins": 2, "name_length": random_bodies.TWIN_NAME},
            {"twins": 2, "name_length": random_bodies.TWIN_NAME - 1},
        ),
        # Half of 52 names are for 2 functions of 12 lines, and too few for 3 of 8.
        (
            {"name_length": 1, "functions": 2, "lines": 12},
            {"name_length": 1, "functions": 3, "lines": 8},
        ),
        # Of 52 names with 62 for a second character, for 12 functions of 133 lines.
        (
            {"name_length": 2, "functions": 12, "lines": 133},
            {"name_length": 2, "functions": 12, "lines": 134},
        ),
    ],
)
def test_each_knob_goes_as_far_as_it_says(knobs, beyond):
    assert Knobs(**knobs)
    with pytest.raises(BadInput):
        Knobs(**beyond)


def test_a_text_is_as_long_as_any_corpus_may_be_and_no_longer(golden):
    one = {"functions": 1, "lines": 5, "indent": 1}
    spare = (
        random_bodies.MAX_BYTES - Knobs(**one, value_length=1, name_length=9).size_bytes
    )
    most = {**one, "name_length": 9 + spare % 5, "value_length": 1}
    room = random_bodies.MAX_BYTES - Knobs(**most).size_bytes
    longest = {**most, "value_length": 1 + room // 5}

    assert random_bodies.MAX_BYTES == Knobs(**longest).size_bytes
    with pytest.raises(BadInput) as caught:
        Knobs(**{**longest, "value_length": longest["value_length"] + 1})
    assert golden == str(caught.value)


# --- files


FEW = Knobs(functions=2, value_length=6, name_length=5, lines=20, seed=7)


def test_a_corpus_is_written_and_told_with_its_hash(tmp_path):
    path = tmp_path / "new" / "bodies.py"
    write_and_describe_corpus(Knobs(functions=1, seed=1), path)
    written = write_and_describe_corpus(FEW, path)
    data = path.read_bytes()

    assert generate_text(FEW).encode() == data
    assert f"{path}: 2 functions, " in written
    assert written.endswith(hashlib.sha256(data).hexdigest())


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")

    with pytest.raises(FolderUnusable) as caught:
        write_and_describe_corpus(FEW, tmp_path / "file" / "bodies.py")

    assert str(tmp_path / "file") in str(caught.value)
    assert 3 == caught.value.exit_code
