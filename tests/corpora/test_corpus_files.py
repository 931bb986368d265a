"""Corpus files: what they name, what they generate, and what is refused."""

from pathlib import Path

import pytest
from source_files import names_of, put, python

from codeneedle.corpora.random_bodies import MINI, Knobs, generate_text
from codeneedle.corpora.registry import checked_generated_path, load, slug
from codeneedle.errors import BadInput, RequestError


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("src", "src"),
        ("My Code (2)", "my-code-2"),
        ("..", "corpus"),
        ("", "corpus"),
        ("größe", "gr-e"),
        ("x" * 300, "x" * 80),
    ],
)
def test_a_name_is_safe_as_a_folder(text, safe):
    assert safe == slug(text)


def test_a_corpus_file_names_files_and_patterns_relative_to_itself(here):
    put(here / "src/a/a.py", python("one"))
    put(here / "src/deep/b.py", python("two"))
    put(here / "src/deep/.cache/c.py", python("three"))
    put(here / "src/deep/notes.txt", "no source")
    put(
        here / "corpora/mine.toml",
        'files = ["../src/a/../deep/b.py"]\nglob = "../src/**/*"\n'
        'sample_k = 1\nsample_seed = 7\nkind = "memorised"',
    )
    corpus = load("mine")

    assert ["two", "one"] == names_of(corpus.functions)
    assert corpus.text.startswith("# deep/b.py\n")
    assert (1, 7, "memorised") == (corpus.sample_k, corpus.sample_seed, corpus.kind)
    assert 1 == len(corpus.written_recall_functions())
    assert "corpora/mine.toml: ../src/a/../deep/b.py, ../src/**/*" == corpus.origin


@pytest.mark.parametrize(
    ("file", "toml", "text", "kind"),
    [
        (
            "corpora/mine.toml",
            'files = ["../a.inc"]\nlanguage = "python"',
            python("one"),
            "unseen",
        ),
        (
            "elsewhere/mine.toml",
            "[generate]\nfunctions = 3\nseed = 7",
            generate_text(Knobs(functions=3, seed=7)),
            "incompressible",
        ),
    ],
    ids=["a language of an odd suffix", "knobs, the others of which are defaults"],
)
def test_a_corpus_file_says_the_language_or_generates_its_text(
    here, file, toml, text, kind
):
    put(here / "a.inc", python("one"))
    put(here / file, toml)
    corpus = load(file)

    assert text == corpus.text
    assert ("mine", kind) == (corpus.name, corpus.kind)


def test_a_corpus_file_may_have_a_million_bytes(here):
    put(here / "corpora/mine.toml", "[generate]\n".ljust(1_000_000, "#"))

    assert generate_text(Knobs()) == load("mine").text


def test_a_limit_cuts_after_the_last_whole_function(here):
    put(here / "corpora/mine.toml", "limit_bytes = 3000\n[generate]")
    corpus = load("mine")

    assert 2 == len(corpus.functions)
    assert len(corpus.text) <= 3_000
    assert generate_text(Knobs()).startswith(corpus.text)


def test_files_beyond_the_limit_are_not_read(here):
    put(here / "src/a.py", python("one"))
    put(here / "src/b.py", python("two"))
    put(here / "src/c.py", b"\0 not looked at")
    put(here / "corpora/mine.toml", 'files = ["../src"]\nlimit_bytes = 600')
    corpus = load("mine")

    assert ["one"] == names_of(corpus.functions)
    assert () == corpus.skipped


