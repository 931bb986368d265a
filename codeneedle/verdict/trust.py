"""
How far cells may be trusted beside each other: attention on the CPU by their speed or
graph, caches that nothing tells from finer ones, other layers offloaded, NaN (such a
pair is no reference), and answers to other questions.
"""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from codeneedle.cache_types import Pair, most_precise
from codeneedle.probes import PROBES, refuse_impossible_settings
from codeneedle.probes.metrics import Metric
from codeneedle.records.record import (
    AGAIN,
    ON_CPU,
    Attention,
    CacheEvidence,
    CellRecord,
    Fingerprint,
    Json,
    Run,
    Setup,
    Status,
    Trouble,
    key_of,
)
from codeneedle.records.store import Store
from codeneedle.reference import reference_among
from codeneedle.text import plural

ASKED = frozenset({"prompt_tokens", "prompt_sha256", "sha256", "ends"})
"""
Names of what an answer of any probe tells of its question: how long the prompt was, a
hash of it, and where the tokens of a right answer end.
"""


ASKED_OTHERWISE = "asked otherwise than"
"""Begins the reason of a finished record that lacks answers for that."""

SLOWEST_SHARE = 0.25
"""
Least plausible prompt speed, as a share of the fastest symmetric pair's.

Kernels for quantized caches cost some tens of percent; pairs without a kernel were
reported to be 8 to 45 times slower.
"""

Speed = Callable[[CellRecord], float | None]
"""How fast a cell read prompts, in tokens per second; None if its record has none."""


def trusted_run(run: Run) -> Run:
    """
    *run* with what follows for each cell from the others: its status, and attention.

    A record stores what was observed of its cell alone. Cells are compared that were
    measured by the same probe on the same device, where a pair that was measured once
    more stands beside the first records of the others.

    Args:
        run: As it is stored; not narrowed to a probe.

    Raises:
        BadSetup: If its probes have settings that cannot be.
    """
    refuse_impossible_settings(run.setup)
    return run.with_every_record(with_derived_statuses(run.every_record, run.setup))


def with_derived_statuses(
    records: Sequence[CellRecord], setup: Setup
) -> tuple[CellRecord, ...]:
    """
    *records* with what follows for each of them from the others.

    Their observations are read only where one `is_attention_untold`. A pair that
    computes NaN in one probe has no quality in another: it is compared with none, and
    no reference.
    """
    records = tuple(_with_nan_pairs_as_gaps(records))
    groups: dict[tuple[str, str, str], dict[Pair, CellRecord]] = {}
    for record in records:
        key = (record.probe, record.variant, record.device)
        groups.setdefault(key, {})[record.pair] = record
    grid = {*setup.grid, *(record.pair for record in records)}
    is_by_speed = any(map(is_attention_untold, records))
    troubles: dict[CellKey, Trouble] = {}
    on_cpu: dict[CellKey, str] = {}
    for (probe, variant, device), of_group in groups.items():
        first = groups.get((probe, "", device), {}) if variant == AGAIN else {}
        finished = [
            record for record in (first | of_group).values() if record.has_numbers
        ]
        speed = prompt_speed_function(metrics_of(probe), setup) if is_by_speed else None
        for pair, trouble in suspect_cells(finished, grid=grid).items():
            troubles[pair, probe, variant, device] = trouble
        for pair, evidence in inferred_cpu_attention(finished, speed=speed).items():
            on_cpu[pair, probe, variant, device] = evidence
    marked = tuple(_with_derived_status(record, troubles, on_cpu) for record in records)
    return tuple(drop_answers_asked_otherwise(marked, setup))


