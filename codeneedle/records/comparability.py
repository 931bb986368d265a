"""
Compares setups: which fields must match, and the refusal that names the first that does
not; which records are of another setup, and which answers were asked otherwise.
"""

import hashlib
import itertools
import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from codeneedle.cache_types import Pair, distinct_most_precise_first
from codeneedle.errors import RequestError
from codeneedle.records.record import (
    CellRecord,
    ForeignRecord,
    Json,
    Key,
    ModelFacts,
    Setup,
    as_json,
    key_of,
)
from codeneedle.text import json_value_phrase, sweep_command

_NOT_COMPARED = frozenset(
    {
        "created",
        "types_k",
        "types_v",
        "pairs",
        "architecture",
        "quant",
        "training_context",
        "model",
        "python",
        "probes",
        "calibrated",
        "order",
        "identity",
        "frames",
        "programs",
        "refused",
        "schema",
    }
)

_MAY_BE_UNTOLD = frozenset({"cpu_features"})
"""What a program may fail to tell for a moment: then it is no difference."""

PROGRAM = "program"
"""Under which `Setup.calibrated` has the program that serves all cells."""

_DIGITS = 16


class OtherSetup(RequestError):  # noqa: N818 - named after the fact
    """The run folder holds records of another setup; they must not mix."""

    key: str  # the field that differs: ``context``, or ``recall lines`` of a probe
    stored: Any
    """Its value in the folder, as JSON has it, or a phrase; None without one."""

    wanted: Any
    """Its value now, likewise."""

    def __init__(self, *, folder: Path, key: str, stored: Any, wanted: Any) -> None:
        name = key.replace("_", " ")
        super().__init__(
            f"{folder} holds a run of another setup ({name}: "
            f"{json_value_phrase(stored)}; now: {json_value_phrase(wanted)})",
            hint=f"Go on with the {name} of that run: {sweep_command(folder)}. Or "
            "choose another folder with --out, or move that one away.",
        )
        self.key = key
        self.stored = stored
        self.wanted = wanted


def merge_compatible_setups(stored: Setup, wanted: Setup) -> Setup:
    """
    The stored setup with the types and probes of both.

    Its corpus is that of the first setup that has counted it.

    Args:
        stored: The setup of the run folder.
        wanted: A setup that does not differ from it.
    """
    pairs: Iterable[Pair] = ()
    if stored.pairs or wanted.pairs:
        pairs = dict.fromkeys((*stored.grid, *wanted.grid))
    return replace(
        _with_corpus_counts_of(stored, wanted),
        programs={**stored.programs, **wanted.programs},
        frames={**wanted.frames, **stored.frames},
        refused=_refused_probes(stored, wanted),
        probes={**stored.probes, **wanted.probes},
        calibrated={**wanted.calibrated, **stored.calibrated},
        order=stored.order or wanted.order,
        model=wanted.model if stored.model == ModelFacts() else stored.model,
        pairs=tuple(map(str, pairs)),
        types_k=tuple(distinct_most_precise_first((*stored.types_k, *wanted.types_k))),
        types_v=tuple(distinct_most_precise_first((*stored.types_v, *wanted.types_v))),
    )


def _refused_probes(stored: Setup, wanted: Setup) -> dict[str, str]:
    """Why either refuses probes that neither has settings of; *wanted* wins."""
    refused = {**stored.refused, **wanted.refused}
    measured = stored.probes.keys() | wanted.probes.keys()
    return {name: refused[name] for name in refused if name not in measured}


def _with_corpus_counts_of(stored: Setup, wanted: Setup) -> Setup:
    """*stored* with the counts of *wanted*, if it has none itself."""
    if stored.corpus.is_counted:
        return stored
    counted = replace(
        wanted.corpus,
        source_sha256=stored.corpus.source_sha256,
        sample_k=stored.corpus.sample_k,
        sample_seed=stored.corpus.sample_seed,
    )
    return replace(stored, corpus=counted)


