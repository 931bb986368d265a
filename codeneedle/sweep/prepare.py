"""
From a plan to a run: the corpus counted in tokens and fitted to the context, needles
chosen, the setup stored.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from codeneedle.analysis.recall import NAME as RECALL
from codeneedle.analysis.recall import Ask, RecallConditions
from codeneedle.corpora.corpus import Corpus, longest
from codeneedle.corpora.needles import ASKED_LINES, Function
from codeneedle.corpora.registry import SMALL_CORPORA
from codeneedle.engines.engine import Engine, Tokenizer
from codeneedle.errors import BadInput
from codeneedle.models import weights
from codeneedle.probes import recall
from codeneedle.probes.probe import RunContext, tokenizing
from codeneedle.probes.prompts import (
    NO_THINK_ARGS,
    PROMPT_VERSION,
    PromptForm,
    chat_messages,
    completion_prompt,
    lost_text,
)
from codeneedle.records.comparability import OtherSetup
from codeneedle.records.record import CorpusFacts, NeedleFacts, Setup, WeightsFacts
from codeneedle.sweep.plan import Plan
from codeneedle.system import machine
from codeneedle.system.processes import now

BUDGET_FACTOR = 1.5
BUDGET_EXTRA_TOKENS = 64
"""
Tokens that a reply may have: one and a half times those of the truth, and some
for a preamble. Long enough for every answer that can still score, short enough
that one line without end costs seconds.
"""

CANDIDATES = 8
"""The longest functions, by bytes; the longest in tokens is taken to be among them."""

Counts = dict[
    tuple[object, ...],
    tuple[CorpusFacts, tuple[NeedleFacts, ...], tuple[NeedleFacts, ...], str],
]
"""
What was counted by this process, by what decides the number of tokens: facts of the
fitted corpus, what is written and what is forced of it, its text. Pages of a sweep
share it.
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
    setup, text = _fitted_setup(plan, {} if counts is None else counts)
    stored = plan.store.compare(setup)
    run = RunContext(
        engine=plan.engine,
        weights=plan.weights,
        is_built_in=plan.is_built_in,
        setup=replace(setup, probes=stored.probes) if stored else setup,
        text=text,
        settings=plan.request.settings,
        folder=plan.store.folder,
        prefill_no_think=plan.request.prefill_no_think,
        skip_fallback=plan.request.skip_fallback,
    )
    conditions = {probe.name: probe.conditions(run) for probe in plan.probes}
    try:
        return replace(run, setup=plan.store.adopt(replace(setup, probes=conditions)))
    except OtherSetup as error:
        if error.key.startswith("recall "):
            option = f"--{error.key.removeprefix('recall ')}"
            value = error.stored.strip("'")
            error.hint = (
                f"Go on with {option} {value}, or choose another folder with --out."
            )
        raise


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
    plan.store.compare(_renewed(plan, stored))
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


def _fitted_setup(plan: Plan, counts: Counts) -> tuple[Setup, str]:
    stored, reads = plan.store.setup(), plan.reads_corpus
    if stored is not None and (stored.corpus.is_counted or not reads):
        text = plan.corpus.text[: stored.corpus.characters]
        renewed = _renewed(plan, stored)
        if stored.needles or stored.forced or not _asks_functions(plan):
            return renewed, text
        with tokenizing(plan.engine, plan.store.folder) as tokenizer:
            sent = _sent(plan.corpus, text)
            needles, forced = PromptCounter(tokenizer, plan).needles(sent)
        return replace(renewed, needles=needles, forced=forced), text
    if not reads:
        return _setup(plan, corpus=_facts(plan, plan.corpus)), ""
    key = _count_key(plan)
    if key not in counts:
        with tokenizing(plan.engine, plan.store.folder) as tokenizer:
            counts[key] = _counted(plan, PromptCounter(tokenizer, plan))
    facts, needles, forced, text = counts[key]
    return _setup(plan, corpus=facts, needles=needles, forced=forced), text


def _asks_functions(plan: Plan) -> bool:
    return RECALL in {probe.name for probe in plan.probes}


def _chosen(plan: Plan) -> RecallConditions:
    """What recall is to ask, by what the user chose."""
    settings = plan.request.chosen(RECALL, recall.RecallSettings)
    return recall.conditions(settings, None)


