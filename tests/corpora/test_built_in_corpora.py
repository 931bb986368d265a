"""Built-in corpora: always the same bytes, and each of them in the list."""

import platform
from importlib import metadata

import pytest
from source_files import assert_verbatim, names_of, put, python

from codeneedle.corpora.random_bodies import Knobs, generate_text
from codeneedle.corpora.registry import BUILT_IN, SMALL_CORPORA, load, named_corpora
from codeneedle.errors import BadInput


def test_the_default_corpus_is_200_random_bodies(here):
    corpus = load("random-bodies")

    assert ("random-bodies", "incompressible") == (corpus.name, corpus.kind)
    assert generate_text(Knobs()) == corpus.text
    assert 200 == len(corpus.functions) == len(corpus.cuts)
    assert f"generated, {Knobs()}" == corpus.origin
    assert 16 == len(corpus.written_recall_functions())


def test_the_small_corpora_have_16_functions_or_more_of_which_one_s_are_long(here):
    mini, short = map(load, SMALL_CORPORA)

    assert (
        16
        == len(mini.written_recall_functions())
        == len(mini.forced_recall_functions(16, 5))
    )
    assert 0 == len(short.written_recall_functions())
    assert 20 == len(short.forced_recall_functions(20, 5))


@pytest.mark.parametrize(
    ("name", "origin", "function", "least"),
    [
        (
            "http_server",
            f"http/server.py of Python {platform.python_version()}",
            "SimpleHTTPRequestHandler.list_directory",
            5,
        ),
        ("jquery", "jquery.js of XStatic-jQuery 3.7.1.1", "setDocument", 96),
    ],
)
def test_real_code_is_memorised_and_of_an_installed_version(
    here, name, origin, function, least
):
    corpus = load(name)

    assert ("memorised", origin) == (corpus.kind, corpus.origin)
    assert function in names_of(corpus.functions)
    assert least <= len(corpus.functions) == len(set(names_of(corpus.functions)))
    assert_verbatim(corpus.text, corpus.functions)


def test_what_is_not_installed_says_what_to_do(here, monkeypatch, golden):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    monkeypatch.setattr(metadata, "version", missing)
    monkeypatch.setattr("importlib.resources.files", lambda _: here)

    assert (
        "not installed"
        in {name: origin for name, origin, _ in named_corpora()}["jquery"]
    )
    with pytest.raises(BadInput) as caught:
        load("jquery")
    assert golden == (str(caught.value), caught.value.hint)
    with pytest.raises(BadInput, match=r"without http/server\.py as source"):
        load("http_server")


def test_the_list_has_every_name_once_and_survives_broken_files(here):
    put(here / "corpora/mine.py", python("mine"))
    put(here / "corpora/bad.toml", "fils = []")
    put(here / "corpora/jquery.toml", "[generate]\nseed = 7")
    put(here / "corpora/more.py", generate_text(Knobs(functions=1, seed=7)))
    put(here / "corpora/README.md", "# Corpora")
    put(here / "corpora/.hidden.py", python("mine"))
    listed = {name: (origin, kind) for name, origin, kind in named_corpora()}

    expected = ["bad", "jquery", "mine", "more", *BUILT_IN]
    assert list(dict.fromkeys(expected)) == list(listed)
    assert "unknown key 'fils'" in listed["bad"][0]
    assert "incompressible" == listed["jquery"][1] == listed["more"][1]
    assert "incompressible" == load("more").kind
    assert ("corpora/mine.py", "unseen") == listed["mine"]
