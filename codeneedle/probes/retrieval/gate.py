"""
The gate: no pair is asked at lengths above one where the reference fails at all depths,
no other pair above one where it has nothing right; `--no-gate` switches both off.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from statistics import fmean

from codeneedle.probes.answers import Skipped
from codeneedle.probes.cell import ProbeContext
from codeneedle.probes.metrics import ABLE
from codeneedle.probes.observations import Observed
from codeneedle.probes.retrieval.outcomes import is_unanswered, score_of
from codeneedle.probes.retrieval.record import (
    NAME,
    Answered,
    Calibration,
    TextKey,
    TextRead,
    calibration_of,
    known_calibration,
    retrieval_of,
)
from codeneedle.probes.retrieval.settings import RetrievalLayout
from codeneedle.probes.retrieval.texts import texts_per_length
from codeneedle.records.record import CellRecord, Setup, as_json, from_json


@dataclass(slots=True)
class Gate:
    """Which texts of a cell are not asked any more, by its answers so far."""

    context: ProbeContext  # the cell
    observed: Observed  # the answers so far
    chosen: RetrievalLayout  # what the run asks
    _texts: dict[str, TextRead] = field(default_factory=dict, init=False)

    @property
    def _calibration(self) -> Calibration:
        return known_calibration(self.context.run.setup)

    @property
    def _is_reference(self) -> bool:
        return self._calibration.reference == str(self.context.pair)

    def keep_text_and_set_gate(self, key: TextKey, read: TextRead) -> TextRead:
        """
        Keep what was *read*, and return it.

        Behind the last text of a length, the reference sets how much it has right
        there, and which greater ones are left out.
        """
        self._texts[key.name] = read
        is_last = key.number + 1 == texts_per_length(
            key.task, self._calibration, self.chosen
        )
        # A reference that is measured once more sets nothing.
        if is_last and self._is_reference and not self.context.variant:
            self._set_right_share_and_gate(key)
        return read

    def why_pointless(self, key: TextKey) -> str:
        """
        Why *key* is not asked, as a phrase; empty if it is.

        This pair has nothing right at a shorter length, where the reference has.
        """
        if self._is_reference or not self.chosen.gate:
            return ""
        for shorter in self.chosen.lengths:
            theirs = self._calibration.right_share_at(key.task, shorter) or 0.0
            if shorter >= key.length or theirs < ABLE:
                continue
            shares = self._right_shares_by_depth(key.task, shorter)
            if shares and not any(map(any, shares.values())):
                return (
                    f"nothing is right at {shorter:,} tokens, of which "
                    f"{self._calibration.reference} has {theirs:.0%}"
                )
        return ""

    def _set_right_share_and_gate(self, size: TextKey) -> None:
        """
        Set how right the reference is at the length of *size*.

        If it fails at all depths, and there is a gate, greater lengths are left out for
        all.
        """
        calibration, shares = (
            self._calibration,
            self._right_shares_by_depth(size.task, size.length),
        )
        if not shares:
            return
        right = fmean(itertools.chain.from_iterable(shares.values()))
        place = (size.task, size.length)
        others = (e for e in calibration.answered if (e.task, e.length) != place)
        told = Answered(*place, round(right, 4))
        calibration = replace(calibration, answered=(*others, told))
        fails = all(fmean(share) < ABLE for share in shares.values())
        if fails and self.chosen.gate:
            reason = (
                f"{calibration.reference} has less than {ABLE:.0%} right at "
                f"{size.length:,} tokens at every depth"
            )
            left_out = (
                *calibration.left_out,
                *_greater_lengths(size, calibration, reason),
            )
            calibration = replace(calibration, left_out=left_out)
        self.context.keep_calibration(NAME, as_json(calibration))

    def _asked_text_keys(self) -> Iterator[TextKey]:
        """Keys of all texts that were asked, that of now included."""
        return map(TextKey.parse, {**self.observed.answers, **self._texts})

    def _right_shares_by_depth(
        self, task: str, length: int
    ) -> dict[float, list[float]]:
        """
        How right answers to *task* are at *length*, by depth.

        Unanswered ones are not there.
        """
        shares: dict[float, list[float]] = {}
        for key in self._asked_text_keys():
            if (key.task, key.length) != (task, length):
                continue
            text = self._texts.get(key.name) or self._decode_earlier_text(key.name)
            for answer in text.answers:
                if not is_unanswered(answer):
                    share = score_of(text, answer).share
                    shares.setdefault(answer.depth, []).append(share)
        return shares

    def _decode_earlier_text(self, name: str) -> TextRead:
        """A text that an earlier server was asked about; it is kept, too."""
        answer = self.observed.answers[name]
        read = self._texts[name] = from_json(answer, TextRead, file=name)
        return read


def _greater_lengths(
    failed: TextKey, calibration: Calibration, reason: str
) -> list[Skipped]:
    """The greater lengths of the task that *failed*, left out for that *reason*."""
    return [
        Skipped(size.task, size.length, reason)
        for size in calibration.sizes
        if size.task == failed.task and size.length > failed.length
    ]


def skipped_lengths(setup: Setup, record: CellRecord) -> tuple[Skipped, ...]:
    """Lengths that no pair was asked, and those that this one was not."""
    calibration, retrieval = calibration_of(setup), retrieval_of(record)
    of_all = calibration.left_out if calibration else ()
    return (*of_all, *(retrieval.skipped_lengths if retrieval else ()))
