"""Python functions: verbatim lines, and the numbers an editor shows."""

import sysconfig
import warnings
from pathlib import Path

import pytest
from source_files import assert_verbatim, names_of

from codeneedle.corpora.languages.python import functions
from codeneedle.corpora.reading import decode_source_text

STDLIB = Path(sysconfig.get_path("stdlib"))


def only(text):
    (function,) = functions(text)
    return function


@pytest.mark.parametrize(
    ("text", "line", "signature", "body"),
    [
        (
            "x = 1\n\ndef f(a):\n    b = a\n    return b\n\ny = 2\n",
            3,
            "def f(a):",
            ("    b = a", "    return b"),
        ),
        ("@a\n@b(\n    1,\n)\ndef f():\n    pass\n", 5, "def f():", ("    pass",)),
        (
            'def f():\n\n    # why\n    """What."""\n    return 1\n',
            1,
            "def f():",
            ("", "    # why", '    """What."""', "    return 1"),
        ),
        ("def f(): return 1\n", 1, "def f(): return 1", ()),
        (
            'def f():\n    return """\n  a\n"""\n    # after\n',
            1,
            "def f():",
            ('    return """', "  a", '"""'),
        ),
    ],
    ids=["plain", "decorators", "comments above", "one line", "comments below"],
)
def test_a_function_is_its_signature_and_its_body(text, line, signature, body):
    function = only(text)

    assert ("f", line, signature) == (function.name, function.line, function.signature)
    assert body == function.body
    assert function.last_line_number == line + len(body)


QUALIFIED = """\
class A:
    class B:
        def f(self):
            def g():
                pass
            return g
"""
BRANCHES = """\
if a:
    def f(): pass
else:
    def g(): pass
try:
    def h(): pass
except E:
    def i(): pass
match a:
    case 1:
        def j(): pass
"""
NESTED = "".join(f"{' ' * depth}def f{depth}():\n" for depth in range(90))


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (QUALIFIED, ["A.B.f", "A.B.f.g"]),
        (BRANCHES, list("fghij")),
        (
            f"{NESTED}{' ' * 90}pass\n",
            [".".join(f"f{at}" for at in range(depth + 1)) for depth in range(90)],
        ),
    ],
    ids=["classes and functions", "branches and blocks", "deep nesting"],
)
def test_functions_are_found_wherever_they_stand(text, names):
    assert names == names_of(functions(text))


@pytest.mark.parametrize(
    "signature",
    [
        "def f(a: A = 1, *, b: B=':') -> dict[A,B]:",
        "def f(a=lambda x: x, b={1: 2}, c=[0][0:1]):",
        "def f(  # comment: colon\n    a,  # another :\n    b=(1,\n 2),\n):",
        "def f(a) -> (\n    int  # why: because\n):",
        "def f() -> lambda: int:",
        "def f(a='''\n:\n''') -> 'x:y':",
        "def f(a) \\\n  -> int \\\n  :",
        'def f(a=f"{1:>{2}}", b=":") -> int:  # why: 1',
        "async def f(\n\n\n):",
        "async \\\n  def f():",
        "def f(\n    # only: a comment\n):",
        "def f(a=(lambda: {1: 2})()[0:1]) -> (lambda: 0):",
    ],
)
def test_a_signature_ends_with_the_colon_that_opens_the_body(signature):
    function = only(f"{signature}\n    # first: a comment\n    return 1\n")

    assert signature == function.signature
    assert ("    # first: a comment", "    return 1") == function.body


@pytest.mark.parametrize(
    "text",
    [
        "def f():\n\tif 1:\n\t\treturn 2\n",
        "x = 1\n\x0c\ndef f():\n    a = '\x0c'\n\x0c    return a\n",
        "s = '\x1c\x1d\x85\u2028\u2029'\ndef f():\n    return '\x0b\u2028'\n",
        "def f():\n    return '\U0001f600'\n\ndef ñandú():\n    return 'é'\n",
        "def f():\n    return 1",
        "class A:\n  def f(self):\n     x = '''\n\ndef g(): pass\n'''\n     return x\n",
    ],
    ids=["tabs", "form feed", "other separators", "astral", "no end", "in a string"],
)
def test_lines_are_those_of_the_file(text):
    """Only a newline ends a line, so numbers agree with an editor's."""
    found = functions(text)

    assert_verbatim(text, found)
    assert found


def test_warnings_about_the_text_stay_inside():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        function = only("def f(x):\n    assert (x, 1)\n    return '\\d' is x\n")

    assert 2 == len(function.body)


def test_the_library_of_this_python_comes_out_verbatim():
    files = sorted(STDLIB.glob("*.py"))[:100]
    count = 0
    for file in files:
        text = decode_source_text(file.read_bytes(), label=file.name)
        found = functions(text)
        assert_verbatim(text, found)
        count += len(found)

    assert 1_000 < count
