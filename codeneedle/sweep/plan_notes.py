"""
What a user should know before a sweep starts: of its text, its types, kernels, memory,
variables that no program gets, and probes that are left out.
"""

from collections.abc import Iterator
from itertools import chain

from codeneedle.corpora.fitting import (
    filled_context_phrase,
    is_context_filled,
    unmeasured_beyond_phrase,
)
from codeneedle.records.record import Attention
from codeneedle.sweep.plan import Plan
from codeneedle.sweep.workers import place_phrase_without_threads
from codeneedle.system import machine
from codeneedle.system.inherited_variables import ARGUMENTS, withheld_variables
from codeneedle.text import plural, size_text


def notes_of_plan(plan: Plan) -> tuple[str, ...]:
    """What a user should know before it starts."""
    of_probes = (
        probe.notes(plan.request.settings_of(probe), plan.estimates)
        for probe in plan.probes
    )
    ours = (
        *(f"{name} is left out: {why}" for name, why in plan.refused.items()),
        *_withheld_variable_notes(),
        *plan.engine.notes(),
        *_text_notes(plan),
        *_corpus_notes(plan),
        *_type_notes(plan),
        *_kernel_notes(plan),
        *_memory_notes(plan),
    )
    return (*ours, *plan.notes_of_weights, *chain(*of_probes))


def _text_notes(plan: Plan) -> Iterator[str]:
    """A note if ordinary text is not scored."""
    if plan.unread_text:
        yield (
            "recall alone is asked: what a pair loses of ordinary text stays "
            f"unknown, as it is not scored here: {plan.unread_text}"
        )


def _type_notes(plan: Plan) -> Iterator[str]:
    """A note on types of the grid that the engine lacks for K or for V."""
    known = plan.engine.cache_types()
    types = dict.fromkeys((*plan.request.grid_k_types, *plan.request.grid_v_types))
    both = {*known.k} & {*known.v}
    lacking = [name for name in types if both and name not in both]
    if lacking:
        rest = ",".join(name for name in types if name in both)
        yield (
            f"this {plan.engine.name} has no {', '.join(lacking)} for the cache"
            f"{f' (--types {rest} leaves them out)' if rest else ''}"
        )


def _memory_notes(plan: Plan) -> Iterator[str]:
    """A note if a processor has less free memory than weights and largest cache."""
    # An engine knows its pace on processors alone, which use this memory.
    if plan.engine.pace(plan.pairs) is None:
        return
    caches = (plan.kv_bytes(pair) or 0 for pair in plan.possible_pairs)
    needed = round(plan.weights.size_bytes + max(caches, default=0))
    free = machine.available_memory_bytes()
    if needed > free:
        yield (
            f"weights and KV cache take {size_text(needed)}, but only "
            f"{size_text(free)} of memory is free: choose a smaller --context, or "
            "a smaller quantization of the weights"
        )


def _kernel_notes(plan: Plan) -> Iterator[str]:
    """Notes on what is known of kernels, and on pairs that have none."""
    if plan.replaced:
        yield plan.replaced
    if plan.survey is None:
        return
    if plan.survey.unknown:
        yield f"where attention will run is not known: {plan.survey.unknown}"
    others = {
        place_phrase_without_threads(worker.device)
        for worker in plan.workers
        if not worker.is_surveyed
    }
    if others:
        yield (
            "kernels were asked of "
            f"{place_phrase_without_threads(plan.workers[0].device)} alone: "
            f"those of {', '.join(sorted(others))} are known from the cells there"
        )
    places = {
        plan.survey.expected_attention_place(pair) for pair in plan.possible_pairs
    } - {None}
    if places and not places & {Attention.KERNEL, Attention.PLAIN}:
        on_cpu = Attention.CPU in places
        where = "runs on the CPU" if on_cpu else "is converted to f16 at each step"
        yield (
            f"no pair has a kernel on this machine: attention {where}, and nothing "
            "will be recommended"
        )
    elif plan.pairs_without_kernel:
        yield (
            f"{plural(len(plan.pairs_without_kernel), 'pair')} of "
            f"{len(plan.pairs)} without a kernel here: measured last "
            "(--kernels-only leaves them out)"
        )


def _corpus_notes(plan: Plan) -> Iterator[str]:
    """Notes on what is left of the corpus, and if it suits the model badly."""
    request, corpus = plan.request, plan.corpus
    yield from corpus.skipped_file_lines()
    known = plan.estimates
    is_whole = (
        plan.reads_corpus and known.sent_corpus_share >= 1 and not plan.is_built_in
    )
    if is_whole and not is_context_filled(known.sent_corpus_tokens, plan.context):
        filled = filled_context_phrase(known.sent_corpus_tokens, plan.context)
        yield unmeasured_beyond_phrase(corpus.name, f"about {filled}")
    if not request.models:
        chosen = "" if request.corpus else f", chosen for it: corpus {corpus.name}"
        yield f"no --model given: this is the built-in model{chosen}"
    if plan.is_built_in and corpus.kind != "incompressible":
        yield (
            "the built-in model is an instrument for incompressible text: what "
            f"it misses of {corpus.name} says nothing about cache types"
        )


def _withheld_variable_notes() -> Iterator[str]:
    """Variables by which a backend may compute otherwise, which no program gets."""
    names = withheld_variables()
    given = [name for name in names if name.startswith(ARGUMENTS)]
    others = [name for name in names if name not in given]
    if given:
        yield f"not passed on: {', '.join(given)}; give arguments behind '--'"
    if others:
        yield f"not passed on: {', '.join(others)}; --env NAME passes one on"
