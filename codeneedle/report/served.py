"""
Shows what would be served: its model, its engine, where attention runs, its memory, and
what there is to gain.

`plan`, `kernels` and `doctor` show it, in the same lines.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

from codeneedle.cache_types import FULL_BITS, Pair, bits_per_value, most_precise
from codeneedle.document import Document, Heading, Lines
from codeneedle.engines.memory_gain import gain_by_survey
from codeneedle.engines.survey import Survey
from codeneedle.models.weights import Weights
from codeneedle.report.captions import engine_name_and_version
from codeneedle.report.kernels import (
    device_memory_document,
    kernels_document,
    memory_gain_line,
)
from codeneedle.text import plural, size_text

EXAMPLE = Pair("q8_0", "q8_0")
"""The pair that everybody asks about first."""


def model_facts(name: str, weights: Weights) -> Iterator[tuple[str, str]]:
    """What the weights called *name* are, and for how long a text."""
    if not weights.is_read:
        yield "model", f"{name}, known to its server alone"
        return
    yield "model", f"{name}, {size_text(weights.size_bytes)}"
    trained = weights.training_context
    known = plural(trained, "token") if trained else "a context that it does not state"
    yield "shape", _shape_phrase(weights)
    yield "trained for", f"{known}; vocabulary {weights.vocabulary:,}"


def _shape_phrase(weights: Weights) -> str:
    heads = " or ".join(map(str, sorted(set(weights.kv_heads))))
    sizes = f"{weights.key_length}"
    if weights.value_length != weights.key_length:
        sizes = f"{weights.key_length} (K) and {weights.value_length} (V)"
    kind = f"{weights.architecture} {weights.file_type}".strip()
    noun = "KV head" if heads == "1" else "KV heads"
    layers = plural(weights.layers, "layer")
    return f"{kind}, {layers}, {heads} {noun}, head size {sizes}"


def program_fact(engine: str, version: str, program: object) -> tuple[str, str]:
    """What serves a model: ``llama.cpp``, and a phrase of its version and path."""
    name, phrase = engine_name_and_version(engine, version)
    return name, ", ".join(filter(None, (phrase, str(program))))


def note_block(notes: Iterable[str]) -> Lines:
    """What a user should know before a sweep, a note each."""
    return Lines([f"note: {note}" for note in notes], style="yellow")


def survey_document(
    survey: Survey, k_types: Sequence[str], v_types: Sequence[str], weights: Weights
) -> Document:
    """Where attention of each pair runs, its memory, and what there is to gain."""
    yield from kernels_document(survey, k_types, v_types)
    yield from device_memory_document(survey)
    pairs = [pair for pair, of_pair in survey.pairs.items() if not of_pair.refusal]
    yield from memory_gain_document(pairs, weights, lambda _pairs: survey)


def memory_gain_document(
    pairs: Sequence[Pair],
    weights: Weights,
    ask: Callable[[Sequence[Pair]], Survey | None],
) -> Document:
    """
    What there is to gain: `EXAMPLE` and the smallest pair, beside the most precise.

    Args:
        pairs: Those that can run.
        weights: Of the model.
        ask: Asks the engine about some of them.
    """
    if not pairs[1:]:
        return
    reference = most_precise(pairs)
    small = dict.fromkeys(
        p for p in (EXAMPLE, pair_with_fewest_bits(pairs)) if p in pairs
    )
    survey = ask([reference, *small])
    gains = {
        pair: gain_by_survey(
            survey, pair, reference=reference, weights=weights.size_bytes
        )
        for pair in small
        if survey and pair != reference
    }
    lines = [
        f"{pair}: {memory_gain_line(gain)}" for pair, gain in gains.items() if gain
    ]
    if lines:
        yield Heading(f"what there is to gain beside {reference}")
        yield Lines(lines)


def pair_with_fewest_bits(pairs: Sequence[Pair]) -> Pair:
    """The pair whose K and V together have the fewest bits, as far as is known."""
    return min(
        pairs,
        key=lambda pair: sum(bits_per_value(t) or FULL_BITS for t in (pair.k, pair.v)),
    )
