"""Functions are verbs or what they return; variables and docstrings say what is."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import module_map

PACKAGE = Path(__file__).parents[1] / "codeneedle"

MOST = {
    "participle": 0,
    "each": 0,
    "docstring": 0,
    "error": 0,
    "done": 0,
    "nothing": 0,
}
"""By kind of name, how many the package may have; to be lowered as some go."""

PARTICIPLES = frozenset(
    [
        "told",
        "shown",
        "known",
        "sent",
        "made",
        "found",
        "kept",
        "taken",
        "given",
        "held",
        "built",
        "begun",
        "done",
        "said",
        "seen",
        "written",
        "drawn",
        "brought",
        "chosen",
        "driven",
        "fallen",
        "grown",
        "heard",
        "hidden",
        "lost",
        "meant",
        "met",
        "paid",
        "spoken",
        "taught",
        "thought",
        "thrown",
        "understood",
        "worn",
        "won",
        "bound",
        "grown",
    ]
)
"""Those that do not end in -ed."""

NOUNS = frozenset({"need", "seed", "speed", "feed"})


def is_participle(node: ast.FunctionDef) -> bool:
    """Whether the name of *node* is one word that does not say what is done."""
    word = node.name.strip("_")
    is_regular = word.endswith("ed") and word not in NOUNS
    return "_" not in word and (is_regular or word in PARTICIPLES)


ERRORS = re.compile(
    r"(\w*Error|Bad\w+|\w+Unusable|TooLong|Tool(Failed|Missing)|OtherSetup|Refused)"
)
"""Types of what is raised, as functions that make it are annotated."""


def makes_unnamed_error(node: ast.FunctionDef) -> bool:
    """Whether *node* returns an error, and its name does not say so."""
    kind = ast.unparse(node.returns or ast.Constant("")).removesuffix(" | None")
    return bool(ERRORS.fullmatch(kind)) and "error" not in node.name


def describes_nothing(node: ast.FunctionDef) -> bool:
    """Whether *node* returns nothing, and its docstring begins with a thing."""
    is_done = isinstance(node.returns, ast.Constant) and node.returns.value is None
    text = ast.get_docstring(node) or ""
    return is_done and bool(re.match(r"(The|An?|What|Where|Why|Whether|How)\b", text))


TEXT = re.compile(r"_*why_\w+|\w+_(phrase|line|note|label|sentence|hint)")
"""Names of functions whose text is empty where there is nothing to say."""


def hides_nothing_found(node: ast.FunctionDef) -> bool:
    """Whether *node* gives None where its name promises a text, or the reverse."""
    gives = ast.unparse(node.returns or ast.Constant(""))
    if TEXT.fullmatch(node.name):
        return gives.endswith("| None") and "find_" not in node.name
    is_search = node.name.strip("_").startswith("find_") and "_or_" not in node.name
    return is_search and not re.search(r"None|Iterator|list|set", gives)


OF_FUNCTIONS = {
    "participle": is_participle,
    "error": makes_unnamed_error,
    "done": describes_nothing,
    "nothing": hides_nothing_found,
}


def findings(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Each name and docstring of *tree* that says little, with its kind."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            yield from (
                (kind, node.name) for kind, is_so in OF_FUNCTIONS.items() if is_so(node)
            )
        if isinstance(node, ast.Name) and node.id == "each":
            if isinstance(node.ctx, ast.Store):
                yield "each", node.id
        elif isinstance(node, ast.arg) and node.arg == "each":
            yield "each", node.arg
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
            text = ast.get_docstring(node) or ""
            if re.match(r"(As|Of|That)\b", text):
                yield "docstring", text.partition("\n")[0]


def test_no_more_names_and_docstrings_say_little():
    found = [
        finding
        for path in sorted(PACKAGE.rglob("*.py"))
        for finding in findings(ast.parse(path.read_text(encoding="utf-8")))
    ]
    counts = {kind: sum(kind == what for what, _ in found) for kind in MOST}
    over = {kind: count for kind, count in counts.items() if count > MOST[kind]}

    assert {} == over, [name for kind, name in found if kind in over]


def test_a_name_that_says_little_is_found():
    code = """
def _told(each):
    'As of another one.'
    return [each for each in names if each]

def seed_of(name):
    'The seed of a name.'

def too_long(text) -> BadInput | None:
    'The error for a text.'

def paint(axes) -> None:
    'A line at the limit.'

def why_open(row) -> str | None:
    'Why it is open; None if it is not.'

def find_log(folder) -> Path:
    'The log.'
"""

    kinds = [kind for kind, _ in findings(ast.parse(code))]
    assert {
        "participle": 1,
        "each": 2,
        "docstring": 1,
        "error": 1,
        "done": 1,
        "nothing": 2,
    } == {kind: kinds.count(kind) for kind in MOST}


def test_every_module_says_in_a_line_what_it_holds():
    """`make map` lists them."""
    lines = [line.split(maxsplit=1) for line in module_map.module_lines()]
    modules = [line for line in lines if line and line[0].endswith(".py")]

    assert len(modules) > len([*PACKAGE.rglob("*.py")])
    assert all(len(line) == 2 for line in modules)


def test_names_of_code_in_the_guide_for_contributors_exist():
    root = PACKAGE.parent
    sources = [
        path.read_text(encoding="utf-8")
        for folder in ("codeneedle", "tests", "scripts")
        for path in (root / folder).rglob("*.py")
    ]
    known = set(re.findall(r"\w+", "\n".join(sources)))
    guide = (root / "CONTRIBUTING.md").read_text(encoding="utf-8")
    told = [word for code in re.findall(r"`([^`\n]+)`", guide) for word in code.split()]

    assert [] == [
        name
        for word in told
        if "/" not in word
        for name in re.findall(r"\w+", word)
        if "_" in name and name not in known
    ]
