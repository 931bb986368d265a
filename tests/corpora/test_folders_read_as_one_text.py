"""Reading: which files of a folder, as what text, and what is left out."""

import os

import pytest
from source_files import assert_verbatim, javascript, names_of, put, python

from codeneedle.corpora import reading
from codeneedle.corpora.registry import load
from codeneedle.errors import BadInput


def test_a_file_is_read_as_an_editor_shows_it(here):
    text = "\ufeff" + python("mine").replace("\n", "\r\n") + "x = '\x0c\u2028'\r# é\r\n"
    put(here / "mine.py", text)
    corpus = load("mine.py")

    assert ("mine.py", "mine.py", "unseen") == (corpus.name, corpus.origin, corpus.kind)
    assert python("mine") + "x = '\x0c\u2028'\n# é\n" == corpus.text
    assert 1 == corpus.functions[0].line
    assert_verbatim(corpus.text, corpus.functions)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b" \n\t\n", id="blank"),
        pytest.param(" \n".encode("utf-16"), id="blank in UTF-16"),
        pytest.param(b"\x7fELF\0\0", id="binary"),
        pytest.param("def f():\n".encode("utf-16-le"), id="UTF-16 without a mark"),
        pytest.param(b"#\n# \xe9\n", id="not UTF-8"),
        pytest.param(b"# coding: gbk\n# \xff\n", id="not what it says"),
    ],
)
def test_a_file_without_text_says_so(here, data, golden):
    put(here / "a.py", data)

    with pytest.raises(BadInput) as caught:
        load("a.py")
    assert "a.py" == caught.value.source
    assert golden == (caught.value.reason, caught.value.hint)


@pytest.mark.parametrize(("spare", "is_read"), [(0, True), (-1, False)])
def test_a_file_may_be_as_large_as_any_text(here, monkeypatch, spare, is_read):
    put(here / "mine.py", python("mine"))
    monkeypatch.setattr(reading, "MAX_BYTES", len(python("mine")) + spare)
    try:
        found = names_of(load("mine.py").functions)
    except BadInput:
        found = []

    assert ["mine"] * is_read == found


@pytest.mark.parametrize(("length", "is_text"), [(5_000, True), (5_001, False)])
def test_lines_of_5000_characters_are_the_longest_that_no_program_has_written(
    here, length, is_text
):
    put(here / "src/a.js", javascript("two"))
    put(here / "src/b.js", "// ".ljust(length, "x"))

    assert is_text == (not load("./src").skipped)


def test_minified_code_is_left_out_and_said_to_be(here, golden):
    put(here / "src/a.min.js", "function f(){return function(){}};" * 1_000)
    put(here / "src/b.js", javascript("two"))
    corpus = load("./src")

    assert ["two"] == names_of(corpus.functions)
    assert golden == corpus.skipped


def test_a_folder_of_every_language_is_one_text(here):
    put(here / "src/a.py", python("of_python"))
    put(here / "src/b.h", javascript("of_c").replace("function", "int"))
    put(here / "src/c.cpp", javascript("of_cpp").replace("function", "auto"))
    put(here / "src/d.go", "package d\n" + javascript("of_go").replace("tion", ""))
    put(here / "src/e.rs", javascript("of_rust").replace("function", "fn"))
    body = javascript("of_java").replace("function", "void")
    put(here / "src/f.java", f"class F {{\n{body}}}\n")
    put(here / "src/g.tsx", javascript("of_tsx"))
    put(here / "src/h.ts", "type A = 1;\n" + javascript("of_ts"))
    corpus = load("./src")

    assert ["of_python", "of_c", "of_cpp", "of_go", "of_rust", "F.of_java"] == (
        names_of(corpus.functions)[:6]
    )
    assert ["of_tsx", "of_ts"] == names_of(corpus.functions)[6:]
    assert () == corpus.skipped
    assert_verbatim(corpus.text, corpus.functions)


def test_a_folder_is_joined_with_a_comment_that_names_each_file(here):
    put(here / "src/b/two.js", javascript("two"))
    put(here / "src/a.py", python("none") + python("one").rstrip("\n"))
    put(here / "src/c.php", "<?php\n" + javascript("three"))
    put(here / "src/README.md", "# not source")
    corpus = load("./src")
    lines = corpus.text.split("\n")

    assert ["none", "one", "two", "three"] == names_of(corpus.functions)
    assert ["# a.py", "// b/two.js", "// c.php"] == [lines[at] for at in (0, 43, 66)]
    assert "src, files: 3" == corpus.origin
    assert_verbatim(corpus.text, corpus.functions)


