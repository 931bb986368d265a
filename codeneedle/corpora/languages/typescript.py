"""TypeScript: functions by tree-sitter."""

from codeneedle.corpora.languages import _ecmascript

TITLE = "TypeScript"
SUFFIXES = (".ts", ".mts", ".cts")
COMMENT = "// {}"

functions = _ecmascript.typescript_grammar(TITLE, "language_typescript").functions
