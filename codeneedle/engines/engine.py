"""
What an engine is: its abilities, what it refuses, how a cell is served and a served
model answers; whether memory suffices to read right tokens in batches.

It knows no program: each engine has a folder, and `cli` is the only place that chooses
one. `started_servers` has the servers that engines start, `tools` what some have beside
them.
"""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import ClassVar, Protocol

from codeneedle.cache_types import DEFAULT_TYPES, Pair
from codeneedle.engines.exit_causes import Died
from codeneedle.engines.messages import (
    Chat,
    Completion,
    Forced,
    Message,
    Progress,
    Reply,
    TokenPiece,
)
from codeneedle.engines.pace import Pace
from codeneedle.engines.silence_limits import SilenceLimit
from codeneedle.engines.survey import Survey
from codeneedle.engines.tools import DivergenceTool, ReadingTool, SpeedTool
from codeneedle.errors import BadInput, CellError, ToolFailed, ToolMissing
from codeneedle.models.weights import Weights
from codeneedle.records.record import (
    Effective,
    Json,
    Status,
)
from codeneedle.system import machine, process_memory
from codeneedle.system.processes import Child, ends_within, pids_of_tree_and_group
from codeneedle.text import size_text

HOST = "127.0.0.1"
"""Where servers that we start listen."""


class Ability(StrEnum):
    """What a probe may need of an engine, beside answers."""

    LOG_PROBABILITIES = "log-probabilities"
    FORCED = "forced decoding"
    READING = "right tokens of a text that is read in batches"
    DIVERGENCE = "divergence"
    SPEED = "speed"
    ADDRESS = "programs that speak OpenAI's API"
    CONVERSATIONS = "whole conversations"
    CHOSEN_ADDRESS = "a port or a key of the user's choice"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """What an engine serves: the same for every cell of a run."""

    weights: Weights  # header and files of the model
    name: str  # short name of the model, for logs
    arguments: tuple[str, ...] = ()  # further arguments of the user's for the engine
    rotation: bool = True
    """Whether quantized values are rotated, where the engine can do that."""

    thinking: bool = True  # whether the model may think before it answers
    is_chat: bool = False  # whether it answers chats, rather than continues texts
    is_tiny: bool = False
    """Whether the model is so small that threads cost more than they save."""

    device: str = ""
    """
    The one accelerator to use, by number or name of its driver; empty for all. An
    engine that cannot choose refuses it with the arguments.
    """

    threads: int | None = None
    """
    Share of the cores, where others compute at the same time; None for the engine's own
    choice.
    """

    attention_on_cpu: bool = False
    """
    Whether cache and attention are kept on the CPU, to see what that alone changes.
    """


@dataclass(frozen=True, slots=True)
class CellSpec:
    """What one server is started for."""

    pair: Pair  # cache types
    context: int  # size of the context of its one slot, in tokens
    thinks: bool = False
    """Whether the model may think, whatever `ModelSpec.thinking` says."""

    slots: Path | None = None
    """Folder, there already, in which it may save its cache; None for none."""

    port: int | None = None  # port that it listens on; None for a free one
    key: str = field(default="", repr=False)
    """Key that it asks for; empty for a random one, or that of the engine."""


