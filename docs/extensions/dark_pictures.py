"""A picture ``x.svg`` that has an ``x-dark.svg`` beside it is shown by the theme."""

from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx


def _pair(app: Sphinx, tree: nodes.document) -> None:
    folder = Path(app.srcdir) / Path(app.env.docname).parent
    for image in [*tree.findall(nodes.image)]:
        light = Path(image["uri"])
        dark = light.with_name(f"{light.stem}-dark{light.suffix}")
        if not (folder / dark).is_file():
            continue
        other = image.deepcopy()
        other["uri"] = str(dark)
        image["classes"].append("only-light")
        other["classes"].append("only-dark")
        image.parent.insert(image.parent.index(image) + 1, other)


def setup(app: Sphinx) -> dict[str, bool]:
    """Pair pictures before Sphinx collects them."""
    app.connect("doctree-read", _pair, priority=100)
    return {"parallel_read_safe": True}
