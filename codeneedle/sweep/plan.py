"""From a request to a plan: everything that can fail cheaply fails here."""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from codeneedle.corpora import corpus as corpora
from codeneedle.corpora.corpus import Corpus
from codeneedle.engines.llama_cpp import installation
from codeneedle.engines.llama_cpp.arguments import (
    ROTATION_VARIABLE,
    Speculation,
    refuse_reserved,
    speculation_for,
)
from codeneedle.engines.llama_cpp.installation import ServerFacts, Tools
from codeneedle.errors import FolderUnusable, MachineError, RequestError, UnknownName
from codeneedle.grid import Pair, shuffled_grid
from codeneedle.models import weights
from codeneedle.models.nano import model as nano
from codeneedle.models.weights import Weights
from codeneedle.probes.prompts import PromptForm
from codeneedle.records.record import Trouble
from codeneedle.records.store import Store, run_folder
from codeneedle.sweep.request import Request
from codeneedle.system import machine

DEFAULT_CONTEXT = 16_384
"""Tokens, where the weights were trained for as many; larger ones cost hours."""

BUILT_IN_CONTEXT = 18_432
"""Tokens: 16 functions of random-bodies, byte by byte, a question and its answer."""

BUILT_IN_CORPUS = "random-bodies-mini"
DEFAULT_CORPUS = "random-bodies"

_POSITION_OPTIONS = ("--rope-", "--yarn-", "--override-kv")
"""Arguments with which people stretch a context on purpose."""


class ContextTooLong(RequestError):  # noqa: N818 - named after the fact
    """More tokens than the weights were trained for."""

    def __init__(self, *, context: int, trained: int) -> None:
        super().__init__(
            f"a context of {context:,} tokens exceeds the {trained:,} that these "
            "weights were trained for",
            hint=f"Use --context {trained} or less, or stretch it on purpose with "
            "rope arguments after --.",
        )


class NothingToPrefill(RequestError):  # noqa: N818 - named after the fact
    """An empty thought was to begin the answers of what does not think."""

    def __init__(self, *, what: str) -> None:
        super().__init__(
            f"--prefill-no-think has no effect here: {what}",
            hint="Drop it, or use it with --model and the chat form.",
        )


