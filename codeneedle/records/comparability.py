"""Which setups are comparable: what must not differ, and what may grow."""

import hashlib
import itertools
import re
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
        key: What differs: ``context``, or ``recall depth`` for a probe's setting.
        stored: Its value in the folder; ``None`` for none.
    """

    def __init__(self, *, folder: Path, key: str, stored: str, wanted: str) -> None:
        super().__init__(
            f"{folder} holds a run with another {key}: {stored}, now {wanted}",
            hint=f"Go on with the former {key}: {sweep_command(folder)}. Or "
            "choose another folder with --out, or move that one away.",
        )
        self.key = key
        self.stored = stored


def widened(stored: Setup, wanted: Setup, grown: Mapping[str, Json] = {}) -> Setup:
    """
    The stored setup with the types and probes of both: it grows.

    Its corpus is counted from the first probe on that reads it, and has needles from
    the first that asks for some.

    Args:
        stored: That of the run folder.
        wanted: Another that does not differ from it.
        grown: Wider settings of probes that are in the folder, by name.
    """
    former = {name: list(each) for name, each in stored.former.items()}
    for name, each in wanted.former.items():
        former[name] = [*former.get(name, ()), *each]
    for name in grown:
        former[name] = [*former.get(name, ()), stored.probes[name]]
    pairs: list[str] = []
    if stored.pairs or wanted.pairs:
        pairs = list(dict.fromkeys(map(str, (*stored.grid, *wanted.grid))))
    return replace(
        _counted(stored, wanted),
        probes={**stored.probes, **wanted.probes, **grown},
        calibrated={**wanted.calibrated, **stored.calibrated},
        former={name: _distinct(each) for name, each in former.items()},
        pairs=tuple(pairs),
        types_k=tuple(by_precision((*stored.types_k, *wanted.types_k))),
        types_v=tuple(by_precision((*stored.types_v, *wanted.types_v))),
    )


def _distinct(settings: Iterable[Json]) -> tuple[Json, ...]:
    return tuple({_hash(each): each for each in settings}.values())


def _counted(stored: Setup, wanted: Setup) -> Setup:
    """*stored*, with what *wanted* has counted or chosen for the first time."""
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
    """*setup*, with the functions of *other* where no probe has asked for any yet."""
    if setup.needles or setup.forced:
        return setup
    return replace(setup, needles=other.needles, forced=other.forced)


def refuse_difference(stored: Setup, wanted: Setup, *, folder: Path) -> None:
    """
    Stop if records of *wanted* must not stand beside those of *stored*.

    Raises:
        OtherSetup: Naming the first difference, and both values.
    """
    for key, was, now in differences(_counted(stored, wanted), wanted):
        raise OtherSetup(folder=folder, key=key, stored=was, wanted=now)


def differences(ours: Setup, theirs: Setup) -> Iterator[tuple[str, str, str]]:
    """
    In what two setups differ, of all that records must share: name and both values.

    Of nested facts the first that differs is named; types, dates and probes that one
    of them lacks are left out.
    """
    ours, theirs = _with_functions(ours, theirs), _with_functions(theirs, ours)
    facts, others = _compared(ours), _compared(theirs)
    for name in facts:
        found = _first_difference({name: facts[name]}, {name: others[name]})
        if found is not None:
            yield found[0], repr(found[1]), repr(found[2])
    for probe in sorted(ours.probes.keys() & theirs.probes.keys()):
        before, after = ours.probes[probe], theirs.probes[probe]
        for key in sorted(before.keys() | after.keys()):
            if before.get(key) != after.get(key):
                yield f"{probe} {key}", repr(before.get(key)), repr(after.get(key))


WALL = (
    "Divergence is measured against a base that each build writes itself: two builds, "
    "or processors with other features, differ on K-quant weights by 0.027 to 0.035 "
    "nats, more than q4_0/q4_0 costs, and on Q8_0 weights by nothing. Measure with the "
    "same build on the same kind of processor, best with Q8_0 weights."
)
"""Why divergence is not compared. Source: antonellof/ferrox #102, #108, #110, #111."""


def other_kernels(builds: tuple[str, str], features: tuple[str, str]) -> str:
    """
    What separates the kernels of two runs, with both values; empty if nothing does.

    Args:
        builds: `Setup.llama` of each.
        features: `Setup.cpu_features` of each.
    """
    phrases = []
    if builds[0] != builds[1]:
        phrases.append(f"builds {builds[0] or '-'} and {builds[1] or '-'}")
    first, second = (each.split() for each in features)
    if set(first) != set(second):
        ours = [name for name in first if name not in second] or ["no others"]
        theirs = [name for name in second if name not in first] or ["no others"]
        phrases.append(
            f"CPU features ({' '.join(ours)} in the first, {' '.join(theirs)} in the "
            "second)"
        )
    return ", ".join(phrases)


def _compared(setup: Setup) -> Json:
    """What must not differ in *setup*, as JSON, but for the settings of probes."""
    facts = as_json(setup)
    return {name: facts[name] for name in facts if name not in _NOT_COMPARED}


def identity(setup: Setup) -> str:
    """
    A hash of what must not differ in *setup*.

    Without the settings of probes, the functions that follow from them and from the
    text, and the origin of the text, which is a phrase.
    """
    chosen = {"corpus": replace(setup.corpus, origin=""), "needles": (), "forced": ()}
    return _hash(_compared(setup) | chosen)


def stamp(setup: Setup, probe: str) -> str:
    """The name of *setup* in records of *probe*."""
    return _stamp(setup, setup.probes.get(probe))


def _stamp(setup: Setup, settings: Json | None) -> str:
    return f"{setup.identity}-{_hash(settings)}" if settings else setup.identity


def is_outgrown(record: CellRecord, setup: Setup) -> bool:
    """Whether *record* lacks what was added to the settings of its probe."""
    is_whole = record.observation is not None and not record.is_partial
    return is_whole and record.setup in _former_stamps(setup, record.probe)


def in_common(run: Run) -> Setup:
    """
    The setup of *run*, with the settings that all records with numbers have.

    Those are the former ones of a probe until its last record has what was added.
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
    if setup is None or record.setup == stamp(setup, probe):
        return
    if record.setup not in _former_stamps(setup, probe):
        raise ForeignRecord(file=file, of="another setup")


_CHANGING = re.compile(
    r"(?:.*_)?(?:ms|s|seconds|starts|retries|tokens|drafted|accepted)$"
)
"""
Names of what differs from time to time in observations: durations, and counts that
depend on when a server or a connection ended, or a cache was filled.
"""


def first_other(ours: Json | None, theirs: Json | None) -> str:
    """
    Where two observations of one cell begin to differ; empty if nowhere.

    Times are left out: ``rounds 3 reply`` for what was said and how probable it was.
    Answers are compared as far as both have them: one may have been asked more.
    """
    found = _first_difference(ours, theirs, of_observations=True)
    return "" if found is None else found[0] or "the beginning"


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
        if found := _first_difference(mine, other, of_observations=of_observations):
            path, was, now = found
            return f"{name} {path}".rstrip(), was, now
    return None


def _hash(facts: object) -> str:
    data = msgspec.json.encode(facts, order="sorted")
    return hashlib.sha256(data).hexdigest()[:_DIGITS]
