"""
A llama-server: its key and name, how long it may load and warm up, what memory it may
take, why it failed, and a hash of what really runs.
"""

import hashlib
import os
import secrets
import shlex
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from typing_extensions import override

from codeneedle.engines import started_servers
from codeneedle.engines.engine import (
    HOST,
    Address,
    CannotSave,
    CellSpec,
    Tokenizer,
)
from codeneedle.engines.exit_causes import Died
from codeneedle.engines.http import SILENCE_S
from codeneedle.engines.llama_cpp.arguments import (
    SLOT_FOLDER,
    Launch,
    asks_for_all_layers,
    can_save_cache,
    environment_for_model,
    server_command,
    threads_should_sleep,
    wait_policy_label,
    without_arguments,
)
from codeneedle.engines.llama_cpp.client import Client
from codeneedle.engines.llama_cpp.installation import is_library_of_llama
from codeneedle.engines.llama_cpp.log import (
    COMMAND_SIGN,
    cause,
    effective_settings,
    find_trouble,
    is_shutting_down,
    last_lines,
    read_log,
    setting_lines,
)
from codeneedle.engines.messages import BadReply, Readiness, Refused
from codeneedle.engines.mismatch import (
    RequestedSettings,
    differences,
    refuse_quantized_v_without_flash,
)
from codeneedle.engines.started_servers import StartedServer, nap_seconds
from codeneedle.errors import CellError
from codeneedle.models.weights import Weights
from codeneedle.records.record import Effective, Status
from codeneedle.system import process_memory
from codeneedle.system.contents import cached_content_hash, joint_hash
from codeneedle.system.inherited_variables import inherited_variables
from codeneedle.system.orphans import running_with_note
from codeneedle.system.processes import (
    Child,
    command_line_of,
    mapped_files,
    pids_of_tree_and_group,
    port_is_listened_on,
    program_of,
)
from codeneedle.text import one_line, size_text

LOAD_TIMEOUT_S = 1800.0
"""How long loading may take at most: a hundred gigabytes from a slow disk."""

LEAST_LOAD_S = 600.0
"""How long it may take whatever the size: a device may compile its kernels first."""

SLOW_DISK_BYTES_PER_S = 50e6
"""Weights come at least this fast."""

WARMUP_TIMEOUT_S = 600.0
"""
How long a server may warm up, which takes seconds at most.

There are builds whose kernels for some pairs never come to an end; the weights are
in memory by then, so nothing of that depends on a disk.
"""


