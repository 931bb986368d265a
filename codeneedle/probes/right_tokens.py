"""
Metrics of right tokens, forced or read, for recall, retrieval and transcripts: mean
log-probability, share of first choices; and the loss of their mean probability.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any

from codeneedle.engines.messages import Forced
from codeneedle.probes.metrics import Found, Loss, LossKind, Metric, metric_by_unit
from codeneedle.records.record import CellRecord, Setup


@dataclass(frozen=True, slots=True)
class RightTokens:
    """The right tokens of the records of a probe."""

    found: Found[Forced]
    """The scores of each unit; None for what was asked for and has none."""

    def log_probability_metric(self, **facts: Any) -> partial[Metric]:
        """The metric of their mean log-probability, with further *facts* of it."""
        metric = metric_by_unit(self.found, lambda scores: scores.mean_logprob)
        return partial(metric, unit="nats", better="higher", **facts)

    def first_choices_metric(self, **facts: Any) -> partial[Metric]:
        """The metric of the percentage of first choices, with further *facts* of it."""
        metric = metric_by_unit(
            self.found, lambda scores: 100 * scores.first_choice_share
        )
        return partial(metric, unit="%", better="higher", **facts)

    def kept_tokens_metric(self, **facts: Any) -> partial[Metric]:
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
            bounded=lambda record: bounded_token_share(every(record)),
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


def bounded_token_share(scores: Iterable[Forced | None]) -> float:
    """
    Share of the tokens of *scores* whose log-probability is only an upper bound.

    0 without tokens.
    """
    every = [score for score in scores if score]
    tokens = sum(len(score.logprobs) for score in every)
    return sum(len(score.bounds) for score in every) / tokens if tokens else 0.0
