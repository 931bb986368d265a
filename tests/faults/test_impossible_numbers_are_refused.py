"""Stored numbers that cannot be: each field of each layout, changed and sealed."""

import contextlib
import io
import json
import math
import random
import re
import shutil
import sys
import tomllib
from pathlib import Path

import pytest
import tomli_w
from outcomes import outcome

from codeneedle.cli.main import main as run_codeneedle
from codeneedle.errors import RequestError
from codeneedle.probes import PROBES
from codeneedle.records.record import BadRecord
from codeneedle.records.store import SWEEP, Store, append_checksum, decode_record

GOLDEN = Path(__file__).parents[1] / "golden" / "runs"
FILES = sorted(GOLDEN.rglob("f16-f16.*.json"))


def places(value, at=()):
    """Every place in a JSON value, of lists the first element."""
    yield at, value
    parts = value.items() if isinstance(value, dict) else ()
    parts = enumerate(value[:1]) if isinstance(value, list) else parts
    for key, part in parts:
        yield from places(part, (*at, key))


def impossible(value):
    """What stands in the place of *value*: of its type, and seldom right."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, float):
        return [-50.0, 5.0, 1e308, -1e308]
    if isinstance(value, int):
        return [-50, 0, 10**12]
    if isinstance(value, list):
        return [[], value[:-1], [*value, *value[:1]]]
    return ["", "aaa"] if isinstance(value, str) else []


def with_new(raw, at, new):
    """*raw* with *new* at one place."""
    copy = json.loads(json.dumps(raw))
    inner = copy
    for key in at[:-1]:
        inner = inner[key]
    inner[at[-1]] = new
    return copy


def changed(raw, at, new):
    """*raw* with *new* at one place, sealed."""
    return append_checksum(json.dumps(with_new(raw, at, new)).encode())


def opened(path):
    """A stored record as JSON, without its seal."""
    raw = json.loads(path.read_bytes())
    del raw["crc32"]
    return raw


def numbers(data, setup):
    """All that reports read from a record."""
    record = decode_record(data, file="x.json")
    probe = PROBES.get(record.probe)
    if probe is None:
        return []
    found = (metric.values(record, setup) for metric in probe.metrics_of(setup))
    return [value for values in found for value in values]


@pytest.mark.parametrize(
    "path", FILES, ids=lambda path: f"{path.parts[-5]}-{path.name}"
)
def test_a_changed_number_is_refused_with_a_hint_or_gives_finite_ones(path):
    raw, setup = opened(path), Store(path.parents[1]).read_setup()
    for at, value in places(raw):
        for new in impossible(value) if at else ():
            found = outcome(numbers, changed(raw, at, new), setup)
            is_refused = isinstance(found, RequestError)
            assert is_refused or all(map(math.isfinite, found)), (at, new)


FORCED = ("observation", "answers", "forced uat6", "scores")


@pytest.mark.parametrize(
    ("name", "at", "new"),
    [
        (
            "retrieval.json",
            ("observation", "answers", "single-512-0", "answers", 0, "items"),
            [],
        ),
        ("recall.json", (*FORCED, "leads"), []),
        ("recall.json", (*FORCED, "ends"), [1]),
        ("recall.json", (*FORCED, "logprobs", 0), 5.0),
        (
            "recall.json",
            (*FORCED, "logprobs", 0),
            -1e308,
        ),
        ("recall.json", ("effective", "kv", 0, "k_mib"), -50.0),
        (
            "divergence.json",
            ("observation", "answers", "256x3", "statistics", "kld", "value"),
            -3.0,
        ),
    ],
)
def test_what_cannot_be_is_a_bad_record(name, at, new):
    path = next(path for path in FILES if path.name.endswith(name))
    raw, setup = opened(path), Store(path.parents[1]).read_setup()

    with pytest.raises(BadRecord):
        numbers(changed(raw, at, new), setup)


RUN = Path("golden/needle-nano")
REPORTS = (
    *("grid golden", "grid golden --csv", "grid golden --json", "table golden"),
    *("table golden --json", "table golden --form llama.cpp", "memory golden"),
    *("verdict golden", "panels golden", "compare golden golden", "page golden"),
    *("receipt golden", "show golden f16/f16", "show golden kv4/kv4"),
    "show golden q4_0/q4_0",
)
NO_NUMBER = re.compile(
    r"(?<![\w/])(?:nan|[+-]?inf|NaN|-?Infinity|1e\+?308)(?!\w)|\d{60}"
)


def ended(words):
    """The exit code of a command, and what it printed; of a page what it holds."""
    raw, said, former = io.BytesIO(), io.StringIO(), sys.argv
    sys.argv = ["codeneedle", *words]
    out = io.TextIOWrapper(raw, encoding="utf-8", write_through=True)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(said):
            run_codeneedle()
    except SystemExit as end:
        text = raw.getvalue().decode()
        if text.endswith(".html\n"):
            page = Path(text.strip()).read_text(encoding="utf-8")
            text = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
        return end.code, text, said.getvalue()
    finally:
        sys.argv = former


def wrong_reports(commands):
    """The commands that end in another way than by numbers, or a message and a hint."""
    for words in commands:
        code, text, said = ended(words)
        is_told = "hint: " in said or words[0] == "verdict"
        if NO_NUMBER.search(text) or not (code == 0 or (code in {1, 2, 3} and is_told)):
            yield words, code, said


@pytest.fixture
def swept(tmp_path, monkeypatch):
    """Copies a golden run into the working folder; its run folder."""

    def copied(name):
        shutil.copytree(GOLDEN / name / RUN, tmp_path / name / RUN)
        monkeypatch.chdir(tmp_path / name)
        return RUN

    return copied


@pytest.mark.parametrize(
    ("name", "at"),
    [
        ("divergence", ("probes", "throughput", "depths")),
        ("retrieval", ("probes", "retrieval", "tasks")),
        ("retrieval", ("probes", "retrieval", "lengths")),
        ("retrieval", ("probes", "retrieval", "depths")),
        ("retrieval", ("calibrated", "retrieval", "dials")),
    ],
)
def test_a_setup_that_asks_for_nothing_is_told(name, at, swept):
    path = swept(name) / ("settled.json" if at[0] == "calibrated" else "setup.json")
    path.write_bytes(changed(opened(path), at, []))
    commands = [[*words.split(), "--out", "."] for words in REPORTS[:2]]

    assert [] == [*wrong_reports(commands)]
    (code, text, said) = ended(commands[0])
    assert (2, "", True) == (code, text, "setup.json cannot be read" in said)


@pytest.mark.parametrize("name", ["recall", "divergence", "retrieval", "mlx"])
def test_reports_of_a_changed_file_are_numbers_or_a_message(name, swept, times):
    folder = swept(name)
    files = [folder / "setup.json", *sorted(folder.glob("cells/*.json"))]
    changes = [
        (path, at, new)
        for path in files
        for at, value in places(opened(path))
        for new in (impossible(value) if at else ())
    ]
    commands = [[*words.split(), "--out", "."] for words in REPORTS]
    chosen = random.Random(name).sample(changes, times(40, quick=2))  # noqa: S311
    for path, at, new in chosen:
        whole = path.read_bytes()
        path.write_bytes(changed(opened(path), at, new))
        assert [] == [*wrong_reports(commands)], (path.name, at, new)
        path.write_bytes(whole)


SWEPT = """
models = ["needle-nano"]
types = ["f16", "q4_0"]
contexts = [2048]
corpus = "random-bodies-mini"
probes = ["recall", "divergence", "throughput", "retrieval"]
server_args = ["-b", "64"]
[recall]
way = ["write", "force"]
functions = 12
[divergence]
contexts = [256]
chunks = [3]
[throughput]
depths = [0]
[retrieval]
tasks = ["single", "multikey"]
lengths = [512, "1K"]
depths = [0.2, 0.8]
dial = ["multikey=1"]
"""


@pytest.mark.parametrize("name", ["sweep.toml", "setup.json"])
def test_a_changed_run_folder_is_planned_or_refused_with_a_hint(
    name, swept, times, nano
):
    folder = swept("retrieval" if name == SWEEP else "divergence")
    raw = tomllib.loads(SWEPT) if name == SWEEP else opened(folder / name)
    (folder / SWEEP).write_text(SWEPT)
    changes = [
        with_new(raw, at, new)
        for at, value in places(raw)
        for new in (impossible(value) if at else ())
    ]
    chosen = random.Random(name).sample(changes, times(40, quick=4))  # noqa: S311
    for each in chosen:
        text = tomli_w.dumps(each).encode() if name == SWEEP else None
        (folder / name).write_bytes(text or append_checksum(json.dumps(each).encode()))
        assert [] == [*wrong_reports([["plan", str(folder)]])], each


@pytest.mark.parametrize(
    ("run", "at", "new"),
    [
        ("retrieval", ("probes", "retrieval", "depths", 0), 1e308),
        ("retrieval", ("probes", "retrieval", "lengths", 0), 10**12),
        ("retrieval", ("probes", "retrieval", "tasks"), ["aaa"]),
        ("divergence", ("probes", "divergence", "contexts"), []),
        ("divergence", ("probes", "throughput", "depths", 0), -50),
        ("recall", ("probes", "recall", "functions"), 10**12),
        ("recall", ("context",), 10**12),
    ],
)
def test_a_setup_holds_what_options_take(run, at, new, swept, golden):
    folder = swept(run)
    path = folder / "setup.json"
    path.write_bytes(changed(opened(path), at, new))

    code, text, said = ended(["table", "golden", "--out", "."])

    assert (2, "") == (code, text)
    assert golden == said
