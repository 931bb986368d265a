"""C++ and CUDA: functions by tree-sitter."""

from codeneedle.corpora.languages._braced_functions import Grammar
from codeneedle.corpora.languages._c_names import declared_name

TITLE = "C++"
SUFFIXES = (
    *(".cpp", ".cc", ".cxx", ".c++"),
    *(".hpp", ".hh", ".hxx", ".h++", ".ipp", ".tpp"),
    *(".cu", ".cuh"),
)
COMMENT = "// {}"

GRAMMAR = Grammar(
    language=TITLE,
    package="tree_sitter_cpp",
    names={
        "class_specifier": "name",
        "function_definition": "declarator",
        "namespace_definition": "name",
        "struct_specifier": "name",
        "union_specifier": "name",
    },
    values={
        "assignment_expression": ("left", "right"),
        "init_declarator": ("declarator", "value"),
    },
    closures=("lambda_expression",),
    word=declared_name,
    blocks=("compound_statement",),
    apart=("attribute_declaration",),
)

functions = GRAMMAR.functions
"""
Functions, methods by their class and namespace, and named lambdas.

The line ``template <...>`` is no part of a signature unless the function begins there.
"""
