"""The options of the command line: what each is called, takes and means."""

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from codeneedle.grid import DEFAULT_TYPES, by_precision
from codeneedle.prompts import PromptForm
from codeneedle.request import Request

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
JsonOption = Annotated[bool, typer.Option("--json", help="For programs.")]
CorpusName = Annotated[
    str, typer.Argument(metavar="NAME|PATH", help="A corpus by name, or a path.")
]


def request_of(  # noqa: PLR0913 - one parameter per option
    *,
    corpus: Annotated[
        str | None,
        typer.Option(
            envvar="CORPUS",
            metavar="NAME|PATH",
            help="A corpus by name, a file, or a folder; see 'codeneedle corpus list'.",
            show_default="what suits the model",
        ),
    ] = None,
    model: ModelOption = None,
    types: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="Cache types of both axes, separated by commas.",
            show_default=",".join(DEFAULT_TYPES),
        ),
    ] = None,
    k_types: Annotated[
        str | None, typer.Option(metavar="LIST", help="Types of K alone.")
    ] = None,
    v_types: Annotated[
        str | None, typer.Option(metavar="LIST", help="Types of V alone.")
    ] = None,
    context: Annotated[
        int | None,
        typer.Option(
            min=256,
            metavar="TOKENS",
            help="Context size.",
            show_default="16384, or what the weights were trained for",
        ),
    ] = None,
    prompt_form: Annotated[
        PromptForm | None,
        typer.Option(
            help="How a function is asked for.",
            show_default="chat where the weights have a template",
        ),
    ] = None,
    prefill_no_think: Annotated[
        bool,
        typer.Option(
            "--prefill-no-think",
            help="Begin answers with an empty thought, for models that think anyway.",
        ),
    ] = False,
    fit: Annotated[
        bool,
        typer.Option(
            "--fit/--no-fit", help="Trim a corpus that is too long, or refuse it."
        ),
    ] = True,
    seed: Annotated[
        int, typer.Option(help="Of the running order and of the server's sampler.")
    ] = 42,
    llama_server: ServerOption = None,
    out: OutOption = Path("sweeps"),
    server_args: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[-- ARGS]", help="Further arguments for llama-server, after --."
        ),
    ] = None,
) -> Request:
    """The options of every command that plans a sweep, as one value."""
    return Request(
        corpus=corpus,
        model=model.expanduser() if model else None,
        k_types=_types(k_types or types),
        v_types=_types(v_types or types),
        context=context,
        prompt_form=prompt_form,
        prefill_no_think=prefill_no_think,
        fit=fit,
        seed=seed,
        server_args=tuple(server_args or ()),
        llama_server=llama_server,
        out=out,
    )


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


def _types(text: str | None) -> tuple[str, ...]:
    if text is None:
        return DEFAULT_TYPES
    return tuple(by_precision(name.strip() for name in text.split(",") if name.strip()))
