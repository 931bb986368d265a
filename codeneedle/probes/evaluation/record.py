"""The stored layout of an evaluation: its samples with their scores."""

from dataclasses import dataclass

from codeneedle.probes.stored import calibrated_in, observed
from codeneedle.records.record import CellRecord, Setup

NAME = "eval"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """
    One sample of an evaluation, with its score.

    Attributes:
        id: Identifies the sample in every cell.
        score: From 0 to 1; 0 if it has none.
        seed: Number of the attempt at the same sample; 0 for a single one.
        group: Group of samples of correlated difficulty; empty for none.
        prompt: Hash of the prompt as the tool reports it; empty if it does not.
        error: Why it has no score; empty if it has one.
    """

    id: str
    score: float
    seed: int = 0
    group: str = ""
    prompt: str = ""
    error: str = ""

    @property
    def key(self) -> tuple[str, int]:
        """Identifies an attempt: samples of two cells are paired by it."""
        return (self.id, self.seed)

    @property
    def unit(self) -> str:
        """Unit of statistics: the group, or the sample with all of its attempts."""
        return self.group or self.id


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """
    The observation of the probe.

    Attributes:
        samples: In the order of the first cell; empty before they are graded.
        reader: Name of the reader of the results.
        wall_s: Duration of the command, in seconds.
        seed: Seed that the command was given.
        against: Pair of the first cell, whose scores are the reference.
    """

    samples: tuple[Sample, ...] = ()
    reader: str = ""
    wall_s: float = 0.0
    seed: int = 0
    against: str = ""


def evaluation_of(record: CellRecord) -> Evaluation:
    """
    The observation of the probe in *record*.

    Raises:
        BadRecord: If it has another layout.
    """
    return observed(record, Evaluation)


def first_of(setup: Setup) -> Evaluation | None:
    """
    The first cell, which says which samples there are; None before it is evaluated.

    Raises:
        BadRecord: If what the setup keeps is something else.
    """
    return calibrated_in(setup, NAME, Evaluation)
