"""A place to build in: its log files, its environment, its progress, its children."""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from codeneedle.engine.claim import noted
from codeneedle.environment import is_secret
from codeneedle.errors import MachineError

POLL_S = 0.25
_TAIL_BYTES = 1 << 14
_LAST_LINES = 8
_STEP = re.compile(rb"^\[(\d+)/(\d+)\]", re.MULTILINE)
"""What ninja prints before each step it has begun, of how many."""

_DROPPED = frozenset(
    {
        # What another Python, another pip or a make around us was told.
        *("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__"),
        *("PIP_USER", "PIP_TARGET", "PIP_PREFIX", "PIP_REQUIRE_VIRTUALENV"),
        *("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "DESTDIR"),
        *("CMAKE_GENERATOR", "CMAKE_TOOLCHAIN_FILE", "CMAKE_INSTALL_PREFIX"),
    }
)


class BuildFailed(MachineError):  # noqa: N818 - named after the fact
    """A step of the build ended badly; its log is kept."""

    def __init__(
        self, *, step: str, reason: str, log: Path | None, last_lines: Sequence[str]
    ) -> None:
        said = "".join(f"\n  {line}" for line in last_lines)
        where = f"The whole log is {log}. " if log else ""
        super().__init__(
            f"llama.cpp was not built: {step} {reason}{said}",
            hint=f"{where}Nothing half done was left behind.",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """
    How far a build is.

    Attributes:
        phase: What is being done: ``compiling``.
        done: Steps of it that are done.
        total: Steps that it has; 0 where nobody knows.
        elapsed_s: Since the whole build began.
    """

    phase: str
    done: int = 0
    total: int = 0
    elapsed_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Workshop:
    """
    Where one build happens.

    Attributes:
        folder: For what is needed while building; removed afterwards.
        logs: Where the log of a failed step is kept.
        env: The environment of all children.
        report: Told of progress several times a second.
        began: When the build began, on the monotonic clock.
    """

    folder: Path
    logs: Path
    env: Mapping[str, str]
    report: Callable[[Progress], None]
    began: float = field(default_factory=time.monotonic)

    def tell(self, phase: str, done: int = 0, total: int = 0) -> None:
        """Report progress."""
        elapsed_s = time.monotonic() - self.began
        self.report(Progress(phase=phase, done=done, total=total, elapsed_s=elapsed_s))

    def log(self, phase: str) -> Path:
        """The log file of a phase."""
        return self.logs / f"{phase.replace(' ', '-')}.log"

    def do(
        self,
        phase: str,
        argv: Sequence[str],
        *,
        extra_env: Mapping[str, str] | None = None,
        failed: Callable[[str, Path], MachineError] | None = None,
    ) -> None:
        """
        Run *argv* to its end, telling how far it is.

        Args:
            phase: What it does, as a phrase; also names its log.
            argv: Program, as an absolute path, and its arguments.
            extra_env: Variables on top of the workshop's.
            failed: Makes the error from the log's text and path, if it ends badly.

        Raises:
            BuildFailed: If it ends badly, unless *failed* knows better.
        """
        log = self.log(phase)
        env = {**self.env, **(extra_env or {})}
        self.tell(phase)
        known = (0, 0)
        with noted(argv, env=env, log=log) as child:
            while child.poll() is None:
                # Kept: a page of warnings may hide the last step for a while.
                known = max(known, steps(_tail(log)))
                self.tell(phase, *known)
                time.sleep(POLL_S)
        self.tell(phase, *max(known, steps(_tail(log))))
        if child.returncode and failed is not None:
            raise failed(log.read_text(errors="replace"), log)
        if child.returncode:
            raise self.failure(phase, f"ended with exit code {child.returncode}")
        log.unlink(missing_ok=True)

    def failure(self, phase: str, reason: str) -> BuildFailed:
        """The error of a phase, with the last words of its log."""
        log = self.log(phase)
        lines = last_lines(_tail(log).decode(errors="replace"))
        kept = log if log.exists() else None
        return BuildFailed(step=phase, reason=reason, log=kept, last_lines=lines)


def environment_of(environment: Mapping[str, str]) -> dict[str, str]:
    """
    What build tools may inherit of *environment*: almost everything but secrets.

    Compilers, proxies and package mirrors are chosen there. What would lead them
    to another place than ours is dropped, and ninja's counter is put in place.
    """
    kept = {
        name: value
        for name, value in environment.items()
        if name not in _DROPPED
        and not name.startswith("LLAMA_ARG_")
        # pip's own variables name keyrings, and hold what a private index needs.
        and (name.startswith("PIP_") or not is_secret(name))
    }
    return {**kept, "NINJA_STATUS": "[%f/%t] ", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


def steps(log_tail: bytes) -> tuple[int, int]:
    """The last ``[12/216]`` of a log: steps done, steps in all; zeros if none."""
    found = _STEP.findall(log_tail)
    return (int(found[-1][0]), int(found[-1][1])) if found else (0, 0)


def last_lines(text: str) -> list[str]:
    """The last lines that say something; of a compiler's, from the first error on."""
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    errors = [at for at, line in enumerate(lines) if "error" in line.lower()]
    start = errors[0] if errors else max(0, len(lines) - _LAST_LINES)
    return [line[:200] for line in lines[start : start + _LAST_LINES]]


def _tail(log: Path) -> bytes:
    try:
        with log.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - _TAIL_BYTES))
            return file.read()
    except OSError:
        return b""
