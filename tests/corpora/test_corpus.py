"""Corpora: from a name or a path to a text that can be asked for."""

import errno
import hashlib
import os
import platform
from importlib import metadata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codeneedle.corpora import corpus as corpora
from codeneedle.corpora import reading, workers
from codeneedle.corpora.corpus import (
    Corpus,
    NothingFits,
    NothingToAsk,
    fitted,
    load,
    names,
)
from codeneedle.corpora.languages import UnknownLanguage
from codeneedle.corpora.random_bodies import BadKnob, Knobs, generate, text_of
from codeneedle.corpora.reading import (
    FileTooLarge,
    NoText,
    NotFound,
    SourceChanged,
    TooLarge,
)
from codeneedle.corpora.registry import BadCorpusFile, MissingExtra, MissingSource, slug
from codeneedle.corpora.workers import Alone, Crew
from codeneedle.errors import RequestError, UnknownName


def python(name, *, lines=20):
    body = "".join(f"    {name}_{at} = {at}\n" for at in range(lines))
    return f"def {name}():\n{body}"


def javascript(name, *, lines=20):
    body = "".join(f"  {name}({at});\n" for at in range(lines))
    return f"function {name}() {{\n{body}}}\n"


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working folder with a folder of corpora."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpora").mkdir()
    return tmp_path


def put(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())


def names_of(corpus):
    return [function.name for function in corpus.functions]


def assert_verbatim(corpus: Corpus) -> None:
    """Every function is a stretch of the text's own lines."""
    lines = corpus.text.split("\n")
    for function in corpus.functions:
        stands = [*function.signature.split("\n"), *function.body]
        end = function.end - function.closing_lines
        assert stands == lines[function.line - 1 : end]


# --- built in


def test_the_default_corpus_is_200_random_bodies(here):
    """
    It needs no file, and its origin states every knob.
    """
    corpus = load("random-bodies")

    assert ("random-bodies", "incompressible") == (corpus.name, corpus.kind)
    assert generate() == corpus.text
    assert 200 == len(corpus.functions) == len(corpus.cuts)
    assert f"generated, {Knobs()}" == corpus.origin
    assert hashlib.sha256(corpus.text.encode()).hexdigest() == corpus.sha256
    assert 16 == len(corpus.chosen())


def test_the_mini_corpus_asks_for_all_of_its_functions(here):
    """
    Sixteen functions, sixteen rounds.
    """
    corpus = load("random-bodies-mini")

    assert corpus.functions == tuple(corpus.chosen())
    assert 16 == len(corpus.functions)


def test_http_server_is_that_of_the_running_interpreter(here):
    """
    Real code, memorised, with the version it is of.
    """
    corpus = load("http_server")

    assert "memorised" == corpus.kind
    assert f"http/server.py of Python {platform.python_version()}" == corpus.origin
    assert "SimpleHTTPRequestHandler.list_directory" in names_of(corpus)
    assert len(corpus.functions) >= 5
    assert_verbatim(corpus)


def test_jquery_is_that_of_the_package(here):
    """
    96 of its functions are long enough and have a signature of their own.
    """
    corpus = load("jquery")

    assert "memorised" == corpus.kind
    assert "jquery.js of XStatic-jQuery 3.7.1.1" == corpus.origin
    assert 96 == len(corpus.functions)
    assert len(set(names_of(corpus))) == len(names_of(corpus))
    assert_verbatim(corpus)


def test_jquery_without_its_package_says_what_to_install(here, monkeypatch):
    """
    An optional extra that is missing is named, in the error and in the list.
    """

    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    monkeypatch.setattr(metadata, "version", missing)
    with pytest.raises(MissingExtra) as caught:
        load("jquery")

    assert "Run: pip install 'codeneedle[corpora]'" == caught.value.hint
    assert "not installed" in {name: origin for name, origin, _ in names()}["jquery"]


def test_an_interpreter_without_sources_has_no_http_server(here, monkeypatch):
    """
    Some distributions ship compiled files alone.
    """
    monkeypatch.setattr("importlib.resources.files", lambda _: here)

    with pytest.raises(MissingSource):
        load("http_server")


