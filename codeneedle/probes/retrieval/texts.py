"""
Which texts a run asks about, in which order, and how each is made from the run's seed:
the same for every pair.
"""

import math
import zlib

from codeneedle.probes.retrieval.record import (
    Calibration,
    Fitted,
    TextKey,
    known_calibration,
)
from codeneedle.probes.retrieval.settings import RetrievalLayout, retrieval_layout
from codeneedle.probes.retrieval.task_kinds import TASKS, make_texts
from codeneedle.probes.retrieval.tasks import TaskText
from codeneedle.records.record import Setup


def text_keys_to_ask(
    calibration: Calibration, chosen: RetrievalLayout
) -> list[TextKey]:
    """
    The texts of a run in asking order, by task, then length; without what is left out.

    Args:
        calibration: What holds for all pairs.
        chosen: What the run asks.
    """
    left_out = {(gap.task, gap.length) for gap in calibration.left_out}
    return [
        TextKey(task, length, number)
        for task in chosen.tasks
        for length in chosen.lengths
        if (task, length) not in left_out
        for number in range(texts_per_length(task, calibration, chosen))
    ]


def texts_per_length(
    task: str, calibration: Calibration, chosen: RetrievalLayout
) -> int:
    """Texts of *task* at each length."""
    return math.ceil(
        chosen.questions_per_length(task) / questions_per_text(task, calibration)
    )


def questions_per_text(task: str, calibration: Calibration) -> int:
    """Questions that share a text of *task*."""
    return TASKS[task].per_text(TASKS[task].levels[calibration.levels[task]])


def make_text_of_key(setup: Setup, key: TextKey) -> TaskText:
    """The text of *key*, the same for every pair."""
    calibration = known_calibration(setup)
    (text,) = make_texts_of_run(
        setup,
        calibration.fitted_size(key.task, key.length),
        calibration.levels[key.task],
        retrieval_layout(setup).questions,
        only=key.number,
    )
    return text


def make_texts_of_run(
    setup: Setup,
    size: Fitted,
    level: int,
    questions: int,
    *,
    purpose: str = "",
    only: int | None = None,
) -> tuple[TaskText, ...]:
    """
    Texts of *size* at *level*, the same for every pair of the run.

    Args:
        setup: Of the run, with seed and depths.
        size: Their task, length and characters.
        level: Number of the level, from 0.
        questions: At each depth.
        purpose: Other texts for each word; empty for those that all pairs are asked.
        only: Number of the single text to make; all if None.

    Raises:
        BadInput: If the characters are too few for the level.
    """
    words = f"{setup.seed}:{size.length}:{purpose}"
    return make_texts(
        size.task,
        dial=level,
        characters=size.characters,
        depths=retrieval_layout(setup).depths,
        questions=questions,
        seed=zlib.crc32(words.encode()),
        only=only,
    )
