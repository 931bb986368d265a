"""The corpora that have a name, and what would be asked of one."""

from collections.abc import Iterable

from codeneedle.corpora.corpus import FUNCTIONS, Corpus
from codeneedle.corpora.needles import FORCED_LINES, WRITTEN_LINES, depth_of
from codeneedle.corpora.registry import Named
from codeneedle.document import Document, Heading, Lines, Table
from codeneedle.errors import UnknownName
from codeneedle.report.data import attributes
from codeneedle.text import plural, size_text


def corpora_table(named: Iterable[Named]) -> Table:
    """One line per corpus: its name, kind and origin."""
    rows = [[corpus.name, corpus.kind, corpus.origin] for corpus in named]
    heading = ["corpus", "kind", "origin"]
    return Table(heading, rows, words=heading)


def corpora_objects(named: Iterable[Named]) -> list[dict[str, str]]:
    """The corpora for JSON: ``name``, ``kind``, ``origin``."""
    return [attributes(corpus, "name", "kind", "origin") for corpus in named]


def corpus_overview(corpus: Corpus) -> Document:
    """Facts of the corpus, what is left out or in doubt, and what would be asked."""
    written = {function.line for function in corpus.written_recall_functions()}
    forced = {
        function.line
        for function in corpus.forced_recall_functions(FUNCTIONS, FORCED_LINES)[
            :FUNCTIONS
        ]
    }
    yield Heading(f"{corpus.name}: {corpus.origin}")
    yield Lines([_corpus_facts(corpus, written=len(written), forced=len(forced))])
    yield Lines(
        [f"left out: {line}" for line in corpus.skipped_file_lines()], style="yellow"
    )
    yield Lines(
        [f"in doubt: {line}" for line in corpus.second_parser_doubt_lines()],
        style="yellow",
    )
    rows = []
    for function in corpus.functions:
        parts = [
            word
            for word, lines in (("written", written), ("forced", forced))
            if function.line in lines
        ]
        if parts:
            depth = depth_of(function, line_count=corpus.line_count)
            signature = " ".join(function.signature.split())
            place = [f"{depth:.0%}", str(function.line), str(len(function.body))]
            rows.append([*place, " and ".join(parts), signature])
    heading = ["depth", "line", "lines", "recall", "signature"]
    yield Table(heading, rows, words=heading[3:])


def right_answer_lines(corpus: Corpus, name: str) -> str:
    """
    The right answer for the first function that is called *name* or ``CLASS.name``.

    At most `WRITTEN_LINES` of its lines are not blank.

    Raises:
        UnknownName: If no function of that name can be asked for.
    """
    for function in corpus.functions:
        if function.name == name or function.name.endswith(f".{name}"):
            end = function.nonblank_indices[:WRITTEN_LINES][-1] + 1
            return "\n".join(function.body[:end])
    known = [function.name for function in corpus.functions]
    raise UnknownName(kind="function", name=name, known=known)


def _corpus_facts(corpus: Corpus, *, written: int, forced: int) -> str:
    """Kind, length and functions of a corpus, and how many would be asked for."""
    functions = plural(len(corpus.functions), "function")
    length = f"{size_text(corpus.size_bytes)}, {plural(corpus.line_count, 'line')}"
    asked = [
        f"{lines} lines of {count} functions would be {how}"
        for lines, count, how in (
            (WRITTEN_LINES, written, "written"),
            (FORCED_LINES, forced, "forced"),
        )
        if count
    ]
    asked_for = " and ".join(asked) or "no function can be asked for"
    return (
        f"{corpus.kind}; {length}; {functions} of {FORCED_LINES} lines or more with a "
        f"signature and a body of their own; of the whole text, {asked_for}"
    )