def drop_answers_asked_otherwise(
    records: Sequence[CellRecord], setup: Setup
) -> Iterator[CellRecord]:
    """
    *records* without answers to what the reference was not asked in the same way.

    Of a server that cuts prompts, or renders them otherwise from one day to the next,
    the numbers of two pairs are of different questions.
    """
    # Other servers count what they have read, without what their cache held.
    names = ASKED - {"prompt_tokens"} if setup.lengths else ASKED
    with_loss = [
        record
        for record in records
        if record.has_numbers
        and any(metric.loss for metric in metrics_of(record.probe))
    ]
    references = {
        probe: _reference_of(
            record
            for record in with_loss
            if record.probe == probe and not record.variant
        )
        for probe in {record.probe for record in with_loss}
    }
    known = set(map(id, with_loss))
    for record in records:
        reference = references.get(record.probe)
        if reference and record is not reference and id(record) in known:
            yield _drop_asked_otherwise(record, reference, names)
        else:
            yield record


def _reference_of(records: Iterable[CellRecord]) -> CellRecord | None:
    """The record of the reference among those of one probe; None without any."""
    finished = {record.pair: record for record in records}
    pair = reference_among(finished.values())
    return finished[pair] if pair else None


def _drop_asked_otherwise(
    record: CellRecord, reference: CellRecord, names: frozenset[str]
) -> CellRecord:
    """*record* without answers asked otherwise; `MISMATCHED` if none is left."""
    ours, theirs = (
        (cell.observation or {}).get("answers") for cell in (record, reference)
    )
    if not (isinstance(ours, dict) and isinstance(theirs, dict)):
        return record
    both = [key for key in ours if isinstance(theirs.get(key), dict)]
    unlike = {
        key: phrase
        for key in both
        if isinstance(ours[key], dict)
        if (phrase := question_difference_phrase(ours[key], theirs[key], names=names))
    }
    if not unlike:
        return record
    reason = (
        f"{ASKED_OTHERWISE} {reference.pair}, and left out: {len(unlike)} of "
        f"{plural(len(ours), 'answer')} ({next(iter(unlike.values()))})"
    )
    left = {key: ours[key] for key in ours if key not in unlike}
    if not left:
        return replace(record, status=Status.MISMATCHED, reason=reason)
    observation = {**(record.observation or {}), "answers": left}
    return replace(record, observation=observation, reason=reason)


def _with_nan_pairs_as_gaps(records: Sequence[CellRecord]) -> Iterator[CellRecord]:
    """*records*, those with losses as gaps where their pair computes NaN elsewhere."""
    nan = {
        record.pair: record
        for record in records
        if record.computes_nan and record.variant != ON_CPU
    }
    for record in records:
        found = nan.get(record.pair)
        has_loss = any(metric.loss for metric in metrics_of(record.probe))
        if found and record.has_numbers and has_loss:
            reason = f"{found.reason} ({found.probe})"
            yield replace(record, status=found.status, reason=reason)
        else:
            yield record


def is_attention_untold(record: CellRecord) -> bool:
    """Whether *record*, of an accelerator, does not say where its attention ran."""
    is_on_device = bool(set(record.effective.devices) - {"CPU"})
    return record.has_numbers and is_on_device and record.attention is None


CellKey = tuple[Pair, str, str, str]
"""A pair, a probe, a variant and a device."""


def _with_derived_status(
    record: CellRecord,
    troubles: Mapping[CellKey, Trouble],
    on_cpu: Mapping[CellKey, str],
) -> CellRecord:
    """*record* with the status of its trouble, and attention that ran on the CPU."""
    key = (*key_of(record), record.device)
    if evidence := on_cpu.get(key):
        effective = replace(
            record.effective, attention=Attention.CPU, attention_evidence=evidence
        )
        record = replace(record, effective=effective)
    if trouble := troubles.get(key):
        record = replace(record, status=trouble.status, reason=trouble.reason)
    return record


def trusted_records(
    store: Store, probe: str, variant: str = ""
) -> dict[Pair, CellRecord]:
    """
    The records of *probe* and *variant* by pair, with what follows from each other.

    As they are stored in a folder that has no setup.

    Raises:
        BadInput: As `Store.read_records` does.
        BadSetup: If the setup cannot be read.
    """
    records, setup = tuple(store.read_records(probe)), store.read_setup()
    if setup is not None:
        run = Run(name=store.name, setup=setup, records=())
        records = trusted_run(run.with_every_record(records)).every_record
    return {record.pair: record for record in records if record.variant == variant}


