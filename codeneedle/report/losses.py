"""
Which loss reports show of each pair, of 100: by the metric that decides it, else by the
worst, never a divergence beside losses; with the words of the verdict below it.
"""

import itertools
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from codeneedle.cache_types import Pair
from codeneedle.probes import frames
from codeneedle.probes.frames import Cells, CellValue
from codeneedle.probes.metrics import LossKind, Metric
from codeneedle.report.colours import LossScale, loss_scale
from codeneedle.report.display import Display
from codeneedle.report.shown import (
    PAIRS,
    REFERENCE,
    SET,
    STYLES,
    NumberMark,
    Shown,
    Style,
    decision_mark,
    shown_value,
    with_colour_of_level,
)
from codeneedle.verdict.judge import PairResult, Verdict
from codeneedle.verdict.limits import Limits
from codeneedle.verdict.metric_phrases import why_open_phrase
from codeneedle.verdict.metric_results import MetricResult
from codeneedle.verdict.statistics import Decision

PERCENT = 100

KINDS = (
    {LossKind.PROBABILITY, LossKind.NATS},
    {LossKind.SCORE},
    {LossKind.ANSWERS},
)
"""
Kinds of losses that have one unit and limit; the first that was measured is shown.

Divergence is a change, not a loss.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    """The loss of each pair: of 100 right tokens, how many fewer than the reference."""

    verdict: Verdict  # has the words, and the pair to set
    rows: Mapping[Pair, MetricResult]  # the row that gives the loss of a pair
    limit: float  # of 100
    what: str  # of what there are 100: right tokens

    @property
    def label(self) -> str:
        """What is shown, as a phrase."""
        beside = f"of 100, beside {self.verdict.reference}"
        return f"{self.what} lost, {beside}{self._worse_of_kinds_phrase}"

    @property
    def digits(self) -> int:
        """Decimals worth showing: as many as `Limits.loss_amount_text` has."""
        return max(1, 1 - math.floor(math.log10(self.limit)))

    @property
    def scale(self) -> LossScale:
        """The scale of the colours, which turn at the limit."""
        return loss_scale(self.limit, [cell.value for cell in self.cells()])

    @property
    def text_kinds_if_several(self) -> list[str]:
        """Kinds of text that losses are of, if of several: recall, ordinary text."""
        rows = [
            row for e in self.verdict.compared_results for row in e.right_token_results
        ]
        found = list(dict.fromkeys(row.what_is_lost for row in rows))
        return found if len(found) > 1 else []

    @property
    def _worse_of_kinds_phrase(self) -> str:
        """``, of recall or ordinary text, the worse``; empty of one kind of text."""
        return (
            f", of {' or '.join(self.text_kinds_if_several)}, the worse"
            if self.text_kinds_if_several
            else ""
        )

    def text_kind_if_several(self, pair: Pair) -> str:
        """The `text_kind_word` of the loss of *pair*; empty if there is but one."""
        row = self.rows.get(pair)
        return (
            text_kind_word(row)
            if row and row.what_is_lost in self.text_kinds_if_several
            else ""
        )

    def cells(self) -> Cells:
        """Every pair of the grid; its value is its loss, of 100."""
        run = self.verdict.run
        k_types, v_types = frames.k_and_v_types(run)
        asked = frozenset(run.setup.grid)
        return [self._cell(Pair(k, v), asked) for k in k_types for v in v_types]

    def _cell(self, pair: Pair, asked: frozenset[Pair]) -> CellValue:
        """
        *pair* as a cell: its loss, 0 of the reference, or why there is none.

        A hole if it was neither measured nor *asked*.
        """
        result = self.verdict.result(pair)
        if result is None:
            return CellValue(pair=pair, is_hole=pair not in asked)
        if result.trouble:
            status, _, reason = result.trouble.partition(": ")
            return CellValue(pair=pair, status=status, reason=reason)
        row, is_reference = self.rows.get(pair), pair == self.verdict.reference
        if row is None and not is_reference and result.failed:
            record = result.failed[0]
            return CellValue(pair=pair, status=record.status, reason=record.reason)
        value = 0.0 if is_reference else math.nan
        return CellValue(
            pair=pair,
            status="finished",
            value=PERCENT * row.bounds.mean if row else value,
            lacking=row.unmeasured_phrase if row else "",
            against=str(self.verdict.reference),
            attention=result.attention,
            evidence=result.evidence,
        )

    def shown_losses(self) -> list[Shown]:
        """Every pair of the grid: its loss, and below it what the verdict says."""
        display = Display(label=self.label, digits=self.digits)
        cells, inferred = self.cells(), self.verdict.inferred_pairs
        scale = self.scale
        values = (
            shown_value(cell, display, below=self._marks(cell.pair), inferred=inferred)
            for cell in cells
        )
        return [
            with_colour_of_level(self._with_style_and_note(value), cell.value, scale)
            for cell, value in zip(cells, values, strict=True)
        ]

    def _marks(self, pair: Pair) -> Iterator[NumberMark]:
        """``within``, ``set``, ``beyond kld``: words below a loss."""
        if pair == self.verdict.reference:
            yield REFERENCE
            yield replace(REFERENCE, sign="reference")
            return
        result, decision = self.verdict.result(pair), self.verdict.decision(pair)
        is_answer = pair == self.verdict.chosen
        if is_answer:
            is_within = decision == Decision.WITHIN
            yield SET if is_within else replace(SET, sign=f"{SET.sign},")
        if decision == Decision.OPEN and result and result.leading_result:
            why = open_reason(result, result.leading_result)
            yield NumberMark(decision, f"{PAIRS}: {why}" if why else PAIRS)
        elif decision and not (is_answer and decision == Decision.WITHIN):
            yield decision_mark(decision)
        if name := self.other_deciding_metric_name(pair):
            yield NumberMark(name, f"decides {PAIRS}")
        elif kind := self.text_kind_if_several(pair):
            what = self.rows[pair].what_is_lost
            yield NumberMark(
                kind, f"the loss is of {what}: the worse of those measured"
            )

    def _with_style_and_note(self, value: Shown) -> Shown:
        """*value* with the style of its decision, and its interval as a note."""
        pair, style = value.pair, value.style
        if pair == self.verdict.reference:
            style |= Style.REFERENCE
        if pair == self.verdict.chosen:
            style |= Style.SET
        style |= STYLES.get(self.verdict.decision(pair), Style.PLAIN)
        row = self.rows.get(pair)
        note = interval_phrase(self.verdict.limits, row) if row else ""
        return replace(value, style=style, note=note)

    def has_right_token_loss_of(self, metric: Metric) -> bool:
        """True if the losses are those of *metric*, of right tokens."""
        kinds = {row.kind for row in self.rows.values() if row.metric == metric}
        return any(kind.is_of_right_tokens for kind in kinds)

    def other_deciding_metric_name(self, pair: Pair) -> str:
        """The metric that decides the word of *pair*; empty if that is its loss."""
        result, row = self.verdict.result(pair), self.rows.get(pair)
        leading = result.leading_result if result else None
        return leading.metric.name if leading and leading is not row else ""


def interval_phrase(limits: Limits, row: MetricResult) -> str:
    """``0.2 % to 0.9 %, 24 functions``; empty without an interval."""
    if not math.isfinite(row.bounds.high):
        return ""
    low, high = (
        limits.loss_amount_text(row.kind, x) for x in (row.bounds.low, row.bounds.high)
    )
    return f"{low} to {high}, {row.bounds.units} {row.metric.unit_noun}"


def open_reason(result: PairResult, row: MetricResult) -> str:
    """Why a pair is open, in the same words for all that need more units; or empty."""
    if (
        not row.doubts_phrase
        and row.units_to_decide
        and result.has_all_deciding_metrics
    ):
        return f"further {row.metric.unit_noun} would decide it"
    return row.doubts_phrase or why_open_phrase(result, row)


def losses_of(verdict: Verdict) -> Losses | None:
    """
    The losses of a run by the first of `KINDS` that any pair has.

    None if nothing that was measured shows a loss.
    """
    for kinds in KINDS:
        rows = {
            result.pair: row
            for result in verdict.compared_results
            if (row := _deciding_or_worst_row(result, kinds)) is not None
        }
        if rows:
            row = next(iter(rows.values()))
            return Losses(
                verdict=verdict,
                rows=rows,
                limit=PERCENT * row.limit,
                what=_loss_noun(row),
            )
    return None


def _deciding_or_worst_row(
    result: PairResult, kinds: Collection[LossKind]
) -> MetricResult | None:
    """What decides *result*, if it is of *kinds*; else the worst that is, or None."""
    leading = result.leading_result
    if leading and leading.kind in kinds:
        return leading
    rows = [row for row in result.metric_results if row.kind in kinds]
    return max(rows, key=lambda row: row.bounds.high, default=None)


def _loss_noun(row: MetricResult) -> str:
    """What is lost: ``right tokens``, ``points of the score``, or the answers' noun."""
    if row.kind.is_of_right_tokens:
        return "right tokens"
    return (
        row.metric.unit_noun if row.kind is LossKind.ANSWERS else "points of the score"
    )


