"""The prompts of the program, and those of a file."""

import hashlib
import json

import pytest

from codeneedle.errors import BadInput
from codeneedle.probes.generation.prompts import (
    make_built_in_prompts,
    read_hash_and_prompts,
)
from codeneedle.probes.generation.record import OWN, WORDING


def test_own_prompts_follow_from_the_seed_alone():
    first, again, other = (
        make_built_in_prompts(42),
        make_built_in_prompts(42),
        make_built_in_prompts(7),
    )

    assert first == again
    assert OWN == len({prompt.name for prompt in first}) == len(first)
    assert all(one.sha256 != two.sha256 for one, two in zip(first, other, strict=True))
    assert ["plan"] == [prompt.name for prompt in first if prompt.tools]


def test_the_bytes_of_own_prompts_are_pinned():
    """Who changes one raises the version that setups hold."""
    every = (
        prompt.sha256 for seed in range(200) for prompt in make_built_in_prompts(seed)
    )
    digest = hashlib.sha256("".join(every).encode()).hexdigest()

    assert (2, "932d5a12f9418acf") == (WORDING, digest[:16])


def test_errors_name_the_file_of_a_prompt_or_the_probe_that_it_comes_with(tmp_path):
    path = in_file(tmp_path, "First?\nSecond?")
    _, (_, second) = read_hash_and_prompts(path)

    assert (f"--prompts {path}, prompt 2", False) == (
        second.error_source,
        second.is_built_in_prompt,
    )
    first, *_ = make_built_in_prompts(42)
    assert (f"--probe generation, prompt {first.name}", True) == (
        first.error_source,
        first.is_built_in_prompt,
    )


def test_a_prompt_has_one_hash_whatever_the_order_of_its_keys(tmp_path):
    keys = [("role", "user"), ("content", "Why?")]
    hashes = {
        read_hash_and_prompts(
            in_file(tmp_path, json.dumps({"messages": [dict(said)]}))
        )[1][0].sha256
        for said in (keys, keys[::-1])
    }

    assert 1 == len(hashes)


def test_conversations_are_numbered_from_one_and_need_no_answer(tmp_path):
    lines = [
        json.dumps({"messages": [{"role": "user", "content": each}]})
        for each in ("First?", "Second?")
    ]
    _, prompts = read_hash_and_prompts(in_file(tmp_path, "\n".join(lines)))

    assert [("1", "First?"), ("2", "Second?")] == [
        (prompt.name, prompt.messages[0]["content"]) for prompt in prompts
    ]


def test_a_line_that_is_not_utf_8_is_named(tmp_path):
    path = tmp_path / "asked.txt"
    path.write_bytes(b"First?\nSecond?\nThird \xff?\n")

    with pytest.raises(BadInput, match="it is not UTF-8") as no:
        read_hash_and_prompts(path)
    assert "line 3" in str(no.value)


@pytest.mark.parametrize(("count", "is_refused"), [(1000, False), (1001, True)])
def test_a_thousand_prompts_are_the_most(tmp_path, count, is_refused, golden):
    path = in_file(tmp_path, "Why?\n" * count)

    if is_refused:
        with pytest.raises(BadInput) as caught:
            read_hash_and_prompts(path)
        assert golden == str(caught.value)
    else:
        assert count == len(read_hash_and_prompts(path)[1])


def in_file(folder, text):
    """A file with that *text*."""
    path = folder / "asked.txt"
    path.write_text(text, encoding="utf-8")
    return path


def test_each_line_of_text_is_a_prompt(tmp_path):
    path = in_file(tmp_path, "\ufeffFirst?\n\n  Second?  \n")

    _, prompts = read_hash_and_prompts(path)

    assert ["First?", "Second?"] == [p.messages[0]["content"] for p in prompts]
    assert ["1", "2"] == [prompt.name for prompt in prompts]


def test_a_recorded_conversation_is_asked_up_to_its_last_question(tmp_path):
    said = [("system", "Be short."), ("user", "Why?"), ("assistant", "Because.")]
    messages = [{"role": role, "content": content} for role, content in said]
    path = in_file(tmp_path, json.dumps({"messages": messages}))

    _, (prompt,) = read_hash_and_prompts(path)

    assert ["Be short.", "Why?"] == [each["content"] for each in prompt.messages]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="empty"),
        pytest.param("\n \n", id="blank"),
        pytest.param('{"messages": []}', id="no-message"),
        pytest.param(
            '{"messages": [{"role": "assistant", "content": "x"}]}', id="no-user"
        ),
        pytest.param('{"prompt": "why?"}', id="other-keys"),
        pytest.param("[1, 2]", id="numbers"),
        pytest.param("{oh", id="no-json"),
    ],
)
def test_files_without_prompts_are_refused_with_the_forms(tmp_path, text, golden):
    with pytest.raises(BadInput) as refused:
        read_hash_and_prompts(in_file(tmp_path, text))

    said, *_ = str(refused.value).partition(": Expecting")  # what Python says of it
    assert golden == said
    assert "OpenAI" in str(refused.value.hint)


def test_a_file_that_is_not_there_is_named_by_its_option(tmp_path):
    with pytest.raises(BadInput, match=r"--prompts .*no such file"):
        read_hash_and_prompts(tmp_path / "none.txt")
