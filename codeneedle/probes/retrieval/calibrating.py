"""
Finds what the reference sets for all pairs: tries the levels of each dial on it, by
unscored questions of their own.
"""

from statistics import fmean

from codeneedle.probes.retrieval.asker import TextAsker
from codeneedle.probes.retrieval.dial import (
    DIAL_QUESTIONS,
    fitted_character_count,
    turn_dial,
)
from codeneedle.probes.retrieval.record import Calibration, Dialled, DialStep, Fitted
from codeneedle.probes.retrieval.scoring import score_answer
from codeneedle.probes.retrieval.settings import CHARACTERS_PER_TOKEN, retrieval_layout
from codeneedle.probes.retrieval.task_kinds import TASKS, make_texts
from codeneedle.probes.retrieval.texts import make_texts_of_run


def measure_calibration(asker: TextAsker) -> Calibration:
    """Level and characters of texts for all pairs, found on unscored questions."""
    chosen = retrieval_layout(asker.context.run.setup)
    dials = [_try_fixed_or_find_level(asker, task) for task in chosen.tasks]
    sizes = [
        Fitted(d.task, length, _characters_for_length(asker, d.task, d.level, length))
        for d in dials
        for length in chosen.lengths
    ]
    return Calibration(
        reference=str(asker.context.pair), dials=tuple(dials), sizes=tuple(sizes)
    )


def _try_fixed_or_find_level(asker: TextAsker, task: str) -> Dialled:
    """The level of *task*: the one of the user, or found on the reference."""
    fixed = retrieval_layout(asker.context.run.setup).fixed_levels.get(task)
    if fixed is None:
        return turn_dial(task, lambda level: _try_level(asker, task, level))
    step = _try_level(asker, task, fixed)
    return Dialled(task=task, level=fixed, is_fixed=True, path=(step,))


def _try_level(asker: TextAsker, task: str, level: int) -> DialStep:
    """
    How many questions of their own the reference has right at *level*.

    Raises:
        BadInput: If the shortest texts of the run have no room for it.
    """
    says = TASKS[task].levels[level].says
    asker.context.report_step(0, 1, f"dial of {task} at {level}: {says}")
    setup = asker.context.run.setup
    chosen = retrieval_layout(setup)
    length = chosen.lengths[0]
    size = Fitted(task, length, _characters_for_length(asker, task, level, length))
    # What does not fit here would end the run, after minutes of other settings.
    make_texts_of_run(setup, size, level, chosen.questions)
    depths = len(chosen.depths) if TASKS[task].has_depth else 1
    tried = -(-DIAL_QUESTIONS // depths)
    shares = [
        score_answer(question, asker.ask_for_reply(text, question).text).share
        for text in make_texts_of_run(setup, size, level, tried, purpose="dial")
        for question in text.questions
    ]
    return DialStep(level, round(fmean(shares), 4), len(shares))


def _characters_for_length(asker: TextAsker, task: str, level: int, length: int) -> int:
    """Characters of a text of *length* tokens of *task* at *level*."""
    run = asker.context.run
    depths = retrieval_layout(run.setup).depths[:1]
    return fitted_character_count(
        lambda characters: (
            make_texts(
                task,
                dial=level,
                characters=characters,
                depths=depths,
                questions=1,
                seed=run.setup.seed,
            )[0].text
        ),
        length=length,
        tokenizer=asker.served.tokenizer,
        begin=length * (1 if run.is_built_in else CHARACTERS_PER_TOKEN),
    )
