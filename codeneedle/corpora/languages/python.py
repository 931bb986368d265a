"""Python: functions by `ast`, the ends of their signatures by `tokenize`."""

import ast
import tokenize
import warnings
from collections.abc import Iterator, Sequence

from codeneedle.corpora.languages import Unparsable
from codeneedle.corpora.needles import Function

TITLE = "Python"
SUFFIXES = (".py", ".pyw")
COMMENT = "# {}"

_Definition = ast.FunctionDef | ast.AsyncFunctionDef


def functions(text: str) -> list[Function]:
    """
    Functions and methods, nested ones too, without their decorators.

    A signature ends with the line whose colon opens the body, so comments and
    docstrings above the first statement are the body's.

    Raises:
        Unparsable: If this interpreter's parser refuses the text.
    """
    lines = text.split("\n")
    functions = [
        _function(name, definition, lines)
        for name, definition in _definitions(_syntax_tree(text))
    ]
    return sorted(functions, key=lambda function: function.line)


def _syntax_tree(text: str) -> ast.Module:
    """The tree of *text*; `Unparsable` if this interpreter refuses it."""
    try:
        with warnings.catch_warnings():
            # They are about the user's code, such as an invalid escape.
            warnings.simplefilter("ignore")
            return ast.parse(text)
    except SyntaxError as error:
        raise Unparsable(language=TITLE, line=error.lineno, reason=error.msg) from error
    except (ValueError, RecursionError, MemoryError) as error:
        # A null character, or brackets nested deeper than the parser's stack.
        reason = str(error) or "nested too deeply"
        raise Unparsable(language=TITLE, line=None, reason=reason) from error


def _definitions(tree: ast.Module) -> Iterator[tuple[str, _Definition]]:
    """Each function with its qualified name, in no particular order."""
    # An explicit stack: deeply nested code exceeds the interpreter's.
    stack: list[tuple[ast.AST, str]] = [(tree, "")]
    while stack:
        node, prefix = stack.pop()
        if isinstance(node, _Definition | ast.ClassDef):
            if not isinstance(node, ast.ClassDef):
                yield prefix + node.name, node
            prefix += f"{node.name}."
        stack += [
            (child, prefix)
            for child in ast.iter_child_nodes(node)
            if not isinstance(child, ast.expr)
        ]


def _function(name: str, definition: _Definition, lines: Sequence[str]) -> Function:
    """The function of *definition*, its signature up to the line of its colon."""
    first = definition.lineno - 1
    opened = _line_of_colon(lines, first)
    return Function(
        name=name,
        signature="\n".join(lines[first:opened]),
        line=definition.lineno,
        body=tuple(lines[opened : definition.end_lineno]),
    )


def _line_of_colon(lines: Sequence[str], first: int) -> int:
    """
    Number of the line whose colon ends the signature that begins at index *first*.

    It is the first colon outside of brackets that does not belong to a lambda, as
    ``-> lambda: int:`` is a valid return annotation.
    """
    source = (lines[at] + "\n" for at in range(first, len(lines)))
    depth = lambdas = 0
    for token in tokenize.generate_tokens(source.__next__):
        if token.type == tokenize.OP and token.string in "([{":
            depth += 1
        elif token.type == tokenize.OP and token.string in ")]}":
            depth -= 1
        elif depth == 0 and token.string == "lambda":
            lambdas += 1
        elif depth == 0 and token.type == tokenize.OP and token.string == ":":
            if lambdas == 0:
                return first + token.start[0]
            lambdas -= 1
    raise AssertionError("a parsed definition has a colon")  # pragma: no cover
