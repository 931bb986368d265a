"""The doctor command: what would run here, what is missing, and how to fix it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from codeneedle import __version__
from codeneedle.engines.llama_cpp import installation
from codeneedle.engines.llama_cpp.build import has_nvidia_gpu
from codeneedle.engines.llama_cpp.installation import ServerFacts, Tools
from codeneedle.errors import CodeneedleError
from codeneedle.grid import DEFAULT_TYPES, Pair
from codeneedle.models import nano, weights
from codeneedle.models.kv_cache import kv_bytes, type_misfit
from codeneedle.models.weights import Weights
from codeneedle.sweep.plan import chosen_context
from codeneedle.sweep.request import Request
from codeneedle.system import machine, orphans
from codeneedle.system.files import cache_folder
from codeneedle.system.machine import MachineFacts
from codeneedle.text import plural, size, visible

_Value = TypeVar("_Value")

SHOWN_PAIRS = (Pair("bf16", "bf16"), Pair("q4_0", "q4_0"))
"""The most and the least precise pair of the default grid."""

BUILD_COMMAND = "codeneedle llama"

MISSING = "missing"

_NO_ANSWER = ServerFacts(
    version="", build=None, k_types=(), v_types=(), options=frozenset(), devices=()
)
"""What is known of a server that does not answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """
    Something that is missing or will not work.

    Attributes:
        what: A sentence without its period.
        hint: How to fix it, preferably a command.
        stops: Whether no sweep can run because of it.
    """

    what: str
    hint: str
    stops: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """
    The programs of llama.cpp.

    Attributes:
        server: Path of llama-server.
        source: Where it was found, as a phrase.
        perplexity: Path of llama-perplexity; None where it is missing.
        bench: Path of llama-bench; likewise.
        version: As the server states it; empty if it does not answer.
        build: Its number; None where it states none.
        k_types: Cache types it accepts for K; empty where it does not tell.
        v_types: Cache types it accepts for V; likewise.
        devices: GPUs that it would use.
    """

    server: str
    source: str
    perplexity: str | None
    bench: str | None
    version: str
    build: int | None
    k_types: tuple[str, ...]
    v_types: tuple[str, ...]
    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """
    The weights of the model.

    Attributes:
        path: Of the file, or of its first part.
        is_built_in: Whether it is the built-in model.
        size_bytes: Of all parts.
        architecture: What llama.cpp calls it.
        file_type: Quantization of the weights; may be empty.
        layers: How many it has.
        kv_heads: Numbers of K and V heads that occur among its layers.
        key_length: Head size of K.
        value_length: Head size of V.
        training_context: In tokens; 0 if unknown.
        vocabulary: Number of tokens.
        has_chat_template: Whether the file contains one.
        context: Context that a sweep would use, in tokens.
        kv_bytes: Predicted KV cache by pair; None where that is unknown.
    """

    path: str
    is_built_in: bool
    size_bytes: int
    architecture: str
    file_type: str
    layers: int
    kv_heads: tuple[int, ...]
    key_length: int
    value_length: int
    training_context: int
    vocabulary: int
    has_chat_template: bool
    context: int
    kv_bytes: dict[str, int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeFacts:
    """
    One cache type of the default grid.

    Attributes:
        name: As llama.cpp spells it.
        is_accepted: Whether the server accepts it for K and V; None if unknown.
        misfit: Why it does not fit the head size of the model; empty if it does,
            None if unknown.
    """

    name: str
    is_accepted: bool | None
    misfit: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """
    Everything that was found; can be encoded as JSON.

    Attributes:
        codeneedle: Version of this package.
        machine: Processor, memory, system.
        cache: The cache folder.
        cache_free_bytes: Free space there.
        programs: llama.cpp; None if there is none.
        model: The weights; None if there are none.
        types: The types of the default grid, most precise first.
        problems: What is missing or will not work; those that stop a sweep first.
    """

    codeneedle: str
    machine: MachineFacts
    cache: str
    cache_free_bytes: int
    programs: Programs | None
    model: Model | None
    types: tuple[TypeFacts, ...]
    problems: tuple[Problem, ...]

    @property
    def is_ready(self) -> bool:
        """Whether a sweep would run."""
        return not any(problem.stops for problem in self.problems)


def diagnose(
    *, llama_server: Path | None = None, model: Path | None = None
) -> Diagnosis:
    """
    Check everything that a sweep needs; whatever is missing becomes a problem.

    Args:
        llama_server: The value of ``--llama-server``.
        model: Path of the weights; None for the built-in model.
    """
    problems: list[Problem] = []
    tools = _found(lambda: installation.find(llama_server=llama_server), problems)
    server = _found(lambda: installation.ask(tools.server), problems) if tools else None
    header = _found(lambda: _weights(model), problems)
    facts = machine.facts()
    shown = _model(header, model) if header else None
    types = tuple(_type(name, server, header) for name in DEFAULT_TYPES)
    problems += _program_problems(tools, server)
    problems += _type_problems(types)
    problems += _memory_problems(shown, server, facts)
    problems += _orphan_problems()
    return Diagnosis(
        codeneedle=__version__,
        machine=facts,
        cache=str(cache_folder()),
        cache_free_bytes=machine.free_disk_bytes(cache_folder()),
        programs=_programs(tools, server) if tools else None,
        model=shown,
        types=types,
        problems=tuple(sorted(problems, key=lambda problem: not problem.stops)),
    )


def _weights(model: Path | None) -> Weights:
    return weights.read_header(model or nano.built_in_model())


def _found(look: Callable[[], _Value], problems: list[Problem]) -> _Value | None:
    """What *look* returns; if it raises, None, and one more of the *problems*."""
    try:
        return look()
    except CodeneedleError as error:
        problems.append(Problem(what=str(error), hint=error.hint, stops=True))
        return None


def _programs(tools: Tools, server: ServerFacts | None) -> Programs:
    said = server or _NO_ANSWER
    return Programs(
        server=str(tools.server),
        source=tools.source,
        perplexity=str(tools.perplexity) if tools.perplexity else None,
        bench=str(tools.bench) if tools.bench else None,
        version=said.version,
        build=said.build,
        k_types=said.k_types,
        v_types=said.v_types,
        devices=said.devices,
    )


def _model(header: Weights, path: Path | None) -> Model:
    asked = Request(models=(path,) if path else ())
    context = chosen_context(asked, header, stretched=False)
    return Model(
        path=str(header.path),
        is_built_in=path is None,
        size_bytes=header.size_bytes,
        architecture=header.architecture,
        file_type=header.file_type,
        layers=header.layers,
        kv_heads=tuple(sorted(set(header.kv_heads))),
        key_length=header.key_length,
        value_length=header.value_length,
        training_context=header.training_context,
        vocabulary=header.vocabulary,
        has_chat_template=header.chat_template is not None,
        context=context,
        kv_bytes={str(pair): kv_bytes(header, pair, context) for pair in SHOWN_PAIRS},
    )


def _type(name: str, server: ServerFacts | None, header: Weights | None) -> TypeFacts:
    accepted = None
    if server is not None and server.k_types and server.v_types:
        accepted = name in server.k_types and name in server.v_types
    misfit = (type_misfit(header, name) or "") if header else None
    return TypeFacts(name=name, is_accepted=accepted, misfit=misfit)


def _program_problems(
    tools: Tools | None, server: ServerFacts | None
) -> Iterator[Problem]:
    if tools is None:
        return
    beside = {
        installation.PERPLEXITY: tools.perplexity,
        installation.BENCH: tools.bench,
    }
    for name, path in beside.items():
        if path is None:
            yield Problem(
                what=f"there is no {name} beside {tools.server.name}; recall does not "
                "need it",
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
    refused = [each.name for each in types if each.is_accepted is False]
    if refused:
        rest = ",".join(each.name for each in types if each.is_accepted)
        yield Problem(
            what=f"this llama-server does not accept {', '.join(refused)}",
            hint=f"codeneedle sweep --types {rest}",
            stops=False,
        )


def _memory_problems(
    model: Model | None, server: ServerFacts | None, facts: MachineFacts
) -> Iterator[Problem]:
    # Free memory of a GPU is only known to the server that uses it.
    if model is None or (server is not None and server.devices):
        return
    largest = max((size or 0 for size in model.kv_bytes.values()), default=0)
    needed = model.size_bytes + largest
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


def doctor_json(diagnosis: Diagnosis) -> str:
    """All facts of *diagnosis* as JSON."""
    return msgspec.json.format(msgspec.json.encode(diagnosis), indent=2).decode() + "\n"


def doctor_screen(diagnosis: Diagnosis) -> RenderableType:
    """All facts of *diagnosis* for a terminal of 80 columns, problems last."""
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="fold")
    for word, phrase in (
        *_program_lines(diagnosis.programs),
        *_machine_lines(diagnosis),
        *_model_lines(diagnosis.model),
    ):
        style = "red" if phrase == MISSING else ""
        facts.add_row(word, Text(visible(phrase), style=style))
    return Group(
        facts, Text(), _type_table(diagnosis), Text(), *_problem_lines(diagnosis)
    )


def _program_lines(programs: Programs | None) -> Iterator[tuple[str, str]]:
    if programs is None:
        yield "llama-server", MISSING
        return
    yield "llama-server", f"{programs.server} (from {programs.source})"
    yield "llama-perplexity", programs.perplexity or MISSING
    yield "llama-bench", programs.bench or MISSING
    yield "build", programs.version or "unknown"
    yield "cache types", ", ".join(programs.k_types) or "not stated"
    if programs.v_types != programs.k_types:
        yield "for V", ", ".join(programs.v_types)
    yield "devices", "; ".join(programs.devices) or "none: runs on the CPU"


def _machine_lines(diagnosis: Diagnosis) -> Iterator[tuple[str, str]]:
    facts = diagnosis.machine
    yield "machine", facts.phrase()
    free, whole = size(facts.available_bytes), size(facts.memory_bytes)
    yield "memory", f"{free} free of {whole}"
    threads = f"{facts.usable_cores} usable of {facts.logical_cores}"
    yield "threads", f"{threads}, on {plural(facts.physical_cores, 'core')}"
    yield "python", f"{facts.python}, codeneedle {diagnosis.codeneedle}"
    yield "cache folder", f"{diagnosis.cache} ({size(diagnosis.cache_free_bytes)} free)"


def _model_lines(model: Model | None) -> Iterator[tuple[str, str]]:
    if model is None:
        yield "weights", MISSING
        return
    built_in = "built in, " if model.is_built_in else ""
    yield "weights", f"{model.path} ({built_in}{size(model.size_bytes)})"
    yield "model", _shape(model)
    trained = f"{model.training_context:,}" if model.training_context else "unknown"
    yield (
        "trained for",
        f"{trained} tokens; vocabulary {model.vocabulary:,}",
    )
    yield "chat template", "yes" if model.has_chat_template else "no"
    sizes = (
        f"{pair} {'unknown' if count is None else size(count)}"
        for pair, count in model.kv_bytes.items()
    )
    yield "KV cache", f"{', '.join(sizes)} at {plural(model.context, 'token')}"


def _shape(model: Model) -> str:
    heads = " or ".join(map(str, model.kv_heads))
    sizes = f"{model.key_length}"
    if model.value_length != model.key_length:
        sizes = f"{model.key_length} (K) and {model.value_length} (V)"
    kind = f"{model.architecture} {model.file_type}".strip()
    noun = "KV head" if heads == "1" else "KV heads"
    return f"{kind}, {plural(model.layers, 'layer')}, {heads} {noun}, head size {sizes}"


def _type_table(diagnosis: Diagnosis) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("type", no_wrap=True)
    table.add_column("llama-server", no_wrap=True)
    table.add_column("head size")
    for each in diagnosis.types:
        table.add_row(each.name, _acceptance(each), _fit(each))
    return table


def _acceptance(facts: TypeFacts) -> Text:
    if facts.is_accepted is None:
        return Text("unknown", style="dim")
    if facts.is_accepted:
        return Text("accepted", style="green")
    return Text("refused", style="red")


def _fit(facts: TypeFacts) -> Text:
    if facts.misfit is None:
        return Text("unknown", style="dim")
    if facts.misfit:
        return Text(visible(facts.misfit), style="red")
    return Text("fits", style="green")


def _problem_lines(diagnosis: Diagnosis) -> Iterator[Text]:
    if not diagnosis.problems:
        yield Text("Nothing is missing.", style="green")
    for problem in diagnosis.problems:
        yield from _lines(problem)


def _lines(problem: Problem) -> Iterator[Text]:
    word, style = ("error", "bold red") if problem.stops else ("note", "bold yellow")
    first, *others = problem.what.splitlines()
    yield Text.assemble((f"{word}: ", style), visible(first))
    for line in others:
        yield Text(visible(line))
    yield Text.assemble(("  hint: ", "bold cyan"), visible(problem.hint))
