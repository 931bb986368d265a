"""Documents as HTML."""

from rich.text import Text

from codeneedle.document import Facts, Grid, Heading, Lines, Table
from codeneedle.report.html import html


def test_every_block_has_its_element_and_no_text_is_markup():
    blocks = (
        Heading("<b>"),
        Grid(["f16"], ["q8_0"], [[Text("1.0")]]),
        Table(["name", "n"], [["<i>", "1"]], ["name"]),
        Facts([("word", "a & b")]),
        Lines(["first"], style="bold"),
        Lines(["x <y>"], copied="Commands"),
    )

    text = html(blocks)

    assert "<h3>&lt;b&gt;</h3>" in text
    assert '<th class="words">K \\ V</th><th>q8_0</th>' in text
    assert '<tr><td class="words">&lt;i&gt;</td><td>1</td></tr>' in text
    assert "<dl><dt>word</dt><dd>a &amp; b</dd></dl>" in text
    assert '<ul><li class="bold">first</li></ul>' in text
    assert "<pre>x &lt;y&gt;</pre>" in text
