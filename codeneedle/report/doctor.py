"""The screen of ``codeneedle doctor``: what would run, on what, and what is missing."""

from collections.abc import Iterator

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from codeneedle.diagnosis import Diagnosis, Model, Problem, Programs, TypeFacts
from codeneedle.report.safetext import visible
from codeneedle.units import plural, size

MISSING = "missing"


def doctor_json(diagnosis: Diagnosis) -> str:
    """All facts of *diagnosis*, for programs."""
    return msgspec.json.format(msgspec.json.encode(diagnosis), indent=2).decode() + "\n"


def doctor_screen(diagnosis: Diagnosis) -> RenderableType:
    """All facts of *diagnosis* on one screen of 80 columns, problems last."""
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="fold")
    for word, phrase in (
        *_about_programs(diagnosis.programs),
        *_about_machine(diagnosis),
        *_about_model(diagnosis.model),
    ):
        style = "red" if phrase == MISSING else ""
        facts.add_row(word, Text(visible(phrase), style=style))
    return Group(facts, Text(), _types(diagnosis), Text(), *_problems(diagnosis))


def _about_programs(programs: Programs | None) -> Iterator[tuple[str, str]]:
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
    yield "devices", "; ".join(programs.devices) or "none: computes on the processor"


def _about_machine(diagnosis: Diagnosis) -> Iterator[tuple[str, str]]:
    facts = diagnosis.machine
    yield "machine", facts.phrase()
    free, whole = size(facts.available_bytes), size(facts.memory_bytes)
    yield "memory", f"{free} free of {whole}"
    threads = f"{facts.usable_cores} usable of {facts.logical_cores}"
    yield "threads", f"{threads}, on {plural(facts.physical_cores, 'core')}"
    yield "python", f"{facts.python}, codeneedle {diagnosis.codeneedle}"
    yield "cache folder", f"{diagnosis.cache} ({size(diagnosis.cache_free_bytes)} free)"


def _about_model(model: Model | None) -> Iterator[tuple[str, str]]:
    if model is None:
        yield "weights", MISSING
        return
    built_in = "built in, " if model.is_built_in else ""
    yield "weights", f"{model.path} ({built_in}{size(model.size_bytes)})"
    yield "model", _shape(model)
    trained = f"{model.training_context:,}" if model.training_context else "unknown"
    yield "trained for", f"{trained} tokens; it knows {model.vocabulary:,}"
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


def _types(diagnosis: Diagnosis) -> Table:
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
        return Text("accepts it", style="green")
    return Text("refuses it", style="red")


def _fit(facts: TypeFacts) -> Text:
    if facts.misfit is None:
        return Text("unknown", style="dim")
    if facts.misfit:
        return Text(visible(facts.misfit), style="red")
    return Text("fits", style="green")


def _problems(diagnosis: Diagnosis) -> Iterator[Text]:
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
    yield Text.assemble(("  mend: ", "bold cyan"), visible(problem.mend))