# --- names


def test_a_name_is_a_corpus_file_then_a_source_file_then_built_in(here):
    """
    What a person puts into the folder goes before what is there anyway.
    """
    put(here / "corpora/http_server.py", python("mine"))
    assert ["mine"] == names_of(load("http_server"))

    put(here / "corpora/http_server.toml", 'files = "other.py"'.replace('"o', '["o', 1))
    with pytest.raises(BadCorpusFile):
        load("http_server")

    put(here / "corpora/http_server.toml", 'files = ["other.py"]')
    put(here / "corpora/other.py", python("described"))
    assert ["described"] == names_of(load("http_server"))


def test_a_name_goes_before_a_path_and_a_separator_makes_a_path(here):
    """
    A folder that is called like a corpus is reached with ``./``.
    """
    put(here / "jquery/a.py", python("mine"))

    assert "memorised" == load("jquery").kind
    assert ["mine"] == names_of(load("./jquery"))


def test_a_folder_that_is_no_name_is_a_path(here):
    """
    ``--corpus src`` needs no slash.
    """
    put(here / "src/a.py", python("mine"))

    assert ("src", ["mine"]) == (load("src").name, names_of(load("src")))


def test_an_unknown_name_offers_the_nearest(here):
    """
    A typo is met with what was meant.
    """
    with pytest.raises(UnknownName) as caught:
        load("random-bodys")

    assert "Did you mean 'random-bodies'?" == caught.value.hint


@pytest.mark.parametrize("text", ["", "x" * 5_000, "\0", "..."])
def test_what_can_be_neither_name_nor_path_is_an_unknown_name(here, text):
    """
    Odd input ends in an error for people.
    """
    with pytest.raises(UnknownName):
        load(text)


@pytest.mark.parametrize("text", ["./no", "/no/such", "a\0/b", "../no.py", "no\\such"])
def test_a_path_that_leads_nowhere_is_not_found(here, text):
    """
    A separator says that it was meant as a path.
    """
    with pytest.raises(NotFound):
        load(text)


def test_the_list_has_every_name_once_and_survives_broken_files(here):
    """
    A corpus file that cannot be read is listed with what is wrong.
    """
    put(here / "corpora/mine.py", python("mine"))
    put(here / "corpora/bad.toml", "fils = []")
    put(here / "corpora/jquery.toml", "[generate]\nseed = 7")
    put(here / "corpora/README.md", "# Corpora")
    put(here / "corpora/.hidden.py", python("mine"))
    listed = {name: (origin, kind) for name, origin, kind in names()}

    assert [
        "bad",
        "jquery",
        "mine",
        "random-bodies",
        "random-bodies-mini",
        "http_server",
    ] == list(listed)
    assert "unknown key 'fils'" in listed["bad"][0]
    assert "incompressible" == listed["jquery"][1]
    assert "unseen" == listed["mine"][1]


def test_without_a_folder_the_built_in_names_remain(tmp_path):
    """
    An installed package in an empty folder knows four corpora.
    """
    assert 4 == len(names(tmp_path / "corpora"))


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("src", "src"),
        ("My Code (2)", "my-code-2"),
        ("..", "corpus"),
        ("", "corpus"),
        ("a/../b", "a-..-b"),
        (".hidden", "hidden"),
        ("größe", "gr-e"),
        ("日本", "corpus"),
        ("x" * 300, "x" * 80),
    ],
)
def test_a_name_is_safe_as_a_folder(text, safe):
    """
    Runs are kept below a folder of that name.
    """
    assert safe == slug(text)


@given(text=st.text())
def test_no_text_makes_an_unsafe_name(text):
    """
    Never empty, never a way out.
    """
    safe = slug(text)

    assert safe
    assert set(safe) <= set("abcdefghijklmnopqrstuvwxyz0123456789_.-")
    assert not safe.startswith((".", "-"))


# --- files and folders


