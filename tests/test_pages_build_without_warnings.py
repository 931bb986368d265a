"""The documentation builds without a warning, and what is wrong in it is one."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from codeneedle.probes import PROBES

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
sys.path.append(str(ROOT / "scripts"))
import pictures  # noqa: E402 - found in the folder just added

pytestmark = pytest.mark.slow


def built(source, into):
    """What Sphinx ends with, as `make docs` calls it."""
    words = ("--fail-on-warning", "--keep-going", "--quiet", "-c", DOCS, source, into)
    return subprocess.run(
        (sys.executable, "-m", "sphinx", *words),
        capture_output=True,
        text=True,
        check=False,
    )


def test_every_page_builds_without_a_warning(tmp_path):
    done = built(DOCS, tmp_path)

    assert "" == done.stderr
    assert 0 == done.returncode
    assert {page.stem for page in DOCS.glob("*.md")} <= {
        page.stem for page in tmp_path.glob("*.html")
    }


def test_every_probe_has_a_section():
    page = (DOCS / "probes.md").read_text(encoding="utf-8")

    assert {*PROBES} <= {*re.findall(r"^## (\w+)$", page, re.MULTILINE)}


def test_what_is_wrong_in_a_page_is_told(tmp_path):
    source = tmp_path / "source"
    (source / "static").mkdir(parents=True)
    (source / "index.md").write_text(
        "# Title\n\n[gone](gone.md) [nowhere](#nowhere)\n\n`--max-los 1%`\n\n"
        "```sh\ncodeneedle grid NAME --metrics kld\n```\n\n"
        "`codeneedle gird` `make sweeps`\n\n![](gone.svg)\n"
    )
    (source / "orphan.md").write_text("# Out of the index\n")

    done = built(source, tmp_path / "built")

    assert done.returncode != 0
    told = done.stderr
    for words in (
        "gone.md",
        "nowhere",
        "--max-los is an option of no command",
        "No such option: --metrics",
        "gird is no command",
        "sweeps is no target",
        "gone.svg",
        "orphan.md: WARNING: document isn't included in any toctree",
    ):
        assert words in told


@pytest.mark.parametrize("name", pictures.PICTURES)
def test_a_picture_is_drawn_for_light_and_dark_pages(name, tmp_path):
    light, dark = pictures.draw(tmp_path, [name])

    assert light.read_bytes() != dark.read_bytes()
    assert (DOCS / "pictures" / dark.name).is_file()


def test_the_readme_has_a_picture_for_light_and_one_for_dark_pages(tmp_path):
    drawn = pictures.draw_readme(pictures.SMOLLM2, tmp_path)

    shown = re.findall(r'"\.github/(\S+\.png)"', (ROOT / "README.md").read_text())
    assert {file.name for file in drawn} == {*shown}


def test_every_picture_is_one_that_the_script_draws():
    names = (*pictures.PICTURES, pictures.BUDGET, pictures.TASK, pictures.LENGTH)
    drawn = {f"{name}{end}" for name in names for end in pictures.THEMES}

    assert drawn == {file.stem for file in (DOCS / "pictures").iterdir()}
