"""Functions between braces are found in every language, verbatim."""

import pytest
from source_files import assert_verbatim, names_of, places_of

from codeneedle.corpora.languages import Unparsable, all_languages, language_of_suffix
from codeneedle.corpora.reading import decode_source_text

C = """\
#include <stdio.h>
#define TWICE(x) do { \\
  (x) * 2; } while (0)

/* Doc. */
static inline struct node *find(struct node *at, int (*cb)(int))
{
  struct node *next = at;
#ifdef DEBUG
  puts("{");
#else
  puts("}");
#endif
}

int (*chosen(void))(int) {
  return 0; }

int old(a, b)
  int a; char *b;
{
  return a;
}
"""

CPP = """\
namespace net::io {
namespace {

template <typename T>
[[nodiscard]] auto twice(T a) -> decltype(a + a) {
  auto inner = [&](int b) {
    return b;
  };
  return inner(a);
}

}  // namespace

// Doc.
template <class T>
class Box : public Base {
 public:
  explicit Box(int n)
      : n_(n) {
    fill();
  }
  Box(const Box &) = delete;
  ~Box() {
    drop();
  }
  operator bool() const {
    return n_;
  }
  bool operator==(const Box &o) const {
    return n_ == o.n_;
  }
  struct Part {
    T get() { return 1; }
  };
};

}

template <>
int &net::io::Box<int>::at(int i) const noexcept {
  return v[i];
}
"""

RUST = """\
//! Module.
use std::fmt;

/// Doc.
#[inline]
pub async fn plain<T: Copy>(a: T) -> Option<T>
where
    T: fmt::Debug,
{
    let held = |x| {
        x
    };
    Some(a)
}

impl<'a, T> Shape for Square<'a, T> {
    fn area(&self) -> f64 {
        self.side }

    const fn none() -> Self { Self {} }
}

mod inner {
    pub trait Named {
        fn name(&self) -> &str;
        fn long(&self) -> String {
            r#"}"#.to_string()
        }
    }
}

macro_rules! made {
    () => { fn never() { } };
}
"""

GO = """\
package main

// Run does.
func Run[T any](a T, b ...int) (int, error) {
\tdone := func(c int) int {
\t\treturn c
\t}
\treturn done(1), nil
}

func (s *Server[K, V]) Close() error {
\treturn nil
}

func (Empty) String() string { return `}
{` }

var handlers = map[string]func(){
\t"a": func() {
\t\tprintln("a")
\t},
}
"""

JAVA = """\
package a.b;

public class Server<T> extends Base {
    /** Doc. */
    @Override
    @SuppressWarnings("x")
    public <U extends T> List<U> all(
            int a) throws IOException {
        Runnable run = () -> {
            step();
        };
        return null;
    }

    @Inject Server() {
        super();
    }

    enum Kind {
        ONE {
            int size() {
                return 1;
            }
        };
        abstract int size();
    }

    record Point(int x) {
        Point {
            check(x);
        }
    }

    interface Named {
        String name();
        default String shout() {
            return name(); }
    }
}
"""

TYPESCRIPT = """\
import type { A } from './a';

declare function only(a: number): void;

export default abstract class Server<T extends object = {}> implements A {
  private readonly held = async (a: T): Promise<void> => {
    await a;
  };

  constructor(private a: number) {
    super();
  }

  @Get('/x')
  public get<K extends keyof T>(key: K): T[K] {
    return this.all[key]!;
  }

  abstract none(): void;
}

namespace Tools {
  export function over(a: string): string;
  export function over(a: unknown) {
    return a as string;
  }
}

export const made = <T,>(a: T): a is T => {
  return true;
};

const cast = ((a: number) => {
  return a;
}) satisfies Fn;

type Shape = { area(): number };
"""

TSX = """\
export function Page({ title }: Props): JSX.Element {
  const onClick = (e: Event): void => {
    go(e);
  };
  return (
    <Box<string> onClick={onClick}>{title}</Box>
  );
}
"""

PHP = """\
<?php
function plain(array $a): int
{
    return $a[0];
}
class Cart {
    #[Pure]
    public function add(int $a): static {
        return $this; }
}
"""

JAVASCRIPT = """\
const App = ({ a }) => {
  return <p title="}">{a}</p>;
};
class Tools {
  static async *run() {
    yield 1;
  }
}
"""

