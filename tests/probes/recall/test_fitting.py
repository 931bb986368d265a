"""How prompts are counted."""

from fake_engine import ByteTokenizer
from made_records import made_needle

from codeneedle.probes.prompts import NO_THINK_ARGS, PromptForm, Prompts
from codeneedle.probes.recall.fitting import Questions
from codeneedle.probes.recall.settings import RecallSettings


def test_a_chat_is_counted_as_the_template_renders_it():
    tokenizer = ByteTokenizer()

    def tokens(form, *, prefill_no_think=False):
        prompts = Prompts(tokenizer, form, prefill_no_think)
        return Questions(prompts, RecallSettings()).tokens("text", made_needle())

    completion, plain = tokens(PromptForm.COMPLETION), tokens(PromptForm.CHAT)
    prefilled = tokens(PromptForm.CHAT, prefill_no_think=True)

    assert completion < plain < prefilled
    assert [NO_THINK_ARGS] * 2 == tokenizer.template_args
