"""
Functions between braces in the tree that tree-sitter builds: their names, signatures
and ends; those with a syntax error in them are left out.
"""

import functools
import importlib
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from codeneedle.corpora.languages import Unparsable
from codeneedle.corpora.needles import Function

if TYPE_CHECKING:
    import tree_sitter

MAX_DEPTH = 100
"""
Limit of nested functions, as in Python. The body of a function contains those of all
functions in it, so a thousand of them would hold a line a thousand times.
"""

MAX_TREE_DEPTH = 10_000
"""
Limit of the depth of nodes. tree-sitter counts the depth of a query in 16 bits: beyond
65,535 it loses matches, and 100,000 take more than two minutes.
"""

LONGEST_LINE = 10_000
"""
Characters of the line on which a function may begin. Minified code has a hundred
thousand functions in one line, whose signature would be that line.
"""

COMMENTS = ("comment", "line_comment", "block_comment")

_WRAPPERS = {
    "as_expression",
    "expression_list",
    "literal_element",
    "non_null_expression",
    "parenthesized_expression",
    "satisfies_expression",
}
"""Types of nodes whose first child may be the function that is named."""

_LISTS_OF_MODIFIERS = {"modifiers"}
"""Types of leading children that hold annotations beside words such as ``public``."""


def node_text(node: "tree_sitter.Node") -> str:
    """The text of *node*; empty if it has none."""
    return node.text.decode() if node.text else ""


def _tidy_name(name: str) -> str:
    """A name as written, ``this. x`` or ``'key'``, in 60 characters; ``?`` for none."""
    parts = re.split(r"(?<=\w)\s+(?=\w)", name.strip())
    name = " ".join("".join(part.split()) for part in parts)
    name = name.removeprefix("this.").strip("'\"")
    return name[:60] or "?"


@dataclass(frozen=True, slots=True)
class _Found:
    """What a grammar finds in a text."""

    functions: list[Function]  # those whose bodies have no error, in order of lines
    error: int | None  # line of the first error; None if there is none


