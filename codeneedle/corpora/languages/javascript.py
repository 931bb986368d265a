"""JavaScript: functions by tree-sitter; esprima checks that they are functions."""

import bisect
import re
from collections.abc import Iterator, Sequence
from typing import Any

import tree_sitter
import tree_sitter_javascript

from codeneedle.corpora.languages._braced_functions import Grammar, Named
from codeneedle.corpora.needles import Function

SUFFIXES = (".js", ".mjs", ".cjs")
COMMENT = "// {}"

MAX_CHECKED_CHARACTERS = 1_000_000
"""
Longest text that esprima checks. It is written in Python and reads 0.2 MB in a second,
where tree-sitter reads 7.
"""


# --- tree-sitter


_SCOPES = {
    "arrow_function",
    "class",
    "class_declaration",
    "function_declaration",
    "function_expression",
    "generator_function",
    "generator_function_declaration",
    "object",
}
_NAMING = {
    "assignment_expression": ("left", "right"),
    "field_definition": ("property", "value"),
    "pair": ("key", "value"),
    "variable_declarator": ("name", "value"),
}


def _named(node: tree_sitter.Node) -> Named | None:
    if node.type in _NAMING:
        name, named = map(node.child_by_field_name, _NAMING[node.type])
        return _scope(name, named)
    if node.type == "export_statement":
        named = node.child_by_field_name("value")
        naming = _scope(None, named)
        return None if naming and naming[1].child_by_field_name("name") else naming
    name = node.child_by_field_name("name")
    return None if name is None else (name, node)


def _scope(
    name: tree_sitter.Node | None, named: tree_sitter.Node | None
) -> Named | None:
    """Both, if *named* is a scope, within parentheses or not; esprima drops those."""
    while named is not None and named.type == "parenthesized_expression":
        named = next(iter(named.named_children), None)
    return (name, named) if named is not None and named.type in _SCOPES else None


functions = Grammar(
    language="JavaScript",
    grammar=tree_sitter.Language(tree_sitter_javascript.language()),
    types=(
        # These two of the scopes have no name of their own.
        *sorted(_SCOPES - {"arrow_function", "object"}),
        *_NAMING,
        "export_statement",
        "method_definition",
    ),
    named=_named,
    block="statement_block",
    apart=("decorator", "comment"),
).functions
"""
Functions with a body between braces and a name, nested ones too.

A function without a name has that of its variable, property, class field or target of
an assignment, or ``default`` for a default export. Raises `Unparsable` if the grammar
finds an error.
"""


# --- esprima


_ESPRIMA_FAILS = (
    # Raised, beside its own error, on syntax that it does not know.
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


def unconfirmed(text: str, known: Sequence[Function]) -> str:
    """The functions of *text* that esprima does not find, as a phrase; may be empty."""
    if len(text) > MAX_CHECKED_CHARACTERS:
        return f"more than {MAX_CHECKED_CHARACTERS:,} characters, too long for esprima"
    # Imported here: it builds tables of all characters, which takes a second.
    import esprima

    is_module = re.search(r"^\s*(?:import|export)\b", text, re.MULTILINE)
    parse = esprima.parseModule if is_module else esprima.parseScript
    try:
        root = parse(text, {"range": True})
    except (esprima.Error, *_ESPRIMA_FAILS) as error:
        return f"esprima, which knows ES2017 at most, cannot read it: {error}"
    seen = set(_bodies(root, text))
    others = [each for each in known if _braces(each) not in seen]
    named = ", ".join(f"{each.name} (line {each.line})" for each in others)
    return f"to esprima, no function: {named}" if others else ""


def _braces(function: Function) -> tuple[int, int]:
    """The lines of the braces around its body, from 1."""
    return function.line + function.signature.count("\n"), function.end


def _bodies(root: Any, text: str) -> Iterator[tuple[int, int]]:
    """The same for all functions that esprima finds."""
    # Offsets are used, not esprima's line numbers: to it, as to the standard, U+2028
    # and U+2029 end a line; to an editor they do not.
    ends = [match.start() for match in re.finditer("\n", text)]
    # An explicit stack: deeply nested code exceeds the interpreter's.
    stack = [root]
    while stack:
        node = stack.pop()
        if "Function" in node.type and node.body.type == "BlockStatement":
            opens, closes = node.body.range
            first, last = (bisect.bisect(ends, at) + 1 for at in (opens, closes - 1))
            yield first, last
        for part in vars(node).values():
            # Only nodes have a range; other attributes hold plain values.
            items = part if isinstance(part, list) else [part]
            stack += [item for item in items if getattr(item, "range", None)]
