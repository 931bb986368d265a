"""
How long a reply of recall may be, the room that a text must leave for the longest
question, and what is asked of a text whose functions are too few or too short.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from codeneedle.corpora.corpus import Corpus
from codeneedle.corpora.fitting import Room, context_holding_tokens
from codeneedle.corpora.needles import (
    WRITTEN_LINES,
    Function,
    NeedleFacts,
    depth_of,
    forced_needle,
    written_needle,
)
from codeneedle.errors import BadInput
from codeneedle.probes.cell import Preparation, RunContext
from codeneedle.probes.prompts import PromptForm, Prompts
from codeneedle.probes.recall.copied_lines import NO_LINES, TextLines, hash_lines
from codeneedle.probes.recall.prompts import chat_messages, completion_prompt
from codeneedle.probes.recall.settings import RecallLayout, RecallSettings
from codeneedle.probes.thinking import NO_THINK_ARGS
from codeneedle.text import plural

PRIMING_TOKENS = 8
"""Enough to make the server read the corpus; the reply is not scored."""

BUDGET_FACTOR = 1.5
BUDGET_EXTRA_TOKENS = 64
"""
Tokens that a reply may have: one and a half times those of the truth, and some
for a preamble. Long enough for every answer that can still score, short enough
that one line without end costs seconds.
"""

CANDIDATES = 8
"""The longest functions, by bytes; the longest in tokens is taken to be among them."""


@dataclass(frozen=True, slots=True)
class Questions:
    """Words questions for functions of a text, and counts their tokens."""

    prompts: Prompts
    chosen: RecallSettings  # what is asked

    def render(self, text: str, needle: NeedleFacts) -> str:
        """The prompt that asks *needle* of *text*, as the model reads it."""
        prompts = self.prompts
        if prompts.form is PromptForm.COMPLETION:
            return completion_prompt(text, needle)
        prefill = prompts.prefill_no_think
        messages = chat_messages(text, needle, prefill_no_think=prefill)
        return prompts.tokenizer.render(messages, NO_THINK_ARGS)

    def prompt_and_answer_tokens(self, text: str, needle: NeedleFacts) -> int:
        """Tokens of the prompt about *needle*, with the budget of its answer."""
        prompt = self.render(text, needle)
        return self.prompts.tokenizer.count_tokens(prompt) + needle.budget

    def with_budgets(self, needles: Sequence[NeedleFacts]) -> tuple[NeedleFacts, ...]:
        """
        *needles* to be written, each with the tokens that its reply may have.

        The limit that the user has set, else by the length of the truth.
        """
        if self.chosen.reply_tokens:
            budget = self.chosen.reply_tokens
            return tuple(replace(needle, budget=budget) for needle in needles)
        truths = ["\n".join(needle.lines) for needle in needles]
        sizes = (
            self.prompts.tokenizer.token_counts_without_special(truths)
            if truths
            else []
        )
        return tuple(
            replace(
                needle, budget=math.ceil(BUDGET_FACTOR * size) + BUDGET_EXTRA_TOKENS
            )
            for needle, size in zip(needles, sizes, strict=True)
        )

    def room(self, corpus: Corpus) -> Room:
        """
        The room that a text of *corpus* must leave for a question and its answer.

        The question is the one that takes most tokens, of the few longest functions.
        One function at least must be long enough to be asked for.
        """
        lines = _least_body_lines(self.chosen)
        functions = sorted(corpus.long_enough_functions(lines), key=_asked_bytes)
        hardest = self.needle_of_longest_question(functions[-CANDIDATES:])
        return Room(
            lines=lines,
            tokens=lambda text: self.prompt_and_answer_tokens(text, hardest),
            prompt=lambda text: self.render(text, hardest),
        )

    def needle_of_longest_question(self, functions: Sequence[Function]) -> NeedleFacts:
        """
        The one of *functions* that takes most tokens to ask: signature and budget.

        Its budget is that of a written reply. Where none is written, it is that of the
        first 20 lines, the most that stands behind a signature, and of the reply to
        the question that makes a server read the text.
        """
        tokenizer = self.prompts.tokenizer
        whole = [
            NeedleFacts(
                name=function.name,
                signature=function.signature,
                line=function.line,
                depth=0.0,
                lines=function.body[
                    : function.nonblank_indices[:WRITTEN_LINES][-1] + 1
                ],
            )
            for function in functions
        ]
        if self.chosen.writes_lines:
            needles: Sequence[NeedleFacts] = self.with_budgets(whole)
        else:
            sizes = tokenizer.token_counts_without_special(
                ["\n".join(needle.lines) for needle in whole]
            )
            needles = [
                replace(needle, budget=size + PRIMING_TOKENS)
                for needle, size in zip(whole, sizes, strict=True)
            ]
        signatures = tokenizer.token_counts_without_special(
            [needle.signature for needle in needles]
        )
        sized = zip(needles, signatures, strict=True)
        return max(sized, key=lambda entry: entry[0].budget + entry[1])[0]


def rooms(settings: RecallSettings, corpus: Corpus, prompts: Prompts) -> Iterator[Room]:
    """What a text of *corpus* leaves room for, the preferred way to ask first."""
    for way in _possible_settings(settings, corpus):
        yield Questions(prompts, way).room(corpus)


def _possible_settings(
    settings: RecallSettings, corpus: Corpus
) -> list[RecallSettings]:
    """
    What can be asked of *corpus*, the preferred first; empty if nothing.

    *settings*, then these without writing if they score right lines; each only if a
    function is long enough.
    """
    ways = (
        [settings, settings.without_writing]
        if settings.scores_right_lines
        else [settings]
    )
    return [way for way in ways if corpus.long_enough_functions(_least_body_lines(way))]


def _least_body_lines(chosen: RecallSettings) -> int:
    """Lines that are not blank of a function that can be asked for."""
    return WRITTEN_LINES if chosen.writes_lines else chosen.lines_per_function


def choose_asked_functions(
    run: RunContext, preparation: Preparation, settings: RecallSettings
) -> RecallLayout:
    """
    The functions that the text of *run* is asked for, which was asked for none before.

    No settings are in the result. Why there are few is added to the notes of
    *preparation*.

    Raises:
        BadInput: If none of them can be asked for, or no answer has room.
    """
    corpus, context = preparation.corpus, run.setup.context
    prompts = preparation.prompts()
    for way in _possible_settings(settings, corpus):
        if Questions(prompts, way).room(corpus).tokens(corpus.text) <= context:
            written, forced = _written_and_forced_needles(corpus, way)
            notes = _notes_on_few_functions(preparation, settings, way, len(forced))
            preparation.notes.extend(notes)
            written = Questions(prompts, way).with_budgets(written)
            text = _text_lines(corpus) if written else NO_LINES
            return RecallLayout(written=written, forced=forced, text=text)
    raise _no_room_error(run, preparation, settings)


def _text_lines(corpus: Corpus) -> TextLines:
    return hash_lines(corpus.text, (function.line for function in corpus.functions))


def _no_room_error(
    run: RunContext, preparation: Preparation, settings: RecallSettings
) -> BadInput:
    """The error where no function can be asked for, with a context that has room."""
    whole = preparation.whole
    every = rooms(settings, whole, preparation.prompts())
    least = min(
        (room.tokens(whole.shortest_beginning(room.lines)) for room in every),
        default=None,
    )
    context = context_holding_tokens(least, preparation.trained) if least else None
    return BadInput(
        source=run.folder,
        reason="it was begun with a text that has no function to ask for so, or no "
        "room for its answer",
        hint="Use --way force without --lines, or another folder with --out"
        + (f" and --context {context} or more." if context else "."),
    )


def _written_and_forced_needles(
    corpus: Corpus, chosen: RecallSettings
) -> tuple[tuple[NeedleFacts, ...], tuple[NeedleFacts, ...]]:
    """
    The functions of *corpus* to be written, and those whose lines are forced.

    Both in asking order; the latter with those that open pairs may be asked for. The
    budgets of replies are not counted yet.
    """
    written = corpus.written_recall_functions() if chosen.writes_lines else []
    forced = (
        corpus.forced_recall_functions(chosen.function_count, chosen.lines_per_function)
        if chosen.scores_right_lines
        else []
    )
    depth = {
        function.line: round(depth_of(function, line_count=corpus.line_count), 4)
        for function in (*written, *forced)
    }
    return (
        tuple(
            written_needle(function, depth=depth[function.line]) for function in written
        ),
        tuple(
            forced_needle(
                function,
                depth=depth[function.line],
                lines=chosen.lines_per_function,
                seed=corpus.sample_seed,
            )
            for function in forced
        ),
    )


def _notes_on_few_functions(
    preparation: Preparation,
    settings: RecallSettings,
    chosen: RecallSettings,
    scored_count: int,
) -> Iterator[str]:
    """
    Why fewer functions are asked for than a user may expect; nothing if they are not.

    Args:
        preparation: The text, as it is sent and whole.
        settings: What the user wants.
        chosen: What can be asked of the text as sent.
        scored_count: Functions of it whose lines are forced, or read.
    """
    whole = preparation.whole
    if settings.writes_lines and not chosen.writes_lines:
        what = (
            "fits the context"
            if whole.long_enough_functions(WRITTEN_LINES)
            else "is in the text"
        )
        lines = f"no function of {WRITTEN_LINES} lines"
        yield f"lines are {chosen.read_or_forced_word} alone: {lines} {what}"
    if not chosen.scores_right_lines or scored_count >= chosen.function_count:
        return
    functions, wanted = plural(scored_count, "function"), chosen.function_count
    verb = "read" if chosen.reads_instead_of_forcing else "force"
    of_text = len(whole.long_enough_functions(chosen.lines_per_function))
    if of_text <= scored_count:
        yield f"{functions} to {verb}, not {wanted}: the text has {of_text}"
        return
    more = min(wanted, of_text)
    room = Questions(preparation.prompts(), chosen).room(whole)
    needed = room.tokens(whole.shortest_beginning(chosen.lines_per_function, more))
    larger = context_holding_tokens(needed, preparation.trained)
    hint = (
        f"--context {larger} holds {more}"
        if larger
        else f"these weights were not trained for a context that holds {more} functions"
    )
    yield f"{functions} to {verb} fit the context; {hint}"


def _asked_bytes(function: Function) -> int:
    """Bytes of signature and first `WRITTEN_LINES` lines, with their line breaks."""
    lines = function.body[: function.nonblank_indices[:WRITTEN_LINES][-1] + 1]
    return sum(len(line.encode()) + 1 for line in (function.signature, *lines))
