"""
From a plan to a setup: the corpus counted in tokens, fitted to the context, needles
chosen.
"""

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from codeneedle.corpora.corpus import Corpus, fitted
from codeneedle.corpora.needles import Function, depth_of, needle_facts
from codeneedle.engines.client import Client
from codeneedle.engines.llama_cpp.arguments import Launch, without_offload
from codeneedle.engines.llama_cpp.log import read_log
from codeneedle.engines.llama_cpp.server import (
    ServerDied,
    is_about_an_argument,
    serving,
)
from codeneedle.errors import CellError, FolderUnusable, MachineError, RequestError
from codeneedle.models import weights
from codeneedle.probes.probe import Probe, thinking_args
from codeneedle.probes.prompts import (
    NO_THINK_ARGS,
    PROMPT_VERSION,
    PromptForm,
    chat_messages,
    completion_prompt,
)
from codeneedle.records.record import CorpusFacts, NeedleFacts, Setup, WeightsFacts
from codeneedle.sweep.plan import Plan, machine_phrase
from codeneedle.system.processes import now

BUDGET_FACTOR = 1.5
BUDGET_EXTRA_TOKENS = 64
"""
Tokens that a reply may have: one and a half times those of the truth, and some
for a preamble. Long enough for every answer that can still score, short enough
that one line without end costs seconds.
"""


class BadServerArguments(RequestError):  # noqa: N818 - named after the fact
    """llama-server does not take the arguments after ``--``, or ends over them."""

    def __init__(self, *, reason: str) -> None:
        super().__init__(
            reason, hint="Check the arguments after '--': see 'llama-server --help'."
        )


class CannotCount(MachineError):  # noqa: N818 - named after the fact
    """No tokens can be counted, as the server that would do it fails."""

    def __init__(self, *, reason: str, log: Path) -> None:
        super().__init__(
            f"the corpus cannot be counted: {reason}", hint=f"See {log} for the cause."
        )


@dataclass(frozen=True, slots=True)
class Counter:
    """Counts tokens of whole prompts with the server's own tokenizer."""

    client: Client
    plan: Plan

    def prompt(self, text: str, needle: NeedleFacts) -> int:
        """Tokens of the prompt that asks *needle* of *text*."""
        if self.plan.prompt_form is PromptForm.COMPLETION:
            return self.client.count_tokens(completion_prompt(text, needle))
        prefill = self.plan.request.prefill_no_think
        messages = chat_messages(text, needle, prefill_no_think=prefill)
        return self.client.count_tokens(self.client.render(messages, NO_THINK_ARGS))

    def budgets(self, needles: Sequence[NeedleFacts]) -> list[int]:
        """Tokens that the reply to each of *needles* may have, asked at once."""
        truths = ["\n".join(needle.lines) for needle in needles]
        return [_budget(tokens) for tokens in self.client.counts(truths)]

    def hardest(self, needles: Sequence[NeedleFacts]) -> tuple[NeedleFacts, int]:
        """The one of *needles* that takes most tokens, and the budget of its reply."""
        budgets = self.budgets(needles)
        asked = self.client.counts([needle.signature for needle in needles])
        sizes = [budget + tokens for budget, tokens in zip(budgets, asked, strict=True)]
        at = sizes.index(max(sizes))
        return needles[at], budgets[at]


def _budget(truth: int) -> int:
    return math.ceil(BUDGET_FACTOR * truth) + BUDGET_EXTRA_TOKENS


@contextlib.contextmanager
def counting(plan: Plan) -> Iterator[Counter]:
    """
    A server that only tokenizes: no cache types, smallest context, no warm-up.

    Raises:
        BadServerArguments: If it does not take the arguments of a person.
        CannotCount: If it fails in another way.
        FolderUnusable: If the disk refuses.
    """
    launch = Launch(
        binary=plan.tools.server,
        weights=plan.weights.path,
        alias=f"{plan.model}.counting",
        context=512,
        pair=None,
        extra=(*thinking_args(plan), *without_offload(plan.request.server_args)),
        options=plan.server.options,
    )
    log = plan.store.folder / "logs" / "counting.log"
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FolderUnusable(folder=log.parent, reason=str(error)) from error
    try:
        with serving(launch, log=log, folder=plan.store.folder) as served:
            yield Counter(served.client, plan)
    except CellError as error:
        # No cell has begun: nothing of this is a finding about cache types.
        reason = _bad_arguments(error, log) if plan.request.server_args else None
        if reason is not None:
            raise BadServerArguments(reason=reason) from error
        raise CannotCount(reason=str(error), log=log) from error


def _bad_arguments(error: CellError, log: Path) -> str | None:
    """What is wrong with the server's arguments, if the error comes of them."""
    if isinstance(error, ServerDied) and error.returncode == 0:
        # As --version has it.
        return "llama-server does what its arguments say and ends, instead of serving"
    return str(error) if is_about_an_argument(read_log(log)) else None


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
        conditions = {
            probe.name: probe.conditions(plan, ready.text) for probe in probes
        }
    except BaseException:
        # Else the next try, asked otherwise, would meet a setup without a record.
        if is_new:
            plan.store.forget()
        raise
    return Settled(plan.store.adopt(replace(setup, probes=conditions)), ready.text)


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
        BadInput: If no function to ask for fits.
    """
    longest = sorted(plan.corpus.functions, key=_asked_bytes)[-CANDIDATES:]
    facts = [needle_facts(function, depth=0.0) for function in longest]
    hardest, budget = counter.hardest(facts)

    def whole(text: str) -> int:
        return counter.prompt(text, hardest) + budget

    corpus, context = plan.corpus, plan.context
    if plan.request.fit:
        return fitted(corpus, fits=lambda text: whole(text) <= context)
    needed = whole(corpus.text)
    if needed > context:
        raise CorpusTooLong(name=corpus.name, tokens=needed, context=context)
    return corpus


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
        functions_before=len(plan.corpus.functions),
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
            sha256=weights.sha256(plan.weights),
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
