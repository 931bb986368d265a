"""Go: functions by tree-sitter."""

from typing import TYPE_CHECKING

from codeneedle.corpora.languages._braced_functions import Grammar, node_text

if TYPE_CHECKING:
    import tree_sitter

TITLE = "Go"
SUFFIXES = (".go",)
COMMENT = "// {}"


def _qualified_name(name: "tree_sitter.Node") -> str:
    """``Type.Method`` with a receiver such as ``(s *Type[T])``, else *name* alone."""
    method = name.parent
    receiver = method.child_by_field_name("receiver") if method else None
    if receiver is None:
        return node_text(name)
    kind = node_text(receiver).strip("()").partition("[")[0].split()[-1:]
    of_type = "".join(kind).lstrip("*")
    return f"{of_type}.{node_text(name)}" if of_type else node_text(name)


functions = Grammar(
    language=TITLE,
    package="tree_sitter_go",
    names={"function_declaration": "name", "method_declaration": "name"},
    values={
        "assignment_statement": ("left", "right"),
        "keyed_element": ("key", "value"),
        "short_var_declaration": ("left", "right"),
        "var_spec": ("name", "value"),
    },
    closures=("func_literal", "composite_literal"),
    word=_qualified_name,
    blocks=("block",),
).functions
"""Functions, methods by their type, and function literals that have a name."""
