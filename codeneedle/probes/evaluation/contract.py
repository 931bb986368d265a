"""
Runs an evaluation command of the user: its words, its environment, its limits.

The command runs without a shell, in a process group that ends with the cell. Its
working folder is empty at first, and is kept with all that the command writes to it.
"""

import contextlib
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from codeneedle.engines.engine import Address
from codeneedle.engines.exit_causes import (
    exit_cause_from_log,
    exit_phrase,
    last_log_lines,
)
from codeneedle.errors import (
    BadInput,
    CellError,
    ToolFailed,
    ToolMissing,
)
from codeneedle.records.record import Status
from codeneedle.system import files, processes
from codeneedle.system.commands import (
    fill_placeholders,
    parse_command_words,
    require_program,
)
from codeneedle.system.inherited_variables import inherited_variables
from codeneedle.system.orphans import running_with_note
from codeneedle.system.secrets import (
    mask_text,
    masking_errors,
    register_secrets_to_mask,
    secrets_of,
)
from codeneedle.text import duration_text, size_text

PLACEHOLDERS = ("base_url", "model", "out", "seed", "context", "here")
"""Names that the command may use, as ``${out}``."""

OFFLINE = ("out", "seed", "context", "here")
"""Names that the command of a grader may use: it has no server."""

OUT_LIMIT_BYTES = 1 << 29
"""Most bytes that a command may write, to its folder and its log together."""

_MUTE = "it printed nothing"

POLL_S = 0.25
"""Interval of checks on a running command; rare, as they disturb it."""

# --- commands


def split_and_check_command(
    command: str, *, option: str, known: Collection[str]
) -> tuple[str, ...]:
    """
    The words of *command*; see `commands.parse_command_words`.

    Raises:
        BadInput: If that refuses it, or it names a file that its working folder lacks.
        ToolMissing: If its program does not exist.
    """
    words = parse_command_words(
        command,
        option=option,
        known=known,
        hint="The key of the server is in OPENAI_API_KEY. Export another one, and pass "
        "it on by its name: --eval-env NAME",
    )
    _resolve_program_path(words, option=option)
    _refuse_relative_paths(words, option=option)
    return words


def _refuse_relative_paths(words: Sequence[str], *, option: str) -> None:
    """Stop at a file here by a relative path, unless a word ends with ``${here}``."""
    if any(word.endswith("${here}") for word in words):
        return
    for word in words[1:]:
        path = Path(word)
        if not path.is_absolute() and files.exists(path) and path.is_file():
            raise BadInput(
                source=f"{option} ... {word}",
                reason="is a file here, and the command runs in ${out}",
                hint=f"Write ${{here}}/{word}; or begin with: env -C ${{here}}",
            )


def _resolve_program_path(words: Sequence[str], *, option: str) -> str:
    """The absolute path of the program of *words*; raises ToolMissing without one."""
    return require_program(
        fill_placeholders(words[0], {"here": Path.cwd()}), option=option
    )


# --- running


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationCommand:
    """A command for one cell."""

    words: tuple[str, ...]  # program and arguments, with placeholders
    option: str  # name of its option, for errors
    out: Path  # its working folder
    log: Path  # file for its output; overwritten
    values: Mapping[str, object]  # values of placeholders
    passed_on: tuple[str, ...] = ()  # names of environment variables that it inherits
    limit_s: float  # its time limit, in seconds
    address: Address | None = None  # address of the server; None for a grader

    def argv(self) -> list[str]:
        """
        Program and arguments, without placeholders.

        Raises:
            ToolMissing: If the program has been removed.
        """
        words = [fill_placeholders(word, self.values) for word in self.words[1:]]
        return [_resolve_program_path(self.words, option=self.option), *words]

    def environment(self) -> dict[str, str]:
        """
        All of its variables: inherited ones, its folder, and the server's address.

        The key is in no other place: everybody can read a command line.
        """
        names = (name for name in self.passed_on if name in os.environ)
        passed_on = {name: os.environ[name] for name in names}
        # Proxies, if passed on, are not for the server on this machine.
        local = "127.0.0.1,localhost"
        facts = {"no_proxy": local, "NO_PROXY": local}
        for name in ("out", "seed", "context"):
            facts[f"CODENEEDLE_{name.upper()}"] = str(self.values[name])
        if self.address is not None:
            url, model = self.address.url, self.address.model
            # Clients of OpenAI refuse to start without any key.
            key = self.address.key or "none"
            facts |= {"OPENAI_BASE_URL": url, "OPENAI_API_BASE": url}
            facts |= {"OPENAI_API_KEY": key, "CODENEEDLE_API_KEY": key}
            facts |= {"CODENEEDLE_BASE_URL": url, "CODENEEDLE_MODEL": model}
        return inherited_variables() | passed_on | facts