def test_a_file_is_read_as_an_editor_shows_it(here):
    """
    A byte order mark goes, line ends become newlines, and nothing else changes.
    """
    text = "\ufeff" + python("mine").replace("\n", "\r\n") + "x = '\x0c\u2028'\r# é\r\n"
    put(here / "mine.py", text)
    corpus = load("mine.py")

    assert ("mine.py", "mine.py", "unseen") == (corpus.name, corpus.origin, corpus.kind)
    assert python("mine") + "x = '\x0c\u2028'\n# é\n" == corpus.text
    assert 1 == corpus.functions[0].line
    assert_verbatim(corpus)


def test_bytes_that_are_not_utf_8_stay_one_character_each(here):
    """
    An old file keeps its length and its lines.
    """
    data = b"# \xe9\xff\x85\n" + python("mine").encode()
    put(here / "mine.py", data)
    corpus = load("mine.py")

    assert data == corpus.text.encode("latin-1")
    assert 2 == corpus.functions[0].line


def test_a_generated_file_stays_incompressible(here):
    """
    What ``gen-corpus`` wrote is recognised by its first line.
    """
    put(here / "corpora/more.py", generate(functions=3, seed=7))

    assert "incompressible" == load("more").kind


def test_a_folder_is_joined_with_a_comment_that_names_each_file(here):
    """
    Sorted, of known languages, each below a line in its own language.
    """
    put(here / "src/b/two.js", javascript("two"))
    put(here / "src/a.py", python("one").rstrip("\n"))
    put(here / "src/c.php", "<?php\n" + javascript("three"))
    put(here / "src/README.md", "# not source")
    corpus = load("./src")
    lines = corpus.text.split("\n")

    assert ["one", "two", "three"] == names_of(corpus)
    assert ["# a.py", "// b/two.js", "// c.php"] == [lines[at] for at in (0, 22, 45)]
    assert "src, files: 3" == corpus.origin
    assert_verbatim(corpus)


def test_other_peoples_and_hidden_folders_are_skipped(here):
    """
    A sweep is about the user's own code.
    """
    skipped = ("node_modules", "__pycache__", ".venv", ".git", "a/node_modules/b")
    for folder in skipped:
        put(here / "src" / folder / "a.py", python("theirs"))
    put(here / "src/.hidden.py", python("hidden"))
    put(here / "src/a/mine.py", python("mine"))

    assert ["mine"] == names_of(load("./src"))


def test_loops_of_links_end_and_no_file_comes_twice(here):
    """
    A link to a folder is followed, unless that was seen.
    """
    put(here / "elsewhere/b.py", python("linked"))
    put(here / "src/a.py", python("mine"))
    (here / "src/loop").symlink_to(here / "src")
    (here / "src/more").symlink_to(here / "elsewhere")
    (here / "src/same.py").symlink_to(here / "src/a.py")
    (here / "src/broken.py").symlink_to(here / "nowhere")

    assert ["mine", "linked"] == names_of(load("./src"))


def test_a_file_that_cannot_be_parsed_keeps_its_text_and_is_reported(here):
    """
    Its functions are no needles; a person sees why.
    """
    put(here / "src/a.py", python("mine"))
    put(here / "src/b.py", "print 'old'\n" + python("old"))
    put(here / "src/c.py", b"\0\0")
    put(here / "src/d.py", "")
    corpus = load("./src")

    assert ["mine"] == names_of(corpus)
    assert "def old():" in corpus.text
    assert ["c.py", "b.py"] == [file for file, _ in corpus.skipped]
    assert "line 1" in corpus.skipped[1][1]


def test_a_file_that_may_not_be_read_is_reported(here, monkeypatch):
    """
    The others are asked for all the same.
    """
    put(here / "src/a.py", python("mine"))
    put(here / "src/b.py", python("theirs"))
    opened = os.open

    def guarded(path, *arguments, **others):
        if Path(path).name == "b.py":
            raise PermissionError(errno.EACCES, "Permission denied")
        return opened(path, *arguments, **others)

    monkeypatch.setattr(os, "open", guarded)

    assert (("b.py", "cannot be read: Permission denied"),) == load("./src").skipped
    with pytest.raises(NoText):
        load("./src/b.py")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "is empty"),
        (b" \n\t\n", "is empty"),
        (b"\x7fELF\0\0", "is binary"),
        ("def f():\n".encode("utf-16"), "UTF-16"),
    ],
)
def test_a_file_without_text_says_so(here, data, reason):
    """
    There is nothing to remember in it.
    """
    put(here / "a.py", data)

    with pytest.raises(NoText) as caught:
        load("a.py")
    assert reason in str(caught.value)


