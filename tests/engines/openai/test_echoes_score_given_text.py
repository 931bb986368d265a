"""Given text is scored where a server echoes it, unless the echo spells another."""

from dataclasses import replace

import pytest
from asked_endpoint import ANSWER, ASKED, CHAT, QUESTION
from fake_openai import endpoint

from codeneedle.engines.messages import (
    BadReply,
    PromptCut,
    Refused,
    check_and_convert_answer,
)
from codeneedle.engines.openai.client import _StatedEvent, read_echo
from codeneedle.records.record import Status
from codeneedle.scores import ComputesNan


def test_given_text_is_scored_where_the_server_echoes_it(talk):
    right = "\n  one\n  tw"
    whole, before = len(ASKED + right), len(ASKED)
    with endpoint("echo", "busy=1") as server, talk(server) as client:
        found = client.force(QUESTION, right)

    tokens = [(at, min(at + 4, whole)) for at in range(0, whole, 4)]
    tokens = [(at, end) for at, end in tokens if end > before]
    assert tuple(end - before for _, end in tokens) == found.ends
    assert len(right) == found.ends[-1]
    assert len(tokens) == len(found.logprobs) == len(found.leads)
    assert {2.0} == set(found.leads)
    assert max(found.logprobs) < 0
    assert () == found.bounds


@pytest.mark.parametrize(
    ("faults", "question"),
    [
        pytest.param((), QUESTION, id="no-echo"),
        pytest.param(("echo", "offsets=falling"), QUESTION, id="offsets"),
        pytest.param(("echo", "mangled"), QUESTION, id="mangled"),
        pytest.param(("echo", "alone"), QUESTION, id="alone"),
        pytest.param(("echo", "twice"), QUESTION, id="twice"),
        pytest.param(("echo", "logprob=5"), QUESTION, id="five"),
        pytest.param(("echo", "logprob=null"), QUESTION, id="null"),
        pytest.param(("echo", "logprob=Infinity"), QUESTION, id="infinity"),
        pytest.param(("echo", "logprob=-Infinity"), QUESTION, id="minus-infinity"),
        pytest.param(("echo", "counts=-3"), QUESTION, id="negative-count"),
        pytest.param(("echo", "counts=9"), QUESTION, id="count"),
        pytest.param(("strict",), QUESTION, id="strict"),
        pytest.param(("chat-only",), QUESTION, id="chat-only"),
        pytest.param(("echo",), CHAT, id="chat"),
        pytest.param(("echo-refused=500",), QUESTION, id="500"),
        pytest.param(("echo-refused=501",), QUESTION, id="501"),
    ],
)
def test_a_server_that_cannot_score_given_text_leaves_a_gap(
    talk, golden, faults, question
):
    with (
        endpoint(*faults) as server,
        talk(server) as client,
        pytest.raises(BadReply) as caught,
    ):
        client.force(question, "right")

    assert golden == str(caught.value)
    assert "Token(" not in str(caught.value)


def test_nan_of_a_given_text_ends_the_cell(talk, golden):
    with (
        endpoint("echo", "logprob=NaN") as server,
        talk(server) as client,
        pytest.raises(ComputesNan) as caught,
    ):
        client.force(QUESTION, "right")

    assert golden == str(caught.value)


@pytest.mark.parametrize(
    ("faults", "question"),
    [((), QUESTION), (("echo",), CHAT), (("echo-refused=500",), QUESTION)],
)
def test_a_server_of_a_kind_that_scores_no_given_text_has_not_crashed(
    talk, faults, question
):
    with (
        endpoint(*faults) as server,
        talk(server) as client,
        pytest.raises(BadReply) as caught,
    ):
        client.force(question, "right")

    assert Status.UNSUPPORTED == caught.value.status


