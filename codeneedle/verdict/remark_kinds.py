"""The kinds of remarks: what a sentence of a verdict, or a doubt, is about."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from codeneedle.cache_types import Pair


class RemarkKind(StrEnum):
    """What a remark is about, for programs."""

    SMALLER = "smaller"
    """An open pair, smaller than the one to set, and how to decide it."""

    TYPES = "types"
    """Types of K or V all of whose pairs have one decision."""

    INFERRED = "inferred"
    """Pairs that were not measured, as a finer one is beyond."""

    MEMORY = "memory"
    """Which parts of the memory of candidates are told for another context."""

    FITS_NOW = "fits-now"
    """Candidates that fit and may not be measured yet, with the command that asks."""

    ONE_MODEL = "one-model"
    """What leaves open whether files are weights of one model."""

    LENGTHS = "lengths"
    """Pairs that lose the answers to a task from a length on."""

    WITHOUT_KERNEL = "without-kernel"
    """What the losses alone would set, which has no kernel here."""

    WORTH_COMPILING = "worth-compiling"
    """Pairs without a kernel that are within the limit, and smaller."""

    ATTENTION = "attention"
    """Pairs whose attention ran in no kernel: their speeds are compared with none."""

    AGREEMENT = "agreement"
    """A pair that was measured another way, too, with the same outcome."""

    DISAGREEMENT = "disagreement"
    """A pair whose loss is another one when it is measured another way."""

    UNCHECKED = "unchecked"
    """The pair to set, which was not measured the other way yet."""

    FAULTS = "faults"
    """How the lines that pairs write wrongly are wrong."""

    SILENT = "silent"
    """A metric that has no say."""

    FLIPS = "flips"
    """Samples that the reference lost and won when it was evaluated again."""

    PAIRED = "paired"
    """How likely the samples that a pair lost and won are by chance."""

    REPEATED = "repeated"
    """How far the reference differs from its repetition."""

    ON_CPU = "on-cpu"
    """How far the reference differs from itself with its attention on the CPU."""

    POPULATION = "population"
    """What the numbers are about."""

    SHORT_TEXT = "short-text"
    """The text ends before the context does."""

    UNTESTED = "untested"
    """What a probe was given and its numbers say nothing about."""

    UNSEEN = "unseen"
    """What so few units may not have shown."""

    REFUSED = "refused"
    """A probe that was asked for and is not measured, and why."""

    LEFT_OUT = "left-out"
    """What is in no number: copies, and units an answer of which has no score."""

    ASKED_OTHERWISE = "asked-otherwise"
    """A pair some of whose answers are to other questions than the reference's."""

    UNROTATED = "unrotated"
    """That the caches were not rotated, as they are by default."""

    ONE_KIND = "one-kind"
    """What was measured of one kind of text alone, and another kind was not."""

    NOT_COMPARED = "not-compared"
    """Pairs without numbers, and why."""

    WITHOUT_PART = "without-part"
    """A part of a probe that was asked for and has nothing, and why."""

    FAILED = "failed"
    """Pairs that are open as one of their probes failed."""

    COARSER_REFERENCE = "coarser-reference"
    """The reference has a coarser type: the loss may be its own."""

    BETTER = "better"
    """A pair gains more than the limit, which no coarser cache can."""

    SEEMS_BETTER = "seems-better"
    """A pair wins more units than the limit, which may be chance."""

    DOUBTED_REFERENCE = "doubted-reference"
    """Half or more of the pairs that are not beyond gain by this metric."""

    BOUND = "bound"
    """Of some tokens an upper bound of the probability is known, and no more."""

    MISSING = "missing"
    """Answers of a pair that the reference has are missing."""

    IDENTICAL = "identical"
    """A pair is the same as the reference in every digit."""

    UNMEASURED = "unmeasured"
    """Units that could not be measured; they widen the interval."""

    TOO_FEW = "too-few"
    """Too few samples differ for their spread to be known."""


@dataclass(frozen=True, slots=True)
class Remark:
    """A sentence of a verdict."""

    kind: RemarkKind
    text: str  # safe to show
    pairs: tuple[Pair, ...] = ()
    """The pairs that it is about; empty of one about the run, a type or a metric."""


def joined_texts(remarks: Iterable[Remark]) -> str:
    """The texts of *remarks* as one phrase; empty without any."""
    return "; ".join(remark.text for remark in remarks)
