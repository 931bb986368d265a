"""
The text and the context where the user names none, of a sweep that decides as much as
five minutes hold; refuses a context that the weights were not trained for.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from codeneedle.cache_types import FIRST
from codeneedle.corpora.fitting import STRETCHED, Untrained
from codeneedle.engines.pace import Price
from codeneedle.models.weights import Weights
from codeneedle.probes.estimates import Estimates
from codeneedle.sweep.request import Request

DEFAULT_CONTEXT = 16_384
"""Tokens, where the weights were trained for as many; larger ones cost hours."""

BUILT_IN_CONTEXT = 4_096
"""
Tokens: two functions of random-bodies, byte by byte, a question and its answer.

The model is an instrument: the grid of it shows that all works, in minutes. 18,432
tokens took 11 times as long, more than three minutes a cell on two slow cores.
"""

BUILT_IN_SHORT_CONTEXT = 2_560
"""Tokens: some functions of `BUILT_IN_CORPUS`, which are a third as long."""

BUILT_IN_CORPUS = "random-bodies-mini"
DEFAULT_CORPUS = "random-bodies"

DECIDING_CORPUS = "random-bodies-many"
"""
Of a sweep that decides: a short text of many functions.

Reading it takes each cell half a minute at 200 tokens/s, and it has as many functions
as an open pair may be asked for.
"""

DECIDING_CONTEXTS = (8_192, 4_096, 2_048)
"""
Tokens of its context, where neither context nor text is named.

The first with which the first step is likely to take `FIRST_ANSWER_S`, at most.
"""

FIRST_ANSWER_S = 300.0
"""What the reference and the pairs of the first step may take together, in seconds."""


def chosen_or_default_corpus(request: Request) -> str:
    """
    The corpus of *request*, by name or path, else a default.

    The built-in model has a default of its own, and so has a sweep that decides.
    """
    if request.corpus:
        return request.corpus
    if request.model and request.decide:
        return DECIDING_CORPUS
    return DEFAULT_CORPUS if request.model else BUILT_IN_CORPUS


def checked_or_default_context(
    request: Request, header: Weights, *, stretched: bool
) -> int:
    """
    The context of *request*, else a default that suits text and model, in tokens.

    The default is at most what the weights were trained for.

    Args:
        request: One page.
        header: Of the weights.
        stretched: Whether the engine extends the context beyond the training.

    Raises:
        Untrained: If the weights were not trained for it, and it is not stretched.
    """
    trained = header.training_context
    default = DEFAULT_CONTEXT if request.model else BUILT_IN_CONTEXT
    if chosen_or_default_corpus(request) == DECIDING_CORPUS:
        default = DECIDING_CONTEXTS[0]
    elif not request.model and chosen_or_default_corpus(request) == BUILT_IN_CORPUS:
        default = BUILT_IN_SHORT_CONTEXT
    context = request.context or min(default, trained or default)
    if trained and context > trained and not stretched:
        raise Untrained(
            source=f"--context {context:,}",
            trained=trained,
            way=f"--context {trained} or less, or {STRETCHED}",
        )
    return context


def context_of_deciding_sweep(
    request: Request,
    estimates: Estimates,
    prices_of: Callable[[Estimates], Sequence[Price]],
) -> int:
    """
    The context of a sweep that decides, in tokens: that of *estimates*, or of its run.

    Of the text that is its default it is the longest with which the first step is
    likely to take `FIRST_ANSWER_S` at most; the shortest if none is.

    Args:
        request: One page.
        estimates: Of the longest context.
        prices_of: What a cell takes by other estimates, for each probe that says it.
    """
    if request.contexts or estimates.corpus.name != DECIDING_CORPUS:
        return estimates.context
    if estimates.setup is not None:
        return estimates.setup.context
    fitting = [context for context in DECIDING_CONTEXTS if context <= estimates.context]
    pace = estimates.pace
    if pace is None or not fitting:
        return estimates.context
    for context in fitting:
        unread = estimates.engine.why_it_cannot_read(context, workers=estimates.workers)
        shorter = replace(estimates, context=context, unread=unread)
        cell_s = math.fsum(map(pace.seconds_for, prices_of(shorter)))
        if (1 + len(FIRST)) * cell_s <= FIRST_ANSWER_S:
            return context
    return fitting[-1]