def refuse_difference(stored: Setup, wanted: Setup, *, folder: Path) -> None:
    """
    Stop if records of *wanted* are not comparable with those of *stored*.

    Raises:
        OtherSetup: With the first difference and both values.
    """
    for key, was, now in setup_differences(
        _with_corpus_counts_of(stored, wanted), wanted
    ):
        raise OtherSetup(folder=folder, key=key, stored=was, wanted=now)


def refuse_other_probe_settings(stored: Setup, wanted: Setup, *, folder: Path) -> None:
    """
    Stop if a probe of both setups has other settings in *wanted* than *stored*.

    Raises:
        OtherSetup: With the first setting that differs, and both values.
    """
    for key, was, now in _probe_settings_differences(stored, wanted):
        raise OtherSetup(folder=folder, key=key, stored=was, wanted=now)


def setup_differences(ours: Setup, theirs: Setup) -> Iterator[tuple[str, Any, Any]]:
    """
    The fields that must match and do not: name and both values.

    Of nested fields the first difference is named. Probes of one setup alone do not
    count.
    """
    facts, others = _fields_to_match(ours), _fields_to_match(theirs)
    arguments, now_given = facts.pop("server_args"), others.pop("server_args")
    hashes, now_hashed = facts.pop("files"), others.pop("files")
    for name in facts:
        if name in _MAY_BE_UNTOLD and not (facts[name] and others[name]):
            continue
        difference = _first_difference({name: facts[name]}, {name: others[name]})
        if difference is not None:
            yield difference
    if arguments != now_given:
        was, now = (shlex.join(given) for given in (arguments, now_given))
        yield "list of arguments after '--'", was, now
    for name in sorted({*hashes} | {*now_hashed}):
        if hashes.get(name) != now_hashed.get(name):
            was, now = (by_name.get(name, "") for by_name in (hashes, now_hashed))
            yield f"content of the file {name}", was[:_DIGITS], now[:_DIGITS]
    yield from _program_and_chat_differences(ours, theirs)
    yield from _probe_settings_differences(ours, theirs)


def _probe_settings_differences(
    ours: Setup, theirs: Setup
) -> Iterator[tuple[str, Any, Any]]:
    """The settings that differ of probes that both have, by probe."""
    for probe in sorted(ours.probes.keys() & theirs.probes.keys()):
        yield from _differences_of_one_probe(
            probe, ours.probes[probe], theirs.probes[probe]
        )


def _program_and_chat_differences(
    ours: Setup, theirs: Setup
) -> Iterator[tuple[str, Any, Any]]:
    """Programs and rendered chats of both that differ; of chats the first pieces."""
    for name in sorted(ours.programs.keys() & theirs.programs.keys()):
        if ours.programs[name] != theirs.programs[name]:
            was, now = (setup.programs[name] for setup in (ours, theirs))
            yield f"program {name}", was[:_DIGITS], now[:_DIGITS]
    for roles in sorted(ours.frames.keys() & theirs.frames.keys()):
        before, after = ours.frames[roles], theirs.frames[roles]
        if before != after:
            yield "rendered chat", before.pieces[0], after.pieces[0]


def _differences_of_one_probe(
    probe: str, ours: Json, theirs: Json
) -> Iterator[tuple[str, Any, Any]]:
    """
    The settings of *probe* that differ: plain values first, then lists of objects.

    Of a list, such as the functions that follow from them, the first difference.
    """
    lists: list[tuple[str, Any, Any]] = []
    for key in sorted(ours.keys() | theirs.keys()):
        before, after = ours.get(key), theirs.get(key)
        if before == after:
            continue
        if _is_list_with_objects(before) or _is_list_with_objects(after):
            lists.append((key, before, after))
        else:
            yield f"{probe} {key}", before, after
    for key, before, after in lists:
        path, was, now = _first_difference(before, after) or ("", before, after)
        yield f"{probe} {key} {path}".rstrip(), was, now


def _is_list_with_objects(value: object) -> bool:
    """Whether *value* is a list with an object in it, such as functions."""
    return isinstance(value, list) and any(
        isinstance(element, dict) for element in value
    )


