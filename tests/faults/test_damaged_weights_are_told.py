"""Weights that are damaged, replaced or no file: told before they cost a cell."""

import os
import random
import shutil
import struct
import tracemalloc
from pathlib import Path

import pytest
from gguf_files import disguise, gguf_bytes, other, write_gguf
from injections import Aftermath, Folder, error_line, sampled
from started_sweeps import going, on_terminal, until

from codeneedle.errors import WeightsUnusable
from codeneedle.models import weights
from codeneedle.models.gguf import parse
from codeneedle.models.weights import read_weights_from_headers

MODEL = "model.gguf"
ONE = ("--types", "q8_0")
TWO = ("--k-types", "q8_0", "--v-types", "q8_0,q4_0")
SMALL = (
    *("--corpus", "tiny", "--context", "4096", "--model", MODEL),
    *("--probe", "recall", "--way", "force"),
)
"""Of short cells: nothing is written."""

CALM = ("--", "-t", "1", "--poll", "0")
"""Threads that neither outnumber the cores nor spin: the model is that small."""

HOSTILE = (1 << 63, (1 << 64) - 1, 1 << 40, 1 << 32, 1 << 24, 1 << 20, 0)
MOST_PEAK_BYTES = 1 << 20


@pytest.fixture
def model(folder: Folder, nano) -> Path:
    """A model of the user's: a copy of the built-in one."""
    return Path(shutil.copyfile(nano, folder.path / MODEL))


@pytest.fixture
def refused(ledger):
    """Reads a header that must be refused, and notes how."""

    def read(path: Path, fault: str, words: str = "") -> None:
        with pytest.raises(WeightsUnusable, match=words or None) as caught:
            read_weights_from_headers(path)
        assert caught.value.hint
        assert str(caught.value).isprintable()
        ledger.note(fault, str(caught.value).replace(str(path.parent), ""))

    return read


def _said_of(path: Path) -> str:
    """What is said of the file at *path*, without its name; empty if it is read."""
    try:
        read_weights_from_headers(path)
    except WeightsUnusable as error:
        return str(error).replace(str(path), "it")
    return ""


def header_bytes(path: Path) -> int:
    """Where the tensors of *path* begin: what remains if they were of no length."""
    data = path.read_bytes()
    return data.index(b"blk.0") and data.rindex(b"output_norm.weight") + 64


def test_a_model_cut_anywhere_is_told_from_a_whole_one(model, refused, times):
    header, size = header_bytes(model), model.stat().st_size
    inside = range(0, header, max(1, header // times(header, quick=50)))
    beyond = range(header, size, size // times(400, quick=40))
    for length in sorted({*inside, *beyond, size - 1}, reverse=True):
        os.truncate(model, length)
        refused(model, "model cut at a byte", "cut short|not a GGUF")


def test_changed_bytes_of_a_header_never_crash(model, ledger, times):
    chance = random.Random(7)  # noqa: S311 - the same damage each time
    good = model.read_bytes()[: header_bytes(model)]
    with model.open("r+b", buffering=0) as file:
        for _ in range(times(5000, quick=60)):
            damaged = bytearray(good)
            for _ in range(chance.randint(1, 4)):
                damaged[chance.randrange(len(good))] = chance.randrange(256)
            os.pwrite(file.fileno(), damaged, 0)
            ledger.note("bytes of a header changed", _said_of(model))


def test_no_number_in_a_file_is_believed_to_be_an_amount_of_memory(ledger, times):
    data = gguf_bytes(tensors=3)
    step = times(1, quick=5)
    tracemalloc.start()
    try:
        for at in range(4, len(data) - 8, step):
            for number in HOSTILE:
                damaged = bytearray(data)
                struct.pack_into("<Q", damaged, at, number)
                tracemalloc.reset_peak()
                before, _ = tracemalloc.get_traced_memory()
                saw = ""
                try:
                    parse(damaged)
                except ValueError as error:
                    saw = str(error)
                _, peak = tracemalloc.get_traced_memory()
                assert peak - before < MOST_PEAK_BYTES, (at, number)
                ledger.note("a hostile number in a header", saw)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("fault", "keys", "tensors"),
    [
        ("65,536 lists of 4,096 bytes", 65_536, 0),
        ("keys without end in a file of 8 GB", 0, 0),
        ("tensors without end in a file of 8 GB", 0, 100_000),
    ],
)
def test_a_file_that_is_all_header_is_not_read_into_memory(
    tmp_path, refused, fault, keys, tensors
):
    """A sparse file of 8 GB takes no more memory than a chat template of 4 MB might."""
    path = tmp_path / MODEL
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, tensors, keys or 60_000))
    if keys:
        with path.open("ab") as file:
            for n in range(4096):
                name = b"k%07d" % n
                file.write(struct.pack("<Q8sIIQ", 8, name, 9, 0, 4096) + bytes(4096))
    elif tensors:
        path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, tensors, 0))
    os.truncate(path, 8 << 30)

    tracemalloc.start()
    try:
        refused(path, f"model of {fault}")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # Of the 4 MiB that are kept of a file, each byte becomes an element of a tuple.
    assert peak < 64 << 20


@pytest.mark.parametrize(
    "stage",
    [
        "_check_is_regular_file",
        "_checked_model_parts",
        "file_state_identity",
        "_file_size",
    ],
)
def test_weights_that_vanish_while_they_are_looked_at_are_named(
    tmp_path, refused, monkeypatch, stage
):
    path = write_gguf(tmp_path / MODEL)
    looks = getattr(weights, stage)

    def vanishing(*arguments):
        found = looks(*arguments)
        path.unlink(missing_ok=True)
        return found

    monkeypatch.setattr(weights, stage, vanishing)

    refused(path, "model that vanishes while it is looked at")


