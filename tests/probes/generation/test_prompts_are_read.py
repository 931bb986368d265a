"""The prompts of the program, and those of a file."""

import json

import pytest

from codeneedle.errors import BadInput
from codeneedle.probes.generation.prompts import own_prompts, read_prompts
from codeneedle.probes.generation.record import OWN


def test_own_prompts_follow_from_the_seed_alone():
    first, again, other = own_prompts(42), own_prompts(42), own_prompts(7)

    assert first == again
    assert OWN == len({prompt.name for prompt in first}) == len(first)
    assert all(one.sha256 != two.sha256 for one, two in zip(first, other, strict=True))
    assert ["plan"] == [prompt.name for prompt in first if prompt.tools]


def in_file(folder, text):
    """A file with that *text*."""
    path = folder / "asked.txt"
    path.write_text(text, encoding="utf-8")
    return path


def test_each_line_of_text_is_a_prompt(tmp_path):
    path = in_file(tmp_path, "\ufeffFirst?\n\n  Second?  \n")

    _, prompts = read_prompts(path)

    assert ["First?", "Second?"] == [p.messages[0]["content"] for p in prompts]
    assert ["1", "2"] == [prompt.name for prompt in prompts]


def test_a_recorded_conversation_is_asked_up_to_its_last_question(tmp_path):
    said = [("system", "Be short."), ("user", "Why?"), ("assistant", "Because.")]
    messages = [{"role": role, "content": content} for role, content in said]
    path = in_file(tmp_path, json.dumps({"messages": messages}))

    _, (prompt,) = read_prompts(path)

    assert ["Be short.", "Why?"] == [each["content"] for each in prompt.messages]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no prompt"),
        ("\n \n", "no prompt"),
        ('{"messages": []}', "line 1"),
        (
            '{"messages": [{"role": "assistant", "content": "x"}]}',
            "no message of a user",
        ),
        ('{"prompt": "why?"}', "neither 'messages' nor"),
        ("[1, 2]", "no conversation"),
        ("{oh", "no JSON"),
    ],
)
def test_files_without_prompts_are_refused_with_the_forms(tmp_path, text, words):
    with pytest.raises(BadInput, match=words) as refused:
        read_prompts(in_file(tmp_path, text))

    assert "OpenAI" in str(refused.value.hint)


def test_a_file_that_is_not_there_is_named_by_its_option(tmp_path):
    with pytest.raises(BadInput, match=r"--prompts .*no such file"):
        read_prompts(tmp_path / "none.txt")
