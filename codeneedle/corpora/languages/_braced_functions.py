"""Functions with bodies between braces, found in a syntax tree of any parser."""

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
Most named nodes within one another, as in Python. The body of a function contains
those of all functions in it, so a thousand would hold each line a thousand times.
"""

MAX_TREE_DEPTH = 10_000
"""
Deepest node that is looked at. tree-sitter counts the depth of a query in 16 bits:
beyond 65,535 it loses matches and takes minutes, at 100,000 more than two.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree(Generic[Node]):
    """
    A syntax tree, and how a parser's nodes are read.

    Attributes:
        nodes: All that may name something; each after those that contain it.
        extent: Where a node begins and ends, in any unit.
        naming: If a node names a function or something that may contain functions
            (a class, an object): the name and the named node, which may be itself.
        span: From the name, the naming node and the named node: where the function
            lies; None if it has no body between braces.
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
            # In the naming node, but beside the named one: in a key, for example.
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
    A named node, while the nodes in it are visited.

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
        """Whether *node* is a proper part of the named node."""
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

    They are found by a query: visiting all nodes from Python takes twice as long as
    parsing.

    Returns:
        The nodes in the order of the text, each after those that contain it.

    Raises:
        Unparsable: If any of the text is an error to the grammar.
    """
    root = tree_sitter.Parser(grammar).parse(text.encode()).root_node
    if root.has_error:
        line = _first_error(root).start_point.row + 1
        raise Unparsable(language=language, line=line, reason="syntax error")
    cursor = tree_sitter.QueryCursor(_query(grammar, tuple(types)))
    cursor.set_max_start_depth(MAX_TREE_DEPTH)
    nodes = cursor.captures(root).get("node", [])
    return sorted(nodes, key=lambda node: (node.start_byte, -node.end_byte))


@functools.cache
def _query(grammar: tree_sitter.Language, types: tuple[str, ...]) -> tree_sitter.Query:
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
    """The text of *node*, tidied."""
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
        holder: The outermost node that belongs to the function.
        body: Its block; None makes the answer None.
        apart: Types of leading children that are not part of the signature, such as
            decorators.
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
