"""
Shows the models that ``weights`` finds, as a table and as JSON: their caches, what q8_0
saves, and down to which type K is predicted to lose little.
"""

from collections.abc import Iterator, Mapping

import msgspec

from codeneedle.document import Document, Facts, Lines, Table
from codeneedle.models.headers import AT, SAVING, HeaderFacts
from codeneedle.models.stores import (
    StoredModel,
    hugging_face_folders,
    lm_studio_folders,
    ollama_folders,
    shortest_names,
)
from codeneedle.report.shown import (
    K_DOWN_TO,
    MLX_FOLDER,
    NO_WHOLE_CACHE,
    NOT_PREDICTED,
    UNTOLD_HEADER,
    NumberMark,
)
from codeneedle.text import NO_VALUE_WORD, plural, size_text

NONE = NO_VALUE_WORD


class WeightsRow(msgspec.Struct, frozen=True, kw_only=True):
    """A model in a store."""

    name: str  # what `--model` takes for it
    store: str  # Hugging Face, LM Studio, Ollama, or codeneedle
    path: str  # of its file, of the first part of a split one, or of its folder
    size_bytes: int  # of all its parts
    is_folder: bool  # whether it is a folder, for `--engine mlx`
    problem: str  # why it cannot be used; empty if it can
    architecture: str  # as llama.cpp names it; empty where nothing could be read
    quantization: str  # of the weights: ``Q4_K_M``; may be empty
    training_context: int  # tokens; 0 if unknown
    at: int  # context of the caches, in tokens: 32,768, or that of the training
    cache_bytes: int | None
    """Size of an f16/f16 cache; null where layers keep less than the whole context."""

    saved_bytes: int | None  # by which a q8_0/q8_0 cache is smaller
    coarsest_k: str  # type of K predicted to lose at most 1 %; empty if unknown
    k_bias: float  # largest norm of a bias of K; 0 where there are none
    k_bias_median: float  # of all layers
    has_sinks: bool  # whether attention has sinks


def weights_rows(facts: Mapping[StoredModel, HeaderFacts]) -> list[WeightsRow]:
    """A row for each model, in the order of the stores."""
    names = shortest_names(list(facts))
    return [
        WeightsRow(
            name=names[model],
            store=model.store,
            path=str(model.path),
            size_bytes=model.size_bytes,
            is_folder=model.is_folder,
            problem=known.problem,
            architecture=known.architecture,
            quantization=known.file_type or model.quantization_tag,
            training_context=known.training_context,
            at=known.at,
            cache_bytes=known.cache_bytes,
            saved_bytes=known.saved_bytes,
            coarsest_k=known.coarsest_k,
            k_bias=known.k_bias,
            k_bias_median=known.k_bias_median,
            has_sinks=known.has_sinks,
        )
        for model, known in facts.items()
    ]


def weights_document(rows: list[WeightsRow]) -> Document:
    """The models that can be used, then those that cannot, with the reason."""
    usable = [row for row in rows if not row.problem]
    heading = (
        *("--model", "weights", "size", "architecture", "trained for"),
        *(f"cache f16\nat {AT // 1024}K", f"{SAVING}\nsaves", K_DOWN_TO.sign, "path"),
    )
    told = ("--model", "weights", "architecture", "path")
    yield Table(heading, [_cells_of(row) for row in usable], words=told)
    yield Facts([(mark.sign, mark.meaning) for mark in _marks(usable)], is_quiet=True)
    if usable:
        total = size_text(sum(row.size_bytes for row in usable))
        yield Lines([f"{plural(len(usable), 'model')}, {total}."], style="dim")
    yield Table(
        ("not usable", "why", "path"),
        [(row.name, row.problem, row.path) for row in rows if row.problem],
        words=("not usable", "why", "path"),
    )
    if not rows:
        folders = (*hugging_face_folders(), *lm_studio_folders(), *ollama_folders())
        yield Lines(
            [
                f"There are no models in {', '.join(map(str, folders))}.",
                "llama download -hf ORG/REPO:Q4_K_M fetches one.",
            ]
        )


def _cells_of(row: WeightsRow) -> tuple[str, ...]:
    """The cells of a model that can be used; dashes for what is unknown."""
    cache = NONE if row.cache_bytes is None else size_text(row.cache_bytes)
    shorter = f" at {row.at:,}" if row.at != AT and row.cache_bytes is not None else ""
    return (
        row.name,
        row.quantization or NONE,
        size_text(row.size_bytes),
        row.architecture + (f" {MLX_FOLDER.sign}" if row.is_folder else ""),
        f"{row.training_context:,}" if row.training_context else NONE,
        f"{cache}{shorter}",
        NONE if row.saved_bytes is None else size_text(row.saved_bytes),
        row.coarsest_k or _bias_or_sinks_phrase(row),
        row.path,
    )


def _bias_or_sinks_phrase(row: WeightsRow) -> str:
    """What is known of K where no type of it is predicted."""
    if not row.k_bias:
        return "sinks" if row.has_sinks else NONE
    return f"biases up to {row.k_bias:,.3g}, median {row.k_bias_median:,.3g}"


def _marks(rows: list[WeightsRow]) -> Iterator[NumberMark]:
    """The marks that occur in *rows*."""
    if any(row.is_folder for row in rows):
        yield MLX_FOLDER
    if any(row.cache_bytes is None for row in rows):
        yield NO_WHOLE_CACHE
    if any(row.coarsest_k for row in rows):
        yield K_DOWN_TO
    if any(not (row.coarsest_k or row.k_bias or row.has_sinks) for row in rows):
        yield NOT_PREDICTED
    if any(not (row.quantization and row.training_context) for row in rows):
        yield UNTOLD_HEADER
