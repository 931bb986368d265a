"""Fixtures of the tests of divergence."""

import pytest
from fake_tools import FakeDivergence, ToolEngine
from made_contexts import run_context
from made_divergences import TEXT
from made_records import made_setup

from codeneedle.probes.divergence.probe import NAME, DivergenceSettings


@pytest.fixture
def made_run(tmp_path):
    """Makes the context of a run with a fake tool; *chosen* are settings."""

    def made(tool=None, *, corpus=TEXT, stretched=False, changes=(), **chosen):
        chosen = {"contexts": (512,), **chosen}
        facts = {
            "setup": made_setup(types_k=("f16", "q8_0", "q4_0")),
            "text": corpus,
            "settings": {NAME: DivergenceSettings(**chosen)},
            **dict(changes),
        }
        tool = tool or FakeDivergence()
        engine = ToolEngine(divergence=tool, stretches_context=stretched)
        return run_context(tmp_path / "run", engine, **facts)

    return made
