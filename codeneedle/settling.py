"""From a plan to a setup: the corpus counted, fitted, and its needles chosen."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from codeneedle import fingerprints
from codeneedle.clock import now
from codeneedle.corpus import Corpus, fitted
from codeneedle.counting import Counter, counting
from codeneedle.errors import RequestError
from codeneedle.needles import Function, depth_of, needle_facts
from codeneedle.planning import Plan, machine_phrase
from codeneedle.probe import Probe
from codeneedle.prompts import PROMPT_VERSION, PromptForm
from codeneedle.records import CorpusFacts, NeedleFacts, Setup, WeightsFacts

CANDIDATES = 8
"""The longest functions, by bytes; the longest in tokens is taken to be among them."""


class CorpusTooLong(RequestError):  # noqa: N818 - named after the fact
    """The corpus exceeds the context, and trimming was forbidden."""

    def __init__(self, *, name: str, tokens: int, context: int) -> None:
        super().__init__(
            f"corpus {name} needs {tokens:,} tokens with question and answer, the "
            f"context has {context:,}",
            hint=f"Use --context {-(-tokens // 256) * 256}, or drop --no-fit to have "
            "it trimmed to whole functions.",
        )


class TrimmedBefore(RequestError):  # noqa: N818 - named after the fact
    """The run was made with a trimmed corpus, and trimming is forbidden now."""

    def __init__(self, *, folder: str) -> None:
        super().__init__(
            f"the corpus of {folder} was trimmed to the context",
            hint="Choose another folder with --out, or drop --no-fit.",
        )


class FolderShared(RequestError):  # noqa: N818 - named after the fact
    """Two pages of a sweep would write to the same run folder."""

    def __init__(self, *, name: str) -> None:
        super().__init__(
            f"two pages of this sweep would both be called {name}",
            hint="Rename one of the two files of weights.",
        )


@dataclass(frozen=True, slots=True)
class Settled:
    """A setup, and the corpus as it will be sent."""

    setup: Setup
    text: str


Counted = dict[tuple[object, ...], tuple[CorpusFacts, tuple[NeedleFacts, ...], str]]
"""What was counted in this sitting, by what decides how tokens fall."""


def settled(
    plan: Plan, probes: Sequence[Probe], counted: Counted | None = None
) -> Settled:
    """
    The setup of *plan* for *probes*, and its corpus fitted to the context.

    A run folder that was made from the same text is asked first, so that a
    resumed sweep starts no server just to count.

    Raises:
        OtherSetup: If the run folder is one of another setup.
        CorpusTooLong: If the corpus is too long and must not be trimmed.
        BadServerArguments: If the server does not take its arguments.
        CannotCount: If the server that counts fails.
        CodeneedleError: If a probe finds that it cannot run.
    """
    is_new = plan.store.setup() is None
    ready = _fitted(plan, {} if counted is None else counted)
    # In the folder before the probes are asked: some look into the setup.
    setup = plan.store.adopt(ready.setup)
    try:
        settings = {probe.name: probe.settings(plan, ready.text) for probe in probes}
    except BaseException:
        # Else the next try, asked otherwise, would meet a setup without a record.
        if is_new:
            plan.store.forget()
        raise
    return Settled(plan.store.adopt(replace(setup, probes=settings)), ready.text)


def refuse_other_setup(plan: Plan) -> None:
    """
    Stop if the run folder is one of another setup, or was trimmed and must not be.

    Raises:
        OtherSetup: If its records were made under another one.
        TrimmedBefore: If its corpus was trimmed, which is forbidden now.
        BadSetup: If its setup cannot be read, nor told from its records.
    """
    stored = plan.store.intact_setup()
    if stored is None:
        return
    plan.store.compare(_renewed(plan, stored))
    if stored.corpus.is_trimmed and not plan.request.fit:
        raise TrimmedBefore(folder=str(plan.store.folder))


def refuse_shared_folders(plans: Sequence[Plan]) -> None:
    """
    Stop if two pages would write to one folder.

    Raises:
        FolderShared: Naming the weights that are called alike.
    """
    seen: set[str] = set()
    for plan in plans:
        if plan.store.name in seen:
            raise FolderShared(name=plan.store.name)
        seen.add(plan.store.name)


def _fitted(plan: Plan, counted: Counted) -> Settled:
    stored = plan.store.setup()
    if stored is not None:
        text = plan.corpus.text[: stored.corpus.characters]
        return Settled(_renewed(plan, stored), text)
    key = _what_decides(plan)
    if key not in counted:
        with counting(plan) as counter:
            counted[key] = _counted(plan, counter)
    facts, needles, text = counted[key]
    return Settled(_setup(plan, corpus=facts, needles=needles), text)


def _what_decides(plan: Plan) -> tuple[object, ...]:
    """All that the counts of *plan* depend on: pages that share it share them."""
    request = plan.request
    asked = (plan.context, plan.prompt_form, request.prefill_no_think, request.fit)
    return (plan.weights.path, plan.corpus.sha256, asked, request.server_args)


def fitted_corpus(plan: Plan, counter: Counter) -> Corpus:
    """
    The whole corpus if it fits the context, else as many whole functions as fit.

    Raises:
        CorpusTooLong: If it does not fit and must not be trimmed.
        NotWhole: The same, of one that no context could hold.
    """
    if not plan.request.fit:
        plan.corpus.refuse_if_cut()
    longest = sorted(plan.corpus.functions, key=_asked_bytes)[-CANDIDATES:]
    facts = [needle_facts(function, depth=0.0) for function in longest]
    hardest, budget = counter.hardest(facts)

    def whole(text: str) -> int:
        return counter.prompt(text, hardest) + budget

    corpus, context = plan.corpus, plan.context
    if corpus.whole is None:
        needed = whole(corpus.text)
        if needed <= context:
            return corpus
        if not plan.request.fit:
            raise CorpusTooLong(name=corpus.name, tokens=needed, context=context)
    return fitted(corpus, fits=lambda text: whole(text) <= context)


def thinking_phrase(plan: Plan) -> str:
    """How thinking is switched off, for the setup."""
    if plan.prompt_form is PromptForm.COMPLETION:
        return "none: completion form"
    means = ["enable_thinking=false in the template's arguments"]
    if "--reasoning-budget" in plan.server.options:
        means.append("--reasoning-budget 0")
    if plan.request.prefill_no_think:
        means.append("an empty thought prefilled")
    return ", ".join(means)


def _counted(
    plan: Plan, counter: Counter
) -> tuple[CorpusFacts, tuple[NeedleFacts, ...], str]:
    """The corpus as it is sent, in facts; what is asked of it; and its text."""
    corpus = fitted_corpus(plan, counter)
    chosen = _needles(corpus)
    budgets = counter.budgets(chosen)
    needles = (
        replace(needle, budget=budget)
        for needle, budget in zip(chosen, budgets, strict=True)
    )
    facts = CorpusFacts(
        name=corpus.name,
        origin=corpus.origin,
        kind=corpus.kind,
        sha256=corpus.sha256,
        characters=len(corpus.text),
        source_sha256=plan.corpus.sha256,
        sample_k=corpus.sample_k,
        sample_seed=corpus.sample_seed,
        tokens=counter.client.count_tokens(corpus.text),
        functions=len(corpus.functions),
        functions_before=plan.corpus.functions_in_all,
    )
    return facts, tuple(needles), corpus.text


def _needles(corpus: Corpus) -> list[NeedleFacts]:
    lines = corpus.line_count
    return [
        needle_facts(function, depth=round(depth_of(function, line_count=lines), 4))
        for function in corpus.chosen()
    ]


def _setup(
    plan: Plan, *, corpus: CorpusFacts, needles: tuple[NeedleFacts, ...]
) -> Setup:
    return Setup(
        prompt_version=PROMPT_VERSION,
        prompt_form=plan.prompt_form,
        thinking=thinking_phrase(plan),
        corpus=corpus,
        needles=needles,
        weights=WeightsFacts(
            name=plan.model,
            sha256=fingerprints.sha256(plan.weights),
            size_bytes=plan.weights.size_bytes,
        ),
        llama=plan.server.version,
        machine=machine_phrase(plan.server),
        context=plan.context,
        server_args=plan.request.server_args,
        rotation=plan.request.rotation,
        seed=plan.request.seed,
        types_k=plan.request.k_types,
        types_v=plan.request.v_types,
        created=now(),
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
