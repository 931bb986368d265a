"""Corpora for a person: which there are, and what would be asked of one."""

from collections.abc import Iterable

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from codeneedle.corpus import Corpus
from codeneedle.errors import UnknownName
from codeneedle.needles import depth_of, needle_facts
from codeneedle.report.safetext import visible
from codeneedle.shelf import Named
from codeneedle.units import plural, size


def listing(named: Iterable[Named]) -> Table:
    """One line per corpus: its name, what a model can know of it, where it is from."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("corpus", style="bold", no_wrap=True)
    table.add_column("kind", no_wrap=True)
    table.add_column("origin", overflow="fold")
    for entry in named:
        table.add_row(entry.name, entry.kind, visible(entry.origin))
    return table


def overview(corpus: Corpus) -> RenderableType:
    """The corpus in a few facts, and the functions that would be asked for."""
    chosen = corpus.chosen()
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for heading in ("depth", "line", "lines"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("signature", overflow="fold")
    for function in chosen:
        depth = depth_of(function, line_count=corpus.line_count)
        signature = visible(" ".join(function.signature.split()))
        body = str(len(function.body))
        table.add_row(f"{depth:.0%}", str(function.line), body, Text(signature))
    return Group(
        Text(f"{corpus.name}: {visible(corpus.origin)}", style="bold"),
        Text(_facts(corpus, asked=len(chosen))),
        *(
            Text(f"left out: {visible(line)}", style="yellow")
            for line in corpus.left_out()
        ),
        Text(),
        table,
    )


def truth(corpus: Corpus, name: str) -> str:
    """
    What a model should answer when it is asked for the function *name*, verbatim.

    Raises:
        UnknownName: If no function of that name can be asked for.
    """
    for function in corpus.functions:
        if function.name == name or function.name.endswith(f".{name}"):
            return "\n".join(needle_facts(function, depth=0.0).lines)
    known = [function.name for function in corpus.functions]
    raise UnknownName(kind="function", name=name, known=known)


def _facts(corpus: Corpus, *, asked: int) -> str:
    functions = plural(corpus.functions_in_all, "function")
    length = size(corpus.size_bytes)
    if corpus.whole is None:
        length += f", {plural(corpus.line_count, 'line')}"
        where = ""
    else:
        where = f" in the first {size(len(corpus.text.encode()))}, the most one can"
    return (
        f"{corpus.kind}; {length}; {functions} of 20 lines or more with a signature "
        f"of their own, {asked} would be asked for{where}"
    )
