"""Command-line options: types, checks and completion."""

import functools
import inspect
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from codeneedle.grid import DEFAULT_TYPES, by_precision
from codeneedle.probes.prompts import PromptForm
from codeneedle.sweep.request import DEFAULT_OUT, Request
from codeneedle.system.files import expanded

CORPUS = "CORPUS"
"""Environment variable that names the corpus where nothing else does."""


def parted(arguments: Sequence[str]) -> tuple[str | None, tuple[str, ...]]:
    """A sweep's name, if one comes first, and what is meant for llama-server."""
    name = None
    if arguments and not arguments[0].startswith("-"):
        name, *arguments = arguments
    # llama-server takes no words of its own: this one was meant for us.
    if arguments and not arguments[0].startswith("-"):
        raise typer.BadParameter(
            f"'{arguments[0]}': one sweep at a time, here '{name}'; "
            "arguments for llama-server begin with a dash"
        )
    return name, tuple(arguments)


def from_environment() -> dict[str, Any]:
    """Fields of a request that the environment names."""
    corpus = os.environ.get(CORPUS)
    return {"corpus": corpus} if corpus else {}


def stated(text: str | None, option: str) -> str | None:
    """*text*, unless it is empty: an unset shell variable is no wish for a default."""
    if text == "":
        raise typer.BadParameter(f"'' for {option}: nothing")
    return text


def types_of(text: str | None, option: str) -> tuple[str, ...] | None:
    """Cache types, most precise first; None where the option was not given."""
    words = words_of(text, option)
    return tuple(by_precision(words)) if words else None


def rotations(text: str | None) -> tuple[bool, ...] | None:
    """Whether to rotate: on, off, or both; None where the option was not given."""
    words = words_of(text, "--rotation")
    if not words:
        return None
    # 20 ms of every --help otherwise.
    from codeneedle.sweep import request

    return request.rotations(words)


def words_of(text: str | None, option: str) -> tuple[str, ...] | None:
    """The distinct words of a list; None where the option was not given."""
    if text is None:
        return None
    words = (word.strip() for word in text.split(","))
    found = tuple(dict.fromkeys(word for word in words if word))
    # An empty list must not quietly run a default.
    if not found:
        raise typer.BadParameter(f"'{text}' for {option}: an empty list")
    return found


def numbers(text: str | None, option: str) -> tuple[int, ...] | None:
    """
    The distinct numbers of a list; None where the option was not given.

    Raises:
        BadParameter: If it is empty, or one of them is no whole number.
    """
    words = words_of(text, option)
    if words is None:
        return None
    try:
        return tuple(dict.fromkeys(int(word) for word in words))
    except ValueError as error:
        raise typer.BadParameter(f"'{text}' for {option}: not whole numbers") from error


def one_form(**asked: bool) -> None:
    """Stop at two forms of one report: only one can stand on stdout."""
    chosen = [f"--{name}" for name, is_asked in asked.items() if is_asked]
    if len(chosen) > 1:
        raise typer.BadParameter(f"{' and '.join(chosen)}: choose one")


ServerOption = Annotated[
    Path | None,
    typer.Option(
        metavar="PATH",
        help="The llama-server to use.",
        show_default="LLAMA_SERVER, PATH, or the one that 'codeneedle llama' built",
    ),
]
ModelOption = Annotated[
    Path | None,
    typer.Option(
        metavar="GGUF", help="Your weights.", show_default="the built-in model"
    ),
]
OutOption = Annotated[
    Path, typer.Option("--out", metavar="FOLDER", help="Where records are kept.")
]
StrictIndent = Annotated[
    bool, typer.Option("--strict-indent", help="Leading white space counts, too.")
]
RunName = Annotated[
    str, typer.Argument(metavar="NAME", help="A corpus, corpus/model, or a prefix.")
]
MetricOption = Annotated[
    str, typer.Option(metavar="METRIC", help="What to show; a wrong one lists all.")
]
CsvOption = Annotated[bool, typer.Option("--csv", help="One row per pair.")]
MarkdownOption = Annotated[bool, typer.Option("--markdown", help="To paste.")]
JsonOption = Annotated[bool, typer.Option("--json", help="For programs.")]
CorpusName = Annotated[
    str, typer.Argument(metavar="NAME|PATH", help="A corpus by name, or a path.")
]


CorpusOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME|PATH",
        help="A corpus by name, a file, or a folder; see 'codeneedle corpus list'.",
        show_default=f"the environment's {CORPUS}, or what suits the model",
    ),
]
TypesOption = Annotated[
    str | None,
    typer.Option(
        metavar="LIST",
        help="Cache types of both axes, separated by commas.",
        show_default=",".join(DEFAULT_TYPES),
    ),
]
KTypesOption = Annotated[
    str | None, typer.Option(metavar="LIST", help="Types of K alone.")
]
VTypesOption = Annotated[
    str | None, typer.Option(metavar="LIST", help="Types of V alone.")
]
ProbeOption = Annotated[
    str | None,
    typer.Option(
        metavar="LIST",
        help="What to measure: recall, divergence, throughput.",
        show_default="recall",
    ),
]
ContextOption = Annotated[
    int | None,
    typer.Option(
        min=256,
        metavar="TOKENS",
        help="Context size.",
        show_default="16384, or what the weights were trained for",
    ),
]
RotationOption = Annotated[
    str | None,
    typer.Option(
        metavar="LIST",
        help="on, off, or both: the Hadamard rotation of quantized values.",
        show_default="on",
    ),
]
PromptFormOption = Annotated[
    PromptForm | None,
    typer.Option(
        help="How a function is asked for.",
        show_default="chat where the weights have a template",
    ),
]
PrefillNoThinkOption = Annotated[
    bool | None,
    typer.Option(
        "--prefill-no-think",
        help="Begin answers with an empty thought, for models that think anyway.",
    ),
]
FitOption = Annotated[
    bool | None,
    typer.Option(
        "--fit/--no-fit",
        help="Trim a corpus that is too long, or refuse it.",
        show_default="fit",
    ),
]
DivergenceContextOption = Annotated[
    str | None,
    typer.Option(
        metavar="LIST",
        help="Contexts to compare distributions at, in tokens.",
        show_default="4096, or what the weights were trained for",
    ),
]
ChunksOption = Annotated[
    int | None,
    typer.Option(min=1, help="Chunks of text to compare distributions on."),
]
TextOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="What to compare distributions on.",
        show_default="the corpus",
    ),
]
DepthsOption = Annotated[
    str | None,
    typer.Option(
        metavar="LIST",
        help="Depths to measure speed at, in tokens.",
        show_default="0,4096 and the corpus",
    ),
]
RepetitionsOption = Annotated[
    int | None, typer.Option(min=1, help="Measurements of speed at each depth.")
]
SkipFallbackOption = Annotated[
    bool | None,
    typer.Option(
        "--skip-fallback", help="End a cell that falls back before measuring it."
    ),
]
SpeculateOption = Annotated[
    bool | None,
    typer.Option(
        "--speculate/--no-speculate",
        help="Let the corpus draft its own recall, or have every token computed alone.",
        show_default="speculate, where llama-server can",
    ),
]
SeedOption = Annotated[
    int | None,
    typer.Option(
        help="Of the running order and of the server's sampler.",
        show_default="42",
    ),
]
SweepArguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[SWEEP] [-- ARGS]",
        help="A sweep file by name; further arguments for llama-server after --.",
    ),
]


def request_of(  # noqa: PLR0913 - one parameter per option
    *,
    corpus: CorpusOption = None,
    model: ModelOption = None,
    types: TypesOption = None,
    k_types: KTypesOption = None,
    v_types: VTypesOption = None,
    probe: ProbeOption = None,
    context: ContextOption = None,
    rotation: RotationOption = None,
    prompt_form: PromptFormOption = None,
    prefill_no_think: PrefillNoThinkOption = None,
    fit: FitOption = None,
    divergence_context: DivergenceContextOption = None,
    chunks: ChunksOption = None,
    text: TextOption = None,
    depths: DepthsOption = None,
    repetitions: RepetitionsOption = None,
    skip_fallback: SkipFallbackOption = None,
    speculate: SpeculateOption = None,
    seed: SeedOption = None,
    llama_server: ServerOption = None,
    out: OutOption = DEFAULT_OUT,
    arguments: SweepArguments = None,
) -> Request:
    """
    The options of every command that plans a sweep, as one value.

    What is not given is taken from the sweep file that is named, if one is; what
    neither says, from the environment.
    """
    name, server_args = parted(arguments or [])
    given = {
        "corpus": stated(corpus, "--corpus"),
        "models": (expanded(model),) if model else None,
        "k_types": types_of(k_types, "--k-types") or types_of(types, "--types"),
        "v_types": types_of(v_types, "--v-types") or types_of(types, "--types"),
        "probes": words_of(probe, "--probe"),
        "contexts": (context,) if context else None,
        "rotations": rotations(rotation),
        "prompt_form": prompt_form,
        "prefill_no_think": prefill_no_think,
        "fit": fit,
        "seed": seed,
        "server_args": server_args or None,
        "llama_server": llama_server,
        "out": out,
        "skip_fallback": skip_fallback,
        "speculate": speculate,
    }
    stored = _stored(name) if name else {}
    chosen = {key: value for key, value in given.items() if value is not None}
    of_probes: dict[str, dict[str, Any]] = {
        "divergence": {
            "contexts": numbers(divergence_context, "--divergence-context"),
            "chunks": chunks,
            "text": text,
        },
        "throughput": {
            "depths": numbers(depths, "--depths"),
            "repetitions": repetitions,
        },
    }
    stated_ones = {
        probe: {key: value for key, value in fields.items() if value is not None}
        for probe, fields in of_probes.items()
    }
    settings = _overruled(stored, {p: f for p, f in stated_ones.items() if f})
    return Request(**{**from_environment(), **stored, **chosen, **settings})


def _overruled(
    stored: dict[str, Any], given: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    if not given:
        return {}
    from codeneedle.sweep import request

    return {"settings": request.overruled(stored.get("settings", {}), given)}


def _stored(name: str) -> dict[str, Any]:
    """Fields of a request that the sweep file called *name* names."""
    # 20 ms of every --help otherwise.
    from codeneedle.sweep import request

    return request.asked_for(request.read_sweep_file(name))


def asking(command: Callable[..., None]) -> Callable[..., None]:
    """Give *command* the options of `request_of`, handed over as one `Request`."""
    own = list(inspect.signature(command).parameters.values())[1:]
    asked = list(inspect.signature(request_of).parameters.values())

    @functools.wraps(command)
    def parsed(**options: object) -> None:
        mine = {parameter.name: options.pop(parameter.name) for parameter in own}
        command(request_of(**options), **mine)  # type: ignore[arg-type]

    parameters = [*asked, *own]
    parsed.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    parsed.__annotations__ = {p.name: p.annotation for p in parameters}
    return parsed
