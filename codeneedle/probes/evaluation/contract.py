"""
How an evaluation of the user's runs: its command, its variables, and its limits.

The command is no shell's. It has a process group of its own, which ends with the cell;
its working folder is empty, and is kept with all that is written to it.
"""

import contextlib
import math
import os
import re
import shlex
import shutil
import signal
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from codeneedle.engines.engine import Address
from codeneedle.errors import (
    BadInput,
    CellError,
    FolderUnusable,
    ToolFailed,
    ToolMissing,
    did_you_mean,
)
from codeneedle.records.record import Status
from codeneedle.system import files, processes
from codeneedle.system.credentials import secret_in
from codeneedle.system.orphans import noted
from codeneedle.text import duration, size, visible

PLACEHOLDERS = ("base_url", "model", "out", "seed", "context", "here")
"""What the command may hold, as ``${out}``."""

OFFLINE = ("out", "seed", "context", "here")
"""What the command of a grader may hold: it has no server."""

OUT_LIMIT_BYTES = 1 << 29
"""What a command may write, to its folder and to its log."""

POLL_S = 0.25
"""Between two looks at a command: rare, as they disturb it."""

LAST_LINES = 12
"""Of the log of a command that failed."""

LOG_BYTES = 64 << 10
"""What is read of the end of a log."""

_PLACEHOLDER = re.compile(r"\$\{([^{}]*)\}")
_SPAN = re.compile(r"(\d+(?:\.\d+)?)([smh])")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}


# --- commands


def words_of(command: str, *, option: str, known: Collection[str]) -> tuple[str, ...]:
    """
    The program and the arguments of *command*, with placeholders.

    Args:
        command: Split as a shell would, without one.
        option: That it was given by.
        known: Names of the placeholders that it may hold.

    Raises:
        BadInput: If it cannot be split, has an unknown placeholder, holds a secret, or
            names a file that its working folder does not have.
        ToolMissing: If its program is not there.
    """
    try:
        words = tuple(shlex.split(command))
    except ValueError as error:
        raise BadInput(
            source=option,
            reason=f"cannot be split into words: {error}".lower(),
            hint="Close the quotation mark.",
        ) from error
    if not words:
        raise BadInput(source=option, reason="is empty", hint="Give it a command.")
    if name := secret_in(" ".join(words)):
        raise BadInput(
            source=f"{option} ... {name}",
            reason="takes a secret, which records must not store",
            hint="The key of the server is in OPENAI_API_KEY. Export another one, and "
            "pass it on by its name: --eval-env NAME",
        )
    for name in (name for word in words for name in _PLACEHOLDER.findall(word)):
        if name not in known:
            raise BadInput(
                source=option,
                reason=f"unknown placeholder '${{{name}}}'",
                hint=did_you_mean(name, known),
            )
    program_of(words, option=option)
    _refuse_relative(words, option=option)
    return words


def _refuse_relative(words: Sequence[str], *, option: str) -> None:
    """Stop at a file of the present folder, unless the command changes to it."""
    if any(word.endswith("${here}") for word in words):
        return
    for word in words[1:]:
        if not Path(word).is_absolute() and files.exists(Path(word)):
            if not Path(word).is_file():
                continue
            raise BadInput(
                source=f"{option} ... {word}",
                reason="is a file here, and the command runs in ${out}",
                hint=f"Write ${{here}}/{word}; or begin with: env -C ${{here}}",
            )


def program_of(words: Sequence[str], *, option: str) -> str:
    """
    The path of the program that *words* begin with.

    Raises:
        ToolMissing: If there is none.
    """
    named = filled(words[0], {"here": Path.cwd()})
    found = shutil.which(named)
    if found is None:
        raise ToolMissing(
            tool=f"{option}: {named}",
            reason="is no program here",
            hint="Install it, or write its whole path.",
        )
    return str(Path(found).absolute())


def filled(text: str, values: Mapping[str, object]) -> str:
    """*text* with placeholders replaced; those without a value stay."""
    return _PLACEHOLDER.sub(lambda found: str(values.get(found[1], found[0])), text)


def span_s(text: str) -> float:
    """
    A time in seconds: ``90m``, ``2h``.

    Raises:
        BadInput: If it is none.
    """
    found = _SPAN.fullmatch(text.strip())
    seconds = float(found[1]) * _SECONDS[found[2]] if found else 0.0
    if not 0 < seconds < math.inf:
        raise BadInput(
            source="--eval-timeout",
            reason=f"'{text}' is not a time",
            hint="Give hours, minutes or seconds: 2h, 90m",
        )
    return seconds


def checked_names(names: Sequence[str]) -> None:
    """
    Check the *names* of variables that are passed on.

    Raises:
        BadInput: If one is no name, or is not set here.
    """
    for name in names:
        if not _VARIABLE.fullmatch(name) or name not in os.environ:
            is_name = _VARIABLE.fullmatch(name)
            raise BadInput(
                source=f"--eval-env {name}",
                reason="is not set here" if is_name else "is no name of a variable",
                hint="Export it, and give its name alone.",
            )


