"""JavaScript: functions by tree-sitter; by esprima where tree-sitter finds an error."""

import bisect
import re
from collections.abc import Iterator
from typing import Any

import tree_sitter
import tree_sitter_javascript

from codeneedle.corpora.languages import Unparsable
from codeneedle.corpora.languages._braced_functions import (
    Span,
    Tree,
    node_extent,
    node_span,
    node_text,
    nodes_of,
    tidy,
)
from codeneedle.corpora.needles import Function

SUFFIXES = (".js", ".mjs", ".cjs")
COMMENT = "// {}"

_GRAMMAR = tree_sitter.Language(tree_sitter_javascript.language())

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
        return _by_tree_sitter(text).functions(text)
    except Unparsable:
        # Both find the same functions, verbatim, wherever both accept the text.
        is_short = len(text) <= MAX_ESPRIMA_CHARACTERS
        second = _by_esprima(text) if is_short else None
        if second is None:
            raise
        return second.functions(text)


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


def _by_esprima(text: str) -> Tree[Any] | None:
    """The tree; None if esprima, which knows ES2017 at most, gives up."""
    # Imported here: it builds tables of all characters, which takes a second.
    import esprima

    is_module = re.search(r"^\s*(?:import|export)\b", text, re.MULTILINE)
    parse = esprima.parseModule if is_module else esprima.parseScript
    try:
        root = parse(text, {"range": True})
    except (esprima.Error, *_ESPRIMA_FAILS):
        return None
    # Offsets are used, not esprima's line numbers: to it, as to the standard, U+2028
    # and U+2029 end a line; to an editor they do not.
    ends = [match.start() for match in re.finditer("\n", text)]
    return Tree(
        nodes=_nodes(root),
        extent=lambda node: (node.range[0], node.range[1]),
        naming=lambda node: _named(node, text),
        span=lambda name, holder, node: _span(name, holder, node, text, ends),
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


def _span(name: str, holder: Any, node: Any, text: str, ends: list[int]) -> Span | None:
    if node.type == "ObjectExpression" or node.body.type != "BlockStatement":
        return None
    opens, closes = node.body.range[0], node.body.range[1] - 1
    line_starts = text.rfind("\n", 0, closes) + 1
    return Span(
        name=name,
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
_TS_TYPES = (
    *sorted(_TS_SCOPES - {"arrow_function", "object"}),
    *_TS_NAMING,
    "export_statement",
    "method_definition",
)
"""Types of all nodes that may name something; two of the scopes never do."""


def _by_tree_sitter(text: str) -> Tree[tree_sitter.Node]:
    return Tree(
        nodes=nodes_of(text, _GRAMMAR, types=_TS_TYPES, language="JavaScript"),
        extent=node_extent,
        naming=_ts_named,
        span=_ts_span,
    )


def _ts_named(node: tree_sitter.Node) -> tuple[str, tree_sitter.Node] | None:
    if node.type in _TS_NAMING:
        name, named = map(node.child_by_field_name, _TS_NAMING[node.type])
        named = _unwrapped(named)
        if named is None or named.type not in _TS_SCOPES:
            return None
        return node_text(name), named
    if node.type == "export_statement":
        return _ts_default(node)
    if node.type == "method_definition" or node.type in _TS_SCOPES:
        name = node.child_by_field_name("name")
        return None if name is None else (node_text(name), node)
    return None


def _ts_default(node: tree_sitter.Node) -> tuple[str, tree_sitter.Node] | None:
    named = _unwrapped(node.child_by_field_name("value"))
    if named is None or named.type not in _TS_SCOPES:
        return None
    return None if named.child_by_field_name("name") else ("default", named)


def _unwrapped(node: tree_sitter.Node | None) -> tree_sitter.Node | None:
    """The node within parentheses, which esprima drops by itself."""
    while node is not None and node.type == "parenthesized_expression":
        node = next(iter(node.named_children), None)
    return node


def _ts_span(
    name: str, holder: tree_sitter.Node, node: tree_sitter.Node
) -> Span | None:
    body = node.child_by_field_name("body")
    if body is not None and body.type != "statement_block":
        body = None
    return node_span(name, holder, body, apart=("decorator", "comment"))
