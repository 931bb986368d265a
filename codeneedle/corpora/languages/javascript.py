"""JavaScript: functions by tree-sitter; esprima checks that they are functions."""

import bisect
import re
from collections.abc import Iterator, Sequence
from typing import Any

from codeneedle.corpora.languages import _ecmascript, tsx
from codeneedle.corpora.needles import Function
from codeneedle.text import one_line

TITLE = "JavaScript"
SUFFIXES = (".js", ".mjs", ".cjs", ".jsx")
COMMENT = "// {}"

MAX_CHECKED_CHARACTERS = 1_000_000
"""
Longest text that esprima checks. It is written in Python and reads 0.2 MB in a second,
where tree-sitter reads 7.
"""


# --- tree-sitter


_GRAMMAR = _ecmascript.javascript_grammar(TITLE, otherwise=tsx.GRAMMAR)

functions = _GRAMMAR.functions
"""Functions; a text with types, of Flow or TypeScript, is read as TSX."""


# --- esprima


_ESPRIMA_FAILS = (
    # Raised, beside its own error, on syntax that it does not know.
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


def phrase_of_unconfirmed(text: str, known: Sequence[Function]) -> str:
    """
    The *known* functions of *text* that esprima does not find, as a phrase.

    Why it cannot tell where *text* is too long or unreadable to it; empty if it finds
    all of them.
    """
    if len(text) > MAX_CHECKED_CHARACTERS:
        return f"more than {MAX_CHECKED_CHARACTERS:,} characters, too long for esprima"
    # Imported here: it builds tables of all characters, which takes a second.
    import esprima

    is_module = re.search(r"^\s*(?:import|export)\b", text, re.MULTILINE)
    parse = esprima.parseModule if is_module else esprima.parseScript
    try:
        root = parse(text, {"range": True, "jsx": True})
    except (esprima.Error, *_ESPRIMA_FAILS) as error:
        said = one_line(str(error))
        return f"esprima, which knows ES2017 without types, cannot read it: {said}"
    seen = set(_brace_line_ranges(root, text))
    unseen = [function for function in known if _brace_lines(function) not in seen]
    named = ", ".join(f"{function.name} (line {function.line})" for function in unseen)
    return f"to esprima, no function: {named}" if unseen else ""


def _brace_lines(function: Function) -> tuple[int, int]:
    """The lines of the braces around its body, from 1."""
    return function.line + function.signature.count("\n"), function.last_line_number


def _brace_line_ranges(root: Any, text: str) -> Iterator[tuple[int, int]]:
    """The lines of the braces around each function's body, from 1, by esprima."""
    # Offsets are used, not esprima's line numbers: to it, as to the standard, U+2028
    # and U+2029 end a line; to an editor they do not.
    ends = [match.start() for match in re.finditer("\n", text)]
    # An explicit stack: deeply nested code exceeds the interpreter's.
    stack = [root]
    while stack:
        node = stack.pop()
        if "Function" in node.type and node.body.type == "BlockStatement":
            opens, closes = node.body.range
            first, last = (bisect.bisect(ends, at) + 1 for at in (opens, closes - 1))
            yield first, last
        for part in vars(node).values():
            # Only nodes have a range; other attributes hold plain values.
            items = part if isinstance(part, list) else [part]
            stack += [item for item in items if getattr(item, "range", None)]
