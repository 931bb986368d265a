"""From the words of a command line to one request."""

import os
import re
from dataclasses import fields
from pathlib import Path

import pytest
import typer
from made_plans import EVERY_KEY
from msgspec import structs
from typer.main import get_command

from codeneedle.cli.app import gen_corpus
from codeneedle.cli.command_line import (
    SWEEP_WORDS,
    RunCommand,
    SweepCommand,
    TranscriptCommand,
)
from codeneedle.cli.engines import ENGINES
from codeneedle.cli.options import USAGE_ERROR, limits_with_defaults
from codeneedle.errors import BadInput, RequestError
from codeneedle.models.pretrained import NAMES, SMOLLM2
from codeneedle.probes import PROBES
from codeneedle.probes.prompts import PromptForm
from codeneedle.sweep.grid_shares import Share
from codeneedle.sweep.request import Execution, Request
from codeneedle.verdict.limits import Limits


@pytest.fixture
def parse(tmp_path, monkeypatch):
    """Parses a command line in a folder with a sweep file called mine."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CORPUS", raising=False)
    (tmp_path / "sweeps").mkdir()
    (tmp_path / "sweeps" / "mine.toml").write_text(EVERY_KEY, encoding="utf-8")

    def parsed(*words, env=None, execution=False):
        for name, value in (env or {}).items():
            monkeypatch.setenv(name, value)
        requests = []
        commands = typer.Typer(rich_markup_mode=None)

        @commands.command(cls=RunCommand)
        def caught(context: typer.Context):
            requests.append(context.obj)

        get_command(commands)(args=list(words), prog_name="x", standalone_mode=False)
        return requests.pop()[execution]

    return parsed


GIVEN = [
    ("--corpus other", "corpus", "other"),
    ("--model a.gguf", "models", ("a.gguf",)),
    ("--model ~/a.gguf", "models", ("~/a.gguf",)),
    ("--model needle-nano", "models", ("needle-nano",)),
    ("--k-types q4_0,f16", "k_types", ("q4_0", "f16")),
    ("--v-types q5_1", "v_types", ("q5_1",)),
    ("--probe divergence,recall,divergence", "probes", ("divergence", "recall")),
    ("--context 1024", "contexts", (1024,)),
    ("--rotation off", "rotation", ("off",)),
    ("--rotation off,on", "rotation", ("off", "on")),
    ("--prompt-form completion", "prompt_form", PromptForm.COMPLETION),
    ("--context 1024,512", "contexts", (1024, 512)),
    ("--prefill-no-think", "prefill_no_think", True),
    ("--no-prefill-no-think", "prefill_no_think", False),
    ("--fit", "fit", True),
    ("--kernels-only", "kernels_only", True),
    ("--no-fit", "fit", False),
    ("--seed 0", "seed", 0),
    ("-- -ngl 99", "server_args", ("-ngl", "99")),
]
"""Each option, the field of a request that it becomes, and its value there."""


@pytest.mark.parametrize(("words", "field", "value"), GIVEN)
def test_each_option_reaches_the_request_and_wins_over_a_sweep_file(
    parse, words, field, value
):
    stored = parse("mine")
    found = parse("mine", *words.split())

    assert Request(**{field: value}) == parse(*words.split())
    assert found == structs.replace(stored, **{field: value})


def test_what_belongs_to_one_command_is_no_part_of_the_request(parse):
    words = "--llama-server /opt/ls --out x --devices 0,1 --workers 2 --shard 1/2"
    found = parse(*words.split(), execution=True)

    assert Request() == parse(*words.split())
    assert {each.name for each in fields(found)} >= {"folder", "page"}
    assert found == Execution(
        llama_server=Path("/opt/ls"),
        out=Path("x"),
        devices=("0", "1"),
        workers=2,
        shard=Share(1, 2),
    )


def test_a_run_folder_is_gone_on_with_unless_another_is_chosen(parse, tmp_path):
    run = tmp_path / "sweeps" / "a" / "b"
    run.mkdir(parents=True)
    (run / "sweep.toml").write_text("corpus = 'tiny'\nseed = 9\n", encoding="utf-8")

    found = parse("sweeps/a/b", "--seed", "3")
    assert (Request(corpus="tiny", seed=3)) == found
    assert Path("sweeps/a/b") == parse("sweeps/a/b", execution=True).folder
    elsewhere = parse("sweeps/a/b", "--out", "other", execution=True)
    assert (None, Path("other")) == (elsewhere.folder, elsewhere.out)
    assert None is parse("./sweeps/mine.toml", execution=True).folder
    assert parse("mine") == parse("./sweeps/mine.toml")


def test_a_run_folder_that_decided_goes_on_deciding_unless_it_must_not(parse, tmp_path):
    run = tmp_path / "sweeps" / "a" / "b"
    run.mkdir(parents=True)
    text = "probes = ['divergence', 'recall']\ndecide = true\n"
    (run / "sweep.toml").write_text(text, encoding="utf-8")

    assert parse("sweeps/a/b", "--chunks", "3").decide
    assert not parse("sweeps/a/b", "--no-decide").decide
    assert parse("mine", "--decide").decide


@pytest.mark.parametrize(
    ("words", "probe", "field", "value"),
    [
        ("--divergence-context 512,1024", "divergence", "contexts", (512, 1024)),
        ("--chunks 4,2,4", "divergence", "chunks", (4, 2, 4)),
        ("--text /wiki.txt", "divergence", "file", Path("/wiki.txt")),
        ("--depths 0,512", "throughput", "depths", (0, 512)),
        ("--repetitions 5", "throughput", "repetitions", 5),
        ("--tasks single,nth", "retrieval", "tasks", ("single", "nth")),
        ("--lengths 512,1K", "retrieval", "lengths", (512, 1024)),
        ("--questions 9", "retrieval", "questions", 9),
        ("--dial multikey=3", "retrieval", "dial", ("multikey=3",)),
        ("--no-gate", "retrieval", "gate", False),
    ],
)
def test_each_option_of_a_probe_reaches_its_settings(parse, words, probe, field, value):
    stored = parse("mine").settings
    found = parse("mine", "--probe", probe, *words.split()).settings

    assert value == getattr(found[probe], field)
    before = stored.get(probe) or PROBES[probe].settings()
    kept = structs.replace(found[probe], **{field: getattr(before, field)})
    assert {**stored, probe: before} == {**found, probe: kept}


def test_an_option_of_two_probes_belongs_to_the_one_that_is_asked_for(parse, golden):
    """Depths are tokens of one and shares of a text of the other."""
    timed = parse("--probe", "throughput", "--depths", "512").settings
    found = parse("--probe", "retrieval", "--depths", "0.5,1").settings

    assert (512,) == timed["throughput"].depths
    assert (0.5, 1.0) == found["retrieval"].depths
    assert [1, 1] == [len(timed), len(found)]
    with pytest.raises(BadInput) as caught:
        parse("--probe", "retrieval,throughput", "--depths", "0")
    assert golden == str(caught.value)


@pytest.mark.parametrize(
    ("words", "option", "owner"),
    [
        ("--lengths 512", "--lengths", "--probe retrieval"),
        ("--no-gate --probe recall", "--gate", "--probe retrieval"),
        ("--depths 0", "--depths", "--probe throughput"),
        ("--kv-group-size 32", "--kv-group-size", "--engine mlx"),
        ("--url http://x/v1", "--url", "--engine endpoint"),
    ],
    ids=["lengths", "gate", "depths", "kv-group-size", "url"],
)
def test_an_option_of_what_is_not_asked_for_is_refused_with_its_owner(
    parse, words, option, owner, golden
):
    """It would be ignored; a sweep file may hold tables for later."""
    with pytest.raises(BadInput) as caught:
        parse(*words.split())

    assert option == caught.value.source
    assert golden == caught.value.reason
    assert f"Add {owner}, or leave " in caught.value.hint


def test_a_sweep_that_decides_takes_options_of_the_probes_that_it_adds(
    codeneedle, golden
):
    chosen = ("--probe", "divergence", "--functions", "0")
    done = codeneedle("plan", "--decide", *chosen)
    refused = codeneedle("plan", *chosen)

    assert golden == (done.stderr, refused.stderr)


@pytest.mark.parametrize(
    "words", ["-ngl 99", "--ngl 99", "--n-gpu-layers=99", "kv-grid -t 2 --seed 7"]
)
def test_arguments_of_llama_server_before_the_dashes_are_told_their_place(
    parse, words, golden
):
    with pytest.raises(BadInput) as caught:
        parse(*words.split())

    assert golden == str(caught.value)
    given = words.removeprefix("kv-grid ").removesuffix(" --seed 7")
    assert caught.value.hint.endswith(f"codeneedle sweep ... -- {given}")


@pytest.mark.parametrize(
    ("option", "ours"),
    [
        ("-ctk", "--types"),
        ("--ctk", "--types"),
        ("--cache-type-v=q8_0", "--types"),
        ("--ctx-size", "--context"),
        ("-m", "--model"),
        ("-fa", "always on"),
        ("--probes", "'--probe'"),
        ("--model-path", "'--model'"),
    ],
)
def test_an_option_that_is_not_ours_is_answered_with_the_one_that_is(
    parse, option, ours, golden
):
    with pytest.raises(BadInput) as caught:
        parse(option, "x")

    assert golden == str(caught.value)
    assert ours in caught.value.hint


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("decide", "codeneedle sweep --decide"),
        ("run", "codeneedle sweep"),
        ("verdict --max-los 3", "--max-los"),
        ("verdict --ctk 3", "codeneedle verdict --help"),
        ("sweeep", "'sweep'"),
    ],
)
def test_a_word_that_is_no_command_or_option_is_answered_with_one(
    codeneedle, words, told
):
    done = codeneedle(*words.split())

    assert (2, True) == (done.returncode, told in done.stderr), done.stderr
    assert "Possible options" not in done.stderr


def test_the_corpus_may_come_from_the_environment(parse):
    assert "http_server" == parse("mine", env={"CORPUS": "jquery"}).corpus
    assert "jquery" == parse(env={"CORPUS": "jquery"}).corpus
    assert "mine" == parse("--corpus", "mine", env={"CORPUS": "jquery"}).corpus
    assert None is parse(env={"CORPUS": ""}).corpus


def test_arguments_for_the_server_follow_a_sweep_or_stand_alone(parse):
    found = parse("mine", "--", "-ngl", "99", "--override-kv", "a=b,c")
    types = parse("--types", " q4_0, bf16,q4_0", "--v-types", "q8_0")

    assert ("-ngl", "99", "--override-kv", "a=b,c") == found.server_args
    assert ("http_server", 7, False) == (found.corpus, found.seed, found.fit)
    assert None is parse("--", "-ngl", "99").corpus
    assert parse("--seed", "8", "mine") == parse("mine", "--seed", "8")
    assert (("bf16", "q4_0"), ("q8_0",)) == (types.grid_k_types, types.grid_v_types)


def test_a_working_folder_that_was_deleted_is_said_to_be_gone(parse, tmp_path, golden):
    (tmp_path / "gone").mkdir()
    os.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()

    with pytest.raises(BadInput) as caught:
        parse("--seed", "7")
    assert golden == (str(caught.value), caught.value.hint)
    with pytest.raises(BadInput) as generating:
        gen_corpus()
    assert str(caught.value) == str(generating.value)


def _said(error):
    return getattr(error, "format_message", error.__str__)()


def _options():
    command = SweepCommand("x")
    return command.get_params(typer.Context(command))


@pytest.mark.parametrize(
    "words",
    [
        "--depths 0,many --probe throughput",
        "--depths 0.5 --probe throughput",
        "--depths -5 --probe throughput",
        "--divergence-context 4kb --probe divergence",
        "--divergence-context 0 --probe divergence",
        "--context 128",
        "--context many",
        "--chunks 0 --probe divergence",
        "--repetitions 0 --probe throughput",
        "--seed x",
        "--prompt-form chatty",
        "--no-such-option",
        "--dept 5",
        "--fit=yes",
        "corners price",
        "-- price",
    ],
)
def test_what_cannot_be_is_refused(parse, words):
    with pytest.raises((RequestError, USAGE_ERROR)) as caught:
        parse(*words.split())

    named = words.split()[0].partition("=")[0]
    assert named in _said(caught.value) or "price" in _said(caught.value)


@pytest.mark.parametrize(
    ("option", "text"),
    [
        (each.opts[0], text)
        for each in _options()
        if each.param_type_name == "option" and each.metavar
        for text in ["", " , "][: 1 + (each.metavar == "LIST")]
        if each.metavar != "N"
    ],
)
def test_an_empty_value_is_refused(parse, option, text):
    with pytest.raises(RequestError) as caught:
        parse(option, text)

    assert option in str(caught.value)


def test_every_flag_that_a_sweep_file_can_set_can_be_overruled():
    flags = {
        each.name: each.secondary_opts
        for each in _options()
        if getattr(each, "is_flag", False)
    }
    del flags["help"]

    own = {"prefill_no_think", "fit", "same", "kernels_only"}
    of_settings = {
        "retrieval__gate",
        "retrieval__reads",
        "command__evidence_by_memory",
    }
    assert own | of_settings == flags.keys()
    assert all(name.startswith("--no-") for [name] in flags.values())


def test_help_names_each_probe_and_engine(codeneedle):
    shown = " ".join(codeneedle("sweep", "--help").stdout.split()).replace("- ", "-")
    assert all(f"{p.name} ({p.purpose})" in shown for p in PROBES.values())
    assert f"{', '.join(ENGINES)}." in shown


@pytest.mark.parametrize("command", ["sweep", "plan"])
def test_help_has_every_option_in_the_group_that_it_belongs_to(codeneedle, command):
    shown = codeneedle(*command.split(), "--help").stdout

    groups = re.split(r"\n(?=\S[^\n]*:\n)", shown)
    by_title = {group.partition(":\n")[0]: group for group in groups}
    assert by_title["What to sweep"].split()[3] == "--model"
    assert "--lengths" in by_title["Retrieval (--probe retrieval)"]
    [others] = [title for title in by_title if "(--engine endpoint)" in title]
    assert "--url" in by_title[others]
    both = ("Throughput (--probe throughput)", "Retrieval (--probe retrieval)")
    texts = [by_title[title].partition("--depths")[2][:60] for title in both]
    assert len({*texts, ""}) == 3
    assert "goes to llama-server" in shown
    options = (name for each in _options() for name in each.opts if name[:2] == "--")
    assert [] == [name for name in options if f"{name} " not in shown.replace(",", " ")]


def test_help_and_shells_name_the_models(codeneedle):
    shown = " ".join(codeneedle("sweep", "--help").stdout.split()).replace("- ", "-")

    def completed(text):
        words = {"COMP_WORDS": f"codeneedle sweep --model {text}", "COMP_CWORD": "3"}
        done = codeneedle(_CODENEEDLE_COMPLETE="complete_bash", **words)
        return done.stdout.split()

    assert all(name in shown for name in NAMES)
    assert [*NAMES] == completed("")
    assert ["smollm2"] == completed("sm")
    assert [] == completed("x")


def test_a_model_by_name_is_a_path_in_the_cache(parse, golden):
    assert SMOLLM2.path == parse("--model", "smollm2").model
    with pytest.raises(RequestError) as caught:
        parse("--model", "smolm")
    assert golden == str(caught.value)


# What pairs are held against


@pytest.mark.parametrize(
    "command", ["sweep", "verdict x", "grid x", "table x", "heatmap x", "page x"]
)
@pytest.mark.parametrize("option", ["--max-loss", "--max-lost"])
def test_every_command_with_a_verdict_takes_its_limits(codeneedle, command, option):
    refused = codeneedle(*command.split(), option, "200")

    assert 2 == refused.returncode
    assert f"{option}: '200' is" in refused.stderr
    assert "a percentage between" in refused.stderr
    assert f"for example {option} 1%" in refused.stderr


def test_limits_are_those_that_were_given_and_defaults():
    assert Limits() == limits_with_defaults(None, None)
    assert Limits(max_loss=0.02, max_lost=0.2) == limits_with_defaults(0.02, 0.2)
    assert Limits(max_memory_bytes=7, at=9) == limits_with_defaults(
        None, None, None, 7, 9
    )
    assert Limits(at=9) == limits_with_defaults(None, None, at=9)


def test_plan_takes_every_argument_of_sweep():
    from codeneedle.cli.app import app

    commands = get_command(app).commands
    taken = {}
    for name in ("sweep", "plan"):
        context = typer.Context(commands[name])
        taken[name] = {f for p in commands[name].get_params(context) for f in p.opts}

    assert not taken["sweep"] - taken["plan"]


def test_the_sweep_of_a_transcript_is_asked_for_with_all_its_words(tmp_path):
    """What chooses the turns, the template or the cache was once left out."""
    given = ["--model", "m m.gguf", "--rotation", "off", "chat.jsonl"]
    given += ["--transcript-tokens", "99", "--prefill-no-think", "--engine", "mlx"]
    given += ["--", "--chat-template", "chat.jsonl"]
    kept = []
    commands = typer.Typer(rich_markup_mode=None)

    @commands.command(cls=TranscriptCommand)
    def caught(context: typer.Context):
        kept.append((context.obj, context.meta[SWEEP_WORDS]))

    get_command(commands)(args=[*given], prog_name="x", standalone_mode=False)
    ((asked, words),) = kept
    assert [*given[:4], "--transcript", *given[4:]] == words

    @commands.command(cls=SweepCommand)
    def swept(context: typer.Context):
        kept.append((context.obj, None))

    get_command(commands)(args=["swept", *words], prog_name="x", standalone_mode=False)
    assert asked == kept[-1][0]