SOURCES = {
    "c": (
        C,
        [("find", 6, 2, 6, 1), ("chosen", 16, 1, 1, 0), ("old", 19, 3, 1, 1)],
    ),
    "cpp": (
        CPP,
        [
            ("net::io.twice", 5, 1, 4, 1),
            ("net::io.twice.inner", 6, 1, 1, 1),
            ("net::io.Box.Box", 18, 2, 1, 1),
            ("net::io.Box.~Box", 23, 1, 1, 1),
            ("net::io.Box.operator bool", 26, 1, 1, 1),
            ("net::io.Box.operator==", 29, 1, 1, 1),
            ("net::io.Box.Part.get", 33, 1, 0, 0),
            ("net::io::Box<int>::at", 40, 1, 1, 1),
        ],
    ),
    "go": (
        GO,
        [
            ("Run", 4, 1, 4, 1),
            ("Run.done", 5, 1, 1, 1),
            ("Server.Close", 11, 1, 1, 1),
            ("Empty.String", 15, 1, 1, 0),
            ("handlers.a", 19, 1, 1, 1),
        ],
    ),
    "java": (
        JAVA,
        [
            ("Server.all", 7, 2, 4, 1),
            ("Server.all.run", 9, 1, 1, 1),
            ("Server.Server", 15, 1, 1, 1),
            ("Server.Kind.ONE.size", 21, 1, 1, 1),
            ("Server.Point.Point", 29, 1, 1, 1),
            ("Server.Named.shout", 36, 1, 1, 0),
        ],
    ),
    "javascript": (JAVASCRIPT, [("App", 1, 1, 1, 1), ("Tools.run", 5, 1, 1, 1)]),
    "php": (PHP, [("plain", 2, 2, 1, 1), ("Cart.add", 8, 1, 1, 0)]),
    "rust": (
        RUST,
        [
            ("plain", 6, 4, 4, 1),
            ("plain.held", 10, 1, 1, 1),
            ("Square<'a,T>.area", 17, 1, 1, 0),
            ("Square<'a,T>.none", 20, 1, 0, 0),
            ("inner.Named.long", 26, 1, 1, 1),
        ],
    ),
    "tsx": (TSX, [("Page", 1, 1, 6, 1), ("Page.onClick", 2, 1, 1, 1)]),
    "typescript": (
        TYPESCRIPT,
        [
            ("Server.held", 6, 1, 1, 1),
            ("Server.constructor", 10, 1, 1, 1),
            ("Server.get", 15, 1, 1, 1),
            ("Tools.over", 24, 1, 1, 1),
            ("made", 29, 1, 1, 1),
            ("cast", 33, 1, 1, 1),
        ],
    ),
}
"""A text of each language, and the places of the functions in it."""

every_language = pytest.mark.parametrize("name", SOURCES)


def functions_of(name, text):
    return all_languages()[name].functions(text)


def kept_of(name, text):
    """The functions of a text with errors, too."""
    try:
        return functions_of(name, text)
    except Unparsable as error:
        return [*error.kept]


def assert_in_their_place(text, functions):
    """They are slices of *text*, each at its line, and the rest is around them."""
    assert_verbatim(text, functions)
    lines = text.split("\n")
    for function in functions:
        before, after = lines[: function.line - 1], lines[function.last_line_number :]
        closing = lines[
            function.last_line_number
            - function.closing_lines : function.last_line_number
        ]
        own = [function.signature, *function.body, *closing]
        assert text == "\n".join([*before, *own, *after])
        assert all(line.strip().startswith("}") for line in closing)


def test_each_language_with_braces_has_a_text_here():
    assert {*SOURCES} == {*all_languages()} - {"python"}


@every_language
def test_functions_are_found_with_their_names_and_lines(name):
    text, places = SOURCES[name]
    found = functions_of(name, text)

    assert places == places_of(found)
    assert_in_their_place(text, found)


@every_language
@pytest.mark.parametrize(
    "changed",
    [
        lambda text: text.replace("\n", "\r\n"),
        lambda text: text.replace("\n", "\r"),
        lambda text: f"\ufeff{text}",
        lambda text: text.replace("  ", "\t"),
        lambda text: text.replace("\n\n", "\n\x0c\n"),
        lambda text: text.rstrip("\n"),
        lambda text: text.replace("\n", " \n"),
    ],
    ids=["CRLF", "CR", "BOM", "tabs", "form feeds", "no last newline", "blanks"],
)
def test_line_ends_and_blanks_change_no_place(name, changed):
    text, places = SOURCES[name]
    read = decode_source_text(changed(text).encode(), label="x")
    found = kept_of(name, read)

    assert places == places_of(found)
    assert_in_their_place(read, found)


@every_language
def test_a_syntax_error_costs_no_function_but_those_around_it(name):
    text, places = SOURCES[name]
    broken = f"{text}\nclass ((( 1 2 {{\n"
    with pytest.raises(Unparsable) as caught:
        functions_of(name, broken)

    assert {*places_of(caught.value.kept)} <= {*places}
    assert len(places) - 1 <= len(caught.value.kept)
    assert_in_their_place(broken, caught.value.kept)
    assert all_languages()[name].title in str(caught.value)


