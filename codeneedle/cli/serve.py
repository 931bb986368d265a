"""The serve command: a verified server of one cell, for clients of the user."""

import os
from collections.abc import Iterator, Mapping
from functools import partial

from msgspec.structs import replace
from rich.console import Console

from codeneedle.cache_types import Pair
from codeneedle.cli.progress import (
    end_and_report_orphans,
    fetch_missing_models,
    print_notes,
    say,
)
from codeneedle.cli.sweep import make_plans
from codeneedle.engines.attention_place import with_attention_place
from codeneedle.engines.engine import Ability, Address, CellSpec, Served
from codeneedle.engines.mismatch import mismatch_error
from codeneedle.engines.started_servers import reporting_waits
from codeneedle.errors import BadInput, CellError
from codeneedle.models.pretrained import path_unless_built_in
from codeneedle.probes.cell_metrics import caches_of
from codeneedle.records.record import Attention, Effective
from codeneedle.sweep.plan import Plan
from codeneedle.sweep.request import Execution, Request
from codeneedle.system.files import cache_folder
from codeneedle.system.inherited_variables import shell_assignment
from codeneedle.system.signals import interrupting_on_end_signals
from codeneedle.text import escape_invisible, size_text

POLL_S = 0.5
"""Seconds between two polls of the server."""

KEY = "CODENEEDLE_API_KEY"
"""Variable with the key that the server is to ask for; a random one without it."""


def serve_until_stopped(
    pair: Pair,
    request: Request,
    execution: Execution,
    console: Console,
    notes: Console,
    *,
    port: int | None = None,
) -> int:
    """
    Serve *pair* until the user stops it, and print how programs reach it.

    Args:
        pair: Cache types.
        request: Model, engine and context.
        execution: Which binary.
        console: Where to show the address.
        notes: Where to show everything else.
        port: Port to listen on; None for a free one.

    Returns:
        The exit code: 0, as the user ends it.

    Raises:
        CodeneedleError: If it does not get ready, runs something else, or ends.
    """
    key = chosen_api_key(os.environ)
    request = replace(request, k_types=(pair.k,), v_types=(pair.v,), probes=())
    fetch_missing_models(notes, map(path_unless_built_in, request.models))
    (plan,) = make_plans(request, execution)
    _refuse_unable_engine(plan, port, key)
    end_and_report_orphans(notes)
    cell = CellSpec(pair, plan.context, thinks=True, port=port, key=key)
    log = cache_folder() / "serving" / f"{plan.model}.{pair.slug}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    try:
        with (
            interrupting_on_end_signals(),
            reporting_waits(partial(say, notes)),
            plan.engine.serving(cell, log=log) as served,
        ):
            if differences := served.differences_from_cell(cell):
                raise mismatch_error(differences)
            print_notes(
                notes, [*_verified_fact_lines(served, plan, cell), f"log: {log}", ENDS]
            )
            if served.address is not None:
                console.print(_shell_exports(served.address), end="", soft_wrap=True)
            while not served.wait_for_end(POLL_S):
                pass
            raise CellError("the server has ended", hint=f"See {log}.")
    except KeyboardInterrupt:
        say(notes, "Stopped.")
    return 0


ENDS = "Ctrl-C ends it"


def chosen_api_key(environment: Mapping[str, str]) -> str:
    """
    The key that the user chose for the server; empty for a random one.

    Raises:
        BadInput: If no header could hold it, or llama-server would take it for several.
    """
    key = environment.get(KEY, "")
    if not (key.isascii() and key.isprintable()) or {" ", ","} & {*key}:
        raise BadInput(
            source=KEY,
            reason="is no key: letters, digits and signs of ASCII, no blank or comma",
            hint="Choose another, or unset it for a random one.",
        )
    return key


def _refuse_unable_engine(plan: Plan, port: int | None, key: str) -> None:
    """
    Stop at an engine that cannot serve programs, or not at the address asked for.

    Raises:
        CodeneedleError: Naming what it lacks.
    """
    engine = plan.engine
    engine.require(Ability.ADDRESS)
    given = [*(["--port"] if port else []), *([KEY] if key else [])]
    if given and Ability.CHOSEN_ADDRESS not in engine.abilities:
        raise BadInput(
            source=" and ".join(given),
            reason=f"the engine {engine.name} has a port and a key of its own",
            hint="Leave it out, or serve the model with llama.cpp.",
        )


def _verified_fact_lines(served: Served, plan: Plan, cell: CellSpec) -> Iterator[str]:
    """What runs, as far as the engine has shown it, and where."""
    is_split = plan.engine.splits_graph
    ran = with_attention_place(
        served.effective(), plan.survey, cell.pair, is_split=is_split
    )
    held = caches_of(ran).cache_bytes_at(cell.context)
    cache = f", KV cache {size_text(round(held))}" if held is not None else ""
    mark = ran.attention.mark if ran.attention else ""
    pair = f"{escape_invisible(str(cell.pair))}{f' ({mark})' if mark else ''}"
    yield f"{pair} is verified{cache}; {cell.context:,} tokens"
    if ran.attention:
        yield _attention_place_phrase(ran)


def _attention_place_phrase(ran: Effective) -> str:
    """Where attention runs, and what tells it."""
    where = {
        Attention.CPU: "on the CPU: this machine has no kernel for the pair",
        Attention.CONVERTED: "in a kernel for f16: K and V are converted at each step",
        Attention.KERNEL: "in a kernel",
        Attention.PLAIN: "without flash attention, which this model does not have",
    }
    told = (
        f" ({escape_invisible(ran.attention_evidence)})"
        if ran.attention_evidence
        else ""
    )
    return f"attention runs {where[ran.attention or Attention.KERNEL]}{told}"


def _shell_exports(address: Address) -> str:
    """The address for a shell, as clients of OpenAI's API read it."""
    variables = {
        "OPENAI_BASE_URL": address.url,
        "OPENAI_API_KEY": address.key or "none",
        "OPENAI_MODEL": address.model,
    }
    return "".join(
        f"export {variable}\n" for variable in map(shell_assignment, variables.items())
    )