def test_a_file_in_an_unknown_language_lists_the_known_ones(here):
    """
    The hint says which suffixes are read.
    """
    put(here / "a.cob", "x")

    with pytest.raises(UnknownLanguage) as caught:
        load("./a.cob")
    assert ".py" in caught.value.hint


def test_a_folder_without_source_says_so(here):
    """
    An empty folder is no corpus.
    """
    with pytest.raises(NoText):
        load("./corpora")


def test_a_device_is_neither_file_nor_folder(here):
    """
    Reading it would never end.
    """
    with pytest.raises(NotFound):
        load("/dev/zero")


def test_too_much_text_is_refused_with_the_way_out(here, monkeypatch):
    """
    The hint names the limit that a corpus file can set; nothing has been read then.
    """
    monkeypatch.setattr(reading, "MAX_BYTES", 500)
    monkeypatch.setattr(reading, "read", None)
    put(here / "src/a.py", python("one"))
    put(here / "src/b.py", python("two"))
    put(here / "corpora/limited.toml", 'files = ["../src"]\nlimit_bytes = 600')

    for name in ("./src", "limited"):
        with pytest.raises(TooLarge) as caught:
            load(name)
        assert "limit_bytes" in caught.value.hint


def test_a_file_longer_than_any_context_is_left_out_or_refused(here, monkeypatch):
    """
    Its parser would take hundreds of times its length in memory.
    """
    monkeypatch.setattr(reading, "MAX_FILE_BYTES", 800)
    put(here / "src/a.py", python("one"))
    put(here / "src/long.py", python("three", lines=80))

    with pytest.raises(FileTooLarge):
        load("src/long.py")
    corpus = load("src")
    assert ["one"] == names_of(corpus)
    assert (("long.py", "is longer than 0 MB"),) == corpus.skipped


def test_the_first_files_that_are_left_out_are_named_and_the_others_counted(here):
    """
    A note for each of a thousand would bury all that follows.
    """
    put(here / "src/good.py", python("good"))
    for at in range(23):
        put(here / f"src/bad{at:02}.py", b"\0")
    lines = load("src").left_out()

    assert "bad00.py: is binary, or in UTF-16" == lines[0]
    assert (21, "and 3 more files") == (len(lines), lines[-1])


# --- large ones


@pytest.fixture
def tree(here):
    """Sixty files in three languages, of which some share signatures and names."""
    for at in range(60):
        put(here / f"src/{at % 7}/f{at}.py", python(f"f{at}") + python(f"g{at % 50}"))
        put(here / f"src/{at % 5}/f{at}.js", javascript(f"f{at}", lines=18 + at % 9))
    put(here / "src/3/broken.py", "def f(:\n")
    put(here / "src/z.php", "<?php\n" + javascript("last"))
    return here / "src"


def test_workers_find_what_we_find_alone(tree, monkeypatch):
    """
    The same text, functions, cuts and notes, in the same order.
    """
    alone = load(str(tree))
    monkeypatch.setattr(workers, "team", lambda _: Crew(2))

    assert alone == load(str(tree))
    assert_verbatim(alone)


