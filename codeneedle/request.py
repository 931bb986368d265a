"""What a person asks of a sweep, before anything is checked."""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from codeneedle.grid import DEFAULT_TYPES
from codeneedle.prompts import PromptForm

_Value = TypeVar("_Value")

DEFAULT_OUT = Path("sweeps")
"""Where run folders go unless a person says otherwise."""


@dataclass(frozen=True, slots=True)
class Variant:
    """
    Arguments for llama-server that are tried against others.

    Attributes:
        name: What a page of the grid is called.
        args: The arguments.
    """

    name: str
    args: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """
    What a person asked for; None where they left it to us.

    The grid is K x V. Of what else has several values, each combination is a page
    of that grid with a run folder of its own; see `pages`.

    Attributes:
        corpus: Name or path of the text.
        models: Paths of weights; empty for the built-in model.
        k_types: Types of the grid's rows.
        v_types: Types of its columns.
        probes: Names of what measures.
        contexts: Context sizes, in tokens; empty for what suits the model.
        rotations: Whether quantized values are rotated, as llama.cpp does unless
            it is told not to.
        variants: Arguments for llama-server that are tried against each other.
        prompt_form: How needles are asked for.
        prefill_no_think: Whether to begin the answer with an empty thought.
        fit: Whether a corpus that is too long is trimmed, rather than refused.
        seed: Of sampling and of the running order.
        server_args: Further arguments for llama-server; a page's own come last.
        llama_server: Path of the binary.
        out: Folder of all run folders.
        divergence_contexts: Contexts to compare distributions at, in tokens;
            empty for what suits the model.
        chunks: Chunks of text to compare distributions on.
        text: File to compare distributions on; None for the corpus.
        depths: Depths to measure speed at, in tokens; empty for what suits.
        repetitions: Measurements of speed at each depth.
        skip_fallback: Whether a cell that falls back ends before it is measured.
        speculate: Whether the text may draft its own recall, where the binary can.
        page: What this page is called; empty if it is the only one.
    """

    corpus: str | None = None
    models: tuple[Path, ...] = ()
    k_types: tuple[str, ...] = DEFAULT_TYPES
    v_types: tuple[str, ...] = DEFAULT_TYPES
    probes: tuple[str, ...] = ("recall",)
    contexts: tuple[int, ...] = ()
    rotations: tuple[bool, ...] = (True,)
    variants: tuple[Variant, ...] = ()
    prompt_form: PromptForm | None = None
    prefill_no_think: bool = False
    fit: bool = True
    seed: int = 42
    server_args: tuple[str, ...] = ()
    llama_server: Path | None = None
    out: Path = DEFAULT_OUT
    divergence_contexts: tuple[int, ...] = ()
    chunks: int | None = None
    text: Path | None = None
    depths: tuple[int, ...] = ()
    repetitions: int | None = None
    skip_fallback: bool = False
    speculate: bool = True
    page: str = ""

    @property
    def model(self) -> Path | None:
        """The weights of this page; None for the built-in model."""
        return self.models[0] if self.models else None

    @property
    def context(self) -> int | None:
        """The context of this page, in tokens; None for what suits the model."""
        return self.contexts[0] if self.contexts else None

    @property
    def rotation(self) -> bool:
        """Whether this page rotates quantized values."""
        return self.rotations[0]


def pages(request: Request) -> list[Request]:
    """
    The pages of *request*, each with one value where it has several.

    A page is called after the values that the pages differ in. Weights are
    outermost, so that their file stays in memory from one page to the next; they
    have a folder of their own and need no name.
    """
    return [
        replace(
            request,
            models=models,
            contexts=contexts,
            rotations=rotations,
            variants=variants,
            server_args=(*request.server_args, *_args(variants)),
            page="+".join(_names(request, contexts, rotations, variants)),
        )
        for models, contexts, rotations, variants in itertools.product(
            _singles(request.models),
            _singles(request.contexts),
            _singles(request.rotations),
            _singles(request.variants),
        )
    ]


def _singles(values: Iterable[_Value]) -> list[tuple[_Value, ...]]:
    return [(value,) for value in values] or [()]


def _args(variants: tuple[Variant, ...]) -> tuple[str, ...]:
    return variants[0].args if variants else ()


def _names(
    request: Request,
    contexts: tuple[int, ...],
    rotations: tuple[bool, ...],
    variants: tuple[Variant, ...],
) -> Iterator[str]:
    if len(request.contexts) > 1:
        yield f"context-{contexts[0]}"
    # Off is told even where it is alone: it is not what llama.cpp does.
    if len(request.rotations) > 1 or not rotations[0]:
        yield "rotation-on" if rotations[0] else "rotation-off"
    if len(request.variants) > 1:
        yield variants[0].name