def test_other_peoples_and_hidden_folders_are_skipped(here):
    skipped = ("node_modules", "__pycache__", ".venv", ".git", "a/node_modules/b")
    for folder in skipped:
        put(here / "src" / folder / "a.py", python("theirs"))
    put(here / "src/.hidden.py", python("hidden"))
    put(here / "src/a/mine.py", python("mine"))

    assert ["mine"] == names_of(load("./src").functions)


def test_loops_of_links_end_and_no_file_comes_twice(here):
    put(here / "elsewhere/b.py", python("linked"))
    put(here / "src/a.py", python("mine"))
    (here / "src/loop").symlink_to(here / "src")
    (here / "src/more").symlink_to(here / "elsewhere")
    (here / "src/same.py").symlink_to(here / "src/a.py")
    (here / "src/broken.py").symlink_to(here / "nowhere")

    assert ["mine", "linked"] == names_of(load("./src").functions)


def test_a_file_that_cannot_be_parsed_keeps_its_text_and_is_reported(here):
    put(here / "src/a.py", python("mine"))
    put(here / "src/b.py", "print 'old'\n" + python("old"))
    put(here / "src/c.py", b"\0\0")
    put(here / "src/d.py", "")
    corpus = load("./src")

    assert ["mine"] == names_of(corpus.functions)
    assert "def old():" in corpus.text
    assert ["c.py", "b.py"] == [file for file, _ in corpus.skipped]
    assert "line 1" in corpus.skipped[1][1]


def test_a_folder_without_source_says_so(here, golden):
    (here / "src").mkdir()
    with pytest.raises(BadInput) as caught:
        load("./src")
    assert golden == str(caught.value)

    put(here / "src/bad.py", b"\0")
    with pytest.raises(BadInput) as caught:
        load("./src")
    assert golden == str(caught.value)


def test_of_several_files_that_cannot_be_read_the_first_says_why(here):
    put(here / "src/a.py", b"\0")
    put(here / "src/b.py", "")
    with pytest.raises(BadInput) as caught:
        load("./src")

    assert ("a.py" in str(caught.value), "b.py" in str(caught.value)) == (True, False)


def test_a_folder_is_read_in_order_until_16_mb(here, monkeypatch, golden):
    for name in ("one", "two", "three"):
        put(here / f"src/{len(name)}{name}.py", python(name))
    put(here / "src/x.py", "x = 1\n")
    put(here / "src/0long.py", python("long", lines=80))
    size = 2 * len(python("one"))
    monkeypatch.setattr(reading, "MAX_BYTES", size)
    corpus = load("src")

    assert ["one", "two"] == names_of(corpus.functions)
    assert golden == corpus.skipped
    assert "src, files: 2" == corpus.origin
    assert "x = 1" not in corpus.text

    monkeypatch.setattr(reading, "MAX_BYTES", size - 1)
    assert ["one"] == names_of(load("src").functions)


def test_files_that_change_after_they_were_found_are_left_out(here, golden):
    put(here / "src/gone.py", python("gone"))
    put(here / "src/pipe.py", python("pipe"))
    put(here / "src/stays.py", python("stays"))
    found = list(reading.source_files_below(here / "src"))
    (here / "src/gone.py").unlink()
    (here / "src/pipe.py").unlink()
    os.mkfifo(here / "src/pipe.py")
    read = reading.read_and_join_files(found, root=here / "src")

    assert ["stays"] == names_of(read.functions)
    assert golden == read.left_out


@pytest.mark.parametrize(
    ("spare", "files"), [(-1, 2), (0, 3), (10**6, 4)], ids=["over", "at", "under"]
)
def test_files_behind_the_one_that_exceeds_a_limit_are_not_read(here, spare, files):
    """That one is in the text, which is then cut after a function."""
    for name in "abc":
        put(here / f"src/{name}.py", python(name))
    put(here / "src/d.py", b"\0" if files < 4 else python("d"))
    paths = list(reading.source_files_below(here / "src"))
    limit = 2 * len(python("a")) + spare
    read = reading.read_and_join_files(paths, root=here / "src", limit_bytes=limit)

    assert (files, ()) == (read.files, read.left_out)


def test_the_comments_between_files_and_lines_without_an_end_count_as_lines(here):
    put(here / "src/a.py", python("a").rstrip("\n"))
    put(here / "src/b.py", python("b"))
    read = reading.read_and_join_files(
        reading.source_files_below(here / "src"), root=here / "src"
    )
    lines = read.text.split("\n")

    assert ["def a():", "def b():"] == [lines[f.line - 1] for f in read.functions]
    assert read.text.endswith(python("b"))


def test_the_first_files_that_are_left_out_are_named_and_the_others_counted(
    here, golden
):
    put(here / "src/good.py", python("good"))
    for at in range(23):
        put(here / f"src/bad{at:02}.py", b"\0")
    lines = load("src").skipped_file_lines()

    assert golden == lines[0]
    assert (21, "and 3 more files") == (len(lines), lines[-1])