@pytest.mark.parametrize("team", [Alone(), Crew(2)])
@pytest.mark.parametrize("held_bytes", [2_000, 5_000, 40_000])
def test_memory_holds_a_beginning_and_knows_of_the_whole(
    tree, monkeypatch, team, held_bytes
):
    """
    What is held has the same functions by the same names as in the whole.
    """
    whole = load(str(tree))
    monkeypatch.setattr(reading, "HELD_BYTES", held_bytes)
    monkeypatch.setattr(workers, "team", lambda _: team)
    held = load(str(tree))
    last = held.text.count("\n")

    assert whole.text.startswith(held.text)
    assert held_bytes <= len(held.text) < held_bytes + 3_000
    assert whole.sha256 == held.sha256
    assert len(whole.text.encode()) == held.size_bytes == whole.size_bytes
    assert len(whole.functions) == held.functions_in_all == whole.functions_in_all
    assert [f for f in whole.functions if f.line <= last] == list(held.functions)
    assert [cut for cut in whole.cuts if cut <= last] == list(held.cuts)
    assert (whole.skipped, whole.origin) == (held.skipped, held.origin)


def test_what_is_cut_from_a_beginning_is_a_whole_of_its_own(tree, monkeypatch):
    """
    It is cut as it would be from all of the text, and never taken for all of it.
    """
    whole = load(str(tree))
    monkeypatch.setattr(reading, "HELD_BYTES", 20_000)
    held = load(str(tree))

    for limit in (700, 5_000, 19_000):
        assert fitted(whole, fits=lambda text, limit=limit: len(text) <= limit) == (
            fitted(held, fits=lambda text, limit=limit: len(text) <= limit)
        )
    longest = fitted(held, fits=lambda _: True)
    assert longest.whole is None
    assert held.text.startswith(longest.text)


def test_a_limit_above_what_is_held_is_held(tree, monkeypatch):
    """
    The person has asked for so much.
    """
    put(tree.parent / "corpora/limited.toml", 'files = ["../src"]\nlimit_bytes = 9000')
    expected = load("limited")
    monkeypatch.setattr(reading, "HELD_BYTES", 100)

    assert expected == load("limited")
    assert expected.whole is None


def test_a_file_that_changes_between_two_looks_is_named(tree, monkeypatch):
    """
    What is not held is read again; a hash of what was never there helps nobody.
    """
    monkeypatch.setattr(reading, "HELD_BYTES", 1_000)

    def changing(progress):
        if progress.phase.startswith("comparing"):
            put(tree / "z.php", "<?php\n")

    with pytest.raises(SourceChanged) as caught:
        load(str(tree), hears=changing)
    assert "z.php" in str(caught.value)


def test_a_file_that_vanishes_between_two_looks_is_named(tree, monkeypatch):
    """
    The same, if it is gone.
    """
    monkeypatch.setattr(reading, "HELD_BYTES", 1_000)

    def vanishing(progress):
        if progress.phase.startswith("comparing"):
            (tree / "z.php").unlink(missing_ok=True)

    with pytest.raises(SourceChanged):
        load(str(tree), hears=vanishing)


def test_progress_is_told_of_each_phase(tree):
    """
    From nothing to all of it, in bytes.
    """
    told = []
    load(str(tree), hears=told.append)
    phases = list(dict.fromkeys(progress.phase for progress in told))

    assert ["reading the corpus", "comparing signatures"] == phases
    assert all(p.done_bytes <= p.total_bytes for p in told)
    assert {p.total_bytes for p in told} == {told[-1].done_bytes}


def test_short_functions_are_counted_in_the_error(here):
    """
    It says how many there are, how long the longest is, and what is needed.
    """
    put(here / "a.py", python("one", lines=3) + python("two", lines=7) + "\n")

    with pytest.raises(NothingToAsk) as caught:
        load("a.py")
    assert "of 2 found" in str(caught.value)
    assert "7 body lines" in str(caught.value)
    assert "20" in caught.value.hint


def test_functions_with_shared_signatures_are_told_from_short_ones(here):
    """
    Long functions that cannot be quoted have another remedy.
    """
    put(here / "a.py", python("one") + "if x:\n pass\n" + python("one"))

    with pytest.raises(NothingToAsk) as caught:
        load("a.py")
    assert "signature" in caught.value.hint


def test_a_single_file_that_cannot_be_parsed_says_where(here):
    """
    The reason is in the hint.
    """
    put(here / "a.py", "x = 1\ndef f(:\n")

    with pytest.raises(NothingToAsk) as caught:
        load("a.py")
    assert "line 2" in caught.value.hint


