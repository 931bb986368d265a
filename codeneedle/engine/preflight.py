"""Asks a server, before its cell, whether it has attention for a pair where it runs."""

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from codeneedle.engine.launch import Launch
from codeneedle.engine.llama_server import serving
from codeneedle.engine.logfile import read_log
from codeneedle.errors import CellError
from codeneedle.grid import Pair
from codeneedle.serverlog import Trouble, fallback

CONTEXT = 256
"""Tokens; the least that a server takes."""

ASKED_FOR = frozenset({"f32", "f16", "bf16"})
"""Types of V for which a build asks itself whether it has attention."""

EVERYWHERE = frozenset({"f16", "bf16"})
"""Those of them that every build has attention for, if K is of the same type."""

_CACHE_ON_HOST = frozenset({"-nkvo", "--no-kv-offload"})
_NO_WARMUP = "--no-warmup"


def in_doubt(pair: Pair, *, devices: Sequence[str], extra: Sequence[str]) -> bool:
    """
    Whether a preflight can tell that attention of *pair* leaves the accelerator.

    It tells nothing where V is quantized, see `preflight`.

    Args:
        pair: The cache types.
        devices: The accelerators that the binary sees.
        extra: A person's arguments for the server; who asks for a cache on the
            host gets attention there.
    """
    if not devices or _CACHE_ON_HOST & set(extra) or pair.v not in ASKED_FOR:
        return False
    return pair.k != pair.v or pair.k not in EVERYWHERE


def preflight(launch: Launch, *, log: Path, folder: Path | None) -> Trouble | None:
    """
    What a server of *launch* would do instead of fast attention; None if nothing.

    With flash attention on, nobody asks whether the accelerator has it for these
    types, and the processor takes over unseen. Where the server may choose, it asks
    itself and says so. That is at loading: nothing is computed.

    Later builds ask nobody where V is quantized, as they turn flash attention on for
    it; of those pairs only the parts of the graph and the speed tell, and only beside
    another pair's (`fallbacks.suspects`).

    Args:
        launch: The cell's own.
        log: Receives what the server says. Overwritten.
        folder: Of the run; keeps a note of the server while it lives.

    Raises:
        MachineError: If the server cannot be started, noted or stopped.
    """
    quick = (_NO_WARMUP,) if _NO_WARMUP in launch.options else ()
    asking = replace(
        launch,
        context=CONTEXT,
        flash_attention="auto",
        extra=(*launch.extra, *quick),
    )
    # With attention gone it often ends at once, and never is what a cell asks for.
    with contextlib.suppress(CellError), serving(asking, log=log, folder=folder):
        pass
    return fallback(read_log(log))