@dataclass(slots=True, kw_only=True)
class LlamaServer(StartedServer):
    """A llama-server."""

    launch: Launch  # what it was started with
    client: Client  # sends requests to it
    log: Path
    child: Child  # its process
    load_timeout_s: float  # how long it may take to load, in seconds
    warmup_timeout_s: float  # how long it may take from then until it is ready
    memory_bytes: int | None  # memory of its own that it may take; None for no limit
    _warm_from_s: float | None = field(default=None, init=False)
    _was_too_large: bool = field(default=False, init=False)
    _is_here: bool | None = field(default=None, init=False)

    @property
    @override
    def tokenizer(self) -> Tokenizer:
        return self.client

    @override
    def effective(self) -> Effective:
        """What its log tells by now; some of it is only logged at the first token."""
        return replace(
            effective_settings(read_log(self.log)),
            waiting=wait_policy_label(self.launch.is_passive),
        )

    @override
    def differences_from_cell(self, cell: CellSpec) -> tuple[str, ...]:
        """
        Differences from *cell*; waits `LOG_DELAY_S` for a log without a cache.

        Raises:
            CellError: For a quantized V where flash attention is off.
        """
        asked = RequestedSettings(
            pair=cell.pair,
            context=cell.context,
            rotation=self.launch.model.rotation,
            all_layers=asks_for_all_layers(self.launch),
            flash=not self.launch.model.attention_on_cpu,
        )
        began = time.monotonic()
        while True:
            effective = self.effective()
            refuse_quantized_v_without_flash(cell.pair, effective)
            unlike = differences(asked, effective)
            waited_s = time.monotonic() - began
            if not unlike or effective.kv or waited_s > LOG_DELAY_S:
                return unlike
            time.sleep(nap_seconds(waited_s))

    @override
    def save_cache(self) -> None:
        self._ask_slot("save")

    @override
    def restore_cache(self) -> None:
        self._ask_slot("restore")

    def _ask_slot(self, action: Literal["save", "restore"]) -> None:
        """Save or restore the cache; a `CannotSave` if the server cannot."""
        if not can_save_cache(self.launch):
            raise CannotSave(f"this llama-server has no {SLOT_FOLDER}")
        try:
            self.client.act_on_slot(action)
        except (BadReply, Refused) as error:
            raise CannotSave(str(error)) from error

    @override
    def readiness(self, limit_s: float) -> Readiness:
        return self.client.readiness(self.launch.alias, limit_s=limit_s)

    @override
    def left_s(self, waited_s: float) -> float:
        """
        Seconds left to load; or to warm up, once its log says that it does.

        That time begins with the call that first sees it. 0 beyond the memory limit.
        """
        if self.has_exceeded_memory():
            return 0.0
        if self._warm_from_s is None:
            if _WARM_UP not in read_log(self.log):
                return self.load_timeout_s - waited_s
            self._warm_from_s = waited_s
        return self._warm_from_s + self.warmup_timeout_s - waited_s

    @override
    def waiting_phrase(self, readiness: Readiness) -> str:
        told = self.client.refusal
        answers = f" (it answers {told})" if told and readiness in _ANSWERS else ""
        return f"{super(LlamaServer, self).waiting_phrase(readiness)}{answers}"

    @override
    def delay_error(self, readiness: Readiness) -> CellError:
        what = self.waiting_phrase(readiness).removeprefix("it ")
        message = f"llama-server {what} after {self.load_timeout_s:g} s"
        hint = f"See {self.log}. Is the disk slow, or the memory full?"
        if self._warm_from_s is not None:
            message = f"llama-server hangs at warm-up, for {self.warmup_timeout_s:g} s"
            hint = f"See {self.log}. It may concern this pair only."
        return self._exceeded_memory_error() or CellError(
            message,
            hint=hint,
            status=Status.TIMED_OUT,
            log_excerpt=last_lines(read_log(self.log)),
        )

    @override
    def death_error(self) -> Died:
        log_text = read_log(self.log)
        return Died(
            "llama-server",
            returncode=self.child.returncode,
            log=self.log,
            cause=cause(log_text, self.child.returncode),
            excerpt=last_lines(log_text),
        )

    @override
    def excerpt(self, error: CellError) -> tuple[str, ...]:
        is_mismatch = error.status == Status.MISMATCHED
        return (setting_lines if is_mismatch else last_lines)(read_log(self.log))

    @override
    def exit_error(self) -> CellError | None:
        """Why it cannot be used: it took too much memory, or has ended; else None."""
        return (
            self._exceeded_memory_error()
            if self.child.poll() is None
            else self.death_error()
        )

    @override
    def program_hash(self) -> str:
        """A hash of what the innermost process runs: a wrapper is none of ours."""
        serving = [
            pid
            for pid in pids_of_tree_and_group(self.child.pid)
            if self.launch.alias in command_line_of(pid)
        ]
        return running_program_hash(serving[-1], self.command) if serving else ""

    @override
    def _resident_bytes(self) -> int | None:
        """
        Bytes of the whole tree of processes; None where none of them listens.

        Then the server runs elsewhere, in a container, and what is here is its client.
        """
        if self._is_here is None and self.address is not None:
            port = urlsplit(self.address.url).port or 0
            is_known = port_is_listened_on(pids_of_tree_and_group(self.child.pid), port)
            self._is_here = is_known is not False or self.child.poll() is not None
        return (
            process_memory.tree_peak_rss_bytes(self.child.pid)
            if self._is_here
            else None
        )

    def has_exceeded_memory(self) -> bool:
        """Whether it was ever seen with more memory of its own than it may take."""
        if self.memory_bytes is not None and not self._was_too_large:
            self._was_too_large = _tree_memory_bytes(self.child.pid) > self.memory_bytes
        return self._was_too_large

    def _exceeded_memory_error(self) -> CellError | None:
        """The error for a server beyond its limit of memory; None if it was not."""
        limit = self.memory_bytes
        if limit is None or not self._was_too_large:
            return None
        return CellError(
            f"llama-server was stopped as it took more than {size_text(limit)} of "
            "memory",
            hint=f"See {self.log}.",
            status=Status.OUT_OF_MEMORY,
            log_excerpt=last_lines(read_log(self.log)),
        )


_ANSWERS = frozenset({Readiness.LOADING, Readiness.STRANGER})

_WARM_UP = "warming up the model"
"""Says a server of the pinned and of older builds once the weights are loaded."""

PORTS = frozenset({"--port"})

LOG_DELAY_S = 2.0
"""How long the log may lag behind the server's answers."""


