"""Damaged, huge and odd corpora: read, or refused with a reason."""

import errno
import os
import signal
import tempfile
from pathlib import Path

import pytest
from source_files import ODD_FILES, names_of, put, python

from codeneedle.corpora.registry import load, named_corpora
from codeneedle.errors import CodeneedleError

DEEP = 100_000
"""Levels of nesting; parsers that recurse end at a thousand."""


@pytest.fixture(autouse=True)
def bounded():
    """A test that waits for a pipe or a device fails after half an hour."""

    def fail(*_):
        pytest.fail("waited in vain")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(1800)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A folder of sources with one good file, in an empty working folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "good.py").write_text(python("good"), encoding="utf-8")
    return tmp_path / "tree"


@pytest.fixture
def told(ledger):
    """Loads a corpus, notes that in the ledger, and returns what a user reads."""

    def tell(fault, path):
        saw = seen(path)
        ledger.note(fault, saw)
        return saw

    return tell


def seen(path):
    """What a user reads about a corpus: an error, the first note, or nothing."""
    try:
        corpus = load(str(path))
    except CodeneedleError as error:
        return f"{error} {error.hint}"
    corpus.text.encode()
    corpus.origin.encode()
    assert corpus.origin.isprintable()
    assert all(line.isprintable() for note in corpus.skipped for line in note)
    return ": ".join(corpus.skipped[0]) if corpus.skipped else ""


# --- what is in a file


NESTED = {
    "brackets.py": "x = " + "(" * DEEP + ")" * DEEP,
    "lambdas.py": "x = " + "lambda: " * DEEP + "1",
    "sums.py": "x = 1" + "+1" * DEEP,
    "blocks.py": "".join(" " * at + "if a:\n" for at in range(1_000)),
    "brackets.js": "x = " + "(" * DEEP + "1" + ")" * DEEP + ";",
    "arrows.js": "x = " + "() => " * DEEP + "1;",
    "objects.js": "x = " + "{a: " * DEEP + "1" + "}" * DEEP + ";",
    "templates.js": "`${" * DEEP + "}`" * DEEP,
    "classes.js": "x = " + "class { a = " * DEEP + "1" + "}" * DEEP + ";",
    "brackets.php": "<?php $x = " + "(" * DEEP + "1" + ")" * DEEP + ";",
    "functions.php": "<?php\n" + "function f() {\n" * DEEP + "}\n" * DEEP,
    "arrays.php": "<?php $x = " + "[" * DEEP + "]" * DEEP + ";",
}


@pytest.mark.parametrize("name", sorted(NESTED))
def test_no_depth_of_nesting_ends_a_parser(tree, told, name):
    # Minified code, by the mean length of its lines, is not parsed.
    (tree / name).write_text(NESTED[name] + "\n" * DEEP, encoding="utf-8")
    saw = told(f"nesting 100,000 deep in {Path(name).suffix}", tree)

    assert saw == "" or saw.startswith(f"{name}: not valid ")


# --- how much there is


def test_half_a_gigabyte_is_read_up_to_its_limit(tree, told):
    os.truncate(put(tree.parent / "big.py", b"#"), 500_000_000)
    assert "big.py: larger than 16 MB" in told("a file of 500 MB", "./big.py")

    (tree / "a_line.py").write_bytes(b"x = '" + b"a" * 17_000_000 + b"'\n")
    for at in range(40):
        data = (b"# " + b"a" * 97 + b"\n") * 125_000 if at < 2 else b""
        os.truncate(put(tree / f"z{at:02}.py", data), 12_500_000)
    assert "a_line.py: larger than 16 MB" == told("a tree of 500 MB", tree)
    noted = [file for file, reason in load("tree").skipped if "first 16 MB" in reason]
    assert [f"z{at:02}.py" for at in range(1, 40)] == noted


def test_a_corpus_file_of_gigabytes_is_refused(tree, told):
    os.truncate(put(tree.parent / "corpora/huge.toml", b"#"), 3_000_000_000)

    assert "larger than 1 MB" in told("a corpus file of 3 GB", "huge")
    assert "huge" in [corpus.name for corpus in named_corpora()]


