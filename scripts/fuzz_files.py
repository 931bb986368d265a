"""Fuzzed: files of all kinds, replies and source texts."""

import contextlib
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import fuzz_seeds as seeds
from fuzz_claims import claim

from codeneedle.corpora import languages, needles, reading, registry
from codeneedle.corpora.needles import Function
from codeneedle.engines.llama_cpp.base_file import BaseFile, Identity
from codeneedle.errors import RequestError
from codeneedle.grid import Pair
from codeneedle.models.kv_cache import Room, misfit, predicted
from codeneedle.models.weights import read_header
from codeneedle.probes import PROBES
from codeneedle.probes.recall import enough_for
from codeneedle.records.encoding import decode_record, decode_setup, encode, sealed
from codeneedle.records.record import CellRecord, NeedleFacts, Setup
from codeneedle.scoring.alignment import answer_end, answer_lines, score
from codeneedle.scoring.rounds import Reading
from codeneedle.sweep import request

PAIR = Pair("q8_0", "q4_0")
_NEEDLE = seeds.made("made_records").made_needle()


_FOLDER = Path(tempfile.mkdtemp(prefix="codeneedle-fuzz-"))
"""Of this process; whoever starts it gives it a temporary folder to make it in."""


def read_base_file(data: bytes) -> None:
    """A base file and the note beside it; the first two bytes are the note's length."""
    base = BaseFile(_FOLDER / "x.kld")
    ends = 2 + int.from_bytes(data[:2], "big")
    base.note_path.write_bytes(data[2:ends])
    base.path.write_bytes(data[ends:])
    identity = Identity(
        text_sha256="x",
        weights_sha256="x",
        llama="x",
        reference="f16/f16",
        context=3,
        chunks_asked=3,
        vocabulary=3,
    )
    base.usable(identity)


def read_gguf(data: bytes) -> None:
    """A model's header, and what is predicted from it."""
    path = _FOLDER / "model.gguf"
    path.write_bytes(data)
    weights = read_header(path)
    pairs = [Pair("f16", "f16"), PAIR]
    for pair in pairs:
        misfit(weights, pair)
    predicted(weights, pairs, Room(1 << 30, "memory"))


def read_sweep(data: bytes) -> None:
    """A sweep file."""
    (_FOLDER / "x.toml").write_bytes(data)
    request.asked_for(request.read_sweep_file("x", folder=_FOLDER))


def read_corpus(data: bytes) -> None:
    """A corpus file; what it names is not looked for."""
    path = _FOLDER / "c.toml"
    path.write_bytes(data)
    registry.read_corpus_file(path).origin(path)


def read_record(data: bytes) -> None:
    """A record or a setup, and all metrics of it; as it is, and with a seal of ours."""
    forms = [data, sealed(data)] if data.strip() else [data]
    for read in (_read_record, _read_setup):
        for form in forms:
            with contextlib.suppress(RequestError):
                read(form)


def _read_record(data: bytes) -> None:
    record = decode_record(data, file="x")
    claim(decode_record(encode(record), file="x") == record, "records stay")
    _measured(record, _SETUP)


def _read_setup(data: bytes) -> None:
    setup = decode_setup(data, file="x")
    claim(decode_setup(encode(setup), file="x") == setup, "setups stay")
    for record in _RECORDS:
        with contextlib.suppress(RequestError):
            _measured(record, setup)


def _measured(record: CellRecord, setup: Setup) -> None:
    probe = PROBES.get(record.probe)
    if probe is None or not record.has_numbers:
        return
    for metric in (*probe.metrics, *probe.more_metrics(setup)):
        values = metric.values(record, setup, Reading())
        claim(all(isinstance(value, (int, float)) for value in values), "numbers")
        if metric.error is not None:
            metric.error(record, setup, Reading())
        if metric.reference is not None:
            metric.reference(record)


_SETUP_BYTES, *_RECORD_BYTES = seeds.records()
_SETUP = decode_setup(sealed(_SETUP_BYTES), file="x")
_RECORDS = [decode_record(sealed(data), file="x") for data in _RECORD_BYTES]


# --- texts


def read_reply(data: bytes) -> None:
    """What a model says to a needle; the two stand around a null character."""
    asked, _, reply = data.decode(errors="replace").partition("\0")
    lines = asked.split("\n")
    needle = NeedleFacts(
        name="f",
        signature=_NEEDLE.signature,
        line=1,
        depth=0.0,
        lines=tuple(lines[:20]),
        more=tuple(lines[20:25]),
    )
    for strict in (False, True):
        scored = score(needle, reply, strict_indent=strict)
        content = sum(bool(line.strip()) for line in needle.lines)
        claim(0 <= scored.matched <= content, "no more is matched than was asked")
    claim(0 <= answer_end(needle, reply) <= len(reply), "an answer ends in its reply")
    answer_lines(needle, reply)
    enough_for(needle)(reply)


def source_reader(suffix: str) -> Callable[[bytes], None]:
    """Reads source text in the language whose files end with *suffix*."""

    def read(data: bytes) -> None:
        text = reading.decoded(data, label="x")
        found = languages.functions_in(text, suffix)
        lines = text.split("\n")
        for function in found:
            _stands(function, lines)
        asked = needles.eligible(text, found)
        for function in needles.choose(asked, line_count=len(lines)):
            needles.needle_facts(function, depth=0.0)
        cuts = needles.cut_points(found)
        claim(cuts == sorted(set(cuts)), "cuts ascend")

    return read


def _stands(function: Function, lines: Sequence[str]) -> None:
    start = function.line - 1
    opens = start + function.signature.count("\n") + 1
    ends = opens + len(function.body)
    claim(
        "\n".join(lines[start:opens]) == function.signature, "signatures are verbatim"
    )
    claim(tuple(lines[opens:ends]) == function.body, "bodies are verbatim")
    claim(function.end <= len(lines), "functions end before their text")
