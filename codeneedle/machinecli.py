"""The commands about this machine: what would run here, and building it."""

from typing import Annotated

import typer
from rich.console import Console

from codeneedle.options import JsonOption, ModelOption, ServerOption


def doctor(
    model: ModelOption = None,
    llama_server: ServerOption = None,
    *,
    json: JsonOption = False,
) -> None:
    """Tell what would run here, what is missing, and how to mend it."""
    from codeneedle.diagnosis import diagnose
    from codeneedle.report.doctor import doctor_json, doctor_screen

    found = diagnose(llama_server=llama_server, model=model)
    if json:
        typer.echo(doctor_json(found), nl=False)
    else:
        Console(highlight=False).print(doctor_screen(found))
    raise typer.Exit(0 if found.is_ready else 3)


def llama(
    *,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Build even if another one is found.")
    ] = False,
) -> None:
    """Build llama.cpp into the cache folder, unless there is one already."""
    from codeneedle.buildscreen import ensure_llama

    typer.echo(
        ensure_llama(
            Console(stderr=True, highlight=False, soft_wrap=True), anyway=anyway
        )
    )
