"""What the probe stores of an evaluation: its samples, as they were graded."""

from dataclasses import dataclass

from codeneedle.records.record import CellRecord, Setup, from_json

NAME = "eval"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationSetup:
    """
    What must be equal for scores to be comparable.

    Attributes:
        command: That evaluates, with placeholders.
        score: That grades afterwards, likewise; empty for none.
        read: What reads the results, a name or ``auto``.
    """

    command: str
    score: str = ""
    read: str = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """
    One sample of an evaluation, as it was graded.

    Attributes:
        id: The same in every cell.
        score: From 0 to 1; 0 where there is none.
        seed: Of several tries at the same sample, which one; 0 for the only one.
        group: Samples of a group share what makes them hard; empty for none.
        prompt: Hash of what was asked, by the tool; empty if it does not tell.
        error: Why there is no score; empty if there is one.
    """

    id: str
    score: float
    seed: int = 0
    group: str = ""
    prompt: str = ""
    error: str = ""

    @property
    def key(self) -> tuple[str, int]:
        """By which samples of two cells are paired."""
        return (self.id, self.seed)

    @property
    def unit(self) -> str:
        """What statistics count: the group, or the sample with all of its tries."""
        return self.group or self.id


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """
    The observation of the probe.

    Attributes:
        samples: In the order of the first cell; empty if it is not graded yet.
        reader: What read the results.
        wall_s: How long the command took, in seconds.
        seed: That it was given.
        against: The pair of the cell that it is compared with, the first.
    """

    samples: tuple[Sample, ...] = ()
    reader: str = ""
    wall_s: float = 0.0
    seed: int = 0
    against: str = ""


def evaluation_of(record: CellRecord) -> Evaluation:
    """
    What the probe stored.

    Raises:
        BadRecord: If it is something else.
    """
    file = f"{record.pair.slug}.{record.probe}.json"
    return from_json(record.observation or {}, Evaluation, file=file)


def first_of(setup: Setup) -> Evaluation | None:
    """
    The cell that was evaluated first, and says which samples there are; None before.

    Raises:
        BadRecord: If what the setup keeps is something else.
    """
    stored = setup.calibrated.get(NAME)
    return from_json(stored, Evaluation, file="setup.json") if stored else None


def settings_of(setup: Setup) -> EvaluationSetup | None:
    """
    The settings of the probe; None in a run that it never measured.

    Raises:
        BadRecord: If they are something else.
    """
    stored = setup.probes.get(NAME)
    if stored is None:
        return None
    return from_json(stored, EvaluationSetup, file="setup.json")
