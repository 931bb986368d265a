"""Workers that measure side by side, their devices, and whether they agree."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from codeneedle.cache_types import Pair
from codeneedle.engines.engine import Engine
from codeneedle.errors import BadInput
from codeneedle.probes.probe import Probe
from codeneedle.records.comparability import first_observation_difference_path
from codeneedle.records.record import CellRecord
from codeneedle.records.store import Store
from codeneedle.reference import reference_among
from codeneedle.system.machine import usable_cores
from codeneedle.text import plural
from codeneedle.verdict.trust import trusted_records


@dataclass(frozen=True, slots=True)
class Place:
    """Where a worker measures."""

    device: str = ""  # the one accelerator that it uses; empty for whatever there is
    threads: int | None = None  # its share of the cores; None for all

    def with_all_cores(self) -> "Place":
        """The same device with all cores."""
        return replace(self, threads=None)

    def phrase(self, engine: Engine) -> str:
        """
        Device and threads, for records; empty for the whole machine.

        Devices of one kind have the same phrase.
        """
        devices = engine.identity().devices if self.device else ()
        # Without the name by which it is called on this host: CUDA0.
        kinds = sorted({name.partition(" ")[2] or name for name in devices})
        threads = [plural(self.threads, "thread")] if self.threads else []
        return ", ".join([*kinds, *threads])


@dataclass(slots=True, kw_only=True)
class Worker:
    """Measures one cell at a time."""

    engine: Engine  # bound to its device and its share of the cores
    device: str = ""  # those; see `Place.phrase`
    is_surveyed: bool = True  # whether the survey of kernels was asked of such a device
    previous_end: float | None = None
    """When its server before had ended, in monotonic seconds."""


def worker_places(
    *, devices: Sequence[str] = (), workers: int | None = None
) -> tuple[Place, ...]:
    """
    Where the workers of one machine measure; its cores are divided between them.

    Args:
        devices: One worker for each.
        workers: So many on the CPU, if there are no *devices*.

    Raises:
        BadInput: If both are given, or there are fewer cores than workers.
    """
    if devices and workers is not None:
        raise BadInput(
            source="--workers",
            reason="there is one worker for each of --devices",
            hint="Leave --workers out.",
        )
    number = len(devices) or workers or 1
    cores = usable_cores()
    if number > cores and not devices:
        raise BadInput(
            source=f"--workers {number}",
            reason=f"there are {plural(cores, 'core')}",
            hint=f"Use --workers {cores} or fewer.",
        )
    threads = None if number == 1 else max(1, cores // number)
    return tuple(Place(device, threads) for device in devices or [""] * number)


def place_phrase_without_threads(place_phrase: str) -> str:
    """A `Place.phrase` without threads: shares of the cores compute alike."""
    return re.sub(r"(^|, )\d+ threads?$", "", place_phrase)


def device_agreement_sentence(
    probe: Probe, variant: str, pairs: Sequence[Pair], *, store: Store
) -> str:
    """
    A sentence on whether two kinds of device agree on the reference of *pairs*.

    *variant* is that of its record on the other kind. Empty where one has no numbers.
    """
    ours = _reference_record(probe, pairs, store)
    others = trusted_records(store, probe.name, variant)
    theirs = others.get(ours.pair) if ours else None
    if not (ours and theirs and theirs.has_numbers):
        return ""
    place = first_observation_difference_path(ours.observation, theirs.observation)
    where = f"{ours.pair} on {ours.device} and on {theirs.device}"
    if not place:
        return f"{where}: the same {probe.name}"
    return (
        f"{where}: {probe.name} differs from {place} on; differences as small between "
        "cells of the two mean nothing"
    )


def _reference_record(
    probe: Probe, pairs: Sequence[Pair], store: Store
) -> CellRecord | None:
    """The record of the most precise of *pairs* with numbers; None without any."""
    finished = finished_records(probe, pairs, store)
    reference = reference_among(finished.values())
    return finished[reference] if reference else None


def finished_records(
    probe: Probe, pairs: Sequence[Pair], store: Store
) -> dict[Pair, CellRecord]:
    """The records of *probe* that have numbers, by pair, of *pairs*."""
    records = trusted_records(store, probe.name)
    return {p: r for p, r in records.items() if p in pairs and r.has_numbers}
