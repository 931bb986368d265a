"""The ask command: reading a prompt, and answers of the real llama-server."""

import pytest
from programs import server

from codeneedle.cli.ask import read_prompt
from codeneedle.errors import BadInput
from codeneedle.system.files import cache_folder

PROMPT = """\
def alpha(count):
    zebra = 'hjkqwz'
    return 93

def beta(value):
    quokka = 'plmokn'
    return 17

# recall
def beta(value):
"""


@pytest.mark.parametrize("content", [None, b"", b" \n", b"x" * (16 << 20) + b"x"])
def test_a_file_without_a_prompt_is_refused(tmp_path, content):
    file = tmp_path / "prompt.txt"
    if content is not None:
        file.write_bytes(content)

    with pytest.raises(BadInput) as caught:
        read_prompt(file)

    assert "prompt" in caught.value.hint


def test_a_pair_that_fails_says_why_and_costs_no_other(
    codeneedle, tmp_path, nano, golden
):
    prompt = tmp_path / "prompt.txt"
    prompt.write_text(PROMPT)
    binary = server(tmp_path, {"q8_0-q8_0": ["die=3"]})
    asked = ("ask", "f16/f16,q8_0/q8_0,q4_0/q4_0", str(prompt), "--context", "1K")

    done = codeneedle(*asked, "--llama-server", str(binary))

    assert 1 == done.returncode, done.stderr
    assert "line 0\nline 1\n" in done.stdout
    [line] = [x for x in done.stdout.splitlines() if "crashed" in x]
    assert golden == line
    assert "q4_0/q4_0\n\nthe same as f16/f16" in done.stdout


@pytest.mark.real
def test_a_prompt_is_answered_by_each_pair_and_leaves_nothing(codeneedle, tmp_path):
    """A type that the server has not is refused before any is started."""
    prompt = tmp_path / "prompt.txt"
    prompt.write_text(PROMPT)
    asked = ("ask", "f16/f16,q8_0/q8_0", str(prompt), "--context", "1K")
    before = {*tmp_path.rglob("*")}
    logs = {*cache_folder().glob("asking/*")}  # of others that failed

    done = codeneedle(*asked, "--tokens", "40")
    refused = codeneedle("ask", "f16/f16,q9_0/f16", str(prompt))

    assert 0 == done.returncode, done.stderr
    assert "quokka = 'plmokn'" in done.stdout
    assert "the same as f16/f16" in done.stdout
    assert 2 == refused.returncode
    assert before == {*tmp_path.rglob("*")}
    assert not {*cache_folder().glob("asking/*")} - logs


def test_a_prompt_on_stdin_is_read(monkeypatch, tmp_path):
    (tmp_path / "said").write_text("hello")
    with (tmp_path / "said").open() as stdin:
        monkeypatch.setattr("sys.stdin", stdin)

        assert "hello" == read_prompt(type(tmp_path)("-"))
