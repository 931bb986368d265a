"""Source files for tests, and the claim that functions are found verbatim."""


def python(name, *, lines=20):
    """A Python function with as many body lines."""
    body = "".join(f"    {name}_{at} = {at}\n" for at in range(lines))
    return f"def {name}():\n{body}"


def javascript(name, *, lines=20):
    """A JavaScript function with as many body lines."""
    body = "".join(f"  {name}({at});\n" for at in range(lines))
    return f"function {name}() {{\n{body}}}\n"


def put(path, text):
    """Write *text*, a string or bytes, to *path*; folders are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def names_of(functions):
    """Their names, in order."""
    return [function.name for function in functions]


def assert_verbatim(text, functions):
    """Each of *functions* consists of consecutive lines of *text*, as it says."""
    lines = text.split("\n")
    for function in functions:
        stands = [*function.signature.split("\n"), *function.body]
        end = function.end - function.closing_lines
        assert stands == lines[function.line - 1 : end]