@every_language
def test_a_text_in_one_line_has_functions_without_lines(name):
    text, _ = SOURCES[name]
    is_one_line = name in {
        "c",
        "go",
        "rust",
    }  # directives, ends of statements, comments
    one = "" if is_one_line else text.replace("\n", " ").replace("// Doc.", "")
    one = one.replace("// namespace", "")

    assert [] == [f for f in functions_of(name, f"{one}\n") if f.body]


@pytest.mark.parametrize("name", ["c", "java", "javascript", "typescript"])
def test_functions_by_the_thousand_in_one_line_are_none(name):
    """Each would have that line as its signature: 400 MB of it."""
    one = "void f(){}" if name in {"c", "java"} else "function f(){}"
    text = f"class A {{{one * 20_000}}}\n" if name == "java" else one * 20_000

    assert [] == functions_of(name, text)


@pytest.mark.parametrize(
    ("name", "opening"),
    [
        ("cpp", "namespace f {"),
        ("go", "var f = func() {"),
        ("java", "class f { void f() {"),
        ("rust", "fn f() {"),
        ("typescript", "function f() {"),
    ],
)
def test_functions_a_thousand_deep_are_found_to_a_depth_of_a_hundred(name, opening):
    head = "package a\n" if name == "go" else ""
    closing = "}" * opening.count("{")
    text = f"{head}{(opening + chr(10)) * 1_000}{(closing + chr(10)) * 1_000}"
    found = functions_of(name, text)

    assert (0 if name == "cpp" else 50) <= len(found) <= 100
    assert_in_their_place(text, found)


@pytest.mark.parametrize(
    ("suffix", "name"),
    [
        *((suffix, "cpp") for suffix in (".cpp", ".CC", ".hpp", ".cu")),
        *((suffix, "c") for suffix in (".c", ".h")),
        *((suffix, "typescript") for suffix in (".ts", ".mts", ".cts")),
        (".jsx", "javascript"),
        (".tsx", "tsx"),
    ],
)
def test_suffixes_tell_the_language(suffix, name):
    assert name == language_of_suffix(suffix, source="x").name


@pytest.mark.parametrize("text", [C, CPP], ids=["C", "C++"])
def test_a_header_is_c_or_c_plus_plus(text):
    found = language_of_suffix(".h", source="x").functions(text)

    assert next(iter(SOURCES["c" if text is C else "cpp"][1]))[0] == found[0].name
    assert_in_their_place(text, found)


@pytest.mark.parametrize("text", [TYPESCRIPT, TSX], ids=["TypeScript", "TSX"])
def test_javascript_with_types_is_read_by_the_grammar_of_types(text):
    name = "tsx" if text is TSX else "typescript"
    found = language_of_suffix(".js", source="x").functions(
        text.replace("<T,>", "<T extends A>")
    )

    assert [place[0] for place in SOURCES[name][1]] == names_of(found)


def test_types_of_flow_that_no_grammar_knows_cost_no_function_with_a_body():
    text = (
        "// @flow strict\n"
        "opaque type Name: string = string;\n"
        "function maybe(a: ?number): ?string {\n  return String(a);\n}\n"
        "function plain(a: number): string {\n  return String(a);\n}\n"
    )
    with pytest.raises(Unparsable) as caught:
        language_of_suffix(".js", source="x").functions(text)

    assert ["maybe", "plain"] == names_of(caught.value.kept)
    assert_in_their_place(text, caught.value.kept)


@pytest.mark.parametrize(
    ("name", "text", "names"),
    [
        # Macros that hold the place of a type, an attribute, a function.
        ("c", "static int __init start(void)\n{\n  return 1;\n}\n", ["start"]),
        ("cpp", "API_EXPORT int f() {\n  return 1;\n}\n", ["f"]),
        ("cpp", "TEST(Suite, Case) {\n  check();\n}\n", ["TEST"]),
        ("cpp", "__global__ void k() {\n}\nvoid f() {\n  k<<<1, 2>>>();\n}\n", ["k"]),
        ("cpp", 'extern "C" {\nint f() {\n  return 1;\n}\n}\n', ["f"]),
        ("go", "package a\nvar F = func() {\n\tg()\n}\n", ["F"]),
        ("rust", "static F: fn() = || {\n  g()\n};\n", ["F"]),
        ("rust", 'extern "C" fn f() {\n  unsafe { g() }\n}\n', ["f"]),
        ("java", "class A { B b; { b = () -> {\n c();\n}; } }\n", ["A.b"]),
        ("typescript", "const a = <B>((c: B) => {\n  d();\n});\n", []),
    ],
)
def test_what_stands_around_a_function_does_not_hide_it(name, text, names):
    found = kept_of(name, text)

    assert names == names_of(found)
    assert_in_their_place(text, found)
