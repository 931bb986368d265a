"""The doctor command: the plan of the built-in sweep, with all problems collected."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from rich.text import Text

from codeneedle import __version__
from codeneedle.cache_types import BITS_PER_ELEMENT, ENGINE
from codeneedle.cli.engines import EngineEntry, prepare_engine_entry
from codeneedle.document import Document, Facts, Lines
from codeneedle.engines.engine import Ability, Engine, ModelSpec
from codeneedle.engines.llama_cpp import installation
from codeneedle.engines.llama_cpp.engine import LlamaCpp
from codeneedle.engines.llama_cpp.installation import Tools
from codeneedle.errors import CodeneedleError, RequestError
from codeneedle.models import pretrained
from codeneedle.models.pretrained import Pretrained
from codeneedle.models.stores import stored_models
from codeneedle.models.weights import Weights, read_weights_from_headers
from codeneedle.records.store import refuse_unusable_folder
from codeneedle.report.data import attributes
from codeneedle.report.kernels import kernels_object
from codeneedle.report.plan import grid_and_survey_document
from codeneedle.report.served import model_facts, note_block, program_fact
from codeneedle.sweep import plan as planning
from codeneedle.sweep.plan import EngineFor, Plan
from codeneedle.sweep.plan_notes import notes_of_plan
from codeneedle.sweep.request import Execution, Request
from codeneedle.system import machine, orphans
from codeneedle.system.files import cache_folder, free_disk_bytes
from codeneedle.system.machine import MachineFacts
from codeneedle.text import (
    escape_invisible,
    escape_invisible_in_lines,
    plural,
    size_text,
)

_Value = TypeVar("_Value")

MISSING = "missing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Something that is missing or will not work."""

    what: str  # a sentence without its period
    hint: str  # how to fix it, preferably a command
    stops: bool  # whether no sweep can run because of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Everything that a sweep needs, as far as it is here."""

    machine: MachineFacts  # processor, memory, system
    cache: Path  # the cache folder
    cache_free_bytes: int  # free space there
    engine: str = ENGINE  # what would serve the model
    programs: object = None  # what `EngineEntry.find` finds; None if that is missing
    served: Engine | None = None  # with its version; None if its programs do not answer
    weights: Weights | None = None  # header of the model; None if it is missing
    is_built_in: bool = False  # whether that is the built-in model, as none was named
    plan: Plan | None = None  # of the built-in sweep; None if something is missing
    left_out: str = ""  # why there is no plan, as a phrase; empty if there is
    problems: tuple[Problem, ...] = ()
    """What is missing or will not work; those that stop a sweep first."""

    kept: Mapping[str, int] = field(default_factory=dict)
    """How many models that can be used each store keeps here."""

    @property
    def llama_cpp_tools(self) -> Tools | None:
        """The programs of llama.cpp; None if there are none."""
        return self.programs if isinstance(self.programs, Tools) else None

    @property
    def is_ready(self) -> bool:
        """Whether a sweep would run."""
        return not any(problem.stops for problem in self.problems)


@dataclass(slots=True)
class _Steps:
    """The steps to a plan, whose errors become problems."""

    request: Request
    execution: Execution
    problems: list[Problem] = field(default_factory=list)

    def run_step_or_note_problem(
        self, step: Callable[[], _Value], *, stops: bool = True
    ) -> _Value | None:
        """The value of *step*; None if it raises: then that is one more problem."""
        try:
            return step()
        except CodeneedleError as error:
            what = str(error)
            self.problems.append(Problem(what=what, hint=error.hint, stops=stops))
            return None

    def engine_factory_or_note_problem(self, entry: EngineEntry) -> EngineFor | None:
        """What makes engines; None if their programs do not answer."""
        return self.run_step_or_note_problem(
            lambda: entry.engine_for(self.request, self.execution)
        )

    def plan_or_note_problem(
        self, entry: EngineEntry, engine_for: EngineFor
    ) -> Plan | None:
        """The plan; None if a step of it fails."""
        return self.run_step_or_note_problem(
            lambda: planning.plan(
                self.request,
                self.execution,
                engine_for=engine_for,
                weights_at=entry.weights,
                with_model_and_types=entry.with_model_and_types,
            )
        )


