"""Draws the badge for a model card as SVG: two texts, each fitted into its width."""

from xml.sax.saxutils import escape, quoteattr

CHARACTER = 6.6
"""Width that a character is given, in pixels, in whatever font a reader has."""

PADDING, HEIGHT = 7, 20

LABEL_COLOUR, VALUE_COLOUR = "#555555", "#2e7d32"


def badge_svg(label: str, value: str, *, title: str) -> str:
    """
    An SVG of *label* and *value* side by side, with *title* for who points at it.

    It brings no font: each text is fitted into the width that it was given.
    """
    left, right = (2 * PADDING + CHARACTER * len(text) for text in (label, value))
    parts = (
        (label, 0.0, left, LABEL_COLOUR),
        (value, left, right, VALUE_COLOUR),
    )
    boxes = "".join(
        f'<rect x="{x:g}" width="{width:g}" height="{HEIGHT}" fill="{colour}"/>'
        f'<text x="{x + PADDING:g}" y="14" textLength="{width - 2 * PADDING:g}" '
        f'lengthAdjust="spacingAndGlyphs">{escape(text)}</text>'
        for text, x, width, colour in parts
    )
    whole = left + right
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{whole:g}" height="{HEIGHT}" '
        f'viewBox="0 0 {whole:g} {HEIGHT}" role="img" '
        f"aria-label={quoteattr(f'{label}: {value}')}><title>{escape(title)}</title>"
        f'<g font-family="sans-serif" font-size="11" fill="#ffffff">{boxes}</g></svg>\n'
    )
