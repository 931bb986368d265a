"""
A server with OpenAI's API: estimates of lengths by its counts, the evidence of its
cache, waiting until it is ready, and how it ended.
"""

import contextlib
import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from typing_extensions import override

from codeneedle.engines.engine import Served, Tokenizer
from codeneedle.engines.exit_causes import (
    LAST_WORDS,
    Died,
    exit_cause_from_log,
    last_log_lines,
)
from codeneedle.engines.messages import (
    Message,
    Readiness,
    TokenPiece,
)
from codeneedle.engines.openai.client import OpenAi
from codeneedle.engines.started_servers import StartedServer
from codeneedle.errors import CellError
from codeneedle.records.record import CacheEvidence, Effective, Fingerprint, Status
from codeneedle.system import process_memory
from codeneedle.system.processes import (
    FILE_LIMIT_BYTES,
    Child,
    group_members,
    stop_child_group,
)
from codeneedle.text import size_text

LOAD_TIMEOUT_S = 3600.0
"""How long a server may take until it is ready: some compile kernels for half of it."""

STRANGER_S = 30.0
"""How long a server may list other models than ours, or ours without a --health."""

# --- lengths


SAMPLE_CHARACTERS = 2_000
"""Of a text, sent to be counted."""

MARGIN = 1.02
"""Estimates are so much higher than what a sample says."""

TEMPLATE_TOKENS = 32
"""What a chat template may add to a message."""


@dataclass(slots=True)
class EstimatingTokenizer:
    """
    Estimates lengths from the server's counts. Implements `engine.Tokenizer`.

    A text of up to `SAMPLE_CHARACTERS` is counted by the server, a longer one by the
    densest middle so far: a text does not get shorter by what is put around it.
    """

    count: Callable[[str], int]  # asks the server how many tokens a prompt has
    _known: dict[str, int] = field(default_factory=dict)
    _density: float = 0.0

    def count_tokens(self, text: str) -> int:
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
        self._density = max(self._density, tokens / len(sample))
        return math.ceil(MARGIN * self._density * len(text))

    def token_counts_without_special(self, texts: Sequence[str]) -> list[int]:
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
        Refuse: no such server tells its tokens.

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
        return "".join(
            f"{message.role}\n{message.content}{room}" for message in messages
        )


# --- evidence of its cache


ASKS = 2
"""Scored askings of the fixed text: what they differ by is noise."""

EVIDENCE_TOKENS = 32
"""That are written each time."""

EVIDENCE_LINES = 24
"""Of the text: some 600 tokens, which a quantized cache reads with errors."""


