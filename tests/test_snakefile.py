"""The Snakefile, by Snakemake's local executor."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from injections import put_corpus

SNAKEFILE = Path(__file__).parents[1] / "scripts" / "Snakefile"


@pytest.mark.real
def test_each_cell_is_a_job_and_all_share_a_run_folder(llama_server, nano, tmp_path):
    """
    The most precise pair comes first; a second call finds nothing to do.
    """
    # `codeneedle` of this environment, and no other.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    snakemake = shutil.which("snakemake", path=path)
    if not snakemake:
        pytest.skip("no snakemake, which brings 40 packages: pip install -e .[cluster]")
    put_corpus(tmp_path, functions=1)
    argv = [snakemake, "-s", str(SNAKEFILE), "--cores", "1", "--config"]
    argv += ["types=q8_0,q4_0", "run=tiny/needle-nano", "sweep=--corpus tiny"]

    def run() -> str:
        done = subprocess.run(
            argv,
            cwd=tmp_path,
            env=os.environ | {"PATH": path},
            capture_output=True,
            encoding="utf-8",
            check=False,
        )
        assert 0 == done.returncode, done.stderr
        return done.stderr

    said = run()

    assert "4 of 5 steps" in said
    cells = tmp_path / "sweeps" / "tiny" / "needle-nano" / "cells"
    records = {path.name: path.stat().st_mtime_ns for path in cells.glob("*.json")}
    assert 4 == len(records)
    assert min(records, key=lambda name: records[name]) == "q8_0-q8_0.recall.json"
    assert "Nothing to be done" in run()