# --- running


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """
    A command for one cell.

    Attributes:
        words: Program and arguments, with placeholders.
        option: That it was given by, for errors.
        out: Its working folder.
        log: Receives what it prints. Overwritten.
        values: Of placeholders.
        passed_on: Names of variables of ours that it gets.
        limit_s: How long it may take, in seconds.
        address: Of the server; None for a grader.
    """

    words: tuple[str, ...]
    option: str
    out: Path
    log: Path
    values: Mapping[str, object]
    passed_on: tuple[str, ...] = ()
    limit_s: float
    address: Address | None = field(default=None)

    def argv(self) -> list[str]:
        """
        Program and arguments as they are started.

        Raises:
            ToolMissing: If the program is not there any more.
        """
        words = [filled(word, self.values) for word in self.words[1:]]
        return [program_of(self.words, option=self.option), *words]

    def environment(self) -> dict[str, str]:
        """
        All of its variables: what a child may inherit, where to write, and the server.

        The key is nowhere else: a command line can be read by everybody.
        """
        ours = {name: os.environ[name] for name in self.passed_on if name in os.environ}
        # Proxies, if passed on, are not for the server on this machine.
        said = {"no_proxy": "127.0.0.1,localhost", "NO_PROXY": "127.0.0.1,localhost"}
        for name in ("out", "seed", "context"):
            said[f"CODENEEDLE_{name.upper()}"] = str(self.values[name])
        if self.address is not None:
            url, model = self.address.url, self.address.model
            # Clients of OpenAI refuse to start without any key.
            key = self.address.key or "none"
            said |= {"OPENAI_BASE_URL": url, "OPENAI_API_BASE": url}
            said |= {"OPENAI_API_KEY": key, "CODENEEDLE_API_KEY": key}
            said |= {"CODENEEDLE_BASE_URL": url, "CODENEEDLE_MODEL": model}
        return processes.clean(os.environ) | ours | said


def emptied(folder: Path) -> Path:
    """
    The *folder*, empty.

    Raises:
        FolderUnusable: If it cannot be made.
    """
    try:
        if files.exists(folder):
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
    except OSError as error:
        raise FolderUnusable(folder=folder, reason=files.reason_of(error)) from error
    return folder.absolute()


def run(
    task: Task, *, tell: Callable[[str], None], is_served: Callable[[], bool]
) -> None:
    """
    Run a command to its end, within its limits.

    Args:
        task: The command.
        tell: Called now and then with what it does, as a phrase.
        is_served: Whether its server still runs.

    Raises:
        CellError: If it cannot be started, fails, takes too long, writes too much, or
            outlives its server.
    """
    began = time.monotonic()
    with _logged(task):
        try:
            with noted(
                task.argv(), env=task.environment(), log=task.log, folder=task.out
            ) as child:
                while not processes.ends_within(child, POLL_S):
                    taken_s = time.monotonic() - began
                    tell(f"evaluating for {duration(taken_s)}")
                    _refuse_excess(task, taken_s)
                    if not is_served():
                        raise _failed(task, "lost its server, which has ended")
                code = child.returncode
        except (ToolMissing, ToolFailed) as error:
            raise _failed(task, f"could not run: {error}") from error
        if code:
            said = next(reversed(end_of(task.log)), "it printed nothing")
            raise _failed(task, f"{_ended(code)}: {said}")
        _refuse_excess(task, 0.0)


def _ended(code: int) -> str:
    """How a program has ended, by its code as of `subprocess.Popen`."""
    if code > 0:
        return f"ended with exit code {code}"
    with contextlib.suppress(ValueError):
        return f"was ended by {signal.Signals(-code).name}"
    return f"was ended by signal {-code}"


def _refuse_excess(task: Task, taken_s: float) -> None:
    if taken_s > task.limit_s:
        raise _failed(
            task,
            f"is not done after {duration(task.limit_s)}",
            status=Status.TIMED_OUT,
            hint="Give it more time: --eval-timeout 4h",
        )
    written = sum(_sizes([task.log, task.out]))
    if written > OUT_LIMIT_BYTES:
        raise _failed(
            task,
            f"has written more than {size(OUT_LIMIT_BYTES)}",
            hint="Have it keep less: results are small.",
        )


def _sizes(paths: Sequence[Path]) -> Iterator[int]:
    """Bytes of the files at *paths* and below; links are not followed."""
    for path in paths:
        with contextlib.suppress(OSError):  # removed meanwhile
            if path.is_symlink():
                continue
            if path.is_dir():
                yield from _sizes([*path.iterdir()])
            else:
                yield path.stat().st_size


def _failed(
    task: Task, reason: str, *, status: Status = Status.CRASHED, hint: str = ""
) -> CellError:
    return CellError(
        f"{task.option} {reason}",
        hint=hint or f"See {task.log}.",
        status=status,
        log_excerpt=end_of(task.log),
    )


def end_of(log: Path) -> tuple[str, ...]:
    """The last lines of *log* that are not blank; at most `LAST_LINES`."""
    try:
        with files.open_regular(log) as file:
            file.seek(max(0, log.stat().st_size - LOG_BYTES))
            text = file.read(LOG_BYTES).decode(errors="replace")
    except OSError:
        return ()
    lines = (visible(line.rstrip()) for line in text.splitlines())
    return tuple(line[:500] for line in lines if line.strip())[-LAST_LINES:]


@contextlib.contextmanager
def _logged(task: Task) -> Iterator[None]:
    """Afterwards, the log and the error do not hold the key of the server."""
    key = task.address.key if task.address else ""
    try:
        yield
    except CellError as error:
        if key:
            error.args = tuple(str(each).replace(key, "***") for each in error.args)
            error.log_excerpt = tuple(
                line.replace(key, "***") for line in error.log_excerpt
            )
        raise
    finally:
        if key:
            _redact(task.log, key)


def _redact(log: Path, key: str) -> None:
    with contextlib.suppress(OSError):
        text = files.read_regular(log) or b""
        if key.encode() in text:
            files.write_whole(log, text.replace(key.encode(), b"***"))
