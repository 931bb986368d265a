"""Fixtures that every test may ask for."""

from pathlib import Path

import pytest

from codeneedle.nano import built_in_model


@pytest.fixture(scope="session")
def llama_server() -> Path:
    """The real llama-server."""
    return Path("/tmp/x/b/bin/llama-server")


@pytest.fixture(scope="session")
def nano() -> Path:
    """The weights of the built-in model."""
    return built_in_model()
