"""Which text a name or a path stands for, and what is said of one that is neither."""

import pytest
from source_files import ODD_FILES, names_of, put, python

from codeneedle.corpora.registry import load
from codeneedle.errors import BadInput, UnknownName


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
