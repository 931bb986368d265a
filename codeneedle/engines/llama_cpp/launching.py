"""
A pair in the words of what starts llama.cpp: command, variables, preset, and what
Ollama, LM Studio and koboldcpp can say of it.
"""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from codeneedle.cache_types import Pair
from codeneedle.engines.llama_cpp.arguments import parse
from codeneedle.errors import NothingToShow
from codeneedle.system.inherited_variables import (
    command_line_with_variables,
    shell_assignment,
)
from codeneedle.text import escape_invisible

ENVIRONMENT = {
    "k": "LLAMA_ARG_CACHE_TYPE_K",
    "v": "LLAMA_ARG_CACHE_TYPE_V",
    "flash": "LLAMA_ARG_FLASH_ATTN",
}
"""Variables of llama-server (``common/arg.cpp`` of b11434)."""

OLLAMA_TYPES = ("f16", "q8_0", "q4_0")
"""Of ``OLLAMA_KV_CACHE_TYPE``; others silently become f16."""

LM_STUDIO_TYPES = (*("f32", "f16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"),)
"""Of LM Studio's settings of a model (``llm.load.llama.kCacheQuantizationType``)."""

KOBOLD_TYPES = {"f16": "0", "q8_0": "1", "q4_0": "2"}
"""Of ``--quantkv`` of koboldcpp."""

_VALUE = re.compile(r"[^;#\r\n\s](?:[^;#\r\n]*[^;#\s])?")
"""Of a preset: what is behind ``;`` or ``#`` is a comment (``common/preset.cpp``)."""

_NO_BRACKETS = str.maketrans("[]", "()")

_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+(?::[\w.-]+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What is to be started."""

    pair: Pair
    name: str  # of the model, for a section of presets
    model: str  # path of its GGUF file, or ``org/repo:quant``
    arguments: tuple[str, ...] = ()  # those that it was measured with
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that it was measured with, of those that change the cache."""

    @property
    def model_option(self) -> tuple[str, str]:
        """The long option that names the model, without dashes, and its value."""
        is_repository = _REPOSITORY.fullmatch(self.model)
        return ("hf-repo" if is_repository else "model", self.model)


def server_arguments(launch: Launch) -> list[str]:
    """The arguments of llama-server: model, pair, then those it was measured with."""
    option, value = launch.model_option
    pair = ("-ctk", launch.pair.k, "-ctv", launch.pair.v, "-fa", "on")
    return [f"--{option}", value, *pair, *launch.arguments]


def command_lines(launch: Launch) -> list[str]:
    """The command line, with its variables; comments name the pair to launchers."""
    return [
        command_line_with_variables(
            launch.environment, ["llama-server", *server_arguments(launch)]
        ),
        *(f"# {line}" for line in launcher_lines(launch.pair)),
    ]


def cache_type_variables(pair: Pair) -> dict[str, str]:
    """Environment variables of llama-server that set *pair*, with flash attention."""
    values = {"k": pair.k, "v": pair.v, "flash": "on"}
    return {name: values[key] for key, name in ENVIRONMENT.items()}


def environment_variables(launch: Launch) -> dict[str, str]:
    """The variables that set the pair, and those that it was measured with."""
    return {**cache_type_variables(launch.pair), **launch.environment}


def environment_lines(launch: Launch) -> list[str]:
    """
    Variables, a line each; comments name the arguments, and the pair to launchers.

    Arguments are no variables here: which of them have one depends on the build.
    """
    given = launch.arguments
    return [
        *([f"# measured with the arguments {shlex.join(given)}"] if given else []),
        *map(shell_assignment, environment_variables(launch).items()),
        *(f"# {line}" for line in launcher_lines(launch.pair)),
    ]


def preset_lines(launch: Launch) -> list[str]:
    """
    A section of the file of presets of ``--models-preset`` (``docs/preset.md``).

    Comments in front of it name the variables that it needs.

    Raises:
        NothingToShow: If its layout cannot say an argument: it knows no quotes.
    """
    rows = [
        launch.model_option,
        ("cache-type-k", launch.pair.k),
        ("cache-type-v", launch.pair.v),
        ("flash-attn", "on"),
        *(
            _preset_row(argument.name, argument.values)
            for argument in parse(launch.arguments)
        ),
    ]
    for key, value in rows:
        is_once = [name for name, _ in rows].count(key) == 1
        if not (is_once and _VALUE.fullmatch(value) and " " not in key):
            said = f"--{key} {value}" if is_once else f"--{key} more than once"
            raise NothingToShow(
                run=escape_invisible(launch.name),
                what="words for preset: its layout cannot say "
                f"{escape_invisible(said)}",
                hint="--form command says all of it.",
            )
    name = launch.name.translate(_NO_BRACKETS).strip()
    needs = [
        f"; needs {shell_assignment(variable)}"
        for variable in launch.environment.items()
    ]
    return [*needs, f"[{name}]", *(f"{key} = {value}" for key, value in rows)]


def _preset_row(name: str, values: Sequence[str]) -> tuple[str, str]:
    """
    Key and value of a preset's row: ``true`` without a value.

    With several values the key has a blank, which `preset_lines` refuses.
    """
    # Two values are "not supported yet" (``common_preset::to_args``).
    if len(values) > 1:
        return f"{name.lstrip('-')} {values[0]}", " ".join(values[1:])
    return name.lstrip("-"), values[0] if values else "true"


def launcher_lines(pair: Pair) -> Iterator[str]:
    """How launchers are asked for *pair*, a line each, or why they cannot be."""
    same, both = pair.k == pair.v, f"K {pair.k} with V {pair.v}"
    if same and pair.k in OLLAMA_TYPES:
        yield f"Ollama: OLLAMA_FLASH_ATTENTION=1 OLLAMA_KV_CACHE_TYPE={pair.k}"
    else:
        yield f"Ollama has one type for K and V ({', '.join(OLLAMA_TYPES)}): no {both}"
    if {pair.k, pair.v} <= {*LM_STUDIO_TYPES}:
        names = f"K {pair.k.upper()}, V {pair.v.upper()}"
        yield f"LM Studio: Flash Attention on, cache quantization type {names}"
    else:
        yield f"LM Studio has no {both}"
    if same and pair.k in KOBOLD_TYPES:
        yield f"koboldcpp: --flashattention --quantkv {KOBOLD_TYPES[pair.k]}"
    else:
        known = ", ".join(KOBOLD_TYPES)
        yield f"koboldcpp's --quantkv has one type for K and V ({known}): no {both}"
