"""A llama-server from its start to its stop, and why it failed."""

import contextlib
import secrets
import shlex
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal

from codeneedle.engines.engine import (
    Address,
    CannotSave,
    CellSpec,
    Served,
    Tokenizer,
    explained,
)
from codeneedle.engines.http import SHORT_S, SILENCE_S
from codeneedle.engines.llama_cpp.arguments import (
    HOST,
    SLOT_FOLDER,
    Launch,
    asks_for_all_layers,
    can_save,
    command,
    variables,
    waiting,
    waits_passively,
)
from codeneedle.engines.llama_cpp.client import Client
from codeneedle.engines.llama_cpp.log import (
    COMMAND_SIGN,
    Expected,
    evidence,
    exit_cause,
    exit_phrase,
    fallback,
    is_shutting_down,
    last_lines,
    mismatches,
    read,
    read_log,
    trouble,
)
from codeneedle.engines.messages import BadReply, Readiness, Refused
from codeneedle.errors import CellError
from codeneedle.records.record import Effective, Status, Trouble
from codeneedle.system import machine
from codeneedle.system.environment import inherited
from codeneedle.system.orphans import noted
from codeneedle.system.processes import Child, free_port
from codeneedle.text import one_line, size

LOAD_TIMEOUT_S = 1800.0
"""How long loading may take: a hundred gigabytes from a slow disk."""

WARMUP_TIMEOUT_S = 600.0
"""
How long a server may warm up, which takes seconds at most.

There are builds whose kernels for some pairs never come to an end; the weights are
in memory by then, so nothing of that depends on a disk.
"""


@dataclass(slots=True, kw_only=True)
class LlamaServer(Served):
    """
    A llama-server that is ready.

    Attributes:
        launch: What it was started with.
        client: Sends requests to it.
        log: Its log.
        child: Its process.
        memory_bytes: Memory of its own that it may take; None for no limit.
    """

    launch: Launch
    client: Client
    log: Path
    child: Child
    memory_bytes: int | None
    _was_too_large: bool = field(default=False, init=False)

    @property
    def tokenizer(self) -> Tokenizer:
        """As of `engine.Served`."""
        return self.client

    def effective(self) -> Effective:
        """As of `engine.Served`; some of it is only logged at the first token."""
        return replace(
            read(read_log(self.log)), waiting=waiting(self.launch.is_passive)
        )

    def verify(self, cell: CellSpec) -> tuple[str, ...]:
        """As of `engine.Served`; another thread of the server writes the log."""
        expected = Expected(
            pair=cell.pair,
            context=cell.context,
            rotation=self.launch.model.rotation,
            all_layers=asks_for_all_layers(self.launch),
        )
        began = time.monotonic()
        while True:
            effective = self.effective()
            differences = mismatches(expected, effective)
            waited_s = time.monotonic() - began
            if not differences or effective.kv or waited_s > LOG_DELAY_S:
                return differences
            time.sleep(nap_after(waited_s))

    def fallback(self) -> Trouble | None:
        """As of `engine.Served`."""
        return fallback(read_log(self.log))

    def save_cache(self) -> None:
        """As of `engine.Served`."""
        self._ask_slot("save")

    def restore_cache(self) -> None:
        """As of `engine.Served`."""
        self._ask_slot("restore")

    def _ask_slot(self, action: Literal["save", "restore"]) -> None:
        if not can_save(self.launch):
            raise CannotSave(f"this llama-server has no {SLOT_FOLDER}")
        try:
            self.client.act_on_slot(action)
        except (BadReply, Refused) as error:
            raise CannotSave(str(error)) from error

    def is_too_large(self) -> bool:
        """Whether it was ever seen with more memory of its own than it may take."""
        if self.memory_bytes is not None and not self._was_too_large:
            self._was_too_large = _own_memory(self.child.pid) > self.memory_bytes
        return self._was_too_large

    def too_large(self) -> CellError | None:
        """The error for a server beyond its limit of memory; None if it was not."""
        limit = self.memory_bytes
        if limit is None or not self._was_too_large:
            return None
        return CellError(
            f"llama-server was stopped as it took more than {size(limit)} of memory",
            hint=f"See {self.log}.",
            status=Status.OUT_OF_MEMORY,
            log_excerpt=last_lines(read_log(self.log)),
        )


PORT_ATTEMPTS = 5
"""Another program may take the port before the server binds it."""

