"""Compares setups and records: fields that must match, and settings that may grow."""

import hashlib
import itertools
import re
import shlex
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from codeneedle.errors import RequestError
from codeneedle.grid import Pair, by_precision
from codeneedle.records.record import (
    CellRecord,
    ForeignRecord,
    Json,
    Run,
    Setup,
    as_json,
)
from codeneedle.text import sweep_command

_NOT_COMPARED = frozenset(
    {
        "created",
        "types_k",
        "types_v",
        "pairs",
        "architecture",
        "quant",
        "python",
        "probes",
        "calibrated",
        "former",
        "identity",
        "schema",
    }
)

_DIGITS = 16


class OtherSetup(RequestError):  # noqa: N818 - named after the fact
    """
    The run folder holds records of another setup; they must not mix.

    Attributes:
        key: The field that differs: ``context``, or ``recall depth`` for a setting of
            a probe.
        stored: Its value in the folder; ``None`` if it has none.
    """

    def __init__(self, *, folder: Path, key: str, stored: str, wanted: str) -> None:
        name = key.replace("_", " ")
        super().__init__(
            f"{folder} holds a run with another {name}: {stored}, now {wanted}",
            hint=f"Go on with the former {name}: {sweep_command(folder)}. Or "
            "choose another folder with --out, or move that one away.",
        )
        self.key = key
        self.stored = stored


def widened(stored: Setup, wanted: Setup, grown: Mapping[str, Json] = {}) -> Setup:
    """
    The stored setup with the types and probes of both.

    Its corpus is that of the first setup that has counted it, its needles are those of
    the first setup that has some.

    Args:
        stored: The setup of the run folder.
        wanted: A setup that does not differ from it.
        grown: New settings of probes that are in the folder, by name.
    """
    former: defaultdict[str, dict[str, Json]] = defaultdict(dict)
    outgrown = {name: (stored.probes[name],) for name in grown}
    for settings in (stored.former, wanted.former, outgrown):
        for name, each in settings.items():
            former[name] |= {_hash(values): values for values in each}
    pairs: Iterable[Pair] = ()
    if stored.pairs or wanted.pairs:
        pairs = dict.fromkeys((*stored.grid, *wanted.grid))
    return replace(
        _counted(stored, wanted),
        probes={**stored.probes, **wanted.probes, **grown},
        calibrated={**wanted.calibrated, **stored.calibrated},
        former={name: tuple(each.values()) for name, each in former.items()},
        pairs=tuple(map(str, pairs)),
        types_k=tuple(by_precision((*stored.types_k, *wanted.types_k))),
        types_v=tuple(by_precision((*stored.types_v, *wanted.types_v))),
    )


def _counted(stored: Setup, wanted: Setup) -> Setup:
    """*stored* with the counts and functions of *wanted* where it has none."""
    stored = _with_functions(stored, wanted)
    if stored.corpus.is_counted:
        return stored
    counted = replace(
        wanted.corpus,
        source_sha256=stored.corpus.source_sha256,
        sample_k=stored.corpus.sample_k,
        sample_seed=stored.corpus.sample_seed,
    )
    return replace(stored, corpus=counted)


def _with_functions(setup: Setup, other: Setup) -> Setup:
    """*setup* with the functions of *other* if no probe has asked for any yet."""
    if setup.needles or setup.forced:
        return setup
    return replace(setup, needles=other.needles, forced=other.forced)


def refuse_difference(stored: Setup, wanted: Setup, *, folder: Path) -> None:
    """
    Stop if records of *wanted* are not comparable with those of *stored*.

    Raises:
        OtherSetup: With the first difference and both values.
    """
    for key, was, now in differences(_counted(stored, wanted), wanted):
        raise OtherSetup(folder=folder, key=key, stored=was, wanted=now)


def differences(ours: Setup, theirs: Setup) -> Iterator[tuple[str, str, str]]:
    """
    The fields that must match and do not: name and both values.

    Of nested fields the first difference is named. Probes of one setup alone do not
    count.
    """
    ours, theirs = _with_functions(ours, theirs), _with_functions(theirs, ours)
    facts, others = _compared(ours), _compared(theirs)
    arguments, now_given = facts.pop("server_args"), others.pop("server_args")
    for name in facts:
        difference = _first_difference({name: facts[name]}, {name: others[name]})
        if difference is not None:
            path, was, now = difference
            yield path, repr(was), repr(now)
    if arguments != now_given:
        was, now = (shlex.join(given) or "none" for given in (arguments, now_given))
        yield "list of arguments after '--'", was, now
    for probe in sorted(ours.probes.keys() & theirs.probes.keys()):
        before, after = ours.probes[probe], theirs.probes[probe]
        for key in sorted(before.keys() | after.keys()):
            if before.get(key) != after.get(key):
                yield f"{probe} {key}", repr(before.get(key)), repr(after.get(key))


