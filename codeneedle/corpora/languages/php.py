"""PHP: functions by tree-sitter."""

import tree_sitter
import tree_sitter_php

from codeneedle.corpora.languages._braced_functions import Grammar, Named

SUFFIXES = (".php",)
COMMENT = "// {}"

_DECLARATIONS = {
    "class_declaration",
    "enum_declaration",
    "function_definition",
    "interface_declaration",
    "method_declaration",
    "trait_declaration",
}


def _named(node: tree_sitter.Node) -> Named | None:
    if node.type in _DECLARATIONS:
        return node.child_by_field_name("name"), node
    closure = node.child_by_field_name("right")
    if closure is not None and closure.type == "anonymous_function":
        return node.child_by_field_name("left"), closure
    return None


functions = Grammar(
    language="PHP",
    grammar=tree_sitter.Language(tree_sitter_php.language_php()),
    types=(*sorted(_DECLARATIONS), "assignment_expression"),
    named=_named,
    block="compound_statement",
    apart=("attribute_list", "comment"),
).functions
"""
Functions, methods, and closures that are assigned, without their attributes.

A signature ends with the line of the opening brace, which PSR-12 puts on a line of its
own. Raises `Unparsable` if the grammar finds an error.
"""
