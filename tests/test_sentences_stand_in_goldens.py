"""Tests assert kinds and facts; sentences stand in goldens, each in one place."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent

WORDS = 4
"""From so many words on, a text is a sentence."""

MOST = 900
"""Sentences that tests may have; to be lowered as some go."""


def sentences(tree: ast.Module) -> Iterator[str]:
    """The texts that tests of *tree* assert, or match errors with."""
    for test in ast.walk(tree):
        if isinstance(test, ast.FunctionDef) and test.name.startswith("test_"):
            for node in ast.walk(test):
                if isinstance(node, ast.Assert):
                    yield from texts_in(node.test)
                elif isinstance(node, ast.keyword) and node.arg == "match":
                    yield from texts_in(node.value)


def texts_in(expression: ast.expr) -> Iterator[str]:
    for node in ast.walk(expression):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            words = re.findall(r"[A-Za-z]+", node.value)
            if len(words) >= WORDS:
                yield node.value


def count_of(file: Path) -> int:
    return len([*sentences(ast.parse(file.read_text(encoding="utf-8")))])


def test_tests_get_no_more_sentences():
    counts = {file.name: count_of(file) for file in HERE.rglob("test_*.py")}
    first = sorted(counts, key=counts.__getitem__, reverse=True)[:5]

    assert sum(counts.values()) <= MOST, f"most stand in {', '.join(first)}"


def test_a_sentence_is_found_where_it_is_asserted_or_matched():
    code = """
def test_it():
    name = "this is asserted by nothing"
    assert "three words only" in name
    assert "four words and more" in name
    with pytest.raises(ValueError, match="it is none of these"):
        fail()
"""

    assert 2 == len([*sentences(ast.parse(code))])