def diagnose(
    *,
    engine: str = ENGINE,
    llama_server: Path | None = None,
    env: tuple[str, ...] = (),
    model: Path | None = None,
) -> Diagnosis:
    """
    Plan the sweep that is asked for by nothing else; whatever fails becomes a problem.

    Args:
        engine: What serves the model; of one that needs settings, which only a sweep
            takes, whether its programs are there is all that is checked.
        llama_server: The value of ``--llama-server``.
        env: The names of ``--env``.
        model: Path of the weights; None for the built-in model.

    Raises:
        UnknownName: If there is no such engine.
    """
    models = (str(model),) if model else ()
    request = Request(engine=engine, env=env, models=models)
    steps = _Steps(request, Execution(llama_server=llama_server))
    entry = prepare_engine_entry(request, steps.execution)
    programs = steps.run_step_or_note_problem(
        lambda: entry.find(request, steps.execution)
    )
    has_programs = not steps.problems
    unset = _lacking_settings_phrase(entry, request)
    engine_for = (
        steps.engine_factory_or_note_problem(entry)
        if has_programs and not unset
        else None
    )
    header = steps.run_step_or_note_problem(lambda: _read_weights_header(entry, model))
    steps.run_step_or_note_problem(lambda: refuse_unusable_folder(steps.execution.out))
    served = _engine_of(engine_for, header)
    is_whole = engine_for is not None and not steps.problems
    plan = (
        steps.plan_or_note_problem(entry, engine_for)
        if engine_for and is_whole
        else None
    )
    if served:
        steps.problems += _absent_tool_problems(served)
    steps.problems += _orphan_problems()
    return Diagnosis(
        machine=machine.facts(),
        cache=cache_folder(),
        cache_free_bytes=free_disk_bytes(cache_folder()),
        engine=engine,
        programs=programs,
        served=served,
        weights=header,
        is_built_in=model is None,
        plan=plan,
        left_out="" if plan else unset or "the errors below stop it",
        problems=tuple(sorted(steps.problems, key=lambda problem: not problem.stops)),
        kept=Counter(m.store for m in stored_models() if not m.problem),
    )


def _lacking_settings_phrase(entry: EngineEntry, request: Request) -> str:
    """What the engine must be told by options of a sweep, as a phrase; empty if all."""
    try:
        entry.with_model_and_types(request)
    except RequestError as error:
        return f"{error}. {error.hint}"
    return ""


def _read_weights_header(entry: EngineEntry, model: Path | None) -> Weights:
    return (
        entry.weights(model)
        if model
        else read_weights_from_headers(pretrained.checked_built_in_path())
    )


def _engine_of(engine_for: EngineFor | None, header: Weights | None) -> Engine | None:
    """The engine of *header*, else of the built-in model; None without a maker."""
    if engine_for is None:
        return None
    weights = header or read_weights_from_headers(pretrained.checked_built_in_path())
    return engine_for(ModelSpec(weights=weights, name=pretrained.BUILT_IN))


def _absent_tool_problems(engine: Engine) -> Iterator[Problem]:
    """What probes need that were not asked for: programs beside that of the server."""
    if not isinstance(engine, LlamaCpp):
        return
    for ability in (Ability.DIVERGENCE, Ability.SPEED):
        try:
            engine.require(ability)
        except CodeneedleError as error:
            yield Problem(what=str(error), hint=error.hint, stops=False)


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
    plan = diagnosis.plan
    facts = {
        "codeneedle": __version__,
        "machine": diagnosis.machine,
        "cache": diagnosis.cache,
        "cache_free_bytes": diagnosis.cache_free_bytes,
        "engine": diagnosis.engine,
        "programs": _programs_object(diagnosis.llama_cpp_tools, diagnosis.served),
        "model": _model_object(diagnosis),
        "kept_models": diagnosis.kept,
        "models": [
            _pretrained_model_object(model) for model in pretrained.MODELS.values()
        ],
        "kernels": kernels_object(plan.survey) if plan and plan.survey else None,
        "notes": notes_of_plan(plan) if plan else (),
        "left_out": diagnosis.left_out,
        "problems": diagnosis.problems,
    }
    return msgspec.to_builtins(facts, enc_hook=str)


def _programs_object(
    tools: Tools | None, engine: Engine | None
) -> dict[str, Any] | None:
    if tools is None:
        return None
    programs = attributes(tools, "server", "perplexity", "bench", "fit_params")
    facts = engine.facts if isinstance(engine, LlamaCpp) else None
    return {name: program and str(program) for name, program in programs.items()} | {
        "source": tools.source,
        "version": facts.version if facts else "",
        "build": facts.build if facts else None,
        "k_types": facts.k_types if facts else (),
        "v_types": facts.v_types if facts else (),
        "devices": facts.devices if facts else (),
    }


def _model_object(diagnosis: Diagnosis) -> dict[str, Any] | None:
    header, plan = diagnosis.weights, diagnosis.plan
    if header is None:
        return None
    sizes = {str(pair): plan.kv_bytes(pair) for pair in plan.pairs} if plan else {}
    return {
        **attributes(header, "path", "size_bytes", "architecture", "file_type"),
        **attributes(header, "layers", "key_length", "value_length"),
        **attributes(header, "training_context", "vocabulary"),
        "kv_heads": sorted(set(header.kv_heads)),
        "has_chat_template": header.chat_template is not None,
        "is_built_in": diagnosis.is_built_in,
        "context": plan.context if plan else None,
        "kv_bytes": {pair: n if n is None else round(n) for pair, n in sizes.items()},
        "refused": {str(p): plan.refusal(p) for p in plan.pairs if plan.refusal(p)}
        if plan
        else {},
    }