def run_within_limits(
    task: EvaluationCommand,
    *,
    tell: Callable[[str], None],
    is_served: Callable[[], bool],
) -> None:
    """
    Run a command to its end, within its limits; mask its secrets in its log.

    Args:
        task: The command.
        tell: Called with a phrase of its progress at each check.
        is_served: Returns whether its server is running.

    Raises:
        CellError: If it cannot be started, fails, takes too long, writes too much, or
            outlives its server.
    """
    began = time.monotonic()
    with _mask_errors_and_log(task):
        try:
            with running_with_note(
                task.argv(), env=task.environment(), log=task.log, folder=task.out
            ) as child:
                while not processes.ends_within(child, POLL_S):
                    taken_s = time.monotonic() - began
                    tell(f"evaluating for {duration_text(taken_s)}")
                    _refuse_excess_time_or_size(task, taken_s)
                    if not is_served():
                        raise _command_error(task, "lost its server, which has ended")
                code = child.returncode
        except (ToolMissing, ToolFailed) as error:
            raise _command_error(task, f"could not run: {error}") from error
        if code:
            why = (
                exit_cause_from_log(task.log, code).reason
                if last_log_lines(task.log)
                else _MUTE
            )
            raise _command_error(task, f"ended with {exit_phrase(code)}: {why}")
        _refuse_excess_time_or_size(task, 0.0)


def _refuse_excess_time_or_size(task: EvaluationCommand, taken_s: float) -> None:
    """Stop a command that took too long, or has written too much."""
    if taken_s > task.limit_s:
        raise _command_error(
            task,
            f"is not done after {duration_text(task.limit_s)}",
            status=Status.TIMED_OUT,
            hint="Give it more time: --eval-timeout 4h",
        )
    written = sum(_file_sizes([task.log, task.out]))
    if written > OUT_LIMIT_BYTES:
        raise _command_error(
            task,
            f"has written more than {size_text(OUT_LIMIT_BYTES)}",
            hint="Have it keep less: results are small.",
        )


def _file_sizes(paths: Sequence[Path]) -> Iterator[int]:
    """Sizes of the files at *paths* and below, in bytes; links are not followed."""
    left = list(paths)
    while left:  # not by recursion: folders may be thousands deep
        path = left.pop()
        with contextlib.suppress(OSError):  # it may have been removed
            if path.is_symlink():
                continue
            if path.is_dir():
                left += path.iterdir()
            else:
                yield path.stat().st_size


def _command_error(
    task: EvaluationCommand,
    reason: str,
    *,
    status: Status = Status.CRASHED,
    hint: str = "",
) -> CellError:
    """The error of the command, named by its option, with the end of its log."""
    return CellError(
        f"{task.option} {reason}",
        hint=hint or f"See {task.log}.",
        status=status,
        log_excerpt=last_log_lines(task.log),
    )


@contextlib.contextmanager
def _mask_errors_and_log(task: EvaluationCommand) -> Iterator[None]:
    """
    Mask the secrets that the command has, in errors of the block and in its log.

    The log is masked once the block has ended.
    """
    names = (name for name in task.passed_on if name in os.environ)
    register_secrets_to_mask(*secrets_of({name: os.environ[name] for name in names}))
    register_secrets_to_mask(task.address.key if task.address else "")
    try:
        with masking_errors():
            yield
    finally:
        with contextlib.suppress(OSError):
            text = (files.read_regular(task.log) or b"").decode(
                errors="surrogateescape"
            )
            if (shown := mask_text(text)) != text:
                data = shown.encode(errors="surrogateescape")
                files.write_atomically(task.log, data)