def serving_llama(
    launch: Launch,
    *,
    log: Path,
    load_timeout_s: float | None = None,
    warmup_timeout_s: float = WARMUP_TIMEOUT_S,
    silence_s: float = SILENCE_S,
    memory_bytes: int | None = None,
) -> AbstractContextManager[LlamaServer]:
    """
    A llama-server that is ready; see `started_servers.serving`.

    Args:
        launch: What to serve.
        log: Receives what the server says. Overwritten.
        load_timeout_s: How long it may take to load, in seconds; None for what a slow
            disk takes.
        warmup_timeout_s: How long it may take from then until it is ready.
        silence_s: How long it may be silent in a reply, in seconds.
        memory_bytes: Memory that it may take; None for no limit.

    Raises:
        Died: If it ends, at the start or within the block.
    """
    # A random name, so that another server is never taken for this one; llama-server
    # takes what is after a comma for another name.
    alias = f"{launch.alias.replace(',', '-')}.{secrets.token_hex(4)}"

    def start(port: int, stack: ExitStack) -> LlamaServer:
        # The server's log ends with the last four characters of its key.
        api_key = launch.key or f"{secrets.token_urlsafe(32)}-end"
        is_passive = threads_should_sleep(launch.model)
        argv = server_command(replace(launch, alias=alias), port=port)
        env = inherited_variables()
        env |= environment_for_model(launch.model, is_passive=is_passive)
        env["LLAMA_API_KEY"] = api_key
        heading = f"{COMMAND_SIGN}{one_line(shlex.join(argv))}\n"
        child = stack.enter_context(
            running_with_note(argv, env=env, log=log, heading=heading)
        )
        url = f"http://{HOST}:{port}"
        server: LlamaServer
        client = Client(
            url,
            api_key=api_key,
            silence_s=silence_s,
            is_leaving=lambda: is_shutting_down(log) or server.has_exceeded_memory(),
        )
        server = LlamaServer(
            launch=replace(launch, alias=alias, is_passive=is_passive),
            client=stack.enter_context(client),
            command=tuple(argv),
            log=log,
            child=child,
            address=Address(url=f"{url}/v1", model=alias, key=api_key),
            load_timeout_s=load_timeout_s or load_limit_s(launch.model.weights),
            warmup_timeout_s=warmup_timeout_s,
            memory_bytes=memory_bytes,
        )
        return server

    return started_servers.serving(start, port=launch.port)


def load_limit_s(weights: Weights) -> float:
    """Seconds for a server to load *weights*: by size, `LOAD_TIMEOUT_S` at most."""
    return min(
        LOAD_TIMEOUT_S, LEAST_LOAD_S + weights.size_bytes / SLOW_DISK_BYTES_PER_S
    )


def has_argument_error(log_text: str) -> bool:
    """Whether the server ended because it could not read its command line."""
    cause = find_trouble(log_text)
    words = cause.reason if cause else ""
    # The system's own "Invalid argument", of a file, has a capital.
    signs = ("invalid argument", "error while handling argument", "unknown argument")
    return any(sign in words for sign in signs)


def running_program_hash(pid: int, ours: Sequence[str]) -> str:
    """
    A hash of the program that *pid* runs, of its libraries, and of its further words.

    Empty if nothing tells which program that is.

    Args:
        pid: A process.
        ours: The words that we started it with, or what has started it.
    """
    program = program_of(pid)
    if program is None:
        return ""
    libraries = filter(is_library_of_llama, mapped_files(pid))
    # What stands before the server may give it a port of its own.
    told = without_arguments(command_line_of(pid)[1:], PORTS)
    words = Counter(told)
    words.subtract(ours)
    # Of a script, what it says counts, not where it is.
    further = sorted(
        cached_content_hash(Path(word)) if os.path.isfile(word) else word  # noqa: PTH113 - may be no path
        for word, count in words.items()
        if count > 0
    )
    parts = (joint_hash((program, *libraries)), *further)
    return hashlib.sha256("\0".join(parts).encode(errors="replace")).hexdigest()


def _tree_memory_bytes(pid: int) -> int:
    """Memory of *pid* and what it started, without mapped files if the system tells."""
    return sum(map(_process_memory_bytes, pids_of_tree_and_group(pid)))


def _process_memory_bytes(pid: int) -> int:
    """
    Anonymous memory of *pid*; its peak where the system tells no such.

    0 if unknown.
    """
    anonymous = process_memory.status_bytes(pid, "RssAnon")
    return (process_memory.peak_rss_bytes(pid) or 0) if anonymous is None else anonymous
