"""
Which tests execute a line of the package, and how long each computes: for mutants.

Tests are run once, with coverage, each in a context of its own. A fixture that several
tests share has one, too: what it executes is executed by all of them. What processes
that a test starts execute is not seen.

A line that runs at import belongs to no test: the tests of such a line are those that
execute the function whose header it is in, those that use a name that it helps to
define, and those that execute a line of the package in which such a name stands.
"""

import ast
import functools
import json
import math
import operator
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import coverage
import pytest

PACKAGE = "codeneedle"

QUICK = 0.1
"""Part of the seconds for tests that run first: files of the others are not read."""

Line = tuple[str, int]
"""Path of a module from the root, and a number from 1."""

Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = Function | ast.ClassDef | ast.Assign | ast.AnnAssign


def computed_s() -> float:
    """
    Seconds that this process and those that it has waited for have computed.

    What else runs on the machine does not change them.
    """
    return math.fsum(os.times()[:4])


class Recorder:
    """Tells coverage which test runs, and notes seconds of tests and of their files."""

    def __init__(self, measured: coverage.Coverage) -> None:
        self.measured = measured
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.files: defaultdict[str, float] = defaultdict(float)
        self.failed: set[str] = set()
        self.shared: defaultdict[str, list[str]] = defaultdict(list)
        self._caches: list[Any] = []
        self._now = ""

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> Iterator[None]:
        """Note what the file takes."""
        began = computed_s()
        try:
            return (yield)
        finally:
            self.files[collector.nodeid.split("::")[0]] += computed_s() - began

    def pytest_collection_finish(self) -> None:
        """Find the caches of the modules that tests have imported."""
        modules = [
            module
            for name, module in sys.modules.items()
            if name.split(".")[0] == PACKAGE
        ]
        values = [value for module in modules for value in vars(module).values()]
        self._caches = [each for each in values if hasattr(each, "cache_clear")]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Empty the caches: a test executes what it calls, as the first one does."""
        for each in self._caches:
            each.cache_clear()
        for name in getattr(item, "fixturenames", ()):
            self.shared[name].append(item.nodeid)
        self._switch(item.nodeid)
        began = computed_s()
        try:
            return (yield)
        finally:
            self.seconds[item.nodeid] += computed_s() - began

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
    ) -> Iterator[None]:
        """Give a fixture that is made once for several tests its own context."""
        if fixturedef.scope == "function":
            return (yield)
        before = self._now
        where = getattr(request.node, "nodeid", "").strip(".")
        self._switch(f"{fixturedef.argname} of {where}")
        try:
            return (yield)
        finally:
            self._switch(before)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note whether a test fails."""
        if report.failed:
            self.failed.add(report.nodeid)

    def _switch(self, context: str) -> None:
        self._now = context
        self.measured.switch_context(context)

    def tests_in(self, context: str) -> list[str]:
        """The test, or those that share the fixture."""
        name, of, where = context.partition(" of ")
        if context in self.seconds or not of:
            return [context] * bool(context)
        return [test for test in self.shared[name] if test.startswith(where)]


def record(files: Sequence[str], kept: Path) -> int:
    """
    Run the tests of *files* in the current folder, and keep what they execute.

    Returns:
        The exit code of pytest.
    """
    measured = coverage.Coverage(data_file=None, source_pkgs=[PACKAGE])
    recorder = Recorder(measured)
    measured.start()
    code = int(pytest.main([*OPTIONS, *files], plugins=[recorder]))
    measured.stop()
    data, root = measured.get_data(), Path.cwd()
    places = {test: place for place, test in enumerate(recorder.seconds)}

    @functools.cache
    def bits(context: str) -> int:
        return _union(1 << places[test] for test in recorder.tests_in(context))

    executed = {
        str(Path(name).relative_to(root)): {
            row: hex(_union(map(bits, contexts)))
            for row, contexts in data.contexts_by_lineno(name).items()
        }
        for name in data.measured_files()
    }
    found = {
        "seconds": recorder.seconds,
        "files": recorder.files,
        "failed": sorted(recorder.failed),
        "executed": executed,
    }
    kept.write_text(json.dumps(found), encoding="utf-8")
    return code


