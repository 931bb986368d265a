"""
What a metric is and how its loss is computed, unit by unit; metrics of right tokens
(mean log-probability, share of first choices) and the loss of their mean probability;
the share that a reference must have right for a metric to have a say; and how many
samples show a loss.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from statistics import NormalDist, fmean
from typing import Any, Literal, TypeVar

from codeneedle.engines.messages import Forced
from codeneedle.records.record import CellRecord, Setup

Values = Callable[[CellRecord, Setup], Sequence[float]]
"""Returns the observations of a metric in a finished record."""


class LossKind(StrEnum):
    """
    How the loss of a unit against the reference is computed.

    probability: Difference of the mean probabilities of its right tokens.
    nats: 1 - exp(-x), if the unit has x nats per token less than with the reference.
    change: The divergence, in nats. It is not a loss: it can exclude a pair, but not
        recommend one.
    answers: 1 if the unit is lost, else 0.
    score: Difference of its scores.
    """

    PROBABILITY = "probability"
    NATS = "nats"
    CHANGE = "change"
    ANSWERS = "answers"
    SCORE = "score"

    @property
    def is_of_right_tokens(self) -> bool:
        """True if a loss is a share of right tokens, by probability or by nats."""
        return self in {LossKind.PROBABILITY, LossKind.NATS}

    @property
    def has_counted_outcomes(self) -> bool:
        """True for counted outcomes, where equal values are normal."""
        return self in {LossKind.ANSWERS, LossKind.SCORE}


Units = Mapping[str, float]
"""What losses of one pair are computed of, by name of the unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """How a metric enters the verdict, unit by unit."""

    kind: LossKind  # how the loss of a unit is computed
    what: str = "the right tokens"
    """What is lost, as a phrase, where losses of several metrics stand side by side."""

    by_unit: Callable[[CellRecord, Setup], dict[str, float]] | None = None
    """
    Number of each unit that losses are computed of; None for the values of the metric.
    """

    lost_from: float = 0.0  # decrease from which on a unit is lost, of answers
    units: Callable[[CellRecord, Setup], Sequence[str]] | None = None
    """
    Names of all units of a record, including those without a value; None if each has
    one.
    """

    lacking: Callable[[CellRecord], str] = lambda _record: ""
    """
    Phrase for the units of a record that could not be measured, and may have been lost
    or won; empty for none.
    """

    bounded: Callable[[CellRecord], float] = lambda _record: 0.0
    """
    Share of the tokens of a record, from 0 to 1, whose probability has only an upper
    bound.
    """

    able: Callable[[CellRecord, Setup], float] = lambda _record, _setup: 1.0
    """
    Share of a record that is right, from 0 to 1: a reference with little right has
    little to lose.
    """

    right: str = "the model itself has {able} right with {pair}"
    """How a reference with little right is told; ``able`` as a percentage."""

    why_guessed: Callable[[CellRecord, Setup], str] = lambda _record, _setup: ""
    """
    Phrase for a record that has right what any text of its kind tells, and nothing of
    what was asked for; empty for others.
    """

    faults: tuple[tuple[str, str], ...] = ()
    """
    Ways for an answer to be wrong, where they are told apart: the name of the metric
    that counts one, and a phrase.
    """

    crosschecked: Callable[[CellRecord, Setup], dict[str, float]] | None = None
    """
    Numbers of the units that were measured another way, too, which check this one; None
    if there is no other way.
    """

    def unit_loss(self, value: float, reference: float) -> float:
        """
        The loss of a unit with *value*, against that of the *reference*.

        Below 0 where it has won. Of a change it is *value* itself, of answers 0 or 1,
        of nats the relative loss of probability; else the difference.
        """
        match self.kind:
            case LossKind.CHANGE:
                return value
            case LossKind.NATS:
                return -math.expm1(value - reference)
            case LossKind.ANSWERS:
                return float(reference - value >= self.lost_from)
            case LossKind.PROBABILITY | LossKind.SCORE:
                return reference - value

    def unit_losses(self, reference: Units, other: Units) -> list[float]:
        """The losses of the *other*, of the units that both have."""
        both = (name for name in reference if name in other)
        return [self.unit_loss(other[name], reference[name]) for name in both]