@dataclass(frozen=True, slots=True)
class CacheTypes:
    """The cache types that an engine accepts."""

    k: tuple[str, ...] = ()
    """Types of K, as the engine spells them; empty if it does not tell."""

    v: tuple[str, ...] = ()  # types of V; empty if it does not tell
    pairs: frozenset[Pair] | None = None
    """The pairs that exist; None if each K type goes with each V type."""

    usual: tuple[str, ...] = DEFAULT_TYPES
    """
    The types of a grid for which the user names none; empty if they must be named.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineIdentity:
    """What a setup stores of an engine: records of unlike ones are not comparable."""

    name: str  # of the engine: ``llama.cpp``
    version: str  # as its server states it
    program: str  # where it is; two of the same version are the same engine
    devices: tuple[str, ...] = ()
    """Accelerators, with their memory: ``CUDA0 NVIDIA L4 (22563 MiB)``."""

    cpu_features: str = ""  # what it uses of the processor; empty if it does not tell
    arguments: tuple[str, ...] = ()
    """What else must be equal: the options of a sweep that ask for it."""

    machine: str = ""  # where it runs, as a phrase; empty for this machine
    lengths: str = ""
    """
    How lengths in tokens are estimated, as a phrase; empty where a tokenizer counts
    them.
    """


class LostText(BadInput):
    """A chat template whose prompt lacks what a model has to read."""

    def __init__(self, lacking: str) -> None:
        super().__init__(
            source="the chat template of the weights",
            reason=f"the prompt that it renders lacks {lacking}",
            hint="Use --prompt-form completion.",
        )


class Tokenizer(Protocol):
    """The tokenizer and the chat template of a model."""

    def count_tokens(self, text: str) -> int:
        """Length of *text* in tokens; with the special one that begins a prompt."""
        ...

    def token_counts_without_special(self, texts: Sequence[str]) -> list[int]:
        """The lengths of *texts* in tokens, without special ones."""
        ...

    def tokens(self, text: str, *, add_special: bool = True) -> tuple[TokenPiece, ...]:
        """
        The tokens of *text*, read as nothing but text, in order.

        With *add_special*, after the special one that begins a prompt, if there is one.
        """
        ...

    def render(
        self,
        messages: tuple[Message, ...],
        template_args: Mapping[str, object] | None = None,
    ) -> str:
        """The prompt that the chat template makes of *messages*."""
        ...


class ChatTemplate(Tokenizer, Protocol):
    """Renders conversations, tools and thoughts included."""

    def render_conversation(
        self,
        messages: Sequence[Json],
        tools: Sequence[Json],
        *,
        begins_reply: bool,
        thinking: bool,
    ) -> str:
        """
        The text that the chat template makes of *messages*.

        Args:
            messages: As OpenAI's API has them; a last one of the assistant is whole.
            tools: Definitions of tools, as OpenAI's API has them.
            begins_reply: Whether what begins an answer stands behind it.
            thinking: Whether the template may allow thinking.

        Raises:
            Refused: If the template does not take them.
        """
        ...


class Replies(Protocol):
    """Answers prompts."""

    tell: Callable[[Progress], None]  # called with how far a request is
    silence_limit: SilenceLimit  # of a streamed reply

    def complete(
        self, question: Completion, *, enough: Callable[[str], bool] = ...
    ) -> Reply:
        """
        Continue a text until the model ends, or *enough* of the reply so far.

        Raises:
            CellError: If the server breaks off, is silent, refuses, or computes NaN.
        """
        ...

    def chat(self, question: Chat, *, enough: Callable[[str], bool] = ...) -> Reply:
        """Answer a conversation, until the model ends or *enough* of the reply."""
        ...

    def force(self, question: Completion | Chat, right: str) -> Forced:
        """
        Score *right*, not empty, as the answer to *question*, token by token.

        Raises:
            CellError: See `complete`; and if the server tells no probabilities.
        """
        ...

    def wait_idle(self) -> None:
        """Wait until the server is idle, so that it can be stopped."""
        ...


class PromptScorer(Protocol):
    """What `Engine.scores_prompts` promises of a client, beside `Replies`."""

    def force_each(
        self, question: Completion, passages: Sequence[tuple[int, int]]
    ) -> list[Forced]:
        """
        Score passages of a prompt where they stand in it, by one request.

        Args:
            question: With the prompt; nothing is to be written.
            passages: Where each begins and ends in it, in characters, ascending.

        Raises:
            CellError: See `Replies.force`.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where other programs reach a server by OpenAI's API."""

    url: str  # up to ``/v1``
    model: str
    """
    What the server calls the model; of llama.cpp, a name that no other cell has: a
    program that keeps replies must not take those of another cell.
    """

    key: str = field(default="", repr=False)  # for the server; empty for none


