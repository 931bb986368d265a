"""The child as a server, in this process, with a session that follows a script."""

import json
import threading
from types import SimpleNamespace

import httpx
import pytest
from made_mlx import nano_folder

pytest.importorskip("transformers", reason="mlx-lm, which brings it, is not installed")

import numpy as np

from codeneedle.engines.mlx import child
from codeneedle.engines.mlx.child import ChildServer, Handler, parser
from codeneedle.engines.mlx.log import Memory
from codeneedle.engines.mlx.tokens import TextModel

END = 257
"""The token of the built-in model that ends a reply; bytes are their own tokens."""


class Script:
    """A session whose most probable tokens are those of *reply*, in order."""

    def __init__(self, reply):
        self.reply, self.reused = [*reply], 0

    def read_and_score_prompt(self, prompt, progress):
        progress(len(prompt))
        return self.append_and_score_token(prompt[-1])

    def append_and_score_token(self, _token):
        row = np.full(260, -9.0, dtype=np.float32)
        row[self.reply.pop(0)] = -0.5
        return row

    def score(self, _before, tokens, progress):
        progress(1)
        return [self.append_and_score_token(None) for _ in tokens]


@pytest.fixture(scope="module")
def text():
    return TextModel(nano_folder())


@pytest.fixture
def serving(text, monkeypatch):
    """Starts a server that replies with a script; what posts to it."""
    monkeypatch.setattr(child, "_memory_use", lambda: Memory(peak_bytes=1))
    servers = []

    def start(reply=()):
        server = ChildServer(("127.0.0.1", 0), Handler)
        server.text, server.session = text, None if reply is None else Script(reply)
        server.alias, server.key, server.context = "alias", "key", 16
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        servers.append((server, thread))
        url = f"http://127.0.0.1:{server.server_port}"

        def post(path, body, *, method="POST"):
            headers = {"Authorization": "Bearer key"}
            content = body if isinstance(body, bytes) else json.dumps(body)
            return httpx.request(
                method, f"{url}{path}", content=content, headers=headers
            )

        return post

    yield start
    for server, thread in servers:
        server.shutdown()
        thread.join()
        server.server_close()


def events(answer):
    """What a streamed answer says, one event after the other."""
    return [json.loads(each) for each in answer.text.split("data: ")[1:]]


@pytest.mark.parametrize(
    ("path", "body", "code"),
    [
        ("/nowhere", {}, 404),
        ("/tokenize", b"", 413),
        ("/tokenize", b"[1]", 400),
        ("/tokenize", b"{", 400),
        ("/tokenize", {}, 400),
        ("/apply-template", {"messages": 3}, 400),
        ("/completion", {"prompt": "a" * 16}, 400),
        ("/completion", {"prompt": []}, 400),
    ],
)
def test_a_request_that_cannot_be_answered_is_refused(serving, path, body, code):
    assert code == serving()(path, body).status_code


def test_a_body_larger_than_any_prompt_is_not_read(serving, monkeypatch):
    monkeypatch.setattr(child, "MOST_BODY_BYTES", 10)

    assert 413 == serving()("/tokenize", {"content": "a"}).status_code


def test_a_server_that_only_counts_makes_no_replies(serving):
    post = serving(None)

    assert 501 == post("/completion", {"prompt": "a"}).status_code
    assert [97] == post("/tokenize", {"content": "a"}).json()["tokens"]


def test_a_reply_ends_at_a_token_that_ends_it(serving):
    stream = events(serving([97, END])("/completion", {"prompt": "x", "n_predict": 9}))

    assert ["", "a", ""] == [each["content"] for each in stream]
    assert ("eos", 2) == (
        stream[-1]["stop_type"],
        stream[-1]["timings"]["predicted_n"],
    )


def test_a_reply_ends_where_it_is_long_enough(serving):
    short = events(serving(b"a" * 20)("/completion", {"prompt": "x", "n_predict": 3}))
    full = events(serving(b"a" * 20)("/completion", {"prompt": "x", "n_predict": 99}))

    assert ["limit", "limit"] == [each[-1]["stop_type"] for each in (short, full)]
    assert ["aaa", "a" * 14] == [
        "".join(event["content"] for event in each) for each in (short, full)
    ]


