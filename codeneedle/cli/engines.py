"""
The engines by the name that ``--engine`` takes: what a request must say to each, which
options exclude each other, how each reads ``--model`` and is asked for a pair.

To add one is to add its folder in `engines/`, and a line to `ENGINES`.
"""

import contextlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from codeneedle.cache_types import ENGINE, Pair, PairFlags, distinct_most_precise_first
from codeneedle.engines.llama_cpp import installation, launching
from codeneedle.engines.llama_cpp.arguments import cache_flags, cuda_kernels_option
from codeneedle.engines.llama_cpp.installation import Tools
from codeneedle.engines.mlx import launching as mlx_launching
from codeneedle.engines.mlx.folder import is_mlx_folder_or_config, read_folder
from codeneedle.engines.mlx.settings import NAME as MLX
from codeneedle.engines.mlx.settings import MlxSettings
from codeneedle.engines.openai.settings import (
    COMMAND,
    ENDPOINT,
    CommandSettings,
    EndpointSettings,
    checked_pair,
    checked_url,
    command_template,
)
from codeneedle.errors import (
    BadInput,
    UnknownName,
    WeightsUnusable,
)
from codeneedle.models import pretrained, stores
from codeneedle.models.headers import HeaderFacts, read_and_keep_facts
from codeneedle.models.stores import StoredModel
from codeneedle.models.weights import (
    Weights,
    read_weights_from_headers,
    weights_of_name_alone,
)
from codeneedle.system.files import expand_home
from codeneedle.system.inherited_variables import UNROTATED, set_passed_on_variables

if TYPE_CHECKING:
    from codeneedle.cli.progress import Tell
    from codeneedle.report.answer import Answer, ServerWords
    from codeneedle.sweep.plan import EngineFor
    from codeneedle.sweep.request import Execution, Request


def _unchanged_request(request: "Request") -> "Request":
    """*request* itself: nothing follows from settings."""
    return request


def _read_gguf(path: Path) -> Weights:
    """
    The header of the GGUF file at *path*, or of a model that other programs keep.

    Raises:
        WeightsUnusable: If it is none; of a folder for MLX, with that as a hint.
    """
    try:
        return read_weights_from_headers(_resolve_model_path(path))
    except WeightsUnusable as error:
        if is_mlx_folder_or_config(expand_home(path)):
            error.hint = "It looks like a model for MLX: serve it with --engine mlx."
        raise


def _resolve_model_path(path: Path, *, folder: bool = False) -> Path:
    """*path*, or where the model of that name is kept; one for MLX with *folder*."""
    if not stores.is_model_name_without_file(path):
        return path
    return stores.locate_model(str(path), folder=folder)