LOG_DELAY_S = 2.0
"""How long the log may lag behind the server's answers."""


@contextlib.contextmanager
def serving(
    launch: Launch,
    *,
    log: Path,
    load_timeout_s: float = LOAD_TIMEOUT_S,
    warmup_timeout_s: float = WARMUP_TIMEOUT_S,
    silence_s: float = SILENCE_S,
    memory_bytes: int | None = None,
) -> Iterator[LlamaServer]:
    """
    A llama-server that is ready, for the length of a block.

    When the block ends, however it ends, the server's whole process group has
    ended, and its port is free.

    Args:
        launch: What to serve.
        log: Receives what the server says. Overwritten.
        load_timeout_s: How long it may take to load, in seconds.
        warmup_timeout_s: How long it may take from then until it is ready.
        silence_s: How long it may be silent in a reply, in seconds.
        memory_bytes: Memory that it may take; None for no limit.

    Raises:
        ServerDied: If it ends, at the start or within the block.
        CellError: If it takes too long; others of the block pass through, with what
            the log tells of them.
        MachineError: If it cannot be started or stopped.
    """
    deadlines = Deadlines(log=log, load_s=load_timeout_s, warmup_s=warmup_timeout_s)
    # A random name, so that another server is never taken for this one; llama-server
    # takes what is after a comma for another name.
    alias = f"{launch.alias.replace(',', '-')}.{secrets.token_hex(4)}"
    launch = replace(launch, alias=alias)
    with contextlib.ExitStack() as stack:
        start = partial(_started, launch, log, silence_s, memory_bytes, stack)
        served = _ready(start, deadlines)
        try:
            with explained(
                served.child,
                cause=lambda: _cause(served),
                telling=lambda error: _telling(error, served.log),
            ):
                yield served
        finally:
            served.peak_rss_bytes()


def _ready(start: Callable[[], LlamaServer], deadlines: "Deadlines") -> LlamaServer:
    """Start the server, again where its port was taken."""
    for attempt in range(1, PORT_ATTEMPTS + 1):
        deadlines.restart()
        served = start()
        seen = wait(served, deadlines)
        if seen is Readiness.READY:
            return served
        if served.child.poll() is None:
            raise served.too_large() or deadlines.missed(seen)
        if attempt == PORT_ATTEMPTS or not is_about_the_port(read_log(served.log)):
            break
    raise _death(served)


def _started(
    launch: Launch,
    log: Path,
    silence_s: float,
    memory_bytes: int | None,
    stack: contextlib.ExitStack,
) -> LlamaServer:
    """A server that is not ready yet; *stack* stops it."""
    port = free_port(HOST)
    # The server's log ends with the last four characters of its key.
    api_key = f"{secrets.token_urlsafe(32)}-end"
    launch = replace(launch, is_passive=waits_passively(launch.model))
    argv = command(launch, port=port)
    env = inherited()
    env |= variables(launch.model, is_passive=launch.is_passive)
    env["LLAMA_API_KEY"] = api_key
    heading = f"{COMMAND_SIGN}{one_line(shlex.join(argv))}\n"
    child = stack.enter_context(noted(argv, env=env, log=log, heading=heading))
    url = f"http://{HOST}:{port}"
    served: LlamaServer
    client = stack.enter_context(
        Client(
            url,
            api_key=api_key,
            silence_s=silence_s,
            is_leaving=lambda: is_shutting_down(log) or served.is_too_large(),
        )
    )
    served = LlamaServer(
        launch=launch,
        client=client,
        command=tuple(argv),
        log=log,
        child=child,
        address=Address(url=f"{url}/v1", model=launch.alias, key=api_key),
        memory_bytes=memory_bytes,
    )
    return served


FIRST_NAP_S = 0.002
LONGEST_NAP_S = 0.25
NAP_SHARE = 0.04
"""
The built-in model is ready after 50 ms, a large one after minutes: each nap is a
share of the time so far, so that readiness is noticed soon.
"""

_WARM_UP = "warming up the model"
"""Says a server of the pinned and of older builds once the weights are loaded."""


