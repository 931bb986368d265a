"""What a file of a picture shows."""

import re
from base64 import b64decode
from pathlib import Path

import matplotlib.image as mpimg
import numpy as np


def ink(png: Path) -> float:
    """Share of the pixels of a PNG that have another colour than its corner."""
    pixels = mpimg.imread(png)[..., :3]
    return float(np.any(pixels != pixels[0, 0], axis=-1).mean())


def shapes(svg: Path) -> int:
    """How many paths and texts an SVG has, beside its background."""
    return len(re.findall(r"<(?:path|use|text)\b", svg.read_text("utf-8"))) - 1


def pictures_in(chart: str) -> list[str]:
    """The pictures inside of a *chart* of a page, as SVG."""
    found = re.findall(r"data:image/svg\+xml;base64,([^\"]+)", chart)
    return [b64decode(each).decode("utf-8") for each in found]
