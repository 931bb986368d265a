"""The Snakefile, by Snakemake's local executor."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from injections import put_corpus
from programs import script

pytestmark = pytest.mark.slow

SNAKEFILE = Path(__file__).parents[1] / "scripts" / "Snakefile"

WITHOUT_NUMBERS = """\
[ "$1" = merge ] && for out; do :; done && mkdir -p "$out/$RUN" && shift
[ -n "$out" ] && echo "$@" > "$out/$RUN/setup.json" && exit
for word; do
  case $last in --pairs) pair=${word##*,} ;; --out) out=$word ;; esac
  last=$word
done
mkdir -p "$out/$RUN/cells"
name=$(echo "$pair" | tr / -)
[ "$pair" = "$GONE" ] || printf '%s\\n' "$@" > "$out/$RUN/cells/$name.recall.json"
[ "${pair#*/}" = q8_0 ]
"""
"""
A codeneedle whose cells with V q4_0 have no numbers, that of GONE no record. Records
and setups hold its arguments.
"""


def run_snakemake(folder, *config, first="", gone="", run="a/b"):
    """How Snakemake ended in *folder*, with programs of the folder *first*."""
    # `codeneedle` of this environment, and no other.
    path = os.pathsep.join(
        [first, str(Path(sys.executable).parent), os.environ["PATH"]]
    )
    ours = Path(sys.prefix, "snakemake", "bin", "snakemake")
    snakemake = shutil.which(ours) or shutil.which("snakemake")
    if not snakemake:
        pytest.skip("no snakemake: 'make test' installs it, for itself alone")
    argv = [snakemake, "-s", str(SNAKEFILE), "--cores", "1", "--config"]
    return subprocess.run(
        [*argv, "types=q8_0,q4_0", *config],
        cwd=folder,
        env=os.environ | {"PATH": path, "GONE": gone, "RUN": run},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )


def test_a_cell_without_numbers_is_done_if_its_record_says_why(tmp_path):
    """Snakemake would delete the record of a job that failed."""
    first = str(script(tmp_path / "bin" / "codeneedle", WITHOUT_NUMBERS).parent)
    config = ("run=a/b", "threads=1")

    lost = run_snakemake(tmp_path, *config, first=first, gone="q4_0/q4_0")
    done = run_snakemake(tmp_path, *config, first=first)

    assert 1 == lost.returncode
    assert 0 == done.returncode, done.stderr
    (merged,) = (tmp_path / "sweeps" / "a" / "b").glob("setup.json")
    pairs = ("q8_0-q8_0", "q8_0-q4_0", "q4_0-q8_0", "q4_0-q4_0")
    folders = " ".join(f"sweeps/{pair}" for pair in pairs)
    assert f"{folders} --out sweeps\n" == merged.read_text()
    asked = []
    for pair in pairs:
        (record,) = (tmp_path / "sweeps" / pair / "a" / "b" / "cells").glob("*.json")
        words = record.read_text().splitlines()
        assert ["--", "-t", "1"] == words[-3:]
        asked.append(words[words.index("--pairs") + 1])
    assert ["q8_0/q8_0", *(f"q8_0/q8_0,{p.replace('-', '/')}" for p in pairs[1:])] == (
        asked
    )


def test_what_a_shell_would_act_on_reaches_codeneedle_as_it_is(tmp_path):
    first = str(script(tmp_path / "bin" / "codeneedle", WITHOUT_NUMBERS).parent)
    config = ("types=q8_0,$(touch x)", "out=my runs;touch y", "run=a b/c")
    config += ("sweep=--corpus a;touch z",)

    done = run_snakemake(tmp_path, *config, first=first, run="a b/c")

    assert 0 == done.returncode, done.stderr
    files = list(tmp_path.glob("my runs;touch y/*/a b/c/cells/*.json"))
    assert 4 == len(files)
    assert "a;touch" in files[0].read_text().splitlines()
    assert not [name for name in "xyz" if (tmp_path / name).exists()]


@pytest.mark.real
def test_each_cell_is_a_job_and_all_are_merged_into_a_run_folder(
    llama_server, nano, tmp_path
):
    put_corpus(tmp_path, functions=1)

    def run() -> str:
        done = run_snakemake(tmp_path, "run=tiny/needle-nano", "sweep=--corpus tiny")
        assert 0 == done.returncode, done.stderr
        return done.stderr

    said = run()

    assert "5 of 5 steps" in said
    cells = tmp_path / "sweeps" / "tiny" / "needle-nano" / "cells"
    assert 4 == len(list(cells.glob("*.json")))
    assert "Nothing to be" in run()
