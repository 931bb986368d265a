"""PHP functions: verbatim lines, and the numbers an editor shows."""

import pytest
from source_files import assert_verbatim, names_of

from codeneedle.corpora.languages.php import functions

TEXT = """\
<h1>é \U0001f600</h1>
<?php
namespace Shop\\Cart;

#[Pure]
function total(array $lines): int
{
    // why
    return array_sum($lines);
}

abstract class Cart extends Base
{
    abstract public function weigh();

    #[Route('/x')]
    #[Other]
    public static function add(
        int $a = 1,
    ): static {
        $price = function ($x) use ($a) {
            return <<<EOT
}
EOT;
        };
        return $price; }

    private function &get(string $k) { return $this->$k; }
}

trait Counts { function count() {
    return 1;
} }

enum Suit { case A; public function label(): string {
    return 'a';
} }

$this->held = function () {
    ?><b>}</b><?php
};
$short = fn($x) => $x;
$nobody = array_map(function ($x) {
    return $x;
}, []);
"""


def test_functions_methods_and_assigned_closures_are_found_verbatim():
    """
    Each by its name, qualified by class, trait, enum and function.
    """
    text = TEXT.replace("// why", "// \x0c\x85\u2028 why").replace("    ", "\t")
    found = functions(text)

    assert_verbatim(text, found)
    assert [
        "total",
        "Cart.add",
        "Cart.add.$price",
        "Cart.get",
        "Counts.count",
        "Suit.label",
        "$this->held",
    ] == names_of(found)


@pytest.mark.parametrize(
    ("name", "line", "signature", "body", "closing"),
    [
        (
            "total",
            6,
            "function total(array $lines): int\n{",
            ("    // why", "    return array_sum($lines);"),
            1,
        ),
        (
            "Cart.add.$price",
            21,
            "        $price = function ($x) use ($a) {",
            ("            return <<<EOT", "}", "EOT;"),
            1,
        ),
        (
            "$this->held",
            39,
            "$this->held = function () {",
            ("    ?><b>}</b><?php",),
            1,
        ),
        (
            "Cart.add",
            18,
            "    public static function add(\n        int $a = 1,\n    ): static {",
            (
                "        $price = function ($x) use ($a) {",
                "            return <<<EOT",
                "}",
                "EOT;",
                "        };",
                "        return $price; }",
            ),
            0,
        ),
        (
            "Cart.get",
            28,
            "    private function &get(string $k) { return $this->$k; }",
            (),
            0,
        ),
        (
            "Counts.count",
            31,
            "trait Counts { function count() {",
            ("    return 1;",),
            1,
        ),
    ],
)
def test_a_function_is_its_lines(name, line, signature, body, closing):
    """
    Attributes stay out; a brace on a line of its own ends the signature.
    """
    (function,) = (found for found in functions(TEXT) if found.name == name)

    assert (line, signature) == (function.line, function.signature)
    assert (body, closing) == (function.body, function.closing_lines)
