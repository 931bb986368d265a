"""
A llama-server for one cell: start, readiness, verification, stop,
and how it may fail.
"""

import contextlib
import functools
import os
import secrets
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from signal import SIGKILL, SIGXFSZ, Signals

import psutil

from codeneedle.engines.client import SHORT_S, SILENCE_S, Client
from codeneedle.engines.llama_cpp.arguments import (
    HOST,
    Launch,
    asks_for_all_layers,
    command,
    variables,
)
from codeneedle.engines.llama_cpp.log import (
    Asked,
    bids_farewell,
    evidence,
    fallback,
    last_words,
    mismatches,
    read,
    read_log,
    trouble,
)
from codeneedle.engines.responses import Readiness, ServerGone
from codeneedle.errors import CellError
from codeneedle.grid import Pair
from codeneedle.records.record import Effective, Status, Trouble
from codeneedle.system import processes
from codeneedle.system.orphans import noted
from codeneedle.system.processes import Child, ends_within


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


_WARM_UP = "warming up the model"
"""Says a server of the pinned and of older builds once the weights are loaded."""

LOAD_TIMEOUT_S = 1800.0
"""How long loading may take: a hundred gigabytes from a slow disk."""

WARMUP_TIMEOUT_S = 600.0
"""
How long a server may warm up, which takes seconds at most.

There are builds whose kernels for some pairs never come to an end; the weights are
in memory by then, so nothing of that depends on a disk.
"""

FIRST_NAP_S = 0.002
LONGEST_NAP_S = 0.25
NAP_SHARE = 0.04
"""
The built-in model is ready after 50 ms, a large one after minutes: each nap is a
share of the time so far, so that nobody is noticed much later than it is ready.
"""

LONGEST_LOOK_S = 60.0
"""Nobody looks at a server for longer, but who was suspended meanwhile."""


@dataclass(slots=True, kw_only=True)
class Patience:
    """
    How long a server is waited for: for loading, and from then on for warming up.

    Attributes:
        log: What the server says.
        load_until: When loading must be over, in monotonic seconds.
        warmup_s: How long warming up may take, in seconds.
        warmup_until: When it must be over, in monotonic seconds; None until it begins.
    """

    log: Path
    load_until: float
    warmup_s: float = WARMUP_TIMEOUT_S
    warmup_until: float | None = None

    def renewed(self) -> "Patience":
        """The same for another try at starting: nothing has warmed up in it yet."""
        return replace(self, warmup_until=None)

    def prolong(self, by_s: float) -> None:
        """Wait for *by_s* more seconds: we were suspended for so long."""
        self.load_until += by_s
        if self.warmup_until is not None:
            self.warmup_until += by_s

    def left_s(self) -> float:
        """What is left of it, in seconds; negative when it is at its end."""
        if self.warmup_until is None and _WARM_UP in read_log(self.log):
            self.warmup_until = time.monotonic() + self.warmup_s
        until = self.load_until if self.warmup_until is None else self.warmup_until
        return until - time.monotonic()


def nap_after(waited_s: float) -> float:
    """How long to nap before the next look, after *waited_s* seconds; in seconds."""
    return min(max(FIRST_NAP_S, NAP_SHARE * waited_s), LONGEST_NAP_S)


def wait(child: Child, client: Client, patience: Patience) -> Readiness:
    """
    How far the server is once it is ready, dead, or out of time.

    The child is looked at before the port: if ours is dead, whoever answers
    there is a stranger.
    """
    began = time.monotonic()
    looked = time.monotonic()
    seen = Readiness.SILENT
    while child.poll() is None:
        left_s = patience.left_s()
        if left_s <= 0:
            break
        limit_s = min(SHORT_S, left_s)
        now_seen = client.readiness(limit_s=limit_s)
        if now_seen is Readiness.READY and child.poll() is None:
            return now_seen
        # A last look in a hurry sees less than the ones before.
        if now_seen is not Readiness.SILENT or limit_s == SHORT_S:
            seen = now_seen
        time.sleep(min(nap_after(time.monotonic() - began), max(0.0, left_s)))
        looked, before = time.monotonic(), looked
        if looked - before > LONGEST_LOOK_S:
            patience.prolong(looked - before)
    return Readiness.SILENT if seen is Readiness.READY else seen


PORT_ATTEMPTS = 5
"""Somebody may take the port between our choosing it and the server's binding it."""

DEATH_S = 1.0
"""How long a process that broke its connection may take to be gone."""

LOG_SETTLES_S = 2.0
"""How long the log may lag behind; another thread of the server writes it."""