@pytest.mark.parametrize(
    ("toml", "said"),
    [
        pytest.param("fils = []", "unknown key 'fils'", id="unknown key"),
        pytest.param("[generate]\nvalue_len = 3", "'value_len'", id="unknown knob"),
        pytest.param("x", "Expected", id="no value"),
        pytest.param("files = 3", "files", id="no list"),
        pytest.param("files = []", "no files", id="empty list"),
        pytest.param("", "no files", id="empty file"),
        pytest.param('files = ["a.py"]\n[generate]', "both", id="files and knobs"),
        pytest.param('glob = "*.py"\nsample_k = 0', "sample_k", id="no sample"),
        pytest.param('glob = "*.py"\nsample_k = 1.5', "sample_k", id="half a sample"),
        pytest.param('glob = "*.py"\nlimit_bytes = -1', "limit_bytes", id="limit"),
        pytest.param('glob = "*.py"\nkind = "new"', "kind", id="kind"),
        pytest.param("[generate]\nseed = 'x'", "seed", id="seed"),
        pytest.param('glob = "*.py"', "finds no file", id="nothing matches"),
        pytest.param('glob = "/etc/*.py"', "a valid glob", id="absolute glob"),
        pytest.param('glob = ""', "a valid glob", id="empty glob"),
        pytest.param(b"glob = '\xff'", "utf-8", id="no UTF-8"),
        pytest.param("#" * 1_000_001, "larger than 1 MB", id="large"),
        pytest.param('files = ["no.py"]', "corpora/no.py: No such file", id="no file"),
        pytest.param('files = ["mine.toml"]', "language is not", id="suffix"),
        pytest.param('files = ["a.py"]\nlanguage = "pyton"', "'pyton'", id="language"),
        pytest.param("[generate]\nfunctions = 0", "functions", id="no functions"),
        pytest.param("limit_bytes = 10\n[generate]", "short enough", id="low limit"),
    ],
)
def test_a_bad_corpus_file_says_what_to_mend(here, toml, said, golden):
    put(here / "corpora/mine.toml", toml)

    with pytest.raises(RequestError) as caught:
        load("mine")
    assert said in str(caught.value)
    assert golden == caught.value.hint


def test_the_corpus_file_of_this_package_reads_its_own_source():
    corpus = load("codeneedle", folder=Path(__file__).parents[2] / "corpora")

    assert "unseen" == corpus.kind
    assert () == corpus.skipped
    assert 16 == len(corpus.written_recall_functions())
    assert "# corpora/corpus.py\n" in corpus.text


@pytest.mark.parametrize(
    ("knobs", "out", "path"),
    [
        (Knobs(), None, "random-bodies.py"),
        (Knobs(seed=7), None, "random-bodies-7.py"),
        (Knobs(functions=50, seed=-7), None, "random-bodies--7-functions-50.py"),
        (Knobs(lines=30, indent=8), None, "random-bodies-lines-30-indent-8.py"),
        (Knobs(value_length=9), None, "random-bodies-value-length-9.py"),
        (MINI, "corpora/random-bodies-mini.py", "random-bodies-mini.py"),
        (Knobs(seed=7), "corpora/mine.py", "mine.py"),
        (Knobs(seed=7), "elsewhere/random-bodies.py", "../elsewhere/random-bodies.py"),
    ],
)
def test_a_generated_corpus_has_a_built_in_name_only_with_its_knobs(
    here, knobs, out, path
):
    """Other text of that name would silently replace the built-in one."""
    written = checked_generated_path(knobs, out and Path(out))

    assert (here / "corpora" / path).resolve() == written.resolve()


@pytest.mark.parametrize(
    ("knobs", "out"),
    [
        (Knobs(seed=7), "corpora/random-bodies.py"),
        (Knobs(seed=7), "./corpora/../corpora/random-bodies.py"),
        (Knobs(), "corpora/random-bodies-mini.py"),
        (Knobs(), "corpora/jquery.js"),
    ],
    ids=["other knobs", "the same by a detour", "a smaller one", "of a language"],
)
def test_a_built_in_corpus_is_not_replaced_by_generated_text(here, knobs, out, golden):
    with pytest.raises(BadInput) as caught:
        checked_generated_path(knobs, Path(out))
    assert golden == str(caught.value)
    assert str(checked_generated_path(knobs)) in caught.value.hint
