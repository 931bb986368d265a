"""What a terminal gets of rich's renderables."""

import io

from rich.console import Console
from rich.protocol import is_renderable

from codeneedle.report.terminal import render


def printed(*views, width=100, colour=False):
    """
    What a terminal of *width* columns gets of *views*: documents, or what rich draws.
    """
    console = Console(
        file=io.StringIO(),
        width=width,
        highlight=False,
        force_terminal=colour,
        color_system="truecolor" if colour else None,
    )
    for view in views:
        # A line that is too long is not cut.
        shown = view if is_renderable(view) else render(view)
        console.print(shown, crop=False)
    return console.file.getvalue()
