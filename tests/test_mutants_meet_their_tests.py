"""Which tests a mutant is run against."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "scripts"))
from executed import Executed  # noqa: E402 - found in the folder just added

pytestmark = pytest.mark.slow

PURE = '''\
"""A module."""

import functools

BASE = 2
LIMIT = BASE * 3
TOLD = 5


@functools.cache
def twice(
    number,
    by=2,
):
    return number * by


def is_much(number):
    if (
        number
        > LIMIT
    ):
        return True
    return False


def unused():
    return 0
'''

TESTS = """\
import pytest
from codeneedle.pure import TOLD, is_much, twice


@pytest.fixture(scope="module")
def made():
    return is_much(1)


def test_first():
    assert twice(2) == 4


def test_second():
    assert twice(2) == 4


def test_made(made):
    assert not made


def test_made_before(made):
    assert not made


def test_much():
    assert is_much(9)


def test_told():
    assert TOLD == 5


def test_failing():
    assert twice(2) == 5
"""


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """What tests of a small package execute: they run in a process of their own."""
    root = tmp_path_factory.mktemp("project")
    (root / "codeneedle").mkdir()
    (root / "codeneedle" / "__init__.py").touch()
    (root / "codeneedle" / "pure.py").write_text(PURE)
    (root / "test_pure.py").write_text(TESTS)
    (root / "pytest.ini").write_text("[pytest]\nmarkers = real\npythonpath = .\n")
    call = (
        f"import sys; sys.path[:0] = [{str(ROOT / 'scripts')!r}, '.']\n"
        "import executed, pathlib\n"
        "executed.record(['test_pure.py'], pathlib.Path('kept.json'))"
    )
    subprocess.run([sys.executable, "-c", call], cwd=root, check=True, stdout=-3)
    return Executed.read(root, [root / "kept.json"])


@pytest.mark.parametrize(
    ("line", "tests"),
    [
        ("return number * by", {"first", "second"}),
        ("by=2", {"first", "second"}),
        ("return False", {"made", "made_before"}),
        ("return True", {"much"}),
        ("> LIMIT", {"made", "made_before", "much"}),
        ("LIMIT = BASE * 3", {"made", "made_before", "much"}),
        ("BASE = 2", {"made", "made_before", "much"}),
        ("TOLD = 5", {"told"}),
        ("return 0", set()),
    ],
)
def test_a_mutant_runs_against_the_tests_that_execute_its_line(executed, line, tests):
    """A cache hides none, a shared fixture counts for all, a constant by its uses."""
    row = 1 + [each.strip().strip(",") for each in PURE.splitlines()].index(line)
    first, then = executed.steps("codeneedle/pure.py", row, 60)

    assert {f"test_pure.py::test_{name}" for name in tests} == {
        *first.tests,
        *then.tests,
    }


def test_tests_that_fail_without_a_mutant_are_left_out(executed):
    assert ["test_pure.py::test_failing"] == executed.failed


def test_the_quickest_tests_come_first_and_those_out_of_time_are_left_out(tmp_path):
    (tmp_path / "codeneedle").mkdir()
    (tmp_path / "codeneedle" / "pure.py").write_text(PURE)
    row = 1 + PURE.splitlines().index("    return number * by")
    seconds = {"a.py::long": 5.0, "a.py::longest": 9.0, "b.py::short": 0.1}
    found = {
        "seconds": seconds,
        "files": {"a.py": 0.5, "b.py": 0.5},
        "failed": [],
        "executed": {"codeneedle/pure.py": {str(row): hex(0b111)}},
    }
    executed = Executed(tmp_path, [found])
    first, then = executed.steps("codeneedle/pure.py", row, 10.0)

    assert (["b.py::short"], 0.6) == (first.tests, first.takes_s)
    assert (["a.py::long"], 5.5, 1) == (then.tests, then.takes_s, then.left_out)
