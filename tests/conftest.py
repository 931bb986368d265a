"""Fixtures that every test may ask for."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def llama_server() -> Path:
    """The real llama-server."""
    return Path("/tmp/x/b/bin/llama-server")


@pytest.fixture(scope="session")
def nano() -> Path:
    """The weights of the built-in model."""
    return Path("/work/shared/nano/needle-nano.gguf")