def shown_loss_row(verdict: Verdict, result: PairResult) -> MetricResult | None:
    """
    The row whose loss the table shows: what decides, never a divergence beside losses.

    None if *result* is not compared, or has divergence alone where others have losses.
    """
    leading = result.leading_result if result.decision else None
    if leading is None or leading.kind is not LossKind.CHANGE:
        return leading
    if not has_losses(verdict):
        return leading
    losses = [row for row in result.metric_results if row.kind is not LossKind.CHANGE]
    return losses[0] if losses else None


def differing_text_kinds_by_metric(verdict: Verdict) -> dict[str, str]:
    """The `text_kind_word` of each metric of right tokens; empty unless several."""
    found = [result.right_token_results for result in verdict.compared_results]
    # A pair that lacks some says nothing of their order: the fullest comes first.
    rows = itertools.chain(*sorted(found, key=len, reverse=True))
    kinds = {row.metric.name: text_kind_word(row) for row in rows}
    return kinds if len(kinds) > 1 else {}


def text_kind_word(row: MetricResult) -> str:
    """The kind of text of *row* in a word: ``recall``, ``text``."""
    return row.what_is_lost.split()[-1]


def has_text_loss(result: PairResult) -> bool:
    """Whether the loss of a text is known, so that its divergence decides nothing."""
    return any(row.metric.unit_noun == "chunks" for row in result.right_token_results)


def has_losses(verdict: Verdict) -> bool:
    """Whether anything but divergence was measured, which is a change, not a loss."""
    rows = (row for result in verdict.compared_results for row in result.metric_results)
    return any(row.kind is not LossKind.CHANGE for row in rows)
