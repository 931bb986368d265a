"""What a probe is: a way to measure a cell, and the metrics that it yields."""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

from codeneedle.grid import Pair
from codeneedle.metrics import Metric
from codeneedle.planning import Plan
from codeneedle.records import Json, Run, Setup
from codeneedle.stage import Stage


@dataclass(frozen=True, slots=True)
class Step:
    """
    Where a probe is.

    Attributes:
        done: Rounds that are behind it.
        total: Rounds that it takes.
        what: What it does now, as a phrase.
    """

    done: int
    total: int
    what: str


Measurement = Generator[Step, None, Json]
"""Yields where it is; returns the observation that is stored."""


def no_settings(_plan: Plan, _text: str) -> Json:
    """Of a probe whose setup says it all."""
    return {}


def no_more_metrics(_setup: Setup) -> tuple[Metric, ...]:
    """Of a probe whose metrics do not depend on its settings."""
    return ()


def as_shuffled(pairs: Sequence[Pair]) -> Sequence[Pair]:
    """The running order, left as it is."""
    return pairs


def no_remarks(_run: Run) -> tuple[str, ...]:
    """Of a probe whose numbers speak for themselves."""
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """
    One way to measure a cell. To add one is to add a module to `probes`.

    Attributes:
        name: What ``--probe`` takes; part of its records' file names.
        metrics: What its records can be asked for; the first is its headline.
        measure: Measures the cell of a stage, which serves the model if asked to.
        settings: What must be equal for its records to be comparable, beside the
            setup. Takes the plan and the corpus as sent; checks all that can be
            checked before a cell starts, and raises what is wrong.
        more_metrics: Metrics that only these settings have.
        order: Puts the pairs in the order that the probe needs.
        remarks: What its records of a run say in words, a line each.
    """

    name: str
    metrics: tuple[Metric, ...]
    measure: Callable[[Stage], Measurement]
    settings: Callable[[Plan, str], Json] = no_settings
    more_metrics: Callable[[Setup], tuple[Metric, ...]] = no_more_metrics
    order: Callable[[Sequence[Pair]], Sequence[Pair]] = as_shuffled
    remarks: Callable[[Run], tuple[str, ...]] = no_remarks
