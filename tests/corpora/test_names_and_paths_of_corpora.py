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
    "kind",
    ["a named pipe", "a device", "a socket", "a link to itself", "a link to nothing"],
)
def test_a_path_to_no_file_says_what_it_is_and_what_to_do(here, kind, golden):
    ODD_FILES[kind](here / "odd")

    with pytest.raises(BadInput) as caught:
        load("odd")
    assert golden == (str(caught.value), caught.value.hint)


# --- nothing to ask for


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        (python("one", lines=3) + python("two", lines=4) + "\n", "5 such lines"),
        (python("one") + "if x:\n pass\n" + python("one"), "signature"),
        ("x = 1\ndef f(:\n", "line 2"),
    ],
    ids=["short functions", "shared signatures", "unparsable"],
)
def test_where_nothing_can_be_asked_the_hint_says_why(here, text, hint, golden):
    put(here / "a.py", text)

    with pytest.raises(BadInput) as caught:
        load("a.py")
    assert golden == str(caught.value)
    assert hint in caught.value.hint