@dataclass(slots=True, kw_only=True)
class Served:
    """
    A server that is ready, and is what was asked for.

    Attributes:
        client: Talks to it.
        command: Its arguments; no secrets are among them.
        log: Its log.
        pid: Its process.
        ready_s: From launch to verified, in seconds.
        effective: What really runs, as far as its log told when last read.
        stop_s: From the request to stop to the end of its process group; None
            before that.
    """

    client: Client
    command: tuple[str, ...]
    log: Path
    pid: int
    ready_s: float = 0.0
    effective: Effective = field(default_factory=Effective)
    stop_s: float | None = None
    _child: Child | None = None
    _peak_rss_bytes: int | None = None

    def ends_within(self, limit_s: float) -> bool:
        """Whether its process ends on its own before *limit_s* seconds are over."""
        if self._child is None:
            return False
        return ends_within(self._child, limit_s)

    def peak_rss(self) -> int | None:
        """Largest resident size seen so far, in bytes; None if never seen."""
        seen = _peak_rss(self.pid)
        if seen is not None:
            self._peak_rss_bytes = max(seen, self._peak_rss_bytes or 0)
        return self._peak_rss_bytes

    def reread(self) -> Trouble | None:
        """
        Read the log again: some of it is only said at the first token.

        Returns:
            What the server does instead of fast attention on the asked types;
            None if nothing of the kind was said.
        """
        log_text = read_log(self.log)
        self.effective = read(log_text)
        return fallback(log_text)


@contextlib.contextmanager
def serving(
    launch: Launch,
    *,
    log: Path,
    folder: Path | None = None,
    load_timeout_s: float = LOAD_TIMEOUT_S,
    warmup_timeout_s: float = WARMUP_TIMEOUT_S,
    silence_s: float = SILENCE_S,
) -> Iterator[Served]:
    """
    A server, ready and verified, for the length of a block.

    When the block ends, however it ends, the server's whole process group has
    ended, and its port is free.

    Args:
        launch: What to serve.
        log: Receives what the server says. Overwritten.
        folder: Of the run; keeps a note of the server while it lives.
        load_timeout_s: How long it may take to load, in seconds.
        warmup_timeout_s: How long it may take from then until it is ready.
        silence_s: How long it may be silent in a reply, in seconds.

    Raises:
        ServerDied: If it ends, at the start or within the block.
        NeverReady: If it takes too long.
        HangsAtWarmUp: If it does so after it has loaded.
        Mismatched: If other types, context or attention run than asked for.
        CellError: Others pass through with the last words of the log.
        MachineError: If it cannot be started, noted or stopped.
    """
    # A name of its own, so that nobody takes a stranger's server for this one.
    # llama-server takes what is after a comma for another name.
    alias = f"{launch.alias.replace(',', '-')}.{secrets.token_hex(4)}"
    start = _Start(replace(launch, alias=alias), log, folder, silence_s)
    served: Served | None = None
    left = 0.0
    try:
        with contextlib.ExitStack() as stack:
            child, served = start.ready(
                stack, timeout_s=load_timeout_s, warmup_s=warmup_timeout_s
            )
            try:
                yield served
            except CellError as error:
                _explain(error, child, log)
                raise
            finally:
                served.peak_rss()
                left = time.monotonic()
    finally:
        if served is not None:
            served.stop_s = time.monotonic() - left


@dataclass(frozen=True, slots=True)
class _Start:
    """Gets a server going."""

    launch: Launch
    log: Path
    folder: Path | None
    silence_s: float

    def ready(
        self, stack: contextlib.ExitStack, *, timeout_s: float, warmup_s: float
    ) -> tuple[Child, Served]:
        """Start and verify; what is to be undone later goes on *stack*."""
        started = time.monotonic()
        patience = Patience(
            log=self.log, load_until=started + timeout_s, warmup_s=warmup_s
        )
        for attempt in range(1, PORT_ATTEMPTS + 1):
            child, served = self._launched(stack)
            patience = patience.renewed()
            seen = wait(child, served.client, patience)
            if seen is Readiness.READY:
                break
            log_text = read_log(self.log)
            if child.poll() is None:
                if patience.warmup_until is not None:
                    raise HangsAtWarmUp(
                        timeout_s=warmup_s, log=self.log, log_text=log_text
                    )
                raise NeverReady(
                    seen=seen, timeout_s=timeout_s, log=self.log, log_text=log_text
                )
            if attempt == PORT_ATTEMPTS or not is_about_the_port(log_text):
                raise _death(child, self.log, log_text)
        served.effective = self._verified()
        served.ready_s = time.monotonic() - started
        return child, served

    def _launched(self, stack: contextlib.ExitStack) -> tuple[Child, Served]:
        port = _free_port()
        # The server's log ends with the last four characters of its key.
        api_key = f"{secrets.token_urlsafe(32)}-end"
        argv = command(self.launch, port=port)
        inherited = processes.clean(os.environ)
        env = inherited | variables(self.launch, api_key=api_key)
        child = stack.enter_context(noted(argv, env=env, log=self.log))
        client = stack.enter_context(
            Client(
                f"http://{HOST}:{port}",
                alias=self.launch.alias,
                api_key=api_key,
                silence_s=self.silence_s,
                is_leaving=functools.partial(bids_farewell, self.log),
            )
        )
        served = Served(
            client=client,
            command=tuple(argv),
            log=self.log,
            pid=child.pid,
            _child=child,
        )
        return child, served

    def _verified(self) -> Effective:
        asked = Asked(
            pair=self.launch.pair,
            context=self.launch.context,
            rotation=self.launch.rotation,
            all_layers=asks_for_all_layers(self.launch),
        )
        began = time.monotonic()
        while True:
            log_text = read_log(self.log)
            effective = read(log_text)
            differences = mismatches(asked, effective)
            if not differences:
                return effective
            waited_s = time.monotonic() - began
            if effective.kv or waited_s > LOG_SETTLES_S:
                raise Mismatched(differences=differences, log_text=log_text)
            time.sleep(nap_after(waited_s))


