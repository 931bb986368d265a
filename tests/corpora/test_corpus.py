"""Corpora: which text a name or a path stands for, and how much of it fits."""

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from source_files import ODD_FILES, names_of, put, python

from codeneedle.corpora.corpus import LIMIT, longest
from codeneedle.corpora.registry import load
from codeneedle.errors import BadInput, UnknownName

# --- names and paths


def test_a_name_is_a_corpus_file_then_a_source_file_then_built_in(here):
    put(here / "corpora/http_server.py", python("mine"))
    assert ["mine"] == names_of(load("http_server").functions)

    put(here / "corpora/http_server.toml", "files = [")
    with pytest.raises(BadInput, match=r"http_server\.toml"):
        load("http_server")

    put(here / "corpora/http_server.toml", 'files = ["other.py"]')
    put(here / "corpora/other.py", python("described"))
    assert ["described"] == names_of(load("http_server").functions)


def test_a_name_goes_before_a_path_and_a_separator_makes_a_path(here):
    put(here / "jquery/a.py", python("mine"))

    assert "memorised" == load("jquery").kind
    assert ["mine"] == names_of(load("./jquery").functions)


@pytest.mark.parametrize("text", ["random-bodys", "", "x" * 5_000, "\0", "..."])
def test_what_is_neither_name_nor_path_is_answered_with_the_known_names(here, text):
    with pytest.raises(UnknownName) as caught:
        load(text)
    assert "random-bodies" in caught.value.hint


@pytest.mark.parametrize("text", ["./no", "/no/such", "a\0/b", "../no.py", "no\\such"])
def test_a_path_that_leads_nowhere_is_not_found(here, text):
    with pytest.raises(BadInput, match=r"No such file|null (byte|character)") as caught:
        load(text)
    assert "corpus list" in caught.value.hint


@pytest.mark.parametrize(
    ("kind", "reason", "hint"),
    [
        ("a named pipe", "a named pipe, not a file", "Save what is written to it"),
        ("a device", "a device, not a file", "Name a file or folder"),
        ("a socket", "a socket, not a file", "Name a file or folder"),
        ("a link to itself", "a symbolic link to odd: Too many", "Remove the link"),
        ("a link to nothing", "a symbolic link to nowhere: No such", "Remove the link"),
    ],
)
def test_a_path_to_no_file_says_what_it_is_and_what_to_do(here, kind, reason, hint):
    ODD_FILES[kind](here / "odd")

    with pytest.raises(BadInput) as caught:
        load("odd")
    assert str(caught.value).startswith(f"odd: {reason}")
    assert caught.value.hint.startswith(hint)


# --- nothing to ask for


@pytest.mark.parametrize(
    ("text", "said", "hint"),
    [
        (
            python("one", lines=3) + python("two", lines=4) + "\n",
            "of 2 found, the longest has 4 body lines",
            "5 such lines or more",
        ),
        (python("one") + "if x:\n pass\n" + python("one"), "20 body", "signature"),
        ("x = 1\ndef f(:\n", "of 0 found", "line 2"),
    ],
    ids=["short functions", "shared signatures", "unparsable"],
)
def test_where_nothing_can_be_asked_the_hint_says_why(here, text, said, hint):
    put(here / "a.py", text)

    with pytest.raises(BadInput) as caught:
        load("a.py")
    assert said in str(caught.value)
    assert hint in caught.value.hint


# --- what is asked for


def test_functions_of_five_lines_are_forced_and_those_of_twenty_written(here):
    lengths = {"long": 20, "longer": 25, "short": 5, "shorter": 4}
    put(here / "a.py", "".join(python(n, lines=nr) for n, nr in lengths.items()))

    corpus = load("a.py")

    assert ["long", "longer", "short"] == names_of(corpus.functions)
    assert ["long", "longer"] == names_of(corpus.written())
    assert ["long", "longer", "short"] == names_of(corpus.forced(32, 5))
    assert ["long", "longer"] == names_of(corpus.forced(32, 6))
    assert [] == corpus.forced(32, 26)


def test_a_pair_can_be_asked_for_more_functions_than_any_sweep_asks(here):
    corpus = load("random-bodies")

    chosen = corpus.forced(32, 5)

    assert LIMIT == len({function.name for function in chosen})
    for block in (chosen[:32], chosen[32:64], chosen[64:]):
        lines = [function.line for function in block]
        assert lines == sorted(lines)
        assert lines[0] < corpus.line_count * 0.1
        assert lines[-1] > corpus.line_count * 0.9


# --- fitting


def test_fitting_asks_little(here):
    """Counting tokens of a whole corpus takes time, so it is halved, not walked."""
    asked = []

    def fits(text):
        asked.append(text)
        return len(text) < 100_000

    longest(load("random-bodies"), fits)

    assert len(asked) <= 9


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=st.lists(st.integers(1, 30), max_size=12),
    last=st.integers(20, 30),
    gap=st.integers(0, 3),
    limit=st.integers(0, 8_000),
    wanted=st.integers(5, 20),
)
@example(lengths=[], last=20, gap=0, limit=30, wanted=5).via("nothing fits")
@example(lengths=[1], last=20, gap=0, limit=40, wanted=5).via("nothing to ask for fits")
def test_a_fitted_text_fits_ends_whole_and_could_not_be_longer(
    here, lengths, last, gap, limit, wanted
):
    functions = [python(f"f{at}", lines=nr) for at, nr in enumerate([*lengths, last])]
    put(here / "a.py", "".join(function + "# -\n" * gap for function in functions))
    corpus = load("a.py")
    lines = corpus.text.split("\n")
    beginnings = [
        "".join(f"{line}\n" for line in lines[:cut])
        for cut in corpus.cuts
        if any(each.end <= cut for each in corpus.of_length(wanted))
    ]
    fitting = [text for text in (*beginnings, corpus.text) if len(text) <= limit]

    shorter = longest(corpus, lambda text: len(text) <= limit, lines=wanted)

    assert beginnings[0] == corpus.shortest(wanted)
    if shorter is None:
        assert not fitting
        return
    assert max(fitting, key=len) == shorter.text
    put(here / "b.py", shorter.text)
    assert load("b.py").functions == shorter.functions
