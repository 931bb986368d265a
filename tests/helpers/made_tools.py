"""llama-perplexity and llama-bench with one model, on stand-ins that misbehave."""

import sys
from pathlib import Path

from fake_engine import made_weights
from programs import script

from codeneedle.cache_types import Pair
from codeneedle.engines.engine import ModelSpec
from codeneedle.engines.llama_cpp.bench import Bench
from codeneedle.engines.llama_cpp.installation import Program, ServerFacts, Tools
from codeneedle.engines.llama_cpp.perplexity import Perplexity
from codeneedle.engines.tools import DivergenceTask, ReadingTask, SpeedTask

HERE = Path(__file__).parent
TEXT = "".join(f"line {at}: {at * 7919:x}\n" for at in range(400))
F16 = Pair("f16", "f16")


def made_model(**changes):
    """A `ModelSpec` of the weights of `fake_engine`."""
    return ModelSpec(**{"weights": made_weights(), "name": "made", **changes})


def made_facts(*, build=11434, devices=(), fa_quants=""):
    """What a llama-server of *build* says of itself."""
    return ServerFacts(
        version="0.6.0",
        build=build,
        k_types=(),
        v_types=(),
        options=frozenset(("--verbosity", "--fit", "--poll")),
        devices=devices,
        fa_quants=fa_quants,
    )


def fake_program(folder, name, fault="none"):
    """``llama-perplexity`` or ``llama-bench`` in *folder*, with a *fault*."""
    fake = HERE / f"fake_{name}.py"
    body = f'HOME={folder}; export HOME\nexec {sys.executable} -S {fake} "$FAULT" "$@"'
    body = f"FAULT='{fault}'\n{body}"
    return Program(script(folder / f"llama-{name}", body))


def fake_tools(folder, *, perplexity=None, bench=None):
    """An installation in *folder* with stand-ins."""
    server = Program(folder / "llama-server")
    return Tools(server=server, perplexity=perplexity, bench=bench, source="PATH")


def made_perplexity(folder, fault="none", *, build=11434, **changes):
    """A `Perplexity` whose program has a *fault*; *changes* are the model's."""
    program = fake_program(folder, "perplexity", fault)
    tools = fake_tools(folder, perplexity=program)
    return Perplexity.ask_installed_tool(
        tools, made_facts(build=build), made_model(**changes)
    )


def made_bench(folder, fault="none", *, devices=(), **changes):
    """A `Bench` whose program has a *fault*; *changes* are the model's."""
    tools = fake_tools(folder, bench=fake_program(folder, "bench", fault))
    return Bench.of_checked_installation(
        tools, made_facts(devices=devices), made_model(**changes)
    )


def divergence_task(folder, pair="f16/f16", **changes):
    """A pair to be compared with f16/f16 on `TEXT`, in the run *folder*."""
    wanted = {
        "pair": Pair.parse(pair),
        "reference": F16,
        "context": 512,
        "chunks": 4,
        "text": TEXT.encode(),
        "text_name": "made-corpus",
        "weights_sha256": "ab" * 32,
        "folder": folder,
    }
    return DivergenceTask(**{**wanted, **changes})


def reading_task(folder, pair="f16/f16", **changes):
    """Tokens of a chunk as the stand-in reads it, in the run *folder*."""
    wanted = {
        "pair": Pair.parse(pair),
        "ids": (0,) * 512,
        "wanted": (257, 300, 511),
        "text": TEXT.encode(),
        "text_name": "made-corpus",
        "folder": folder,
    }
    return ReadingTask(**{**wanted, **changes})


def speed_task(**changes):
    """A small test of speed."""
    wanted = {
        "pair": Pair("q8_0", "q4_0"),
        "depth": 64,
        "prompt_tokens": 512,
        "generated_tokens": 128,
        "repetitions": 2,
    }
    return SpeedTask(**{**wanted, **changes})


def asked(folder):
    """What the stand-in of llama-perplexity in *folder* was started for, in order."""
    path = folder / "asked"
    return path.read_text().splitlines() if path.exists() else []
