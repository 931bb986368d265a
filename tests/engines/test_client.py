"""The HTTP client, against a server that misbehaves on request, and the real one."""

import os
import random

import httpcore
import pytest
from made_servers import fake_server

from codeneedle.engines import client
from codeneedle.engines.client import (
    Chat,
    Client,
    Completion,
    Message,
    _Deadline,
    beginning,
    lines,
    whole,
)
from codeneedle.engines.llama_cpp.installation import ask
from codeneedle.engines.llama_cpp.server import Launch, serving
from codeneedle.engines.messages import (
    BadReply,
    PromptTooLong,
    Readiness,
    Refused,
    ServerGone,
    ServerSilent,
    Tokens,
    shaped,
)
from codeneedle.grid import Pair
from codeneedle.system import processes

QUESTION = Completion(prompt="Go on", max_tokens=50)
LINES = "".join(f"line {number}\n" for number in range(40))


def test_a_reply_of_many_tokens_arrives_whole(tmp_path):
    """
    Text, counts and times, a probability and a gap for each token.
    """
    with fake_server(tmp_path) as served:
        reply = served.client.complete(QUESTION)

    assert (LINES[:50], "length") == (reply.text, reply.finish)
    assert (7, 3, 50) == (
        reply.prompt_tokens,
        reply.cached_tokens,
        reply.predicted_tokens,
    )
    assert 50 * (-0.25,) == reply.logprobs
    assert 50 * (1.25,) == reply.gaps
    assert reply.wall_s > 0


def complete(served):
    return served.client.complete(QUESTION)


def count(served):
    return served.client.count_tokens("text")


@pytest.mark.parametrize(
    ("asked", "fault", "error"),
    [
        (complete, "reset", ServerGone),
        (complete, "half-json", BadReply),
        (complete, "html", BadReply),
        (complete, "wrong-shape", BadReply),
        (complete, "no-last-event", ServerGone),
        (complete, "error-event", Refused),
        (complete, "garbage", BadReply),
        (count, "half-json", BadReply),
        (count, "html", BadReply),
        (count, "reset", ServerGone),
    ],
)
def test_an_answer_that_goes_wrong_has_an_error_of_its_own(
    asked, fault, error, tmp_path
):
    """
    Half an answer is never returned, and no library's exception is raised.
    """
    with fake_server(tmp_path, fault) as served, pytest.raises(error):
        asked(served)


@pytest.mark.parametrize("fault", ["slow-headers", "slow", "pings"])
def test_a_server_that_says_next_to_nothing_is_left(fault, tmp_path):
    """
    Single bytes of headers or of an event, and pings, do not extend the deadline.
    """
    with (
        fake_server(tmp_path, fault, silence_s=0.5) as served,
        pytest.raises(ServerSilent) as caught,
    ):
        served.client.complete(QUESTION)

    assert "timed-out" == caught.value.status


def test_a_server_that_shuts_down_is_not_waited_for(tmp_path, monkeypatch):
    """
    After SIGTERM, llama-server may neither complete a reply nor exit.
    """
    monkeypatch.setattr(client, "SHUTDOWN_S", 0.05)
    monkeypatch.setattr(client, "POLL_S", 0.05)
    farewell = "say-in-round=srv operator(): cleaning up before exit..."
    with (
        fake_server(tmp_path, farewell, "pings", silence_s=60.0) as served,
        pytest.raises(ServerGone, match="told to shut down"),
    ):
        served.client.complete(QUESTION)


@pytest.mark.parametrize("faults", [(), ("no-grammar",)], ids=["at once", "by token"])
def test_an_answer_is_scored_without_being_asked_for(faults, tmp_path):
    """
    Each of its tokens has a probability, a lead and an end in the text; also where
    the server knows no grammar of tokens.
    """
    with fake_server(tmp_path, *faults) as served:
        forced = served.client.force(QUESTION, "right")

    assert (5 * (-0.25,), ()) == (forced.logprobs, forced.bounds)
    assert (5 * (1.25,), (1, 2, 3, 4, 5)) == (forced.leads, forced.ends)
    assert forced.wall_s > 0


@pytest.mark.parametrize(
    ("fault", "error"),
    [("reset", ServerGone), ("html", BadReply), ("refuse=500", Refused)],
)
def test_scoring_goes_wrong_as_a_reply_does(fault, error, tmp_path):
    """
    The same checks, the same errors.
    """
    with fake_server(tmp_path, fault) as served, pytest.raises(error):
        served.client.force(QUESTION, "a text of many tokens")


def test_a_port_without_a_server_is_silent():
    """
    A server that has not bound its port yet is not ready; any other question fails.
    """
    with Client("http://127.0.0.1:9", api_key="k") as connection:
        assert Readiness.SILENT is connection.readiness("a")
        with pytest.raises(ServerGone):
            connection.count_tokens("text")


