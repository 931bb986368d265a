"""One target in a process of its own: reads inputs, counts them, stops at a defect."""

import importlib
import mmap
import os
import resource
import sys
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fuzz_targets import Target

LONGEST_BYTES = 1 << 16
"""Of an input."""

SLOWEST_S = 5.0
"""Processor time that an input may take: a hundred times what the slowest should."""

HANGS_S = 60
MOST_BYTES = 3 << 30
"""Address space of a target, so that a number in a file cannot become memory."""


class Count:
    """A number in a file, which outlives whoever counts."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes(8))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 8)

    def __int__(self) -> int:
        return int.from_bytes(self._memory[:8], "little")

    def up(self) -> None:
        """One more."""
        self._memory[:8] = (int(self) + 1).to_bytes(8, "little")


def fuzz(name: str, *, inputs: int, folder: Path) -> None:
    """Read as many inputs, and end the process: atheris does so by itself."""
    atheris: Any = importlib.import_module("atheris")
    with atheris.instrument_imports(include=["codeneedle", "esprima"]):
        target = chosen(name)
        # These are imported when they are first needed, and so would be missed.
        importlib.import_module("codeneedle.corpora.languages").known()
        importlib.import_module("esprima")
    count = Count(folder / "count")
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))

    def read(data: bytes) -> None:
        count.up()
        digest(target, data)

    for data in target.inputs():
        try:
            read(data)
        except BaseException:
            (folder / "crash-before").write_bytes(data)
            raise
    corpus = folder / "corpus"
    corpus.mkdir(exist_ok=True)
    for at, data in enumerate(target.seeds()):
        (corpus / f"seed-{at}").write_bytes(data)
    options = [
        f"-runs={max(1, inputs - int(count))}",
        f"-max_len={LONGEST_BYTES}",
        f"-timeout={HANGS_S}",
        f"-artifact_prefix={folder}{os.sep}",
        "-rss_limit_mb=0",
        "-print_final_stats=1",
    ]
    atheris.Setup([sys.argv[0], *options, str(corpus)], read)
    atheris.Fuzz()


def digest(target: "Target", data: bytes) -> None:
    """
    Have *target* read *data*.

    Raises:
        TimeoutError: If that takes more than `SLOWEST_S` seconds.
        Exception: Whatever else comes out of it is a defect.
    """
    began = time.thread_time()
    with warnings.catch_warnings():
        # A text of somebody's must not make Python complain on our screen.
        warnings.simplefilter("error")
        target.digest(data)
    took_s = time.thread_time() - began
    if took_s > SLOWEST_S:
        raise TimeoutError(f"{len(data)} bytes took {took_s:.1f} s")


def chosen(name: str) -> "Target":
    """The target of that name; imported late, so that atheris can watch it."""
    target: Target = importlib.import_module("fuzz_targets").TARGETS[name]
    return target