def test_passages_of_a_prompt_are_scored_by_one_request_as_each_by_its_own(talk):
    """A token that ends behind a passage is none of it."""
    asked = "def f(x):\n  one\ndef g(x):\n  two\n"
    begins = [asked.index("  one"), asked.index("  two")]
    passages = [(at, at + 5) for at in begins]
    with endpoint("echo") as server, talk(server) as client:
        found = client.force_each(replace(QUESTION, prompt=asked), passages)
        bodies = len(server.bodies)
        alone = [
            client.force(replace(QUESTION, prompt=asked[:begin]), asked[begin:end])
            for begin, end in passages
        ]

    assert (1, 2) == (bodies, len(found))
    for each, other in zip(found, alone, strict=True):
        inside = len(each.ends)
        assert 0 < inside <= len(other.ends)
        assert other.ends[:inside] == each.ends
        assert other.prompt_tokens == each.prompt_tokens
        assert max(each.ends) <= 5
    assert found[0].wall_s + found[1].wall_s > 0


@pytest.mark.parametrize("offsets", ["bare", "minus", "zero"])
def test_places_of_tokens_need_not_be_told(talk, offsets):
    """SGLang tells -1 for each; the texts of the tokens settle it."""
    with endpoint("echo") as server, talk(server) as client:
        told = client.force(QUESTION, ANSWER)
        server.faults["offsets"] = offsets
        bare = client.force(QUESTION, ANSWER)

    assert (told.logprobs, told.ends) == (bare.logprobs, bare.ends)


def test_a_server_that_breaks_at_its_first_echo_is_not_asked_again(talk):
    with endpoint("echo-refused=500") as server, talk(server) as client:
        for _ in range(3):
            with pytest.raises(BadReply, match="500"):
                client.force(QUESTION, "right")

    # Three echoes, the same without one, and three again.
    assert 7 == len(server.bodies)
    assert [0.5, 2.0] * 2 == talk.paused


@pytest.mark.parametrize("fault", ["down=9", "busy=9", "broken=9"])
def test_a_failure_of_the_moment_is_no_lack_of_echoes(talk, fault):
    """Whatever fails, with an echo or without, is a failure; it is asked once more."""
    with endpoint("echo", fault) as server, talk(server) as client:
        with pytest.raises(Refused):
            client.force(QUESTION, "right")
        assert "" == client.no_echo
        server.faults.pop(fault.partition("=")[0])
        assert client.force(QUESTION, "right").logprobs


@pytest.mark.parametrize("code", [429, 502, 503, 504, 529])
def test_an_echo_that_a_server_is_too_busy_for_is_a_failure(talk, code):
    with endpoint(f"echo-refused={code}") as server, talk(server) as client:
        with pytest.raises(Refused, match=str(code)):
            client.force(QUESTION, "right")
        assert "" == client.no_echo


@pytest.mark.parametrize("failures", [1, 4, 5])
def test_an_echo_that_fails_at_first_is_scored(talk, failures):
    with endpoint("echo", f"broken={failures}") as server, talk(server) as client:
        assert client.force(QUESTION, "right").logprobs


def test_a_server_that_has_echoed_and_breaks_is_a_failure(talk):
    with endpoint("echo") as server, talk(server) as client:
        client.force(QUESTION, "right")
        server.faults["echo-refused"] = "500"
        with pytest.raises(Refused, match="500"):
            client.force(QUESTION, "right")

    assert [0.5, 2.0, 8.0, 30.0] == talk.paused


def test_a_wrong_key_is_no_lack_of_echoes(talk):
    with (
        endpoint("echo-refused=401") as server,
        talk(server) as client,
        pytest.raises(Refused, match="401"),
    ):
        client.force(QUESTION, "right")


CURLY = "def \u201cno\u201d: x = '\N{GRINNING FACE}'\n"
TAIL = (16, 17, 18)