def _compared(setup: Setup) -> Json:
    """The fields of *setup* that must match, but for settings of probes, as JSON."""
    facts = as_json(setup)
    return {name: facts[name] for name in facts if name not in _NOT_COMPARED}


def identity(setup: Setup) -> str:
    """
    A hash of the fields of *setup* that must match.

    The settings of probes, the functions that follow from them and from the text, and
    the origin of the text, which is a phrase, do not count.
    """
    corpus = replace(setup.corpus, origin="")
    return _hash(_compared(replace(setup, corpus=corpus, needles=(), forced=())))


def stamp(setup: Setup, probe: str) -> str:
    """The identifier of *setup* in records of *probe*."""
    return _stamp(setup, setup.probes.get(probe))


def _stamp(setup: Setup, settings: Json | None) -> str:
    return f"{setup.identity}-{_hash(settings)}" if settings else setup.identity


def is_outgrown(record: CellRecord, setup: Setup) -> bool:
    """Whether *record* was made under former settings of its probe."""
    is_whole = record.observation is not None and not record.is_partial
    return is_whole and record.setup in _former_stamps(setup, record.probe)


def in_common(run: Run) -> Setup:
    """
    The setup of *run*, with the settings that all records with numbers share.

    Those are former settings of a probe while a record made under them is left.
    """
    probes = dict(run.setup.probes)
    for name, former in run.setup.former.items():
        stamps = {r.setup for r in run.records if r.probe == name and r.has_numbers}
        common = (each for each in former if _stamp(run.setup, each) in stamps)
        probes[name] = next(common, probes[name])
    return replace(run.setup, probes=probes)


def _former_stamps(setup: Setup, probe: str) -> set[str]:
    return {_stamp(setup, each) for each in setup.former.get(probe, ())}


def refuse_foreign(
    record: CellRecord, pair: Pair, probe: str, *, setup: Setup | None, file: str
) -> None:
    """
    Stop if *record* is not that of *pair* and *probe* under *setup*.

    Args:
        record: The stored record.
        pair: Pair by the name of its file.
        probe: Probe by the name of its file.
        setup: Setup of the run folder; None if unknown.
        file: Path of its file.

    Raises:
        ForeignRecord: With the pair and probe, or setup, of *record*.
    """
    if (record.pair, record.probe) != (pair, probe):
        raise ForeignRecord(file=file, of=f"{record.pair}, {record.probe}")
    if setup is None or record.setup == stamp(setup, probe):
        return
    if record.setup not in _former_stamps(setup, probe):
        raise ForeignRecord(file=file, of="another setup")


_CHANGING = re.compile(
    r"(?:.*_)?(?:ms|s|seconds|starts|retries|tokens|drafted|accepted)$"
)
"""
Names of observations that differ between repetitions: durations, and counts that
depend on the end of a server or a connection, or on a cache.
"""


def first_other(ours: Json | None, theirs: Json | None) -> str:
    """
    The place of the first difference of two observations of a cell: ``rounds 3 reply``.

    It is empty without one. Times do not count, nor do answers to questions that only
    one of them was asked.
    """
    difference = _first_difference(ours, theirs, of_observations=True)
    return "" if difference is None else difference[0] or "the beginning"


def _first_difference(
    ours: Any, theirs: Any, *, of_observations: bool = False
) -> tuple[str, Any, Any] | None:
    """
    The first difference of two JSON values: its path, and both; None if they are equal.

    Of observations, names of `_CHANGING` are skipped, and lists of objects, which are
    answers, are compared as far as both go.
    """
    if isinstance(ours, dict) and isinstance(theirs, dict):
        parts: Iterable[tuple[object, Any, Any]] = (
            (key, ours.get(key), theirs.get(key))
            for key in {**ours, **theirs}
            if not (of_observations and _CHANGING.fullmatch(key))
        )
    elif isinstance(ours, list) and isinstance(theirs, list):
        are_objects = all(isinstance(each, dict) for each in (*ours, *theirs))
        if len(ours) != len(theirs) and not (of_observations and are_objects):
            return "length", len(ours), len(theirs)
        parts = zip(itertools.count(1), ours, theirs, strict=False)
    else:
        return None if ours == theirs else ("", ours, theirs)
    for name, mine, other in parts:
        inner = _first_difference(mine, other, of_observations=of_observations)
        if inner is not None:
            path, was, now = inner
            return f"{name} {path}".rstrip(), was, now
    return None


def _hash(facts: object) -> str:
    data = msgspec.json.encode(facts, order="sorted")
    return hashlib.sha256(data).hexdigest()[:_DIGITS]
