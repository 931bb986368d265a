"""Functions with bodies between braces, found in the tree that tree-sitter builds."""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import tree_sitter

from codeneedle.corpora.languages import Unparsable
from codeneedle.corpora.needles import Function

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
class Span:
    """
    Where a function lies.

    Attributes:
        line: Its first line, from 1.
        opens: Line of the brace that opens its body.
        closes: Line of the brace that closes it.
        shares: Whether anything stands before the closing brace, on its line.
    """

    line: int
    opens: int
    closes: int
    shares: bool

    def function(self, name: str, lines: Sequence[str]) -> Function:
        """The function, taken from all *lines* of its text."""
        ends = self.closes if self.shares else self.closes - 1
        ends = max(ends, self.opens)
        return Function(
            name=name,
            signature="\n".join(lines[self.line - 1 : self.opens]),
            line=self.line,
            body=tuple(lines[self.opens : ends]),
            closing_lines=self.closes - ends,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Naming:
    """
    A node that names a function, or what may contain functions: a class, an object.

    Attributes:
        name: Without what encloses it.
        extent: Where the node begins and ends, in any unit.
        named: Where what it names begins and ends; it may be the node itself.
        span: Of the function; None if there is no body between braces.
    """

    name: str
    extent: tuple[int, int]
    named: tuple[int, int]
    span: Span | None

    def holds(self, other: "Naming") -> bool:
        """Whether the *other* node is a proper part of what is named."""
        (begins, ends), (opens, closes) = other.extent, self.named
        return opens <= begins and ends <= closes and other.extent != self.named


def functions_of(text: str, nodes: Iterable[Naming]) -> list[Function]:
    """The functions of *nodes*, each after those that contain it, by their lines."""
    lines = text.split("\n")
    spans = sorted(_spans(nodes), key=lambda each: (each[1].line, -each[1].closes))
    return [span.function(name, lines) for name, span in spans]


def _spans(nodes: Iterable[Naming]) -> Iterator[tuple[str, Span]]:
    """Qualified names of functions, and where they lie."""
    around: list[tuple[str, Naming]] = []
    for node in nodes:
        while around and node.extent[0] >= around[-1][1].extent[1]:
            around.pop()
        # In the naming node, but beside the named one: in a key, for example.
        is_beside = around and not around[-1][1].holds(node)
        if is_beside or len(around) >= MAX_DEPTH:
            continue
        name = f"{around[-1][0]}.{node.name}" if around else node.name
        around.append((name, node))
        if node.span is not None:
            yield name, node.span


def tidy(name: str) -> str:
    """A name as written - ``this. x``, ``'key'`` - in its shortest form."""
    name = "".join(name.split()).removeprefix("this.").strip("'\"")
    return name[:60] or "?"


# --- tree-sitter

Named = tuple[tree_sitter.Node | None, tree_sitter.Node]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grammar:
    """
    How functions are found in the tree that tree-sitter builds.

    Attributes:
        language: Its name, for errors.
        grammar: Of tree-sitter.
        types: Of all nodes that may name something.
        named: The node of the name (None: ``default``) and what is named, if a node
            names anything; it may name itself.
        block: Type of a body between braces.
        apart: Types of leading children that are not part of the signature, such as
            decorators.
    """

    language: str
    grammar: tree_sitter.Language
    types: Iterable[str]
    named: Callable[[tree_sitter.Node], Named | None]
    block: str
    apart: Sequence[str]

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
        return functions_of(text, self._namings(root))

    def _namings(self, root: tree_sitter.Node) -> Iterator[Naming]:
        # By a query: visiting all nodes from Python takes twice as long as parsing.
        cursor = tree_sitter.QueryCursor(_query(self.grammar, tuple(self.types)))
        cursor.set_max_start_depth(MAX_TREE_DEPTH)
        nodes = cursor.captures(root).get("node", [])
        for node in sorted(nodes, key=lambda node: (node.start_byte, -node.end_byte)):
            found = self.named(node)
            if found is not None:
                name, named = found
                yield Naming(
                    name=tidy(name.text.decode()) if name and name.text else "default",
                    extent=(node.start_byte, node.end_byte),
                    named=(named.start_byte, named.end_byte),
                    span=self._span(node, named),
                )

    def _span(self, holder: tree_sitter.Node, named: tree_sitter.Node) -> Span | None:
        body = named.child_by_field_name("body")
        if body is None or body.type != self.block:
            return None
        own = next(child for child in holder.children if child.type not in self.apart)
        # tree-sitter counts rows by "\n" alone, as editors do.
        return Span(
            line=own.start_point.row + 1,
            opens=body.start_point.row + 1,
            closes=body.end_point.row + 1,
            # What stands before the closing brace may be the opening one.
            shares=body.children[-2].end_point.row == body.end_point.row,
        )


@functools.cache
def _query(grammar: tree_sitter.Language, types: tuple[str, ...]) -> tree_sitter.Query:
    either = " ".join(f"({name})" for name in types)
    return tree_sitter.Query(grammar, f"[{either}] @node")


def _first_error(node: tree_sitter.Node) -> tree_sitter.Node:
    """The innermost part that holds the first error."""
    while not (node.is_error or node.is_missing):
        broken = [child for child in node.children if child.has_error]
        if not broken:
            break
        node = broken[0]
    return node
