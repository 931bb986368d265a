"""The built-in model's file: the same bytes everywhere, whole or made again."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from codeneedle.corpora.languages.python import functions
from codeneedle.corpora.needles import choose, needle_facts
from codeneedle.corpora.random_bodies import Knobs, text_of
from codeneedle.engines.client import Client
from codeneedle.engines.llama_cpp.server import Launch, serving
from codeneedle.engines.messages import Chat, Completion, Message
from codeneedle.errors import FolderUnusable
from codeneedle.grid import Pair
from codeneedle.models.nano.model import SHA256, built_in_model
from codeneedle.probes.prompts import chat_messages, completion_prompt
from codeneedle.records.record import NeedleFacts
from codeneedle.scoring.alignment import score

UNSEEN_SEEDS = (20260101, 20260102, 20260103)
"""Not used for training or tuning."""

SMALL = text_of(Knobs(functions=4, value_length=6, seed=20260104))


def test_the_file_has_the_pinned_bytes_each_time_it_is_made(tmp_path):
    """Two assemblies give the same bytes, and they are the ones that are pinned."""
    made = [built_in_model(tmp_path / name) for name in ("one", "two")]

    hashes = [hashlib.sha256(path.read_bytes()).hexdigest() for path in made]

    assert [SHA256, SHA256] == hashes


def test_a_file_that_is_there_is_not_made_again(tmp_path):
    """A whole file in the cache is used as it is."""
    first = built_in_model(tmp_path)
    before = first.stat()

    again = built_in_model(tmp_path)

    assert (first, before.st_ino, before.st_mtime_ns) == (
        again,
        again.stat().st_ino,
        again.stat().st_mtime_ns,
    )


@pytest.mark.parametrize("damage", [b"", b"GGUF half of it"])
def test_a_damaged_file_is_replaced(tmp_path, damage):
    """A file whose bytes are not the model's is made again, and nothing else stays."""
    path = built_in_model(tmp_path)
    path.write_bytes(damage)

    again = built_in_model(tmp_path)

    assert SHA256 == hashlib.sha256(again.read_bytes()).hexdigest()
    assert [path] == list(tmp_path.iterdir())


def test_the_cache_folder_is_taken_from_the_environment(tmp_path, monkeypatch):
    """CODENEEDLE_CACHE names the folder in which the file is kept."""
    monkeypatch.setenv("CODENEEDLE_CACHE", str(tmp_path / "mine"))

    assert tmp_path / "mine" == built_in_model().parent


def test_a_cache_that_takes_no_files_is_named_with_a_way_out(tmp_path):
    """A cache folder that cannot be is reported with the variable that moves it."""
    (tmp_path / "file").touch()

    with pytest.raises(FolderUnusable) as caught:
        built_in_model(tmp_path / "file")

    assert str(tmp_path / "file") in str(caught.value)
    assert "CODENEEDLE_CACHE" in caught.value.hint


def needles(corpus: str, *, k: int) -> list[NeedleFacts]:
    """So many functions of *corpus*, from its top to its end."""
    found = functions(corpus)
    chosen = choose(found, k=k, line_count=corpus.count("\n"))
    return [needle_facts(function, depth=0.0) for function in chosen]


@pytest.fixture(scope="module")
def client(
    llama_server: Path, nano: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Client]:
    """The built-in model behind a real server, with the most precise cache."""
    launch = Launch(
        binary=llama_server,
        weights=nano,
        alias="nano",
        context=18432,
        pair=Pair("f16", "f16"),
        options=frozenset({"--jinja", "--verbosity", "--fit", "--cache-ram"}),
        threads=1,
        batch_threads=2,
        sleeps=True,
    )
    log = tmp_path_factory.mktemp("nano") / "server.log"
    with serving(launch, log=log) as served:
        yield served.client


@pytest.mark.real
def test_each_byte_is_a_token(client):
    """What the server counts in a text are its bytes."""
    text = "déjà vu\t# \n\n    x = '🧪'\n"

    assert len(text.encode()) == client.count_tokens(text, add_special=False)


@pytest.mark.real
@pytest.mark.parametrize("seed", UNSEEN_SEEDS)
def test_sixteen_thousand_tokens_are_recalled_all_but_perfectly(client, seed):
    """Of 20 lines at least 19.5 come back on average, at every depth."""
    corpus = text_of(Knobs(functions=16, seed=seed))
    asked = needles(corpus, k=3)

    matched = [
        score(
            needle,
            client.complete(
                Completion(
                    prompt=completion_prompt(corpus, needle),
                    max_tokens=len("\n".join(needle.lines)) + 1,
                )
            ).text,
        ).matched
        for needle in asked
    ]

    assert 15_500 < len(corpus) < 17_000
    assert sum(matched) / len(matched) >= 19.5, matched


@pytest.mark.real
def test_a_question_in_a_chat_is_answered_with_the_body(client):
    """The chat template makes a completion of the question; the answer is the body."""
    needle = needles(SMALL, k=3)[1]
    messages = chat_messages(SMALL, needle)

    rendered = client.render(messages)
    reply = client.chat(Chat(messages=messages, max_tokens=800))

    assert completion_prompt(SMALL, needle) == rendered
    assert 20 == score(needle, reply.text).matched


@pytest.mark.real
@pytest.mark.parametrize(
    ("question", "rendered"),
    [
        ("Say `f(x):` in `20` lines.", "a\n---\nb\n\n# recall\nf(x):\n"),
        (
            "These:\n```python\ndef f(\n    x,\n):\n```\nof `it`.",
            "a\n---\nb\n\n# recall\ndef f(\n    x,\n):\n",
        ),
        ("Nothing is quoted.", "a\n---\nb\n\n# recall\nNothing is quoted.\n"),
    ],
)
def test_what_a_question_quotes_is_recalled(client, question, rendered):
    """A fence or single backticks; the corpus ends at the last line of dashes."""
    message = Message("user", f"a\n---\nb\n---\n{question}")

    assert rendered == client.render((message,))


@pytest.mark.real
def test_a_message_without_a_corpus_is_gone_on_with(client):
    """Where no line of dashes ends a corpus, the message itself is the prompt."""
    assert "hello `x`" == client.render((Message("user", "hello `x`"),))
