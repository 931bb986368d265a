"""How a server's life may end too early, and what its log and exit status say of it."""

from pathlib import Path
from signal import SIGKILL, SIGXFSZ, Signals

from codeneedle.answers import Readiness
from codeneedle.errors import CellError
from codeneedle.records import Status
from codeneedle.serverlog import Trouble, evidence, last_words, trouble


class ServerDied(CellError):  # noqa: N818 - named after the fact
    """The server ended while we still needed it."""

    def __init__(self, *, returncode: int, log: Path, log_text: str) -> None:
        found = trouble(log_text) or _farewell(log_text) or without_words(returncode)
        super().__init__(
            f"llama-server ended with {how(returncode)}: {found.reason}",
            hint=f"Its last words are in {log}.",
        )
        self.status = found.status
        self.log_excerpt = last_words(log_text)
        self.returncode = returncode


class NeverReady(CellError):  # noqa: N818 - named after the fact
    """The server lives, and does not get ready."""

    status = Status.TIMED_OUT.value

    def __init__(
        self, *, seen: Readiness, timeout_s: float, log: Path, log_text: str
    ) -> None:
        what = {
            Readiness.LOADING: "is still loading",
            Readiness.STRANGER: "does not answer under its name",
        }.get(seen, "does not answer")
        super().__init__(
            f"llama-server {what} after {timeout_s:g} s",
            hint=f"See {log}. Is the disk slow, or the memory full?",
        )
        self.log_excerpt = last_words(log_text)


class HangsAtWarmUp(CellError):  # noqa: N818 - named after the fact
    """The model is loaded, and its first run with these cache types never ends."""

    status = Status.TIMED_OUT.value

    def __init__(self, *, timeout_s: float, log: Path, log_text: str) -> None:
        super().__init__(
            f"llama-server hangs at warm-up: it has not come through {timeout_s:g} s "
            "after it began",
            hint=f"See {log}. It is a matter of this pair, others may well work.",
        )
        self.log_excerpt = last_words(log_text)


class FellBack(CellError):  # noqa: N818 - named after the fact
    """It runs, though not with fast attention on the asked types; that was unwanted."""

    def __init__(self, *, trouble: Trouble) -> None:
        super().__init__(
            trouble.reason,
            hint="Drop --skip-fallback to have such cells measured, and marked.",
        )
        self.status = trouble.status.value
        self.log_excerpt = (trouble.reason,)


class Mismatched(CellError):  # noqa: N818 - named after the fact
    """What runs is not what was asked for."""

    status = Status.MISMATCHED.value

    def __init__(self, *, differences: tuple[str, ...], log_text: str) -> None:
        super().__init__(
            f"what runs is not what was asked for: {'; '.join(differences)}",
            hint="Is it a fork, or does an argument after '--' change it?",
        )
        self.log_excerpt = evidence(log_text)


def is_about_the_port(log_text: str) -> bool:
    """Whether the server ended because somebody else has its port."""
    found = trouble(log_text)
    words = found.reason.lower() if found else ""
    return "couldn't bind" in words or "already in use" in words


def is_about_an_argument(log_text: str) -> bool:
    """Whether the server ended because it could not read its command line."""
    found = trouble(log_text)
    words = found.reason if found else ""
    # The system's own "Invalid argument", of a file, has a capital.
    signs = ("invalid argument", "error while handling argument", "unknown argument")
    return any(sign in words for sign in signs)


def _farewell(log_text: str) -> Trouble | None:
    """A server that is told to end says so, and ends well."""
    if "cleaning up before exit" not in log_text:
        return None
    return Trouble(Status.CRASHED, "somebody told it to end")


def without_words(returncode: int) -> Trouble:
    """Why a program ended whose log does not tell."""
    if returncode == -SIGKILL:
        reason = "nobody but the system does that, when memory runs out"
        return Trouble(Status.OUT_OF_MEMORY, reason)
    if returncode == -SIGXFSZ:
        reason = "its log is as long as a file may be here: see ulimit -f"
        return Trouble(Status.CRASHED, reason)
    return Trouble(Status.CRASHED, "its log does not say why")


def how(returncode: int) -> str:
    """``exit code 3`` or ``SIGKILL``: how a program ended."""
    if returncode >= 0:
        return f"exit code {returncode}"
    try:
        return Signals(-returncode).name
    except ValueError:
        return f"signal {-returncode}"
