"""C, and headers of C or C++: functions by tree-sitter."""

from codeneedle.corpora.languages import cpp
from codeneedle.corpora.languages._braced_functions import Grammar
from codeneedle.corpora.languages._c_names import declared_name

TITLE = "C"
SUFFIXES = (".c", ".h")
COMMENT = "// {}"

functions = Grammar(
    language="C or C++",
    package="tree_sitter_c",
    names={"function_definition": "declarator"},
    word=declared_name,
    blocks=("compound_statement",),
    apart=("attribute_declaration",),
    otherwise=cpp.GRAMMAR,
).functions
"""Functions. A header that is no C is read as C++."""
