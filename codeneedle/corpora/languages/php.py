"""PHP: functions by tree-sitter."""

import tree_sitter
import tree_sitter_php

from codeneedle.corpora.languages._braced_functions import (
    Span,
    Tree,
    node_extent,
    node_span,
    node_text,
    nodes_of,
)
from codeneedle.corpora.needles import Function

SUFFIXES = (".php",)
COMMENT = "// {}"

_GRAMMAR = tree_sitter.Language(tree_sitter_php.language_php())

_NAMED = {
    "class_declaration",
    "enum_declaration",
    "function_definition",
    "interface_declaration",
    "method_declaration",
    "trait_declaration",
}
_NAMING = (*sorted(_NAMED), "assignment_expression")


def functions(text: str) -> list[Function]:
    """
    Functions, methods, and closures that are assigned, without their attributes.

    A signature ends with the line of the opening brace, which PSR-12 puts on a
    line of its own.

    Raises:
        Unparsable: If the grammar finds an error.
    """
    tree = Tree(
        nodes=nodes_of(text, _GRAMMAR, types=_NAMING, language="PHP"),
        extent=node_extent,
        naming=_named,
        span=_span,
    )
    return tree.functions(text)


def _named(node: tree_sitter.Node) -> tuple[str, tree_sitter.Node] | None:
    if node.type in _NAMED:
        return node_text(node.child_by_field_name("name")), node
    if node.type == "assignment_expression":
        closure = node.child_by_field_name("right")
        if closure is not None and closure.type == "anonymous_function":
            return node_text(node.child_by_field_name("left")), closure
    return None


def _span(name: str, holder: tree_sitter.Node, node: tree_sitter.Node) -> Span | None:
    body = node.child_by_field_name("body")
    if body is not None and body.type != "compound_statement":
        body = None
    return node_span(name, holder, body, apart=("attribute_list", "comment"))
