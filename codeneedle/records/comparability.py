"""Which setups are comparable: what must not differ, and what may grow."""

import hashlib
import itertools
import re
from collections.abc import Iterable
from dataclasses import fields, replace
from pathlib import Path

import msgspec

from codeneedle.errors import RequestError
from codeneedle.grid import ENGINE, Pair, by_precision
from codeneedle.records.record import CellRecord, ForeignRecord, Json, Setup

_NOT_COMPARED = frozenset(
    {
        "created",
        "types_k",
        "types_v",
        "probes",
        "identity",
        "trial",
        "further",
        "finalists",
        "words",
        "schema",
    }
)
_LATER = {"engine": ENGINE, "lengths": ""}
"""Fields that setups of former versions lack, with the value that those have."""

_DIGITS = 16


class OtherSetup(RequestError):  # noqa: N818 - named after the fact
    """
    The run folder holds records of another setup; they must not mix.

    Attributes:
        key: What differs: ``context``, or ``recall depth`` for a probe's setting.
        stored: Its value in the folder; ``None`` for none.
        wanted: Its value now.
    """

    def __init__(self, *, folder: Path, key: str, stored: str, wanted: str) -> None:
        super().__init__(
            f"{folder} holds a run with another {key}: {stored}, now {wanted}",
            hint=f"Ask with the former {key}, choose another folder with --out, or "
            "move that one away.",
        )
        self.key = key
        self.stored = stored
        self.wanted = wanted


def widened(stored: Setup, wanted: Setup) -> Setup:
    """
    The stored setup with the types, probes and finalists of both: it grows.

    Its corpus is counted and has needles from the first probe on that reads it. Of
    what was typed, the last is kept.
    """
    return replace(
        _counted(stored, wanted),
        probes={**stored.probes, **wanted.probes},
        types_k=tuple(by_precision((*stored.types_k, *wanted.types_k))),
        types_v=tuple(by_precision((*stored.types_v, *wanted.types_v))),
        further=max(stored.further, wanted.further, key=len),
        finalists=tuple(dict.fromkeys((*stored.finalists, *wanted.finalists))),
        words=wanted.words or stored.words,
    )


def _counted(stored: Setup, wanted: Setup) -> Setup:
    """*stored*, with what *wanted* has counted of a corpus that no probe had read."""
    if stored.corpus.is_counted:
        return stored
    counted = replace(
        wanted.corpus,
        source_sha256=stored.corpus.source_sha256,
        sample_k=stored.corpus.sample_k,
        sample_seed=stored.corpus.sample_seed,
    )
    return replace(stored, corpus=counted, needles=wanted.needles)


def refuse_difference(stored: Setup, wanted: Setup, *, folder: Path) -> None:
    """
    Stop if records of *wanted* must not stand beside those of *stored*.

    Raises:
        OtherSetup: Naming the first difference, and both values.
    """
    stored = _counted(stored, wanted)
    for field in fields(Setup):
        if field.name in _NOT_COMPARED:
            continue
        was, now = getattr(stored, field.name), getattr(wanted, field.name)
        if was != now:
            key, was, now = _first_difference(field.name, was, now)
            raise OtherSetup(folder=folder, key=key, stored=was, wanted=now)
    for probe in stored.probes.keys() & wanted.probes.keys():
        _refuse_other_settings(
            probe, stored.probes[probe], wanted.probes[probe], folder=folder
        )


def differences(ours: Setup, theirs: Setup) -> list[tuple[str, str, str]]:
    """
    In what two setups differ, of all that records must share: name and both values.

    Of nested facts the first that differs is named; types, dates and probes that one
    of them lacks are left out.
    """
    found = [
        _first_difference(field.name, was, now)
        for field in fields(Setup)
        if field.name not in _NOT_COMPARED
        if (was := getattr(ours, field.name)) != (now := getattr(theirs, field.name))
    ]
    for probe in sorted(ours.probes.keys() & theirs.probes.keys()):
        was, now = ours.probes[probe], theirs.probes[probe]
        for key in sorted(was.keys() | now.keys()):
            if was.get(key) != now.get(key):
                values = (repr(was.get(key)), repr(now.get(key)))
                found.append((f"{probe} {key}", *values))
    return found