def _union(sets: Iterable[int]) -> int:
    """Of sets of tests: in a number, bit N stands for test N."""
    return functools.reduce(operator.or_, sets, 0)


OPTIONS = [
    *("-q", "-m", "not real", "-p", "no:cacheprovider", "--hypothesis-seed=0"),
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),  # of what is loaded
]


class Chosen:
    """Of what pytest has collected, these tests, in this order."""

    def __init__(self, tests: Sequence[str]) -> None:
        self._places = {test: place for place, test in enumerate(tests)}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave out the others."""
        found = [each for each in items if each.nodeid in self._places]
        items[:] = sorted(found, key=lambda each: self._places[each.nodeid])


def run(tests: Sequence[str]) -> int:
    """
    Run *tests* in the current folder until one fails.

    Returns:
        The exit code of pytest.
    """
    files = list(dict.fromkeys(test.split("::")[0] for test in tests))
    return int(pytest.main([*OPTIONS, "-x", *files], plugins=[Chosen(tests)]))


def statements(tree: ast.AST) -> Iterator[tuple[ast.stmt, range]]:
    """Each statement with its lines, of a compound one those before its body."""
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            last = body[0].lineno - 1 if body else node.end_lineno or node.lineno
            decorators = getattr(node, "decorator_list", ())
            first = min([node.lineno, *(each.lineno for each in decorators)])
            yield node, range(first, max(first, last) + 1)


class Source:
    """A module of the package: statements by line, and what is defined around them."""

    def __init__(self, text: str) -> None:
        self.tree = ast.parse(text)
        self._lines = [*statements(self.tree)]
        functions = [each for each, _ in self._lines if isinstance(each, Function)]
        self._in_functions = {row for each in functions for row in _body(each)}

    def statement(self, row: int) -> range:
        """Lines of the smallest statement at *row*."""
        found = [lines for _, lines in self._lines if row in lines]
        return min(found, key=len, default=range(row, row + 1))

    def runs_at_import(self, row: int) -> bool:
        """Whether *row* is in no body of a function."""
        return row not in self._in_functions

    def headed(self, row: int) -> range:
        """Lines of the function whose header has *row*; none if there is no such."""
        for node, lines in self._lines:
            if isinstance(node, Function) and row in lines:
                return _body(node)
        return range(0)

    def defined(self, row: int) -> set[str]:
        """Names that the statements around *row* define."""
        return {
            name
            for node, _ in self._lines
            if isinstance(node, Definition)
            and node.lineno <= row <= (node.end_lineno or node.lineno)
            for name in _names(node)
        }

    def mentions(self) -> Iterator[tuple[str, int]]:
        """Each name that is used, with its line."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                yield node.id, node.lineno
            elif isinstance(node, ast.Attribute):
                yield node.attr, node.end_lineno or node.lineno


def _body(function: Function) -> range:
    return range(function.body[0].lineno, (function.end_lineno or 0) + 1)


def _names(node: Definition) -> Iterator[str]:
    if isinstance(node, Function | ast.ClassDef):
        yield node.name
        return
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    for target in targets:
        for each in ast.walk(target):
            if isinstance(each, ast.Name):
                yield each.id


@dataclass(frozen=True, slots=True)
class Choice:
    """Tests for a change of a line."""

    tests: Sequence[str]  # in the order in which they are to run
    takes_s: float
    left_out: int  # for want of time