def _explain(error: CellError, child: Child, log: Path) -> None:
    """
    Add to an *error* of a block what the server's log tells.

    Raises:
        ServerDied: If the error is that the server has ended.
    """
    if isinstance(error, ServerGone):
        # The connection breaks a moment before the process is gone.
        ends_within(child, DEATH_S)
    log_text = read_log(log)
    if child.poll() is not None:
        raise _death(child, log, log_text) from error
    error.log_excerpt = error.log_excerpt or last_words(log_text)


def _death(child: Child, log: Path, log_text: str) -> ServerDied:
    return ServerDied(returncode=child.returncode, log=log, log_text=log_text)


def _free_port() -> int:
    """A port that nobody has at this moment."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def _peak_rss(pid: int) -> int | None:
    """Linux keeps the peak itself (``VmHWM`` in kB, proc(5)); others say what is."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
        return int(status.partition("VmHWM:")[2].split()[0]) << 10
    with contextlib.suppress(psutil.Error):
        return int(psutil.Process(pid).memory_info().rss)
    return None


CONTEXT = 256
"""Tokens; the least that a server takes."""

ASKED_FOR = frozenset({"f32", "f16", "bf16"})
"""Types of V for which a build asks itself whether it has attention."""

EVERYWHERE = frozenset({"f16", "bf16"})
"""Those of them that every build has attention for, if K is of the same type."""

_CACHE_ON_HOST = frozenset({"-nkvo", "--no-kv-offload"})
_NO_WARMUP = "--no-warmup"


def in_doubt(pair: Pair, *, devices: Sequence[str], extra: Sequence[str]) -> bool:
    """
    Whether a preflight can tell that attention of *pair* leaves the accelerator.

    It tells nothing where V is quantized, see `preflight`.

    Args:
        pair: The cache types.
        devices: The accelerators that the binary sees.
        extra: A person's arguments for the server; who asks for a cache on the
            host gets attention there.
    """
    if not devices or _CACHE_ON_HOST & set(extra) or pair.v not in ASKED_FOR:
        return False
    return pair.k != pair.v or pair.k not in EVERYWHERE


def preflight(launch: Launch, *, log: Path, folder: Path | None) -> Trouble | None:
    """
    What a server of *launch* would do instead of fast attention; None if nothing.

    With flash attention on, nobody asks whether the accelerator has it for these
    types, and the processor takes over unseen. Where the server may choose, it asks
    itself and says so. That is at loading: nothing is computed.

    Later builds ask nobody where V is quantized, as they turn flash attention on for
    it; of those pairs only the parts of the graph and the speed tell, and only beside
    another pair's (`fallbacks.suspects`).

    Args:
        launch: The cell's own.
        log: Receives what the server says. Overwritten.
        folder: Of the run; keeps a note of the server while it lives.

    Raises:
        MachineError: If the server cannot be started, noted or stopped.
    """
    quick = (_NO_WARMUP,) if _NO_WARMUP in launch.options else ()
    asking = replace(
        launch,
        context=CONTEXT,
        flash_attention="auto",
        extra=(*launch.extra, *quick),
    )
    # With attention gone it often ends at once, and never is what a cell asks for.
    with contextlib.suppress(CellError), serving(asking, log=log, folder=folder):
        pass
    return fallback(read_log(log))