def test_lines_and_signatures_of_megabytes_are_read(tree, told, times):
    """As minifiers and generators make them."""
    count = times(1_000_000, quick=20_000)
    names = ", ".join(f"a{at}" for at in range(count // 10))
    put(tree / "line.js", "f(a);" * count)
    lines = b"x = 1\n" * (count // 50)  # without them it is minified, too
    signature = python("f").replace("()", f"({names})")
    put(tree / "signature.py", signature.encode() + lines)

    assert told("megabytes in one line", tree).startswith("line.js: minified: ")
    assert ["good", "f"] == names_of(load("tree").functions)


def test_a_hundred_thousand_files_are_read_in_order(tree, told, times):
    count = times(100_000, quick=2_000)
    for at in range(count):
        folder = tree / f"d{at % 100}"
        folder.mkdir(exist_ok=True)
        (folder / f"f{at}.py").write_bytes(b"x = 1\n")

    assert "" == told("a hundred thousand files", tree)
    assert f"files: {count + 1}" in load("tree").origin


# --- what there is instead of files


@pytest.mark.parametrize("kind", ODD_FILES)
def test_what_is_no_file_is_never_opened(tree, told, kind):
    ODD_FILES[kind](tree / "odd.py")
    put(tree.parent / "corpora/named.toml", b'files = ["../tree/odd.py", "../tree"]')

    assert "" == told(f"{kind} in a tree", tree)
    assert "odd.py" in told(f"{kind} as a corpus", tree / "odd.py")
    assert "odd.py" in told(f"{kind} in a corpus file", "named")


@pytest.mark.parametrize("name", ["named.toml", "named.py"])
def test_a_pipe_among_named_corpora_is_no_corpus(tree, told, name):
    put(tree.parent / "corpora/other.toml", b"[generate]\n")
    os.mkfifo(tree.parent / "corpora" / name)

    saw = told("a pipe by the name of a corpus", "named")

    assert saw.startswith("unknown corpus 'named'")
    assert "named" not in [corpus.name for corpus in named_corpora()]


def test_folders_a_thousand_deep_end_no_search(tree, told, times):
    deep = times(3_000, quick=1_200)
    at = os.open(tree, os.O_RDONLY)
    for _ in range(deep):
        os.mkdir("d", dir_fd=at)
        at, above = os.open("d", os.O_RDONLY, dir_fd=at), at
        os.close(above)
    try:
        saw = told("folders a thousand deep", tree)
        assert saw == "" or saw.endswith(os.strerror(errno.ENAMETOOLONG))
    finally:
        # By hand, from below: what removes trees for tests would recurse.
        for _ in range(deep):
            at, below = os.open("..", os.O_RDONLY, dir_fd=at), at
            os.close(below)
            os.rmdir("d", dir_fd=at)
        os.close(at)


@pytest.mark.parametrize("mode", [0o000, 0o400])
def test_a_folder_that_is_closed_to_us_is_noted(told, mode):
    # Not below the folder of the tests, which other users may not enter.
    with tempfile.TemporaryDirectory() as name:
        tree = Path(name, "tree")
        put(tree / "good.py", python("good").encode())
        put(tree / "shut/bad.py", python("bad").encode())
        put(tree / "bad.py", python("bad").encode()).chmod(0)
        Path(name).chmod(0o755)
        (tree / "shut").chmod(mode)
        was_root = os.geteuid() == 0
        try:
            if was_root:  # permissions do not apply to root
                os.seteuid(65534)
            saw = told("what is closed to us", tree)
            corpus = load(str(tree))
        finally:
            if was_root:
                os.seteuid(0)
            (tree / "shut").chmod(0o700)

    assert f"bad.py: cannot be read: {os.strerror(errno.EACCES)}" == saw
    assert 2 == len(corpus.skipped)
    assert corpus.skipped[1][0].startswith("shut")


@pytest.mark.parametrize(
    "name", [b"a\nb.py", b"\x1b[31mred.py", b"\xff\xfe.py", b"\xe2\x80\xae.py", b"#.py"]
)
def test_names_are_printed_and_stored_safely(tree, told, name):
    path = Path(tree, os.fsdecode(name))
    path.write_text(python("f"), encoding="utf-8")

    assert "" == told("a name that is no text", tree)
    assert all(map(str.isprintable, load("tree").text.split("\n")))
    assert "" == told("a name that is no text", path)
