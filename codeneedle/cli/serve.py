"""The serve command: a verified server of one cell, for clients of the user."""

import shlex
from pathlib import Path

from msgspec.structs import replace
from rich.console import Console

from codeneedle.cli.progress import ensure_models, note_lines, say
from codeneedle.cli.sweep import planned
from codeneedle.engines.engine import Ability, Address, CellSpec, Served, mismatched
from codeneedle.errors import CellError
from codeneedle.grid import Pair
from codeneedle.models.pretrained import path_of
from codeneedle.sweep.request import Execution, Request
from codeneedle.system.files import cache_folder
from codeneedle.system.signals import unwinding_on_signals
from codeneedle.text import size, visible

POLL_S = 0.5
"""Between two looks at the server."""


def serve(
    pair: Pair,
    request: Request,
    execution: Execution,
    console: Console,
    notes: Console,
) -> int:
    """
    Serve *pair* until the user stops it, and print how programs reach it.

    Args:
        pair: Cache types.
        request: Model, engine and context.
        execution: Which binary.
        console: Where to show the address.
        notes: Where to show everything else.

    Returns:
        The exit code: 0, as the user ends it.

    Raises:
        CodeneedleError: If it does not get ready, runs something else, or ends.
    """
    request = replace(request, k_types=(pair.k,), v_types=(pair.v,), probes=())
    ensure_models(notes, map(path_of, request.models))
    (plan,) = planned(request, execution)
    plan.engine.require(Ability.ADDRESS)
    cell = CellSpec(pair, plan.context, thinks=True)
    log = cache_folder() / "serving" / f"{plan.model}.{pair.slug}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    try:
        with unwinding_on_signals(), plan.engine.serving(cell, log=log) as served:
            if differences := served.verify(cell):
                raise mismatched(differences)
            note_lines(notes, _facts(served, cell, log))
            if served.address is not None:
                console.print(_exports(served.address), end="", soft_wrap=True)
            while not served.ends_within(POLL_S):
                pass
            raise CellError("the server has ended", hint=f"See {log}.")
    except KeyboardInterrupt:
        say(notes, "Stopped.")
    return 0


def _facts(served: Served, cell: CellSpec, log: Path) -> list[str]:
    """What runs, as far as the engine has shown it."""
    held = served.effective().kv_mib
    cache = f", KV cache {size(held * (1 << 20))}" if held is not None else ""
    return [
        f"{visible(str(cell.pair))} is verified{cache}; {cell.context:,} tokens",
        f"log: {log}",
        "Ctrl-C ends it",
    ]


def _exports(address: Address) -> str:
    """The address for a shell, as clients of OpenAI's API read it."""
    variables = {
        "OPENAI_BASE_URL": address.url,
        "OPENAI_API_KEY": address.key or "none",
        "OPENAI_MODEL": address.model,
    }
    lines = (f"export {name}={shlex.quote(text)}\n" for name, text in variables.items())
    return "".join(lines)