def _pretrained_model_object(model: Pretrained) -> dict[str, Any]:
    return {
        **attributes(model, "name", "title", "licence", "path", "size_bytes"),
        "download_bytes": model.package_bytes,
        "is_fetched": model.is_fetched,
    }


def doctor_document(diagnosis: Diagnosis) -> Document:
    """All facts of *diagnosis*, problems last."""
    facts = (
        *_engine_and_tool_lines(diagnosis),
        *_machine_lines(diagnosis),
        *_model_lines(diagnosis),
        *_pretrained_model_lines(),
        *_stored_model_lines(diagnosis.kept),
    )
    yield Facts(
        [
            (word, Text(MISSING, "red") if phrase == MISSING else phrase)
            for word, phrase in facts
        ],
        is_quiet=True,
    )
    if diagnosis.plan:
        yield from grid_and_survey_document(diagnosis.plan)
        yield note_block(notes_of_plan(diagnosis.plan))
    elif diagnosis.left_out:
        yield Lines([f"no plan of a sweep: {escape_invisible(diagnosis.left_out)}"])
    yield Lines(list(_problem_lines(diagnosis)))


def _engine_and_tool_lines(diagnosis: Diagnosis) -> Iterator[tuple[str, str]]:
    engine, tools = diagnosis.served, diagnosis.llama_cpp_tools
    if engine:
        known = engine.identity()
        found = f" (from {tools.source})" if tools else ""
        yield program_fact(known.name, known.version, f"{known.program}{found}")
    elif tools:
        yield program_fact(ENGINE, "", f"{tools.server} (from {tools.source})")
    elif diagnosis.engine == ENGINE:
        yield installation.SERVER, MISSING
    else:
        yield "engine", diagnosis.engine
    if tools:
        yield installation.PERPLEXITY, str(tools.perplexity or MISSING)
        yield installation.BENCH, str(tools.bench or MISSING)
        yield installation.FIT_PARAMS, str(tools.fit_params or MISSING)
    if engine:
        yield from _cache_type_lines(engine)
        devices = "; ".join(engine.identity().devices)
        yield "devices", devices or "none: runs on the CPU"


def _cache_type_lines(engine: Engine) -> Iterator[tuple[str, str]]:
    types = engine.cache_types()
    yield "cache types", ", ".join(types.k) or "not stated"
    if types.v != types.k:
        yield "for V", ", ".join(types.v)
    # Those of a fork are in no usual grid.
    own = [name for name in types.k if name not in BITS_PER_ELEMENT and name in types.v]
    if own and engine.name == ENGINE:
        yield "", f"where its own run: codeneedle kernels --types f16,{','.join(own)}"


def _machine_lines(diagnosis: Diagnosis) -> Iterator[tuple[str, str]]:
    facts = diagnosis.machine
    yield "machine", facts.phrase()
    free, whole = size_text(facts.available_bytes), size_text(facts.memory_bytes)
    yield "memory", f"{free} free of {whole}"
    threads = f"{facts.usable_cores} usable of {facts.logical_cores}"
    yield "threads", f"{threads}, on {plural(facts.physical_cores, 'core')}"
    yield "python", f"{facts.python}, codeneedle {__version__}"
    yield (
        "cache folder",
        f"{diagnosis.cache} ({size_text(diagnosis.cache_free_bytes)} free)",
    )


def _model_lines(diagnosis: Diagnosis) -> Iterator[tuple[str, str]]:
    header = diagnosis.weights
    if header is None:
        yield "model", MISSING
        return
    if diagnosis.is_built_in:
        yield "--model", "not given: what follows is of the built-in test fixture"
    yield from model_facts(str(header.path), header)
    if header.is_read:
        yield "chat template", "no" if header.chat_template is None else "yes"


def _pretrained_model_lines() -> Iterator[tuple[str, str]]:
    for model in pretrained.MODELS.values():
        state = "not fetched yet"
        if model.is_fetched:
            state = "in the cache folder"
        yield f"--model {model.name}", f"{state}: {model.offer_phrase}"


def _stored_model_lines(kept: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    shown = ", ".join(f"{count} of {store}" for store, count in kept.items())
    if shown:
        yield "models here", f"{shown} (codeneedle weights)"


def _problem_lines(diagnosis: Diagnosis) -> Iterator[Text]:
    if not diagnosis.problems:
        nothing = "Nothing else" if diagnosis.left_out else "Nothing"
        yield Text(f"{nothing} is missing.", style="green")
    for problem in diagnosis.problems:
        label = ("error: ", "bold red") if problem.stops else ("note: ", "bold yellow")
        yield Text.assemble(label, escape_invisible_in_lines(problem.what))
        yield Text.assemble(("  hint: ", "bold cyan"), escape_invisible(problem.hint))