def metrics_of(probe: str) -> tuple[Metric, ...]:
    """Metrics of a record's *probe*; none of a probe that is unknown here."""
    known = PROBES.get(probe)
    return known.metrics if known else ()


def suspect_cells(
    finished: Sequence[CellRecord], *, grid: Iterable[Pair] = ()
) -> dict[Pair, Trouble]:
    """
    The finished cells whose numbers stand for something else, and why.

    A cell with another number of layers on the accelerator than most is compared with
    no other. One whose evidence is that of a more precise pair is unverified; so are
    all others while the most precise one has none, and that one if it is quantized and
    no other differs.

    Args:
        finished: Of one probe, at most one per pair.
        grid: Pairs of the sweep, measured or not.
    """
    return dict(_troubles_of_offload(finished)) | dict(
        _troubles_of_unproven_types(finished, grid)
    )


def inferred_cpu_attention(
    finished: Sequence[CellRecord], *, speed: Speed | None
) -> dict[Pair, str]:
    """
    The cells whose attention ran on the CPU by the numbers of others, and what tells.

    Only of cells that do not tell themselves. A graph in more parts than another pair's
    means that some of it runs on another device. On an accelerator, reading prompts
    many times slower means the same; on a CPU it does not, because quantized attention
    is that slow there.

    Args:
        finished: Of one probe, at most one per pair.
        speed: How fast a cell read prompts; None on a machine without an accelerator.
    """
    unknown = {record.pair for record in finished if record.attention is None}
    slow = dict(_cells_slower_than_symmetric(finished, speed)) if speed else {}
    # llama.cpp's scheduler reports the parts itself: the stronger evidence.
    told = slow | dict(_cells_with_more_graph_splits(finished))
    return {pair: evidence for pair, evidence in told.items() if pair in unknown}


def _troubles_of_offload(
    finished: Sequence[CellRecord],
) -> Iterator[tuple[Pair, Trouble]]:
    """Cells with another number of layers on the accelerator than most, and why."""
    layers = {
        record.pair: record.effective.offloaded_layers
        for record in finished
        if record.effective.offloaded_layers is not None
    }
    if not layers:
        return
    times = Counter(layers.values())
    most = max(times.values())
    # Of two equally frequent numbers, the most precise pair's is taken.
    usual = most_precise(pair for pair in layers if times[layers[pair]] == most)
    for pair, count in layers.items():
        if count != layers[usual]:
            reason = (
                f"{plural(count, 'layer')} on the accelerator, "
                f"{layers[usual]} for {usual}"
            )
            yield pair, Trouble(Status.MISMATCHED, reason)


def _cells_with_more_graph_splits(
    finished: Sequence[CellRecord],
) -> Iterator[tuple[Pair, str]]:
    """Cells whose graph has more parts than the fewest of all, and what tells."""
    parts = {
        record.pair: record.effective.graph_splits
        for record in finished
        if record.effective.graph_splits is not None
    }
    if not parts:
        return
    fewest = min(parts.values())
    for pair, count in parts.items():
        if count > fewest:
            whole = most_precise(p for p in parts if parts[p] == fewest)
            yield pair, f"{count} graph splits, {fewest} for {whole}"