def test_a_letter_of_several_tokens_comes_when_it_is_whole(serving):
    reply = "a\u00e4".encode()
    told = events(serving(reply)("/completion", {"prompt": "x", "n_predict": 3}))

    assert ["", "a", "", "\u00e4"] == [each["content"] for each in told]


@pytest.mark.parametrize(
    "way", [{"grammar": "root ::= <[98]> <[99]>"}, {"logit_bias": [[98, 1e6]]}]
)
def test_forced_tokens_come_whatever_is_more_probable(serving, way):
    body = {"prompt": "x", "n_predict": 2, "n_probs": 2} | way
    told = events(serving([97, END])("/completion", body))[1:]
    (first, *_) = told[0]["completion_probabilities"]

    assert "bc"[: len(told)] == "".join(each["content"] for each in told)
    assert (98, -9.0) == (first["id"], first["logprob"])
    assert {"id": 97, "logprob": -0.5} == first["top_logprobs"][0]
    assert 2 == len(first["top_logprobs"])


HUNGRY = (
    "{% set ns = namespace(x='a') %}{% for i in range(40) %}"
    "{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x }}"
)


@pytest.mark.parametrize("reply", [None, [END]], ids=["counting", "serving"])
@pytest.mark.parametrize("path", ["/apply-template", "/v1/chat/completions"])
def test_a_template_that_takes_all_memory_is_refused(
    serving, text, monkeypatch, golden, reply, path
):
    monkeypatch.setattr(child, "RENDER_MEMORY_BYTES", 1 << 26)
    monkeypatch.setattr(text._tokenizer, "chat_template", HUNGRY)
    messages = [{"role": "user", "content": "a"}]

    answer = serving(reply)(path, {"messages": messages})

    assert 400 == answer.status_code
    assert golden == answer.json()["error"]["message"]


def test_a_chat_is_answered_as_openai_s_api_has_it(serving):
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
    told = events(serving([97, END])("/v1/chat/completions", body))

    assert ["", "a", ""] == [each["choices"][0]["delta"]["content"] for each in told]
    assert "stop" == told[-1]["choices"][0]["finish_reason"]


def test_group_sizes_of_k_and_v_are_read_from_the_arguments():
    words = ["serve", "--model", "m", "--context", "9", "--kv-group-size"]

    assert (64, 32) == parser().parse_args([*words, "64,32"]).kv_group_size
    assert (32,) == parser().parse_args([*words, "32"]).kv_group_size


def test_a_server_that_is_ready_says_so_and_under_which_name(serving):
    ask = serving()

    assert {"status": "ok"} == ask("/health", b"", method="GET").json()
    (model,) = ask("/v1/models", b"", method="GET").json()["data"]
    assert "alias" == model["id"]
    assert 404 == ask("/props", b"", method="GET").status_code


def test_a_conversation_is_rendered_without_a_reply(serving):
    body = {"messages": [{"role": "user", "content": "x"}]}

    assert {"prompt": "x"} == serving()("/apply-template", body).json()


def test_a_signal_ends_a_server_as_a_success(monkeypatch):
    def interrupted(_options):
        raise KeyboardInterrupt

    monkeypatch.setattr(child, "serve", interrupted)
    with pytest.raises(SystemExit) as caught:
        child.main(["serve", "--model", "m", "--context", "9"])

    assert 0 == caught.value.code


def test_a_base_file_of_another_context_is_not_compared_with(
    tmp_path, monkeypatch, golden
):
    """Its rows would be read at wrong places, and give numbers."""
    (tmp_path / "base").write_bytes(child.HEADER.pack(child.MAGIC, 512, 260, 2))
    session = SimpleNamespace(vocabulary=260)
    monkeypatch.setattr(child, "_load_session_and_log_caches", lambda _options: session)
    words = ["--model", "m", "--context", "256", "--base", str(tmp_path / "base")]

    with pytest.raises(ValueError, match="another model") as caught:
        child.main(["divergence", *words])

    assert golden == str(caught.value)
