"""Rust: functions by tree-sitter."""

from codeneedle.corpora.languages._braced_functions import Grammar

TITLE = "Rust"
SUFFIXES = (".rs",)
COMMENT = "// {}"

functions = Grammar(
    language=TITLE,
    package="tree_sitter_rust",
    names={
        "function_item": "name",
        "impl_item": "type",
        "mod_item": "name",
        "trait_item": "name",
    },
    values={
        "assignment_expression": ("left", "right"),
        "const_item": ("name", "value"),
        "field_initializer": ("field", "value"),
        "let_declaration": ("pattern", "value"),
        "static_item": ("name", "value"),
    },
    closures=("closure_expression",),
    blocks=("block",),
    apart=("attribute_item",),
).functions
"""Functions, those of ``impl`` blocks and traits by their type, and named closures."""
