"""What a server is asked: texts to continue and chats to answer, as JSON bodies."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from codeneedle.records.record import Json

TOP_TOKENS = 2
"""Most probable tokens asked for per position: the one that comes, and the next."""

NEUTRAL_SAMPLING: Json = {
    "temperature": 0.0,
    "top_k": 1,
    "top_p": 1.0,
    "min_p": 0.0,
    "typical_p": 1.0,
    "top_n_sigma": -1.0,
    "dynatemp_range": 0.0,
    "xtc_probability": 0.0,
    "adaptive_target": -1.0,
    "mirostat": 0,
    # Penalties act before the temperature does: they would change a verbatim
    # repetition, which is what we ask for.
    "repeat_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "dry_multiplier": 0.0,
}
"""
Greedy sampling without penalties.

Each is stated though most are the server's defaults: a GGUF may carry its own
(``general.sampling.*``), and so may the user's arguments.
"""

STREAMING: Json = {
    "stream": True,
    "cache_prompt": True,
    # Stated with every token, because a reply that is cut has no last event.
    "timings_per_token": True,
    # One event per batch of the prompt: shows progress where pings are not sent.
    "return_progress": True,
}
"""
Streaming costs about a tenth of the speed of a model that writes 600 tokens per
second, and saves whatever a model writes beyond its answer. Probabilities and
timings in the events cost nothing that can be measured.
"""

FIELDS = ("content", "stop", "stop_type", "stopped_limit", "timings")
"""Fields of the last event; without this it repeats the prompt, maybe megabytes."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a chat: its role (``user``, ``assistant``) and its text."""

    role: str
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """
    A text to continue.

    Attributes:
        prompt: The text.
        max_tokens: Tokens that the reply may have.
        seed: Of sampling; without effect on greedy sampling, but logged.
    """

    prompt: str
    max_tokens: int
    seed: int = 0

    def body(self) -> Json:
        """The body for ``/completion``."""
        return {
            "prompt": self.prompt,
            "n_predict": self.max_tokens,
            "seed": self.seed,
            "n_probs": TOP_TOKENS,
            "response_fields": FIELDS,
            **STREAMING,
            **NEUTRAL_SAMPLING,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """
    A conversation to answer.

    Attributes:
        messages: The messages; a last one of the assistant is continued.
        max_tokens: Tokens that the reply may have, thinking included.
        seed: Of sampling.
        template_args: Variables of the chat template: ``enable_thinking``.
    """

    messages: tuple[Message, ...]
    max_tokens: int
    seed: int = 0
    template_args: Mapping[str, object] = field(default_factory=dict)

    def body(self) -> Json:
        """The body for ``/v1/chat/completions``."""
        return {
            **conversation(self.messages, self.template_args),
            "max_tokens": self.max_tokens,
            "seed": self.seed,
            "logprobs": True,
            "top_logprobs": TOP_TOKENS,
            **STREAMING,
            **NEUTRAL_SAMPLING,
        }


def conversation(
    messages: tuple[Message, ...], template_args: Mapping[str, object]
) -> Json:
    """The part of a request from which the chat template is filled."""
    body: Json = {"messages": [asdict(message) for message in messages]}
    if template_args:
        body["chat_template_kwargs"] = dict(template_args)
    return body
