"""Documents as GitHub renders Markdown."""

from rich.text import Text

from codeneedle.document import Facts, Grid, Heading, Lines, Table
from codeneedle.report.markdown import markdown

EVIL = "<b>|*_`\x1b\n# x"


def test_every_block_has_its_form():
    blocks = (
        Heading("a_b"),
        Grid(["f16"], ["q8_0"], [[Text("1.0* ", "red")]]),
        Table(["name", "n\n/20"], [["x", "1   2"]], ["name"]),
        Facts([("word", "phrase")]),
        Lines(["first"], style="bold green"),
        Lines([""]),
        Lines(["a <b>", "c"], copied="Commands"),
    )

    folded = "<pre>\na &lt;b&gt;\nc\n</pre>\n</details>\n"
    assert [
        "### a\\_b",
        "| K \\\\ V | q8\\_0 |\n| :-- | --: |\n| f16 | 1.0\\* |",
        "| name | n /20 |\n| :-- | --: |\n| x | 1 2 |",
        "- word: phrase",
        "- **first**",
        f"<details><summary>Commands</summary>\n{folded}",
    ] == markdown(blocks).split("\n\n")


def test_no_text_is_markup():
    blocks = (
        Heading(EVIL),
        Lines([EVIL]),
        Facts([(EVIL, EVIL)]),
        Table([EVIL], [[EVIL]]),
        Lines([EVIL], copied=EVIL),
    )

    text = markdown(blocks)

    assert "<b>" not in text.replace("\\<", "")
    assert "\x1b" not in text
    assert 1 == text.count("\n# x")
