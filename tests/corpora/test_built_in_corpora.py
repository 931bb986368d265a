"""Built-in corpora: always the same bytes, and each of them in the list."""

import platform
from importlib import metadata

import pytest
from source_files import assert_verbatim, names_of, put, python

from codeneedle.corpora.random_bodies import Knobs, text_of
from codeneedle.corpora.registry import BUILT_IN, SMALL_CORPORA, load, names
from codeneedle.errors import BadInput


def test_the_default_corpus_is_200_random_bodies(here):
    corpus = load("random-bodies")

    assert ("random-bodies", "incompressible") == (corpus.name, corpus.kind)
    assert text_of(Knobs()) == corpus.text
    assert 200 == len(corpus.functions) == len(corpus.cuts)
    assert f"generated, {Knobs()}" == corpus.origin
    assert 16 == len(corpus.functions_to_write())


def test_the_small_corpora_have_16_functions_or_more_of_which_one_s_are_long(here):
    mini, short = map(load, SMALL_CORPORA)

    assert 16 == len(mini.functions_to_write()) == len(mini.functions_to_force(16, 5))
    assert 0 == len(short.functions_to_write())
    assert 20 == len(short.functions_to_force(20, 5))


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


def test_what_is_not_installed_says_what_to_do(here, monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    monkeypatch.setattr(metadata, "version", missing)
    monkeypatch.setattr("importlib.resources.files", lambda _: here)

    assert "not installed" in {name: origin for name, origin, _ in names()}["jquery"]
    with pytest.raises(BadInput, match="jQuery is not installed") as caught:
        load("jquery")
    assert "Run: pip install 'codeneedle[corpora]'" == caught.value.hint
    with pytest.raises(BadInput, match=r"without http/server\.py as source"):
        load("http_server")


def test_the_list_has_every_name_once_and_survives_broken_files(here):
    put(here / "corpora/mine.py", python("mine"))
    put(here / "corpora/bad.toml", "fils = []")
    put(here / "corpora/jquery.toml", "[generate]\nseed = 7")
    put(here / "corpora/more.py", text_of(Knobs(functions=1, seed=7)))
    put(here / "corpora/README.md", "# Corpora")
    put(here / "corpora/.hidden.py", python("mine"))
    listed = {name: (origin, kind) for name, origin, kind in names()}

    expected = ["bad", "jquery", "mine", "more", *BUILT_IN]
    assert list(dict.fromkeys(expected)) == list(listed)
    assert "unknown key 'fils'" in listed["bad"][0]
    assert "incompressible" == listed["jquery"][1] == listed["more"][1]
    assert "incompressible" == load("more").kind
    assert ("corpora/mine.py", "unseen") == listed["mine"]
