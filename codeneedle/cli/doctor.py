"""The doctor command: what would run here, what is missing, and how to fix it."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from rich.text import Text

from codeneedle import __version__
from codeneedle.cache_types import (
    BITS_PER_ELEMENT,
    DEFAULT_TYPES,
    ENGINE,
    Pair,
    whole_grid,
)
from codeneedle.cli.engines import EngineEntry, engine_entry
from codeneedle.document import Document, Facts, Lines, ShownText, Table
from codeneedle.engines.engine import ModelSpec
from codeneedle.engines.llama_cpp import installation
from codeneedle.engines.llama_cpp.backends import has_nvidia_gpu
from codeneedle.engines.llama_cpp.engine import LlamaCpp
from codeneedle.engines.llama_cpp.installation import ServerFacts, Tools
from codeneedle.engines.survey import Survey, survey_log
from codeneedle.errors import CodeneedleError
from codeneedle.models import pretrained, weights
from codeneedle.models.kv_cache import cacheless, misfit, plain_caches, type_misfit
from codeneedle.models.pretrained import Pretrained
from codeneedle.models.stores import stored_models
from codeneedle.models.weights import Weights
from codeneedle.report.data import attributes
from codeneedle.report.kernels import kernels_object
from codeneedle.report.served import model_lines, program_line, survey_document
from codeneedle.sweep.contexts import chosen_context
from codeneedle.sweep.request import Execution, Request
from codeneedle.system import machine, orphans
from codeneedle.system.files import cache_folder, free_disk_bytes
from codeneedle.system.machine import MachineFacts
from codeneedle.text import plural, size, visible, visible_lines

_Value = TypeVar("_Value")

BUILD_COMMAND = "codeneedle llama"

MISSING = "missing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Something that is missing or will not work."""

    what: str  # a sentence without its period
    hint: str  # how to fix it, preferably a command
    stops: bool  # whether no sweep can run because of it


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCheck:
    """The weights of the model."""

    weights: Weights  # their header
    is_built_in: bool  # whether it is the built-in model
    context: int  # context that a sweep would use, in tokens
    kv_bytes: Mapping[str, int | None] = field(default_factory=dict)
    """
    Size of the KV cache by pair; None where that is unknown, empty without a cache.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeFacts:
    """One cache type of the default grid."""

    name: str  # as llama.cpp spells it
    is_accepted: bool | None
    """Whether the server accepts it for K and V; None if unknown."""

    misfit: str | None
    """
    Why it does not fit the head size of the model; empty if it does, None if unknown.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Everything that a sweep needs, as far as it is here."""

    machine: MachineFacts  # processor, memory, system
    cache: Path  # the cache folder
    cache_free_bytes: int  # free space there
    engine: str = ENGINE  # what would serve the model
    versions: Mapping[str, str] = field(default_factory=dict)
    """Of its packages, if it is made of those."""

    tools: Tools | None  # the programs of llama.cpp; None if there are none
    server: ServerFacts | None
    """What llama-server says about itself; None if it does not answer."""

    model: ModelCheck | None  # the weights; None if there are none
    types: tuple[TypeFacts, ...]  # the types of the default grid, most precise first
    problems: tuple[Problem, ...]
    """What is missing or will not work; those that stop a sweep first."""

    survey: Survey | None = None
    """Where attention would run for the default grid; None if not asked."""

    kept: Mapping[str, int] = field(default_factory=dict)
    """How many models that can be used each store keeps here."""

    @property
    def is_ready(self) -> bool:
        """Whether a sweep would run."""
        return not any(problem.stops for problem in self.problems)


def diagnose(
    *,
    engine: str = ENGINE,
    llama_server: Path | None = None,
    env: tuple[str, ...] = (),
    model: Path | None = None,
) -> Diagnosis:
    """
    Check everything that a sweep needs; whatever is missing becomes a problem.

    Args:
        engine: What serves the model; of others than llama.cpp, only whether its
            programs are there is checked.
        llama_server: The value of ``--llama-server``.
        env: The names of ``--env``.
        model: Path of the weights; None for the built-in model.

    Raises:
        UnknownName: If there is no such engine.
    """
    problems: list[Problem] = []
    request = Request(engine=engine, env=env)
    execution = Execution(llama_server=llama_server)
    entry = engine_entry(request, execution)
    programs = _value_or_problem(lambda: entry.find(request, execution), problems)
    tools = programs if isinstance(programs, Tools) else None
    server = None
    if tools:
        server = _value_or_problem(
            lambda: installation.server_facts(tools.server), problems
        )
    loaded = _value_or_problem(lambda: _model(model, entry), problems)
    own = _fork_types(server) if engine == ENGINE else ()
    names = (*DEFAULT_TYPES, *own) if engine == ENGINE else ()
    types = tuple(_type(name, server, loaded) for name in names)
    survey = _survey(tools, server, loaded, types)
    if loaded:
        sizes = _sizes(loaded, survey, (*entry.types, *own))
        loaded = replace(loaded, kv_bytes=sizes)
    diagnosis = Diagnosis(
        machine=machine.facts(),
        cache=cache_folder(),
        cache_free_bytes=free_disk_bytes(cache_folder()),
        engine=engine,
        versions=programs if isinstance(programs, dict) else {},
        tools=tools,
        server=server,
        model=loaded,
        types=types,
        survey=survey,
        kept=Counter(m.store for m in stored_models() if not m.problem),
        problems=(),
    )
    return _with_problems(diagnosis, problems)


def _with_problems(diagnosis: Diagnosis, problems: Sequence[Problem]) -> Diagnosis:
    """*diagnosis* with *problems* and its own; those that stop a sweep first."""
    found = [
        *problems,
        *_program_problems(diagnosis.tools, diagnosis.server),
        *_type_problems(diagnosis.types),
        *_cache_problems(diagnosis.model),
        *_memory_problems(diagnosis.model, diagnosis.server, diagnosis.machine),
        *_orphan_problems(),
    ]
    found.sort(key=lambda problem: not problem.stops)
    return replace(diagnosis, problems=tuple(found))


def _value_or_problem(
    check: Callable[[], _Value], problems: list[Problem]
) -> _Value | None:
    """The value of *check*; if it raises, None, and one more of the *problems*."""
    try:
        return check()
    except CodeneedleError as error:
        problems.append(Problem(what=str(error), hint=error.hint, stops=True))
        return None


def _model(path: Path | None, entry: EngineEntry) -> ModelCheck:
    read = entry.weights if path else weights.read_header
    header = read(path or pretrained.built_in_model())
    request = Request(models=(str(path),) if path else ())
    context = chosen_context(request, header, stretched=False)
    return ModelCheck(
        weights=header,
        is_built_in=path is None,
        context=context,
    )


def _fork_types(server: ServerFacts | None) -> tuple[str, ...]:
    """The types of a fork, for both K and V, that llama.cpp itself has not."""
    if server is None:
        return ()
    both = (name for name in server.k_types if name in server.v_types)
    return tuple(name for name in both if name not in BITS_PER_ELEMENT)


def _sizes(
    model: ModelCheck, survey: Survey | None, types: Sequence[str]
) -> dict[str, int | None]:
    """The caches of some pairs: as the engine answers, else by the header."""
    header, context = model.weights, model.context
    if cacheless(header):
        return {}
    found: dict[str, int | None] = {}
    for pair in (Pair(name, name) for name in types):
        told = survey.caches(pair) if survey else None
        caches = told or (
            None if misfit(header, pair) else plain_caches(header, context)
        )
        count = caches.size(context, pair) if caches else None
        found[str(pair)] = None if count is None else round(count)
    return found


def _type(name: str, server: ServerFacts | None, model: ModelCheck | None) -> TypeFacts:
    accepted = None
    if server is not None and server.k_types and server.v_types:
        accepted = name in server.k_types and name in server.v_types
    is_known = model is not None and name in BITS_PER_ELEMENT
    misfit = (type_misfit(model.weights, name) or "") if model and is_known else None
    return TypeFacts(name=name, is_accepted=accepted, misfit=misfit)


def _survey(
    tools: Tools | None,
    server: ServerFacts | None,
    model: ModelCheck | None,
    types: tuple[TypeFacts, ...],
) -> Survey | None:
    """Where attention would run, if there is all that is needed to ask."""
    if not (tools and tools.fit_params and server and model):
        return None
    if not model.weights.is_read or cacheless(model.weights):
        return None
    spec = ModelSpec(weights=model.weights, name="doctor")
    own = _fork_types(server)
    names = [facts.name for facts in types if facts.is_accepted is not False]
    usual = [name for name in names if name not in own]
    # Of a fork's types each with itself alone: all pairs would take minutes.
    pairs = [*whole_grid(usual, usual), *(Pair(name, name) for name in own)]
    return LlamaCpp(tools=tools, facts=server, model=spec).survey(
        pairs, context=model.context, log=survey_log()
    )


def _program_problems(
    tools: Tools | None, server: ServerFacts | None
) -> Iterator[Problem]:
    if tools is None:
        return
    beside = {
        installation.PERPLEXITY: tools.perplexity,
        installation.BENCH: tools.bench,
        installation.FIT_PARAMS: tools.fit_params,
    }
    for name, path in beside.items():
        if path is None:
            what = "recall does not need it"
            if name == installation.FIT_PARAMS:
                what = "which pairs have a kernel is known once cells have started"
            yield Problem(
                what=f"there is no {name} beside {tools.server.name}; {what}",
                hint=BUILD_COMMAND,
                stops=False,
            )
    if server is not None and not server.devices and has_nvidia_gpu():
        yield Problem(
            what="there is an NVIDIA GPU, but this llama-server does not see it",
            hint=f"install the CUDA toolkit (nvcc), then: {BUILD_COMMAND}",
            stops=False,
        )


def _type_problems(types: tuple[TypeFacts, ...]) -> Iterator[Problem]:
    refused = [facts.name for facts in types if facts.is_accepted is False]
    if refused:
        rest = ",".join(facts.name for facts in types if facts.is_accepted)
        yield Problem(
            what=f"this llama-server does not accept {', '.join(refused)}",
            hint=f"codeneedle sweep --types {rest}",
            stops=False,
        )


def _cache_problems(model: ModelCheck | None) -> Iterator[Problem]:
    reason = cacheless(model.weights) if model else ""
    if reason:
        hint = "choose weights of a model with attention: --model FILE"
        yield Problem(what=reason, hint=hint, stops=True)


def _memory_problems(
    model: ModelCheck | None, server: ServerFacts | None, facts: MachineFacts
) -> Iterator[Problem]:
    # Free memory of a GPU is only known to the server that uses it.
    if model is None or (server is not None and server.devices):
        return
    largest = max((size or 0 for size in model.kv_bytes.values()), default=0)
    needed = model.weights.size_bytes + largest
    if needed > facts.available_bytes:
        yield Problem(
            what=f"weights and KV cache take {size(needed)}, but only "
            f"{size(facts.available_bytes)} of memory is free",
            hint="a smaller --context, or a smaller quantization of the weights",
            stops=False,
        )


def _orphan_problems() -> Iterator[Problem]:
    for orphan in orphans.orphans():
        yield Problem(
            what=f"a {orphan.program} whose codeneedle was killed is still running: "
            f"pid {orphan.pid}",
            hint=f"the next 'codeneedle sweep' ends it, or: kill {orphan.pid}",
            stops=False,
        )


def doctor_object(diagnosis: Diagnosis) -> Any:
    """All facts of *diagnosis*, for JSON."""
    facts = {
        "codeneedle": __version__,
        "machine": diagnosis.machine,
        "cache": diagnosis.cache,
        "cache_free_bytes": diagnosis.cache_free_bytes,
        "engine": diagnosis.engine,
        "programs": _programs(diagnosis.tools, diagnosis.server),
        "model": _model_facts(diagnosis.model),
        "kept_models": diagnosis.kept,
        "models": [_known_model_facts(model) for model in pretrained.MODELS.values()],
        "types": diagnosis.types,
        "kernels": kernels_object(diagnosis.survey) if diagnosis.survey else None,
        "problems": diagnosis.problems,
    }
    return msgspec.to_builtins(facts, enc_hook=str)


def _programs(tools: Tools | None, server: ServerFacts | None) -> dict[str, Any] | None:
    if tools is None:
        return None
    programs = attributes(tools, "server", "perplexity", "bench", "fit_params")
    return {name: program and str(program) for name, program in programs.items()} | {
        "source": tools.source,
        "version": server.version if server else "",
        "build": server.build if server else None,
        "k_types": server.k_types if server else (),
        "v_types": server.v_types if server else (),
        "devices": server.devices if server else (),
    }


def _model_facts(model: ModelCheck | None) -> dict[str, Any] | None:
    if model is None:
        return None
    header = model.weights
    return {
        **attributes(header, "path", "size_bytes", "architecture", "file_type"),
        **attributes(header, "layers", "key_length", "value_length"),
        **attributes(header, "training_context", "vocabulary"),
        "kv_heads": sorted(set(header.kv_heads)),
        "has_chat_template": header.chat_template is not None,
        **attributes(model, "is_built_in", "context", "kv_bytes"),
    }


def _known_model_facts(model: Pretrained) -> dict[str, Any]:
    return {
        **attributes(model, "name", "title", "licence", "path", "size_bytes"),
        "download_bytes": model.package_bytes,
        "is_fetched": model.is_fetched,
    }


def doctor_document(diagnosis: Diagnosis) -> Document:
    """All facts of *diagnosis*, problems last."""
    facts = (
        *_engine_lines(diagnosis),
        *_machine_lines(diagnosis),
        *_model_lines(diagnosis.model),
        *_known_model_lines(),
        *_kept_lines(diagnosis.kept),
    )
    yield Facts(
        [
            (word, Text(MISSING, "red") if phrase == MISSING else phrase)
            for word, phrase in facts
        ],
        is_quiet=True,
    )
    heading = ("type", "llama-server", "head size")
    yield Table(heading, [_type_row(facts) for facts in diagnosis.types], words=heading)
    if diagnosis.survey and diagnosis.model:
        names = [facts.name for facts in diagnosis.types if facts.is_accepted]
        weights = diagnosis.model.weights
        yield from survey_document(diagnosis.survey, names, names, weights)
    yield Lines(list(_problem_lines(diagnosis)))


def _engine_lines(diagnosis: Diagnosis) -> Iterator[tuple[str, str]]:
    if diagnosis.engine == ENGINE:
        yield from _program_lines(diagnosis.tools, diagnosis.server)
    else:
        yield "engine", diagnosis.engine
        yield from diagnosis.versions.items()


def _program_lines(
    tools: Tools | None, server: ServerFacts | None
) -> Iterator[tuple[str, str]]:
    if tools is None:
        yield "llama-server", MISSING
        return
    version = server.version if server else ""
    yield program_line(ENGINE, version, f"{tools.server} (from {tools.source})")
    yield "llama-perplexity", str(tools.perplexity or MISSING)
    yield "llama-bench", str(tools.bench or MISSING)
    yield installation.FIT_PARAMS, str(tools.fit_params or MISSING)
    if server is None:
        return
    yield "cache types", ", ".join(server.k_types) or "not stated"
    if server.v_types != server.k_types:
        yield "for V", ", ".join(server.v_types)
    yield "devices", "; ".join(server.devices) or "none: runs on the CPU"


def _machine_lines(diagnosis: Diagnosis) -> Iterator[tuple[str, str]]:
    facts = diagnosis.machine
    yield "machine", facts.phrase()
    free, whole = size(facts.available_bytes), size(facts.memory_bytes)
    yield "memory", f"{free} free of {whole}"
    threads = f"{facts.usable_cores} usable of {facts.logical_cores}"
    yield "threads", f"{threads}, on {plural(facts.physical_cores, 'core')}"
    yield "python", f"{facts.python}, codeneedle {__version__}"
    yield "cache folder", f"{diagnosis.cache} ({size(diagnosis.cache_free_bytes)} free)"


def _model_lines(model: ModelCheck | None) -> Iterator[tuple[str, str]]:
    if model is None:
        yield "model", MISSING
        return
    header = model.weights
    if model.is_built_in:
        yield "--model", "not given: what follows is of the built-in test fixture"
    yield from model_lines(str(header.path), header)
    if not header.is_read:
        return
    yield "chat template", "no" if header.chat_template is None else "yes"
    sizes = (
        f"{pair} {'unknown' if count is None else size(count)}"
        for pair, count in model.kv_bytes.items()
    )
    at = f"{', '.join(sizes)} at {plural(model.context, 'token')}"
    yield "KV cache", "none" if cacheless(header) else at


def _known_model_lines() -> Iterator[tuple[str, str]]:
    for model in pretrained.MODELS.values():
        state = "not fetched yet"
        if model.is_fetched:
            state = "in the cache folder"
        yield f"--model {model.name}", f"{state}: {model.offer}"


def _kept_lines(kept: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    shown = ", ".join(f"{count} of {store}" for store, count in kept.items())
    if shown:
        yield "models here", f"{shown} (codeneedle weights)"


def _type_row(facts: TypeFacts) -> list[ShownText]:
    fits = None if facts.misfit is None else not facts.misfit
    return [
        facts.name,
        _word_on_type(facts.is_accepted, "accepted", "refused"),
        _word_on_type(fits, "fits", facts.misfit or ""),
    ]


def _word_on_type(is_good: bool | None, good: str, bad: str) -> Text:
    if is_good is None:
        return Text("unknown", style="dim")
    return Text(good, style="green") if is_good else Text(visible(bad), style="red")


def _problem_lines(diagnosis: Diagnosis) -> Iterator[Text]:
    if not diagnosis.problems:
        yield Text("Nothing is missing.", style="green")
    for problem in diagnosis.problems:
        label = ("error: ", "bold red") if problem.stops else ("note: ", "bold yellow")
        yield Text.assemble(label, visible_lines(problem.what))
        yield Text.assemble(("  hint: ", "bold cyan"), visible(problem.hint))
