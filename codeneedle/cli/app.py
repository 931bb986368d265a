"""The command line: each command parses, calls, shows, and exits."""

import contextlib
import functools
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, NoReturn, TextIO, cast

import typer
from rich.console import Console
from rich.text import Text

import codeneedle
from codeneedle.cli.options import (
    CorpusName,
    CsvOption,
    JsonOption,
    MarkdownOption,
    MetricOption,
    ModelOption,
    OutOption,
    RunName,
    ServerOption,
    StrictIndent,
    asking,
    one_form,
)
from codeneedle.errors import CodeneedleError, refusal
from codeneedle.grid import Pair
from codeneedle.scoring.rounds import Reading
from codeneedle.sweep.request import DEFAULT_OUT, Request
from codeneedle.text import visible


class Lasting:
    """
    Writes to a stream as long as that can be written to, and to nothing afterwards.

    A terminal may be closed, the reader of a pipe go away, the disk of a log fill
    up: a sweep goes on all the same.
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
        """Hand on what is written, if possible."""
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def lasting_streams() -> Iterator[None]:
    """
    Make stderr a `Lasting` one, for good, and see that stdout is written.

    Raises:
        OSError: If stdout cannot be written to the end.
    """
    if sys.stderr is not None:
        sys.stderr = cast("TextIO", Lasting(sys.stderr))
    try:
        yield
    finally:
        if sys.stdout is not None:
            _flush(sys.stdout)


def _flush(stream: TextIO) -> None:
    try:
        stream.flush()
    except OSError:
        # Or else the interpreter tries again at its end, and complains itself.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        raise


corpora = typer.Typer(
    help="Look at the texts that a model can be asked to remember.",
    no_args_is_help=True,
)


@corpora.command("list")
def list_corpora() -> None:
    """List the corpora that have a name here."""
    from codeneedle.corpora import corpus
    from codeneedle.report.answers import listing

    Console(highlight=False).print(listing(corpus.names()))


@corpora.command("show")
def show_corpus(
    name: CorpusName,
    function: Annotated[
        str | None,
        typer.Argument(metavar="[FUNCTION]", help="Print what it should answer."),
    ] = None,
) -> None:
    """Show which functions would be asked, at what depth; or the truth of one."""
    from codeneedle.corpora import corpus
    from codeneedle.report.answers import overview, truth

    with _stderr().status("reading the corpus"):
        found = corpus.load(name)
    if function is None:
        Console(highlight=False).print(overview(found))
    else:
        typer.echo(truth(found, function))


def doctor(
    model: ModelOption = None,
    llama_server: ServerOption = None,
    *,
    json: JsonOption = False,
) -> None:
    """Tell what would run here, what is missing, and how to mend it."""
    from codeneedle.cli.doctor import diagnose, doctor_json, doctor_screen

    found = diagnose(llama_server=llama_server, model=model)
    if json:
        typer.echo(doctor_json(found), nl=False)
    else:
        Console(highlight=False).print(doctor_screen(found))
    raise typer.Exit(0 if found.is_ready else 3)


def llama(
    *,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Build even if another one is found.")
    ] = False,
) -> None:
    """Build llama.cpp into the cache folder, unless there is one already."""
    from codeneedle.cli.progress import ensure_llama

    typer.echo(
        ensure_llama(
            Console(stderr=True, highlight=False, soft_wrap=True), anyway=anyway
        )
    )


app = typer.Typer(
    help="What does a quantized KV cache cost? Sweeps the K type x V type grid on a "
    "real llama-server, and shows what breaks.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(corpora, name="corpus")


def _tell_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"codeneedle {codeneedle.__version__}")
        raise typer.Exit


@app.callback()
def common(
    *,
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_tell_version, is_eager=True, help="Show the version."
        ),
    ] = False,
) -> None:
    """What all commands have in common: nothing but the version."""


@app.command()
@asking
def sweep(
    request: Request,
    *,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Play failed cells again.")
    ] = False,
) -> None:
    """
    Run the grid: a fresh llama-server for each pair of cache types.

    The same command continues where it was stopped. Ctrl-C once ends after the
    current cell, twice at once.
    """
    from codeneedle.cli import sweep as sweep_module

    raise typer.Exit(sweep_module.sit(request, _stderr(), retry_failed=retry_failed))


@app.command()
@asking
def plan(request: Request) -> None:
    """Show what a sweep would do, without starting anything."""
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


@app.command()
def grid(
    name: RunName,
    metric: MetricOption = "matched",
    *,
    strict_indent: StrictIndent = False,
    csv: CsvOption = False,
    json: JsonOption = False,
    markdown: MarkdownOption = False,
    out: OutOption = DEFAULT_OUT,
) -> None:
    """Show a sweep's summary and its grid, K down and V across."""
    from codeneedle.report import export
    from codeneedle.report import grid as grid_module
    from codeneedle.report.selection import select

    one_form(csv=csv, json=json, markdown=markdown)
    shown = select(out, name, metric, strict_indent=strict_indent)
    if csv:
        text = export.grid_csv(shown.runs, shown.probe.metrics, shown.reading)
        typer.echo(text, nl=False)
    elif json:
        text = export.grid_json(shown.runs, shown.probe.metrics, shown.reading)
        typer.echo(text, nl=False)
    elif markdown:
        text = export.grid_markdown(shown.runs, shown.metric, shown.also, shown.reading)
        typer.echo(text, nl=False)
    else:
        report = grid_module.report(shown.runs, shown.metric, shown.also, shown.reading)
        _stdout().print(report, crop=False)


