"""How often a request is sent, and from when on answers are kept."""

import contextlib
from types import SimpleNamespace

import pytest
from fake_engine import FakeEngine, FakeServer

from codeneedle.engines.messages import Generation, PromptCut, ServerGone
from codeneedle.errors import CellError
from codeneedle.probes.observations import Observed
from codeneedle.probes.probe import Asker, Question, start_server_and_ask


@pytest.mark.parametrize(("is_dying", "attempts"), [(False, 4), (True, 1)])
def test_a_connection_that_keeps_breaking_ends_the_cell(is_dying, attempts):
    """After three further attempts; that of a dead server is not tried again."""
    server, tries = FakeServer(FakeEngine()), []
    server.is_dying = is_dying

    def broken():
        tries.append("reset")
        raise ServerGone(reason="reset")

    with pytest.raises(ServerGone):
        Asker(server, None).ask_with_retries(broken)
    assert attempts == len(tries)


@pytest.mark.parametrize(
    ("lengths", "known", "read", "is_refused", "asked"),
    [
        ("", 1000, 1000, False, 1),
        ("", 1000, 880, True, 1),
        ("", 1000, 0, False, 1),  # it does not count
        ("", 1400, 1000, False, 2),  # shorter than what was asked for
        ("estimated", 1400, 1000, False, 2),  # of an uneven text a third too high
        ("estimated", 1400, 880, True, 1),
        ("", 0, 1000, False, 1),  # of unknown length
        ("", 0, 880, True, 1),
        ("estimated", 0, 880, True, 1),
    ],
)
def test_a_server_that_reads_fewer_tokens_than_the_text_has_cuts_prompts(
    lengths, known, read, is_refused, asked, golden
):
    """Cuts of less than half were once taken for an estimate that is too high."""
    text = "word " * 1000
    tokenizer = SimpleNamespace(count_tokens=lambda part: part.count("word"))
    run = SimpleNamespace(setup=SimpleNamespace(lengths=lengths))
    asker = Asker(SimpleNamespace(tokenizer=tokenizer), SimpleNamespace(run=run))
    replies = []

    def ask():
        replies.append(Generation(prompt_tokens=read))
        return replies[-1]

    if is_refused:
        with pytest.raises(PromptCut) as caught:
            asker.ask_and_refuse_cut_prompt(text, known, ask)
        assert golden == str(caught.value)
    else:
        assert read == asker.ask_and_refuse_cut_prompt(text, known, ask).prompt_tokens
    assert asked == len(replies)


def test_answers_are_kept_from_the_first_that_can_be_used_and_not_read_again():
    """What tells whether one can reads all answers."""
    read, kept = [], []

    def useless_answers_error(observed):
        read.append(len(observed.answers))
        is_right = {"is": "right"} in observed.answers.values()
        return None if is_right else CellError("", hint="")

    replies = iter(["wrong", "wrong", "right", "wrong", "wrong"])
    asker = SimpleNamespace(
        ask=lambda _question: {"is": next(replies)},
        why_pointless=lambda _question: "",
        wait_until_idle=lambda: None,
    )
    probe = SimpleNamespace(
        saves_cache=False,
        thinks=False,
        useless_answers_error=useless_answers_error,
        asker=lambda *_: asker,
    )
    context = SimpleNamespace(
        report_step=lambda *_: None,
        serving=lambda **_: contextlib.nullcontext(),
        store_observation_so_far=lambda observation: kept.append(
            len(observation["answers"])
        ),
    )
    asked = [Question(str(at), phrase="") for at in range(5)]
    start_server_and_ask(probe, context, Observed(answers={}), lambda: asked)

    assert ([1, 2, 3], [3, 4, 5]) == (read, kept)