@dataclass(frozen=True, slots=True, kw_only=True)
class Grammar:
    """The functions of a language in the tree of tree-sitter."""

    language: str  # its name, for errors
    package: str  # Python package of the grammar; imported when a text is read
    entry: str = "language"  # function of that package that returns the grammar
    names: Mapping[str, str]
    """
    Types of the nodes that are functions or hold functions, with the field of their
    name.
    """

    values: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """
    Types of the nodes that give a value a name, with the fields of name and value; an
    empty one of a value that has none: ``default``.
    """

    closures: Collection[str] = ()  # types of those values: functions, holders of some
    holders: Collection[str] = ()
    """Types among `names` that hold functions in such a body, and are none."""

    word: Callable[["tree_sitter.Node"], str] = node_text
    """The name that the node of a name states."""

    blocks: Collection[str]  # types of bodies between braces
    apart: Sequence[str] = ()
    """
    Types of leading children that are not part of the signature, such as decorators;
    comments never are.
    """

    otherwise: "Grammar | None" = None
    """Grammar of a text that has an error to this one."""

    def functions(self, text: str) -> list[Function]:
        """
        The functions of *text*, in the order of their lines.

        Where the grammar meets an error, those of `otherwise` are taken if that meets
        none or finds more.

        Raises:
            Unparsable: If any of the text is an error to the grammar; it has the
                functions whose bodies have none.
        """
        found = self._functions_and_first_error(text)
        if found.error is not None and self.otherwise:
            other = self.otherwise._functions_and_first_error(text)  # noqa: SLF001 - one of this class
            if other.error is None or len(other.functions) > len(found.functions):
                found = other
        if found.error is None:
            return found.functions
        raise Unparsable(
            language=self.language,
            line=found.error,
            reason="syntax error",
            kept=found.functions,
        )

    def _syntax_tree(self, text: str) -> "tree_sitter.Node":
        """The tree of *text*; parts of it may be errors."""
        import tree_sitter

        return tree_sitter.Parser(self._grammar()).parse(text.encode()).root_node

    def _grammar(self) -> "tree_sitter.Language":
        """The grammar of tree-sitter, imported when it is asked for."""
        return _import_grammar(self.package, self.entry)

    def _functions_and_first_error(self, text: str) -> _Found:
        """The functions of *text* by this grammar alone, and its first error."""
        root = self._syntax_tree(text)
        functions = sorted(
            self._functions(root, text.split("\n")),
            key=lambda function: (function.line, -function.last_line_number),
        )
        error = _first_error(root).start_point.row + 1 if root.has_error else None
        return _Found(functions, error)

    def _functions(
        self, root: "tree_sitter.Node", lines: Sequence[str]
    ) -> Iterator[Function]:
        """
        Functions with intact bodies below *root*, in order of their beginnings.

        Without those nested deeper than `MAX_DEPTH`, or on lines beyond `LONGEST_LINE`.
        """
        around: list[tuple[str, tree_sitter.Node, tree_sitter.Node]] = []
        for node in self._naming_nodes(root):
            naming = self._name_and_named_node(node)
            if naming is None:
                continue
            while around and node.start_byte >= around[-1][1].end_byte:
                around.pop()
            # In the naming node, but beside the named one: in a key, for example.
            is_beside = around and not _holds(around[-1][2], node)
            if is_beside or len(around) >= MAX_DEPTH:
                continue
            word, named = naming
            name = f"{around[-1][0]}.{word}" if around else word
            around.append((name, node, named))
            body = self._intact_body_or_none(named)
            is_quotable = len(lines[node.start_point.row]) <= LONGEST_LINE
            if body is not None and is_quotable:
                yield self._function(name, node, body, lines)

    def _intact_body_or_none(
        self, named: "tree_sitter.Node"
    ) -> "tree_sitter.Node | None":
        """The body of a function between braces, if there is no error in it."""
        body = named.child_by_field_name("body")
        if body is None or body.type not in self.blocks or body.has_error:
            return None
        return None if named.type in self.holders else body

    def _name_and_named_node(
        self, node: "tree_sitter.Node"
    ) -> "tuple[str, tree_sitter.Node] | None":
        """The name that *node* gives, and what it names; None if that is nothing."""
        if node.type in self.names:
            name = node.child_by_field_name(self.names[node.type])
            return None if name is None else (_tidy_name(self.word(name)), node)
        of_name, of_value = self.values[node.type]
        name = node.child_by_field_name(of_name) if of_name else None
        value = _value_without_wrappers(node.child_by_field_name(of_value))
        if value is None or value.type not in self.closures:
            return None
        if name is not None:
            return _tidy_name(self.word(name)), value
        has_own = of_name or value.child_by_field_name("name")
        return None if has_own else ("default", value)

    def _naming_nodes(self, root: "tree_sitter.Node") -> "list[tree_sitter.Node]":
        """The nodes that may name something, outer ones before inner ones."""
        import tree_sitter

        # By a query: visiting all nodes from Python takes twice as long as parsing.
        types = (*self.names, *self.values)
        cursor = tree_sitter.QueryCursor(_node_query(self._grammar(), types))
        cursor.set_max_start_depth(MAX_TREE_DEPTH)
        nodes = cursor.captures(root).get("node", [])
        return sorted(nodes, key=lambda node: (node.start_byte, -node.end_byte))

    def _function(
        self,
        name: str,
        holder: "tree_sitter.Node",
        body: "tree_sitter.Node",
        lines: Sequence[str],
    ) -> Function:
        """The function *name*, without the lines that its closing brace has alone."""
        # tree-sitter counts rows by "\n" alone, as editors do.
        first, opens = self._first_signature_row(holder), body.start_point.row + 1
        closes = body.end_point.row + 1
        ends = closes
        if closes > opens and _is_closing_brace_alone(body, lines):
            ends = closes - 1
        return Function(
            name=name,
            signature="\n".join(lines[first:opens]),
            line=first + 1,
            body=tuple(lines[opens:ends]),
            closing_lines=closes - ends,
        )

    def _first_signature_row(self, holder: "tree_sitter.Node") -> int:
        """Row, from 0, where *holder* begins without comments and what is `apart`."""
        apart = {*self.apart, *COMMENTS}
        for child in holder.children:
            parts = child.children if child.type in _LISTS_OF_MODIFIERS else [child]
            for part in parts:
                if part.type not in apart:
                    return part.start_point.row
        return holder.start_point.row


def _is_closing_brace_alone(body: "tree_sitter.Node", lines: Sequence[str]) -> bool:
    """Whether nothing stands before the brace that closes *body*, on its line."""
    end = body.end_point
    return not lines[end.row].encode()[: end.column - 1].strip()


def _value_without_wrappers(
    value: "tree_sitter.Node | None",
) -> "tree_sitter.Node | None":
    """The *value* within parentheses and casts; of a list, its first."""
    while value is not None and value.type in _WRAPPERS:
        value = next(iter(value.named_children), None)
    return value


@functools.cache
def _import_grammar(package: str, entry: str) -> "tree_sitter.Language":
    """The grammar that the function *entry* of *package* returns."""
    import tree_sitter

    return tree_sitter.Language(getattr(importlib.import_module(package), entry)())


@functools.cache
def _node_query(
    grammar: "tree_sitter.Language", types: tuple[str, ...]
) -> "tree_sitter.Query":
    """What finds nodes of these *types* in a tree, as ``node``."""
    import tree_sitter

    either = " ".join(f"({name})" for name in types)
    return tree_sitter.Query(grammar, f"[{either}] @node")


def _holds(outer: "tree_sitter.Node", inner: "tree_sitter.Node") -> bool:
    """Whether *inner* is a proper part of *outer*."""
    begins, ends = outer.byte_range
    opens, closes = inner.byte_range
    return begins <= opens and closes <= ends and (begins, ends) != (opens, closes)


def _first_error(node: "tree_sitter.Node") -> "tree_sitter.Node":
    """The innermost part that holds the first error."""
    while not (node.is_error or node.is_missing):
        broken = [child for child in node.children if child.has_error]
        if not broken:
            break
        node = broken[0]
    return node
