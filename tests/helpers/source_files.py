"""Source files for tests, odd ones too; functions that are found verbatim."""

import contextlib
import os
import socket


def python(name, *, lines=20):
    """A Python function with as many body lines."""
    body = "".join(f"    {name}_{at} = {at}\n" for at in range(lines))
    return f"def {name}():\n{body}"


def javascript(name):
    """A JavaScript function of 20 body lines."""
    body = "".join(f"  {name}({at});\n" for at in range(20))
    return f"function {name}() {{\n{body}}}\n"


def put(path, text):
    """Write *text*, a string or bytes, to *path*; folders are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def names_of(functions):
    """Their names, in order."""
    return [function.name for function in functions]


def places_of(functions):
    """Of each its name, first line, lines of signature and body, and closing lines."""
    return [
        (
            function.name,
            function.line,
            function.signature.count("\n") + 1,
            len(function.body),
            function.closing_lines,
        )
        for function in functions
    ]


def assert_verbatim(text, functions):
    """Each of *functions* consists of consecutive lines of *text*, as it says."""
    lines = text.split("\n")
    for function in functions:
        stands = [*function.signature.split("\n"), *function.body]
        end = function.last_line_number - function.closing_lines
        assert stands == lines[function.line - 1 : end]


def local_socket(path):
    """A socket at *path*, which may be too long to bind to but from its folder."""
    with contextlib.chdir(path.parent), socket.socket(socket.AF_UNIX) as end:
        end.bind(path.name)


ODD_FILES = {
    "a named pipe": os.mkfifo,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a terminal": lambda path: path.symlink_to("/dev/tty"),
    "a socket": local_socket,
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a link to nothing": lambda path: path.symlink_to("nowhere"),
}
"""How to make what is neither a file nor a folder, by what it is called."""
