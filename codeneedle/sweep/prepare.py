"""
From a plan to a run: the corpus counted in tokens and fitted to the context, needles
chosen, the setup stored.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from codeneedle.analysis.recall import Ask, asked_of
from codeneedle.corpora.corpus import Corpus, fitted
from codeneedle.corpora.needles import Function, depth_of, needle_facts
from codeneedle.engines.engine import Engine, Tokenizer
from codeneedle.errors import BadInput
from codeneedle.models import weights
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

Counts = dict[tuple[object, ...], tuple[CorpusFacts, tuple[NeedleFacts, ...], str]]
"""
What was counted by this process, by what decides the number of tokens: facts of the
fitted corpus, its needles, its text. Pages of a sweep share it.
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
        if error.key == "recall ask":
            former = asked_of(stored) if stored else Ask.WRITTEN
            error.hint = (
                f"Go on with --ask {former}, or choose another folder with --out."
            )
        raise


def with_further(plan: Plan, run: RunContext, limit: int) -> RunContext:
    """
    *run* with functions to ask for beyond its needles, *limit* with these, stored.

    They follow from the corpus as it is sent. A server is started to count their
    tokens, unless they are stored.

    Args:
        plan: The page of *run*; its store is locked.
        run: As it was prepared.
        limit: Functions of the text, at most; there may be fewer.
    """
    corpus = _sent(plan.corpus, run.text)
    wanted = corpus.further(limit - len(run.setup.needles))
    if len(wanted) <= len(run.setup.further):
        return run
    with tokenizing(plan.engine, plan.store.folder) as tokenizer:
        further = PromptCounter(tokenizer, plan).counted(_facts_of(wanted, corpus))
    return replace(run, setup=plan.store.adopt(replace(run.setup, further=further)))


def _sent(corpus: Corpus, text: str) -> Corpus:
    """*corpus* as far as *text* goes, with which it begins."""
    shorter = replace(corpus, text=text)
    end = shorter.line_count
    return replace(
        shorter, functions=tuple(each for each in corpus.functions if each.end <= end)
    )


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
        return _renewed(plan, stored), text
    if not reads:
        return _setup(plan, corpus=_facts(plan, plan.corpus), needles=()), ""
    key = _count_key(plan)
    if key not in counts:
        with tokenizing(plan.engine, plan.store.folder) as tokenizer:
            counts[key] = _counted(plan, PromptCounter(tokenizer, plan))
    facts, needles, text = counts[key]
    return _setup(plan, corpus=facts, needles=needles), text


def _count_key(plan: Plan) -> tuple[object, ...]:
    """All that the counts of *plan* depend on."""
    request = plan.request
    asked = (plan.context, plan.prompt_form, request.prefill_no_think, request.fit)
    return (plan.weights.path, plan.corpus.sha256, asked, request.server_args)


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

    def counted(self, needles: Sequence[NeedleFacts]) -> tuple[NeedleFacts, ...]:
        """*needles*, each with the tokens that its reply may have."""
        truths = ["\n".join(needle.lines) for needle in needles]
        return tuple(
            replace(
                needle, budget=math.ceil(BUDGET_FACTOR * size) + BUDGET_EXTRA_TOKENS
            )
            for needle, size in zip(needles, self.tokenizer.counts(truths), strict=True)
        )

    def hardest(self, needles: Sequence[NeedleFacts]) -> NeedleFacts:
        """The one of *needles* whose signature and reply take most tokens."""
        asked = self.tokenizer.counts([needle.signature for needle in needles])
        sizes = zip(self.counted(needles), asked, strict=True)
        return max(sizes, key=lambda each: each[0].budget + each[1])[0]


def fitted_corpus(plan: Plan, counter: PromptCounter) -> Corpus:
    """
    The whole corpus if it fits the context, else as many whole functions as fit.

    Raises:
        BadInput: If it does not fit and must not be trimmed, or if no function fits.
    """
    longest = sorted(plan.corpus.functions, key=_asked_bytes)[-CANDIDATES:]
    hardest = counter.hardest(_facts_of(longest, plan.corpus))

    def whole(text: str) -> int:
        return counter.prompt(text, hardest) + hardest.budget

    corpus, context = plan.corpus, plan.context
    if plan.request.fit:
        return fitted(corpus, fits=lambda text: whole(text) <= context)
    needed = whole(corpus.text)
    if needed > context:
        raise BadInput(
            source=f"corpus {corpus.name}",
            reason=f"it needs {needed:,} tokens with question and answer, the "
            f"context has {context:,}",
            hint=f"Use --context {-(-needed // 256) * 256}, or drop --no-fit to "
            "have it trimmed to whole functions.",
        )
    return corpus


def _counted(
    plan: Plan, counter: PromptCounter
) -> tuple[CorpusFacts, tuple[NeedleFacts, ...], str]:
    """The corpus as it is sent, in facts; what is asked of it; and its text."""
    corpus = fitted_corpus(plan, counter)
    chosen = _facts_of(corpus.chosen(), corpus)
    tokens = counter.tokenizer.count_tokens(corpus.text)
    _refuse_lost_text(counter, corpus.text, tokens, chosen)
    return _facts(plan, corpus, tokens=tokens), counter.counted(chosen), corpus.text


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
    counter: PromptCounter, text: str, tokens: int, needles: Sequence[NeedleFacts]
) -> None:
    """
    Stop at a chat template that does not render the text: no model could recall it.

    Args:
        counter: Renders and counts prompts.
        text: The corpus, as it is sent.
        tokens: Its length, in tokens.
        needles: What will be asked.

    Raises:
        BadInput: If a prompt is shorter than the text, or a needle is not in it.
    """
    prompt = counter.rendered(text, needles[-1])
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


def _facts_of(functions: Iterable[Function], corpus: Corpus) -> list[NeedleFacts]:
    """*functions* of *corpus* as needles; their budgets are not counted yet."""
    lines = corpus.line_count
    return [
        needle_facts(function, depth=round(depth_of(function, line_count=lines), 4))
        for function in functions
    ]


def _setup(
    plan: Plan, *, corpus: CorpusFacts, needles: tuple[NeedleFacts, ...]
) -> Setup:
    identity = plan.engine.identity()
    return Setup(
        prompt_version=PROMPT_VERSION,
        prompt_form=plan.prompt_form.value,
        thinking=thinking_phrase(plan),
        corpus=corpus,
        needles=needles,
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
    return _setup(plan, corpus=corpus, needles=stored.needles)


def _asked_bytes(function: Function) -> int:
    asked = needle_facts(function, depth=0.0).lines
    return sum(len(line.encode()) + 1 for line in (function.signature, *asked))