def _count_key(plan: Plan) -> tuple[object, ...]:
    """All that the counts of *plan* depend on."""
    request = plan.request
    asked = (plan.context, plan.prompt_form, request.prefill_no_think, request.fit)
    functions = (_asks_functions(plan), _chosen(plan))
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

    def needles(
        self, corpus: Corpus
    ) -> tuple[tuple[NeedleFacts, ...], tuple[NeedleFacts, ...]]:
        """
        Functions of *corpus* to be written, with budgets, and to be forced.

        None where recall is not measured.
        """
        if not _asks_functions(self.plan):
            return (), ()
        written, forced = recall.needles(corpus, _chosen(self.plan))
        return self.budgeted(written), forced

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

    def hardest(self, functions: Sequence[Function]) -> NeedleFacts:
        """
        What takes most tokens to ask of one of *functions*, signature and reply.

        The budget is that of written lines; where lines are forced alone, the tokens
        of the first 20 lines, the most that stands behind a signature.
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
        if Ask.WRITTEN in _chosen(self.plan).ask.parts:
            needles: Sequence[NeedleFacts] = self.budgeted(whole)
        else:
            sizes = self.tokenizer.counts(["\n".join(each.lines) for each in whole])
            needles = [
                replace(each, budget=size + 1)
                for each, size in zip(whole, sizes, strict=True)
            ]
        asked = self.tokenizer.counts([needle.signature for needle in needles])
        sized = zip(needles, asked, strict=True)
        return max(sized, key=lambda each: each[0].budget + each[1])[0]


def fitted_corpus(plan: Plan, counter: PromptCounter) -> Corpus:
    """
    The whole corpus if it fits the context, else as many whole functions as fit.

    Raises:
        BadInput: If it does not fit and must not be trimmed, or if no function fits.
    """
    corpus, context = plan.corpus, plan.context
    lines = _lines_needed(plan)
    candidates = sorted(corpus.of_length(lines) or corpus.functions, key=_asked_bytes)
    hardest = counter.hardest(candidates[-CANDIDATES:])

    def whole(text: str) -> int:
        return counter.prompt(text, hardest) + hardest.budget

    if plan.request.fit:
        shorter = longest(corpus, lambda text: whole(text) <= context, lines=lines)
        if shorter is None:
            raise _nothing_fits(plan, whole(corpus.shortest(lines)))
        return shorter
    needed = whole(corpus.text)
    if needed > context:
        raise BadInput(
            source=f"corpus {corpus.name}",
            reason=f"it needs {needed:,} tokens with question and answer, the "
            f"context has {context:,}",
            hint=f"Use --context {_rounded_up(needed)}, or drop --no-fit to "
            "have it trimmed to whole functions.",
        )
    return corpus


def _lines_needed(plan: Plan) -> int:
    """Lines that are not blank of a function that can be asked for."""
    chosen = _chosen(plan)
    return ASKED_LINES if Ask.WRITTEN in chosen.ask.parts else chosen.lines


def _nothing_fits(plan: Plan, needed: int) -> BadInput:
    smaller = [name for name in SMALL_CORPORA if name != plan.corpus.name]
    return BadInput(
        source=f"corpus {plan.corpus.name}",
        reason=f"its shortest part with a function to ask for needs {needed:,} tokens "
        f"with question and answer, the context has {plan.context:,}",
        hint=f"Use --context {_rounded_up(needed)}, or --corpus {smaller[0]}.",
    )


def _rounded_up(tokens: int) -> int:
    """The context that holds *tokens*: a multiple of 256, as engines round it."""
    return -(-tokens // 256) * 256


def _counted(
    plan: Plan, counter: PromptCounter
) -> tuple[CorpusFacts, tuple[NeedleFacts, ...], tuple[NeedleFacts, ...], str]:
    """The corpus as it is sent, in facts; what is asked of it; and its text."""
    corpus = fitted_corpus(plan, counter)
    needles, forced = counter.needles(corpus)
    tokens = counter.tokenizer.count_tokens(corpus.text)
    _refuse_lost_text(counter, corpus, tokens, (*needles, *forced))
    return _facts(plan, corpus, tokens=tokens), needles, forced, corpus.text


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
    counter: PromptCounter, corpus: Corpus, tokens: int, needles: Sequence[NeedleFacts]
) -> None:
    """
    Stop at a chat template that does not render the text: no model could recall it.

    Args:
        counter: Renders and counts prompts.
        corpus: As it is sent.
        tokens: Its length, in tokens.
        needles: What will be asked; may be empty.

    Raises:
        BadInput: If a prompt is shorter than the text, or a needle is not in it.
    """
    asked = needles[-1] if needles else counter.hardest(corpus.functions[-1:])
    prompt = counter.rendered(corpus.text, asked)
    length = counter.tokenizer.count_tokens(prompt)
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


def _setup(
    plan: Plan,
    *,
    corpus: CorpusFacts,
    needles: tuple[NeedleFacts, ...] = (),
    forced: tuple[NeedleFacts, ...] = (),
) -> Setup:
    identity = plan.engine.identity()
    return Setup(
        prompt_version=PROMPT_VERSION,
        prompt_form=plan.prompt_form.value,
        thinking=thinking_phrase(plan),
        corpus=corpus,
        needles=needles,
        forced=forced,
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
        rotation=plan.request.rotation,
        seed=plan.request.seed,
        types_k=plan.request.k_types,
        types_v=plan.request.v_types,
        created=now(),
        words=plan.request.words,
    )


def _renewed(plan: Plan, stored: Setup) -> Setup:
    """
    What the setup would be now, taking what was counted from the stored one.

    If the text, the tokenizer or the wording is another, some other field differs
    and the folder is refused for that. Where the same text comes from is no
    difference: generated, or read from the file that it was written to.
    """
    corpus = replace(
        stored.corpus,
        source_sha256=plan.corpus.sha256,
        sample_k=plan.corpus.sample_k,
        sample_seed=plan.corpus.sample_seed,
    )
    return _setup(plan, corpus=corpus, needles=stored.needles, forced=stored.forced)


def _asked_bytes(function: Function) -> int:
    asked = function.body[: function.content[:ASKED_LINES][-1] + 1]
    return sum(len(line.encode()) + 1 for line in (function.signature, *asked))
