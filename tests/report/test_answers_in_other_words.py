"""The answer of a verdict as a command, variables, a preset, JSON and a badge."""

import configparser
import shlex
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest
from made_losses import BEYOND, WITHIN, losing_run
from made_stores import hugging_face, ollama

from codeneedle.cache_types import ENGINE, Pair
from codeneedle.cli.engines import find_launch_words
from codeneedle.engines.llama_cpp.launching import launcher_lines
from codeneedle.engines.mlx import launching as mlx_launching
from codeneedle.errors import NothingToShow
from codeneedle.models.pretrained import BUILT_IN
from codeneedle.report.answer import (
    answer_badge_svg,
    answer_lines,
    answer_object,
    answer_or_refuse,
)
from codeneedle.verdict.judge import judge
from codeneedle.verdict.limits import Limits

MLX = "mlx_lm.server --model org/m"
SET = {"q8_0/q8_0": WITHIN, "q8_0/q4_0": WITHIN, "q4_0/q4_0": BEYOND}


def answered(
    losses=None, model="/models/m.gguf", arguments=(), rotation=True, **weights
):
    """The answer of a run that was asked for *model*."""
    run = losing_run(losses or SET)
    setup = replace(run.setup, server_args=tuple(arguments), rotation=rotation)
    setup = replace(setup, weights=replace(setup.weights, **weights))
    run = replace(run, setup=setup, sweep=f"models = ['{model}']\n" if model else "")
    return answer_or_refuse(judge(run, Limits()))


def lines(form, *answers):
    return answer_lines(answers or [answered()], form, find_launch_words)


def test_the_command_starts_the_model_with_the_pair_and_what_was_measured_with():
    (_, command, *_) = lines("command", answered(arguments=("-ngl", "99")))

    expected = "llama-server --model /models/m.gguf -ctk q8_0 -ctv q4_0 -fa on -ngl 99"
    assert expected == command


def test_every_line_that_is_no_command_is_a_comment():
    for form in ("command", "env"):
        rest = [line for line in lines(form) if not line.startswith("#")]
        assert all("q8_0" in line or "q4_0" in line or "=on" in line for line in rest)
    assert lines("preset")[0].startswith("; q8_0/q4_0 loses")


@pytest.mark.parametrize("form", ["command", "env", "preset"])
def test_a_cache_that_was_not_rotated_is_started_without_rotation(form):
    needed = "LLAMA_ATTN_ROT_DISABLE=1"

    assert needed in "\n".join(lines(form, answered(rotation=False)))
    assert needed not in "\n".join(lines(form))


def test_json_has_the_variables_that_the_form_of_variables_has():
    answer = answered(rotation=False)
    told = [line for line in lines("env", answer) if line[0] != "#"]

    stated = answer_object(answer, find_launch_words(ENGINE)).environment
    assert told == [f"{name}={value}" for name, value in stated.items()]
    assert "1" == stated["LLAMA_ATTN_ROT_DISABLE"]


def test_variables_name_the_arguments_that_they_do_not_hold(golden):
    given = ("-ngl", "99", "--chat-template-file", "/t p.jinja")
    [told] = [e for e in lines("env", answered(arguments=given)) if "arguments" in e]

    assert told.startswith("# ")
    assert shlex.join(given) in told
    assert golden == told
    assert "arguments" not in "\n".join(lines("env"))


@pytest.mark.parametrize("pair", ["kv8/kv8", "f16/f16"])
@pytest.mark.parametrize("lacking", ["--rope-factor 4", "--max-kv-size 64"])
def test_mlx_is_given_no_command_that_leaves_out_what_was_measured(pair, lacking):
    """Stretched positions and a bounded cache are options of the engine alone."""
    asked = (Pair.parse(pair), "org/m", ("--kv-group-size 64", lacking))
    (told,) = mlx_launching.mlx_lm_command_lines(*asked)

    assert told.startswith("# ")
    assert lacking in told
    assert [] == mlx_launching.mlx_lm_arguments_or_empty(*asked)