def identity(setup: Setup) -> str:
    """
    A hash of what must not differ in *setup*.

    Without the settings of probes, and the origin of the text, which is a phrase.
    """
    facts = {
        field.name: getattr(setup, field.name)
        for field in fields(Setup)
        if field.name not in _NOT_COMPARED
        # Older setups do not have these fields, and keep their name.
        if getattr(setup, field.name) != _LATER.get(field.name)
    }
    return _hash({**facts, "corpus": replace(setup.corpus, origin="")})


def stamp(setup: Setup, probe: str) -> str:
    """The name of *setup* in records of *probe*; empty if it has no identity."""
    settings = setup.probes.get(probe)
    if not (setup.identity and settings):
        return setup.identity
    return f"{setup.identity}-{_hash(settings)}"


def refuse_foreign(
    record: CellRecord, pair: Pair, probe: str, *, setup: Setup | None, file: str
) -> None:
    """
    Stop if *record* is not that of *pair* and *probe* under *setup*.

    Args:
        record: What was found.
        pair: Whose record should be there.
        probe: Likewise.
        setup: That of the run folder; None if it is not known.
        file: Where it was found.

    Raises:
        ForeignRecord: Naming what it is one of.
    """
    if (record.pair, record.probe) != (pair, probe):
        raise ForeignRecord(file=file, of=f"{record.pair}, {record.probe}")
    own = stamp(setup, probe) if setup else ""
    # Records of the first schema name no setup.
    if own and record.setup not in {"", own}:
        raise ForeignRecord(file=file, of="another setup")


_CHANGING = re.compile(r"(?:.*_)?(?:ms|s|seconds|retries|tokens|drafted|accepted)$")
"""
Names of what differs from time to time in observations: durations, and counts that
depend on when a connection broke or a cache was filled.
"""


def first_other(ours: CellRecord, theirs: CellRecord) -> str:
    """
    Where the observations of two records of one cell begin to differ; empty if nowhere.

    Times are left out: ``rounds 3 reply`` for what was said and how probable it was.
    """
    found = _first_other(ours.observation, theirs.observation)
    return "" if found is None else found or "the beginning"


def _first_other(ours: object, theirs: object) -> str | None:
    """The path of the first difference; None if there is none."""
    parts: Iterable[tuple[object, object, object]] = ()
    if isinstance(ours, dict) and isinstance(theirs, dict):
        keys = [key for key in {**ours, **theirs} if not _CHANGING.fullmatch(key)]
        parts = ((key, ours.get(key), theirs.get(key)) for key in keys)
    elif isinstance(ours, list) and isinstance(theirs, list):
        parts = zip(itertools.count(1), ours, theirs, strict=False)
        if len(ours) != len(theirs):
            return "length"
    elif ours != theirs:
        return ""
    for name, mine, other in parts:
        found = _first_other(mine, other)
        if found is not None:
            return f"{name} {found}".rstrip()
    return None


def _hash(facts: object) -> str:
    data = msgspec.json.encode(facts, order="sorted")
    return hashlib.sha256(data).hexdigest()[:_DIGITS]


def _refuse_other_settings(
    probe: str, stored: Json, wanted: Json, *, folder: Path
) -> None:
    for key in sorted(stored.keys() | wanted.keys()):
        was, now = stored.get(key), wanted.get(key)
        if was != now:
            raise OtherSetup(
                folder=folder,
                key=f"{probe} {key}",
                stored=repr(was),
                wanted=repr(now),
            )


def _first_difference(key: str, was: object, now: object) -> tuple[str, str, str]:
    """Descend into nested facts, so that the message names one value, not twenty."""
    if type(was) is type(now) and hasattr(type(was), "__dataclass_fields__"):
        for field in fields(was):  # type: ignore[arg-type]
            a, b = getattr(was, field.name), getattr(now, field.name)
            if a != b:
                return _first_difference(f"{key} {field.name}", a, b)
    if isinstance(was, tuple) and isinstance(now, tuple) and len(was) != len(now):
        return f"number of {key}", str(len(was)), str(len(now))
    if isinstance(was, tuple) and isinstance(now, tuple):
        at = next(i for i, (a, b) in enumerate(zip(was, now, strict=True)) if a != b)
        return _first_difference(f"{key} {at + 1}", was[at], now[at])
    return key, repr(was), repr(now)
