"""Commands with placeholders: their words, their program, their variables."""

import pytest

from codeneedle.errors import BadInput, ToolMissing
from codeneedle.system.commands import (
    fill_placeholders,
    parse_command_words,
    placeholders,
    refuse_unset_variable,
    require_program,
)


def words(command):
    return parse_command_words(
        command, option="--eval", known=("model", "out"), hint="Export it."
    )


def test_a_command_is_split_as_a_shell_would_without_one():
    found = words("sh -c 'echo $HOME; echo ${out}' ${model}")

    assert ("sh", "-c", "echo $HOME; echo ${out}", "${model}") == found
    assert ["out", "model"] == placeholders(found)
    assert "echo $HOME; echo 1 2" == fill_placeholders(found[2], {"out": "1 2"})
    assert "${model}" == fill_placeholders(found[3], {"out": "a b"})


@pytest.mark.parametrize(
    "command",
    [
        pytest.param("sh 'x", id="quote"),
        pytest.param("  ", id="empty"),
        pytest.param("sh ${key}", id="unknown"),
        pytest.param("sh ${modell}", id="mistyped"),
        pytest.param("sh ${}", id="nameless"),
        pytest.param("sh --api-key abc1234", id="secret"),
    ],
)
def test_a_command_that_cannot_run_is_refused_with_its_option(command, golden):
    with pytest.raises(BadInput) as caught:
        words(command)

    assert golden == (str(caught.value), caught.value.hint)
    assert "abc1234" not in f"{caught.value}{caught.value.hint}"


@pytest.mark.parametrize("name", ["no-such-program", ""], ids=["unknown", "empty"])
def test_a_program_that_is_not_there_is_named_with_its_option(name, golden):
    assert require_program("sh", option="--eval").startswith("/")
    with pytest.raises(ToolMissing) as caught:
        require_program(name, option="--eval")
    assert golden == str(caught.value)


def test_variables_are_passed_on_by_names_that_are_set(monkeypatch):
    monkeypatch.setenv("MINE", "1")
    monkeypatch.delenv("NOT_MINE", raising=False)
    refuse_unset_variable("MINE", option="--eval-env")

    for name in ("NOT_MINE", "MINE=1"):
        with pytest.raises(BadInput, match=f"--eval-env {name}"):
            refuse_unset_variable(name, option="--eval-env")
