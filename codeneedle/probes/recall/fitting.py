"""The part of a corpus that fits a context with its questions, and its needles."""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from msgspec import structs

from codeneedle.corpora.corpus import Corpus, longest
from codeneedle.corpora.needles import WRITTEN_LINES, Function
from codeneedle.corpora.registry import SMALL_CORPORA, load
from codeneedle.engines.engine import LostText, Tokenizer
from codeneedle.errors import BadInput
from codeneedle.models.kv_cache import padded
from codeneedle.probes.prompts import NO_THINK_ARGS, PromptForm
from codeneedle.probes.recall.probe import PRIMING_TOKENS, needles_of
from codeneedle.probes.recall.prompts import (
    chat_messages,
    completion_prompt,
)
from codeneedle.probes.recall.settings import (
    Ask,
    RecallSettings,
)
from codeneedle.records.record import CorpusFacts, NeedleFacts
from codeneedle.text import plural

BUDGET_FACTOR = 1.5
BUDGET_EXTRA_TOKENS = 64
"""
Tokens that a reply may have: one and a half times those of the truth, and some
for a preamble. Long enough for every answer that can still score, short enough
that one line without end costs seconds.
"""

CANDIDATES = 8
"""The longest functions, by bytes; the longest in tokens is taken to be among them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """A corpus as it is sent."""

    facts: CorpusFacts  # what is stored of it
    text: str
    needles: tuple[NeedleFacts, ...] = ()  # functions to be written
    forced: tuple[NeedleFacts, ...] = ()  # functions whose lines are forced
    notes: tuple[str, ...] = ()  # what a user should know of these


def facts_of(sent: Corpus, whole: Corpus, *, tokens: int = 0) -> CorpusFacts:
    """Of what is *sent* of the *whole* corpus; without *tokens*, it is not counted."""
    return CorpusFacts(
        name=sent.name,
        origin=sent.origin,
        kind=sent.kind,
        sha256=sent.sha256,
        characters=len(sent.text),
        source_sha256=whole.sha256,
        sample_k=sent.sample_k,
        sample_seed=sent.sample_seed,
        tokens=tokens,
        functions=len(sent.functions),
        functions_before=len(whole.functions),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """What a corpus is fitted to."""

    corpus: Corpus  # all of it
    context: int  # its size, in tokens
    trained: int | None
    """What the weights were trained for, in tokens; None if that does not bind."""

    form: PromptForm  # how a needle is asked for
    prefill_no_think: bool  # whether answers are begun with an empty thought
    may_trim: bool  # whether the corpus may be cut to whole functions
    settings: RecallSettings
    """What is asked of functions; where none are, what the user chose."""

    asks_functions: bool  # whether a probe asks for functions
    folder: Path  # the run folder


@dataclass(frozen=True, slots=True)
class PromptCounter:
    """Counts tokens of whole prompts."""

    tokenizer: Tokenizer
    fit: Fit

    def rendered(self, text: str, needle: NeedleFacts) -> str:
        """The prompt that asks *needle* of *text*, as the model reads it."""
        if self.fit.form is PromptForm.COMPLETION:
            return completion_prompt(text, needle)
        prefill = self.fit.prefill_no_think
        messages = chat_messages(text, needle, prefill_no_think=prefill)
        return self.tokenizer.render(messages, NO_THINK_ARGS)

    def prompt(self, text: str, needle: NeedleFacts) -> int:
        """Tokens of that prompt."""
        return self.tokenizer.count_tokens(self.rendered(text, needle))

    def budgeted(
        self, needles: Sequence[NeedleFacts], reply_tokens: int | None
    ) -> tuple[NeedleFacts, ...]:
        """*needles*, each with the tokens of its reply: *reply_tokens* if not None."""
        if reply_tokens:
            return tuple(replace(needle, budget=reply_tokens) for needle in needles)
        truths = ["\n".join(needle.lines) for needle in needles]
        sizes = self.tokenizer.counts(truths) if truths else []
        return tuple(
            replace(
                needle, budget=math.ceil(BUDGET_FACTOR * size) + BUDGET_EXTRA_TOKENS
            )
            for needle, size in zip(needles, sizes, strict=True)
        )

    def room(self, corpus: Corpus, chosen: RecallSettings) -> Callable[[str], int]:
        """Tokens of a text of *corpus* with the longest question and answer."""
        functions = sorted(corpus.of_length(_lines_needed(chosen)), key=_asked_bytes)
        hardest = self.hardest(functions[-CANDIDATES:], chosen)
        return lambda text: self.prompt(text, hardest) + hardest.budget

    def hardest(
        self, functions: Sequence[Function], chosen: RecallSettings
    ) -> NeedleFacts:
        """
        What takes most tokens to ask of one of *functions*, signature and answer.

        The budget of lines that are written is that of their reply. That of forced
        lines is the first 20, the most that stands behind a signature, and the reply
        to the question that makes a server read the text.
        """
        whole = [
            NeedleFacts(
                name=each.name,
                signature=each.signature,
                line=each.line,
                depth=0.0,
                lines=each.body[: each.content[:WRITTEN_LINES][-1] + 1],
            )
            for each in functions
        ]
        if Ask.WRITTEN in chosen.parts:
            needles: Sequence[NeedleFacts] = self.budgeted(whole, chosen.reply_tokens)
        else:
            sizes = self.tokenizer.counts(["\n".join(each.lines) for each in whole])
            needles = [
                replace(each, budget=size + PRIMING_TOKENS)
                for each, size in zip(whole, sizes, strict=True)
            ]
        signatures = self.tokenizer.counts([needle.signature for needle in needles])
        sized = zip(needles, signatures, strict=True)
        return max(sized, key=lambda each: each[0].budget + each[1])[0]


def fitted_corpus(counter: PromptCounter) -> tuple[Corpus, RecallSettings]:
    """
    As many whole functions of the corpus as fit the context, and what to ask of them.

    Raises:
        BadInput: If it does not fit and must not be trimmed, or if no function fits.
    """
    fit, corpus = counter.fit, counter.fit.corpus
    # Where recall is not measured, what was chosen for it may be anything.
    ways = _ways(fit, corpus) or [RecallSettings(ask=Ask.FORCED)]
    if not fit.may_trim:
        needed = counter.room(corpus, ways[0])(corpus.text)
        if needed > fit.context:
            raise _too_long(fit, needed)
        return corpus, ways[0]
    for chosen in ways:
        shorter = _longest(counter, chosen)
        if shorter is not None:
            return shorter, chosen
    raise _nothing_fits(counter, ways[-1])


def _ways(fit: Fit, corpus: Corpus) -> list[RecallSettings]:
    """
    What recall can ask of *corpus*, the preferred first.

    Lines are forced alone where none can be written, unless ``--ask`` was given.
    """
    chosen = fit.settings
    ways = [chosen]
    if chosen.ask is None:
        ways.append(structs.replace(chosen, ask=Ask.FORCED))
    return [way for way in ways if corpus.of_length(_lines_needed(way))]


def _lines_needed(chosen: RecallSettings) -> int:
    """Lines that are not blank of a function that can be asked for."""
    return WRITTEN_LINES if Ask.WRITTEN in chosen.parts else chosen.line_count


def _longest(counter: PromptCounter, chosen: RecallSettings) -> Corpus | None:
    fit = counter.fit
    room = counter.room(fit.corpus, chosen)
    lines = _lines_needed(chosen)
    return longest(fit.corpus, lambda text: room(text) <= fit.context, lines=lines)


def _too_long(fit: Fit, needed: int) -> BadInput:
    larger = _larger_context(fit, needed)
    ways = [*([f"--context {larger}"] if larger else []), "--fit"]
    return BadInput(
        source=f"corpus {fit.corpus.name}",
        reason=f"it needs {needed:,} tokens with question and answer, the "
        f"context has {fit.context:,}",
        hint=f"Use {' or '.join(ways)}: it trims the text to whole functions.",
    )


def _nothing_fits(counter: PromptCounter, chosen: RecallSettings) -> BadInput:
    """The error that names the smallest context that works, and a text that fits."""
    fit = counter.fit
    needed = _least_tokens(counter, chosen)
    larger = _larger_context(fit, needed)
    smaller = (name for name in SMALL_CORPORA if _fits_whole(counter, name))
    options = [
        *([f"--context {larger}"] if larger else []),
        *(f"--corpus {name}" for name in itertools.islice(smaller, 1)),
    ]
    return BadInput(
        source=f"corpus {fit.corpus.name}",
        reason=f"its shortest part with a function to ask for needs {needed:,} tokens "
        f"with question and answer, the context has {fit.context:,}",
        hint=f"Use {', or '.join(options) or 'a --corpus with shorter functions'}.",
    )


def _least_tokens(counter: PromptCounter, chosen: RecallSettings) -> int:
    """Tokens of the shortest part of the corpus with a function, as it is asked for."""
    corpus = counter.fit.corpus
    return counter.room(corpus, chosen)(corpus.shortest(_lines_needed(chosen)))


def _fits_whole(counter: PromptCounter, name: str) -> bool:
    corpus = load(name)
    ways = _ways(counter.fit, corpus)
    return any(
        counter.room(corpus, chosen)(corpus.text) <= counter.fit.context
        for chosen in ways
    )


def _larger_context(fit: Fit, tokens: int) -> int | None:
    """The context that holds *tokens*; None if the weights were not trained for it."""
    context = padded(tokens)
    trained = fit.trained
    if trained is None:
        return context
    return min(context, trained) if tokens <= trained else None


def counted(counter: PromptCounter) -> Fitted:
    """The corpus fitted to the context, and what is asked of it."""
    corpus, chosen = fitted_corpus(counter)
    tokens = counter.tokenizer.count_tokens(corpus.text)
    facts = facts_of(corpus, counter.fit.corpus, tokens=tokens)
    fitted = Fitted(facts=facts, text=corpus.text)
    if not counter.fit.asks_functions:
        _refuse_lost_text(
            counter, fitted, [counter.hardest(corpus.functions[-1:], chosen)]
        )
        return fitted
    fitted = _with_functions(counter, fitted, corpus, chosen)
    _refuse_lost_text(counter, fitted, (*fitted.needles, *fitted.forced))
    return fitted


def counted_further(counter: PromptCounter, fitted: Fitted) -> Fitted:
    """
    *fitted*, whose functions no probe has asked for yet, with what is asked of it.

    Raises:
        BadInput: If none of them can be asked for.
    """
    fit = counter.fit
    corpus = _sent(fit.corpus, fitted.text)
    for chosen in _ways(fit, corpus):
        if counter.room(corpus, chosen)(corpus.text) <= fit.context:
            return _with_functions(counter, fitted, corpus, chosen)
    least = min(
        (_least_tokens(counter, way) for way in _ways(fit, fit.corpus)), default=None
    )
    context = _larger_context(fit, least) if least else None
    raise BadInput(
        source=fit.folder,
        reason="it was begun with a text that has no function to ask for so, or no "
        "room for its answer",
        hint="Use --ask forced without --lines, or another folder with --out"
        + (f" and --context {context} or more." if context else "."),
    )


def _sent(corpus: Corpus, text: str) -> Corpus:
    """*corpus* as far as *text* goes, with which it begins."""
    shorter = replace(corpus, text=text)
    end = shorter.line_count
    return replace(
        shorter, functions=tuple(each for each in corpus.functions if each.end <= end)
    )


def _with_functions(
    counter: PromptCounter, fitted: Fitted, corpus: Corpus, chosen: RecallSettings
) -> Fitted:
    needles, forced = needles_of(corpus, chosen)
    return replace(
        fitted,
        needles=counter.budgeted(needles, chosen.reply_tokens),
        forced=forced,
        notes=tuple(_notes(counter, chosen, len(forced))),
    )


def _notes(
    counter: PromptCounter, chosen: RecallSettings, forced: int
) -> Iterator[str]:
    """Why fewer functions are asked for than a user may expect: *forced* of them."""
    fit = counter.fit
    if chosen.ask is Ask.FORCED and fit.settings.ask is None:
        has_long = fit.corpus.of_length(WRITTEN_LINES)
        what = "fits the context" if has_long else "is in the text"
        yield f"lines are forced alone: no function of {WRITTEN_LINES} lines {what}"
    if Ask.FORCED not in chosen.parts or forced >= chosen.function_count:
        return
    functions, wanted = plural(forced, "function"), chosen.function_count
    of_text = len(fit.corpus.of_length(chosen.line_count))
    if of_text <= forced:
        yield f"{functions} to force, not {wanted}: the text has {of_text}"
        return
    more = min(wanted, of_text)
    room = counter.room(fit.corpus, chosen)
    larger = _larger_context(fit, room(fit.corpus.shortest(chosen.line_count, more)))
    hint = (
        f"--context {larger} holds {more}"
        if larger
        else f"these weights were not trained for the context that holds {more}"
    )
    yield f"{functions} to force fit the context; {hint}"


def _refuse_lost_text(
    counter: PromptCounter, fitted: Fitted, needles: Sequence[NeedleFacts]
) -> None:
    """
    Stop at a chat template that does not render the text: no model could recall it.

    Args:
        counter: Renders and counts prompts.
        fitted: The corpus as it is sent.
        needles: What will be asked, at least one.

    Raises:
        BadInput: If a prompt is shorter than the text, or a needle is not in it.
    """
    prompt = counter.rendered(fitted.text, needles[-1])
    length, tokens = counter.tokenizer.count_tokens(prompt), fitted.facts.tokens
    missing = [
        needle.name for needle in needles if "\n".join(needle.lines) not in prompt
    ]
    if length < tokens:
        what = f"it has {length:,} tokens, the corpus alone has {tokens:,}"
    elif missing:
        what = f"the text of {missing[0]} is not in it"
    else:
        return
    raise LostText(f"the corpus: {what}")


def _asked_bytes(function: Function) -> int:
    lines = function.body[: function.content[:WRITTEN_LINES][-1] + 1]
    return sum(len(line.encode()) + 1 for line in (function.signature, *lines))