ABLE = 0.2
"""
Share right with the reference below which there is little to lose: a metric, or a task
at a length, does not enter the verdict.
"""

CEILING = 1.0
"""Share right with the reference from which on a small loss may not show."""

NOTABLE_LOSS = 0.05
"""Loss of the mean score for which plan and verdict count samples: five points."""

POWER = 0.8
"""Chance that so many samples show such a loss."""


def samples_needed(flips: float, *, share: float, loss: float = NOTABLE_LOSS) -> int:
    """
    Number of samples that show a given loss of the mean score, with `POWER`.

    Args:
        flips: Share of samples whose score differs from the reference's.
        share: Chance of an error on one side; see `verdict.statistics.error_share`.
        loss: Loss of the mean score.

    Source:
        Normal approximation; the variance of the difference of two scores of 0 or 1 is
        the share that differs.
    """
    normal = NormalDist()
    errors = normal.inv_cdf(1 - share) + normal.inv_cdf(POWER)
    return math.ceil(errors**2 * max(flips, loss) / loss**2)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitKind:
    """What the units of a metric are, and what a verdict says of more and of others."""

    noun: str  # what they are, in the plural: ``functions``
    more: str  # option that asks for more of them, or what else does
    others: str  # what they do not speak for: ``another text``
    others_by: str = ""  # options that measure that; empty for none
    place: str = ""  # where all of them are: ``in this text``; empty for nowhere