class Executed:
    """What a run of all tests in the project at *root* has shown."""

    def __init__(self, root: Path, found: Iterable[Mapping[str, Any]]) -> None:
        self.failed: list[str] = []
        self._root = root
        self._tests: list[str] = []
        self._seconds: dict[str, float] = {}
        self._files: defaultdict[str, float] = defaultdict(float)
        self._lines: Counter[Line] = Counter()
        for part in found:
            for path, lines in part["executed"].items():
                for row, tests in lines.items():
                    self._lines[path, int(row)] |= int(tests, 16) << len(self._tests)
            self._tests += part["seconds"]
            self._seconds |= part["seconds"]
            for file, spent_s in part["files"].items():
                self._files[file] += spent_s
            self.failed += part["failed"]
        for test in self.failed:
            self._seconds.pop(test, None)

    @classmethod
    def read(cls, root: Path, kept: Iterable[Path]) -> Self:
        """What `record` has kept."""
        return cls(root, [json.loads(each.read_text("utf-8")) for each in kept])

    def __len__(self) -> int:
        return len(self._seconds)

    def steps(self, path: str, row: int, most_s: float) -> tuple[Choice, Choice]:
        """
        Tests that execute the line, of at most so many seconds, and the first of them.

        Of a line that runs at import, the nearest ones come first; else the quickest.
        The seconds that pytest takes to read their files are counted, too.
        """
        tests = self._in_order(path, row)
        first = self._choice(tests, QUICK * most_s)
        known = frozenset(first.tests)
        others = [test for test in tests if test not in known]
        return first, self._choice(others, most_s - first.takes_s)

    def _choice(self, ordered: Sequence[str], most_s: float) -> Choice:
        tests: list[str] = []
        left_out, spent_s, files = 0, 0.0, set[str]()
        for test in ordered:
            file = test.split("::")[0]
            takes_s = self._seconds[test] + self._files[file] * (file not in files)
            if spent_s + takes_s > most_s:
                left_out += 1
                continue
            spent_s += takes_s
            files.add(file)
            tests.append(test)
        return Choice(tests, spent_s, left_out)

    def _in_order(self, path: str, row: int) -> list[str]:
        known: dict[str, None] = {}
        for found in self._by_nearness(path, row):
            tests = [self._tests[place] for place in _places(found)]
            passed = [test for test in tests if test in self._seconds]
            known |= dict.fromkeys(sorted(passed, key=self._seconds.__getitem__))
        return list(known)

    def _by_nearness(self, path: str, row: int) -> Iterator[int]:
        source = self._sources[path]
        if not source.runs_at_import(row):
            exact = self._lines[path, row]
            yield exact or self._of_lines(path, source.statement(row))
            return
        yield self._of_lines(path, source.headed(row))
        seen, names = set[str](), source.defined(row)
        while names:
            seen |= names
            lines = [line for name in names for line in self._mentions[name]]
            later = [line for line in lines if self._runs_at_import(line)]
            yield _union(self._naming(name) for name in names)
            yield _union(self._lines[line] for line in {*lines} - {*later})
            names = {
                name for where, at in later for name in self._sources[where].defined(at)
            } - seen

    def _naming(self, name: str) -> int:
        """Tests that use *name*: in their function, or for all of their file."""
        return _union(self._by_place[user] for user in self._users[name])

    @functools.cached_property
    def _by_place(self) -> Mapping[str, int]:
        """Of each file, and of each function in it, its tests."""
        found: Counter[str] = Counter()
        for place, test in enumerate(self._tests):
            found[test.split("::")[0]] |= 1 << place
            found[test.split("[")[0]] |= 1 << place
        return found

    @functools.cached_property
    def _users(self) -> Mapping[str, set[str]]:
        """Of each name, the tests that use it, and the files that do so outside."""
        found: defaultdict[str, set[str]] = defaultdict(set)
        for file in {test.split("::")[0] for test in self._tests}:
            source = Source((self._root / file).read_text("utf-8"))
            for name, row in source.mentions():
                tests = {
                    each for each in source.defined(row) if each.startswith("test_")
                }
                found[name] |= {f"{file}::{test}" for test in tests} or {file}
        return found

    def _runs_at_import(self, line: Line) -> bool:
        path, row = line
        return self._sources[path].runs_at_import(row)

    def _of_lines(self, path: str, rows: Iterable[int]) -> int:
        return _union(self._lines[path, row] for row in rows)

    @functools.cached_property
    def _sources(self) -> Mapping[str, Source]:
        return {
            str(path.relative_to(self._root)): Source(path.read_text("utf-8"))
            for path in sorted((self._root / PACKAGE).rglob("*.py"))
        }

    @functools.cached_property
    def _mentions(self) -> Mapping[str, list[Line]]:
        found: defaultdict[str, list[Line]] = defaultdict(list)
        for path, source in self._sources.items():
            for name, row in source.mentions():
                found[name].append((path, row))
        return found


def _places(tests: int) -> Iterator[int]:
    """Those of the bits that are set."""
    while tests:
        lowest = tests & -tests
        yield lowest.bit_length() - 1
        tests -= lowest
