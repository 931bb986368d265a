"""The commands about texts: which there are, and what would be asked of one."""

from typing import Annotated

import typer
from rich.console import Console

from codeneedle.options import CorpusName

corpora = typer.Typer(
    help="Look at the texts that a model can be asked to remember.",
    no_args_is_help=True,
)


@corpora.command("list")
def list_corpora() -> None:
    """List the corpora that have a name here."""
    from codeneedle import corpus
    from codeneedle.report.corpora import listing

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
    from codeneedle import corpus
    from codeneedle.corpusscreen import reading
    from codeneedle.report.corpora import overview, truth

    with reading(Console(stderr=True)) as hears:
        found = corpus.load(name, hears=hears)
    if function is None:
        Console(highlight=False).print(overview(found))
    else:
        typer.echo(truth(found, function))
