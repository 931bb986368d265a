"""
Estimates, before the first cell, how many functions a cell is asked to write and how
many are scored, and the price of that.
"""

import math
from itertools import pairwise

from msgspec import structs

from codeneedle.corpora.corpus import Corpus
from codeneedle.corpora.needles import WRITTEN_LINES, block_ends
from codeneedle.engines.pace import Price
from codeneedle.models.kv_cache import pad_context
from codeneedle.probes.estimates import Bill, Estimates
from codeneedle.probes.reading import chunk_lengths
from codeneedle.probes.recall.passages import lines_per_question_and_answer
from codeneedle.probes.recall.settings import (
    RecallLayout,
    RecallSettings,
    recall_layout,
)
from codeneedle.text import plural


def bill_of_functions(settings: RecallSettings, estimates: Estimates) -> Bill:
    """
    What a cell takes: the text, and lines of as many functions as are likely to fit.

    Nothing, with a phrase that says so, if the context is too small for one.
    """
    setup, corpus, chosen = estimates.setup, estimates.corpus, settings
    there = recall_layout(setup) if setup else RecallLayout()
    if estimates.functions is not None:
        chosen = structs.replace(chosen, functions=estimates.functions)
    a_line = estimates.tokens(len(corpus.text)) / corpus.line_count
    if there.written or there.forced:
        written = len(there.written)
        scored = min(len(there.forced), chosen.function_count)
    else:
        least = _shortest_text_tokens(corpus, chosen, estimates)
        if least > estimates.context:
            return Bill(price=Price(), phrase=_context_too_small_phrase(least))
        written, scored = _expected_function_counts(chosen, estimates)
    if chosen.scores_right_lines and not written:
        chosen = chosen.without_writing
    written *= chosen.writes_lines
    scored *= chosen.scores_right_lines
    tokens: float = written * (chosen.reply_tokens or WRITTEN_LINES * a_line)
    texts: tuple[int, ...] = (
        (estimates.sent_corpus_tokens,)
        if written or not chosen.reads_instead_of_forcing
        else ()
    )
    if chosen.reads_instead_of_forcing:
        asked = (
            lines_per_question_and_answer(corpus, chosen.lines_per_function) * a_line
        )
        text, context = estimates.sent_corpus_tokens, estimates.context
        # Those that are asked for later are read behind a text of their own.
        ends = block_ends(min(settings.function_count, scored), scored)
        for known, end in pairwise([0, *ends]):
            count = end - known
            texts += chunk_lengths(text, count * asked, count, context)
    else:
        tokens += scored * chosen.lines_per_function * a_line
    return Bill(
        price=Price.of_cell(
            texts, written=math.ceil(tokens), depth=estimates.sent_corpus_tokens
        ),
        phrase=_asked_phrase(chosen, written, scored),
    )


def _asked_phrase(chosen: RecallSettings, written: int, scored: int) -> str:
    """What is asked of so many functions."""
    phrases = []
    if chosen.writes_lines:
        functions, limit = plural(written, "function"), chosen.reply_tokens
        until = f", up to {plural(limit, 'token')} each" if limit else ""
        phrases.append(f"{WRITTEN_LINES} lines of {functions} written{until}")
    if chosen.scores_right_lines:
        functions, lines = (
            plural(scored, "function"),
            plural(chosen.lines_per_function, "line"),
        )
        phrases.append(f"{lines} of {functions} {chosen.read_or_forced_word}")
    return "; ".join(phrases)


def _shortest_text_tokens(
    corpus: Corpus, chosen: RecallSettings, estimates: Estimates
) -> int:
    """
    About the tokens of the shortest text with a function, its question and answer.

    0 if no function is long enough.
    """
    if not corpus.long_enough_functions(chosen.lines_per_function):
        return 0
    lines_before_and_right = WRITTEN_LINES / corpus.line_count * len(corpus.text)
    shortest = len(corpus.shortest_beginning(chosen.lines_per_function))
    return estimates.tokens(shortest + lines_before_and_right)


def _context_too_small_phrase(least: int) -> str:
    """What a plan says where the sweep is likely to refuse the context."""
    return (
        f"the context is too small: one function takes about {least:,} tokens with "
        f"question and answer; use --context {pad_context(least)} or more"
    )


def _expected_function_counts(
    chosen: RecallSettings, estimates: Estimates
) -> tuple[int, int]:
    """About how many functions of the text as sent are written, and scored."""
    corpus, share = estimates.corpus, estimates.sent_corpus_share
    long = math.floor(share * len(corpus.long_enough_functions(WRITTEN_LINES)))
    all_lines = math.floor(
        share * len(corpus.long_enough_functions(chosen.lines_per_function))
    )
    return min(long, corpus.sample_k), min(all_lines, chosen.function_count)
