"""The versions that `make setup` installs."""

import re
import tomllib
from pathlib import Path

from packaging.markers import default_environment
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
PINS = [
    Requirement(line)
    for line in (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
]


def wanted():
    """What the package and its developers need, by ``pyproject.toml``."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project = project["project"]
    extras = project["optional-dependencies"]
    named = [
        *project["dependencies"],
        *extras["dev"],
        *extras["corpora"],
        *extras["docs"],
    ]
    every = map(Requirement, [*named, *extras["mlx"]])
    return [each for each in every if each.name != "codeneedle"]


def spelled(name):
    """*name* as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def test_every_dependency_is_pinned_within_its_bounds():
    for needed in wanted():
        pins = [each for each in PINS if spelled(each.name) == spelled(needed.name)]
        versions = [str(each.specifier).removeprefix("==") for each in pins]

        assert versions, needed
        assert [*needed.specifier.filter(versions)] == versions, needed


def test_each_package_has_one_version_here():
    here = [
        spelled(each.name)
        for each in PINS
        if each.marker is None or each.marker.evaluate(default_environment())
    ]

    assert sorted({*here}) == sorted(here)
    assert all(str(each.specifier).startswith("==") for each in PINS)


def test_no_index_is_named():
    assert [] == [each for each in PINS if each.url]
