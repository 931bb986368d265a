"""Java: functions by tree-sitter."""

from codeneedle.corpora.languages._braced_functions import Grammar

TITLE = "Java"
SUFFIXES = (".java",)
COMMENT = "// {}"

functions = Grammar(
    language=TITLE,
    package="tree_sitter_java",
    names={
        "annotation_type_declaration": "name",
        "class_declaration": "name",
        "compact_constructor_declaration": "name",
        "constructor_declaration": "name",
        "enum_constant": "name",
        "enum_declaration": "name",
        "interface_declaration": "name",
        "method_declaration": "name",
        "record_declaration": "name",
    },
    values={
        "assignment_expression": ("left", "right"),
        "variable_declarator": ("name", "value"),
    },
    closures=("lambda_expression",),
    blocks=("block", "constructor_body"),
    apart=("annotation", "marker_annotation"),
).functions
"""Methods and constructors by their class, without annotations, and named lambdas."""
