"""How prompts are counted."""

from pathlib import Path

from fake_engine import ByteTokenizer
from made_records import made_needle

from codeneedle.corpora.registry import load
from codeneedle.probes.prompts import NO_THINK_ARGS, PromptForm
from codeneedle.probes.recall.fitting import Fit, PromptCounter
from codeneedle.probes.recall.settings import RecallSettings


def test_a_chat_is_counted_as_the_template_renders_it():
    tokenizer, corpus = ByteTokenizer(), load("random-bodies-mini")

    def tokens(form, *, prefill_no_think=False):
        fit = Fit(
            corpus=corpus,
            context=8192,
            trained=None,
            form=form,
            prefill_no_think=prefill_no_think,
            may_trim=True,
            settings=RecallSettings(),
            asks_functions=True,
            folder=Path(),
        )
        return PromptCounter(tokenizer, fit).prompt("text", made_needle())

    completion, plain = tokens(PromptForm.COMPLETION), tokens(PromptForm.CHAT)
    prefilled = tokens(PromptForm.CHAT, prefill_no_think=True)

    assert completion < plain < prefilled
    assert [NO_THINK_ARGS] * 2 == tokenizer.template_args
