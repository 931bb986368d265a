"""
Runs in a notebook: what was measured, as data frames, and the verdict.

    import codeneedle

    run = codeneedle.load("sweeps/random-bodies/my-model")
    run.frame("recall-logp")              # a value for each pair: rows K, columns V
    run.frame("recall-logp", units=True)  # a row for each pair and function
    run.verdict(max_loss=0.03).chosen     # the pair to set, or None
    run.setup.context                     # what it was measured on
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from codeneedle.errors import BadInput
from codeneedle.probes.frames import axes, cells_frame, of_probe
from codeneedle.probes.metrics import Metric
from codeneedle.probes.probe import Probe
from codeneedle.records.record import CellRecord, Run, Setup
from codeneedle.records.store import SETUP
from codeneedle.report.selection import default_metric, metric_named, one_run
from codeneedle.verdict.judge import Limits, Verdict, judge

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class LoadedRun:
    """
    A run as `load` reads it; later cells of a sweep that goes on are not in it.

    Attributes:
        run: The setup and every record, what reports are made of.
    """

    run: Run

    @property
    def setup(self) -> Setup:
        """What the run was measured on: weights, corpus, engine, machine, settings."""
        return self.run.setup

    @property
    def records(self) -> tuple[CellRecord, ...]:
        """One per pair and probe, those without numbers included."""
        return self.run.records

    @property
    def metrics(self) -> list[str]:
        """Names of the metrics that have a value for at least one pair."""
        return [
            metric.name
            for probe, metric in self._known()
            if any(
                cell.has_value
                for cell in cells_frame(of_probe(self.run, probe.name), metric)
            )
        ]

    def frame(
        self, metric: str | None = None, *, units: bool = False
    ) -> "pd.DataFrame":
        """
        The values of *metric*.

        Args:
            metric: A name of `metrics`; None for the headline of the run.
            units: One row per pair and unit (function, chunk, text) instead.

        Returns:
            A row per K type and a column per V type, most precise first, NaN where a
            cell has no number; with *units* the columns ``k``, ``v``, ``unit`` and
            ``value``. Values are in the metric's unit (``codeneedle table`` names it).

        Raises:
            UnknownName: If there is no such metric.
        """
        import pandas as pd

        probe, chosen = metric_named(metric or default_metric([self.run]), [self.run])
        run = of_probe(self.run, probe.name)
        if units:
            rows = [
                (record.pair.k, record.pair.v, unit, value)
                for record in run.records
                if record.has_numbers
                for unit, value in chosen.by_unit(record, run.setup).items()
            ]
            return pd.DataFrame(rows, columns=["k", "v", "unit", "value"])
        down, across = axes(run)
        cells = cells_frame(run, chosen)
        values = [cell.value for cell in cells]
        return pd.DataFrame(
            [
                values[at : at + len(across)]
                for at in range(0, len(values), len(across))
            ],
            index=pd.Index(down, name="k"),
            columns=pd.Index(across, name="v"),
        )

    def verdict(
        self,
        *,
        max_loss: float = 0.01,
        max_lost: float = 0.1,
        max_memory_bytes: int | None = None,
    ) -> Verdict:
        """
        What to set, and what each pair loses, as ``codeneedle verdict`` says it.

        Args:
            max_loss: Largest share of right tokens that may be lost, above 0 to 1.
            max_lost: Largest share of answers that may be lost, above 0 to 1.
            max_memory_bytes: Largest KV cache at the context of the run; None for any.
        """
        return judge(
            self.run,
            Limits(
                max_loss=max_loss, max_lost=max_lost, max_memory_bytes=max_memory_bytes
            ),
        )

    def _known(self) -> Iterator[tuple[Probe, Metric]]:
        from codeneedle.probes import PROBES

        for probe in PROBES.values():
            if probe.name in self.setup.probes:
                for metric in probe.metrics_of(self.setup):
                    yield probe, metric


def load(folder: str | Path) -> LoadedRun:
    """
    Read a run folder, ``sweeps/<corpus>/<model>``.

    Raises:
        BadInput: If it is not a run folder.
        BadRecord: If its setup cannot be read, or was stored by another version.
    """
    if not (Path(folder) / SETUP).is_file():
        raise BadInput(
            source=f"'{folder}'",
            reason="is no run folder: it has no setup.json",
            hint="Name sweeps/CORPUS/MODEL, as a sweep made it.",
        )
    return LoadedRun(one_run(Path(), str(folder)))