@pytest.mark.parametrize(
    ("how", "untold", "ends"),
    [
        ("unknown", 10, (1, 2, 3, 4, 6, 7, 9, 13, 14, 15, 17, 18)),
        ("last", 7, (1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 14, 15, 16, 17, 18)),
        *[
            (
                how,
                0,
                (1, 2, 3, *[4] * 3, 5, 6, *[7] * 3, 8, 9, 13, 14, *[15] * 4, *TAIL),
            )
            for how in ("hex", "bytes")
        ],
    ],
)
def test_parts_of_a_character_cost_no_other_token(talk, how, untold, ends):
    """As vLLM and others tell them; nor does the place of any other move."""
    with endpoint("echo", f"parts={how}") as server, talk(server) as client:
        found = client.force(QUESTION, CURLY)

    assert (untold, ends) == (found.untold, found.ends)
    assert found.has_matching_lengths


def test_an_answer_of_nothing_but_parts_has_no_score(talk, golden):
    with (
        endpoint("echo", "parts=unknown") as server,
        talk(server) as client,
        pytest.raises(BadReply) as caught,
    ):
        client.force(replace(QUESTION, prompt="abcd"), "\u201c\u201d")

    assert golden == str(caught.value)


def echoed(*pieces, written, counted):
    """An echo of the tokens *pieces*, of which *written* are new; one for a letter."""
    places = [sum(map(len, pieces[:at])) for at in range(len(pieces))]
    numbers = [None, *(-0.1 * at for at in range(1, len(pieces)))]
    told = {
        "tokens": pieces,
        "text_offset": places,
        "token_logprobs": numbers,
        "top_logprobs": [n and {"other": -5.0} for n in numbers],
    }
    usage = {"prompt_tokens": len(pieces) - written}
    usage |= {} if counted is None else {"completion_tokens": counted}
    choice = {"text": "".join(pieces), "logprobs": told}
    return check_and_convert_answer(
        {"choices": [choice], "usage": usage}, _StatedEvent, expected="an echo"
    )


def echo_of(answer, right, *, prompt=""):
    """The scores of *right* behind *prompt* in an echo."""
    whole = prompt + right
    (found,) = read_echo(answer, whole, [(len(prompt), len(whole))], wall_s=0.0)
    return found


@pytest.mark.parametrize(
    ("written", "counted"), [((), 0), (("\n",), 1), (("\n",), None)]
)
def test_scores_are_those_of_the_right_tokens(written, counted):
    right = ("  re", "turn", " xyz")
    whole = ("def ", "f", "(x):\n", *right, *written)
    answer = echoed(*whole, written=len(written), counted=counted)

    found = echo_of(answer, "".join(right))

    assert (-0.3, -0.4, -0.5) == found.logprobs
    assert (4, 8, 12) == found.ends
    assert 3 == found.prompt_tokens


def test_a_token_that_straddles_the_begin_of_the_answer_is_scored():
    """And one that comes before it is not, though it would spell it, too."""
    answer = echoed("x", "=", " x", "=1", written=0, counted=0)

    found = echo_of(answer, "x=1")

    assert ((-0.2, -0.3), (1, 3)) == (found.logprobs, found.ends)


@pytest.mark.parametrize(
    ("echo", "is_whole"),
    [
        (("def", "\u2581f", "<0x0A>", " return"), True),
        (("<s>", "def ", "<|x|>", "f", "\n", " return"), True),
        (("f", "\n", " return"), False),
        (("def ", "\n", " return"), False),
    ],
    ids=["marks", "more", "begin-cut", "middle-cut"],
)
def test_an_echo_spells_the_whole_prompt(echo, is_whole, golden):
    """A server that cuts its prompts was once scored as if it had read them."""
    answer = echoed(*echo, written=0, counted=0)

    def read():
        return echo_of(answer, " return", prompt="def f\n")

    if is_whole:
        assert (-0.1 * (len(echo) - 1),) == pytest.approx(read().logprobs)
        return
    with pytest.raises(PromptCut) as caught:
        read()
    assert golden == str(caught.value)
    assert "mismatched" == caught.value.status


def test_tokens_that_do_not_spell_what_is_right_are_not_scored(golden):
    """As where a server counts a token that it has not written."""
    answer = echoed("def ", "f", "\n", "  re", "turn", written=0, counted=1)

    with pytest.raises(BadReply) as caught:
        echo_of(answer, "  return")
    assert golden == str(caught.value)
