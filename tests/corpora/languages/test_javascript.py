"""JavaScript functions: two parsers, one answer."""

from importlib.metadata import distribution
from pathlib import Path

import pytest
from source_files import assert_verbatim, names_of, places_of

from codeneedle.corpora.languages import Unparsable, javascript
from codeneedle.corpora.languages.javascript import functions

ES2017 = """\
'use strict';
function plain(a) {
  return a;
}

const arrow = async (x) => {
  return x;
};

var first = 1,
    second = function () {
      return 2;
    };

class Server {
  constructor(a) {
    this.a = a;
    this.close = function () {
      return 0;
    };
  }

  async handle(req, res) {
    return req;
  }

  static *all() {
    yield 1; }

  get size() {
    return 1;
  }

  ['computed' + 1]() {
    return 2;
  }
}

var tools = {
  run(x) {
    return x;
  },
  'quoted-key': function (y) {
    return y;
  },
  deep: {
    inner: (z) => {
      return z;
    }
  }
};

Tools.prototype . go = (function named(a) {
  function nested() {
    return a;
  }
  return nested;
});

call(function callback(error,
                       data) {
  return data; });

call(function () { return 'no name'; }, x => x);
const one = () => { return 1; };
const expression = x => [
  x,
];
"""

NEWER = """\
#!/usr/bin/env node
import x from 'y';

export default class Box {
  #secret = 1;
  static count = 0;

  held = async (a) => {
    return a?.b ?? 1;
  };

  #hidden() {
    return this.#secret;
  }

  @decorated
  @twice()
  marked(a) {
    return a;
  }
}

export const later = async function* () {
  for await (const a of b) yield a;
};

export default function () {
  return 1n;
}
"""


def both(text):
    """The functions by each of the two parsers."""
    return javascript._by_esprima(text), javascript._by_tree_sitter(text)


def test_both_parsers_name_every_function_by_what_holds_it():
    """
    Declarations, variables, methods, properties and assignments, qualified. A body lies
    between the lines of its braces; a closing one has a line of its own, or shares one
    that is of the body.
    """
    by_esprima, by_tree_sitter = both(ES2017)

    assert by_esprima == by_tree_sitter
    assert_verbatim(ES2017, by_esprima)
    assert [
        ("plain", 2, 1, 1, 1),
        ("arrow", 6, 1, 1, 1),
        ("second", 11, 1, 1, 1),
        ("Server.constructor", 16, 1, 4, 1),
        ("Server.constructor.close", 18, 1, 1, 1),
        ("Server.handle", 23, 1, 1, 1),
        ("Server.all", 27, 1, 1, 0),
        ("Server.size", 30, 1, 1, 1),
        ("Server.['computed'+1]", 34, 1, 1, 1),
        ("tools.run", 40, 1, 1, 1),
        ("tools.quoted-key", 43, 1, 1, 1),
        ("tools.deep.inner", 47, 1, 1, 1),
        ("Tools.prototype.go", 53, 1, 4, 1),
        ("Tools.prototype.go.nested", 54, 1, 1, 1),
        ("callback", 60, 2, 1, 0),
        ("one", 65, 1, 0, 0),
    ] == places_of(by_esprima)


def test_what_the_grammar_gets_wrong_is_read_by_esprima_unless_it_is_long():
    """
    The two differ at the edges of the language; a long text would take a minute.
    """
    text = "var a = 1\n<!-- an old comment\nfunction f() {\n  return a;\n}\n"
    assert ["f"] == names_of(functions(text))

    with pytest.raises(Unparsable):
        functions(text + "f(a);\n" * 40_000)


@pytest.mark.parametrize("depth", [1_000, 70_000])
def test_functions_a_thousand_deep_are_found_to_a_depth_of_a_hundred(depth):
    """
    Each holds the lines of all within it, so memory has to have an end. Beyond 65,535
    levels a query of tree-sitter takes minutes, unless its depth is limited.
    """
    found = functions("function f() {\n" * depth + "}\n" * depth)

    assert 100 == len(found)
    assert ".".join(["f"] * 100) == found[-1].name


def test_what_esprima_cannot_parse_is_read_by_tree_sitter():
    """
    Class fields, private names, decorators, optional chaining and the like.
    """
    found = functions(NEWER)

    assert javascript._by_esprima(NEWER) is None
    assert ["Box.held", "Box.#hidden", "Box.marked", "later", "default"] == (
        names_of(found)
    )
    assert "  marked(a) {" == found[2].signature
    assert_verbatim(NEWER, found)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (
            "/* a\u2028b\u2029c */\nfunction f() {\n  return `\u2028`; //\u2029\n}\n",
            ["f"],
        ),
        ("var s = '\U0001f600é';\nfunction f() {\n  return '\U0001f600'; }\n", ["f"]),
        ("/* \U0001f600\n\x0c\x85 */\nvar é = function () {\n\treturn 1;\n};\n", ["é"]),
        ("\x0cfunction f()\n{\n\tif (1) {\n\t\treturn `a\n}` }\n}\n", ["f"]),
        ("function f() {\n  return 1;\n}", ["f"]),
        ("import a from 'b';\nexport default () => {\n  a();\n};\n", ["default"]),
        ("function f() {\n}function g() {\n}\n", ["f", "g"]),
        ("var a = () => { var b = () => {\n};\n  1;\n};\n", ["a", "a.b"]),
        ("var a = () => b.c = () => {\n  1;\n};\n", ["a.b.c"]),
        # In a key, or on the left of an assignment, is not within the named.
        (
            "x[function a() {\n}] = () => {\n  var b = () => {\n  };\n};\n",
            ["x[functiona(){}]", "x[functiona(){}].b"],
        ),
    ],
)
def test_lines_are_those_of_the_file_to_both_parsers(text, names):
    """
    Only a newline ends a line, though to JavaScript U+2028 does too.
    """
    by_esprima, by_tree_sitter = both(text)

    assert by_esprima == by_tree_sitter
    assert_verbatim(text, by_esprima)
    assert names == names_of(by_esprima)


def test_both_parsers_read_jquery_alike():
    """
    In 10,000 lines of real code, each finds the same 422 functions, verbatim.
    """
    package = distribution("XStatic-jQuery")
    file = Path(str(package.locate_file("xstatic/pkg/jquery/data/jquery.js")))
    text = file.read_text(encoding="utf-8")
    by_esprima, by_tree_sitter = both(text)

    assert 422 == len(by_esprima)
    assert by_esprima == by_tree_sitter
    assert_verbatim(text, by_esprima)
