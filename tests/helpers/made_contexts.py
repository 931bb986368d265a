"""Runs that probes are given: on a fake engine, or on the real llama.cpp."""

from dataclasses import replace
from pathlib import Path

from fake_engine import ByteTokenizer, FakeEngine, made_weights
from made_records import made_setup

from codeneedle.corpora.registry import load
from codeneedle.engines.engine import ModelSpec
from codeneedle.engines.llama_cpp import installation
from codeneedle.engines.llama_cpp.engine import LlamaCpp
from codeneedle.engines.llama_cpp.installation import Program
from codeneedle.models.pretrained import checked_built_in_path
from codeneedle.models.weights import read_weights_from_headers
from codeneedle.probes.cell import Preparation, RunContext
from codeneedle.probes.estimates import Estimates
from codeneedle.probes.prompts import PromptForm, Prompts


def run_context(folder, engine=None, **changes):
    """A run in *folder* with made weights and a made setup."""
    facts = {
        "engine": engine or FakeEngine(),
        "weights": made_weights(),
        "is_built_in": False,
        "setup": made_setup(),
        "text": "",
        "settings": {},
        "folder": folder,
    }
    return RunContext(**{**facts, **changes})


def stored_by(probe, run):
    """What the setup of *run* stores of *probe*, by what the user chose for it."""
    return probe.as_stored(
        run.chosen_or_default_settings(probe.settings, probe.name), run
    )


def made_outlook(**changes):
    """What is known before a run on a fake engine, for `Probe.adapt`."""
    facts = {
        "corpus": load("random-bodies-mini"),
        "context": 4096,
        "engine": FakeEngine(),
        "weights": made_weights(),
        "is_built_in": False,
        "folder": Path(),
        "seed": 42,
        "prompt_form": PromptForm.COMPLETION,
    }
    return Estimates(**{**facts, **changes})


def made_preparation():
    """What probes choose from before the first cell: a whole text, by bytes."""
    corpus = load("random-bodies-mini")
    return Preparation(
        corpus=corpus,
        whole=corpus,
        trained=None,
        prompts=lambda: Prompts(ByteTokenizer(), PromptForm.COMPLETION),
        notes=[],
    )


def real_context(folder, *, tools=None, arguments=(), **changes):
    """A run of the built-in model on the real llama.cpp, with other *tools*."""
    found = installation.locate_tools()
    header = read_weights_from_headers(checked_built_in_path())
    engine = LlamaCpp(
        tools=replace(found, **{n: Program(p) for n, p in (tools or {}).items()}),
        facts=installation.ask_server_facts(found.server),
        model=ModelSpec(
            weights=header, name="needle-nano", is_tiny=True, arguments=arguments
        ),
    )
    return run_context(folder, engine, weights=header, is_built_in=True, **changes)
