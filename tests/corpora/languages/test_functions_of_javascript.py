"""JavaScript functions: one parser finds them, another one checks them."""

from dataclasses import replace
from importlib.metadata import distribution
from pathlib import Path

import pytest
from source_files import assert_verbatim, names_of, places_of

from codeneedle.corpora.languages import javascript
from codeneedle.corpora.languages.javascript import functions, phrase_of_unconfirmed

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


def test_every_function_is_named_by_what_holds_it():
    found = functions(ES2017)

    assert "" == phrase_of_unconfirmed(ES2017, found)
    assert_verbatim(ES2017, found)
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
    ] == places_of(found)


def test_a_function_that_esprima_does_not_see_is_named(golden):
    text = "function f() {\n  return 1;\n}\nvar g = () => {\n};\n"
    first, second = functions(text)

    moved = [replace(first, line=2), second]

    assert golden == phrase_of_unconfirmed(text, moved)


def test_a_long_text_is_not_checked_as_that_would_take_minutes():
    text = ES2017 + "\n" * javascript.MAX_CHECKED_CHARACTERS

    said = phrase_of_unconfirmed(text, functions(ES2017))

    assert "more than 1,000,000 characters" in said


@pytest.mark.parametrize("depth", [1_000, 70_000])
def test_functions_a_thousand_deep_are_found_to_a_depth_of_a_hundred(depth):
    """Beyond 65,535 levels a query of tree-sitter takes minutes without a limit."""
    found = functions("function f() {\n" * depth + "}\n" * depth)

    assert 100 == len(found)
    assert ".".join(["f"] * 100) == found[-1].name


def test_what_esprima_cannot_read_is_said_with_the_reason(golden):
    found = functions(NEWER)

    assert golden == phrase_of_unconfirmed(NEWER, found)
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
            ["x[function a(){}]", "x[function a(){}].b"],
        ),
    ],
)
def test_lines_are_those_of_the_file_to_both_parsers(text, names):
    """Only a newline ends a line, though to JavaScript U+2028 does too."""
    found = functions(text)

    assert "" == phrase_of_unconfirmed(text, found)
    assert_verbatim(text, found)
    assert names == names_of(found)


def test_both_parsers_read_jquery_alike():
    package = distribution("XStatic-jQuery")
    file = Path(str(package.locate_file("xstatic/pkg/jquery/data/jquery.js")))
    text = file.read_text(encoding="utf-8")
    found = functions(text)

    assert 422 == len(found)
    assert "" == phrase_of_unconfirmed(text, found)
    assert_verbatim(text, found)
