"""The whole price of a pair: all probes, axes and retries, on a real llama-server."""

import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from programs import script

pytestmark = pytest.mark.real

CORPUS = """\
[generate]
functions = 5
value_length = 6
name_length = 5
seed = 7
"""
"""Five functions, 2,265 bytes: two chunks of the longer context."""

SWEEP = """\
corpus = "tiny"
k_types = ["q8_0", "q4_0"]
v_types = ["q8_0"]
probes = ["recall", "divergence", "throughput"]
contexts = [4096]
[divergence]
contexts = [512, 1024]
chunks = 2
[throughput]
depths = [0, 256]
repetitions = 1
"""
RUN = Path("sweeps/tiny/needle-nano")
PAIRS = ("q8_0-q8_0", "q4_0-q8_0")
PROBES = ("recall", "divergence", "throughput")


class Folder:
    """A working folder with a corpus called tiny and a sweep called small."""

    def __init__(self, path):
        self.path = path
        for name, text in (("corpora/tiny", CORPUS), ("sweeps/small", SWEEP)):
            file = path / f"{name}.toml"
            file.parent.mkdir()
            file.write_text(text, encoding="utf-8")

    def run(self, *arguments):
        """The command, as it runs here without a terminal."""
        return subprocess.run(
            [sys.executable, "-m", "codeneedle", *arguments],
            cwd=self.path,
            env=os.environ | {"COLUMNS": "100", "NO_COLOR": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            check=False,
        )

    def record(self, pair, probe, *, run=RUN):
        """What is stored of a cell."""
        file = self.path / run / "cells" / f"{pair}.{probe}.json"
        return json.loads(file.read_text(encoding="utf-8"))

    def setup(self, *, run=RUN):
        """What is stored of a run."""
        file = self.path / run / "setup.json"
        return json.loads(file.read_text(encoding="utf-8"))


@pytest.fixture
def folder(tmp_path):
    """A folder in which nothing has run."""
    return Folder(tmp_path)


@pytest.fixture(scope="module")
def priced(tmp_path_factory, llama_server, nano):
    """A folder in which the sweep has run, and what it told."""
    made = Folder(tmp_path_factory.mktemp("priced"))
    return made, made.run("sweep", "small")


def test_one_sweep_measures_all_probes_of_each_pair(priced):
    """
    By name of a sweep file; every cell has a finished record of each probe.
    """
    folder, told = priced
    records = [folder.record(pair, probe) for pair in PAIRS for probe in PROBES]

    assert 0 == told.returncode, told.stderr
    assert ["finished"] * 6 == [record["status"] for record in records], records
    assert all(f"{probe}: 2 of 2 cells finished" in told.stderr for probe in PROBES)
    settings = folder.setup()["probes"]
    assert set(PROBES) == set(settings)
    assert [512, 1024] == settings["divergence"]["contexts"]
    assert [0, 256] == settings["throughput"]["depths"]


def test_a_second_start_does_nothing(priced):
    """
    No probe runs again, and nothing is written.
    """
    folder, _ = priced
    files = [folder.path / RUN / "setup.json", *(folder.path / RUN).glob("cells/*")]
    before = [file.read_bytes() for file in files]

    again = folder.run("sweep", "small")

    assert 0 == again.returncode, again.stderr
    assert 3 == again.stderr.count("nothing to do")
    assert before == [file.read_bytes() for file in files]


def test_the_reference_is_the_most_precise_pair_and_its_own_floor(priced):
    """
    It is compared with itself; a coarser K is further off at every context.
    """
    folder, _ = priced
    floor, coarse = (folder.record(pair, "divergence")["observation"] for pair in PAIRS)

    assert "q8_0/q8_0" == floor["reference"] == coarse["reference"]
    for ours, theirs in zip(floor["contexts"], coarse["contexts"], strict=True):
        assert ours["context"] == theirs["context"]
        kld = ours["statistics"]["kld"]["value"], theirs["statistics"]["kld"]["value"]
        assert kld == tuple(sorted(kld))


@pytest.mark.parametrize("metric", ["kld@512", "pp@256", "kv", "matched"])
def test_any_metric_of_any_probe_has_its_grid(priced, metric):
    """
    Those that contexts and depths make, too; no cell is a gap.
    """
    grid = priced[0].run("grid", "tiny", "--metric", metric)
    export = priced[0].run("grid", "tiny", "--metric", metric, "--csv")
    rows = list(csv.DictReader(io.StringIO(export.stdout)))

    assert 0 == grid.returncode == export.returncode, export.stderr
    assert "K \\ V" in grid.stdout
    assert 2 == len(rows)
    assert all(float(row[metric]) >= 0 for row in rows)


def test_the_table_has_a_row_per_pair_with_all_probes(priced):
    """
    As text, CSV, JSON and Markdown.
    """
    folder, _ = priced
    text = folder.run("table", "tiny").stdout
    as_csv = list(
        csv.DictReader(io.StringIO(folder.run("table", "tiny", "--csv").stdout))
    )
    as_json = json.loads(folder.run("table", "tiny", "--json").stdout)
    as_markdown = folder.run("table", "tiny", "--markdown").stdout

    for words in (text, as_markdown):
        assert all(name in words for name in ("matched", "kld", "top1", "tg", "kv"))
    assert "q4_0/q8_0" in text
    assert "| q4\\_0/q8\\_0 |" in as_markdown
    assert [("q8_0", "1"), ("q4_0", "0")] == [(r["k"], r["reference"]) for r in as_csv]
    assert {"kld@1024", "tg@256", "kv"} <= set(as_csv[0])
    assert as_json


def test_memory_is_told_beside_its_prediction(priced):
    """
    A row per pair, no size off.
    """
    told = priced[0].run("memory", "tiny")

    assert 0 == told.returncode, told.stderr
    assert all(pair.replace("-", "/") in told.stdout for pair in PAIRS)
    assert "!" not in told.stdout


def test_rotation_is_an_axis_of_its_own(folder):
    """
    Each page has its folder and its setup, and one prefix shows both.
    """
    told = folder.run(
        *("sweep", "--corpus", "tiny", "--types", "q8_0", "--context", "4096"),
        *("--rotation", "on,off"),
    )
    shown = folder.run("grid", "tiny/needle-nano+rotation")
    on, off = (Path(f"{RUN}+rotation-{word}") for word in ("on", "off"))

    assert 0 == told.returncode, told.stderr
    assert (True, False) == tuple(
        folder.setup(run=run)["rotation"] for run in (on, off)
    )
    for run, size in ((on, 64), (off, 0)):
        effective = folder.record("q8_0-q8_0", "recall", run=run)["effective"]
        assert (size, size) == (effective["rotation_k"], effective["rotation_v"])
    assert 0 == shown.returncode
    assert all(run.name in shown.stdout for run in (on, off))


def test_a_failed_cell_is_played_again_where_it_is_asked_for(folder, llama_server):
    """
    A failed cell runs again only with --retry-failed; then it may finish.
    """
    broken = folder.path / "broken"
    broken.touch()
    server = script(
        folder.path / "llama-server",
        f'case "$*" in *"--cache-type-k q4_0"*) [ ! -e "{broken}" ] || exit 7;; esac\n'
        f'exec "{llama_server}" "$@"',
    )
    sweep = ("sweep", "--corpus", "tiny", "--context", "4096", "--k-types", "q8_0,q4_0")
    command = (*sweep, "--v-types", "q8_0", "--llama-server", str(server))

    first = folder.run(*command)
    failed = folder.record("q4_0-q8_0", "recall")["status"]
    broken.unlink()
    again = folder.run(*command)
    retried = folder.run(*command, "--retry-failed")

    assert (1, 1, 0) == (first.returncode, again.returncode, retried.returncode)
    assert "crashed" == failed
    assert "nothing to do" in again.stderr
    assert "--retry-failed" in again.stderr
    assert "finished" == folder.record("q4_0-q8_0", "recall")["status"]
    assert "recall: 2 of 2 cells finished" in retried.stderr