def _fields_to_match(setup: Setup) -> Json:
    """The fields of *setup* that must match, but for settings of probes, as JSON."""
    facts = as_json(setup)
    return {name: facts[name] for name in facts if name not in _NOT_COMPARED}


def setup_identity(setup: Setup) -> str:
    """
    A hash of the fields of *setup* that must match.

    The settings of probes, and the origin of the text, which is a phrase, do not count.
    """
    corpus = replace(setup.corpus, origin="")
    return _hash_of_facts(_fields_to_match(replace(setup, corpus=corpus)))


def setup_identity_for_probe(setup: Setup, probe: str) -> str:
    """Identifier of *setup* in records of *probe*: identity and hash of settings."""
    settings = setup.probes.get(probe)
    return (
        f"{setup.identity}-{_hash_of_facts(settings)}" if settings else setup.identity
    )


def refuse_foreign_record(
    record: CellRecord, key: Key, *, setup: Setup | None, file: str
) -> None:
    """
    Stop if *record* is not that of *key* under *setup*.

    Args:
        record: The stored record.
        key: By the name of its file.
        setup: Setup of the run folder; None if unknown.
        file: Path of its file.

    Raises:
        ForeignRecord: With the pair and probe, or setup, of *record*.
    """
    if key_of(record) != key:
        raise ForeignRecord(file=file, of=str(key_of(record)))
    if setup is not None and record.setup != setup_identity_for_probe(
        setup, record.probe
    ):
        raise ForeignRecord(file=file, of="another setup")


_CHANGING = re.compile(
    r"(?!prompt_tokens$)(?:.*_)?"
    r"(?:ms|s|seconds|starts|retries|tokens|drafted|accepted)$"
)
"""
Names of observations that differ between repetitions: durations, and counts that
depend on the end of a server or a connection, or on a cache. How long a prompt was
depends on none of these.
"""


TOLD_BY_LOGS = frozenset({"ppl", "reference_ppl"})
"""Names of what a repetition may lack, as a log has lost its end."""


def first_observation_difference_path(ours: Json | None, theirs: Json | None) -> str:
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

    Of observations, names of `_CHANGING` are skipped. Answers are compared that both
    have, and lists of objects, which are answers, too, as far as both go.
    """
    if isinstance(ours, dict) and isinstance(theirs, dict):
        if of_observations and not isinstance(ours, _Answers):
            ours, theirs = (
                _comparable_part(*both) for both in ((ours, theirs), (theirs, ours))
            )
        parts: Iterable[tuple[object, Any, Any]] = (
            (key, ours.get(key), theirs.get(key)) for key in {**ours, **theirs}
        )
    elif isinstance(ours, list) and isinstance(theirs, list):
        are_objects = all(isinstance(value, dict) for value in (*ours, *theirs))
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


class _Answers(dict[str, Any]):
    """Answers by key, which may be the name of a function: ``count_tokens``."""


def _comparable_part(observed: Json, other: Json) -> Json:
    """*observed* without times, and without answers that *other* does not have."""
    kept = {
        k: v
        for k, v in observed.items()
        if not _CHANGING.fullmatch(k) and not _is_untold_by_either(k, v, other)
    }
    kept.pop("skipped", None)
    answers, theirs = (part.get("answers") for part in (observed, other))
    if isinstance(answers, dict) and isinstance(theirs, dict):
        common = answers.keys() & theirs.keys()
        kept["answers"] = _Answers({k: answers[k] for k in answers if k in common})
    return kept


def _is_untold_by_either(name: str, value: object, other: Json) -> bool:
    """Whether *name* is of `TOLD_BY_LOGS`, and one of both has no value of it."""
    return name in TOLD_BY_LOGS and (value is None or other.get(name) is None)


def _hash_of_facts(facts: object) -> str:
    data = msgspec.json.encode(facts, order="sorted")
    return hashlib.sha256(data).hexdigest()[:_DIGITS]
