"""Servers for tests: the fake one with its faults, and the real one."""

import contextlib
from pathlib import Path

from codeneedle.engines.llama_cpp.server import Launch, serving
from codeneedle.grid import Pair

FAKE = Path(__file__).parent / "fake_llama.py"
PAIR = Pair("q8_0", "q4_0")


def fake_launch(*faults, pair=PAIR, context=4096):
    """What starts the fake server with *faults*: ``"die=3"``."""
    extra = [argument for fault in faults for argument in ("--fake", fault)]
    return Launch(
        binary=FAKE,
        weights=Path("no.gguf"),
        alias="fake-cell",
        context=context,
        pair=pair,
        extra=tuple(extra),
    )


@contextlib.contextmanager
def fake_server(folder, *faults, silence_s=60.0, load_timeout_s=60.0):
    """The fake server with *faults*, its files in *folder*."""
    with serving(
        fake_launch(*faults),
        log=folder / "server.log",
        folder=folder,
        silence_s=silence_s,
        load_timeout_s=load_timeout_s,
    ) as served:
        yield served
