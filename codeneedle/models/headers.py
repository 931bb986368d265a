"""
What ``codeneedle weights`` tells of each stored model by its header: what a q8_0/q8_0
cache saves at 32K, the coarsest K that it bears; kept from command to command.
"""

import math
import statistics
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from codeneedle import __version__
from codeneedle.cache_types import Pair
from codeneedle.errors import CodeneedleError
from codeneedle.models.kv_cache import caches_of_plain_attention
from codeneedle.models.sensitivity import (
    attention_moved_by_k_type,
    coarsest_safe_k_type,
)
from codeneedle.models.stores import StoredModel
from codeneedle.models.weights import Weights, read_weights_from_headers
from codeneedle.system.files import (
    cache_folder,
    file_state_text,
    read_json_or_none,
    write_json_if_possible,
)

AT = 32_768
"""Context at which caches are compared, in tokens."""

FULL, SAVING = Pair("f16", "f16"), Pair("q8_0", "q8_0")
"""A cache as it is by default, and the quantized one that loses least."""


class HeaderFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is shown of a model that was not loaded."""

    architecture: str = ""  # as llama.cpp names it; empty where nothing could be read
    file_type: str = ""  # quantization of the weights: ``Q4_K_M``; may be empty
    training_context: int = 0  # tokens; 0 if unknown
    at: int = AT  # context of the caches, in tokens: `AT`, or that of the training
    cache_bytes: int | None = None
    """Size of a cache of `FULL`; None where layers keep less than the whole context."""

    saved_bytes: int | None = None  # by which one of `SAVING` is smaller
    coarsest_k: str = ""
    """Coarsest type of K that is predicted to lose little; empty if unknown."""

    k_bias: float = 0.0  # largest norm of a bias of K; 0 where there are none
    k_bias_median: float = 0.0  # of all layers
    has_sinks: bool = False  # whether attention has sinks
    problem: str = ""  # why it cannot be used; empty if it can


KIND = " ".join((__version__, *HeaderFacts.__struct_fields__))
"""What is kept; facts of another kind are read again."""


class _KeptFacts(msgspec.Struct, frozen=True):
    """Facts by the identity of a file."""

    kind: str
    facts: dict[str, HeaderFacts]


def facts_of(weights: Weights) -> HeaderFacts:
    """What is shown of *weights*."""
    at = min(AT, weights.training_context or AT)
    caches = caches_of_plain_attention(weights, at)
    full, less = (
        caches.cache_bytes_at(at, p) if caches else None for p in (FULL, SAVING)
    )
    norms = [n for _, n in weights.k_bias_norms if math.isfinite(n)]
    return HeaderFacts(
        architecture=weights.architecture,
        file_type=weights.file_type,
        training_context=weights.training_context,
        at=at,
        cache_bytes=None if full is None else round(full),
        saved_bytes=None if full is None or less is None else round(full - less),
        coarsest_k=coarsest_safe_k_type(attention_moved_by_k_type(weights)),
        k_bias=max(norms, default=0.0),
        k_bias_median=statistics.median_low(norms) if norms else 0.0,
        has_sinks=weights.has_sinks,
    )


def read_and_keep_facts(
    models: Iterable[StoredModel],
    read_folder: Callable[[StoredModel], Weights],
    progress: Callable[[int], None] = lambda _: None,
) -> dict[StoredModel, HeaderFacts]:
    """
    The facts of each of *models*; of one that cannot be used, why not.

    Files that are as they were when they were read last are not read again.

    Args:
        models: Of the stores.
        read_folder: Reads a model that is a folder.
        progress: Called with the number of models that are known.
    """
    kept = _read_kept_facts()
    known: dict[str, HeaderFacts] = {}
    facts = {}
    for at, model in enumerate(models):
        progress(at)
        key = _model_key(model)
        found = kept.get(key) or _read_facts(model, read_folder)
        facts[model] = found
        if key and not found.problem:
            known[key] = found
    if known.keys() - kept.keys():
        write_json_if_possible(_facts_file(), _KeptFacts(KIND, kept | known))
    return facts


def _read_facts(
    model: StoredModel, read_folder: Callable[[StoredModel], Weights]
) -> HeaderFacts:
    """The facts of *model*, read now; of one that cannot be used, why not."""
    if model.problem:
        return HeaderFacts(problem=model.problem)
    try:
        weights = (
            read_folder(model)
            if model.is_folder
            else read_weights_from_headers(model.path)
        )
    except CodeneedleError as error:
        return HeaderFacts(problem=str(error).removeprefix(f"{model.path} "))
    return facts_of(weights)


def _read_kept_facts() -> dict[str, HeaderFacts]:
    """Facts that are kept, by `_model_key`; none of another version."""
    note = read_json_or_none(_facts_file(), _KeptFacts)
    return note.facts if note and note.kind == KIND else {}


def _facts_file() -> Path:
    return cache_folder() / "headers.json"


def _model_key(model: StoredModel) -> str:
    """Identity of the first file of *model*, and the size of all; empty without it."""
    try:
        return f"{file_state_text(model.path)} {model.size_bytes}"
    except OSError:
        return ""
