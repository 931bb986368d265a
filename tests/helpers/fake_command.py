"""
A program of another engine, as far as its command line goes: what an option file of
``engine_options`` lists is taken, all else is refused as argparse does, and then a fake
server with OpenAI's API is what it serves.

It is started as ``fake_command.py ENGINE WORDS...``.
"""

import os
import re
import sys
import tomllib
from pathlib import Path

HERE = Path(__file__).parent


def options_of(engine):
    """The options of *engine*, and what a server of it is asked for by them."""
    path = HERE / "engine_options" / f"{engine}.toml"
    return tomllib.loads(path.read_text(encoding="utf-8"))


def refuse(known, why):
    """End as a program does that cannot read its command line."""
    sys.exit(f"{known['program']}: error: {why}\nusage: {known['program']} [options]")


def given(known, words):
    """The values of *words*, by option; a flag has None."""
    positional = len(known.get("words", ()))
    takes, flags = known["takes"].split(), known["flags"].split()
    found, rest = {}, list(words[positional:])
    while rest:
        name, _, value = rest.pop(0).partition("=")
        if name in takes:
            if not value and (not rest or rest[0].startswith("--")):
                refuse(known, f"argument {name}: expected one argument")
            found[name] = value or rest.pop(0)
        elif name in flags:
            found[name] = None
        else:
            refuse(known, f"unrecognized arguments: {name}")
    return found


def variables(known):
    """The variables of the environment that it reads."""
    names = known.get("variables", "").split()
    own = {name: value for name, value in os.environ.items() if name in names}
    mistaken = [n for n in os.environ if n.startswith("OLLAMA_") and n not in names]
    if names and mistaken:
        refuse(known, f"unknown variable {mistaken[0]}")
    return own


def refuse_values(known, found):
    for name, allowed in known.get("values", {}).items():
        value = found.get(name)
        pattern = (
            allowed if isinstance(allowed, str) else "|".join(map(re.escape, allowed))
        )
        if value is not None and not re.fullmatch(pattern, value):
            refuse(known, f"argument {name}: invalid choice: {value!r}")


def served(known, found):
    """The arguments of the fake server."""
    asked = known["serves"]
    k, _, v = found.get(asked.get("pair", ""), "").partition(",")
    port = found[asked["port"]].rpartition(":")[2]
    context = found.get(asked.get("context", ""), "0")
    types = [found.get(asked.get(side, ""), "f16") for side in "kv"]
    yield from ("--port", port, "--context", context)
    yield from ("--k", k or types[0], "--v", v or types[1])
    name = asked.get("name", "")
    named = [f"serves={found.get(name, name)}"] if name else []
    for fault in [*asked.get("faults", ()), *named]:
        yield from ("--fake", fault)


def main():
    engine, *words = sys.argv[1:]
    known = options_of(engine)
    if words == ["--version"]:
        print("version 1")  # noqa: T201 - it is asked
        return
    found = given(known, words) | variables(known)
    refuse_values(known, found)
    fake = str(HERE / "fake_openai.py")
    words = [sys.executable, "-S", fake, *served(known, found)]
    os.execv(sys.executable, words)  # noqa: S606 - it is to keep its number


if __name__ == "__main__":
    main()