class Deadlines:
    """
    How long a server may take to load, and from then on to warm up.

    Attributes:
        log: What the server says.
        load_s: Time for loading, in seconds; tries to start share it.
        warmup_s: Time for warming up, in seconds.
    """

    def __init__(self, *, log: Path, load_s: float, warmup_s: float) -> None:
        self.log = log
        self.load_s = load_s
        self.warmup_s = warmup_s
        self._began_s = time.monotonic()
        self._warm_from_s: float | None = None

    def restart(self) -> None:
        """Begin another try at starting."""
        self._warm_from_s = None

    def left_s(self) -> float:
        """Seconds until the deadline; negative when it has passed."""
        now_s = time.monotonic() - self._began_s
        if self._warm_from_s is None:
            if _WARM_UP not in read_log(self.log):
                return self.load_s - now_s
            self._warm_from_s = now_s
        return self._warm_from_s + self.warmup_s - now_s

    def missed(self, seen: Readiness) -> CellError:
        """The error for a server that is not ready in time."""
        what = {
            Readiness.LOADING: "is still loading",
            Readiness.STRANGER: "does not answer under its name",
        }.get(seen, "does not answer")
        message = f"llama-server {what} after {self.load_s:g} s"
        hint = f"See {self.log}. Is the disk slow, or the memory full?"
        if self._warm_from_s is not None:
            message = f"llama-server hangs at warm-up, for {self.warmup_s:g} s now"
            hint = f"See {self.log}. It may concern this pair only."
        return CellError(
            message,
            hint=hint,
            status=Status.TIMED_OUT,
            log_excerpt=last_lines(read_log(self.log)),
        )


def nap_after(waited_s: float) -> float:
    """How long to sleep before the next poll, after *waited_s* seconds; in seconds."""
    return min(max(FIRST_NAP_S, NAP_SHARE * waited_s), LONGEST_NAP_S)


def wait(served: LlamaServer, deadlines: Deadlines) -> Readiness:
    """
    How far the server is once it is ready, has ended, or is out of time or memory.

    The child is polled before the port: once it has ended, whatever answers there is
    another program.
    """
    began = time.monotonic()
    seen = Readiness.SILENT
    while served.child.poll() is None:
        left_s = deadlines.left_s()
        if left_s <= 0 or served.is_too_large():
            break
        limit_s = min(SHORT_S, left_s)
        now_seen = served.client.readiness(served.launch.alias, limit_s=limit_s)
        if now_seen is Readiness.READY and served.child.poll() is None:
            return now_seen
        # The last poll, with less time, sees less than the ones before.
        if now_seen is not Readiness.SILENT or limit_s == SHORT_S:
            seen = now_seen
        time.sleep(min(nap_after(time.monotonic() - began), left_s))
    return Readiness.SILENT if seen is Readiness.READY else seen


class ServerDied(CellError):  # noqa: N818 - named after the fact
    """
    The server ended while it was still needed.

    Attributes:
        returncode: As of `subprocess.Popen`.
    """

    def __init__(self, *, returncode: int, log: Path, log_text: str) -> None:
        found = trouble(log_text) or _farewell(log_text) or exit_cause(returncode)
        super().__init__(
            f"llama-server ended with {exit_phrase(returncode)}: {found.reason}",
            hint=f"The end of its log is in {log}.",
            status=found.status,
            log_excerpt=last_lines(log_text),
        )
        self.returncode = returncode


def is_about_the_port(log_text: str) -> bool:
    """Whether the server ended because another program has its port."""
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
    """A server that is told to end logs it, and ends with exit code 0."""
    if "cleaning up before exit" not in log_text:
        return None
    reason = "it received a termination signal from outside codeneedle"
    return Trouble(Status.CRASHED, reason)


def _cause(served: LlamaServer) -> CellError | None:
    """That the server has ended or takes too much memory, if so."""
    has_ended = served.child.poll() is not None
    return _death(served) if has_ended else served.too_large()


def _telling(error: CellError, log: Path) -> tuple[str, ...]:
    """The lines of its log that tell of *error*."""
    is_mismatch = error.status == Status.MISMATCHED
    return (evidence if is_mismatch else last_lines)(read_log(log))


def _death(served: LlamaServer) -> ServerDied:
    return ServerDied(
        returncode=served.child.returncode,
        log=served.log,
        log_text=read_log(served.log),
    )


def _own_memory(pid: int) -> int:
    """Resident memory of *pid* without the files it maps, where the system tells."""
    own = machine.status_bytes(pid, "RssAnon")
    return (machine.peak_rss_bytes(pid) or 0) if own is None else own
