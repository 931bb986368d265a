"""TypeScript with JSX, whose casts are written otherwise: functions by tree-sitter."""

from codeneedle.corpora.languages import _ecmascript

TITLE = "TSX"
SUFFIXES = (".tsx",)
COMMENT = "// {}"

GRAMMAR = _ecmascript.typescript_grammar(TITLE, "language_tsx")

functions = GRAMMAR.functions
