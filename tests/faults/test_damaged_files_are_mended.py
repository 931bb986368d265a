"""Files that are damaged, foreign or in the way: a gap with a reason, and mended."""

import json
import os
import random
import re
import shutil
from pathlib import Path

import pytest
from answers import forced
from calls import called
from injections import BRIEF, GRID, Folder, error_line, put_corpus, sampled, statuses
from made_records import made_needle, made_record, made_round, made_setup
from started_sweeps import going, until

from codeneedle.cache_types import Pair
from codeneedle.errors import BadInput
from codeneedle.records.comparability import OtherSetup
from codeneedle.records.record import SCHEMA, BadRecord, Status
from codeneedle.records.store import (
    CELLS,
    SETUP,
    Store,
    append_checksum,
    decode_record,
    decode_setup,
    encode_masked_and_sealed,
)
from codeneedle.system.files import CACHE_VARIABLE
from codeneedle.system.orphans import end_orphans_and_clean_up, host_identity

RUN = Path("sweeps/tiny/needle-nano")
PAIRS = [Pair(k, v) for k in ("q8_0", "q4_0") for v in ("q8_0", "q4_0")]


@pytest.fixture(scope="module")
def measured(tmp_path_factory, llama_server, nano):
    """A finished sweep of four real cells."""
    path = tmp_path_factory.mktemp("measured")
    put_corpus(path, of=BRIEF)
    swept = called(path, "sweep", *GRID)
    assert 0 == swept.returncode, swept.stderr
    return path


@pytest.fixture
def done(measured, folder):
    """A copy of it, as a working folder; everything in it has finished."""
    put_corpus(folder.path, of=BRIEF)
    shutil.copytree(measured / "sweeps", folder.path / "sweeps")
    folder.look()
    return folder


def cell(folder: Folder, pair: Pair) -> Path:
    return folder.path / RUN / CELLS / f"{pair.slug}.recall.json"


def resealed(data: bytes, **changes: object) -> bytes:
    """*data* as a program would have written it that means *changes*."""
    body = json.loads(data)
    del body["crc32"]
    return append_checksum(json.dumps(body | changes).encode())


def replaced(path: Path, data: bytes) -> None:
    path.unlink()
    path.write_bytes(data)


def flipped(data: bytes, bit: int) -> bytes:
    damaged = bytearray(data)
    damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)


