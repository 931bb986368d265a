"""Functions are verbs with objects or nouns; variables and docstrings say what is."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "codeneedle"

MOST = {"participle": 10, "each": 377, "docstring": 0}
"""By kind of name, how many the package may have; to be lowered as some go."""

PARTICIPLES = frozenset(
    [
        "told",
        "shown",
        "known",
        "sent",
        "made",
        "found",
        "kept",
        "taken",
        "given",
        "held",
        "built",
        "begun",
        "done",
        "said",
        "seen",
        "written",
        "drawn",
        "brought",
        "chosen",
        "driven",
        "fallen",
        "grown",
        "heard",
        "hidden",
        "lost",
        "meant",
        "met",
        "paid",
        "spoken",
        "taught",
        "thought",
        "thrown",
        "understood",
        "worn",
        "won",
        "bound",
        "grown",
    ]
)
"""Those that do not end in -ed."""

NOUNS = frozenset({"need", "seed", "speed", "feed"})


def is_participle(name: str) -> bool:
    """Whether a function's *name* is one word that does not say what is done."""
    word = name.strip("_")
    is_regular = word.endswith("ed") and word not in NOUNS
    return "_" not in word and (is_regular or word in PARTICIPLES)


def findings(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Each name and docstring of *tree* that says little, with its kind."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and is_participle(node.name):
            yield "participle", node.name
        if isinstance(node, ast.Name) and node.id == "each":
            if isinstance(node.ctx, ast.Store):
                yield "each", node.id
        elif isinstance(node, ast.arg) and node.arg == "each":
            yield "each", node.arg
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
            text = ast.get_docstring(node) or ""
            if re.match(r"(As|Of|That)\b", text):
                yield "docstring", text.partition("\n")[0]


def test_no_more_names_and_docstrings_say_little():
    found = [
        finding
        for path in sorted(PACKAGE.rglob("*.py"))
        for finding in findings(ast.parse(path.read_text(encoding="utf-8")))
    ]
    counts = {kind: sum(kind == what for what, _ in found) for kind in MOST}
    over = {kind: count for kind, count in counts.items() if count > MOST[kind]}

    assert {} == over, [name for kind, name in found if kind in over]


def test_a_name_that_says_little_is_found():
    code = """
def _told(each):
    'As of another one.'
    return [each for each in names if each]

def seed_of(name):
    'The seed of a name.'
"""

    kinds = [kind for kind, _ in findings(ast.parse(code))]
    assert {"participle": 1, "each": 2, "docstring": 1} == {
        kind: kinds.count(kind) for kind in MOST
    }