def fingerprint_prompt(context: int) -> str:
    """
    A fixed, incompressible text that a context of so many tokens has room for.

    It ends with its first line: what follows has to be found in the cache.
    """
    digests = (hashlib.sha256(bytes([at])).hexdigest() for at in range(EVIDENCE_LINES))
    lines = [f"{at}: {digest[:24]}" for at, digest in enumerate(digests)]
    whole = "\n".join(lines)[: max(64, context // 2 - EVIDENCE_TOKENS)]
    return f"{whole}\n{lines[0]}\n"


def request_fingerprints(client: OpenAi, *, context: int) -> tuple[Fingerprint, ...]:
    """
    What the server replies to the same text, `ASKS` times.

    One more request comes first, so that each scored one finds the text in a cache
    of prefixes, if the server has one.

    Args:
        client: Asks it.
        context: Size of its context, in tokens.

    Raises:
        CellError: If it fails.
    """
    fixed = fingerprint_prompt(context)
    return tuple(_request_fingerprint(client, fixed) for _ in range(ASKS + 1))[1:]


def _request_fingerprint(client: OpenAi, fixed: str) -> Fingerprint:
    """One reply to the *fixed* text, its thought in front."""
    request = "Say these lines, the last one first."
    reply = client.continue_text(fixed, max_tokens=EVIDENCE_TOKENS, request=request)
    return Fingerprint(text=f"{reply.reasoning}{reply.text}", logprobs=reply.logprobs)


# --- a server


@dataclass(slots=True, kw_only=True)
class OpenAiServer(Served):
    """A server that is ready."""

    client: OpenAi  # sends requests to it
    cache_evidence: CacheEvidence = field(default_factory=CacheEvidence)
    _estimates: EstimatingTokenizer = field(init=False)

    def __post_init__(self) -> None:
        self._estimates = EstimatingTokenizer(self.client.ask_prompt_token_count)

    @property
    @override
    def tokenizer(self) -> Tokenizer:
        """What estimates lengths by its counts."""
        return self._estimates

    @override
    def effective(self) -> Effective:
        """Evidence of its cache, for the server tells no settings."""
        client = self.client
        return Effective(
            cache_evidence=self.cache_evidence,
            left_out=client.left_out,
            unscored=client.unscored,
        )


# --- a server of a command


def held_bytes(
    host: int | None, device: int | None, *, has_devices: bool
) -> int | None:
    """
    Bytes on the host and on devices together; None if a part is unknown.

    Without devices that could tell what they hold, it is the host's alone.
    """
    if device is None and not has_devices:
        device = 0
    return None if host is None or device is None else host + device


@dataclass(slots=True, kw_only=True)
class CommandServer(OpenAiServer, StartedServer):
    """A server that the user's command has started."""

    child: Child  # its process
    log: Path
    health: str = ""  # path that answers with a success once it is ready; none if empty
    _strange_from_s: float | None = field(default=None, init=False)

    @override
    def _resident_bytes(self) -> int | None:
        """Resident bytes of its process group; None if it is gone."""
        return process_memory.group_rss_bytes(self.child.pid)

    @override
    def device_bytes(self) -> int | None:
        """Bytes of its process group on devices; None if unknown."""
        return process_memory.nvidia_memory_bytes(*group_members(self.child.pid))

    def memory_bytes(self) -> int | None:
        """Most bytes seen on the host, with those on devices now; None if unknown."""
        return held_bytes(
            self.peak_rss_bytes(),
            self.device_bytes(),
            has_devices=process_memory.nvidia_smi_path() is not None,
        )

    @override
    def readiness(self, limit_s: float) -> Readiness:
        return self.client.ask_readiness_and_adopt_model(
            health=self.health, limit_s=limit_s
        )

    @override
    def left_s(self, waited_s: float) -> float:
        """
        Seconds left to load.

        Less for a stranger; 0 if it wants a key, or if its log is too large, for which
        it is stopped.
        """
        if stop_if_log_too_large(self.child, self.log) or self.client.wants_key:
            return 0.0
        if not self.client.strange:
            self._strange_from_s = None
            return LOAD_TIMEOUT_S - waited_s
        if self._strange_from_s is None:
            self._strange_from_s = waited_s
        return min(LOAD_TIMEOUT_S, self._strange_from_s + STRANGER_S) - waited_s

    @override
    def waiting_phrase(self, readiness: Readiness) -> str:
        return self.client.strange or super(CommandServer, self).waiting_phrase(
            readiness
        )

    @override
    def delay_error(self, readiness: Readiness) -> CellError:
        """The error, with why it is a stranger, and the option to look at."""
        what, hint = self.client.strange, self.client.advice
        if not what:
            how = {
                Readiness.LOADING: "is still loading",
                Readiness.STRANGER: "lists no model",
            }.get(readiness, "does not answer on its port")
            what = f"the server {how} after {LOAD_TIMEOUT_S:g} s"
            hint = "Are --health and --served-name right?"
        return CellError(
            what,
            hint=f"{hint} See {self.log}.",
            status=Status.TIMED_OUT,
            log_excerpt=last_log_lines(self.log),
        )

    @override
    def death_error(self) -> CellError:
        """The error, with the most telling line of its log, or a flood of that."""
        code, lines = self.child.returncode, last_log_lines(self.log)
        if is_log_too_large(self.log):
            last_words = lines[-1][:LAST_WORDS] if lines else ""
            return CellError(
                f"the server was stopped: its log has more than "
                f"{size_text(FILE_LIMIT_BYTES)}: {last_words}",
                hint=f"The end of its log is in {self.log}.",
                log_excerpt=lines,
            )
        hint = "The command must run as long as its server does."
        return Died(
            "the server",
            returncode=code,
            log=self.log,
            cause=exit_cause_from_log(self.log, code),
            excerpt=lines,
            hint=hint if code == 0 else "",
        )

    @override
    def excerpt(self, _error: CellError) -> tuple[str, ...]:
        return last_log_lines(self.log)


def stop_if_log_too_large(child: Child, log: Path) -> bool:
    """Whether the log of *child* is too long; then this stops it."""
    if is_log_too_large(log):
        stop_child_group(child)
        return True
    return False


def is_log_too_large(log: Path) -> bool:
    """Whether a log is longer than any file of llama-server's may be."""
    with contextlib.suppress(OSError):
        return log.stat().st_size > FILE_LIMIT_BYTES
    return False