def _cells_slower_than_symmetric(
    finished: Sequence[CellRecord], speed: Speed
) -> Iterator[tuple[Pair, str]]:
    """
    Pairs that read prompts too slowly beside the fastest symmetric one, with a phrase.

    Too slowly is below `SLOWEST_SHARE`. Pairs on the CPU alone are left out; nothing
    without a symmetric one.
    """
    # Of those whose KV cache may be on an accelerator.
    on_device = (
        record for record in finished if set(record.effective.devices) != {"CPU"}
    )
    speeds = {r.pair: value for r in on_device if (value := speed(r))}
    symmetric = [pair for pair in speeds if pair.k == pair.v]
    if not symmetric:
        return
    fastest = max(symmetric, key=lambda pair: speeds[pair])
    for pair, value in speeds.items():
        if value < SLOWEST_SHARE * speeds[fastest]:
            yield (
                pair,
                (
                    f"by its speed alone: it reads {value:,.0f} tokens/s of a prompt, "
                    f"{fastest} reads {speeds[fastest]:,.0f}"
                ),
            )


def prompt_speed_function(metrics: Iterable[Metric], setup: Setup) -> Speed:
    """
    How fast a cell read prompts, by the first of *metrics* that measures it.

    Of several values the slowest counts: attention on the CPU slows every prompt. None
    where no metric measures it, or a record has no value.
    """
    metric = next(
        (candidate for candidate in metrics if candidate.is_prompt_speed), None
    )

    def speed(record: CellRecord) -> float | None:
        if metric is None:
            return None
        return min(metric.values(record, setup), default=None)

    return speed


REPLY_NOISE_FACTOR = 3.0
"""Replies differ if they do so by more than repeated ones, times this."""

RESOLUTION = 2e-4
"""Least difference of log-probabilities, in nats: they are stored with 4 decimals."""

LEAST_GROWTH_BYTES = 16 << 20
"""Least difference of what two servers grow by: less may be chance."""

REFERENCE_GROWTH = 4
"""The reference has to grow by so many times that: a server that takes all memory at
its start does not grow."""

LEAST_GROWTH = 0.05
"""Least difference as a share of the reference's growth: buffers grow, too."""


def _troubles_of_unproven_types(
    finished: Sequence[CellRecord], grid: Iterable[Pair]
) -> Iterator[tuple[Pair, Trouble]]:
    """
    Cells of servers that do not tell, which nothing tells from a more precise one.

    From the reference, replies, probabilities or memory may tell a pair; from others
    only probabilities, for the replies of two good types are often the same. A
    reference that is quantized is told from others, too: that shows that the server
    heeds types, not that those of the reference are what they are called.
    """
    evidence = {
        r.pair: r.effective.cache_evidence
        for r in finished
        if r.effective.cache_evidence
    }
    if not evidence:
        return
    reference = most_precise({*grid, *evidence})
    known = evidence.pop(reference, None)
    apart = {
        pair
        for pair, pair_evidence in evidence.items()
        if known
        and (
            _replies_differ(pair_evidence, known)
            or _has_less_memory_growth(pair_evidence, known)
        )
    }
    if known and not apart and not reference.is_unquantized:
        reason = "no more precise pair was measured to compare its evidence with"
        if evidence:
            reason = f"nothing tells a coarser pair from it, and {reason}"
        yield reference, Trouble(Status.UNVERIFIED, reason)
    for pair, pair_evidence in evidence.items():
        twin = _finer_pair_with_same_logprobs(pair, evidence)
        reason = ""
        if known is None:
            reason = f"there is no evidence of {reference} to compare its own with"
        elif pair not in apart:
            reason = (
                f"nothing tells it from {reference}: {_evidence_phrase(pair_evidence)}"
            )
        elif twin is not None:
            reason = f"its probabilities are those of {twin}, in every digit"
        if reason:
            yield pair, Trouble(Status.UNVERIFIED, reason)


def _finer_pair_with_same_logprobs(
    pair: Pair, evidence: Mapping[Pair, CacheEvidence]
) -> Pair | None:
    """A more precise pair with the same probabilities; None if there is none."""
    one = evidence[pair].fingerprints
    if not one or not all(fingerprint.logprobs for fingerprint in one):
        return None
    others = evidence.keys() - {pair}
    same = sorted(other for other in others if evidence[other].fingerprints == one)
    return next((other for other in same if most_precise((other, pair)) == other), None)


