"""Names in declarations of C and C++, which stand within what is declared."""

from typing import TYPE_CHECKING

from codeneedle.corpora.languages._braced_functions import node_text

if TYPE_CHECKING:
    import tree_sitter

_AROUND_A_NAME = {"parenthesized_declarator", "reference_declarator"}
"""Declarators whose inner one has no field."""


def declared_name(declarator: "tree_sitter.Node") -> str:
    """The name in *declarator*: ``f`` of ``*f(int a)``, ``A::f``, ``operator int``."""
    node = declarator
    while True:
        inner = node.child_by_field_name("declarator")
        if node.type == "operator_cast" and inner is not None and node.text:
            return node.text[: inner.start_byte - node.start_byte].decode()
        if inner is None and node.type in _AROUND_A_NAME:
            inner = next(iter(node.named_children), None)
        if inner is None:
            return node_text(node)
        node = inner
