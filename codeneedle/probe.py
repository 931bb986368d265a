"""What a probe is: a way to measure a cell, and the metrics that it yields."""

from collections.abc import Callable, Generator
from dataclasses import dataclass

from codeneedle.metrics import Metric
from codeneedle.records import Json
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """
    One way to measure a cell. To add one is to add a module to `probes`.

    Attributes:
        name: Part of its records' file names.
        metrics: What its records can be asked for; the first is its headline.
        measure: Measures the cell of a stage, which serves the model if asked to.
    """

    name: str
    metrics: tuple[Metric, ...]
    measure: Callable[[Stage], Measurement]
