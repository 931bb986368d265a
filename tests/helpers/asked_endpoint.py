"""Questions to an endpoint, and what the fake one answers: 8 tokens."""

from codeneedle.engines.messages import Chat, Completion, Message

ASKED = "a:\n  one\n  two\n  three\nb:\n  four\na:"
ANSWER = "  one\n  two\n  three\nb:\n  four\n"
QUESTION = Completion(prompt=ASKED, max_tokens=64)
CHAT = Chat(
    messages=(Message("user", ASKED),),
    max_tokens=64,
    template_args={"enable_thinking": False},
)
