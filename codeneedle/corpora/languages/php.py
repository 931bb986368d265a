"""PHP: functions by tree-sitter."""

from codeneedle.corpora.languages._braced_functions import Grammar

TITLE = "PHP"
SUFFIXES = (".php",)
COMMENT = "// {}"

functions = Grammar(
    language=TITLE,
    package="tree_sitter_php",
    entry="language_php",
    names={
        "class_declaration": "name",
        "enum_declaration": "name",
        "function_definition": "name",
        "interface_declaration": "name",
        "method_declaration": "name",
        "trait_declaration": "name",
    },
    values={"assignment_expression": ("left", "right")},
    closures=("anonymous_function",),
    blocks=("compound_statement",),
    apart=("attribute_list",),
).functions
"""
Functions, methods, and closures that are assigned, without their attributes.

A signature ends with the line of the opening brace, which PSR-12 puts on a line of its
own.
"""
