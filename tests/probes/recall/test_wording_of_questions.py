"""The wording of questions, and how they are counted."""

import math
from dataclasses import replace

from fake_engine import ByteTokenizer
from made_records import made_forced_needle, made_needle

from codeneedle.probes.prompts import PromptForm, Prompts
from codeneedle.probes.recall.asked_functions import Questions
from codeneedle.probes.recall.prompts import (
    chat_messages,
    completion_prompt,
    question_text,
)
from codeneedle.probes.recall.settings import RecallSettings
from codeneedle.probes.thinking import NO_THINK_ARGS

NEEDLE = made_needle()


def test_the_corpus_comes_first_in_both_forms():
    """The shared prefix is what a server takes from its cache."""
    completion = completion_prompt("CORPUS", NEEDLE)

    assert completion.startswith("CORPUS\n")
    assert completion.endswith(f"\n{NEEDLE.signature}\n")
    assert chat_messages("CORPUS", NEEDLE)[0].content.startswith("CORPUS\n---\n")


def test_a_question_quotes_the_real_signature_and_counts_blank_lines():
    """Asking for 20 lines of a body with blank ones would forbid the last."""
    spaced = replace(NEEDLE, lines=("", *NEEDLE.lines))
    long = replace(NEEDLE, signature="def f(\n    a,\n):")

    assert f"`{NEEDLE.signature}`" in question_text(spaced)
    assert "first 21 lines" in question_text(spaced)
    assert "```\ndef f(\n    a,\n):\n```" in question_text(long)


FORCED = made_forced_needle(3)
BEGUN = "".join(f"{line}\n" for line in FORCED.before)


def test_a_completion_goes_on_behind_the_lines_before_those_that_are_asked():
    assert 3 == len(FORCED.before)
    assert completion_prompt("CORPUS", FORCED).endswith(
        f"\n{FORCED.signature}\n{BEGUN}"
    )


def test_a_chat_s_answer_is_begun_with_the_lines_before_those_that_are_asked(golden):
    asked, answer = chat_messages("x", FORCED)
    _, thoughtful = chat_messages("x", FORCED, prefill_no_think=True)

    assert golden == asked.content
    assert ("assistant", BEGUN) == (answer.role, answer.content)
    assert f"<think>\n\n</think>\n\n{BEGUN}" == thoughtful.content
    assert 1 == len(chat_messages("x", replace(FORCED, before=())))


def test_a_prefilled_thought_is_the_assistants():
    asked, answer = chat_messages("x", NEEDLE, prefill_no_think=True)

    assert "assistant" == answer.role
    assert answer.content.startswith("<think>\n\n</think>")
    assert "user" == asked.role


def test_a_chat_is_counted_as_the_template_renders_it():
    tokenizer = ByteTokenizer()

    def tokens(form, *, prefill_no_think=False):
        prompts = Prompts(tokenizer, form, prefill_no_think)
        return Questions(prompts, RecallSettings()).prompt_and_answer_tokens(
            "text", made_needle()
        )

    completion, plain = tokens(PromptForm.COMPLETION), tokens(PromptForm.CHAT)
    prefilled = tokens(PromptForm.CHAT, prefill_no_think=True)

    assert completion < plain < prefilled
    assert [NO_THINK_ARGS] * 2 == tokenizer.template_args


def test_a_reply_may_have_half_as_many_tokens_again_as_the_truth_and_64():
    needle, prompts = made_needle(), Prompts(ByteTokenizer(), PromptForm.COMPLETION)
    truth = len("\n".join(needle.lines))
    (asked,) = Questions(prompts, RecallSettings()).with_budgets([needle])
    limited = Questions(prompts, RecallSettings(reply_tokens=7))

    assert math.ceil(1.5 * truth) + 64 == asked.budget
    assert [7] == [each.budget for each in limited.with_budgets([needle])]
