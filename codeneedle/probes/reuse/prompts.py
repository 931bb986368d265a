"""The text of the reuse probe, and its conversations of two turns."""

from dataclasses import dataclass

from codeneedle.corpora.languages import python
from codeneedle.corpora.needles import NeedleFacts, depth_of, forced_needle
from codeneedle.corpora.random_bodies import Knobs, generate_text
from codeneedle.engines.engine import Tokenizer
from codeneedle.engines.messages import Chat, Completion, Message
from codeneedle.probes.cell import RunContext
from codeneedle.probes.prompts import build_request
from codeneedle.probes.recall.prompts import (
    chat_messages,
    completion_prompt,
    question_text,
)
from codeneedle.probes.thinking import NO_THINK_PREFILL

LINES = 5
"""Body lines of each function: about 60 tokens, all of which are forced."""

FEWEST_FUNCTIONS = 4
"""A question needs so many different functions."""

SAMPLE_FUNCTIONS = 16
"""Functions of the sample from which the tokens of a function are estimated."""

CHARACTERS_PER_TOKEN = 2
"""Estimate for random characters, where there is no tokenizer."""


@dataclass(frozen=True, slots=True)
class ReuseText:
    """A text of random functions, and its functions."""

    text: str
    functions: tuple[NeedleFacts, ...]


def make_reuse_text(functions: int, *, seed: int) -> ReuseText:
    """A text of that many functions, the same on any platform and Python."""
    text = generate_text(_knobs_of_functions(functions, seed))
    count = text.count("\n")
    return ReuseText(
        text,
        tuple(
            forced_needle(
                function,
                depth=depth_of(function, line_count=count),
                lines=LINES,
                seed=seed,
            )
            for function in python.functions(text)
        ),
    )


def function_count_for_length(
    length: int, tokenizer: Tokenizer | None, *, seed: int
) -> int:
    """
    Number of functions in a text of *length* tokens, `FEWEST_FUNCTIONS` at least.

    By counting a sample; by its characters without a tokenizer.
    """
    sample = generate_text(_knobs_of_functions(SAMPLE_FUNCTIONS, seed))
    tokens = (
        tokenizer.count_tokens(sample)
        if tokenizer
        else len(sample) // CHARACTERS_PER_TOKEN
    )
    return max(FEWEST_FUNCTIONS, SAMPLE_FUNCTIONS * length // tokens)


def _knobs_of_functions(functions: int, seed: int) -> Knobs:
    return Knobs(
        functions=functions,
        lines=LINES,
        value_length=4,
        name_length=4,
        seed=seed,
        indent=1,
    )


@dataclass(frozen=True, slots=True)
class FirstTurn:
    """A question and its answer, the first turn of a conversation."""

    needle: NeedleFacts
    answer: str


def build_lines_request(
    run: RunContext,
    text: str,
    needle: NeedleFacts,
    *,
    tokens: int,
    before: FirstTurn | None = None,
) -> Chat | Completion:
    """
    The request for the lines of *needle*.

    Args:
        run: Has the form of prompts, and the seed.
        text: The text that holds the function.
        needle: The function.
        tokens: Most tokens of the answer.
        before: The first turn of the conversation; None to begin one.
    """
    first = before.needle if before else needle
    prefill = run.prefill_no_think
    prompt = completion_prompt(text, first)
    messages = chat_messages(text, first, prefill_no_think=prefill)
    if before:
        prompt = completion_prompt(f"{prompt}{before.answer}", needle)
        begun = (Message("assistant", NO_THINK_PREFILL),) if prefill else ()
        messages = (
            messages[0],
            Message("assistant", before.answer),
            Message("user", question_text(needle)),
            *begun,
        )
    return build_request(run.setup, prompt=prompt, messages=messages, tokens=tokens)
