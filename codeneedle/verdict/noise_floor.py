"""
The noise floor of a metric: how far the reference differs from itself, measured again
or with its attention on the CPU, and whether by more than the limit.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from codeneedle.probes.metrics import Loss, LossKind, Metric, Units
from codeneedle.records.record import CellRecord, Setup
from codeneedle.verdict.limits import Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseFloor:
    """How far the reference differs from itself, by one metric."""

    losses: Sequence[float] = ()
    """Losses of its repetition, one per unit; empty without one."""

    repeated: float | None = None
    """
    Size of the mean loss of its repetition; of answers, the share lost or won. None
    without one.
    """

    on_cpu: Units = field(default_factory=dict)
    """Its units with attention on the CPU; empty if they were not measured."""

    moved: float | None = None
    """That size, or share, of these; None if they were not measured."""

    def excess_phrase(self, kind: LossKind, limits: Limits) -> str:
        """
        A phrase if the repetition differs by more than the limit; empty if it does not.

        Empty of scores, too: their intervals include the noise of sampling.
        """
        limit, repeated = limits.of(kind), self.repeated
        if kind is LossKind.SCORE or repeated is None or repeated <= limit:
            return ""
        return (
            f"differs from itself by {limits.loss_amount_text(kind, repeated)}, more "
            f"than the limit of {limits.loss_amount_text(kind, limit)}: this engine "
            "does not repeat itself so closely"
        )


def noise_floor(
    metric: Metric,
    loss: Loss,
    reference: Units,
    setup: Setup,
    *,
    again: Sequence[CellRecord],
    on_cpu: Sequence[CellRecord],
) -> NoiseFloor:
    """
    The noise floor of *metric*, whose units of the reference are given.

    Args:
        metric: The metric.
        loss: How it enters the verdict.
        reference: Units of the reference.
        setup: Setup of the run.
        again: Records of repetitions of the reference; the last with shared units
            counts.
        on_cpu: Its records with attention on the CPU; the last counts.
    """
    floor = NoiseFloor()
    for record in again:
        units = metric.loss_values_by_unit(record, setup)
        if losses := loss.unit_losses(reference, units):
            repeated = _distance_from_reference(loss, reference, units)
            floor = replace(floor, losses=losses, repeated=repeated)
    for record in on_cpu:
        units = metric.loss_values_by_unit(record, setup)
        moved = _distance_from_reference(loss, reference, units)
        floor = replace(floor, on_cpu=units, moved=moved)
    return floor


def _distance_from_reference(
    loss: Loss, reference: Units, units: Units
) -> float | None:
    """
    Size of the mean loss of *units* beside *reference*; None if they share none.

    Of answers, the share that was lost or won.
    """
    losses = loss.unit_losses(reference, units)
    if not losses:
        return None
    apart = losses
    if loss.kind is LossKind.ANSWERS:  # lost or won
        apart = [*losses, *loss.unit_losses(units, reference)]
    return abs(math.fsum(apart)) / len(losses)
