"""Functions between braces: what languages with such bodies have in common."""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import tree_sitter

from codeneedle.corpora.languages import Unparsable
from codeneedle.corpora.needles import Function

Node = TypeVar("Node")


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """
    Where a function lies.

    Attributes:
        name: Qualified by what encloses it.
        line: Its first line, from 1.
        opens: Line of the brace that opens its body.
        closes: Line of the brace that closes it.
        shares: Whether code stands before the closing brace, on its line.
    """

    name: str
    line: int
    opens: int
    closes: int
    shares: bool

    def function(self, lines: Sequence[str]) -> Function:
        """The function, taken from all *lines* of its text."""
        ends = self.closes if self.shares else self.closes - 1
        ends = max(ends, self.opens)
        return Function(
            name=self.name,
            signature="\n".join(lines[self.line - 1 : self.opens]),
            line=self.line,
            body=tuple(lines[self.opens : ends]),
            closing_lines=self.closes - ends,
        )


MAX_DEPTH = 100
"""
Functions within one another that are told apart; Python has the same limit. A body
holds all that stands in it, so a thousand of them would hold each line a thousand
times.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree(Generic[Node]):
    """
    A syntax tree, as far as finding functions goes.

    Attributes:
        nodes: All that may name something; each after those around it.
        extent: Where a node begins and ends; more than its order is not needed.
        naming: If a node gives a name to a function or to what may hold some (a
            class, an object): the name, and what it names: another node or itself.
        span: Of the name, the naming node and what it names: where the function
            lies; None if that has no body between braces.
    """

    nodes: Iterable[Node]
    extent: Callable[[Node], tuple[int, int]]
    naming: Callable[[Node], tuple[str, Node] | None]
    span: Callable[[str, Node, Node], Span | None]

    def functions(self, text: str) -> list[Function]:
        """The functions of the tree of *text*, in the order of their lines."""
        spans = sorted(self._spans(), key=lambda span: (span.line, -span.closes))
        lines = text.split("\n")
        return [span.function(lines) for span in spans]

    def _spans(self) -> Iterator[Span]:
        around: list[_Scope[Node]] = []
        for node in self.nodes:
            begins, ends = self.extent(node)
            while around and begins >= around[-1].ends:
                around.pop()
            # What stands beside the named, in the naming node, is no part of it.
            if around and not around[-1].holds(node, begins, ends):
                continue
            named = self.naming(node)
            if named is None or len(around) >= MAX_DEPTH:
                continue
            name = f"{around[-1].name}.{named[0]}" if around else named[0]
            around.append(_Scope(name, ends, named[1], *self.extent(named[1])))
            span = self.span(name, node, named[1])
            if span is not None:
                yield span


@dataclass(frozen=True, slots=True)
class _Scope(Generic[Node]):
    """
    What a node names, while what is in it is looked at.

    Attributes:
        name: Qualified.
        ends: Where the naming node ends.
        named: What it names.
        opens: Where that begins.
        closes: Where that ends.
    """

    name: str
    ends: int
    named: Node
    opens: int
    closes: int

    def holds(self, node: Node, begins: int, ends: int) -> bool:
        """Whether *node* is a part of the named, not that itself."""
        return self.opens <= begins and ends <= self.closes and node != self.named


def tidy(name: str) -> str:
    """A name as written - ``this. x``, ``'key'`` - in its shortest form."""
    name = "".join(name.split()).removeprefix("this.").strip("'\"")
    return name[:60] or "?"


def nodes_of(
    text: str, grammar: tree_sitter.Language, *, types: Iterable[str], language: str
) -> list[tree_sitter.Node]:
    """
    The nodes of *types* in the tree that tree-sitter builds of *text*.

    They are found by a query, within the library: a walk through all nodes in
    Python takes twice as long as parsing.

    Returns:
        The nodes in the order of the text, each after those around it.

    Raises:
        Unparsable: If any of the text is an error to the grammar.
    """
    root = tree_sitter.Parser(grammar).parse(text.encode()).root_node
    if root.has_error:
        line = _first_error(root).start_point.row + 1
        raise Unparsable(language=language, line=line, reason="syntax error")
    found = _wanted(grammar, tuple(types))
    nodes = tree_sitter.QueryCursor(found).captures(root).get("node", [])
    return sorted(nodes, key=lambda node: (node.start_byte, -node.end_byte))


@functools.cache
def _wanted(grammar: tree_sitter.Language, types: tuple[str, ...]) -> tree_sitter.Query:
    either = " ".join(f"({name})" for name in types)
    return tree_sitter.Query(grammar, f"[{either}] @node")


def node_extent(node: tree_sitter.Node) -> tuple[int, int]:
    """Where *node* begins and ends, in bytes."""
    return node.start_byte, node.end_byte


def _first_error(node: tree_sitter.Node) -> tree_sitter.Node:
    """The innermost part that holds the first error."""
    while not (node.is_error or node.is_missing):
        broken = [child for child in node.children if child.has_error]
        if not broken:
            break
        node = broken[0]
    return node


def node_text(node: tree_sitter.Node | None) -> str:
    """What *node* says, tidied."""
    return tidy(node.text.decode()) if node is not None and node.text else "?"


def node_span(
    name: str,
    holder: tree_sitter.Node,
    body: tree_sitter.Node | None,
    *,
    apart: Sequence[str],
) -> Span | None:
    """
    Where the function with *body* lies that *holder* names.

    Args:
        name: Its qualified name.
        holder: The outermost node that is still of the function.
        body: Its block; None makes the answer None.
        apart: Types of leading parts that are not of the signature: decorators.
    """
    if body is None:
        return None
    own = [child for child in holder.children if child.type not in apart]
    # tree-sitter counts rows by "\n" alone, as editors do.
    return Span(
        name=name,
        line=own[0].start_point.row + 1,
        opens=body.start_point.row + 1,
        closes=body.end_point.row + 1,
        shares=_shares_line(body),
    )


def _shares_line(body: tree_sitter.Node) -> bool:
    """Whether the last thing in *body* ends on the line of the closing brace."""
    row = body.end_point.row
    inside = body.children[:-1]
    return body.start_point.row < row and inside[-1].end_point.row == row