@pytest.mark.real
def test_a_model_of_60_gb_is_hashed_with_progress_and_ctrl_c_ends_it(
    folder, model, ledger, llama_server
):
    os.truncate(model, 60 << 30)
    sweep = ("sweep", *ONE, *SMALL)

    code, shown = on_terminal(folder.path, *sweep, interrupt_at=b"hashing weights: ")

    assert 130 == code, shown
    assert b"left" in shown
    assert b"hashing weights: 9" not in shown
    ledger.note("model of 60 GB, Ctrl-C", "stopped", of=folder)


def damaged_models(good: bytes, header: int) -> dict[str, bytes]:
    """What a person may have downloaded, by a phrase."""
    chance = random.Random(11)  # noqa: S311 - the same damage each time
    found = {
        "model cut in its tensors": good[:-1000],
        "model cut in its header": good[: header // 2],
        "model of 0 bytes": b"",
        "model of zeros": bytes(10_000),
    }
    for number in range(16):
        damaged = bytearray(good)
        for _ in range(3):
            damaged[chance.randrange(24, header)] = chance.randrange(256)
        found[f"model with damaged header {number}"] = bytes(damaged)
    return found


@pytest.mark.real
@pytest.mark.usefixtures("llama_server")
@pytest.mark.parametrize("number", sampled(range(20), quick=2))
def test_a_sweep_of_damaged_weights_ends_with_a_reason(
    folder, model, ledger, codeneedle, number
):
    damages = damaged_models(model.read_bytes(), header_bytes(model))
    fault = list(damages)[number]
    model.write_bytes(damages[fault])

    swept = codeneedle("sweep", *ONE, *SMALL, *CALM)

    assert swept.returncode in {0, 1, 2, 3}
    assert "Traceback" not in swept.stderr
    assert swept.returncode == 0 or "hint:" in swept.stderr or "[ 1/1]" in swept.stderr
    saw = error_line(swept.stderr) if swept.returncode else ""
    if fault.startswith("model with"):
        fault = "model with a damaged header, whole program"
    else:
        assert 3 == swept.returncode
        assert not (folder.path / "sweeps").exists()
        fault += ", whole program"
    ledger.note(fault, saw, of=folder)


@pytest.mark.real
@pytest.mark.usefixtures("llama_server")
def test_weights_replaced_between_two_starts_are_another_setup(
    folder, model, ledger, codeneedle
):
    first = codeneedle("sweep", *ONE, *SMALL, *CALM)
    assert 0 == first.returncode, first.stderr
    folder.look()
    disguise(model, other(model.read_bytes()))

    swept = codeneedle("sweep", *ONE, *SMALL, *CALM)

    assert 2 == swept.returncode
    assert "(weights sha256: " in swept.stderr
    saw = error_line(swept.stderr).partition("run with")[2]
    ledger.note("model replaced between two starts", saw, of=folder)


def moved_over(path: Path) -> None:
    """As a download that is renamed when it is complete."""
    draft = path.with_name("draft")
    draft.write_bytes(other(path.read_bytes()))
    draft.replace(path)


def written_over(path: Path) -> None:
    disguise(path, other(path.read_bytes()))


def linked_elsewhere(path: Path) -> None:
    """As a link to the latest of several files."""
    path.with_name("v2").write_bytes(other(path.read_bytes()))
    path.unlink()
    path.symlink_to("v2")


REPLACED = {
    "model replaced while it runs": (moved_over, 2, "other weights"),
    "model gone while it runs": (Path.unlink, 3, "does not exist"),
    "model written over while it runs": (written_over, 2, "other weights"),
    "model that is a link, turned while it runs": (linked_elsewhere, 2, "other weigh"),
}


def changed_meanwhile(folder, change, *, code):
    """What a sweep said that ended with *code*: *change* came after its first cell."""
    with going(folder.path, "sweep", *TWO, *SMALL, *CALM) as sweep:

        def has_finished():
            """Whether the first cell has, by now."""
            folder.look()
            return folder.finished

        assert until(has_finished, unless=lambda: sweep.poll() is not None)
        change()
        said, _ = sweep.communicate()
    folder.look()
    assert code == sweep.returncode, said
    return said


@pytest.mark.real
@pytest.mark.usefixtures("llama_server")
@pytest.mark.parametrize("fault", sampled(REPLACED, quick=1))
def test_weights_that_change_while_a_sweep_runs_end_it(
    folder, model, nano, ledger, codeneedle, fault
):
    change, code, words = REPLACED[fault]
    said = changed_meanwhile(folder, lambda: change(model), code=code)

    assert words in said
    assert len(folder.finished) in {1, 2}
    saw = error_line(said).replace(str(folder.path), "")
    ledger.note(fault, saw, of=folder)
    model.unlink(missing_ok=True)
    shutil.copyfile(nano, model)
    again = codeneedle("sweep", *TWO, *SMALL, *CALM)
    assert 0 == again.returncode, again.stderr
    assert "2 of 2 cells finished" in again.stderr
    assert Aftermath() == folder.aftermath()


@pytest.mark.real
@pytest.mark.full
@pytest.mark.usefixtures("llama_server")
def test_weights_that_are_merely_touched_do_not_end_a_sweep(folder, model, ledger):
    def touch():
        os.link(model, folder.path / "backup.gguf")
        shutil.copyfile(model, folder.path / "draft")
        (folder.path / "draft").replace(model)

    changed_meanwhile(folder, touch, code=0)

    assert 2 + 1 == len(folder.finished), "the reference is measured once more"
    ledger.note("model linked and copied while it runs", of=folder)
