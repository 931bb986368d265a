"""
Two engines: one starts a server by a command of the user's for each cell, the other
asks a server that is running. What neither tells of its cache is shown by its replies
to a fixed text, and by the memory that a token takes.
"""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import ClassVar

from typing_extensions import override

from codeneedle.cache_types import Pair
from codeneedle.engines import started_servers
from codeneedle.engines.engine import (
    HOST,
    Ability,
    Address,
    CacheTypes,
    CellSpec,
    Engine,
    EngineIdentity,
    ModelSpec,
    Tokenizer,
    translating_counting_errors,
)
from codeneedle.engines.messages import Refused
from codeneedle.engines.openai.client import LISTED, OpenAi, is_listed
from codeneedle.engines.openai.retries import WANTS_KEY, add_advice_to_error
from codeneedle.engines.openai.server import (
    CommandServer,
    OpenAiServer,
    request_fingerprints,
    stop_if_log_too_large,
)
from codeneedle.engines.openai.settings import (
    COMMAND,
    ENDPOINT,
    WITHOUT_ECHO,
    CommandSettings,
    CommandTemplate,
    EndpointSettings,
    checked_pair,
    checked_url,
    command_template,
    read_api_key,
)
from codeneedle.errors import BadInput, CellError, MachineError, ToolFailed
from codeneedle.records.record import CacheEvidence
from codeneedle.system import processes
from codeneedle.system.commands import require_program
from codeneedle.system.contents import existing_files_in_words, file_hashes, joint_hash
from codeneedle.system.inherited_variables import inherited_variables
from codeneedle.system.orphans import running_with_note
from codeneedle.system.secrets import (
    masking_errors,
    register_secrets_to_mask,
    secrets_of,
)

VERSION_TIMEOUT_S = 120.0
"""For ``--version``: some import all of PyTorch before they answer."""

FILE_LIMIT_BYTES = 64 << 30
"""Of a file of the server's, but for its log: it may download weights."""

COUNTING_CONTEXT = 4096
"""Context of a server that only counts tokens."""

UNTOLD = (
    "this server does not report its cache types: a pair whose replies and memory are "
    "those of a more precise pair is marked unverified"
)
"""For users, before a sweep starts."""

LENGTHS = "estimated from the server's own counts of prompts"
"""How lengths in tokens come about, for reports."""


# --- engines


class OpenAiEngine(Engine):
    """What both engines have in common: this API scores texts, and no chats."""

    __slots__ = ()

    @property
    def is_without_echo(self) -> bool:
        """Whether its server is known to score no given text, in no form."""
        return False

    @property
    @override
    def abilities(self) -> frozenset[Ability]:
        """
        An address; forced answers, too, unless its server cannot echo, or in chats.

        The first request shows whether other servers echo.
        """
        cannot = self.is_without_echo or self.model.is_chat
        return frozenset({Ability.ADDRESS} | (set() if cannot else {Ability.FORCED}))

    @property
    @override
    def text_scoring_ability(self) -> Ability:
        """
        `FORCED`, whether this server has it or not.

        An echo has right tokens, and no distributions.
        """
        return Ability.FORCED

    @property
    @override
    def scores_prompts(self) -> bool:
        """Whether its server may echo: an echo tells of all of its text."""
        return Ability.FORCED in self.abilities

    @override
    def require(self, ability: Ability) -> None:
        if ability is Ability.FORCED and self.is_without_echo:
            raise BadInput(
                source=f"--engine {self.name}",
                reason=f"{WITHOUT_ECHO} scores no given text through OpenAI's API: "
                "it does not echo prompts",
                hint="Use --engine llama.cpp.",
            )
        if ability is Ability.FORCED and self.model.is_chat:
            raise BadInput(
                source=f"--engine {self.name}",
                reason="chats cannot be forced: this API scores given text in "
                "completions alone",
                hint="Use --prompt-form completion.",
            )
        super().require(ability)

    @override
    def notes(self) -> tuple[str, ...]:
        scoring = (
            "right lines are scored if the server echoes prompts with their "
            "log-probabilities, as vLLM does and others do not"
        )
        if self.model.is_chat:
            scoring = (
                "recall is written alone: this API does not score answers in chats"
            )
        if self.is_without_echo:
            scoring = (
                f"recall is written alone: {WITHOUT_ECHO} does not echo prompts; "
                "--engine llama.cpp scores right lines, too"
            )
        return UNTOLD, scoring


