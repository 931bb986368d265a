"""Serves a cell on llama-server: started, awaited, verified, stopped, and gone."""

import contextlib
import functools
import os
import secrets
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil

from codeneedle import environment
from codeneedle.answers import Readiness, ServerGone, StreamEnded
from codeneedle.client import SILENCE_S, Client
from codeneedle.effective import Effective
from codeneedle.engine.claim import Claim, claimed
from codeneedle.engine.endings import (
    HangsAtWarmUp,
    Mismatched,
    NeverReady,
    ServerDied,
    is_about_the_port,
)
from codeneedle.engine.launch import (
    HOST,
    Launch,
    asks_for_all_layers,
    command,
    refuse_reserved,
    variables,
)
from codeneedle.engine.logfile import bids_farewell, read_log
from codeneedle.engine.waiting import (
    LOAD_TIMEOUT_S,
    WARMUP_TIMEOUT_S,
    Patience,
    nap_after,
    wait,
)
from codeneedle.errors import CellError
from codeneedle.mismatches import Asked, mismatches
from codeneedle.process import Child, ends_within, running
from codeneedle.serverlog import Trouble, fallback, last_words, read

__all__ = [
    "LOAD_TIMEOUT_S",
    "Claim",
    "Launch",
    "Served",
    "refuse_reserved",
    "serving",
]

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
        inherited = environment.clean(os.environ)
        env = inherited | variables(self.launch, api_key=api_key)
        claimant = stack.enter_context(
            claimed(self.folder, alias=self.launch.alias, port=port)
        )
        child = stack.enter_context(running(argv, env=env, log=self.log))
        claimant.note(child.pid)
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
    if isinstance(error, ServerGone | StreamEnded):
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