@app.command()
def heatmap(
    name: RunName,
    metric: MetricOption = "matched",
    *,
    difference: Annotated[
        bool, typer.Option("--difference", help="What each pair loses or gains.")
    ] = False,
    zoom: Annotated[
        bool, typer.Option("--zoom", help="Stretch the colours over the values.")
    ] = False,
    strict_indent: StrictIndent = False,
    out: OutOption = DEFAULT_OUT,
) -> None:
    """Draw a sweep's grid as PNG and SVG, and print where they are."""
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
        for path in pictures:
            typer.echo(path)


@app.command()
def table(
    name: RunName,
    *,
    sort: Annotated[
        str | None, typer.Option(metavar="METRIC", help="Best first, gaps last.")
    ] = None,
    strict_indent: StrictIndent = False,
    csv: CsvOption = False,
    json: JsonOption = False,
    markdown: MarkdownOption = False,
    out: OutOption = DEFAULT_OUT,
) -> None:
    """Show the whole price of each pair: what all probes say of it, in one row."""
    from codeneedle.report import export as export_module
    from codeneedle.report.selection import price_tables
    from codeneedle.report.table import table_view

    one_form(csv=csv, json=json, markdown=markdown)
    reading = Reading(strict_indent=strict_indent)
    tables = price_tables(out, name, reading, sort=sort)
    if csv:
        typer.echo(export_module.table_csv(tables), nl=False)
    elif json:
        typer.echo(export_module.table_json(tables, reading), nl=False)
    elif markdown:
        typer.echo(export_module.table_markdown(tables, reading), nl=False)
    else:
        _stdout().print(table_view(tables, reading), crop=False)


@app.command()
def memory(name: RunName, *, out: OutOption = DEFAULT_OUT) -> None:
    """Show the memory that each pair took, beside what was predicted."""
    from codeneedle.report.plan import measured_view
    from codeneedle.report.selection import read_runs

    for run in read_runs(out, name):
        _stdout().print(measured_view(run), crop=False)


@app.command()
def show(
    name: RunName,
    pair: Annotated[str, typer.Argument(metavar="K/V", help="For example q8_0/q4_0.")],
    function: Annotated[
        str | None, typer.Argument(metavar="[FUNCTION]", help="One of its rounds.")
    ] = None,
    *,
    strict_indent: StrictIndent = False,
    out: OutOption = DEFAULT_OUT,
) -> None:
    """Show what a pair answered: all rounds, or one of them line by line."""
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


@app.command("gen-corpus")
def gen_corpus(
    functions: Annotated[int, typer.Option(help="How many.")] = 200,
    value_len: Annotated[int, typer.Option(help="Characters of a literal.")] = 24,
    lines: Annotated[int, typer.Option(help="Body lines of a function.")] = 20,
    seed: Annotated[int, typer.Option(help="Same seed, same bytes.")] = 42,
    out: Annotated[
        Path, typer.Option("--out", metavar="PATH", help="The file to write.")
    ] = Path("corpora/random-bodies.py"),
) -> None:
    """Write a corpus that no model has seen and nothing can compress."""
    from codeneedle.corpora.random_bodies import Knobs, write

    knobs = Knobs(functions=functions, value_length=value_len, lines=lines, seed=seed)
    typer.echo(write(knobs, out))


app.command()(doctor)
app.command()(llama)


def main() -> None:
    """Entry point: the one place where an error becomes an exit code."""
    try:
        with lasting_streams():
            app()
    except CodeneedleError as error:
        _end(error)
    except Exception as error:
        refused = refusal(error)
        if refused is None:
            raise
        _end(refused)


def _end(error: CodeneedleError) -> NoReturn:
    stderr = _stderr()
    # Text, not markup: a path such as "kv[q8].toml" must print as it is.
    stderr.print(Text.assemble(("error: ", "bold red"), visible(str(error))))
    stderr.print(Text.assemble((" hint: ", "bold cyan"), visible(error.hint)))
    sys.exit(error.exit_code)


def _stdout() -> Console:
    return Console(highlight=False)


def _stderr() -> Console:
    return Console(stderr=True, highlight=False, soft_wrap=True)