# --- corpus files


def test_a_corpus_file_names_files_and_patterns_relative_to_itself(here):
    """
    Files first, then patterns; what both find comes once.
    """
    put(here / "src/a.py", python("one"))
    put(here / "src/deep/b.py", python("two"))
    put(here / "src/deep/.cache/c.py", python("three"))
    put(here / "src/deep/notes.txt", "no source")
    put(
        here / "corpora/mine.toml",
        'files = ["../src/deep/b.py"]\nglob = "../src/**/*"\n'
        'sample_k = 1\nsample_seed = 7\nkind = "memorised"',
    )
    corpus = load("mine")

    assert ["two", "one"] == names_of(corpus)
    assert corpus.text.startswith("# deep/b.py\n")
    assert (1, 7, "memorised") == (corpus.sample_k, corpus.sample_seed, corpus.kind)
    assert 1 == len(corpus.chosen())
    assert "corpora/mine.toml: ../src/deep/b.py, ../src/**/*" == corpus.origin


def test_a_corpus_file_is_found_by_its_path_too(here):
    """
    Its name loses the suffix.
    """
    put(here / "elsewhere/mine.toml", "[generate]\nfunctions = 2")

    assert ("mine", 2) == (
        load("elsewhere/mine.toml").name,
        len(load("elsewhere/mine.toml").functions),
    )


def test_a_corpus_file_says_the_language_of_odd_suffixes(here):
    """
    ``language`` overrides what a suffix says.
    """
    put(here / "corpora/a.inc", python("one"))
    put(here / "corpora/mine.toml", 'files = ["a.inc"]\nlanguage = "python"')

    assert ["one"] == names_of(load("mine"))


def test_knobs_in_a_corpus_file_generate_its_text(here):
    """
    Knobs not given have their defaults.
    """
    put(here / "corpora/mine.toml", "[generate]\nfunctions = 3\nseed = 7")
    corpus = load("mine")

    assert text_of(Knobs(functions=3, seed=7)) == corpus.text
    assert "incompressible" == corpus.kind


def test_a_limit_cuts_after_the_last_whole_function(here):
    """
    The text is no longer than the limit, and no function is divided.
    """
    put(here / "corpora/mine.toml", "limit_bytes = 3000\n[generate]")
    corpus = load("mine")

    assert 2 == len(corpus.functions)
    assert len(corpus.text) <= 3_000
    assert generate().startswith(corpus.text)


def test_files_beyond_the_limit_are_not_read(here):
    """
    A limit makes a folder of any size usable.
    """
    put(here / "src/a.py", python("one"))
    put(here / "src/b.py", python("two"))
    put(here / "src/c.py", b"\0 not looked at")
    put(here / "corpora/mine.toml", 'files = ["../src"]\nlimit_bytes = 600')
    corpus = load("mine")

    assert ["one"] == names_of(corpus)
    assert () == corpus.skipped


@pytest.mark.parametrize(
    ("toml", "said", "hint"),
    [
        ("fils = []", "unknown key 'fils'", "'files'"),
        ("[generate]\nvalue_len = 3", "'value_len'", "'value_length'"),
        ("x", "Expected", "Mend"),
        ("files = 3", "files", "another value"),
        ("files = []", "no files", "[generate]"),
        ("", "no files", "[generate]"),
        ('files = ["a.py"]\n[generate]', "both", "[generate]"),
        ('glob = "*.py"\nsample_k = 0', "sample_k", "another value"),
        ('glob = "*.py"\nsample_k = 1.5', "sample_k", "another value"),
        ('glob = "*.py"\nlimit_bytes = -1', "limit_bytes", "another value"),
        ('glob = "*.py"\nkind = "new"', "kind", "another value"),
        ("[generate]\nseed = 'x'", "seed", "another value"),
        ('glob = "*.py"', "finds no file", "relative to"),
        ('glob = "/etc/*.py"', "is no glob", "../src"),
        ('glob = ""', "is no glob", "../src"),
        (b"glob = '\xff'", "utf-8", "UTF-8"),
    ],
)
def test_a_bad_corpus_file_says_what_to_mend(here, toml, said, hint):
    """
    Unknown keys, wrong values and empty patterns are errors with a next action.
    """
    put(here / "corpora/mine.toml", toml)

    with pytest.raises(BadCorpusFile) as caught:
        load("mine")
    assert said in str(caught.value)
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("toml", "error"),
    [
        ('files = ["no.py"]', NotFound),
        ('files = ["mine.toml"]', UnknownLanguage),
        ('files = ["mine.toml"]\nlanguage = "cobol"', UnknownName),
        ("[generate]\nfunctions = 0", BadKnob),
        ("limit_bytes = 10\n[generate]", NothingFits),
    ],
)
def test_what_a_corpus_file_asks_for_may_not_exist(here, toml, error):
    """
    Every such request has its own error.
    """
    put(here / "corpora/mine.toml", toml)

    with pytest.raises(error):
        load("mine")