def test_proxies_of_the_environment_are_not_used(tmp_path, monkeypatch):
    """
    Requests go to loopback whatever HTTP_PROXY says.
    """
    monkeypatch.setitem(os.environ, "HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setitem(os.environ, "ALL_PROXY", "http://127.0.0.1:9")

    with fake_server(tmp_path) as served:
        assert 4 == served.client.count_tokens("text")


class Clock:
    """Seconds that a test sets."""

    def __init__(self):
        self.now_s = 0.0

    def monotonic(self):
        return self.now_s

    def pass_s(self, deadline, seconds, *, step_s=1.0):
        """Let time pass as in a wait for data, with a check at each step."""
        for _ in range(round(seconds / step_s)):
            self.now_s += step_s
            deadline.check()


@pytest.fixture
def clock(monkeypatch):
    """The clock that deadlines read."""
    clock = Clock()
    monkeypatch.setattr(processes, "time", clock)
    return clock


def test_a_deadline_ends_a_request_unless_it_is_extended(clock):
    """
    Each extension grants the whole limit again; a gap far longer than a poll means that
    this process was suspended, and does not count.
    """
    deadline = _Deadline(lambda: False)
    deadline.start(10.0)
    clock.pass_s(deadline, 9)
    deadline.extend()
    clock.now_s += 30_000.0
    deadline.check()
    clock.pass_s(deadline, 8)

    with pytest.raises(httpcore.ReadTimeout):
        clock.pass_s(deadline, 1)


def test_a_server_that_shuts_down_may_complete_its_reply(clock):
    """
    The request fails SHUTDOWN_S after the shutdown was seen, not at once.
    """
    log = []
    deadline = _Deadline(lambda: bool(log))
    deadline.start(3600.0)
    clock.pass_s(deadline, 60)
    log.append("cleaning up before exit")
    clock.pass_s(deadline, 1 + client.SHUTDOWN_S)

    with pytest.raises(httpcore.ReadError, match="shut down"):
        clock.pass_s(deadline, 1)


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_lines_do_not_depend_on_how_the_stream_was_cut(size):
    """
    A byte at a time or all at once, the lines are the same.
    """
    data = b"data: 1\r\n\r\n:\ndata: 2\n\nrest"
    chunks = [data[at : at + size] for at in range(0, len(data), size)]

    assert [b"data: 1", b"", b":", b"data: 2", b""] == list(lines(chunks))


def test_a_line_without_end_is_refused(monkeypatch):
    monkeypatch.setattr(client, "LINE_LIMIT_BYTES", 1000)

    list(lines([b"x" * 100] * 10))
    with pytest.raises(BadReply, match="longer than"):
        list(lines([b"x" * 100] * 11))


@pytest.mark.parametrize("read", [lines, whole])
def test_an_answer_without_end_is_refused(read):
    """
    Just the limit is read.
    """
    chunks = iter([b"data: x\n" * 10] * 100)

    list(read([b"data: x\n" * 10] * 10, limit_bytes=800))
    with pytest.raises(BadReply, match="longer than 800 B"):
        list(read(chunks, limit_bytes=800))
    assert 89 == len(list(chunks))


def test_an_answer_of_another_shape_is_not_quoted_as_python_writes_it():
    """
    Its text as objects may be far longer than its bytes were.
    """
    with pytest.raises(BadReply) as caught:
        shaped({"tokens": [{}] * 9}, Tokens, expected="tokens")

    assert "Expected `int`, got `object` - at `$.tokens[0]`" in str(caught.value)
    assert "{}" not in str(caught.value)


def test_of_an_error_only_the_beginning_is_read():
    """
    A page of megabytes is not read to its end.
    """
    chunks = iter([b"x" * 1000] * 100)

    assert b"xxx" == beginning([b"x"] * 3)
    assert client.ERROR_LIMIT_BYTES < len(beginning(chunks)) < 70_000
    assert 34 == len(list(chunks))


@pytest.fixture(scope="module")
def real(llama_server, nano, tmp_path_factory):
    """The real server with the built-in model, and a template for chats."""
    template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    launch = Launch(
        binary=llama_server,
        weights=nano,
        alias="real",
        context=2048,
        pair=Pair("q8_0", "q8_0"),
        extra=("--chat-template", template),
        options=ask(llama_server).options,
        threads=1,
    )
    log = tmp_path_factory.mktemp("real") / "server.log"
    with serving(launch, log=log) as served:
        yield served.client


PROMPT = "alpha = 'kX9bQ2'\nbeta = 'Zt71Wc'\ngamma = 'Pq04Lm'\n" * 2 + "alpha = "


@pytest.mark.real
def test_the_real_server_counts_and_renders(real):
    """
    The built-in model has a token for each byte, and one that begins a prompt; of many
    texts each is counted alone, an empty one has no tokens.
    """
    assert 6 == real.count_tokens("hello")
    assert 5 == real.count_tokens("hello", add_special=False)
    assert [5, 0, 3, 3] == real.counts(["hello", "", "a\nb", "\u20ac"])
    assert [] == real.counts([])
    assert [3] == real.counts(["\u20ac"])
    assert "hi" == real.render((Message("user", "hi"),))
    begin, *said, part, _, _ = real.tokens("a<s>\u20ac")
    assert ["a", "<", "s", ">"] == [token.piece for token in said]
    assert ((0xE2,), begin.id) == (part.piece, real.tokens("")[0].id)
    assert said == list(real.tokens("a<s>", add_special=False))


@pytest.mark.real
def test_chat_and_completion_give_the_same_text(real):
    """
    A template that adds nothing makes a chat the completion of its text.
    """
    completed = real.complete(Completion(prompt=PROMPT, max_tokens=30))
    chatted = real.chat(Chat(messages=(Message("user", PROMPT),), max_tokens=30))

    assert completed.text == chatted.text
    assert "length" == completed.finish == chatted.finish
    assert 30 == completed.predicted_tokens == chatted.predicted_tokens
    assert 30 == len(completed.gaps)


@pytest.mark.real
def test_a_question_asked_again_is_answered_the_same_after_a_cut(real):
    """
    What an earlier reply left in the cache changes nothing.
    """
    question = Completion(prompt=PROMPT, max_tokens=60)
    first = real.complete(question)
    cut = real.complete(question, enough=lambda text: "\n" in text)
    again = real.complete(question)

    assert "cut" == cut.finish
    assert first.text.startswith(cut.text)
    assert cut.text.count("\n") == 1
    assert (first.text, cut.gaps) == (again.text, again.gaps[: len(cut.gaps)])


@pytest.mark.real
def test_the_real_server_scores_what_it_would_have_written_as_it_wrote_it(real):
    """
    Forced to its own reply, a model gives each token its probability again.
    """
    question = Completion(prompt=PROMPT, max_tokens=12)
    written = real.complete(question)
    forced = real.force(question, written.text)

    assert written.logprobs == forced.logprobs
    assert written.gaps == forced.leads
    assert tuple(range(1, 13)) == forced.ends
    assert (written.prompt_tokens, ()) == (forced.prompt_tokens, forced.bounds)


@pytest.mark.real
def test_the_real_server_scores_what_it_would_never_write(real):
    """
    A probability that is far from the first is told, too, and that of each part of a
    character, though it ends none.
    """
    question = Completion(prompt=PROMPT, max_tokens=12)
    right = f"'\u20ac{real.complete(question).text[1:6]}"
    forced = real.force(question, right)

    assert (1, 1, 1, 2, 3, 4, 5, 6, 7) == forced.ends
    assert forced.leads[0] > 0 > forced.leads[1] > -60
    assert len(forced.bounds) <= 2


@pytest.mark.real
def test_the_real_server_refuses_a_prompt_that_is_too_long(real):
    """
    The error says by how much.
    """
    with pytest.raises(PromptTooLong) as caught:
        real.complete(Completion(prompt="x" * 3000, max_tokens=1))

    assert (3001, 2048) == (caught.value.prompt_tokens, caught.value.context)


WORDS = "apple river stone cloud paper glass wheel tiger house green".split()  # noqa: SIM905


def words_of(name):
    """A function of eight lines of words that nothing else tells."""
    words = iter(random.Random(name).choices(WORDS, k=24))  # noqa: S311 - seeded
    lines = (
        f'    {a} = "{b} {c}"\n' for a, b, c in zip(words, words, words, strict=True)
    )
    return f"def {name}():\n{''.join(lines)}"


@pytest.mark.real
def test_a_coarse_k_costs_a_language_model_some_of_its_recall(
    llama_server, smollm2, tmp_path
):
    """
    The right lines are less probable after a K in four bits, though it would write
    them with neither cache.
    """
    names = WORDS[:4]
    text = "\n".join(map(words_of, names))
    means = {}
    for pair in (Pair("f16", "f16"), Pair("q4_0", "f16")):
        launch = Launch(
            binary=llama_server,
            weights=smollm2,
            alias="smollm2",
            context=1024,
            pair=pair,
            options=ask(llama_server).options,
            threads=1,
        )
        with serving(launch, log=tmp_path / f"{pair.slug}.log") as served:
            found = [
                served.client.force(
                    Completion(prompt=f"{text}\n\ndef {name}():\n", max_tokens=99),
                    words_of(name).partition("\n")[2].rstrip("\n"),
                )
                for name in names
            ]
        logprobs = [logprob for forced in found for logprob in forced.logprobs]
        means[str(pair)] = sum(logprobs) / len(logprobs)

    assert means["q4_0/f16"] < means["f16/f16"] - 0.03, means