class DiskFull(MachineError):  # noqa: N818 - named after the fact
    """Not even the records would fit."""

    def __init__(self, *, folder: Path, free_bytes: int) -> None:
        super().__init__(
            f"only {free_bytes:,} bytes are free at {folder}",
            hint="Free some space or choose another folder with --out.",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """
    What a sweep would do: checked, but nothing started yet.

    Attributes:
        request: What it follows from.
        tools: The binaries.
        server: What the binary says of itself.
        weights: Header of the weights.
        model: Short name of the weights.
        corpus: The text, before fitting.
        context: Context size, in tokens.
        prompt_form: How needles are asked for.
        pairs: The grid, in running order.
        store: Where its records are.
        notes: What a person should know before it starts.
        speculation: How the corpus drafts its own recall; None for not at all.
        preflights: What was found of attention in this sitting, kept for the probes
            to come. Alone in being filled later.
    """

    request: Request
    tools: Tools
    server: ServerFacts
    weights: Weights
    model: str
    corpus: Corpus
    context: int
    prompt_form: PromptForm
    pairs: tuple[Pair, ...]
    store: Store
    notes: tuple[str, ...] = ()
    speculation: Speculation | None = None
    preflights: dict[Pair, Trouble | None] = field(default_factory=dict, compare=False)

    @property
    def is_built_in(self) -> bool:
        """Whether the built-in model is used."""
        return self.request.model is None


def plan(request: Request, *, read: Callable[[str], Corpus] = corpora.load) -> Plan:
    """
    Check *request* against the machine, the binary, the weights and the corpus.

    Args:
        request: What a person asked for.
        read: Makes a corpus of its name or path.

    Raises:
        RequestError: If it can be mended by asking otherwise.
        MachineError: If this machine cannot do it.
    """
    refuse_reserved(request.server_args)
    corpus = read(chosen_corpus(request))
    tools = installation.find(llama_server=request.llama_server)
    server = installation.ask(tools.server)
    _refuse_unknown_types(request, server)
    header = weights.read_header(request.model or nano.built_in_model())
    model = weights.short_name(header.path) if request.model else nano.NAME
    folder = f"{model}+{request.page}" if request.page else model
    form = request.prompt_form or default_form(request, header)
    _refuse_prefill(request, form)
    return Plan(
        request=request,
        tools=tools,
        server=server,
        weights=header,
        model=model,
        corpus=corpus,
        context=chosen_context(request, header),
        prompt_form=form,
        pairs=tuple(shuffled_grid(request.k_types, request.v_types, seed=request.seed)),
        store=_writable(run_folder(request.out, corpus=corpus.name, model=folder)),
        notes=tuple(notes(request, corpus)),
        speculation=speculation_for(server.options, request.server_args)
        if request.speculate
        else None,
    )


def chosen_corpus(request: Request) -> str:
    """The corpus asked for, else one that suits the model."""
    if request.corpus:
        return request.corpus
    return DEFAULT_CORPUS if request.model else BUILT_IN_CORPUS


def chosen_context(request: Request, header: Weights) -> int:
    """
    The context asked for, else one that suits the model, in tokens.

    Raises:
        ContextTooLong: If the weights were not trained for it, unless the
            arguments for the server stretch it on purpose.
    """
    trained = header.training_context
    default = DEFAULT_CONTEXT if request.model else BUILT_IN_CONTEXT
    context = request.context or min(default, trained or default)
    if trained and context > trained and not is_stretched(request):
        raise ContextTooLong(context=context, trained=trained)
    return context


def is_stretched(request: Request) -> bool:
    """Whether the arguments for the server stretch a context on purpose."""
    return any(arg.startswith(_POSITION_OPTIONS) for arg in request.server_args)


def default_form(request: Request, header: Weights) -> PromptForm:
    """Chat where the weights carry a template; the built-in model goes on by itself."""
    if request.model is None or not header.chat_template:
        return PromptForm.COMPLETION
    return PromptForm.CHAT


def notes(request: Request, corpus: Corpus) -> list[str]:
    """What a person should know before the sweep starts."""
    said = corpus.left_out()
    if ROTATION_VARIABLE in os.environ:
        said.append(f"{ROTATION_VARIABLE} is not handed on; there is --rotation off")
    if request.model is None:
        chosen = "" if request.corpus else f", chosen for it: corpus {corpus.name}"
        said.append(f"no --model given: this is the built-in model{chosen}")
        if corpus.kind != "incompressible":
            said.append(
                "the built-in model is an instrument for incompressible text: what "
                f"it misses of {corpus.name} says nothing about cache types"
            )
    return said


def machine_phrase(server: ServerFacts) -> str:
    """Processor, memory, system and devices, the same from day to day."""
    devices = ", ".join(server.devices)
    return f"{machine.facts().phrase()}{f'; {devices}' if devices else ''}"


def _refuse_prefill(request: Request, form: PromptForm) -> None:
    if not request.prefill_no_think:
        return
    if request.model is None:
        raise NothingToPrefill(what="the built-in model does not think")
    if form is PromptForm.COMPLETION:
        raise NothingToPrefill(what="the completion form has no thinking")


def _refuse_unknown_types(request: Request, server: ServerFacts) -> None:
    for kind, asked, known in (
        ("K cache type", request.k_types, server.k_types),
        ("V cache type", request.v_types, server.v_types),
    ):
        for name in asked:
            if known and name not in known:
                raise UnknownName(kind=kind, name=name, known=known)


_LEAST_FREE_BYTES = 64 << 20


def _writable(folder: Path) -> Store:
    """
    The store in *folder*, after a look at the disk below it.

    Raises:
        DiskFull: If there is next to nothing free.
    """
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    if free < _LEAST_FREE_BYTES:
        raise DiskFull(folder=existing, free_bytes=free)
    if not os.access(existing, os.W_OK):
        raise FolderUnusable(folder=existing, reason="it is read-only for you")
    return Store(folder)
