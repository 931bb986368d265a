"""
The exit codes of commands, each written here alone.

An error has its code in `errors`, and `cli.main` ends the program with it, as it
does with `INTERRUPTED` by Ctrl-C; `__main__.main` does so while the program is loaded.
"""

UNFINISHED = 1
"""A sweep ran to its end, and some cells did not finish; or a command failed."""

BAD_REQUEST = 2
"""Usage, a sweep file, a corpus, a run folder that does not fit."""

CANNOT_RUN = 3
"""This machine cannot run it: no llama.cpp, no weights, no memory, no disk."""

OPEN = 4
"""Of ``verdict --check`` alone: open or not measured (`report/check.py`)."""

BEYOND = 5
"""Of ``verdict --check`` alone: beyond the limit."""

INTERRUPTED = 130
"""Ctrl-C, SIGTERM or SIGHUP: 128 and the number of SIGINT, as shells do."""