def test_mlx_is_given_options_of_quantized_caches_with_these_alone():
    given = ("--kv-group-size 64", "--quantized-kv-start 0")

    def words(pair):
        found = mlx_launching.mlx_lm_arguments_or_empty(Pair.parse(pair), "m", given)
        return " ".join(found)

    assert "--model m" == words("f16/f16")
    assert f"--model m --kv-bits 8 {' '.join(given)}" == words("kv8/kv8")


def test_variables_are_those_of_llama_server():
    told = dict(line.split("=") for line in lines("env") if line[0] != "#")

    assert {
        "LLAMA_ARG_CACHE_TYPE_K": "q8_0",
        "LLAMA_ARG_CACHE_TYPE_V": "q4_0",
        "LLAMA_ARG_FLASH_ATTN": "on",
    } == told


@pytest.mark.parametrize(
    ("model", "source"),
    [
        ("/models/m.gguf", ("model", "/models/m.gguf")),
        ("org/repo:Q4_K_M", ("hf-repo", "org/repo:Q4_K_M")),
        ("", ("model", "made-model")),
    ],
)
def test_a_preset_is_a_section_with_the_options_by_their_long_names(model, source):
    answer = answered(model=model, arguments=("-ngl", "99", "--swa-full"))
    preset = configparser.ConfigParser(interpolation=None)
    preset.read_string("\n".join(lines("preset", answer)))

    assert {
        source[0]: source[1],
        "cache-type-k": "q8_0",
        "cache-type-v": "q4_0",
        "flash-attn": "on",
        "ngl": "99",
        "swa-full": "true",
    } == dict(preset["made-model"])


def test_a_model_of_a_store_is_started_by_what_llama_server_takes(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "ollama"))
    hugging_face(tmp_path / "hub", "org/repo", "m-Q8_0.gguf")
    ollama(tmp_path / "ollama", "registry.ollama.ai/library/m/3b")
    (blob,) = (tmp_path / "ollama/blobs").iterdir()

    hub, kept = (answered(model=each) for each in ("org/repo:Q8_0", "m:3b"))
    assert "--hf-repo org/repo:Q8_0" in lines("command", hub)[1]
    assert f"--model {blob}" in lines("command", kept)[1]


def test_a_model_below_the_home_folder_is_named_by_its_path(monkeypatch):
    """Quoted for a shell, ~ is a folder of that name."""
    monkeypatch.setenv("HOME", "/home/me")

    (told,) = [e for e in lines("command", answered(model="~/m.gguf")) if e[0] != "#"]

    assert "/home/me/m.gguf" in shlex.split(told)


@pytest.mark.parametrize(
    ("pair", "expected"),
    [
        ("q8_0/q8_0", (True, True, True)),
        ("f16/f16", (True, True, True)),
        ("q8_0/q4_0", (False, True, False)),
        ("q5_1/q5_1", (False, True, False)),
        ("bf16/bf16", (False, False, False)),
        ("turbo4/turbo4", (False, False, False)),
    ],
)
def test_launchers_are_told_where_they_have_a_word_for_the_pair(pair, expected):
    told = launcher_lines(Pair.parse(pair))

    assert expected == tuple(" no K " not in line for line in told)


def test_json_has_the_pair_its_loss_and_what_it_was_measured_on():
    answer = answered()
    told = answer_object(answer, find_launch_words(ENGINE))
    (row,) = answer.result_unless_reference.metric_results

    assert ("q8_0", "q4_0", False) == (told.k, told.v, told.is_kept)
    assert (row.bounds.mean, row.bounds.high) == (told.loss, told.at_most)
    assert (16, "functions", "recall-logp") == (told.units, told.noun, told.metric)
    assert ["-ctk", "q8_0", "-ctv", "q4_0"] == told.arguments[2:6]
    assert {"model", "context", "machine", "date"} <= set(told.facts)


def test_a_badge_tells_pair_loss_and_bound_without_a_font_of_its_own():
    text = answer_badge_svg(answered())
    svg = ET.fromstring(text)  # noqa: S314 - our own
    shown = [each.text for each in svg.iter() if each.tag.endswith("text")]

    assert ["KV cache", shown[1]] == shown
    assert shown[1].startswith("q8_0/q4_0 loses ")
    assert "at most" in shown[1]
    assert "font-face" not in text
    assert all("textLength" in e.attrib for e in svg.iter() if e.tag.endswith("text"))


