"""How a server is asked: what a question holds, and the body that sends it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from codeneedle.records import Json

Prompt = str | tuple[int, ...]
"""A text, or the tokens of one."""

RUNNERS_UP = 2
"""Most probable tokens asked for: the one that comes, and its nearest rival."""

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
    # Penalties act before the temperature does: they would turn a verbatim
    # repetition, which is what we ask for, into something else.
    "repeat_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "dry_multiplier": 0.0,
}
"""
Greedy, and nothing else.

Each is stated though most are the server's defaults: a GGUF may carry its own
(``general.sampling.*``), and so may the user's arguments.
"""

STREAMING: Json = {
    "stream": True,
    "cache_prompt": True,
    # Stated with every token, because a reply that is cut has no last event.
    "timings_per_token": True,
    # One event per batch of the prompt: a sign of life where pings are none.
    "return_progress": True,
}
"""
Streaming costs about a tenth of the speed of a model that writes 600 tokens per
second, and saves whatever a model writes beyond its answer. Probabilities and
timings in the events cost nothing that can be measured.
"""

FIELDS = ("content", "stop", "stop_type", "stopped_limit", "timings")
"""Of the last event; the prompt, which it would also bring, may be megabytes."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a chat: who speaks, and what."""

    role: str
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """
    A text to go on with.

    Attributes:
        prompt: The text, or its tokens.
        max_tokens: Tokens that the reply may have.
        seed: Of sampling; greedy sampling draws nothing, but says so in the log.
    """

    prompt: Prompt
    max_tokens: int
    seed: int = 0

    def body(self) -> Json:
        """What ``/completion`` takes."""
        return {
            "prompt": self.prompt,
            "n_predict": self.max_tokens,
            "seed": self.seed,
            "n_probs": RUNNERS_UP,
            "return_tokens": True,
            "response_fields": FIELDS,
            **STREAMING,
            **NEUTRAL_SAMPLING,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """
    A conversation to answer.

    Attributes:
        messages: Who said what; a last one of the assistant is gone on with.
        max_tokens: Tokens that the reply may have, thinking included.
        seed: Of sampling.
        template_args: Variables of the chat template: ``enable_thinking``.
    """

    messages: tuple[Message, ...]
    max_tokens: int
    seed: int = 0
    template_args: Mapping[str, object] = field(default_factory=dict)

    def body(self) -> Json:
        """What ``/v1/chat/completions`` takes."""
        return {
            **conversation(self.messages, self.template_args),
            "max_tokens": self.max_tokens,
            "seed": self.seed,
            "logprobs": True,
            "top_logprobs": RUNNERS_UP,
            **STREAMING,
            **NEUTRAL_SAMPLING,
        }


def conversation(
    messages: tuple[Message, ...], template_args: Mapping[str, object]
) -> Json:
    """What the chat template is filled with."""
    said = [asdict(message) for message in messages]
    if not template_args:
        return {"messages": said}
    return {"messages": said, "chat_template_kwargs": dict(template_args)}