class CannotSave(CellError):  # noqa: N818 - named after the fact
    """A server cannot save its cache, or restore what it saved; it goes on."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            reason,
            hint="Serve the model with llama.cpp, which can.",
            status=Status.UNSUPPORTED,
        )


@dataclass(slots=True, kw_only=True)
class Served:
    """
    A model that is ready to answer, for the length of a block.

    What it does not override is of a server that tells nothing of its cache.
    """

    client: Replies  # sends prompts to it
    command: tuple[str, ...]  # what it was started with; never a secret
    child: Child | None = None  # its process; None if it is not ours
    address: Address | None = None
    """Where other programs reach it; None where they cannot."""

    _peak_rss_bytes: int | None = field(default=None, init=False)

    @property
    def tokenizer(self) -> Tokenizer | None:
        """Counts tokens; None if the engine cannot, and lengths are estimated."""
        return None

    def effective(self) -> Effective:
        """What runs, as far as the engine tells by now; by default nothing."""
        return Effective()

    def differences_from_cell(self, cell: CellSpec) -> tuple[str, ...]:  # noqa: ARG002 - for those that tell
        """
        In what it differs from *cell*, one phrase each.

        Nothing where it does not tell.
        """
        return ()

    def wait_for_end(self, limit_s: float) -> bool:
        """Whether it ends on its own before *limit_s* seconds are over."""
        return self.child is not None and ends_within(self.child, limit_s)

    def program_hash(self) -> str:
        """
        A hash of what really runs: its program, its libraries, and words of its command
        line that are not ours. Empty where nothing tells it.
        """
        return ""

    def save_cache(self) -> None:
        """
        Write what is in its cache to a file, in place of what was saved before.

        Raises:
            CannotSave: If it cannot.
            CellError: If the connection breaks.
        """
        raise CannotSave("this engine cannot save its cache")

    def restore_cache(self) -> None:
        """Replace what is in its cache by what was saved; errors are as of saving."""
        raise CannotSave("this engine cannot restore its cache")

    def peak_rss_bytes(self) -> int | None:
        """
        Largest resident size that this or an earlier call has seen, also once its
        processes have ended; None if none has.
        """
        seen = self._resident_bytes()
        if seen is not None:
            self._peak_rss_bytes = max(seen, self._peak_rss_bytes or 0)
        return self._peak_rss_bytes

    def _resident_bytes(self) -> int | None:
        """Resident size of its processes, now or at most; None if that is unknown."""
        return (
            process_memory.tree_peak_rss_bytes(self.child.pid) if self.child else None
        )

    def device_bytes(self) -> int | None:
        """What it holds on accelerators now; None if that is unknown."""
        return (
            process_memory.nvidia_memory_bytes(*pids_of_tree_and_group(self.child.pid))
            if self.child
            else None
        )

    def device_peak_bytes(self) -> int | None:
        """The most that it held on accelerators so far; None if that is unknown."""
        return None


@contextlib.contextmanager
def translating_counting_errors(tool: str, *, hint: str = "") -> Iterator[None]:
    """
    Translate errors of a block before the first cell, which counts tokens with *tool*.

    Args:
        tool: Its name.
        hint: What else to do than the error says, unless that has another reason than
            silence or memory.

    Raises:
        ToolFailed: For a `CellError`.
    """
    try:
        yield
    except CellError as error:
        is_told = isinstance(error, Died) and error.is_explained
        has_reason = is_told and error.status is not Status.OUT_OF_MEMORY
        raise ToolFailed(
            tool=tool,
            reason=f"cannot count the corpus' tokens: {error}",
            hint=error.hint if has_reason or not hint else hint,
        ) from error


class Engine(ABC):
    """
    A way to serve one model with a chosen KV cache.

    What it does not override is of an engine that answers, and can do nothing else.
    """

    __slots__ = ()
    name: ClassVar[str]  # ``llama.cpp``
    model: ModelSpec  # what it serves

    @abstractmethod
    def identity(self) -> EngineIdentity:
        """Version and devices."""

    @abstractmethod
    def cache_types(self) -> CacheTypes:
        """The types and pairs that it accepts."""

    @abstractmethod
    def tokenizing(self, *, log: Path) -> AbstractContextManager[Tokenizer]:
        """
        A tokenizer without a KV cache, for the time before the first cell.

        A `LostText` of the block gets the way to another template, if there is one.

        Raises:
            BadInput: If the engine does not take the user's arguments.
            ToolFailed: If it fails otherwise.
        """

    def templating(self) -> AbstractContextManager[ChatTemplate]:
        """
        The chat template behind `Ability.CONVERSATIONS`, before the first cell.

        Nothing of what it renders is left in a file.

        Raises:
            MachineError: If it is missing.
        """
        self.require(Ability.CONVERSATIONS)
        raise NotImplementedError

    @abstractmethod
    def serving(self, cell: CellSpec, *, log: Path) -> AbstractContextManager[Served]:
        """
        A server of *cell* that is ready, for the length of a block.

        Errors of the block that are a `CellError` leave it with what the server's log
        tells about them.

        Raises:
            CellError: If it does not get ready, or ends within the block.
            MachineError: If it cannot be started or stopped.
        """

    @property
    def abilities(self) -> frozenset[Ability]:
        """What it can do here, beside answering."""
        return frozenset()

    def why_ability_missing(
        self,
        ability: Ability,  # noqa: ARG002 - for those that refuse
    ) -> str:
        """
        Why *ability*, for which there is a program, is not used in this sweep.

        It would measure something else than servers run. Empty if it is used, or there
        is no program for it.
        """
        return ""

    def require(self, ability: Ability) -> None:
        """
        Raise the error that says why *ability* is missing and how to get it.

        Raises:
            BadInput: If it is missing, and another request would not need it.
            MachineError: If it is missing otherwise.
        """
        if ability not in self.abilities:
            raise ToolMissing(
                tool=f"the engine {self.name}",
                reason=f"has no tool for {ability}",
                hint="Leave out the probe that needs it, or serve the model with "
                "llama.cpp.",
            )

    def refuse_unusable_arguments(self) -> None:
        """
        Raise if the user's arguments would break the experiment, or be ignored.

        Raises:
            BadInput: Naming the argument and what to do instead.
        """
        given = self.model.arguments
        ignored = [f"-- {' '.join(given)}"] if given else []
        ignored += [] if self.model.rotation else ["--rotation off"]
        if ignored:
            raise BadInput(
                source=", ".join(ignored),
                reason=f"the engine {self.name} cannot pass it on",
                hint="Leave it out: 'codeneedle sweep --help' tells its options.",
            )

    def notes(self) -> tuple[str, ...]:
        """What a user should know before a sweep starts, one sentence each."""
        return ()

    def hashes_by_program(self) -> Mapping[str, str]:
        """
        Hashes of the programs that it starts, with their libraries, by name.

        Empty where it starts none that is known. A version may be that of many builds.
        """
        return {}

    def hashes_by_file(self) -> Mapping[str, str]:
        """Hashes of the files that the user's arguments name, by name of the file."""
        return {}

    def pace(self, _pairs: Collection[Pair], /) -> Pace | None:
        """
        How long the model is likely to take; None where nothing is known of it.

        Args:
            _pairs: Those that are measured, of which it is the mean.
        """
        return None

    @property
    def has_usual_cache_sizes(self) -> bool:
        """Whether its caches take what their types say: no limit, no other groups."""
        return True

    @property
    def stretches_context(self) -> bool:
        """Whether the user's arguments extend the context beyond the training."""
        return False

    @property
    def splits_graph(self) -> bool:
        """Whether the user's arguments split the graph of each pair over devices."""
        return False

    @property
    def rotates_caches(self) -> bool:
        """Whether it rotates quantized values unless it is told not to."""
        return False

    @property
    def renders_chats(self) -> bool:
        """Whether its tokenizer renders chats whose special tokens its servers read."""
        return False

    @property
    def thinking_off_option(self) -> str:
        """Option by which it keeps this model from thinking; empty if it does not."""
        return ""

    @property
    def is_on_accelerator(self) -> bool:
        """Whether the model runs on an accelerator, as far as is known."""
        return bool(self.identity().devices)

    @property
    def has_attention_on_cpu(self) -> bool:
        """Whether it is what `with_attention_on_cpu` made."""
        return False

    def with_attention_on_cpu(
        self,
        pair: Pair,  # noqa: ARG002 - for those that can
    ) -> "Engine | None":
        """An engine with attention of *pair* on the CPU; None if it is or cannot be."""
        return None

    @property
    def text_scoring_ability(self) -> Ability:
        """Ability by which it scores right tokens of a text: of a tool, or a server."""
        return Ability.DIVERGENCE

    @property
    def scores_prompts(self) -> bool:
        """
        Whether clients of its servers may be a `PromptScorer`.

        Lines are then read by one request for a chunk, where `Ability.READING` needs a
        tool.
        """
        return False

    def survey_attention_and_memory(
        self,
        pairs: Sequence[Pair],  # noqa: ARG002 - for those that can answer
        *,
        context: int,  # noqa: ARG002 - for those that can answer
        log: Path,  # noqa: ARG002 - for those that can answer
    ) -> Survey | None:
        """
        Where attention would run for *pairs* and what memory they take.

        Answered before the first cell, without loading the weights. A survey that
        fails says why in `Survey.unknown`; it raises nothing.

        Args:
            pairs: Pairs of the grid.
            context: Context size, in tokens.
            log: Log of the programs that answer.

        Returns:
            None if the engine has no way to answer.
        """
        return None

    def divergence_tool(self) -> DivergenceTool:
        """
        The tool behind `Ability.DIVERGENCE`.

        Raises:
            MachineError: If it is missing.
        """
        self.require(Ability.DIVERGENCE)
        raise NotImplementedError

    def reading_tool(self) -> ReadingTool:
        """
        The tool behind `Ability.READING`.

        Raises:
            MachineError: If it is missing.
        """
        self.require(Ability.READING)
        raise NotImplementedError

    def why_it_cannot_read(self, context: int, *, workers: int = 1) -> str:
        """
        Why it cannot read right tokens of a text, as a phrase; empty if it can.

        Args:
            context: Tokens that are read at once, at most.
            workers: Cells that are read side by side.
        """
        if self.scores_prompts:
            return ""
        if Ability.READING not in self.abilities:
            refusal = self.why_ability_missing(Ability.READING)
            return refusal or f"{self.name} has no tool for it"
        needed = workers * self.reading_tool().bytes_needed_to_read(context)
        there = machine.available_memory_bytes()
        if needed <= there:
            return ""
        beside = f" in each of {workers} cells" if workers > 1 else ""
        return (
            f"reading {context:,} tokens{beside} takes {size_text(needed)} of main "
            f"memory beside the model, and {size_text(there)} are free"
        )

    def speed_tool(self) -> SpeedTool:
        """
        The tool behind `Ability.SPEED`.

        Raises:
            MachineError: If it is missing or too old.
        """
        self.require(Ability.SPEED)
        raise NotImplementedError
