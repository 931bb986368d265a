"""
From a plan to a run: the corpus counted in tokens and fitted to the context, needles
chosen, the setup stored.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from codeneedle.corpora.corpus import Corpus, load, longest
from codeneedle.corpora.needles import ASKED_LINES, Function
from codeneedle.corpora.registry import SMALL_CORPORA
from codeneedle.engines.engine import Engine, Tokenizer
from codeneedle.errors import BadInput
from codeneedle.models import weights
from codeneedle.probes.probe import RunContext, tokenizing
from codeneedle.probes.prompts import NO_THINK_ARGS, PromptForm, lost_text
from codeneedle.probes.recall.probe import PRIMING_TOKENS, needles_of
from codeneedle.probes.recall.prompts import (
    PROMPT_VERSION,
    chat_messages,
    completion_prompt,
)
from codeneedle.probes.recall.record import NAME as RECALL
from codeneedle.probes.recall.settings import (
    Ask,
    RecallConditions,
    RecallSettings,
    conditions,
)
from codeneedle.records.comparability import OtherSetup
from codeneedle.records.record import CorpusFacts, NeedleFacts, Setup, WeightsFacts
from codeneedle.sweep.plan import Plan
from codeneedle.sweep.request import keep
from codeneedle.system import machine
from codeneedle.system.processes import now
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
    """
    A corpus as it is sent.

    Attributes:
        facts: What is stored of it.
        text: The text.
        needles: Functions to be written.
        forced: Functions whose lines are forced.
        notes: What a user should know of these.
    """

    facts: CorpusFacts
    text: str
    needles: tuple[NeedleFacts, ...] = ()
    forced: tuple[NeedleFacts, ...] = ()
    notes: tuple[str, ...] = ()


Counts = dict[tuple[object, ...], Fitted]
"""
What was counted by this process, by what decides the number of tokens. Pages of a
sweep share it.
"""


def prepare(plan: Plan, counts: Counts | None = None) -> RunContext:
    """
    Fit the corpus to the context, choose needles, and store the setup.

    Where no probe reads the corpus, it is taken as it is, and there are no needles.
    A run folder that was made from the same text is asked first, so that a
    resumed sweep starts no server just to count.

    Args:
        plan: One page of a sweep; its store is locked.
        counts: What was counted for other pages; this page's is added.

    Raises:
        OtherSetup: If the run folder is one of another setup.
        BadInput: If the corpus is too long and must not be trimmed, the chat template
            drops it, or the engine does not take the user's arguments.
        CodeneedleError: If counting fails, or a probe finds that it cannot run.
    """
    fitted = _fitted(plan, {} if counts is None else counts)
    setup = _setup(plan, fitted)
    stored = plan.store.compare(setup)
    run = RunContext(
        engine=plan.engine,
        weights=plan.weights,
        is_built_in=plan.is_built_in,
        setup=replace(setup, probes=stored.probes) if stored else setup,
        text=fitted.text,
        settings=plan.request.settings,
        folder=plan.store.folder,
        prefill_no_think=plan.request.prefill_no_think,
        skip_fallback=plan.request.skip_fallback,
        notes=fitted.notes,
    )
    conditions = {probe.name: probe.conditions(run) for probe in plan.probes}
    try:
        setup = plan.store.adopt(replace(setup, probes=conditions))
    except OtherSetup as error:
        if error.key.startswith("recall "):
            option = f"--{error.key.removeprefix('recall ')}"
            value = error.stored.strip("'")
            error.hint = (
                f"Go on with {option} {value}, or choose another folder with --out."
            )
        raise
    keep(plan.kept, plan.store)
    return replace(run, setup=setup)


def refuse_other_setup(plan: Plan) -> None:
    """
    Stop if the run folder is one of another setup, or was trimmed and must not be.

    Raises:
        OtherSetup: If its records were made under another one.
        BadInput: If its corpus was trimmed, which is forbidden now.
        BadSetup: If its setup cannot be read, nor told from its records.
    """
    stored = plan.store.intact_setup()
    if stored is None:
        return
    plan.store.compare(_setup(plan, _stored(plan, stored)))
    if stored.corpus.is_trimmed and not plan.request.fit:
        raise BadInput(
            source="--no-fit",
            reason=f"the corpus of {plan.store.folder} was trimmed to the context",
            hint="Choose another folder with --out, or drop --no-fit.",
        )


def refuse_shared_folders(plans: Sequence[Plan]) -> None:
    """
    Stop if two pages would write to one folder.

    Raises:
        BadInput: Naming the weights that are called alike.
    """
    seen: set[str] = set()
    for plan in plans:
        if plan.store.name in seen:
            raise BadInput(
                source=plan.weights.path,
                reason=f"two pages of this sweep would both write to {plan.store.name}",
                hint="Rename one of the two files of weights.",
            )
        seen.add(plan.store.name)


def thinking_phrase(plan: Plan) -> str:
    """How thinking is switched off, for the setup."""
    if plan.prompt_form is PromptForm.COMPLETION:
        return "none: completion form"
    means = ["enable_thinking=false in the template's arguments"]
    if plan.engine.thinking_off:
        means.append(plan.engine.thinking_off)
    if plan.request.prefill_no_think:
        means.append("an empty thought prefilled")
    return ", ".join(means)


def machine_phrase(engine: Engine) -> str:
    """Processor, memory, system and devices, the same from day to day."""
    identity = engine.identity()
    if identity.machine:
        return identity.machine
    devices = ", ".join(identity.devices)
    return f"{machine.facts().phrase()}{f'; {devices}' if devices else ''}"


def _fitted(plan: Plan, counts: Counts) -> Fitted:
    stored, reads = plan.store.setup(), plan.reads_corpus
    if stored is not None and (stored.corpus.is_counted or not reads):
        known = _stored(plan, stored)
        if stored.needles or stored.forced or not _asks_functions(plan):
            return known
        with tokenizing(plan.engine, plan.store.folder) as tokenizer:
            return _counted_further(PromptCounter(tokenizer, plan), known)
    if not reads:
        return Fitted(facts=_facts(plan, plan.corpus), text="")
    key = _count_key(plan)
    if key not in counts:
        with tokenizing(plan.engine, plan.store.folder) as tokenizer:
            counts[key] = _counted(PromptCounter(tokenizer, plan))
    return counts[key]


def _stored(plan: Plan, stored: Setup) -> Fitted:
    """
    What would be counted now, taken from the *stored* setup.

    If the text, the tokenizer or the wording is another, some other field differs
    and the folder is refused for that. Where the same text comes from is no
    difference: generated, or read from the file that it was written to.
    """
    facts = replace(
        stored.corpus,
        source_sha256=plan.corpus.sha256,
        sample_k=plan.corpus.sample_k,
        sample_seed=plan.corpus.sample_seed,
    )
    text = plan.corpus.text[: facts.characters]
    return Fitted(facts=facts, text=text, needles=stored.needles, forced=stored.forced)


def _asks_functions(plan: Plan) -> bool:
    return RECALL in {probe.name for probe in plan.probes}


def _settings(plan: Plan) -> RecallSettings:
    return plan.request.chosen(RECALL, RecallSettings)


def _ways(plan: Plan, corpus: Corpus) -> list[RecallConditions]:
    """
    What recall can ask of *corpus*, the preferred first.

    Lines are forced alone where none can be written, unless ``--ask`` was given.
    """
    settings = _settings(plan)
    chosen = conditions(settings, None)
    ways = [chosen] if settings.ask else [chosen, replace(chosen, ask=Ask.FORCED)]
    return [way for way in ways if corpus.of_length(_lines_needed(way))]


def _lines_needed(chosen: RecallConditions) -> int:
    """Lines that are not blank of a function that can be asked for."""
    return ASKED_LINES if Ask.WRITTEN in chosen.ask.parts else chosen.lines


def _count_key(plan: Plan) -> tuple[object, ...]:
    """All that the counts of *plan* depend on."""
    request = plan.request
    asked = (plan.context, plan.prompt_form, request.prefill_no_think, request.fit)
    functions = (_asks_functions(plan), _settings(plan))
    weights_path, text = plan.weights.path, plan.corpus.sha256
    return (weights_path, text, asked, functions, request.server_args)


def _sent(corpus: Corpus, text: str) -> Corpus:
    """*corpus* as far as *text* goes, with which it begins."""
    shorter = replace(corpus, text=text)
    end = shorter.line_count
    return replace(
        shorter, functions=tuple(each for each in corpus.functions if each.end <= end)
    )


@dataclass(frozen=True, slots=True)
class PromptCounter:
    """Counts tokens of whole prompts."""

    tokenizer: Tokenizer
    plan: Plan

    def rendered(self, text: str, needle: NeedleFacts) -> str:
        """The prompt that asks *needle* of *text*, as the model reads it."""
        if self.plan.prompt_form is PromptForm.COMPLETION:
            return completion_prompt(text, needle)
        prefill = self.plan.request.prefill_no_think
        messages = chat_messages(text, needle, prefill_no_think=prefill)
        return self.tokenizer.render(messages, NO_THINK_ARGS)

    def prompt(self, text: str, needle: NeedleFacts) -> int:
        """Tokens of that prompt."""
        return self.tokenizer.count_tokens(self.rendered(text, needle))

    def budgeted(self, needles: Sequence[NeedleFacts]) -> tuple[NeedleFacts, ...]:
        """*needles*, each with the tokens that its reply may have."""
        truths = ["\n".join(needle.lines) for needle in needles]
        sizes = self.tokenizer.counts(truths) if truths else []
        return tuple(
            replace(
                needle, budget=math.ceil(BUDGET_FACTOR * size) + BUDGET_EXTRA_TOKENS
            )
            for needle, size in zip(needles, sizes, strict=True)
        )

    def room(self, corpus: Corpus, chosen: RecallConditions) -> Callable[[str], int]:
        """Tokens of a text of *corpus* with the longest question and answer."""
        functions = sorted(corpus.of_length(_lines_needed(chosen)), key=_asked_bytes)
        hardest = self.hardest(functions[-CANDIDATES:], chosen)
        return lambda text: self.prompt(text, hardest) + hardest.budget

    def hardest(
        self, functions: Sequence[Function], chosen: RecallConditions
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
                lines=each.body[: each.content[:ASKED_LINES][-1] + 1],
            )
            for each in functions
        ]
        if Ask.WRITTEN in chosen.ask.parts:
            needles: Sequence[NeedleFacts] = self.budgeted(whole)
        else:
            sizes = self.tokenizer.counts(["\n".join(each.lines) for each in whole])
            needles = [
                replace(each, budget=size + PRIMING_TOKENS)
                for each, size in zip(whole, sizes, strict=True)
            ]
        asked = self.tokenizer.counts([needle.signature for needle in needles])
        sized = zip(needles, asked, strict=True)
        return max(sized, key=lambda each: each[0].budget + each[1])[0]


def fitted_corpus(counter: PromptCounter) -> tuple[Corpus, RecallConditions]:
    """
    As many whole functions of the corpus as fit the context, and what to ask of them.

    Raises:
        BadInput: If it does not fit and must not be trimmed, or if no function fits.
    """
    plan, corpus = counter.plan, counter.plan.corpus
    # Where recall is not measured, what was chosen for it may be anything.
    ways = _ways(plan, corpus) or [RecallConditions(ask=Ask.FORCED)]
    if not plan.request.fit:
        needed = counter.room(corpus, ways[0])(corpus.text)
        if needed > plan.context:
            raise _too_long(plan, needed)
        return corpus, ways[0]
    for chosen in ways:
        shorter = _longest(counter, chosen)
        if shorter is not None:
            return shorter, chosen
    raise _nothing_fits(counter, ways[-1])


def _longest(counter: PromptCounter, chosen: RecallConditions) -> Corpus | None:
    plan = counter.plan
    room = counter.room(plan.corpus, chosen)
    lines = _lines_needed(chosen)
    return longest(plan.corpus, lambda text: room(text) <= plan.context, lines=lines)


def _too_long(plan: Plan, needed: int) -> BadInput:
    larger = _larger_context(plan, needed)
    option = f"Use --context {larger}, or drop" if larger else "Drop"
    return BadInput(
        source=f"corpus {plan.corpus.name}",
        reason=f"it needs {needed:,} tokens with question and answer, the "
        f"context has {plan.context:,}",
        hint=f"{option} --no-fit to have it trimmed to whole functions.",
    )


def _nothing_fits(counter: PromptCounter, chosen: RecallConditions) -> BadInput:
    """The error that names the smallest context that works, and a text that fits."""
    plan = counter.plan
    shortest = plan.corpus.shortest(_lines_needed(chosen))
    needed = counter.room(plan.corpus, chosen)(shortest)
    larger = _larger_context(plan, needed)
    smaller = (name for name in SMALL_CORPORA if _fits_whole(counter, name))
    options = [
        *([f"--context {larger}"] if larger else []),
        *(f"--corpus {name}" for name in itertools.islice(smaller, 1)),
    ]
    return BadInput(
        source=f"corpus {plan.corpus.name}",
        reason=f"its shortest part with a function to ask for needs {needed:,} tokens "
        f"with question and answer, the context has {plan.context:,}",
        hint=f"Use {', or '.join(options) or 'a --corpus with shorter functions'}.",
    )


def _fits_whole(counter: PromptCounter, name: str) -> bool:
    corpus = load(name)
    ways = _ways(counter.plan, corpus)
    return any(
        counter.room(corpus, chosen)(corpus.text) <= counter.plan.context
        for chosen in ways
    )


def _larger_context(plan: Plan, tokens: int) -> int | None:
    """
    The context that holds *tokens*: a multiple of 256, as engines round it.

    None if the weights were not trained for it.
    """
    context = -(-tokens // 256) * 256
    trained = plan.weights.training_context
    if not trained or plan.engine.stretches_context:
        return context
    return min(context, trained) if tokens <= trained else None


def _counted(counter: PromptCounter) -> Fitted:
    """The corpus fitted to the context, and what is asked of it."""
    corpus, chosen = fitted_corpus(counter)
    tokens = counter.tokenizer.count_tokens(corpus.text)
    facts = _facts(counter.plan, corpus, tokens=tokens)
    fitted = Fitted(facts=facts, text=corpus.text)
    if not _asks_functions(counter.plan):
        _refuse_lost_text(
            counter, fitted, [counter.hardest(corpus.functions[-1:], chosen)]
        )
        return fitted
    fitted = _with_functions(counter, fitted, corpus, chosen)
    _refuse_lost_text(counter, fitted, (*fitted.needles, *fitted.forced))
    return fitted


def _counted_further(counter: PromptCounter, fitted: Fitted) -> Fitted:
    """
    *fitted*, whose functions no probe has asked for yet, with what is asked of it.

    Raises:
        BadInput: If none of them can be asked for.
    """
    plan = counter.plan
    corpus = _sent(plan.corpus, fitted.text)
    for chosen in _ways(plan, corpus):
        if counter.room(corpus, chosen)(corpus.text) <= plan.context:
            return _with_functions(counter, fitted, corpus, chosen)
    raise BadInput(
        source=plan.store.folder,
        reason="it was begun with a text that has no function to ask for so, or no "
        "room for its answer",
        hint="Use --ask forced without --lines, or a larger --context and another "
        "folder with --out.",
    )


def _with_functions(
    counter: PromptCounter, fitted: Fitted, corpus: Corpus, chosen: RecallConditions
) -> Fitted:
    needles, forced = needles_of(corpus, chosen)
    return replace(
        fitted,
        needles=counter.budgeted(needles),
        forced=forced,
        notes=tuple(_notes(counter, chosen, len(forced))),
    )


def _notes(
    counter: PromptCounter, chosen: RecallConditions, forced: int
) -> Iterator[str]:
    """Why fewer functions are asked for than a user may expect: *forced* of them."""
    plan = counter.plan
    if chosen.ask is Ask.FORCED and _settings(plan).ask is None:
        has_long = plan.corpus.of_length(ASKED_LINES)
        what = "fits the context" if has_long else "is in the text"
        yield f"lines are forced alone: no function of {ASKED_LINES} lines {what}"
    if Ask.FORCED not in chosen.ask.parts or forced >= chosen.functions:
        return
    functions = plural(forced, "function")
    of_text = len(plan.corpus.of_length(chosen.lines))
    if of_text <= forced:
        yield f"{functions} to force, not {chosen.functions}: the text has {of_text}"
        return
    more = min(chosen.functions, of_text)
    room = counter.room(plan.corpus, chosen)
    larger = _larger_context(plan, room(plan.corpus.shortest(chosen.lines, more)))
    hint = (
        f"--context {larger} holds {more}"
        if larger
        else f"these weights were not trained for the context that holds {more}"
    )
    yield f"{functions} to force fit the context; {hint}"


def _facts(plan: Plan, sent: Corpus, *, tokens: int = 0) -> CorpusFacts:
    """Of what is *sent* of the plan's corpus; without *tokens*, it is not counted."""
    return CorpusFacts(
        name=sent.name,
        origin=sent.origin,
        kind=sent.kind,
        sha256=sent.sha256,
        characters=len(sent.text),
        source_sha256=plan.corpus.sha256,
        sample_k=sent.sample_k,
        sample_seed=sent.sample_seed,
        tokens=tokens,
        functions=len(sent.functions),
        functions_before=len(plan.corpus.functions),
    )


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
    raise lost_text(f"the corpus: {what}")


def _setup(plan: Plan, fitted: Fitted) -> Setup:
    identity = plan.engine.identity()
    return Setup(
        prompt_version=PROMPT_VERSION,
        prompt_form=plan.prompt_form.value,
        thinking=thinking_phrase(plan),
        corpus=fitted.facts,
        needles=fitted.needles,
        forced=fitted.forced,
        weights=WeightsFacts(
            name=plan.model,
            sha256=weights.sha256(plan.weights),
            size_bytes=plan.weights.size_bytes,
        ),
        engine=plan.engine.name,
        lengths=identity.lengths,
        llama=identity.version,
        machine=machine_phrase(plan.engine),
        cpu_features=identity.cpu_features,
        context=plan.context,
        server_args=(*identity.arguments, *plan.request.server_args),
        rotation=plan.request.rotates,
        seed=plan.request.seed,
        types_k=plan.request.rows,
        types_v=plan.request.columns,
        created=now(),
    )


def _asked_bytes(function: Function) -> int:
    asked = function.body[: function.content[:ASKED_LINES][-1] + 1]
    return sum(len(line.encode()) + 1 for line in (function.signature, *asked))