def test_where_nothing_smaller_is_within_the_reference_is_the_answer():
    answer = answered({"q8_0/q8_0": BEYOND, "q4_0/q4_0": BEYOND})

    assert answer_object(answer, None).is_kept
    assert "-ctk bf16 -ctv bf16" in lines("command", answer)[1]
    assert "keep bf16/bf16" in answer_badge_svg(answer)


def test_where_there_is_no_answer_nothing_is_told_to_be_started(golden):
    with pytest.raises(NothingToShow) as caught:
        answered({"q8_0/q8_0": [None] * 16})
    assert golden == str(caught.value)
    with pytest.raises(NothingToShow, match="built in"):
        answered(name=BUILT_IN)


def test_an_engine_without_words_is_told_and_has_json_and_a_badge():
    answer = answered()
    run = answer.run
    mlx = replace(run, setup=replace(run.setup, engine="endpoint"))
    other = answer_or_refuse(judge(mlx, Limits()))

    with pytest.raises(NothingToShow, match="endpoint"):
        lines("command", other)
    assert [] == answer_object(other, find_launch_words("endpoint")).arguments
    assert "q8_0/q4_0" in answer_badge_svg(other)


@pytest.mark.parametrize(
    ("pair", "options"),
    [
        ("f16/f16", ""),
        ("kv8/kv8", " --kv-bits 8 --kv-group-size 32 --quantized-kv-start 0"),
        ("kv8/kv4", None),
    ],
    ids=["as it is", "of one width", "of two widths"],
)
def test_mlx_is_told_by_the_options_of_its_server(pair, options, golden):
    given = ("--kv-group-size 32", "--quantized-kv-start 0", "--compute model")
    told = mlx_launching.mlx_lm_command_lines(Pair.parse(pair), "org/m", given)

    if options is None:
        assert golden == told
    else:
        assert [MLX + options] == told
    assert ("command",) == find_launch_words("mlx").forms


def test_several_runs_are_several_sections():
    told = "\n".join(lines("preset", answered(), answered(name="other")))
    preset = configparser.ConfigParser(interpolation=None)
    preset.read_string(told)

    assert ["made-model", "other"] == preset.sections()


@pytest.mark.parametrize(
    ("model", "arguments", "said"),
    [
        ("/m/c#/m.gguf", (), "--model /m/c#/m.gguf"),
        ("/m/a;b.gguf", (), "a;b"),
        ("/m.gguf", ("--lora", "a.gguf", "--lora", "b.gguf"), "--lora more than once"),
        ("/m.gguf", ("--control-vector-layer-range", "1", "5"), "layer-range 1 5"),
        ("/m.gguf", ("--alias", " b"), "--alias"),
    ],
)
def test_what_a_preset_cannot_hold_is_said_and_not_cut(model, arguments, said):
    """Behind ; or # stands a comment, and of two settings of a name one counts."""
    with pytest.raises(NothingToShow, match="cannot say") as caught:
        lines("preset", answered(model=model, arguments=arguments))

    assert said in str(caught.value)
    assert "--form command" in caught.value.hint


def test_a_name_with_brackets_makes_one_section():
    run = losing_run(SET)
    weights = replace(run.setup.weights, name="m[1]")
    answer = answer_or_refuse(
        judge(replace(run, setup=replace(run.setup, weights=weights)), Limits())
    )

    assert "[m(1)]" == lines("preset", answer)[1]


@pytest.mark.parametrize("form", ["command", "env"])
def test_names_from_elsewhere_stay_on_their_line_and_in_their_word(form):
    model = "/m/a; rm -rf b\\nreal = 1 $(x)\\u001b[2J.gguf"
    run = replace(losing_run(SET), sweep=f'models = ["{model}"]\n')
    told = lines(form, answer_or_refuse(judge(run, Limits())))

    assert not any(set(line) & {"\n", "\x1b"} for line in told)
    assert len(lines(form)) == len(told)
    if form == "command":
        assert ["-ctk", "q8_0"] == shlex.split(told[1])[3:5]
