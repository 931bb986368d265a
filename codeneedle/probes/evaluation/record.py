"""
The stored layout of an evaluation: samples with their scores and units, and with how
many unscored ones a cell is a gap.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from codeneedle.probes.observations import (
    calibration_in,
    file_name_of,
    keep_results,
    observation_of,
)
from codeneedle.records.record import CellRecord, Setup, refuse_unless_possible

NAME = "eval"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One sample of an evaluation, with its score."""

    id: str  # identifies the sample in every cell
    score: float  # from 0 to 1; without meaning if it has an error
    seed: int = 0  # number of the attempt at the same sample; 0 for a single one
    group: str = ""  # group of samples of correlated difficulty; empty for none
    prompt: str = ""  # hash of the prompt as the tool reports it; empty if it does not
    error: str = ""  # why it has no score; empty if it has one

    @property
    def attempt_key(self) -> tuple[str, int]:
        """Identifies an attempt: samples of two cells are paired by it."""
        return (self.id, self.seed)

    @property
    def unit(self) -> str:
        """Unit of statistics: the group, or the sample with all of its attempts."""
        return self.group or self.id


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The observation of the probe."""

    samples: tuple[Sample, ...] = ()
    """In the order of the first cell; empty before they are graded."""

    reader: str = ""  # name of the reader of the results
    wall_s: float = 0.0  # duration of the command, in seconds
    seed: int = 0  # seed that the command was given
    against: str = ""  # pair of the first cell, whose scores are the reference


MOST_UNSCORED = 0.1
"""
Largest share of samples without a score; above it a cell is a gap.

What has no score may have been lost or won, so that many widen an interval by ten
points to either side: twice the loss that an evaluation is meant to show.
"""


def phrase_of_unscored(samples: Sequence[Sample]) -> str:
    """
    ``40 of 80 samples have no score: judge: HTTP 503``; empty if all have one.

    The most frequent reason is named; others are counted.
    """
    reasons = Counter(sample.error for sample in samples if sample.error)
    count = reasons.total()
    if not count:
        return ""
    (reason, times), *others = reasons.most_common()
    more = f" ({times}), and {len(others)} other reasons" if others else ""
    has = "has" if count == 1 else "have"
    return f"{count} of {len(samples)} samples {has} no score: {reason}{more}"


def has_too_many_unscored(samples: Sequence[Sample]) -> bool:
    """True if more of *samples* than `MOST_UNSCORED` have no score."""
    without = sum(bool(sample.error) for sample in samples)
    return without > MOST_UNSCORED * len(samples)


@keep_results()
def evaluation_of(record: CellRecord) -> Evaluation:
    """
    The observation of the probe in *record*.

    Raises:
        BadRecord: If it has another layout, or a score that cannot be.
    """
    evaluation = observation_of(record, Evaluation)
    for sample in evaluation.samples:
        what = f"the score of {sample.id} is {sample.score:g}"
        refuse_unless_possible(0 <= sample.score <= 1, what, file=file_name_of(record))
    return evaluation


def reference_evaluation(setup: Setup) -> Evaluation | None:
    """
    The first cell, which says which samples there are; None before it is evaluated.

    Raises:
        BadRecord: If what the setup keeps is something else.
    """
    return calibration_in(setup, NAME, Evaluation)
