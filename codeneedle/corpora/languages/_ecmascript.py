"""Functions of JavaScript, and of what adds types to it."""

from codeneedle.corpora.languages._braced_functions import Grammar

_NAMES = {
    "class": "name",
    "class_declaration": "name",
    "function_declaration": "name",
    "function_expression": "name",
    "generator_function": "name",
    "generator_function_declaration": "name",
    "method_definition": "name",
}

_VALUES = {
    "assignment_expression": ("left", "right"),
    "export_statement": ("", "value"),
    "pair": ("key", "value"),
    "variable_declarator": ("name", "value"),
}

_CLOSURES = (*sorted({*_NAMES} - {"method_definition"}), "arrow_function", "object")

_NAMESPACES = ("internal_module", "module")


def javascript_grammar(language: str, *, otherwise: Grammar) -> Grammar:
    """
    The grammar of a *language* without types.

    Functions with a body between braces and a name, nested ones too. A function without
    a name has that of its variable, property, class field or target of an assignment,
    or ``default`` for a default export.
    """
    return Grammar(
        language=language,
        package="tree_sitter_javascript",
        names=_NAMES,
        values=_VALUES | {"field_definition": ("property", "value")},
        closures=_CLOSURES,
        blocks=("statement_block",),
        apart=("decorator",),
        otherwise=otherwise,
    )


def typescript_grammar(language: str, entry: str) -> Grammar:
    """The grammar of a *language* with types: functions as in `javascript_grammar`."""
    return Grammar(
        language=language,
        package="tree_sitter_typescript",
        entry=entry,
        names=_NAMES
        | dict.fromkeys(("abstract_class_declaration", *_NAMESPACES), "name"),
        values=_VALUES | {"public_field_definition": ("name", "value")},
        closures=_CLOSURES,
        holders=_NAMESPACES,
        blocks=("statement_block",),
        apart=("decorator",),
    )
