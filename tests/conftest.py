"""Fixtures that every test may ask for."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

from codeneedle.engines.llama_cpp import installation
from codeneedle.models.nano import built_in_model

Completed = subprocess.CompletedProcess[str]

# A busy machine is no defect.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declared here, because deeper down pytest would only hear of it too late."""
    parser.addoption(
        "--all-injections",
        action="store_true",
        help="inject faults as often as promised, and print the table",
    )


@pytest.fixture(scope="session")
def llama_server() -> Path:
    """The real llama-server; ``make llama`` builds it where there is none."""
    return installation.find().server


@pytest.fixture(scope="session")
def nano() -> Path:
    """The weights of the built-in model."""
    return built_in_model()


@pytest.fixture
def codeneedle(tmp_path: Path) -> Callable[..., Completed]:
    """Runs the command in an empty folder, as a person without a terminal would."""

    def run(*arguments: str, **variables: str) -> Completed:
        return subprocess.run(
            [sys.executable, "-m", "codeneedle", *arguments],
            cwd=tmp_path,
            env=os.environ | {"COLUMNS": "100", "NO_COLOR": "1"} | variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            check=False,
        )

    return run
