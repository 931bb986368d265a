"""The architecture, as a test: imports point down only."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import codeneedle

PACKAGE = Path(codeneedle.__file__).parent

LAYERS: tuple[tuple[str, ...], ...] = (
    # L0, what everybody may import
    (
        "__init__",
        "errors",
        "units",
    ),
    # L1, pure: no I/O, no clock, no unseeded chance
    (
        "anatomy",
        "answers",
        "benchargs",
        "benchlines",
        "briefs",
        "comparability",
        "effective",
        "enough",
        "environment",
        "extracts",
        "fallbacks",
        "gguf_header",
        "gguf_types",
        "grid",
        "hyperparameters",
        "induction",
        "kvmemory",
        "languages",
        "mentions",
        "margins",
        "metrics",
        "mismatches",
        "needles",
        "perplexitylog",
        "phases",
        "prompts",
        "questions",
        "random_bodies",
        "recordfile",
        "records",
        "refusals",
        "replies",
        "request",
        "rounds",
        "scored_rounds",
        "scoring",
        "seal",
        "serverhelp",
        "serverlog",
        "speculation",
    ),
    # L2, one kind of world per module
    (
        "basefile",
        "benchrun",
        "building",
        "cache",
        "cellfiles",
        "childlog",
        "client",
        "clock",
        "corpus",
        "corpusfile",
        "corpustext",
        "devicememory",
        "engine",
        "files",
        "fingerprints",
        "folders",
        "gathering",
        "generating",
        "interrupts",
        "keeping",
        "listening",
        "llamacpp",
        "lock",
        "machine",
        "memoryplan",
        "nano",
        "nanogguf",
        "parts",
        "process",
        "runs",
        "shelf",
        "sourcearchive",
        "sources",
        "store",
        "sweepfile",
        "toolchain",
        "weights",
        "worker",
        "workers",
        "workshop",
    ),
    # L3, the work
    (
        "diagnosis",
        "counting",
        "judging",
        "planning",
        "play",
        "probe",
        "probes",
        "runner",
        "settling",
        "stage",
    ),
    # L4, from records to conclusions
    (
        "frames",
        "report",
        "resampling",
        "stats",
        "view",
    ),
    # L5, all that a person sees while it runs
    (
        "buildscreen",
        "corpusscreen",
        "lasting",
        "screen",
        "sitting",
    ),
    # L6, the command line
    (
        "__main__",
        "cli",
        "corpuscli",
        "machinecli",
        "options",
        "optionvalues",
    ),
)

HEIGHT = {name: level for level, names in enumerate(LAYERS) for name in names}

ONLY: dict[str, set[str]] = {
    "httpx": {"client"},
    "subprocess": {"process"},
    "pandas": {"frames", "report", "stats"},
    "seaborn": {"report"},
    "matplotlib": {"report"},
    "typer": {"cli", "corpuscli", "machinecli", "options", "optionvalues"},
}
"""Libraries that belong to one place."""


def modules() -> Iterator[tuple[str, Path]]:
    """Every module with the name it has in `LAYERS`: its own, or its subpackage's."""
    for path in sorted(PACKAGE.rglob("*.py")):
        yield path.relative_to(PACKAGE).parts[0].removesuffix(".py"), path


def imported(path: Path) -> Iterator[str]:
    """Dotted names that *path* imports, wherever the import stands."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def own(dotted: str) -> str | None:
    """The module of ours that *dotted* names; None for a library."""
    root, _, rest = dotted.partition(".")
    if root != "codeneedle":
        return None
    first = rest.split(".")[0]
    return first if first in HEIGHT else "__init__"


def test_every_module_has_a_layer():
    """
    A new module finds its place before it is used.
    """
    assert [] == sorted({name for name, _ in modules()} - HEIGHT.keys())


def test_modules_only_import_from_their_own_layer_or_below():
    """
    Dependencies point downwards.
    """
    upward = [
        (importer, target)
        for importer, path in modules()
        for dotted in imported(path)
        if (target := own(dotted)) and HEIGHT[importer] < HEIGHT[target]
    ]

    assert [] == sorted(set(upward))


@pytest.mark.parametrize("library", sorted(ONLY))
def test_a_library_stays_in_its_place(library):
    """
    One module knows how to talk to one kind of world.
    """
    strangers = {
        name
        for name, path in modules()
        for dotted in imported(path)
        if dotted.split(".")[0] == library and name not in ONLY[library]
    }

    assert set() == strangers
