"""Functions with bodies between braces, found in the tree that tree-sitter builds."""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import tree_sitter

from codeneedle.corpora.languages import Unparsable
from codeneedle.corpora.needles import Function

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


def _tidy(name: str) -> str:
    """A name as written - ``this. x``, ``'key'`` - in its shortest form."""
    name = "".join(name.split()).removeprefix("this.").strip("'\"")
    return name[:60] or "?"


Named = tuple[tree_sitter.Node | None, tree_sitter.Node]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grammar:
    """The functions of a language in the tree of tree-sitter."""

    language: str  # its name, for errors
    grammar: tree_sitter.Language  # grammar of tree-sitter
    types: Iterable[str]  # types of all nodes that may name a function or class
    named: Callable[[tree_sitter.Node], Named | None]
    """
    For such a node, that of the name (None: ``default``) and the named one, which may
    be itself; None if it names nothing.
    """

    block: str  # type of a body between braces
    apart: Sequence[str]
    """
    Types of leading children that are not part of the signature, such as decorators.
    """

    def functions(self, text: str) -> list[Function]:
        """
        The functions of *text*, in the order of their lines.

        Raises:
            Unparsable: If any of the text is an error to the grammar.
        """
        root = tree_sitter.Parser(self.grammar).parse(text.encode()).root_node
        if root.has_error:
            line = _first_error(root).start_point.row + 1
            raise Unparsable(language=self.language, line=line, reason="syntax error")
        return sorted(
            self._functions(root, text.split("\n")),
            key=lambda function: (function.line, -function.end),
        )

    def _functions(
        self, root: tree_sitter.Node, lines: Sequence[str]
    ) -> Iterator[Function]:
        around: list[tuple[str, tree_sitter.Node, tree_sitter.Node]] = []
        for node in self._nodes(root):
            naming = self.named(node)
            if naming is None:
                continue
            while around and node.start_byte >= around[-1][1].end_byte:
                around.pop()
            # In the naming node, but beside the named one: in a key, for example.
            is_beside = around and not _holds(around[-1][2], node)
            if is_beside or len(around) >= MAX_DEPTH:
                continue
            word, named = naming
            name = _tidy(word.text.decode()) if word and word.text else "default"
            name = f"{around[-1][0]}.{name}" if around else name
            around.append((name, node, named))
            body = named.child_by_field_name("body")
            if body is not None and body.type == self.block:
                yield self._function(name, node, body, lines)

    def _nodes(self, root: tree_sitter.Node) -> list[tree_sitter.Node]:
        """The nodes of `types`, outer ones before inner ones."""
        # By a query: visiting all nodes from Python takes twice as long as parsing.
        cursor = tree_sitter.QueryCursor(_query(self.grammar, tuple(self.types)))
        cursor.set_max_start_depth(MAX_TREE_DEPTH)
        nodes = cursor.captures(root).get("node", [])
        return sorted(nodes, key=lambda node: (node.start_byte, -node.end_byte))

    def _function(
        self,
        name: str,
        holder: tree_sitter.Node,
        body: tree_sitter.Node,
        lines: Sequence[str],
    ) -> Function:
        """The function *name*, without the lines that its closing brace has alone."""
        own = next(child for child in holder.children if child.type not in self.apart)
        # tree-sitter counts rows by "\n" alone, as editors do.
        first, opens = own.start_point.row, body.start_point.row + 1
        closes = body.end_point.row + 1
        # What stands before the closing brace, on its line, may be the opening one.
        shares = body.children[-2].end_point.row + 1 == closes
        ends = max(closes if shares else closes - 1, opens)
        return Function(
            name=name,
            signature="\n".join(lines[first:opens]),
            line=first + 1,
            body=tuple(lines[opens:ends]),
            closing_lines=closes - ends,
        )


@functools.cache
def _query(grammar: tree_sitter.Language, types: tuple[str, ...]) -> tree_sitter.Query:
    either = " ".join(f"({name})" for name in types)
    return tree_sitter.Query(grammar, f"[{either}] @node")


def _holds(outer: tree_sitter.Node, inner: tree_sitter.Node) -> bool:
    """Whether *inner* is a proper part of *outer*."""
    begins, ends = outer.byte_range
    opens, closes = inner.byte_range
    return begins <= opens and closes <= ends and (begins, ends) != (opens, closes)


def _first_error(node: tree_sitter.Node) -> tree_sitter.Node:
    """The innermost part that holds the first error."""
    while not (node.is_error or node.is_missing):
        broken = [child for child in node.children if child.has_error]
        if not broken:
            break
        node = broken[0]
    return node