def looped(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def with_text(old: bytes, new: bytes):
    """A damage that another program would seal."""

    def damage(path: Path) -> None:
        data = path.read_bytes()
        body = data[: data.rindex(b",")] + b"\n}"
        assert old in body
        replaced(path, append_checksum(body.replace(old, new, 1)))

    return damage


def rewritten(change):
    """A damage that makes other bytes of those that are there."""
    return lambda path: replaced(path, change(path.read_bytes()))


DAMAGES = {
    "record cut in the middle": rewritten(lambda data: data[: len(data) // 2]),
    "a digit of a record changed": rewritten(
        lambda data: data.replace(b'"prompt_ms": ', b'"prompt_ms": 1', 1)
    ),
    "record of another cell": lambda path: shutil.copyfile(
        path.with_name("q8_0-q4_0.recall.json")
        if path.name != "q8_0-q4_0.recall.json"
        else path.with_name("q4_0-q4_0.recall.json"),
        path,
    ),
    "record of another run": rewritten(lambda data: resealed(data, setup="0" * 16)),
    "record cut by its last line": rewritten(lambda data: data[:-22]),
    "record empty": rewritten(lambda _: b""),
    "folder in the place of a record": a_folder,
    "link that leads to itself": looped,
    "pipe in the place of a record": a_pipe,
    "record of zeros": rewritten(lambda data: bytes(len(data))),
    "record with a block of zeros": rewritten(
        lambda data: data[:4096] + bytes(4096) + data[8192:]
    ),
    "record edited by hand": rewritten(
        lambda data: data.replace(b'"position": ', b'"position":  ', 1)
    ),
    "NaN in a record": with_text(b'"position": ', b'"position": NaN, "x": '),
    "infinity in a record": with_text(b'"position": ', b'"position": Infinity, "x": '),
    "1e999 in a record": with_text(b'"position": ', b'"position": 1e999, "x": '),
    "5,000 digits in a record": with_text(
        b'"position": ', b'"position": ' + b"9" * 5000 + b', "x": '
    ),
    "200,000 brackets in a record": with_text(
        b'"position": ', b'"position": ' + b"[" * 200_000 + b"]" * 200_000 + b', "x": '
    ),
    "record of 100 MB of white space": rewritten(
        lambda data: data[:-20] + b" " * 100_000_000
    ),
    "something else than a record": rewritten(
        lambda _: append_checksum(b'{"schema": %d}' % SCHEMA)
    ),
    "record whose schema is a truth": with_text(
        b'"schema": %d' % SCHEMA, b'"schema": true'
    ),
    "record of schema 0": with_text(b'"schema": %d' % SCHEMA, b'"schema": 0'),
    "record of a status that is none": with_text(b'"finished"', b'"done"'),
}

FOREIGN = {"record of another cell", "record of another run"}
"""Of these, the ones that are whole, and kept as ``*.foreign``."""


@pytest.mark.real
@pytest.mark.parametrize("fault", DAMAGES)
def test_what_is_no_record_of_its_cell_is_a_gap_and_is_kept(done, ledger, fault):
    pair = PAIRS[0]
    path = cell(done, pair)
    good = decode_record(path.read_bytes(), file="x")
    DAMAGES[fault](path)
    damaged = path.read_bytes() if path.is_file() else b""
    done.finished.discard(path)

    store = Store(done.path / RUN)
    run = store.read_run()
    gap = next(record for record in run.records if record.pair == pair)
    store.write_record(good)

    assert Status.INTERRUPTED is gap.status
    assert "cannot be used" in gap.reason
    assert 4 == len(run.records)
    assert good == store.read_record_if_there(pair, "recall")
    ending = "foreign" if fault in FOREIGN else "damaged"
    aside = path.with_name(f"{path.name}.{ending}")
    assert not damaged or damaged == aside.read_bytes()
    ledger.note(fault, gap.reason, of=done)


def batches(often: int) -> list[list[str]]:
    faults = list(DAMAGES)
    return [faults[at : at + 4] for at in range(0, len(faults), 4)][:often]


@pytest.mark.real
@pytest.mark.parametrize("batch", sampled(range(len(batches(99))), quick=1))
def test_damaged_records_are_shown_as_gaps_and_measured_again(
    done, ledger, codeneedle, batch
):
    faults = batches(99)[batch]
    for pair, fault in zip(PAIRS, faults, strict=False):
        DAMAGES[fault](cell(done, pair))
    done.finished -= {cell(done, pair) for pair in PAIRS[: len(faults)]}

    grid = codeneedle("grid", "tiny")
    swept = codeneedle("sweep", *GRID)
    done.look()

    assert 0 == grid.returncode, grid.stderr
    assert "cannot be used" in grid.stdout
    assert re.search(r"\d{4}-\d\d-\d\d$", grid.stdout, re.MULTILINE)
    told = " ".join(grid.stdout.partition("intr.  ")[2].split())
    assert all(str(pair) in told for pair in PAIRS[: len(faults)])
    assert 0 == swept.returncode, swept.stderr
    assert "4 of 4 cells finished" in swept.stderr
    assert "Traceback" not in grid.stderr + swept.stderr
    aside = {path.suffix for path in (done.path / RUN / CELLS).glob("*.json.*")}
    assert aside <= {".damaged", ".foreign"}
    assert len(faults) == len(list((done.path / RUN / CELLS).glob("*.json.*")))
    for fault in faults:
        ledger.note(
            f"{fault}, whole program", "its record cannot be used: ...", of=done
        )


SEALED = {
    "record": (made_record(PAIRS[0], [made_round(made_needle())]), decode_record),
    "setup": (made_setup(needles=1), decode_setup),
}


@pytest.mark.parametrize("kind", SEALED)
def test_a_cut_or_one_changed_bit_is_refused_wherever_it_is(ledger, times, kind):
    value, decode = SEALED[kind]
    data = encode_masked_and_sealed(value)
    size = len(data.rstrip())
    bits = range(8 * size)
    if times(1, quick=0) == 0:
        bits = [8 * byte + byte % 8 for byte in range(0, size, 5)]
    damages = {f"{kind} cut at a byte": [data[: bit // 8] for bit in bits[::8]]}
    damages[f"a bit of a {kind} flipped"] = (flipped(data, bit) for bit in bits)

    for fault, damaged in damages.items():
        for each in damaged:
            with pytest.raises(BadRecord) as caught:
                decode(each, file="x")
            ledger.note(fault, f"it cannot be used: {caught.value.reason}")


def test_a_record_without_a_seal_is_refused_whatever_it_holds(ledger, times):
    chance = random.Random(7)  # noqa: S311 - the same damage each time
    body = json.loads(
        encode_masked_and_sealed(made_record(PAIRS[0], [made_round(made_needle())]))
    )
    del body["crc32"]
    data = json.dumps(body).encode()

    for _ in range(times(20_000, quick=100)):
        damaged = bytearray(data)
        for _ in range(chance.randint(0, 8)):
            damaged[chance.randrange(len(data))] = chance.randrange(256)
        with pytest.raises((BadRecord, BadInput)) as caught:
            decode_record(bytes(damaged), file="x")
        saw = str(caught.value)
        ledger.note("bytes of a record without a seal", saw.partition(":")[0])


@pytest.mark.real
def test_a_record_of_another_version_is_refused_and_stays(done, ledger, codeneedle):
    path = cell(done, PAIRS[1])
    later = resealed(path.read_bytes(), schema=SCHEMA + 1)
    path.write_bytes(later)
    done.finished.discard(path)

    grid, swept = codeneedle("grid", "tiny"), codeneedle("sweep", *GRID)

    assert (2, 2) == (grid.returncode, swept.returncode)
    assert "same sweep again" in " ".join(grid.stderr.split())
    assert "same sweep again" in " ".join(swept.stderr.split())
    assert later == path.read_bytes()
    path.unlink()  # so that nothing of another schema is counted as damage
    ledger.note("record of a later schema", error_line(swept.stderr), of=done)


SETUP_DAMAGES = {
    "a bit of the setup flipped": rewritten(lambda data: flipped(data, 8000)),
    "setup gone": Path.unlink,
    "setup cut": rewritten(lambda data: data[:700]),
    "setup empty": rewritten(lambda _: b""),
    "folder in the place of the setup": a_folder,
    "setup that is a link to itself": looped,
    "setup that is a pipe": a_pipe,
    "record in the place of the setup": rewritten(
        lambda _: encode_masked_and_sealed(made_record(PAIRS[0], []))
    ),
}


@pytest.mark.real
@pytest.mark.parametrize("fault", sampled(SETUP_DAMAGES, quick=1))
def test_a_setup_that_is_lost_is_made_anew_by_the_same_command(
    done, ledger, codeneedle, fault
):
    path = done.path / RUN / SETUP
    SETUP_DAMAGES[fault](path)

    swept = codeneedle("sweep", *GRID)
    grid = codeneedle("grid", "tiny")

    assert 0 == swept.returncode, swept.stderr
    assert "4 cells done already" in swept.stderr
    assert 0 == grid.returncode, grid.stderr
    is_kept = fault != "setup gone"
    assert is_kept == ("setup could not" in swept.stderr)
    assert is_kept == ("is kept as" in swept.stderr)
    ledger.note(fault, "note: the setup could not be read" if is_kept else "", of=done)


@pytest.mark.real
def test_a_lost_setup_is_not_made_from_another_request(done, ledger, codeneedle):
    path = done.path / RUN / SETUP
    replaced(path, b"{")
    before = {file: file.read_bytes() for file in path.parent.glob("cells/*")}

    swept = codeneedle("sweep", *GRID[:-1], "3072")

    assert 2 == swept.returncode
    assert "holds records" in swept.stderr
    assert SETUP in swept.stderr
    assert before == {file: file.read_bytes() for file in before}
    ledger.note(
        "setup cut, and another context asked for", error_line(swept.stderr), of=done
    )


WRITTEN = (
    *("logs/q8_0-q8_0.log", "logs/counting.log"),
    *(f"heatmap-kv.{kind}" for kind in ("png", "svg")),
)
"""Paths in a run folder that are written without being read before."""

PLANTED = {
    "a link to a file": lambda path, victim: path.symlink_to(victim),
    "a pipe": lambda path, _: os.mkfifo(path),
    "a hard link": lambda path, victim: path.hardlink_to(victim),
    "a link to nothing": lambda path, victim: path.symlink_to(f"{victim}-none"),
    "a link to itself": lambda path, _: path.symlink_to(path.name),
    "a link to a device": lambda path, _: path.symlink_to("/dev/full"),
}


@pytest.mark.real
@pytest.mark.parametrize("fault", sampled(PLANTED, quick=1))
def test_what_was_planted_where_files_are_written_is_replaced(
    done, ledger, tmp_path_factory, codeneedle, fault
):
    victim = tmp_path_factory.mktemp("home") / "victim"
    victim.write_text("precious")
    run = done.path / RUN
    for path in (run / SETUP, cell(done, PAIRS[0])):
        path.unlink()
    done.finished.clear()
    done.look()
    for name in WRITTEN:
        (run / name).unlink(missing_ok=True)
        PLANTED[fault](run / name, victim)

    swept = codeneedle("sweep", *GRID)
    drawn = codeneedle("heatmap", "tiny", "--metric", "kv")

    assert 0 == swept.returncode, swept.stderr
    assert 0 == drawn.returncode, drawn.stderr
    assert ["victim"] == [path.name for path in victim.parent.iterdir()]
    assert "precious" == victim.read_text()
    assert ["finished"] * 4 == statuses(done.path)
    for name in WRITTEN:
        assert not (run / name).is_symlink()
        assert not (run / name).is_fifo()
        ledger.note(f"{fault} in the place of a file that is written", of=done)
    assert (run / "heatmap-kv.png").read_bytes().startswith(b"\x89PNG")


def lock_with(make):
    def fault(run: Path) -> None:
        (run / "lock").unlink(missing_ok=True)
        make(run / "lock")

    return fault


def left_overs(run: Path) -> None:
    for name in ("setup.json", f"{CELLS}/q8_0-q8_0.recall.json"):
        (run / f"{name}.draft").write_bytes(b"{")


NUISANCES = {
    "a lock that is a pipe": (lock_with(os.mkfifo), 0),
    "a lock full of words": (lock_with(lambda path: path.write_text("held")), 0),
    "a lock that is a folder": (lock_with(Path.mkdir), 3),
    "drafts left behind": (left_overs, 0),
    "setup without records": (lambda run: shutil.rmtree(run / CELLS), 0),
}


@pytest.mark.real
@pytest.mark.parametrize("fault", sampled(NUISANCES, quick=1))
def test_what_lies_about_in_a_run_folder_is_in_nobodys_way(
    done, ledger, codeneedle, fault
):
    make, code = NUISANCES[fault]
    make(done.path / RUN)

    swept = codeneedle("sweep", *GRID)

    assert code == swept.returncode, swept.stderr
    assert "Traceback" not in swept.stderr
    assert ["finished"] * 4 == statuses(done.path)
    ledger.note(fault, error_line(swept.stderr) if code else "", of=done)


def test_a_damaged_note_of_a_server_ends_nothing(tmp_path, ledger, times, monkeypatch):
    chance = random.Random(7)  # noqa: S311 - the same damage each time
    owner, host = b'{"pid": 4194305, "started": 1}', host_identity().encode()
    data = b'{"mark": "x.0123abcd", "owner": %b, "host": "%b"}'
    data %= owner, host
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    note = tmp_path / "running" / "x.0123abcd.json"
    note.parent.mkdir()
    for at in range(times(3000, quick=30)):
        damaged = bytearray(data[: chance.randrange(len(data))] if at % 3 else data)
        for _ in range(chance.randint(1, 4) if damaged else 0):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        note.write_bytes(damaged)

        assert [] == end_orphans_and_clean_up()
        ledger.note("note of a server, bytes changed")


@pytest.mark.real
def test_a_text_edited_between_two_starts_is_another_setup(done, ledger, codeneedle):
    corpus = done.path / "corpora" / "tiny.toml"
    corpus.write_text(corpus.read_text().replace("seed = 7", "seed = 8"))

    swept = codeneedle("sweep", *GRID)

    assert OtherSetup.exit_code == swept.returncode
    assert "(corpus source sha256: " in swept.stderr
    ledger.note("text edited between two starts", error_line(swept.stderr), of=done)


@pytest.mark.real
@pytest.mark.full
@pytest.mark.parametrize("what", ["edited", "gone"])
def test_a_text_that_changes_while_a_sweep_runs_changes_nothing(
    folder, ledger, llama_server, nano, what
):
    source = folder.path / "text.py"
    lines = "".join(f"    name_{n} = {n * 7919}\n" for n in range(24))
    source.write_text(f"def first():\n{lines}")
    grid = ("--corpus", "text.py", "--types", "q8_0,q4_0", "--context", "4096")
    grid = (*grid, "--probe", "recall")
    with going(folder.path, "sweep", *grid) as sweep:
        cells = folder.path.glob
        assert until(
            lambda: [*cells("sweeps/*/*/cells/*.json")],
            unless=lambda: sweep.poll() is not None,
        )
        done = [*cells("sweeps/*/*/cells/*.json")]
        source.unlink() if what == "gone" else source.write_text("def other(): pass\n")
        assert len(done) < 4
        said, _ = sweep.communicate()
    folder.look()

    records = [json.loads(path.read_bytes()) for path in folder.finished]
    first = [forced(record["observation"])[0] for record in records]
    asked = {each["prompt_sha256"] for each in first}
    assert 0 == sweep.returncode, said
    assert 4 == len(records)
    assert 1 == len(asked)
    ledger.note(f"text {what} while a sweep runs", of=folder)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_record_that_may_not_be_read_is_a_gap(folder, ledger):
    store = Store(folder.path / RUN)
    store.write_record(made_record(PAIRS[0], [made_round(made_needle())]))
    cell(folder, PAIRS[0]).chmod(0)

    gap = store.read_record_if_there(PAIRS[0], "recall")

    assert "Permission denied" in gap.reason
    ledger.note("record that may not be read", gap.reason)