def read_headers_of_stored_models(tell: "Tell") -> dict[StoredModel, HeaderFacts]:
    """What is known of all models that other programs keep here."""
    models = list(stores.stored_models())
    return read_and_keep_facts(
        models,
        lambda model: read_folder(model.path),
        lambda at: tell("headers", at, len(models)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineEntry:
    """An engine that a user can ask for."""

    find: Callable[["Request", "Execution"], object]
    """
    Looks for its programs; takes no time, and raises a `MachineError` if one is
    missing.
    """

    engine_for: Callable[["Request", "Execution"], "EngineFor"]
    """Makes what makes engines of models; may ask its programs what they can do."""

    with_model_and_types: Callable[["Request"], "Request"] = _unchanged_request
    """
    The request, with the model and the types that follow from the engine's settings;
    nothing else of it changes. Raises a `RequestError` if they do not go together.
    """

    weights: Callable[[Path], Weights] = _read_gguf
    """Reads the weights that ``--model`` names. Raises a `MachineError`."""

    pair_flags: PairFlags = PairFlags()  # noqa: RUF009 - it is frozen
    """How users ask it for pairs."""


def _require_llama_cpp(_request: "Request", execution: "Execution") -> Tools:
    """The programs of llama.cpp, also where *execution* names none."""
    return installation.locate_tools(llama_server=execution.llama_server)


def _llama_engine_factory(request: "Request", execution: "Execution") -> "EngineFor":
    """What makes engines of llama.cpp, whose server is asked for its facts once."""
    from codeneedle.engines.llama_cpp.engine import LlamaCpp

    tools = _require_llama_cpp(request, execution)
    facts = installation.ask_server_facts(tools.server)
    return lambda model: LlamaCpp(tools=tools, facts=facts, model=model)


def _launch_of_answer(answer: "Answer") -> launching.Launch:
    return launching.Launch(
        pair=answer.pair,
        name=answer.run.setup.weights.name,
        model=_model_argument_for_server(answer.model_as_named),
        arguments=answer.run.setup.server_args,
        environment={} if answer.run.setup.rotation else UNROTATED,
    )


def _model_argument_for_server(word: str) -> str:
    """*word* as llama-server takes it: a path, or a repository of Hugging Face."""
    if word in pretrained.MODELS:
        return str(pretrained.path_unless_built_in(word))
    if stores.is_model_name(word) and stores.is_model_name_without_file(
        expand_home(word)
    ):
        with contextlib.suppress(WeightsUnusable):
            located = stores.locate_model(word)
            is_cached = "snapshots" in located.parts and word.count("/") == 1
            return word if is_cached else str(located)
    # Quoted, a shell would look for a folder called ~.
    return str(expand_home(word)) if word.startswith("~") else word


def _llama_launch_lines(answer: "Answer", form: str) -> list[str]:
    """The lines of *form* that start llama-server with *answer*."""
    forms = {
        "command": launching.command_lines,
        "env": launching.environment_lines,
        "preset": launching.preset_lines,
    }
    return forms[form](_launch_of_answer(answer))


def _require_mlx(_request: "Request", _execution: "Execution") -> object:
    """The versions of MLX that are installed."""
    from codeneedle.engines.mlx import engine

    return engine.package_versions()


def _mlx_engine_factory(request: "Request", _execution: "Execution") -> "EngineFor":
    from codeneedle.engines.mlx.engine import Mlx, package_versions

    settings = request.settings_by_name(MLX, MlxSettings)
    versions = package_versions()
    return lambda model: Mlx(versions=versions, model=model, settings=settings)


def _check_mlx_request(request: "Request") -> "Request":
    """*request* itself; stops where it names no model, or a built-in GGUF file."""
    from codeneedle.engines.mlx.engine import FOLDERS

    if not request.models or {*request.models} & {*pretrained.NAMES}:
        raise BadInput(
            source="--engine mlx",
            reason="needs a model in a folder; built-in ones are GGUF files",
            hint=FOLDERS,
        )
    return request


def _read_mlx_folder(path: Path) -> Weights:
    """The weights in the folder at *path*, or of a model that other programs keep."""
    from codeneedle.engines.mlx.engine import read_weights

    return read_weights(_resolve_model_path(path, folder=True))


def _read_or_name_weights(path: Path) -> Weights:
    """A GGUF file is read; anything else is a name that the server understands."""
    is_gguf = path.suffix.lower() == ".gguf" or path.is_file()
    return read_weights_from_headers(path) if is_gguf else weights_of_name_alone(path)


def _adapt_command_request(request: "Request") -> "Request":
    """
    *request*, which names its model by ``--served-name`` where the command does not.

    Refuses types that one placeholder cannot give.
    """
    settings = request.settings_by_name(COMMAND, CommandSettings)
    template = command_template(settings)
    fixed = (
        request.grid_v_types if "k" in template.placeholders else request.grid_k_types
    )
    is_apart = template.is_diagonal and request.grid_k_types != request.grid_v_types
    if is_apart and len(fixed) != 1:
        raise BadInput(
            source="--k-types, --v-types",
            reason="the command has one placeholder: K and V are of one type, or one "
            "is fixed",
            hint="Use --types, or name one type for the side that the command fixes, "
            "or use a command with ${k} and ${v}.",
        )
    if request.models or "model" in template.placeholders:
        return request
    if not settings.served_name:
        raise BadInput(
            source="--command",
            reason="does not say which model it serves",
            hint="Put ${model} into it, or say what it is called: --served-name NAME",
        )
    return replace(request, models=(_name_as_path(settings.served_name),))


def _name_as_path(name: str) -> str:
    """``./NAME`` for the *name* of a served model: none of `pretrained.NAMES`."""
    return f"./{name}"


def _require_command(request: "Request", _execution: "Execution") -> object:
    """The program of the command that is set; None without one."""
    from codeneedle.system.commands import require_program

    settings = request.settings_by_name(COMMAND, CommandSettings)
    if not settings.command:
        return None
    return require_program(command_template(settings).words[0], option="--command")


def _command_engine_factory(request: "Request", _execution: "Execution") -> "EngineFor":
    """
    A function that makes engines, which start the user's command, by model.

    The program is asked for its version, and the key is read, at once.
    """
    from codeneedle.engines.openai.engine import command_engine_factory

    types = distinct_most_precise_first((*request.grid_k_types, *request.grid_v_types))
    return command_engine_factory(
        request.settings_by_name(COMMAND, CommandSettings),
        types=types,
        environment=os.environ,
        is_fixed=request.grid_k_types != request.grid_v_types,
    )


def _adapt_endpoint_request(request: "Request") -> "Request":
    """
    *request* with the pair that the user names, and the served name if it has no model.

    Raises:
        BadInput: If it asks for other types, has no name for the model, or the address
            or the pair cannot be one.
    """
    settings = request.settings_by_name(ENDPOINT, EndpointSettings)
    checked_url(settings.url)
    pair = checked_pair(settings.pair)
    if (request.grid_k_types, request.grid_v_types) not in {
        ((), ()),
        ((pair.k,), (pair.v,)),
    }:
        raise BadInput(
            source="--types",
            reason="an endpoint has the one pair that it runs with",
            hint=f"Leave it out: --as {pair} says it.",
        )
    if not (settings.served_name or request.models):
        raise BadInput(
            source="--engine endpoint",
            reason="needs a name for the model",
            hint="Say what the server calls it: --served-name NAME",
        )
    models = request.models or (_name_as_path(settings.served_name),)
    return replace(request, models=models, k_types=(pair.k,), v_types=(pair.v,))


def _endpoint_engine_factory(
    request: "Request", _execution: "Execution"
) -> "EngineFor":
    from codeneedle.engines.openai.engine import endpoint_engine_factory

    return endpoint_engine_factory(
        request.settings_by_name(ENDPOINT, EndpointSettings), environment=os.environ
    )


ENGINES: Mapping[str, EngineEntry] = {
    ENGINE: EngineEntry(
        find=_require_llama_cpp,
        engine_for=_llama_engine_factory,
        pair_flags=PairFlags(cache_flags, cuda_kernels_option, model="-m"),
    ),
    MLX: EngineEntry(
        find=_require_mlx,
        engine_for=_mlx_engine_factory,
        with_model_and_types=_check_mlx_request,
        weights=_read_mlx_folder,
    ),
    COMMAND: EngineEntry(
        find=_require_command,
        engine_for=_command_engine_factory,
        with_model_and_types=_adapt_command_request,
        weights=_read_or_name_weights,
    ),
    ENDPOINT: EngineEntry(
        find=lambda _request, _execution: None,
        engine_for=_endpoint_engine_factory,
        with_model_and_types=_adapt_endpoint_request,
        weights=weights_of_name_alone,
    ),
}
"""All engines, by the name that ``--engine`` takes."""


def engine_pair_flags(engine: str) -> PairFlags:
    """How *engine* is asked for pairs; of an unknown engine, by their names."""
    return ENGINES[engine].pair_flags if engine in ENGINES else PairFlags()


def _mlx_launch_arguments(answer: "Answer") -> tuple[Pair, str, tuple[str, ...]]:
    """What functions of `mlx_launching` take: pair, model and arguments of a server."""
    return answer.pair, answer.model_as_named, answer.run.setup.server_args


def find_launch_words(engine: str) -> "ServerWords | None":
    """How what starts *engine* is told an answer; None where nothing tells it one."""
    from codeneedle.report.answer import ServerWords

    if engine == MLX:
        return ServerWords(
            arguments=lambda answer: mlx_launching.mlx_lm_arguments_or_empty(
                *_mlx_launch_arguments(answer)
            ),
            environment=lambda _answer: {},
            lines=lambda answer, _form: mlx_launching.mlx_lm_command_lines(
                *_mlx_launch_arguments(answer)
            ),
            forms=("command",),
        )
    if engine != ENGINE:
        return None
    return ServerWords(
        arguments=lambda answer: launching.server_arguments(_launch_of_answer(answer)),
        environment=lambda answer: launching.environment_variables(
            _launch_of_answer(answer)
        ),
        lines=_llama_launch_lines,
    )


def prepare_engine_entry(request: "Request", execution: "Execution") -> EngineEntry:
    """
    The engine of *request*, which is asked nothing yet.

    From now on its programs inherit the variables that *request* passes on.

    Raises:
        UnknownName: If there is none of that name.
        BadInput: If the settings of another engine are given, which would be ignored.
    """
    # Before a program of the engine is asked anything.
    set_passed_on_variables(request.env)
    if request.engine not in ENGINES:
        raise UnknownName(kind="engine", name=request.engine, known=list(ENGINES))
    if execution.llama_server and request.engine != ENGINE:
        raise BadInput(
            source=f"--llama-server {execution.llama_server}",
            reason=f"the engine {request.engine} starts no llama-server of ours",
            hint="Leave it out, or leave --engine out.",
        )
    for name in ENGINES.keys() & request.settings.keys():
        if name != request.engine:
            raise BadInput(
                source=f"--engine {request.engine}",
                reason=f"settings of the engine {name} are given, too",
                hint=f"Use --engine {name}, or leave them out.",
            )
    return ENGINES[request.engine]
