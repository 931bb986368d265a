"""
Fixtures of the fault campaign, and the table of what was injected and what it cost.

A test notes each injection with ``ledger.note(...)``, and asks `times` how often to
inject: rarely in ``make test``, often in ``make faults``
(``pytest tests/faults --all-injections``). What is marked ``full`` runs there alone.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from injections import SHORT, Aftermath, Folder, Injection, put_corpus
from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Ledger:
    """Faults that were injected; one that cost something fails its test."""

    injections: list[Injection]

    def note(self, fault: str, saw: str = "", *, of: Folder | None = None) -> None:
        """Note *fault*, what the user *saw* of it, and what it cost the folder *of*."""
        after = of.aftermath() if of else Aftermath()
        self.add(Injection(fault=fault, saw=saw, aftermath=after))

    def add(self, injection: Injection) -> None:
        """Note *injection*, and assert that it has cost nothing."""
        self.injections.append(injection)
        assert Aftermath() == injection.aftermath, injection


INJECTIONS = pytest.StashKey[dict[str, list[Injection]]]()
"""By what the file of the test promises."""


def pytest_configure(config: pytest.Config) -> None:
    config.stash[INJECTIONS] = {}


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Leave out what is injected in the full form alone."""
    if config.getoption("--all-injections"):
        return
    left_out = [item for item in items if item.get_closest_marker("full")]
    items[:] = [item for item in items if item not in {*left_out}]
    config.hook.pytest_deselected(items=left_out)


@pytest.fixture
def ledger(request: pytest.FixtureRequest) -> Ledger:
    """Where injections are noted, under the name of the test file."""
    promise = request.path.stem.removeprefix("test_").replace("_", " ")
    return Ledger(request.config.stash[INJECTIONS].setdefault(promise, []))


@pytest.fixture
def times(request: pytest.FixtureRequest) -> Callable[..., int]:
    """How often to inject: ``times(200, quick=6)``."""

    def chosen(often: int, *, quick: int) -> int:
        return often if request.config.getoption("--all-injections") else quick

    return chosen


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """A working folder with a corpus by the name of tiny."""
    put_corpus(tmp_path, of=SHORT)
    return Folder(tmp_path)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    injections = config.stash[INJECTIONS]
    if not injections or not config.getoption("--all-injections"):
        return
    console = Console(file=terminalreporter._tw._file, width=140)
    console.print(_table(injections))


def _table(injections: dict[str, list[Injection]]) -> Table:
    table = Table(title="Faults injected", title_justify="left", box=None)
    table.add_column("fault", max_width=44)
    table.add_column("times", justify="right")
    table.add_column("what the user saw", max_width=60)
    for heading in ("cells lost", "files damaged", "processes left"):
        table.add_column(heading, justify="right")
    for promise, alike in injections.items():
        table.add_row(f"[bold]{promise}[/bold]")
        for fault in dict.fromkeys(found.fault for found in alike):
            table.add_row(*_row([found for found in alike if found.fault == fault]))
    everything = [found for alike in injections.values() for found in alike]
    table.add_row("[bold]in total[/bold]", *_counts(everything))
    return table


def _row(alike: list[Injection]) -> tuple[str, ...]:
    seen = list(dict.fromkeys(found.saw for found in alike))
    more = f" (and {len(seen) - 1} other wordings)" if len(seen) > 1 else ""
    times, nothing, *costs = _counts(alike)
    saw = (seen[0] or "nothing") + more
    return (alike[0].fault, times, nothing or saw.replace("[", r"\["), *costs)


def _counts(injections: list[Injection]) -> tuple[str, ...]:
    after = [found.aftermath for found in injections]
    return (
        str(len(injections)),
        "",
        str(sum(found.cells_lost for found in after)),
        str(sum(found.files_damaged for found in after)),
        str(sum(found.processes_left for found in after)),
    )
