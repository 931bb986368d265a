"""
Two engines: one starts a server by a command of the user's for each cell, the other
asks a server that is running. What neither tells of its cache is shown by its replies
to a fixed text, and by the memory that a token takes.
"""

import contextlib
import hashlib
import math
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from codeneedle.engines.client import SHORT_S, redacting
from codeneedle.engines.engine import (
    Ability,
    CacheTypes,
    CellSpec,
    DivergenceTool,
    EngineIdentity,
    ModelSpec,
    SpeedTool,
    Tokenizer,
)
from codeneedle.engines.messages import (
    Chat,
    Completion,
    Message,
    Readiness,
    Refused,
    ServerGone,
    TokenPiece,
)
from codeneedle.engines.openai.client import (
    NOT_FOUND,
    REFUSES_FIELDS,
    WANTS_KEY,
    OpenAi,
    advised,
    is_listed,
)
from codeneedle.engines.openai.settings import (
    COMMAND,
    ENDPOINT,
    CommandSettings,
    EndpointSettings,
    Template,
    checked_pair,
    checked_url,
    key_of,
    template_of,
)
from codeneedle.errors import BadInput, CellError, MachineError, ToolFailed, ToolMissing
from codeneedle.grid import Pair
from codeneedle.records.record import Effective, Print, Proof, Status, Trouble
from codeneedle.system import machine, processes
from codeneedle.system.orphans import noted
from codeneedle.system.processes import (
    AwakeClock,
    Child,
    ends_within,
    free_port,
    is_secret,
)

HOST = "127.0.0.1"

LOAD_TIMEOUT_S = 3600.0
"""How long a server may take until it is ready: some compile kernels for half of it."""

STRANGER_S = 30.0
"""How long a server may list other models than ours, or ours without a --health."""

POLL_S = 0.25
"""Between two questions about readiness."""

LONGEST_POLL_S = 60.0
"""A longer gap between two polls means that this process was suspended."""

DEATH_S = 1.0
"""How long a process that broke its connection may take to be gone."""

VERSION_TIMEOUT_S = 120.0
"""For ``--version``: some import all of PyTorch before they answer."""

PORT_ATTEMPTS = 3
"""Another program may take the port before the server binds it."""

FILE_LIMIT_BYTES = 64 << 30
"""Size that a file of the server's may have: it may download weights."""

COUNTING_CONTEXT = 4096
"""Context of a server that only counts tokens."""

LAST_LINES = 12
"""Of the log of a server that failed."""

LOG_BYTES = 64 << 10
"""What is read of the end of a log."""

UNTOLD = (
    "the server does not tell what cache it has: a pair whose replies and memory are "
    "those of a more precise one is unverified"
)
"""For users, before a sweep starts."""

LENGTHS = "estimated from the server's own counts of prompts"
"""How lengths in tokens come about, for reports."""


# --- lengths


SAMPLE_CHARACTERS = 2_000
"""Of a text, sent to be counted."""

MARGIN = 1.02
"""Estimates are so much higher than what a sample says."""

TEMPLATE_TOKENS = 32
"""What a chat template may add to a message."""