def _replies_differ(one: CacheEvidence, other: CacheEvidence) -> bool:
    """Whether replies differ by more than they do when they are repeated."""
    if not (one.fingerprints and other.fingerprints):
        return False
    apart = min(
        _logprob_distance(a, b) for a in one.fingerprints for b in other.fingerprints
    )
    noise = max(_noise_of_replies(one), _noise_of_replies(other))
    return apart > max(REPLY_NOISE_FACTOR * noise, RESOLUTION)


def _has_less_memory_growth(one: CacheEvidence, reference: CacheEvidence) -> bool:
    """Whether memory of *one* surely grows less with the context than *reference*'s."""
    ours, theirs = one.bytes_per_token, reference.bytes_per_token
    if ours is None or theirs is None:
        return False
    (few, _), (many, _) = one.memory[:2]
    grown, saved = theirs * (many - few), (theirs - ours) * (many - few)
    if ours <= 0 or grown < REFERENCE_GROWTH * LEAST_GROWTH_BYTES:
        return False
    return saved > max(LEAST_GROWTH_BYTES, LEAST_GROWTH * grown)


def _noise_of_replies(evidence: CacheEvidence) -> float:
    """The largest distance of two replies to one text; infinite without two."""
    pairs = itertools.combinations(evidence.fingerprints, 2)
    return max(
        (_logprob_distance(one, other) for one, other in pairs), default=math.inf
    )


def _logprob_distance(one: Fingerprint, other: Fingerprint) -> float:
    """The largest difference of log-probabilities; infinite for other texts."""
    if one.text != other.text or len(one.logprobs) != len(other.logprobs):
        return math.inf
    differences = zip(one.logprobs, other.logprobs, strict=True)
    return max((abs(a - b) for a, b in differences), default=0.0)


def _evidence_phrase(evidence: CacheEvidence) -> str:
    """``probabilities of a fixed text, 512 bytes a token``: what was looked at."""
    has_numbers = any(fingerprint.logprobs for fingerprint in evidence.fingerprints)
    phrase = f"{'probabilities' if has_numbers else 'replies'} of a fixed text"
    noise = _noise_of_replies(evidence)
    if not evidence.fingerprints:
        phrase = "it has no replies to a fixed text"
    elif noise:
        by = "in text" if math.isinf(noise) else f"by {noise:.4f} nats"
        phrase += f", which vary {by} from one asking to the next"
    slope = evidence.bytes_per_token
    return phrase if slope is None else f"{phrase}, {slope:,.0f} bytes a token"


def question_difference_phrase(
    ours: Json, theirs: Json, *, names: frozenset[str] = ASKED
) -> str:
    """
    In what two answers to one question were asked another thing; empty if in nothing.

    What one of them does not tell is no difference.

    Args:
        ours: An answer, as it is stored.
        theirs: That of another pair, or of a repetition.
        names: What is compared, wherever it stands in the answers.

    Returns:
        A phrase: ``prompt_tokens 1,546, not 1,602``.
    """
    for key, mine in ours.items():
        other = theirs.get(key)
        if key in names:
            if mine and other and mine != other:
                return _difference_phrase(key, mine, other)
            continue
        for one, two in _objects_at_same_place(mine, other):
            if phrase := question_difference_phrase(one, two, names=names):
                return phrase
    return ""


def _objects_at_same_place(ours: object, theirs: object) -> Iterator[tuple[Json, Json]]:
    """Pairs of objects at the same place of two values; lists go as far as both do."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        yield ours, theirs
    elif isinstance(ours, list) and isinstance(theirs, list):
        for one, two in zip(ours, theirs, strict=False):
            yield from _objects_at_same_place(one, two)


def _difference_phrase(key: str, ours: Any, theirs: Any) -> str:
    """The phrase for a difference under *key*: numbers are told, nothing else is."""
    if isinstance(ours, int) and isinstance(theirs, int):
        return f"{key} {ours:,}, not {theirs:,}"
    return "tokens end elsewhere" if key == "ends" else "another prompt"
