"""Servers for tests: the fake one with its faults, and the real one."""

import contextlib
from dataclasses import replace
from pathlib import Path

from fake_engine import made_weights

from codeneedle.cache_types import Pair
from codeneedle.engines.engine import ModelSpec
from codeneedle.engines.llama_cpp.arguments import Launch
from codeneedle.engines.llama_cpp.engine import LlamaCpp
from codeneedle.engines.llama_cpp.installation import Program, ServerFacts, Tools
from codeneedle.engines.llama_cpp.server import serving_llama

FAKE = Path(__file__).parent / "fake_llama.py"
PAIR = Pair("q8_0", "q4_0")


def made_launch(binary, weights, *, pair=PAIR, context, extra=(), options=(), **spec):
    """What starts *binary* with the model at *weights*; *spec* is the `ModelSpec`."""
    return Launch(
        binary=Program(binary),
        model=ModelSpec(weights=made_weights(path=weights), name="made", **spec),
        alias="made-cell",
        context=context,
        pair=pair,
        extra=tuple(extra),
        options=frozenset(options),
    )


def fake_launch(*faults):
    """What starts the fake server with *faults*: ``"die=3"``."""
    extra = [argument for fault in faults for argument in ("--fake", fault)]
    return made_launch(FAKE, "no.gguf", pair=PAIR, context=4096, extra=extra)


def fake_llama_cpp(*faults, devices=(), options=frozenset(), **spec):
    """The engine that starts the fake server with *faults*."""
    extra = tuple(word for fault in faults for word in ("--fake", fault))
    model = ModelSpec(
        weights=made_weights(path="no.gguf"), name="made", arguments=extra
    )
    return LlamaCpp(
        tools=Tools(server=Program(FAKE), perplexity=None, bench=None, source="PATH"),
        facts=ServerFacts(
            version="0.6.0",
            build=1,
            k_types=("f16",),
            v_types=("q8_0",),
            options=frozenset(options),
            devices=devices,
        ),
        model=replace(model, **spec),
    )


@contextlib.contextmanager
def fake_server(folder, *faults, silence_s=60.0, load_timeout_s=60.0):
    """The fake server with *faults*, its files in *folder*."""
    with serving_llama(
        fake_launch(*faults),
        log=folder / "server.log",
        silence_s=silence_s,
        load_timeout_s=load_timeout_s,
    ) as served:
        yield served
