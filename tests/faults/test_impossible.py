"""Stored numbers that cannot be: each field of each layout, changed and sealed."""

import json
import math
from pathlib import Path

import pytest
from outcomes import outcome

from codeneedle.errors import RequestError
from codeneedle.probes import PROBES
from codeneedle.records.record import BadRecord
from codeneedle.records.store import Store, decode_record, sealed

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


def changed(raw, at, new):
    """*raw* with *new* at one place, sealed."""
    copy = json.loads(json.dumps(raw))
    inner = copy
    for key in at[:-1]:
        inner = inner[key]
    inner[at[-1]] = new
    return sealed(json.dumps(copy).encode())


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
    raw, setup = opened(path), Store(path.parents[1]).setup()
    for at, value in places(raw):
        for new in impossible(value) if at else ():
            found = outcome(numbers, changed(raw, at, new), setup)
            is_refused = isinstance(found, RequestError)
            assert is_refused or all(map(math.isfinite, found)), (at, new)


@pytest.mark.parametrize(
    ("name", "at", "new"),
    [
        ("retrieval.json", ("observation", "texts", 0, "asked", 0, "items"), []),
        ("recall.json", ("observation", "forced", 0, "leads"), []),
        ("recall.json", ("observation", "forced", 0, "ends"), [1]),
        ("recall.json", ("observation", "forced", 0, "logprobs", 0), 5.0),
        ("recall.json", ("observation", "forced", 0, "logprobs", 0), -1e308),
        ("recall.json", ("effective", "kv", 0, "k_mib"), -50.0),
        (
            "divergence.json",
            ("observation", "contexts", 0, "statistics", "kld", "value"),
            -3.0,
        ),
    ],
)
def test_what_cannot_be_is_a_bad_record(name, at, new):
    path = next(path for path in FILES if path.name.endswith(name))
    raw, setup = opened(path), Store(path.parents[1]).setup()

    with pytest.raises(BadRecord):
        numbers(changed(raw, at, new), setup)