@dataclass(frozen=True, slots=True, kw_only=True)
class Command(OpenAiEngine):
    """The engine that starts the user's command for each cell."""

    name: ClassVar[str] = COMMAND
    model: ModelSpec  # what is served
    settings: CommandSettings  # what the user chose
    template: CommandTemplate  # the command
    program: str  # path of its program
    version: str  # as the program states it
    types: tuple[str, ...]  # cache types of the grid, most precise first
    key: str = ""  # for its server; empty for none
    is_diagonal: bool = False  # whether its one placeholder sets the type of K and V
    _grown: dict[CellSpec, tuple[tuple[int, int], ...]] = field(default_factory=dict)

    @override
    def identity(self) -> EngineIdentity:
        """Version and options of the command; lengths are estimates."""
        settings = self.settings
        options = {
            "--command": settings.command,
            "--command-env": ",".join(settings.env),
            "--health": settings.health,
            "--served-name": settings.served_name,
        }
        given = (option for option in options.items() if option[1])
        return EngineIdentity(
            name=self.name,
            version=self.version,
            program=self.program,
            arguments=tuple(chain.from_iterable(given)),
            lengths=LENGTHS,
        )

    @override
    def hashes_by_program(self) -> Mapping[str, str]:
        """A hash of the program itself, without what it loads."""
        program = Path(self.program)
        return {program.name: joint_hash((program,))}

    @override
    def hashes_by_file(self) -> Mapping[str, str]:
        """Hashes of files that the command names, a script it starts among them."""
        stated = (text for text in self.template.env.values() if text)
        return file_hashes(existing_files_in_words((*self.template.words[1:], *stated)))

    @property
    @override
    def is_without_echo(self) -> bool:
        """Whether it is llama-server, whatever starts it."""
        return self.template.is_llama_server

    @override
    def cache_types(self) -> CacheTypes:
        """Any pairs; with one placeholder K = V, unless one side is fixed."""
        same = frozenset(Pair(cache_type, cache_type) for cache_type in self.types)
        return CacheTypes(pairs=same if self.is_diagonal else None, usual=())

    @override
    def notes(self) -> tuple[str, ...]:
        notes = [*OpenAiEngine.notes(self)]
        if self.is_diagonal:
            side = "--v-types" if "k" in self.template.placeholders else "--k-types"
            alone = "K" if side == "--v-types" else "V"
            notes.append(
                "the command sets one type for K and V: pairs are K = V; "
                f"give {side} if the command sets {alone} alone"
            )
        if "context" not in self.template.placeholders:
            notes.append("the command has no ${context}: it must serve enough")
        return tuple(notes)

    @contextlib.contextmanager
    @override
    def tokenizing(self, *, log: Path) -> Iterator[Tokenizer]:
        """A server of the most precise type, which counts until the block ends."""
        cell = CellSpec(Pair(self.types[0], self.types[0]), COUNTING_CONTEXT)
        started = self._serving(cell, log=log)
        with translating_counting_errors(self.template.words[0]), started as server:
            yield server.tokenizer

    @contextlib.contextmanager
    @override
    def serving(self, cell: CellSpec, *, log: Path) -> Iterator[OpenAiServer]:
        """A server with evidence of its cache; one of half the context may precede."""
        half = self._measure_half_context_memory(cell, log=log.with_suffix(".half.log"))
        with self._serving(cell, log=log) as server:
            whole = _context_and_memory(server, cell) if half else ()
            replies = request_fingerprints(server.client, context=cell.context)
            memory = (*half, *whole) if whole else ()
            server.cache_evidence = CacheEvidence(fingerprints=replies, memory=memory)
            yield server

    def _measure_half_context_memory(
        self, cell: CellSpec, *, log: Path
    ) -> tuple[tuple[int, int], ...]:
        """
        Half the context, and the memory of a server that is started with it.

        Once for each cell; empty if that is unknown, or not wanted.
        """
        wanted = self.settings.evidence_by_memory
        if not wanted or "context" not in self.template.placeholders:
            return ()
        if cell not in self._grown:
            half = CellSpec(cell.pair, cell.context // 2)
            with self._serving(half, log=log) as server:
                self._grown[cell] = _context_and_memory(server, half)
        return self._grown[cell]

    @contextlib.contextmanager
    def _serving(self, cell: CellSpec, *, log: Path) -> Iterator[CommandServer]:
        """A server of *cell* that is ready, for the length of a block."""
        start = partial(self._launch, cell, log)
        register_secrets_to_mask(*self._secrets())
        with masking_errors(), started_servers.serving(start) as server:
            # Without a name of the user's it is the first that the server lists.
            if server.address:
                named = replace(server.address, model=server.client.model)
                server.address = named
            yield server

    def _secrets(self) -> list[str]:
        """What the server knows, and may say or write into its log."""
        return [
            self.key,
            *secrets_of({n: os.environ.get(n, "") for n in self.template.env}),
        ]

    def _launch(
        self, cell: CellSpec, log: Path, port: int, stack: contextlib.ExitStack
    ) -> CommandServer:
        """Start the command on *port*; the *stack* stops it."""
        values = {
            "k": cell.pair.k,
            "v": cell.pair.v,
            "port": port,
            "context": cell.context,
            "model": self.model.weights.path,
        }
        words, env = self.template.fill(values, os.environ)
        argv = [self.program, *words[1:]]
        child = stack.enter_context(
            running_with_note(
                argv,
                env=inherited_variables() | env,
                log=log,
                file_limit_bytes=FILE_LIMIT_BYTES,
            )
        )
        url = f"http://{HOST}:{port}/v1"
        client = stack.enter_context(
            OpenAi(
                url,
                api_key=self.key,
                is_leaving=partial(stop_if_log_too_large, child, log),
            )
        )
        client.model = self.settings.served_name
        stated = (name for name, text in self.template.env.items() if text is not None)
        command = (*(f"{name}={env[name]}" for name in stated), *argv)
        address = Address(url=url, model=self.settings.served_name, key=self.key)
        return CommandServer(
            client=client,
            command=command,
            child=child,
            address=address,
            log=log,
            health=self.settings.health,
        )


def _context_and_memory(
    server: CommandServer, cell: CellSpec
) -> tuple[tuple[int, int], ...]:
    """The context of *cell*, and the memory of its server; empty if it is unknown."""
    held = server.memory_bytes()
    return () if held is None else ((cell.context, held),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint(OpenAiEngine):
    """The engine that asks a server which is running."""

    name: ClassVar[str] = ENDPOINT
    model: ModelSpec  # what is served
    url: str  # of the server, up to ``/v1``
    pair: Pair  # what it runs with, as the user says
    key: str = ""  # for the server; empty for none
    served_name: str = ""  # what it calls the model

    @override
    def identity(self) -> EngineIdentity:
        """What is told of it: its address, which may differ from cell to cell."""
        return EngineIdentity(
            name=self.name,
            version="as its user says",
            program=self.url,
            machine="that of the endpoint",
            lengths=LENGTHS,
        )

    @override
    def cache_types(self) -> CacheTypes:
        """The one pair that its user says that it runs."""
        return CacheTypes(pairs=frozenset({self.pair}), usual=())

    @override
    def notes(self) -> tuple[str, ...]:
        source = f"only you say that {self.url} runs {self.pair}"
        return (source, *OpenAiEngine.notes(self))

    @contextlib.contextmanager
    @override
    def tokenizing(self, *, log: Path) -> Iterator[Tokenizer]:
        with translating_counting_errors(self.url), self._connection() as server:
            yield server.tokenizer

    @contextlib.contextmanager
    @override
    def serving(self, cell: CellSpec, *, log: Path) -> Iterator[OpenAiServer]:
        """The running server, with its replies to a fixed text as evidence."""
        with self._connection() as server:
            replies = request_fingerprints(server.client, context=cell.context)
            server.cache_evidence = CacheEvidence(fingerprints=replies)
            yield server

    @contextlib.contextmanager
    def _connection(self) -> Iterator[OpenAiServer]:
        """The running server, asked under its name; it is not stopped."""
        with OpenAi(self.url, api_key=self.key) as client:
            client.model = self.served_name
            yield OpenAiServer(
                client=client,
                command=("--url", self.url, "--as", str(self.pair)),
                address=Address(url=self.url, model=self.served_name, key=self.key),
            )


# --- made of settings


def command_engine_factory(
    settings: CommandSettings,
    *,
    types: Sequence[str],
    environment: Mapping[str, str],
    is_fixed: bool = False,
) -> Callable[[ModelSpec], Command]:
    """
    A function that makes engines, which start the command of *settings*.

    Its program is asked for its version at once.

    Args:
        settings: What the user chose.
        types: Cache types of the grid, most precise first.
        environment: Where the key is.
        is_fixed: Whether K or V is of one type, which the command fixes.

    Raises:
        BadInput: If the command or the key cannot be used.
        ToolMissing: If its program is not there.
    """
    template = command_template(settings)
    program = require_program(template.words[0], option="--command")
    version = _ask_program_version(program)
    key = read_api_key(settings.api_key_env, environment)
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


def _ask_program_version(program: str) -> str:
    """
    What the program says of itself, in one line; ``unknown`` if nothing.

    The first line with "version", else the first.
    """
    try:
        answer = processes.run_for_output(
            [program, "--version"], timeout_s=VERSION_TIMEOUT_S
        )
    except MachineError:
        return "unknown"
    lines = f"{answer.stdout}\n{answer.stderr}".splitlines()
    named = [line.strip() for line in lines if "version" in line.lower()]
    first = [line.strip() for line in lines if line.strip()]
    if answer.returncode or not first:
        return "unknown"
    return (named or first)[0][:100]


def endpoint_engine_factory(
    settings: EndpointSettings, *, environment: Mapping[str, str]
) -> Callable[[ModelSpec], Endpoint]:
    """
    A function that makes engines, which ask the server of *settings*.

    The server is asked for its models at once.

    Args:
        settings: What the user says of it.
        environment: Where the key is.

    Raises:
        BadInput: If the address, the pair, the key or the name of the model cannot be
            used.
        ToolFailed: If the server does not answer.
    """
    url, pair = checked_url(settings.url), checked_pair(settings.pair)
    key = read_api_key(settings.api_key_env, environment)
    with OpenAi(url, api_key=key) as client:
        listed = _ask_models_or_refuse(client, url)
    name = settings.served_name or next(iter(listed), "")
    if not name:
        raise BadInput(
            source=f"--url {url}",
            reason="the server does not list its models",
            hint="Name the model: --served-name NAME",
        )
    if listed and not is_listed(name, listed):
        raise BadInput(
            source=f"--served-name {name}",
            reason=f"the server at {url} does not list it",
            hint=f"It lists: {', '.join(listed[:LISTED])}.",
        )
    return lambda model: Endpoint(
        model=model, url=url, pair=pair, key=key, served_name=name
    )


def _ask_models_or_refuse(client: OpenAi, url: str) -> tuple[str, ...]:
    """Models that the server lists, or none; stops if it does not answer."""
    try:
        return client.ask_model_names() or ()
    except Refused as error:
        refused = add_advice_to_error(error)
        if error.code in WANTS_KEY:
            raise BadInput(
                source=f"--url {url}", reason=str(refused), hint=refused.hint
            ) from error
        raise ToolFailed(
            tool=url, reason=f"does not list models: {refused}", hint=refused.hint
        ) from error
    except CellError as error:
        raise ToolFailed(
            tool=url, reason=f"does not answer: {error}", hint="Is it running?"
        ) from error
