"""Tests assert kinds and facts; what the program says stands in goldens."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent

LEAST_WORDS = 4
"""From so many words in a line on, a text is a sentence."""

WORD = re.compile(r"[(\"'\[]*[A-Za-z][A-Za-z'-]*[)\].,:;?!\"']*")

TEXT_METHODS = {
    "count",
    "endswith",
    "find",
    "findall",
    "fullmatch",
    "index",
    "partition",
    "rpartition",
    "removeprefix",
    "removesuffix",
    "search",
    "split",
    "startswith",
}
"""Methods whose arguments are compared with a text."""


def is_sentence(text: str) -> bool:
    counts = (sum(map(bool, map(WORD.fullmatch, x.split()))) for x in text.splitlines())
    return max(counts, default=0) >= LEAST_WORDS


def compared(node: ast.AST | None) -> Iterator[ast.expr]:
    """The literals and names of an assertion that something is compared with."""
    match node:
        case ast.Constant() | ast.Name():
            yield node
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) as call:
            if isinstance(call.func, ast.Attribute):
                yield from compared(call.func.value)
            is_compared = name in TEXT_METHODS or name.lstrip("_")[:1].isupper()
            for argument in [*call.args, *(word.value for word in call.keywords)]:
                is_loop = isinstance(argument, ast.GeneratorExp | ast.ListComp)
                if is_compared or is_loop:
                    yield from compared(argument)
        case ast.comprehension():
            for condition in node.ifs:
                yield from compared(condition)
        case None | ast.Call() | ast.Lambda():
            pass
        case _:
            for child in ast.iter_child_nodes(node):
                yield from compared(child)


def columns(test: ast.FunctionDef) -> Iterator[tuple[str, ast.expr]]:
    """Each value that a test gets by ``parametrize``, with the name that it gets."""
    for decorator in test.decorator_list:
        match decorator:
            case ast.Call(
                func=ast.Attribute(attr="parametrize"),
                args=[names, ast.List(elts=rows) | ast.Tuple(elts=rows), *_],
            ):
                given = ast.literal_eval(names)
                many = given.split(",") if isinstance(given, str) else [*given]
                for row in rows:
                    match row:
                        case ast.Call(args=values):
                            pass
                        case ast.Tuple(elts=values) if len(many) > 1:
                            pass
                        case _:
                            values = [row]
                    yield from zip(map(str.strip, many), values, strict=False)


def assigned(body: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Each literal to which a name is set."""
    for node in ast.walk(body):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if isinstance(
                value, ast.Constant | ast.JoinedStr | ast.Tuple | ast.List | ast.Dict
            ):
                yield name, value


def literals_compared(test: ast.FunctionDef) -> Iterator[ast.expr]:
    """What *test* asserts or matches errors with, and what its names stand for."""
    found: list[ast.expr] = []
    for node in ast.walk(test):
        if isinstance(node, ast.Assert):
            found += compared(node.test)
        elif isinstance(node, ast.keyword) and node.arg == "match":
            found += compared(node.value)
    names = {node.id for node in found if isinstance(node, ast.Name)}
    for name, value in [*columns(test), *assigned(test)]:
        if name in names:
            found += compared(value)
    yield from {id(node): node for node in found}.values()


def sentences(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and text of what tests of *tree* assert, or match errors with."""
    for test in ast.walk(tree):
        if isinstance(test, ast.FunctionDef) and test.name.startswith("test_"):
            for node in literals_compared(test):
                match node:
                    case ast.Constant(value=str(text)) if is_sentence(text):
                        yield node.lineno, text


def test_no_test_has_a_sentence_of_the_program():
    found = [
        f"{file.relative_to(HERE)}:{line}: {text}"
        for file in sorted(HERE.rglob("test_*.py"))
        for line, text in sentences(ast.parse(file.read_text(encoding="utf-8")))
    ]

    assert [] == found


def test_a_sentence_is_found_where_something_is_compared_with_it():
    code = """
@pytest.mark.parametrize(
    ("asked", "said"),
    [("this is what is asked", "this is what is said")],
)
def test_it(asked, said, golden):
    name = "this is compared with nothing"
    assert "three words only" in answer()
    assert "four words and more" in answer()
    assert said == answer(asked, name)
    assert said.startswith("it begins with this")
    assert golden == answer("what nobody is told here")
    with pytest.raises(ValueError, match="it is none of these"):
        fail()
"""
    lines = [line for line, _ in sentences(ast.parse(code))]

    assert [4, 9, 11, 13] == sorted(lines)
