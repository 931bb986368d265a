"""JavaScript: functions by tree-sitter; by esprima where tree-sitter finds an error."""

import bisect
import re
from collections.abc import Iterator
from typing import Any

import tree_sitter
import tree_sitter_javascript

from codeneedle.corpora.languages import Unparsable
from codeneedle.corpora.languages._braced_functions import (
    Grammar,
    Named,
    Naming,
    Span,
    functions_of,
    tidy,
)
from codeneedle.corpora.needles import Function

SUFFIXES = (".js", ".mjs", ".cjs")
COMMENT = "// {}"

MAX_ESPRIMA_CHARACTERS = 200_000
"""
Longest text that is parsed with esprima. It is written in Python and reads 0.1 MB
in a second, when tree-sitter reads 7; of 200 files of published packages it read
159, tree-sitter all.
"""


def functions(text: str) -> list[Function]:
    """
    Functions with a body between braces and a name, nested ones too.

    The name is their own, or that of what holds them: a variable, a property, a
    class field, an assignment's target, ``default`` for a default export.

    Raises:
        Unparsable: If neither parser accepts the text.
    """
    try:
        return _by_tree_sitter(text)
    except Unparsable:
        # Both find the same functions, verbatim, wherever both accept the text.
        is_short = len(text) <= MAX_ESPRIMA_CHARACTERS
        second = _by_esprima(text) if is_short else None
        if second is None:
            raise
        return second


# --- esprima


_ESPRIMA_FAILS = (
    # Raised on syntax that it does not know, beside its own error.
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
_SCOPES = {
    "ArrowFunctionExpression",
    "ClassDeclaration",
    "ClassExpression",
    "FunctionDeclaration",
    "FunctionExpression",
    "ObjectExpression",
}
_NAMING = {
    "AssignmentExpression": ("left", "right"),
    "MethodDefinition": ("key", "value"),
    "Property": ("key", "value"),
    "VariableDeclarator": ("id", "init"),
}
"""Types of nodes that name others: attributes of the name and of the named node."""


def _by_esprima(text: str) -> list[Function] | None:
    """The functions; None if esprima, which knows ES2017 at most, gives up."""
    # Imported here: it builds tables of all characters, which takes a second.
    import esprima

    is_module = re.search(r"^\s*(?:import|export)\b", text, re.MULTILINE)
    parse = esprima.parseModule if is_module else esprima.parseScript
    try:
        root = parse(text, {"range": True})
    except (esprima.Error, *_ESPRIMA_FAILS):
        return None
    return functions_of(text, _namings(root, text))


def _namings(root: Any, text: str) -> Iterator[Naming]:
    # Offsets are used, not esprima's line numbers: to it, as to the standard, U+2028
    # and U+2029 end a line; to an editor they do not.
    ends = [match.start() for match in re.finditer("\n", text)]
    for node in _nodes(root):
        found = _named(node, text)
        if found is not None:
            name, named = found
            yield Naming(
                name=name,
                extent=(node.range[0], node.range[1]),
                named=(named.range[0], named.range[1]),
                span=_span(node, named, text, ends),
            )


def _nodes(root: Any) -> Iterator[Any]:
    """All nodes from *root* on, each before those in it."""
    # An explicit stack: deeply nested code exceeds the interpreter's.
    stack = [root]
    while stack:
        node = stack.pop()
        yield node
        stack += reversed(list(_parts(node)))


def _parts(node: Any) -> Iterator[Any]:
    for part in vars(node).values():
        for item in part if isinstance(part, list) else [part]:
            # Only nodes have a range; other attributes hold plain values.
            if getattr(item, "range", None):
                yield item


def _named(node: Any, text: str) -> tuple[str, Any] | None:
    if node.type in _NAMING:
        name, named = (getattr(node, field) for field in _NAMING[node.type])
        if named is None or named.type not in _SCOPES:
            return None
        said = text[slice(*name.range)]
        return tidy(f"[{said}]" if node.computed else said), named
    if node.type == "ExportDefaultDeclaration" and not node.declaration.id:
        named = node.declaration
        return ("default", named) if named.type in _SCOPES else None
    if node.type in _SCOPES and node.id:
        return node.id.name, node
    return None


def _span(holder: Any, node: Any, text: str, ends: list[int]) -> Span | None:
    if node.type == "ObjectExpression" or node.body.type != "BlockStatement":
        return None
    opens, closes = node.body.range[0], node.body.range[1] - 1
    line_starts = text.rfind("\n", 0, closes) + 1
    return Span(
        line=bisect.bisect_left(ends, holder.range[0]) + 1,
        opens=bisect.bisect_left(ends, opens) + 1,
        closes=bisect.bisect_left(ends, closes) + 1,
        shares=bool(text[max(line_starts, opens + 1) : closes].strip()),
    )


# --- tree-sitter


_TS_SCOPES = {
    "arrow_function",
    "class",
    "class_declaration",
    "function_declaration",
    "function_expression",
    "generator_function",
    "generator_function_declaration",
    "object",
}
_TS_NAMING = {
    "assignment_expression": ("left", "right"),
    "field_definition": ("property", "value"),
    "pair": ("key", "value"),
    "variable_declarator": ("name", "value"),
}


def _ts_named(node: tree_sitter.Node) -> Named | None:
    if node.type in _TS_NAMING:
        name, named = map(node.child_by_field_name, _TS_NAMING[node.type])
        return _ts_scope(name, named)
    if node.type == "export_statement":
        named = node.child_by_field_name("value")
        found = _ts_scope(None, named)
        return None if found and found[1].child_by_field_name("name") else found
    name = node.child_by_field_name("name")
    return None if name is None else (name, node)


def _ts_scope(
    name: tree_sitter.Node | None, named: tree_sitter.Node | None
) -> Named | None:
    """Both, if *named* is a scope, within parentheses or not; esprima drops those."""
    while named is not None and named.type == "parenthesized_expression":
        named = next(iter(named.named_children), None)
    return (name, named) if named is not None and named.type in _TS_SCOPES else None


_by_tree_sitter = Grammar(
    language="JavaScript",
    grammar=tree_sitter.Language(tree_sitter_javascript.language()),
    types=(
        # These two of the scopes have no name of their own.
        *sorted(_TS_SCOPES - {"arrow_function", "object"}),
        *_TS_NAMING,
        "export_statement",
        "method_definition",
    ),
    named=_ts_named,
    block="statement_block",
    apart=("decorator", "comment"),
).functions