def test_the_corpus_file_of_this_package_reads_its_own_source():
    """
    The checkout ships a corpus of code that no model has seen.
    """
    folder = Path(__file__).parents[2] / "corpora"
    corpus = load("codeneedle", folder=folder)

    assert "unseen" == corpus.kind
    assert () == corpus.skipped
    assert 16 == len(corpus.chosen())
    assert "# corpora/corpus.py\n" in corpus.text


# --- fitting


@given(limit=st.integers(1_300, 206_000))
def test_a_fitted_corpus_is_the_longest_that_fits(limit):
    """
    It fits, it ends with a whole function, and one more would be too many.
    """
    whole = RANDOM_BODIES
    shorter = fitted(whole, fits=lambda text: len(text) <= limit)
    count = len(shorter.functions)

    assert len(shorter.text) <= limit
    assert whole.text.startswith(shorter.text)
    assert whole.functions[:count] == shorter.functions
    assert shorter.text.split("\n")[:-1][-1] == shorter.functions[-1].body[-1]
    if count < 200:
        following = whole.functions[count]
        longer = "\n".join(whole.text.split("\n")[: following.end])
        assert limit <= len(longer)


RANDOM_BODIES = load("random-bodies", folder=Path("/nonexistent"))


def test_a_corpus_that_fits_stays_as_it_is():
    """
    Also what stands after its last function.
    """
    assert RANDOM_BODIES is fitted(RANDOM_BODIES, fits=lambda _: True)


def test_fitting_asks_little(here):
    """
    Counting tokens of a whole corpus takes time, so it is halved, not walked.
    """
    asked = []

    def fits(text):
        asked.append(text)
        return len(text) < 100_000

    fitted(RANDOM_BODIES, fits=fits)

    assert len(asked) <= 9


def test_short_functions_are_good_places_to_cut(here):
    """
    The text ends with any whole function, whether it is asked for or not.
    """
    put(here / "a.js", javascript("one") + javascript("s", lines=1) + javascript("two"))
    shorter = fitted(load("a.js"), fits=lambda text: "two" not in text)

    assert javascript("one") + javascript("s", lines=1) == shorter.text
    assert ["one"] == names_of(shorter)


@pytest.mark.parametrize("fits_first", [True, False])
def test_a_corpus_of_which_nothing_fits_asks_for_a_larger_context(here, fits_first):
    """
    Nothing left to ask for is an error, with or without text left.
    """
    put(here / "a.py", python("s", lines=1) + python("one"))

    with pytest.raises(NothingFits) as caught:
        fitted(load("a.py"), fits=lambda text: fits_first and "one" not in text)
    assert "--context" in caught.value.hint


def test_every_error_of_a_corpus_is_a_wrong_request():
    """
    They end with exit code 2, and each has a next action.
    """
    classes = (BadCorpusFile, NothingFits, NothingToAsk, MissingExtra, NoText, TooLarge)

    assert {2} == {error.exit_code for error in classes}
    assert all(issubclass(error, RequestError) for error in classes)
    assert corpora.FOLDER == Path("corpora")
