"""Properties of the files that users write: read as meant, or refused with a hint."""

import difflib
import json
import tomllib
from dataclasses import fields

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from unhurried import outcome

from codeneedle.corpora.corpus import load
from codeneedle.corpora.random_bodies import Knobs
from codeneedle.corpora.registry import CorpusFile, read_corpus_file
from codeneedle.probes import PROBES
from codeneedle.sweep.request import (
    LAYOUT,
    SweepFile,
    asked_for,
    read_sweep_file,
)

in_one_folder = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
"""Each example writes the same file anew, so sharing a folder is no trouble."""

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
KEYS = {
    SweepFile: list(LAYOUT.__struct_fields__),
    CorpusFile: [field.name for field in fields(CorpusFile)],
}
SCALARS = (
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3)
    ),
    max_leaves=6,
)


def tables(layout):
    keys = st.sampled_from(KEYS[layout]) | TEXT
    return st.dictionaries(keys, VALUES, max_size=5)


def toml(value):
    """*value* as TOML, tables inline."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=True).replace("\x7f", "\\u007f")
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    if isinstance(value, dict):
        pairs = (f"{toml(key)} = {toml(inner)}" for key, inner in value.items())
        return f"{{{', '.join(pairs)}}}"
    return repr(value)


def written(table):
    """A TOML file that says *table*."""
    text = "".join(f"{toml(key)} = {toml(value)}\n" for key, value in table.items())
    # JSON writes what is beyond the basic plane in two halves, which TOML forbids.
    text = text.encode("utf-16", "surrogatepass").decode("utf-16")
    try:
        assume(table == tomllib.loads(text))
    except tomllib.TOMLDecodeError:
        assume(condition=False)
    return text


@in_one_folder
@given(table=tables(SweepFile))
def test_any_table_is_a_sweep_file_or_an_error_with_a_hint(tmp_path, table):
    """
    Nothing ends in a traceback, and no unknown key is ignored.
    """
    (tmp_path / "x.toml").write_text(written(table), encoding="utf-8")
    read = outcome(read_sweep_file, "x", folder=tmp_path)

    if isinstance(read, SweepFile):
        assert table.keys() <= set(KEYS[SweepFile])
        outcome(asked_for, read)


@in_one_folder
@given(table=tables(CorpusFile))
def test_any_table_is_a_corpus_file_or_an_error_with_a_hint(tmp_path, table):
    """
    Likewise.
    """
    path = tmp_path / "x.toml"
    path.write_text(written(table), encoding="utf-8")
    read = outcome(read_corpus_file, path)

    if isinstance(read, CorpusFile):
        assert table.keys() <= set(KEYS[CorpusFile])


@in_one_folder
@given(data=st.binary(max_size=40) | st.text(max_size=40).map(str.encode))
@example(data=b"x = " + b"9" * 5000)
@example(data=b"x = " + b"[" * 5000)
@example(data=b"x = 9999-99-99")
@example(data=b"\xff")
def test_any_bytes_are_a_file_or_an_error_with_a_hint(tmp_path, data):
    """
    Files that are no TOML, no UTF-8, or nested without end are refused.
    """
    path = tmp_path / "x.toml"
    path.write_bytes(data)

    outcome(read_corpus_file, path)
    outcome(read_sweep_file, "x", folder=tmp_path)


@st.composite
def typos(draw, known):
    """A known key with one character doubled, dropped or exchanged."""
    key = draw(st.sampled_from(known))
    at = draw(st.integers(0, len(key) - 1))
    other = draw(st.sampled_from("abcxyz"))
    middle = draw(st.sampled_from([key[at] * 2, "", other]))
    typo = key[:at] + middle + key[at + 1 :]
    assume(typo and typo not in known)
    return typo


@pytest.mark.parametrize(
    ("head", "known"),
    [
        ("", KEYS[SweepFile]),
        ("[divergence]\n", PROBES["divergence"].settings.__struct_fields__),
        ("[throughput]\n", PROBES["throughput"].settings.__struct_fields__),
    ],
    ids=["top", "divergence", "throughput"],
)
@in_one_folder
@given(data=st.data())
def test_a_typo_in_a_sweep_file_is_answered_with_the_nearest_key(
    tmp_path, head, known, data
):
    """
    It never quietly runs a default, and says which key was meant.
    """
    typo = data.draw(typos(known))
    (tmp_path / "x.toml").write_text(f"{head}{typo} = 1\n", encoding="utf-8")
    error = outcome(read_sweep_file, "x", folder=tmp_path)

    assert f"'{typo}'" in str(error)
    assert _offered(error) == _nearest(typo, known)


@pytest.mark.parametrize(
    ("head", "layout"),
    [("", CorpusFile), ("[generate]\n", Knobs)],
    ids=["top", "generate"],
)
@in_one_folder
@given(data=st.data())
def test_a_typo_in_a_corpus_file_is_answered_with_the_nearest_key(
    tmp_path, head, layout, data
):
    """
    Likewise.
    """
    known = [field.name for field in fields(layout)]
    typo = data.draw(typos(known))
    path = tmp_path / "x.toml"
    path.write_text(f"{head}{typo} = 1\n", encoding="utf-8")
    error = outcome(read_corpus_file, path)

    assert f"'{typo}'" in str(error)
    assert _offered(error) == _nearest(typo, known)


def _offered(error):
    return error.hint.partition("'")[2].partition("'")[0] or error.hint


def _nearest(typo, known):
    close = difflib.get_close_matches(typo, known, n=1)
    return close[0] if close else f"Known: {', '.join(known)}."


@in_one_folder
@given(name=TEXT, key=st.sampled_from(["files", "glob"]))
@example(name="~nobody-of-this-name/a.py", key="files")
@example(name="a" * 300, key="files")
@example(name="a" * 300, key="glob")
@example(name="a" * 300 + "/*.py", key="glob")
@example(name="[b-a].py", key="glob")
@example(name="**/[", key="glob")
def test_whatever_a_corpus_file_names_is_found_or_refused(tmp_path, name, key):
    """
    Unknown homes, names too long, null characters and broken patterns are
    refused like those of files that are not there.
    """
    assume(".." not in name and not name.startswith(("/", "~/")) and name != "~")
    path = tmp_path / "x.toml"
    path.write_text(written({key: [name]}), encoding="utf-8")

    outcome(load, str(path))


@in_one_folder
@given(path=TEXT)
@example(path="~nobody-of-this-name/a.gguf")
def test_the_paths_of_a_sweep_file_are_read_like_a_shell_reads_them(tmp_path, path):
    """
    A tilde is a home where there is one, and stays where there is none.
    """
    assume(path)
    table = {"models": [path], "divergence": {"text": path}}
    (tmp_path / "x.toml").write_text(written(table), encoding="utf-8")
    asked = asked_for(read_sweep_file("x", folder=tmp_path))

    assert asked["models"] == (asked["settings"]["divergence"].text,)
