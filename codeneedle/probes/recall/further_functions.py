"""
Which further functions an open pair is asked for, after how many it is judged, and what
they cost; where lines are read, which functions are forced for a check.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from msgspec import structs
from typing_extensions import override

from codeneedle.corpora.corpus import LIMIT
from codeneedle.corpora.needles import NeedleFacts, block_ends
from codeneedle.engines.pace import CELL, Pace, Price
from codeneedle.probes.estimates import Bill, Estimates
from codeneedle.probes.probe import Further, Question
from codeneedle.probes.reading import Group, padded_chunk_tokens
from codeneedle.probes.recall.asker import forcing_question
from codeneedle.probes.recall.bill import bill_of_functions
from codeneedle.probes.recall.metrics import FORCED
from codeneedle.probes.recall.passages import (
    group_functions_by_chunk,
    question_and_answer_tokens,
)
from codeneedle.probes.recall.record import recall_of
from codeneedle.probes.recall.settings import (
    FORCED_BESIDE,
    RecallSettings,
    Way,
    recall_layout,
    settings_of,
)
from codeneedle.records.record import CellRecord, Setup


class FurtherFunctions(Further):
    """Open pairs are asked for further functions whose lines are forced, or read."""

    metric = FORCED[0].name
    setting = "functions"

    @override
    def planned_units_at_looks(
        self, settings: RecallSettings, estimates: Estimates
    ) -> Sequence[int]:
        if not settings.scores_right_lines:
            return []
        there = len(estimates.corpus.long_enough_functions(settings.lines_per_function))
        functions = math.floor(estimates.sent_corpus_share * there)
        ends = block_ends(settings.function_count, min(functions, LIMIT))
        return ends if functions else []

    @override
    def planned_check(
        self, settings: RecallSettings, estimates: Estimates
    ) -> Bill | None:
        if not settings.reads_instead_of_forcing:
            return None
        few = min(FORCED_BESIDE, settings.function_count)
        forced = structs.replace(settings, way=(Way.FORCE,))
        return bill_of_functions(forced, replace(estimates, functions=few))

    @override
    def price(self, setup: Setup, goal: int, known: int) -> Price:
        # What is written is a part of the start: it is asked once, by the first server.
        first = Price() if known else CELL
        if settings_of(setup).reads_instead_of_forcing:
            return first + _price_of_reading(setup, goal, known)
        text = setup.corpus.tokens
        forced = _estimated_right_tokens(setup, recall_layout(setup).forced[known:goal])
        return first + Price.of_texts(text) + Price.of_answers(forced, text)

    @override
    def pace(self, record: CellRecord, setup: Setup) -> Pace:
        recall, count = recall_of(record), self.units(record)
        written_s = math.fsum(answer.wall_s for answer in recall.rounds)
        if settings_of(setup).reads_instead_of_forcing:
            read = _price_of_reading(setup, count).read
            return Pace(start_s=written_s, read_s=recall.reading_s / max(read, 1))
        # The start of a server is a part of the text that it reads.
        forced_s = math.fsum(answer.wall_s for answer in recall.forced)
        text_s = max(record.phases.total_from_launch_s - written_s - forced_s, 0.0)
        forced = _estimated_right_tokens(setup, recall_layout(setup).forced[:count])
        return Pace(
            start_s=written_s,
            read_s=text_s / max(recall.starts, 1) / max(setup.corpus.tokens, 1),
            write_s=forced_s / max(forced, 1),
        )

    @override
    def units(self, record: CellRecord) -> int:
        return len(recall_of(record).scored_answers)

    @override
    def checks(self, setup: Setup) -> Sequence[Question]:
        """Where lines are read, the first few functions, forced; else none."""
        chosen = settings_of(setup)
        if not chosen.reads_instead_of_forcing:
            return ()
        few = min(FORCED_BESIDE, chosen.function_count)
        return [
            forcing_question(needle) for needle in recall_layout(setup).forced[:few]
        ]

    @override
    def units_at_looks(self, setup: Setup) -> list[int]:
        first = settings_of(setup).function_count
        return (
            block_ends(first, len(recall_layout(setup).forced))
            if recall_layout(setup).forced
            else []
        )


FURTHER = FurtherFunctions()


def groups_to_read(setup: Setup, goal: int | None = None) -> Iterator[Group]:
    """
    The first *goal* functions whose lines are read, by the chunk that they are read in.

    Without a goal, those of every sweep.
    """
    most = goal or settings_of(setup).function_count
    ends = [end for end in FURTHER.units_at_looks(setup) if end < most]
    return group_functions_by_chunk(setup, [*ends, most])


def _estimated_right_tokens(setup: Setup, needles: Sequence[NeedleFacts]) -> float:
    """About the tokens of the right lines of *needles*."""
    characters = sum(len(line) + 1 for needle in needles for line in needle.lines)
    return setup.corpus.estimate_tokens(characters)


def _price_of_reading(setup: Setup, goal: int, known: int = 0) -> Price:
    """What reading takes until *goal* functions are read, the first *known* done."""
    there = {needle.name for needle in recall_layout(setup).forced[:known]}
    lengths = [
        padded_chunk_tokens(
            setup.corpus.tokens,
            math.ceil(question_and_answer_tokens(setup, group.passages)),
        )
        for group in groups_to_read(setup, goal)
        if not {passage.name for passage in group.passages} <= there
    ]
    return Price.of_texts(*lengths)
