"""What a terminal gets of rich's renderables."""

import io

from rich.console import Console


def printed(*views, width=100, colour=False):
    """*views* as the commands print them to a terminal of *width* columns."""
    console = Console(
        file=io.StringIO(),
        width=width,
        highlight=False,
        force_terminal=colour,
        color_system="truecolor" if colour else None,
    )
    for view in views:
        # A line that is too long is not cut.
        console.print(view, crop=False)
    return console.file.getvalue()