@dataclass(slots=True)
class Estimates:
    """
    Estimates lengths from the server's counts. Implements `engine.Tokenizer`.

    A text of up to `SAMPLE_CHARACTERS` is counted by the server, a longer one by its
    middle.

    Attributes:
        count: Asks the server how many tokens a prompt has.
    """

    count: Callable[[str], int]
    _known: dict[str, int] = field(default_factory=dict)

    def count_tokens(self, text: str, *, add_special: bool = True) -> int:  # noqa: ARG002 - of a protocol
        """About the length of *text*, in tokens; rather too high."""
        if not text:
            return 0
        begin = max(0, (len(text) - SAMPLE_CHARACTERS) // 2)
        sample = text[begin : begin + SAMPLE_CHARACTERS]
        if sample not in self._known:
            self._known[sample] = self.count(sample)
        tokens = self._known[sample]
        if sample == text:
            return tokens
        return math.ceil(MARGIN * tokens * len(text) / len(sample))

    def counts(self, texts: Sequence[str]) -> list[int]:
        """About the lengths of *texts*, by their share of all of them together."""
        whole = "\n".join(texts)
        share = self.count_tokens(whole) / max(1, len(whole))
        return [math.ceil(share * len(text)) for text in texts]

    def tokens(
        self,
        text: str,  # noqa: ARG002 - of a protocol
        *,
        add_special: bool = True,  # noqa: ARG002 - of a protocol
    ) -> tuple[TokenPiece, ...]:
        """
        As of `engine.Tokenizer`.

        Raises:
            CellError: Always.
        """
        raise CellError(
            "the server does not tell the tokens of a text",
            hint="Leave out the probe that needs them.",
            status=Status.UNSUPPORTED,
        )

    def render(
        self,
        messages: tuple[Message, ...],
        template_args: Mapping[str, object] | None = None,  # noqa: ARG002 - of a protocol
    ) -> str:
        """The texts of *messages*, with room for what a template adds."""
        room = "\n" * TEMPLATE_TOKENS
        return "".join(f"{said.role}\n{said.content}{room}" for said in messages)


# --- proof


ASKS = 2
"""Scored askings of the fixed text: what they differ by is noise."""

PROOF_TOKENS = 32
"""That are written each time."""

PROOF_LINES = 24
"""Of the text: some 600 tokens, which a quantized cache reads with errors."""


def proof_text(context: int) -> str:
    """
    A fixed, incompressible text that a context of so many tokens has room for.

    It ends with its first line: what follows has to be found in the cache.
    """
    digests = (hashlib.sha256(bytes([at])).hexdigest() for at in range(PROOF_LINES))
    lines = [f"{at}: {digest[:24]}" for at, digest in enumerate(digests)]
    whole = "\n".join(lines)[: max(64, context // 2 - PROOF_TOKENS)]
    return f"{whole}\n{lines[0]}\n"


def prints(client: OpenAi, *, context: int) -> tuple[Print, ...]:
    """
    What the server replies to the same text, `ASKS` times.

    It is asked once more before, so that each scored asking finds the text in a cache
    of prefixes, if the server has one.

    Args:
        client: Asks it.
        context: Size of its context, in tokens.

    Raises:
        CellError: If it fails.
    """
    fixed = proof_text(context)
    return tuple(_print(client, fixed) for _ in range(ASKS + 1))[1:]


def _print(client: OpenAi, fixed: str) -> Print:
    try:
        reply = client.complete(Completion(prompt=fixed, max_tokens=PROOF_TOKENS))
    except Refused as error:
        if error.code not in NOT_FOUND | REFUSES_FIELDS:
            raise
        asked = Message("user", f"{fixed}Say these lines, the last one first.")
        reply = client.chat(Chat(messages=(asked,), max_tokens=PROOF_TOKENS))
    return Print(text=f"{reply.reasoning}{reply.text}", logprobs=reply.logprobs)


# --- a server


@dataclass(slots=True, kw_only=True)
class Server:
    """
    A server that is ready. Implements `engine.Served`.

    Attributes:
        client: Sends requests to it.
        command: Its arguments, or its address; never a secret.
        child: Its process; None if it is not ours.
        proof: Evidence of its cache.
    """

    client: OpenAi
    command: tuple[str, ...]
    child: Child | None = None
    proof: Proof = field(default_factory=Proof)
    _peak_bytes: int | None = None

    @property
    def tokenizer(self) -> Tokenizer:
        """As of `engine.Served`: estimates."""
        return Estimates(self.client.prompt_tokens)

    def effective(self) -> Effective:
        """As of `engine.Served`: evidence, for the server tells nothing."""
        return Effective(proof=self.proof, left_out=self.client.left_out)

    def verify(self, cell: CellSpec) -> tuple[str, ...]:  # noqa: ARG002 - of a protocol
        """As of `engine.Served`: evidence is compared with that of other cells."""
        return ()

    def fallback(self) -> Trouble | None:
        """As of `engine.Served`: nothing is told."""
        return None

    def ends_within(self, limit_s: float) -> bool:
        """As of `engine.Served`."""
        return self.child is not None and ends_within(self.child, limit_s)

    def peak_rss_bytes(self) -> int | None:
        """As of `engine.Served`: of its process group, whenever it was looked at."""
        seen = machine.group_rss_bytes(self.child.pid) if self.child else None
        if seen is not None:
            self._peak_bytes = max(seen, self._peak_bytes or 0)
        return self._peak_bytes

    def device_bytes(self) -> int | None:
        """As of `engine.Served`: of its process group."""
        if self.child is None:
            return None
        return machine.used_bytes(*machine.group_pids(self.child.pid))

    def memory_bytes(self) -> int | None:
        """What its process group holds, on the host and on devices; None if unknown."""
        host, device = self.peak_rss_bytes(), self.device_bytes()
        if device is None and machine.nvidia_smi() is None:
            device = 0  # no device that could tell
        return None if host is None or device is None else host + device


# --- engines


@dataclass(frozen=True, slots=True, kw_only=True)
class _OpenAiEngine:
    """What both engines have in common."""

    name: ClassVar[str] = ""
    abilities: ClassVar[frozenset[Ability]] = frozenset()
    thinking_off: ClassVar[str] = ""
    speculation: ClassVar[str] = ""
    stretches_context: ClassVar[bool] = False
    model: ModelSpec

    def require(self, ability: Ability) -> None:
        """As of `engine.Engine`."""
        raise ToolMissing(
            tool=f"the engine {self.name}",
            reason=f"has no tool for {ability}",
            hint="Use --probe recall or --probe retrieval.",
        )

    def refuse_arguments(self) -> None:
        """As of `engine.Engine`: it takes none, and nothing that is llama-server's."""
        asked = {
            f"-- {' '.join(self.model.arguments)}": bool(self.model.arguments),
            "--rotation off": not self.model.rotation,
            "--speculate": self.model.speculate,
        }
        for source, is_asked in asked.items():
            if is_asked:
                raise BadInput(
                    source=source,
                    reason=f"the engine {self.name} cannot pass it on",
                    hint="Leave it out; arguments of a server go into --command.",
                )

    def needs_preflight(self, pair: Pair) -> bool:  # noqa: ARG002 - of a protocol
        """As of `engine.Engine`: nothing would be told."""
        return False

    def preflight(self, pair: Pair, *, log: Path) -> Trouble | None:  # noqa: ARG002 - of a protocol
        """As of `engine.Engine`."""
        return None

    def divergence_tool(self) -> DivergenceTool:
        """As of `engine.Engine`: there is none."""
        raise self._missing(Ability.DIVERGENCE)

    def speed_tool(self) -> SpeedTool:
        """As of `engine.Engine`: there is none."""
        raise self._missing(Ability.SPEED)

    def _missing(self, ability: Ability) -> MachineError:
        try:
            self.require(ability)
        except MachineError as error:
            return error
        raise AssertionError(ability)


@dataclass(frozen=True, slots=True, kw_only=True)
class Command(_OpenAiEngine):
    """
    The engine that starts the user's command for each cell. Implements `engine.Engine`.

    Attributes:
        settings: What the user chose.
        template: The command.
        program: Path of its program.
        version: As the program states it.
        types: Cache types of the grid, most precise first.
        key: For its server; empty for none.
        is_diagonal: Whether the one type that it is told is that of K and V.
    """

    name: ClassVar[str] = COMMAND
    settings: CommandSettings
    template: Template
    program: str
    version: str
    types: tuple[str, ...]
    key: str = ""
    is_diagonal: bool = False
    _grown: dict[CellSpec, tuple[tuple[int, int], ...]] = field(default_factory=dict)

    def identity(self) -> EngineIdentity:
        """As of `engine.Engine`."""
        told = self.settings
        return EngineIdentity(
            name=self.name,
            version=self.version,
            program=self.program,
            arguments=(
                *("--command", told.command),
                *(("--command-env", ",".join(told.env)) if told.env else ()),
                *(("--health", told.health) if told.health else ()),
                *(("--served-name", told.served_name) if told.served_name else ()),
            ),
            lengths=LENGTHS,
        )

    def cache_types(self) -> CacheTypes:
        """As of `engine.Engine`: told one type, K and V are of one, or one is fixed."""
        same = frozenset(Pair(each, each) for each in self.types)
        return CacheTypes(pairs=same if self.is_diagonal else None, usual=())

    def notes(self) -> tuple[str, ...]:
        """As of `engine.Engine`."""
        found = [UNTOLD]
        if self.is_diagonal:
            side = "--v-types" if "k" in self.template.placeholders else "--k-types"
            alone = "K" if side == "--v-types" else "V"
            found.append(
                "the command sets one type for K and V: pairs are K = V; "
                f"give {side} if the command sets {alone} alone"
            )
        if "context" not in self.template.placeholders:
            found.append("the command has no ${context}: it must serve enough")
        return tuple(found)

    @contextlib.contextmanager
    def tokenizing(self, *, log: Path) -> Iterator[Tokenizer]:
        """As of `engine.Engine`: a server of the most precise type, which counts."""
        cell = CellSpec(Pair(self.types[0], self.types[0]), COUNTING_CONTEXT)
        try:
            with self._started(cell, log=log) as server:
                yield server.tokenizer
        except CellError as error:
            raise ToolFailed(
                tool=self.template.words[0],
                reason=f"cannot count the corpus' tokens: {error}",
                hint=error.hint,
                log=log,
            ) from error

    @contextlib.contextmanager
    def serving(self, cell: CellSpec, *, log: Path) -> Iterator[Server]:
        """As of `engine.Engine`."""
        half = self._at_half(cell, log=log.with_suffix(".half.log"))
        with self._started(cell, log=log) as server:
            whole = _held(server, cell) if half else ()
            found = prints(server.client, context=cell.context)
            memory = (*half, *whole) if whole else ()
            server.proof = Proof(prints=found, memory=memory)
            yield server

    def _at_half(self, cell: CellSpec, *, log: Path) -> tuple[tuple[int, int], ...]:
        """Half the context, and the memory of a server with it; empty if unknown."""
        wanted = self.settings.proof_by_memory
        if not wanted or "context" not in self.template.placeholders:
            return ()
        if cell not in self._grown:
            half = CellSpec(cell.pair, cell.context // 2)
            with self._started(half, log=log) as server:
                self._grown[cell] = _held(server, half)
        return self._grown[cell]

    @contextlib.contextmanager
    def _started(self, cell: CellSpec, *, log: Path) -> Iterator[Server]:
        """A server of *cell* that is ready, for the length of a block."""
        with redacting(*self._secrets()), contextlib.ExitStack() as stack:
            server = self._ready(cell, log, stack)
            try:
                yield server
            except CellError as error:
                self._explain(error, server, log)
                raise
            finally:
                server.peak_rss_bytes()

    def _secrets(self) -> list[str]:
        """What the server knows, and may write into its log."""
        names = (name for name in self.template.env if is_secret(name))
        return [self.key, *(os.environ.get(name, "") for name in names)]

    def _ready(self, cell: CellSpec, log: Path, stack: contextlib.ExitStack) -> Server:
        """Start it, again where its port was taken."""
        for attempt in range(1, PORT_ATTEMPTS + 1):
            server = self._launched(cell, log, stack)
            seen = _wait(server, health=self.settings.health)
            if seen is Readiness.READY:
                return server
            if server.child is None or server.child.poll() is None:
                raise _missed(seen, server, log)
            is_taken = "address already in use" in _end_of(log).lower()
            if attempt == PORT_ATTEMPTS or not is_taken:
                break
        raise _death(server, log)

    def _launched(
        self, cell: CellSpec, log: Path, stack: contextlib.ExitStack
    ) -> Server:
        port = free_port(HOST)
        values = {
            "k": cell.pair.k,
            "v": cell.pair.v,
            "port": port,
            "context": cell.context,
            "model": self.model.weights.path,
        }
        words, env = self.template.filled(values, os.environ)
        argv = [self.program, *words[1:]]
        child = stack.enter_context(
            noted(
                argv,
                env=processes.clean(os.environ) | env,
                log=log,
                file_limit_bytes=FILE_LIMIT_BYTES,
            )
        )
        client = stack.enter_context(
            OpenAi(f"http://{HOST}:{port}/v1", api_key=self.key)
        )
        client.model = self.settings.served_name
        own = (name for name, text in self.template.env.items() if text is not None)
        command = (*(f"{name}={env[name]}" for name in own), *argv)
        return Server(client=client, command=command, child=child)

    def _explain(self, error: CellError, server: Server, log: Path) -> None:
        """
        Add to an *error* of a block what the log tells.

        Raises:
            CellError: If the cause is that the server has ended.
        """
        if isinstance(error, ServerGone):
            # The connection breaks a moment before the process is gone.
            server.ends_within(DEATH_S)
        if server.child is not None and server.child.poll() is not None:
            raise _death(server, log) from error
        error.log_excerpt = error.log_excerpt or _last_lines(log)


def _held(server: Server, cell: CellSpec) -> tuple[tuple[int, int], ...]:
    """The context of *cell*, and the memory of its server; empty if it is unknown."""
    held = server.memory_bytes()
    return () if held is None else ((cell.context, held),)


def _wait(server: Server, *, health: str) -> Readiness:
    """How far the server is once it is ready, has ended, or is out of time."""
    child, awake_s = server.child, AwakeClock(longest_s=LONGEST_POLL_S)
    seen = Readiness.SILENT
    strange_s: float | None = None
    # Polled before the port: once it has ended, another program may answer there.
    while child is not None and child.poll() is None and awake_s() < LOAD_TIMEOUT_S:
        seen = server.client.readiness(health=health)
        if seen is Readiness.READY and child.poll() is None:
            return seen
        is_strange = seen is Readiness.STRANGER and bool(server.client.strange)
        strange_s = (strange_s or awake_s()) if is_strange else None
        if is_strange and server.client.wants_key:
            return seen
        if strange_s is not None and awake_s() - strange_s > STRANGER_S:
            return seen
        time.sleep(POLL_S)
    return Readiness.SILENT if seen is Readiness.READY else seen


def _missed(seen: Readiness, server: Server, log: Path) -> CellError:
    client = server.client
    if seen is Readiness.STRANGER and client.strange:
        what, hint = client.strange, client.advice
    else:
        how = {
            Readiness.LOADING: "is still loading",
            Readiness.STRANGER: "lists no model",
        }.get(seen, "does not answer on its port")
        what = f"the server {how} after {LOAD_TIMEOUT_S:g} s"
        hint = "Are --health and --served-name right?"
    return CellError(
        what,
        hint=f"{hint} See {log}.",
        status=Status.TIMED_OUT,
        log_excerpt=_last_lines(log),
    )


def _death(server: Server, log: Path) -> CellError:
    code = server.child.returncode if server.child else 0
    lines = _last_lines(log)
    said = f": {lines[-1]}" if lines else ""
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    return CellError(
        f"the server ended with {how}{said}",
        hint=f"The end of its log is in {log}.",
        log_excerpt=lines,
    )


def _end_of(log: Path) -> str:
    """The end of a log; empty if it cannot be read."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - LOG_BYTES))
            return file.read(LOG_BYTES).decode(errors="replace")
    except OSError:
        return ""


def _last_lines(log: Path) -> tuple[str, ...]:
    lines = (line.rstrip() for line in _end_of(log).splitlines())
    return tuple(line for line in lines if line)[-LAST_LINES:]


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint(_OpenAiEngine):
    """
    The engine that asks a server which is running. Implements `engine.Engine`.

    Attributes:
        settings: What the user says of it.
        pair: What it runs with, as the user says.
        key: For the server; empty for none.
        served_name: What it calls the model.
    """

    name: ClassVar[str] = ENDPOINT
    settings: EndpointSettings
    pair: Pair
    key: str = ""
    served_name: str = ""

    def identity(self) -> EngineIdentity:
        """As of `engine.Engine`: its address may differ from cell to cell."""
        return EngineIdentity(
            name=self.name,
            version="as its user says",
            program=self.settings.url,
            machine="that of the endpoint",
            lengths=LENGTHS,
        )

    def cache_types(self) -> CacheTypes:
        """As of `engine.Engine`: those of the one cell."""
        return CacheTypes(pairs=frozenset({self.pair}), usual=())

    def notes(self) -> tuple[str, ...]:
        """As of `engine.Engine`."""
        return (f"only you say that {self.settings.url} runs {self.pair}", UNTOLD)

    @contextlib.contextmanager
    def tokenizing(self, *, log: Path) -> Iterator[Tokenizer]:  # noqa: ARG002 - of a protocol
        """As of `engine.Engine`."""
        try:
            with self._connected() as server:
                yield server.tokenizer
        except CellError as error:
            raise ToolFailed(
                tool=self.settings.url,
                reason=f"cannot count the corpus' tokens: {error}",
                hint=error.hint,
            ) from error

    @contextlib.contextmanager
    def serving(self, cell: CellSpec, *, log: Path) -> Iterator[Server]:  # noqa: ARG002 - of a protocol
        """As of `engine.Engine`."""
        with self._connected() as server:
            found = prints(server.client, context=cell.context)
            server.proof = Proof(prints=found)
            yield server

    @contextlib.contextmanager
    def _connected(self) -> Iterator[Server]:
        url = self.settings.url
        with OpenAi(checked_url(url), api_key=self.key) as client:
            client.model = self.served_name
            yield Server(client=client, command=("--url", url, "--as", str(self.pair)))


# --- made of settings


def command_of(
    settings: CommandSettings,
    *,
    types: Sequence[str],
    environment: Mapping[str, str],
    is_fixed: bool = False,
) -> Callable[[ModelSpec], Command]:
    """
    Makes engines that start the command of *settings*.

    Args:
        settings: What the user chose.
        types: Cache types of the grid, most precise first.
        environment: Where the key is.
        is_fixed: Whether K or V is of one type, which the command fixes.

    Raises:
        BadInput: If the command or the key cannot be used.
        ToolMissing: If its program is not there.
    """
    template = template_of(settings)
    program = found_program(template)
    version = _version(program)
    key = key_of(settings.api_key_env, environment)
    return lambda model: Command(
        model=model,
        settings=settings,
        template=template,
        program=program,
        version=version,
        types=tuple(types),
        key=key,
        is_diagonal=template.is_diagonal and not is_fixed,
    )


def found_program(template: Template) -> str:
    """
    The path of the program of *template*.

    Raises:
        ToolMissing: If it is not there.
    """
    name = template.words[0]
    path = shutil.which(name)
    if path is None:
        raise ToolMissing(
            tool=name,
            reason="was not found",
            hint="Install it, or give its whole path in --command.",
        )
    return str(Path(path).absolute())


def _version(program: str) -> str:
    """What the program says of itself, in one line; ``unknown`` if nothing."""
    try:
        told = processes.output_of([program, "--version"], timeout_s=VERSION_TIMEOUT_S)
    except MachineError:
        return "unknown"
    lines = f"{told.stdout}\n{told.stderr}".splitlines()
    named = [line.strip() for line in lines if "version" in line.lower()]
    first = [line.strip() for line in lines if line.strip()]
    if told.returncode or not first:
        return "unknown"
    return (named or first)[0][:100]


def endpoint_of(
    settings: EndpointSettings, *, environment: Mapping[str, str]
) -> Callable[[ModelSpec], Endpoint]:
    """
    Makes engines that ask the server of *settings*, after it has answered once.

    Args:
        settings: What the user says of it.
        environment: Where the key is.

    Raises:
        BadInput: If the address, the pair or the key cannot be used.
        ToolFailed: If the server does not answer.
    """
    url, pair = checked_url(settings.url), checked_pair(settings.pair)
    key = key_of(settings.api_key_env, environment)
    with OpenAi(url, api_key=key) as client:
        served_name = settings.served_name or _first_model(client, url)
        if settings.served_name:
            _refuse_unreachable(client, url, settings.served_name)
    return lambda model: Endpoint(
        model=model, settings=settings, pair=pair, key=key, served_name=served_name
    )


def _first_model(client: OpenAi, url: str) -> str:
    listed = _listed(client, url)
    if not listed:
        raise BadInput(
            source=f"--url {url}",
            reason="the server does not list its models",
            hint="Name the model: --served-name NAME",
        )
    return listed[0]


def _refuse_unreachable(client: OpenAi, url: str, name: str) -> None:
    """Stop at a server that does not answer, or that lists other models."""
    listed = _listed(client, url)
    if listed and not is_listed(name, listed):
        raise BadInput(
            source=f"--served-name {name}",
            reason=f"the server at {url} does not list it",
            hint=f"It lists: {', '.join(listed[:5])}.",
        )


def _listed(client: OpenAi, url: str) -> tuple[str, ...]:
    try:
        return client.models(limit_s=SHORT_S) or ()
    except Refused as error:
        told = advised(error)
        if error.code in WANTS_KEY:
            raise BadInput(
                source=f"--url {url}", reason=str(told), hint=told.hint
            ) from error
        raise ToolFailed(tool=url, reason=str(told), hint=told.hint) from error
    except CellError as error:
        raise ToolFailed(
            tool=url, reason=f"does not answer: {error}", hint="Is it running?"
        ) from error
