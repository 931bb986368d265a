"""
The engines that a sweep can use, by name; the place where one is chosen.

To add one is to add its folder in `engines/`, and a line to `ENGINES`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec import Struct

from codeneedle.engines.mlx.settings import NAME as MLX
from codeneedle.engines.mlx.settings import MlxSettings
from codeneedle.errors import BadInput, UnknownName
from codeneedle.records.record import ENGINE

if TYPE_CHECKING:
    from pathlib import Path

    from codeneedle.models.weights import Weights
    from codeneedle.sweep.plan import EngineFor
    from codeneedle.sweep.request import Request


class NoSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of an engine that has none."""


def _as_it_is(request: "Request") -> "Request":
    return request


def _gguf(path: "Path") -> "Weights":
    from codeneedle.models.weights import read_header

    return read_header(path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """
    An engine that a user can ask for.

    Attributes:
        find: Looks for its programs; takes no time, and raises a `MachineError` if one
            is missing.
        engine_for: Makes what makes engines of models; may ask its programs what they
            can do.
        settings: What a user may choose, all fields with a default: the table of its
            name in a sweep file, and the options that the fields' metadata names.
        suited: What is asked for, with what follows from the engine's settings. Raises
            a `RequestError` if they do not go together.
        weights: Reads what ``--model`` leads to. Raises a `MachineError`.
    """

    find: Callable[["Request"], object]
    engine_for: Callable[["Request"], "EngineFor"]
    settings: type[Struct] = NoSettings
    suited: Callable[["Request"], "Request"] = _as_it_is
    weights: Callable[["Path"], "Weights"] = _gguf


def _find_llama_cpp(request: "Request") -> object:
    from codeneedle.engines.llama_cpp import installation

    return installation.find(llama_server=request.llama_server)


def _llama_cpp(request: "Request") -> "EngineFor":
    from codeneedle.engines.llama_cpp import installation
    from codeneedle.engines.llama_cpp.engine import LlamaCpp

    tools = installation.find(llama_server=request.llama_server)
    facts = installation.ask(tools.server)
    return lambda model: LlamaCpp(tools=tools, facts=facts, model=model)


def _find_mlx(_request: "Request") -> object:
    from codeneedle.engines.mlx import engine

    return engine.find()


def _mlx(request: "Request") -> "EngineFor":
    from codeneedle.engines.mlx.engine import Mlx, find

    chosen = request.settings.get(MLX)
    settings = chosen if isinstance(chosen, MlxSettings) else MlxSettings()
    versions = find()
    return lambda model: Mlx(versions=versions, model=model, settings=settings)


def _folder_of_mlx(path: "Path") -> "Weights":
    from codeneedle.engines.mlx.engine import read_weights

    return read_weights(path)


ENGINES: Mapping[str, Offer] = {
    ENGINE: Offer(find=_find_llama_cpp, engine_for=_llama_cpp),
    MLX: Offer(
        find=_find_mlx,
        engine_for=_mlx,
        settings=MlxSettings,
        weights=_folder_of_mlx,
    ),
}
"""All engines, by the name that ``--engine`` takes."""


def settings_of_engines() -> dict[str, type[Struct]]:
    """The settings of the engines that have any, by name."""
    return {
        name: offer.settings
        for name, offer in ENGINES.items()
        if offer.settings.__struct_fields__
    }


def offered(request: "Request") -> Offer:
    """
    The engine that *request* asks for.

    Raises:
        UnknownName: If there is none of that name.
        BadInput: If another one's settings are given, which would be ignored.
    """
    if request.engine not in ENGINES:
        raise UnknownName(kind="engine", name=request.engine, known=list(ENGINES))
    for name in ENGINES.keys() & request.settings.keys():
        if name != request.engine:
            raise BadInput(
                source=f"--engine {request.engine}",
                reason=f"settings of the engine {name} are given, too",
                hint=f"Use --engine {name}, or leave them out.",
            )
    return ENGINES[request.engine]
