"""
Turns a task's dial until the reference is within the aim: which level is tried next,
and which is taken; how many characters make a text of so many tokens.
"""

from collections.abc import Callable

from codeneedle.engines.engine import Tokenizer
from codeneedle.errors import BadInput
from codeneedle.probes.metrics import ABLE, CEILING
from codeneedle.probes.retrieval.record import (
    Dialled,
    DialStep,
)
from codeneedle.probes.retrieval.settings import AIM
from codeneedle.probes.retrieval.task_kinds import TASKS

DIAL_QUESTIONS = 10
"""Fewest questions that try a level of a dial: one in ten is a step of the score."""

TOLERANCE = 0.03
"""How much shorter than its length a text may be; it is never longer on purpose."""

FITTING_ROUNDS = 6
"""How often a text is made anew so that it gets the right number of tokens."""


def turn_dial(task: str, tried: Callable[[int], DialStep]) -> Dialled:
    """
    Turn the dial of *task* until the reference is within `AIM`.

    It goes up from a level that is too easy, down from one that is too hard, and
    stops where it turns back, at an end, and at a level that does not fit the text.
    Without one within, the nearest that is tried is taken; an easier one of two.

    Args:
        task: Name of the task.
        tried: Asks questions at a level. Raises BadInput if it does not fit.

    Raises:
        BadInput: If none fits.
    """
    levels = TASKS[task].levels
    steps: dict[int, DialStep] = {}
    at, misfit = TASKS[task].start, None
    while 0 <= at < len(levels) and at not in steps:
        try:
            step = steps[at] = tried(at)
        except BadInput as error:
            if steps or not at:
                misfit = error
                break
            at -= 1
            continue
        if _distance_to_aim(step) == 0:
            break
        at += 1 if step.right > AIM[1] else -1
    if not steps and misfit:
        raise misfit
    best = min(steps.values(), key=lambda step: (_distance_to_aim(step), step.level))
    path = tuple(steps.values())
    return Dialled(task=task, level=best.level, is_fixed=False, path=path)


def _distance_to_aim(step: DialStep) -> float:
    """How far its share is from `AIM`; 1 more below `ABLE` and from `CEILING` on."""
    low, high = AIM
    away = max(low - step.right, step.right - high, 0.0)
    return away if ABLE <= step.right < CEILING else away + 1


def fitted_character_count(
    make: Callable[[int], str],
    *,
    length: int,
    tokenizer: Tokenizer | None,
    begin: int,
) -> int:
    """
    How many characters make a text of *length* tokens or slightly fewer.

    The last of `FITTING_ROUNDS` tries, if none is.

    Args:
        make: Makes a text of about so many characters.
        length: In tokens.
        tokenizer: Counts them; None if the engine has none.
        begin: Characters to begin with; the result without a tokenizer.

    Raises:
        BadInput: If a text of so many characters cannot be made.
    """
    characters = begin
    for _ in range(FITTING_ROUNDS):
        text = make(characters)
        tokens = tokenizer.count_tokens(text) if tokenizer else length
        if (1 - TOLERANCE) * length <= tokens <= length:
            return characters
        characters = max(1, int(characters * (1 - TOLERANCE / 3) * length / tokens))
    make(characters)
    return characters
