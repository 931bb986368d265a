"""The command line: each command parses, calls, shows, and exits."""

import functools
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.text import Text

import codeneedle
from codeneedle.corpuscli import corpora
from codeneedle.errors import CodeneedleError
from codeneedle.grid import Pair
from codeneedle.lasting import lasting_streams
from codeneedle.machinecli import doctor, llama
from codeneedle.options import (
    CsvOption,
    JsonOption,
    MarkdownOption,
    MetricOption,
    OutOption,
    RunName,
    StrictIndent,
    asking,
)
from codeneedle.optionvalues import one_form
from codeneedle.refusals import refusal
from codeneedle.report.safetext import visible
from codeneedle.request import DEFAULT_OUT, Request
from codeneedle.scored_rounds import Reading

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
    from codeneedle import sitting

    raise typer.Exit(sitting.sit(request, _stderr(), retry_failed=retry_failed))


@app.command()
@asking
def plan(request: Request) -> None:
    """Show what a sweep would do, without starting anything."""
    from codeneedle import planning
    from codeneedle.corpus import load
    from codeneedle.corpusscreen import reading
    from codeneedle.probes import probes_named
    from codeneedle.report.planned import plan_view
    from codeneedle.request import pages

    probes_named(request.probes)
    with reading(_stderr()) as hears:
        read = functools.cache(functools.partial(load, hears=hears))
        plans = [planning.plan(page, read=read) for page in pages(request)]
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
    from codeneedle.report import grid as grids
    from codeneedle.view import view

    one_form(csv=csv, json=json, markdown=markdown)
    whole = csv or json
    shown = view(out, name, metric, strict_indent=strict_indent, all_metrics=whole)
    if csv:
        text = export.to_csv(shown.runs, shown.probe.metrics, shown.reading)
        typer.echo(text, nl=False)
    elif json:
        text = export.to_json(shown.runs, shown.probe.metrics, shown.reading)
        typer.echo(text, nl=False)
    elif markdown:
        text = export.to_markdown(shown.runs, shown.metric, shown.also, shown.reading)
        typer.echo(text, nl=False)
    else:
        report = grids.report(shown.runs, shown.metric, shown.also, shown.reading)
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
    from codeneedle.view import view

    shown = view(out, name, metric, strict_indent=strict_indent, all_metrics=False)
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
    from codeneedle.report import tableexport
    from codeneedle.report.table import table_view
    from codeneedle.view import price_tables

    one_form(csv=csv, json=json, markdown=markdown)
    reading = Reading(strict_indent=strict_indent)
    is_whole = csv or json
    tables = price_tables(out, name, reading, sort=sort, shown_alone=not is_whole)
    if csv:
        typer.echo(tableexport.to_csv(tables), nl=False)
    elif json:
        typer.echo(tableexport.to_json(tables, reading), nl=False)
    elif markdown:
        typer.echo(tableexport.to_markdown(tables, reading), nl=False)
    else:
        _stdout().print(table_view(tables, reading), crop=False)


@app.command()
def memory(name: RunName, *, out: OutOption = DEFAULT_OUT) -> None:
    """Show the memory that each pair took, beside what was predicted."""
    from codeneedle.report.memory import measured_view
    from codeneedle.view import whole_runs

    for run in whole_runs(out, name, tokens=False):
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
    from codeneedle.view import view

    shown = view(out, name, "matched", strict_indent=strict_indent)
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
    from codeneedle.generating import write
    from codeneedle.random_bodies import Knobs

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