FUNCTIONS = UnitKind(
    noun="functions",
    more="--functions",
    others="another text",
    others_by="--corpus",
    place="in this text",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A number of a cell: what is measured. `report.display` says how it is shown."""

    name: str  # name for ``--metric``: ``matched``, ``tg@4096``
    unit: str  # unit of the values; empty for a pure number
    better: Literal["higher", "lower", "neither"]
    """The good end of its scale, or ``neither``."""

    values: Values
    """
    The observations of one finished record, one per round if there are rounds; empty
    without any. The value of a cell is their mean.
    """

    is_sum: bool = False  # True if the value of a cell is their sum (``pass``)
    quantity: Literal["quality", "speed", "memory"] = "quality"
    """
    What it depends on beside the pair: the text, the machine and its device, or the
    context.
    """

    floor: bool = False
    """
    True if the value of the reference is a noise floor, from comparing the reference
    with itself.
    """

    over_floor: Callable[[float, float], float] | None = None
    """
    What a pair has, from its value and that of the reference, a noise floor; None where
    the value itself is what it has.
    """

    reference: Callable[[CellRecord], str | None] | None = None
    """
    The pair that a record's values are measured against: ``f16/f16``. None if values
    are not; they are compared with the most precise pair.
    """

    names: Callable[[CellRecord, Setup], Sequence[str]] | None = None
    """
    Name of the unit of each observation, by which observations of two records are
    paired; None if they are paired by order.
    """

    lacks: Callable[[CellRecord, Setup], frozenset[str]] | None = None
    """
    Names of the units of a record that have no value, as one of their answers has none.
    A unit is whole or it is none: no other answer of theirs is among the values. None
    where every unit has a value.
    """

    loss: Loss | None = None  # how it enters the verdict; None if it does not
    error: Callable[[CellRecord, Setup], float | None] | None = None
    """
    Standard error of the value of a record as its tool reports it; None for that of a
    mean over units.
    """

    is_prompt_speed: bool = False
    """
    True if it is how fast a cell read prompts, in tokens per second: a cell that is far
    slower than others has fallen back.
    """

    unit_kind: UnitKind = FUNCTIONS
    """What its units are, which are the same in every cell."""

    units: Values | None = None
    """The value of every unit; None if values are of units."""

    of: str = ""  # the metric that it is a facet of: ``tg``; empty if it is whole
    facet: str = ""
    """Which: ``depth=4096``, ``task=multikey length=2048``; empty if it is whole."""

    gap: Callable[[CellRecord, Setup], tuple[str, str] | None] | None = None
    """
    Status and reason of a part of a finished record that has no value; None where the
    record tells nothing of it.
    """

    why_none: Callable[[Setup], str] = lambda _setup: ""
    """Why a finished cell may have no value; empty if unknown."""

    @property
    def unit_noun(self) -> str:
        """Plural noun for its units."""
        return self.unit_kind.noun

    @property
    def is_distance(self) -> bool:
        """
        True if it is a distance from the output of the reference in the same run.

        A share of right tokens and a count of samples are not.
        """
        kind = self.loss.kind if self.loss else LossKind.CHANGE
        is_compared = self.reference is not None and self.unit_noun != "samples"
        return is_compared and kind is LossKind.CHANGE

    def pair_measured_against(self, record: CellRecord) -> str:
        """Name of the pair that *record* was measured against; empty for none."""
        return (self.reference(record) or "") if self.reference else ""

    def loss_values_by_unit(self, record: CellRecord, setup: Setup) -> dict[str, float]:
        """The number of each unit of a finished record that losses are computed of."""
        if self.loss and self.loss.by_unit:
            return self.loss.by_unit(record, setup)
        return self.mean_value_by_unit(record, setup)

    def units_without_value(self, record: CellRecord, setup: Setup) -> frozenset[str]:
        """Names of the units that a record was asked for and has no value of."""
        return self.lacks(record, setup) if self.lacks else frozenset()

    def mean_value_by_unit(self, record: CellRecord, setup: Setup) -> dict[str, float]:
        """
        The value of each unit of a finished record, by name.

        Values of the same name are averaged: questions of one text share its
        difficulty. Units without names are numbered.
        """
        answers = self.values_by_unit(record, setup)
        return {name: fmean(values) for name, values in answers.items()}

    def values_by_unit(
        self, record: CellRecord, setup: Setup
    ) -> dict[str, list[float]]:
        """
        The values of each unit, by name; several of questions of one text.

        Empty for what is made of a whole cell and the floor: no unit has a floor.
        """
        if self.over_floor:
            return {}
        facts = (record, setup)
        values = (self.units(*facts) if self.units else ()) or self.values(*facts)
        # A record without answers has names and no values.
        numbers = [str(at) for at in range(len(values))]
        names = self.names(*facts) if self.names and values else numbers
        by_name: dict[str, list[float]] = {}
        for name, value in zip(names, values, strict=True):
            by_name.setdefault(name, []).append(value)
        return by_name


def cell_value(metric: Metric, values: Iterable[float]) -> float:
    """The mean or sum of the observations of a cell; NaN without any."""
    observations = list(values)
    if not observations:
        return math.nan
    total = math.fsum(observations)
    return total if metric.is_sum else total / len(observations)


def parse_facet(facet: str) -> dict[str, str]:
    """A *facet* by name, ``{"depth": "4096"}``; empty of the whole."""
    parts = (part.partition("=") for part in facet.split(" ") if part)
    return {name: value for name, _, value in parts}


_Item = TypeVar("_Item")
Found = Callable[[CellRecord, Setup], Iterable[tuple[str, _Item | None]]]
"""
Returns what a finished record has of each unit, with the name of the unit; None for
what it was asked for and has no score of.
"""


def metric_by_unit(
    found: Found[_Item], number: Callable[[_Item], float | None]
) -> partial[Metric]:
    """
    A metric of the *number* of each item that is *found*, under the unit's name.

    A unit with several items has no value if one item is None, or its number.
    """

    def unit_numbers(
        record: CellRecord, setup: Setup
    ) -> list[tuple[str, float | None]]:
        return [
            (name, None if item is None else number(item))
            for name, item in found(record, setup)
        ]

    def units_without_number(of: Iterable[tuple[str, float | None]]) -> frozenset[str]:
        return frozenset(name for name, value in of if value is None)

    def values_of_whole_units(
        record: CellRecord, setup: Setup
    ) -> Iterator[tuple[str, float]]:
        every = unit_numbers(record, setup)
        without = units_without_number(every)
        for name, value in every:
            if value is not None and name not in without:
                yield name, float(value)

    return partial(
        Metric,
        values=lambda *of: [value for _, value in values_of_whole_units(*of)],
        names=lambda *of: [name for name, _ in values_of_whole_units(*of)],
        lacks=lambda *of: units_without_number(unit_numbers(*of)),
    )


def values_from_number(number: Callable[[CellRecord], float | None]) -> Values:
    """The values of a metric that has one *number* per cell, or none."""

    def number_as_values(record: CellRecord, _setup: Setup) -> list[float]:
        value = number(record)
        return [] if value is None else [value]

    return number_as_values


@dataclass(frozen=True, slots=True)
class RightTokens:
    """The right tokens of the records of a probe."""

    found: Found[Forced]
    """The scores of each unit; None for what was asked for and has none."""

    def log_probability_metric(self, **facts: Any) -> partial[Metric]:
        """The metric of their mean log-probability, with further *facts* of it."""
        metric = metric_by_unit(self.found, lambda scores: scores.mean_logprob)
        return partial(metric, unit="nats", better="higher", **facts)

    def first_choice_percent_metric(self, **facts: Any) -> partial[Metric]:
        """The metric of the percentage of first choices, with further *facts* of it."""
        metric = metric_by_unit(
            self.found, lambda scores: 100 * scores.first_choice_share
        )
        return partial(metric, unit="%", better="higher", **facts)

    def leading_first_choices_metric(self, **facts: Any) -> partial[Metric]:
        """The metric of tokens before the first that is no first choice."""
        metric = metric_by_unit(self.found, lambda scores: scores.leading_first_choices)
        return partial(metric, unit="tokens", better="higher", **facts)

    def loss(
        self, every: Callable[[CellRecord], Iterable[Forced | None]], **facts: Any
    ) -> Loss:
        """
        What a pair loses of their mean probability, unit by unit.

        Args:
            every: All scores of a record: some may be bounds alone.
            facts: Further ones; see `Loss`.
        """
        return Loss(
            kind=LossKind.PROBABILITY,
            by_unit=self._unit_probabilities,
            units=self._unit_names,
            able=self._first_choice_share,
            bounded=lambda record: bound_only_token_share(every(record)),
            **facts,
        )

    def _unit_probabilities(self, record: CellRecord, setup: Setup) -> dict[str, float]:
        """Mean probability of the right tokens of each unit that has scores."""
        found = self.found(record, setup)
        return {name: scores.mean_probability for name, scores in found if scores}

    def _unit_names(self, record: CellRecord, setup: Setup) -> list[str]:
        """The names of all units, those without scores among them."""
        return [name for name, _ in self.found(record, setup)]

    def _first_choice_share(self, record: CellRecord, setup: Setup) -> float:
        """Mean share of first choices of units with scores; 0 without any."""
        found = self.found(record, setup)
        return fmean(
            [scores.first_choice_share for _, scores in found if scores] or [0]
        )


def bound_only_token_share(scores: Iterable[Forced | None]) -> float:
    """
    Share of the tokens of *scores* whose log-probability is only an upper bound.

    0 without tokens.
    """
    every = [score for score in scores if score]
    tokens = sum(len(score.logprobs) for score in every)
    return sum(len(score.bounds) for score in every) / tokens if tokens else 0.0
