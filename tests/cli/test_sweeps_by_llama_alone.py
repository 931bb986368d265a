"""All that upstream's installer brings is one program, llama: it is enough."""

import json
import shutil

import pytest

from codeneedle.engines.llama_cpp.installation import LLAMA


@pytest.fixture
def alone(tmp_path, llama_server, nano, monkeypatch):
    """``llama`` in a folder of its own on PATH, and no other program of llama.cpp."""
    single = llama_server.with_name(LLAMA)
    if not single.exists():
        pytest.skip(f"{llama_server} was built without {LLAMA}")
    folder = tmp_path / "bin"
    folder.mkdir()
    shutil.copy2(single, folder)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setenv("CODENEEDLE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("LLAMA_SERVER", raising=False)
    return folder / LLAMA


@pytest.mark.real
def test_a_sweep_by_llama_alone_measures_all_that_others_do(
    codeneedle, tmp_path, alone
):
    done = codeneedle(
        *("sweep", "--corpus", "random-bodies-mini", "--context", "1024", "--no-wait"),
        *("--pairs", "f16/f16,q8_0/q4_0", "--probe", "recall,divergence,throughput"),
        *("--divergence-context", "128", "--chunks", "2", "--depths", "0"),
    )
    cells = tmp_path / "sweeps/random-bodies-mini/needle-nano/cells"
    records = [json.loads(path.read_text()) for path in cells.glob("*.json")]
    logs = {path.name: path.read_text() for path in cells.parent.rglob("*.log")}

    assert 0 == done.returncode, done.stderr
    assert 6 == len(records)
    assert any(f"{alone} serve --model" in text for text in logs.values())
    # A long path is broken where the screen ends.
    assert f"{alone}serve" in "".join(codeneedle("doctor").stdout.split())


@pytest.mark.real
def test_kernels_are_told_by_llama_alone(codeneedle, alone):
    told = codeneedle("kernels", "--types", "f16,q8_0", "--context", "512")

    assert 0 == told.returncode, told.stderr
    assert "kernel" in told.stdout
