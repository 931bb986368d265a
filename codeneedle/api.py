"""
The Python API: runs as data frames, and their verdict.

    import codeneedle

    run = codeneedle.load("sweeps/random-bodies/my-model")
    run.table()                           # a row for each number of each pair
    run.frame("recall-logp")              # a value for each pair: rows K, columns V
    run.frame("recall-logp", units=True)  # a row for each pair and function
    run.verdict(max_loss=0.03).chosen     # the pair to set, or None
    run.setup.context                     # the conditions of the measurement
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from typing_extensions import override

from codeneedle.cache_types import RUNS
from codeneedle.probes import PROBES
from codeneedle.probes.frames import cells_frame, k_and_v_types
from codeneedle.records.record import CellRecord, Run, Setup
from codeneedle.report.chosen_runs import (
    default_metric_name,
    probe_and_metric,
    read_single_run,
)
from codeneedle.report.tidy import data_frame, table_rows
from codeneedle.text import escape_invisible, plural
from codeneedle.verdict.judge import Verdict, judge
from codeneedle.verdict.limits import MAX_EVAL_LOST, MAX_LOSS, MAX_LOST, Limits

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True, repr=False)
class LoadedRun:
    """A run as `load` read it, without cells that a running sweep adds later."""

    run: Run  # the setup and all records

    @override
    def __repr__(self) -> str:
        """Name, number of records, and metrics; not the records themselves."""
        counted = plural(len(self.records), "record")
        metrics = ", ".join(self.metrics)
        return f"<LoadedRun {escape_invisible(self.run.name)}: {counted}; {metrics}>"

    @property
    def setup(self) -> Setup:
        """The conditions of the run: weights, corpus, engine, machine, settings."""
        return self.run.setup

    @property
    def records(self) -> tuple[CellRecord, ...]:
        """One record per pair and probe, including those without numbers."""
        return self.run.records

    @property
    def metrics(self) -> list[str]:
        """Names of the metrics that have a value for at least one pair."""
        names = (
            metric.name
            for probe in PROBES.values()
            if probe.name in self.setup.probes
            for metric in probe.metrics_of(self.setup)
            if any(
                cell.has_value
                for cell in cells_frame(self.run.of_probe(probe.name), metric)
            )
        )
        return list(dict.fromkeys(names))

    def table(self, verdict: Verdict | None = None) -> "pd.DataFrame":
        """
        Every number of the run: a row for each pair, metric and facet.

        CSV and JSON of all reports are filters of it. Tables of several runs are
        joined by `pandas.concat`.

        Args:
            verdict: What losses and words are taken of; None for that of the usual
                limits.

        Returns:
            The columns ``run``, ``model``, ``corpus``, ``context`` (tokens); ``pair``,
            ``k``, ``v``; ``probe``, ``metric``, ``facet`` (``depth=4096``; empty of the
            whole), ``unit``; ``value``, its standard ``error``, the ends ``low`` and
            ``high`` of the interval that the verdict holds against ``limit``, ``n``
            (units); ``verdict``, ``reference``, ``attention``, ``status``, ``reason``.
            NaN where there is no number.
        """
        return data_frame(table_rows([self.run], [verdict or self.verdict()]))

    def frame(
        self, metric: str | None = None, *, units: bool = False
    ) -> "pd.DataFrame":
        """
        The values of *metric*.

        Args:
            metric: A name in `metrics`; None for the headline of the run.
            units: True for one row per pair and unit (function, chunk, text).

        Returns:
            A row per K type and a column per V type, most precise first, NaN for cells
            without a number; with *units* the columns ``k``, ``v``, ``unit``, ``value``
            and ``answers``. Values have the unit that ``codeneedle table`` shows. A
            unit of several answers is their mean; weighted by their number, units
            average to the cell, or add up to it where it is a sum (``pass``).

        Raises:
            UnknownName: If there is no such metric.
        """
        import numpy as np
        import pandas as pd

        probe, chosen = probe_and_metric(
            metric or default_metric_name([self.run]), [self.run]
        )
        run = self.run.of_probe(probe.name)
        if units:
            frame = _frame_by_pair_and_unit(run, chosen.mean_value_by_unit)
            answers = _frame_by_pair_and_unit(run, chosen.values_by_unit)["value"].map(
                len
            )
            return frame.assign(answers=answers.astype(int))
        down, across = k_and_v_types(run)
        values = [cell.value for cell in cells_frame(run, chosen)]
        return pd.DataFrame(
            np.reshape(values, (len(down), len(across))),
            index=pd.Index(down, name="k"),
            columns=pd.Index(across, name="v"),
        )

    def attention(self) -> "pd.DataFrame":
        """
        Where attention of each pair ran: ``kernel``, ``cpu`` or ``converted``.

        Returns:
            K types down and V types across, as `frame` has them; empty text where
            nothing tells or a cell was not measured. Of several probes one without a
            kernel counts.
        """
        import pandas as pd

        down, across = k_and_v_types(self.run)
        ran = {
            (record.pair.k, record.pair.v): record.attention.value
            for record in sorted(
                self.records, key=lambda record: not record.ran_as_usual
            )
            if record.attention and record.probe in PROBES
        }
        return pd.DataFrame(
            [[ran.get((k, v), "") for v in across] for k in down],
            index=pd.Index(down, name="k"),
            columns=pd.Index(across, name="v"),
        )

    def loss_units(self, metric: str | None = None) -> "pd.DataFrame":
        """
        The values that losses of *metric* are computed of, by pair and unit.

        For forced recall it is the mean probability of the right tokens, where `frame`
        has log-probabilities.

        Returns:
            The columns ``k``, ``v``, ``unit`` and ``value``; no row for a metric
            without losses.

        Raises:
            UnknownName: If there is no such metric.
        """
        probe, chosen = probe_and_metric(
            metric or default_metric_name([self.run]), [self.run]
        )
        run = self.run.of_probe(probe.name)
        return _frame_by_pair_and_unit(
            run if chosen.loss else replace(run, records=()), chosen.loss_values_by_unit
        )

    def verdict(
        self,
        *,
        max_loss: float = MAX_LOSS,
        max_lost: float = MAX_LOST,
        max_eval_lost: float = MAX_EVAL_LOST,
        max_memory_bytes: int | None = None,
        at: int | None = None,
    ) -> Verdict:
        """
        The pair to set and the losses of all pairs, as ``codeneedle verdict`` does.

        Args:
            max_loss: Largest share of right tokens that may be lost, above 0 to 1.
            max_lost: Largest share of answers that may be lost, above 0 to 1.
            max_eval_lost: Largest loss of the mean score of an evaluation, above 0 to
                1.
            max_memory_bytes: Largest KV cache; None for any.
            at: Context of *max_memory_bytes*, in tokens; None for that of the run.
        """
        return judge(
            self.run,
            Limits(
                max_loss=max_loss,
                max_lost=max_lost,
                max_eval_lost=max_eval_lost,
                max_memory_bytes=max_memory_bytes,
                at=at,
            ),
        )


def _frame_by_pair_and_unit(
    run: Run, of_record: Callable[[CellRecord, Setup], Mapping[str, object]]
) -> "pd.DataFrame":
    """A row for each pair and unit of *run*, as *of_record* has them; finished ones."""
    import pandas as pd

    rows = [
        (record.pair.k, record.pair.v, unit, value)
        for record in run.records
        if record.has_numbers
        for unit, value in of_record(record, run.setup).items()
    ]
    return pd.DataFrame(rows, columns=["k", "v", "unit", "value"])


def load(run: str | Path | None = None) -> LoadedRun:
    """
    Read a run.

    Args:
        run: Its folder, ``sweeps/<corpus>/<model>``; or its name below ``sweeps``, as
            the commands take it; None for the only run there.

    Raises:
        BadInput: If there is none of that name, or several.
        BadRecord: If its setup cannot be read or has another schema.
    """
    return LoadedRun(read_single_run(RUNS, None if run is None else str(run)))
