"""PHP functions: verbatim lines, and the numbers an editor shows."""

from source_files import assert_verbatim, places_of

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
    text = TEXT.replace("// why", "// \x0c\x85\u2028 why").replace("    ", "\t")
    found = functions(text)

    assert_verbatim(text, found)
    assert [
        ("total", 6, 2, 2, 1),
        ("Cart.add", 18, 3, 6, 0),
        ("Cart.add.$price", 21, 1, 3, 1),
        ("Cart.get", 28, 1, 0, 0),
        ("Counts.count", 31, 1, 1, 1),
        ("Suit.label", 35, 1, 1, 1),
        ("$this->held", 39, 1, 1, 1),
    ] == places_of(found)
