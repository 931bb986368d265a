"""The command line: each command reads its arguments, calls, shows and returns."""

import contextlib
import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

import codeneedle
from codeneedle.cli import options
from codeneedle.cli.options import Argument, number, option, path, place, switch, word
from codeneedle.errors import (
    BadInput,
    CodeneedleError,
    UnknownName,
    refusal,
)
from codeneedle.text import visible, visible_lines

if TYPE_CHECKING:
    from rich.console import Console

    from codeneedle.sweep.request import Request

ABOUT = (
    "What does a quantized KV cache cost? Sweeps the grid of K types x V types on a "
    "real\nllama-server and shows what breaks."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """
    One command.

    Attributes:
        name: One word, or two where the first names a group.
        run: Takes the values of its arguments; returns the exit code, None for 0.
        arguments: What it takes.
        plans: Whether it takes a `Request` and everything that makes one.
    """

    name: str
    run: Callable[..., int | None]
    arguments: tuple[Argument, ...]
    plans: bool = False

    @property
    def help(self) -> str:
        """What it does: a sentence, and maybe more after a blank line."""
        return inspect.cleandoc(self.run.__doc__ or "")

    def call(self, words: Sequence[str]) -> int:
        """
        Run it with the arguments that stand in *words*.

        Returns:
            The exit code.

        Raises:
            CodeneedleError: If the arguments are wrong, or the command fails.
        """
        if not self.plans:
            return self.run(**self._parsed(words, self.arguments)) or 0
        ours, server_args = options.split_server_args(words)
        given = self._parsed(
            ours, (options.SWEEP_NAME, *options.sweep_options(), *self.arguments)
        )
        own = {
            each.name: given.pop(each.name)
            for each in self.arguments
            if each.name in given
        }
        if server_args:
            given["server_args"] = server_args
        return self.run(options.request_of(given), **own) or 0

    def _parsed(
        self, words: Sequence[str], arguments: Sequence[Argument]
    ) -> dict[str, Any]:
        return options.parsed(
            words,
            arguments,
            prog=f"codeneedle {self.name}",
            description=self.help,
            after="[-- ARGS]" if self.plans else "",
        )


COMMANDS: dict[str, Command] = {}
"""All commands by name, in the order of the help text."""


def command(
    name: str, *arguments: Argument, plans: bool = False
) -> Callable[[Callable[..., int | None]], Callable[..., int | None]]:
    """Enter a function into `COMMANDS`; its docstring becomes the help text."""

    def entered(run: Callable[..., int | None]) -> Callable[..., int | None]:
        COMMANDS[name] = Command(name=name, run=run, arguments=arguments, plans=plans)
        return run

    return entered


@command("sweep", switch("--retry-failed", "Run failed cells again."), plans=True)
def sweep(request: "Request", *, retry_failed: bool = False) -> int:
    """
    Run the grid: a fresh llama-server for each pair of cache types.

    The same command continues where it was stopped. Ctrl-C once ends after the
    current cell, twice at once.
    """
    from codeneedle.cli import sweep as sweep_module

    return sweep_module.sit(request, _stderr(), retry_failed=retry_failed)


@command("plan", plans=True)
def plan(request: "Request") -> None:
    """Show what a sweep would do, without starting a server."""
    from codeneedle.corpora.corpus import load
    from codeneedle.probes import probes_named
    from codeneedle.report.plan import plan_view
    from codeneedle.sweep import plan as plan_module
    from codeneedle.sweep.request import pages

    probes_named(request.probes)
    with _stderr().status("reading the corpus"):
        read = functools.cache(load)
        plans = [plan_module.plan(page, read=read) for page in pages(request)]
    for planned in plans:
        _stdout().print(plan_view(planned, probes=request.probes), crop=False)


@command(
    "grid",
    options.NAME,
    options.METRIC,
    options.STRICT_INDENT,
    *options.FORMS,
    options.OUT,
)
def grid(
    name: str,
    metric: str = "matched",
    *,
    strict_indent: bool = False,
    csv: bool = False,
    json: bool = False,
    markdown: bool = False,
    out: Path = options.RUNS,
) -> None:
    """Show a sweep's summary and its grid, K down and V across."""
    from codeneedle.report import export
    from codeneedle.report import grid as grid_module
    from codeneedle.report.selection import select

    options.one_form(csv=csv, json=json, markdown=markdown)
    shown = select(out, name, metric, strict_indent=strict_indent)
    if csv:
        _write(export.grid_csv(shown.runs, shown.probe.metrics, shown.reading))
    elif json:
        _write(export.grid_json(shown.runs, shown.probe.metrics, shown.reading))
    elif markdown:
        _write(
            export.grid_markdown(shown.runs, shown.metric, shown.also, shown.reading)
        )
    else:
        report = grid_module.report(shown.runs, shown.metric, shown.also, shown.reading)
        _stdout().print(report, crop=False)


@command(
    "heatmap",
    options.NAME,
    options.METRIC,
    switch("--difference", "Draw what each pair loses or gains against the reference."),
    switch("--zoom", "Stretch the colours over the values that occur."),
    options.STRICT_INDENT,
    options.OUT,
)
def heatmap(
    name: str,
    metric: str = "matched",
    *,
    difference: bool = False,
    zoom: bool = False,
    strict_indent: bool = False,
    out: Path = options.RUNS,
) -> None:
    """Draw a sweep's grid as PNG and SVG, and print their paths."""
    from codeneedle.report.heatmap import draw
    from codeneedle.report.selection import select

    shown = select(out, name, metric, strict_indent=strict_indent)
    for run in shown.runs:
        pictures = draw(
            run,
            shown.metric,
            shown.reading,
            difference=difference,
            zoom=zoom,
            folder=out / run.name,
        )
        for picture in pictures:
            _write(f"{picture}\n")


@command(
    "table",
    options.NAME,
    option("--sort", "METRIC", word, "Best first, pairs without a value last."),
    options.STRICT_INDENT,
    *options.FORMS,
    options.OUT,
)
def table(
    name: str,
    *,
    sort: str | None = None,
    strict_indent: bool = False,
    csv: bool = False,
    json: bool = False,
    markdown: bool = False,
    out: Path = options.RUNS,
) -> None:
    """Show one row per pair: what all probes measured of it."""
    from codeneedle.report import export
    from codeneedle.report.selection import pair_tables
    from codeneedle.report.table import table_view
    from codeneedle.scoring.rounds import Reading

    options.one_form(csv=csv, json=json, markdown=markdown)
    reading = Reading(strict_indent=strict_indent)
    tables = pair_tables(out, name, reading, sort=sort)
    if csv:
        _write(export.table_csv(tables))
    elif json:
        _write(export.table_json(tables, reading))
    elif markdown:
        _write(export.table_markdown(tables, reading))
    else:
        _stdout().print(table_view(tables, reading), crop=False)


@command("memory", options.NAME, options.OUT)
def memory(name: str, *, out: Path = options.RUNS) -> None:
    """Show the memory that each pair took, beside what was predicted."""
    from codeneedle.report.plan import measured_view
    from codeneedle.report.selection import read_runs

    for run in read_runs(out, name):
        _stdout().print(measured_view(run), crop=False)


@command(
    "show",
    options.NAME,
    place("pair", "K/V", "For example q8_0/q4_0."),
    place("function", "FUNCTION", "Show this round alone.", is_required=False),
    options.STRICT_INDENT,
    options.OUT,
)
def show(
    name: str,
    pair: str,
    function: str | None = None,
    *,
    strict_indent: bool = False,
    out: Path = options.RUNS,
) -> None:
    """Show what a pair answered: all rounds, or one of them line by line."""
    from codeneedle.grid import Pair
    from codeneedle.report.answers import answers
    from codeneedle.report.selection import select

    shown = select(out, name, "matched", strict_indent=strict_indent)
    console = _stdout()
    for part in answers(
        shown.runs,
        Pair.parse(pair),
        function,
        shown.reading,
        width=console.width,
        colour=console.color_system is not None,
    ):
        console.print(part)


@command("corpus list")
def list_corpora() -> None:
    """List the corpora that have a name here."""
    from codeneedle.corpora import corpus
    from codeneedle.report.answers import listing

    _stdout().print(listing(corpus.names()))


@command(
    "corpus show",
    options.CORPUS_NAME,
    place("function", "FUNCTION", "Print its body alone.", is_required=False),
)
def show_corpus(name: str, function: str | None = None) -> None:
    """Show what would be asked of a corpus, or the body of one function."""
    from codeneedle.corpora import corpus
    from codeneedle.report.answers import overview, truth

    with _stderr().status("reading the corpus"):
        found = corpus.load(name)
    if function is None:
        _stdout().print(overview(found))
    else:
        _write_verbatim(f"{truth(found, function)}\n")


@command(
    "gen-corpus",
    option("--functions", "N", number, "How many functions.", "200"),
    option("--value-len", "N", number, "Characters of each literal.", "24"),
    option("--lines", "N", number, "Lines of each function's body.", "20"),
    option("--seed", "N", number, "The same seed gives the same bytes.", "42"),
    option("--out", "FILE", path, "Default: corpora/random-bodies-SEED.py."),
)
def gen_corpus(
    functions: int = 200,
    value_len: int = 24,
    lines: int = 20,
    seed: int = 42,
    out: Path | None = None,
) -> None:
    """Write a corpus that no model has seen and nothing can compress."""
    from codeneedle.corpora.random_bodies import Knobs, write
    from codeneedle.corpora.registry import generated_path

    knobs = Knobs(functions=functions, value_length=value_len, lines=lines, seed=seed)
    _write(f"{write(knobs, generated_path(knobs, out))}\n")


@command("doctor", options.MODEL, options.LLAMA_SERVER, options.JSON)
def doctor(
    model: Path | None = None, llama_server: Path | None = None, *, json: bool = False
) -> int:
    """Show what would run here, what is missing, and how to fix it."""
    from codeneedle.cli.doctor import diagnose, doctor_json, doctor_screen

    found = diagnose(llama_server=llama_server, model=model)
    if json:
        _write(doctor_json(found))
    else:
        _stdout().print(doctor_screen(found))
    return 0 if found.is_ready else 3


@command("llama", switch("--anyway", "Build even if one is installed already."))
def llama(*, anyway: bool = False) -> None:
    """Build llama.cpp into the cache folder, unless one is installed already."""
    from codeneedle.cli.progress import ensure_llama

    _write(f"{ensure_llama(_stderr(), anyway=anyway)}\n")


# --- from words to a command


def run(words: Sequence[str]) -> int:
    """
    Run the command that *words* name.

    Returns:
        The exit code.

    Raises:
        CodeneedleError: If there is no such command, or it fails.
    """
    _refuse_closed_stdout(words)
    for count in (2, 1):
        found = COMMANDS.get(" ".join(words[:count]))
        if found:
            return found.call(words[count:])
    groups = {name.split()[0] for name in COMMANDS if " " in name}
    match list(words):
        case []:
            return _told(help_text(), code=2)
        case ["--help" | "-h", *_]:
            return _told(help_text())
        case [group] if group in groups:
            return _told(help_text(f"{group} "), code=2)
        case [group, "--help" | "-h", *_] if group in groups:
            return _told(help_text(f"{group} "))
        case ["--version"]:
            return _told(f"codeneedle {codeneedle.__version__}\n")
        case ["--version", extra, *_]:
            raise BadInput(
                source="--version",
                reason=f"takes no arguments, so not '{extra}'",
                hint="Run: codeneedle --version",
            )
        case [first, *rest]:
            name = " ".join([first, *rest[:1]]) if first in groups else first
    kind = "option" if first.startswith("-") else "command"
    raise UnknownName(kind=kind, name=name, known=list(COMMANDS))


def _refuse_closed_stdout(words: Sequence[str]) -> None:
    if sys.stdout is None and words[:1] != ["sweep"]:
        raise BadInput(
            source="stdout",
            reason="is closed, so the result cannot be printed",
            hint="Redirect it to a file or to /dev/null instead of closing it.",
        )


def _told(text: str, *, code: int = 0) -> int:
    _write(text)
    return code


def help_text(group: str = "") -> str:
    """All commands with a line each, or those whose name begins with *group*."""
    shown = [each for each in COMMANDS.values() if each.name.startswith(group)]
    width = max(len(each.name) for each in shown)
    lines = (f"  {each.name:<{width}}  {each.help.splitlines()[0]}\n" for each in shown)
    return (
        f"usage: codeneedle {group}COMMAND [ARGUMENTS]\n\n{ABOUT}\n\ncommands:\n"
        f"{''.join(lines)}\n"
        "codeneedle COMMAND --help shows the arguments of a command,\n"
        "codeneedle --version the version.\n"
    )


def main() -> None:
    """Entry point: the one place where an error becomes an exit code."""
    try:
        with reliable_streams():
            code = run(sys.argv[1:])
    except CodeneedleError as error:
        code = _tell(error)
    except BrokenPipeError:
        # The reader of our output has gone, as in: codeneedle grid NAME | head
        code = 1
    except Exception as error:
        refused = refusal(error)
        if refused is None:
            raise
        code = _tell(refused)
    sys.exit(code)


def _tell(error: CodeneedleError) -> int:
    """
    Print *error* and its hint; returns its exit code.

    Does without rich: memory may be too short to import it.
    """
    is_plain = not (sys.stderr and sys.stderr.isatty()) or "NO_COLOR" in os.environ
    for label, text, colour in (
        ("error: ", str(error), 31),
        (" hint: ", error.hint, 36),
    ):
        styled = label if is_plain else f"\x1b[1;{colour}m{label}\x1b[0m"
        if sys.stderr:
            sys.stderr.write(f"{styled}{visible(text)}\n")
    return error.exit_code


# --- streams


class BestEffort:
    """
    A text stream whose write errors are ignored.

    Progress goes to stderr: a sweep goes on after its terminal was closed, the reader
    of its pipe went away, or the disk of its log filled up.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write *text*, if possible."""
        # ValueError: the stream is closed.
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush, if possible."""
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def reliable_streams() -> Iterator[None]:
    """
    Ignore write errors on stderr; report them on stdout.

    Raises:
        OSError: If stdout cannot be written to the end.
    """
    if sys.stderr is not None:
        sys.stderr = cast("TextIO", BestEffort(sys.stderr))
    try:
        yield
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        # Else the interpreter flushes again at its end, and prints a traceback.
        with contextlib.suppress(OSError, AttributeError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise


def _write(text: str) -> None:
    sys.stdout.write(text)


def _write_verbatim(text: str) -> None:
    """Write *text* unchanged; to a terminal, with control characters as escapes."""
    if sys.stdout.isatty():
        sys.stdout.write(visible_lines(text))
    else:
        sys.stdout.flush()
        sys.stdout.buffer.write(text.encode())


def _stdout() -> "Console":
    from rich.console import Console

    return Console(highlight=False)


def _stderr() -> "Console":
    from rich.console import Console

    return Console(stderr=True, highlight=False, soft_wrap=True)
