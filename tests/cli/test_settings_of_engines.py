"""The registry of engines: what is offered, and whose settings are whose."""

import html
import json
import shlex
import subprocess
import sys
from importlib import resources
from pathlib import Path

import fake_command
import fake_openai
import pytest
from fake_command import options_of
from fake_engine import made_weights
from made_plans import CORPUS, made_world
from msgspec.structs import replace
from printing import printed
from programs import script
from typer.main import get_command

from codeneedle.cli.app import app
from codeneedle.cli.engines import ENGINES, prepare_engine_entry
from codeneedle.cli.sweep import make_plans
from codeneedle.engines.engine import ModelSpec
from codeneedle.engines.openai.settings import (
    CommandSettings,
    EndpointSettings,
    command_template,
)
from codeneedle.errors import BadInput, UnknownName, WeightsUnusable
from codeneedle.report.plan import plan_document
from codeneedle.sweep.request import Execution, Request, read_sweep
from codeneedle.system.commands import fill_placeholders


@pytest.fixture
def parse(monkeypatch, tmp_path):
    """Parses the options of a sweep; a sweep file called mine asks for an endpoint."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CORPUS", raising=False)
    (tmp_path / "sweeps").mkdir()
    (tmp_path / "sweeps" / "mine.toml").write_text(
        'engine = "endpoint"\n[endpoint]\nurl = "from-file"\n', encoding="utf-8"
    )

    def parsed(*args):
        command = get_command(app).commands["sweep"]
        return command.make_context("sweep", list(args)).obj[0]

    return parsed


@pytest.mark.parametrize(
    ("args", "url"),
    [
        (["mine"], "from-file"),
        (["mine", "--url", "given"], "given"),
        (["--engine", "endpoint", "--url", "given"], "given"),
    ],
)
def test_an_engine_has_a_table_in_sweep_files_and_options_of_its_own(parse, args, url):
    request = parse(*args)

    assert "endpoint" == request.engine
    assert {"endpoint": EndpointSettings(url=url)} == request.settings


def test_a_folder_of_mlx_is_told_the_engine_that_serves_it(tmp_path):
    (tmp_path / "config.json").write_text("{}")

    with pytest.raises(WeightsUnusable, match="is a folder") as caught:
        ENGINES["llama.cpp"].weights(tmp_path)

    assert "--engine mlx" in caught.value.hint


@pytest.mark.parametrize("models", [(), ("smollm2",), ("some/folder", "smollm2")])
def test_mlx_is_refused_a_model_that_is_no_folder_before_it_is_fetched(models):
    request = Request(engine="mlx", models=models)

    with pytest.raises(BadInput) as caught:
        ENGINES["mlx"].with_model_and_types(request)

    assert "--engine mlx" == caught.value.source


def test_the_settings_of_another_engine_are_refused(parse, golden):
    with pytest.raises(BadInput) as caught:
        prepare_engine_entry(parse("mine", "--engine", "mlx"), Execution())

    assert golden == str(caught.value)
    assert "--engine endpoint" in caught.value.hint


def test_an_engine_that_does_not_exist_is_refused_by_name():
    with pytest.raises(UnknownName, match="unknown engine 'llama'") as caught:
        prepare_engine_entry(Request(engine="llama"), Execution())

    assert "llama.cpp" in caught.value.hint


@pytest.mark.parametrize(
    ("placeholder", "k_types", "v_types"),
    [("k", ("f16", "q8_0"), ("f16",)), ("v", ("q4_0",), ("f16", "q8_0"))],
)
def test_a_command_may_fix_the_type_of_one_side(placeholder, k_types, v_types):
    template = f"{sys.executable} ${{port}} ${{{placeholder}}}"
    settings = CommandSettings(command=template, served_name="made")
    asked = Request(
        engine="command", k_types=k_types, v_types=v_types, command=settings
    )
    both = replace(asked, k_types=("f16", "q8_0"), v_types=("f16", "q4_0"))
    model = ModelSpec(weights=made_weights(), name="made")

    adapted = ENGINES["command"].with_model_and_types(asked)
    made = ENGINES["command"].engine_for(adapted, Execution())(model)

    assert made.cache_types().pairs is None
    assert not any("K = V" in note for note in made.notes())
    with pytest.raises(BadInput, match="one placeholder"):
        ENGINES["command"].with_model_and_types(both)


# Whole sweeps of servers that do not tell

FAKE = fake_openai.COMMAND
COMMAND = f"{FAKE} --port ${{port}} --k ${{k}} --v ${{v}} --context ${{context}}"
SHARED = (
    *("--corpus", "tiny", "--context", "4096", "--prompt-form", "completion"),
    *("--probe", "recall"),
)
RUN = "tiny/model"


@pytest.fixture
def swept(codeneedle, tmp_path):
    """Sweeps a command or an endpoint; the folder has a corpus called tiny."""
    (tmp_path / "corpora").mkdir()
    (tmp_path / "corpora" / "tiny.toml").write_text(CORPUS, encoding="utf-8")

    def run(engine, *args, **variables):
        return codeneedle("sweep", "--engine", engine, *SHARED, *args, **variables)

    return run


def started(*faults):
    """Options for the engine that starts the fake server."""
    words = " ".join(f"--fake {fault}" for fault in faults)
    asked = ("--command", f"{COMMAND} {words}", "--health", "/health")
    return *asked, "--served-name", fake_openai.MODEL, "--no-evidence-by-memory"


def test_a_server_that_ignores_the_cache_type_is_caught_and_marked_everywhere(
    swept, codeneedle, tmp_path
):
    done = swept("command", "--types", "f16,q8_0", *started("ignore-v"))

    assert 1 == done.returncode, done.stderr
    for command in ("grid", "table", "verdict"):
        shown = " ".join(codeneedle(command, RUN).stdout.split())
        assert "unverified" in shown, command
    assert "unverif." in codeneedle("grid", RUN).stdout
    assert "tells it from f16/f16" in codeneedle("table", RUN).stdout
    page = Path(codeneedle("page", RUN).stdout.strip())
    verdict = json.loads(codeneedle("verdict", RUN, "--json").stdout)
    assert "unverified" in (tmp_path / page).read_text(encoding="utf-8")
    assert verdict


def test_a_sweep_by_a_command_finishes_resumes_and_says_how_lengths_came_about(
    swept, codeneedle, golden
):
    args = ("--types", "f16,q8_0", *started())

    first, second = swept("command", *args), swept("command", *args)
    verdict = codeneedle("verdict", RUN).stdout

    assert (0, 0) == (first.returncode, second.returncode), first.stderr
    [line] = [x for x in second.stderr.splitlines() if "nothing to do" in x]
    assert golden == line
    assert "estimated from the" in " ".join(verdict.split())
    assert "server's own counts" in " ".join(verdict.split())
    paragraphs = codeneedle("table", RUN).stdout.split("\n\n")
    [note] = [x for x in paragraphs if "no lines forced" in x]
    assert golden == " ".join(note.split())


def test_a_server_that_echoes_a_prompt_is_asked_for_forced_recall(swept, codeneedle):
    done = swept("command", "--types", "f16,q8_0", "--way", "force", *started("echo"))

    assert 0 == done.returncode, done.stderr
    assert "right tokens lost" in codeneedle("grid", RUN).stdout


def test_lines_that_a_pair_was_asked_for_in_vain_have_their_reason_everywhere(
    swept, codeneedle, tmp_path
):
    """Of both ways one is there, so the cell has numbers."""
    fakes = tmp_path / "fakes.json"
    fakes.write_text(json.dumps({"f16": ["echo"], "q8_0": ["echo-refused=501"]}))
    pairs = ("--pairs", "f16/f16,q8_0/f16", "--way", "write,force", "--no-more")
    words = started()[1] + f" --fakes {fakes}"

    done = swept("command", *pairs, "--command", words, *started()[2:])

    assert 0 == done.returncode, done.stderr
    page = (tmp_path / codeneedle("page", RUN).stdout.strip()).read_text("utf-8")
    reports = {
        "the end of the sweep": done.stderr + done.stdout,
        "page": html.unescape(page),
        "show": codeneedle("show", RUN, "q8_0/f16").stdout,
        **{name: codeneedle(name, RUN).stdout for name in ("verdict", "grid", "table")},
        "json": codeneedle("verdict", RUN, "--json").stdout,
    }
    for name, text in reports.items():
        assert "o lines forced" in text, name
        assert "is not implemented" in text, name


def test_lines_are_read_by_one_request_where_a_server_echoes_prompts(swept, tmp_path):
    """Forced, each of the six functions has an answer and a request of its own."""
    told = {}
    for way in ("force", "read"):
        with fake_openai.endpoint("echo") as server:
            done = swept(
                "endpoint",
                *("--url", server.url, "--served-name", fake_openai.MODEL),
                *("--as", "f16/f16", "--way", way, "--out", way),
            )
        assert 0 == done.returncode, done.stderr
        (file,) = (tmp_path / way).rglob("*.recall.json")
        answers = json.loads(file.read_text(encoding="utf-8"))["observation"]["answers"]
        echoes = sum(bool(body.get("echo")) for body in server.bodies)
        told[way] = (len(answers), echoes, {key.partition(" ")[0] for key in answers})

    assert {"force": (6, 6, {"forced"}), "read": (1, 1, {"read"})} == told


def test_every_pair_of_a_command_is_read_by_its_own_server(swept, codeneedle, golden):
    asked = ("--types", "f16,q8_0", "--way", "read")
    done = swept("command", *asked, *started("echo"))
    again = swept("command", *asked, *started("echo"))

    assert (0, 0) == (done.returncode, again.returncode), done.stderr
    [line] = [x for x in again.stderr.splitlines() if "nothing to do" in x]
    assert golden == line
    assert "right tokens lost" in codeneedle("grid", RUN).stdout


def test_forced_recall_of_chats_is_refused_before_anything_starts(
    swept, codeneedle, golden
):
    """With what works; without a choice, the plan promises written lines alone."""
    chats = ("--prompt-form", "chat", "--types", "f16,q8_0", *started("die=3"))

    refused = swept("command", *chats, "--way", "force")
    plan = codeneedle("plan", "--engine", "command", *SHARED, *chats)

    assert (2, False) == (refused.returncode, "exit code 3" in refused.stderr)
    assert golden == refused.stderr.splitlines()[-2:]
    (recall,) = (line for line in plan.stdout.splitlines() if line[:6] == "recall")
    assert "written" in recall
    assert "forced" not in recall


def test_a_server_that_does_not_echo_is_no_crash(swept, tmp_path):
    with fake_openai.endpoint() as server:
        done = swept(
            "endpoint",
            *("--url", server.url, "--served-name", fake_openai.MODEL),
            *("--as", "f16/f16", "--way", "force"),
        )

    (file,) = tmp_path.rglob("*.recall.json")
    stored = json.loads(file.read_text(encoding="utf-8"))
    assert (1, "unsupported") == (done.returncode, stored["status"])
    assert "without an echo" in stored["reason"]
    assert "--way write" in stored["reason"]
    assert 1 == sum("echo" in body for body in server.bodies)


def test_cells_of_endpoints_come_one_after_the_other(swept, codeneedle, tmp_path):
    for pair in ("f16/f16", "q8_0/q4_0"):
        faults = ("wants=sk-secret-1", "says-key")
        with fake_openai.endpoint(*faults, types=pair) as server:
            done = swept(
                "endpoint",
                *("--url", server.url, "--served-name", fake_openai.MODEL),
                *("--as", pair, "--api-key-env", "MY_KEY"),
                MY_KEY="sk-secret-1",
            )
        assert 0 == done.returncode, done.stderr

    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert 2 == sum(file.name.endswith(".recall.json") for file in files)
    assert not any(b"sk-secret-1" in file.read_bytes() for file in files)


RECIPES = (
    *("vllm", "sglang", "ik-llama", "ollama", "tabbyapi", "mlx-server", "koboldcpp"),
)
BY_SHELL = ("mlx-server", "koboldcpp")
SHIPPED = resources.files("codeneedle").joinpath("sweep", "files").iterdir()
OTHERS = ("lm-studio", "mlx-niah", "mlx-split")
OWN = sorted({f.name[:-5] for f in SHIPPED} - {*RECIPES, *OTHERS})
"""Sweep files that come with the program, for llama.cpp."""


@pytest.mark.parametrize("engine", ["mlx", "command", "endpoint"])
def test_a_llama_server_is_refused_where_it_would_not_be_used(engine):
    chosen = Execution(llama_server=Path("/bin/true"))

    with pytest.raises(BadInput, match="starts no llama-server"):
        prepare_engine_entry(Request(engine=engine), chosen)


@pytest.mark.parametrize(
    ("name", "k", "expected"),
    [
        ("mlx-server", "f16", "--quantized-kv-start 0"),
        ("mlx-server", "4", "--quantized-kv-start 0 --kv-bits=4"),
        ("koboldcpp", "f16", "--flashattention --quantkv 0"),
        ("koboldcpp", "q4_0", "--flashattention --quantkv 2"),
    ],
)
def test_a_recipe_by_a_shell_starts_its_program_with_the_type(
    name, k, expected, tmp_path, monkeypatch
):
    for program in ("mlx_lm.server", "koboldcpp"):
        script(tmp_path / program, 'printf "%s\\n" "$@"')
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    template = command_template(
        read_sweep(name).settings_by_name("command", CommandSettings)
    )
    values = {"k": k, "model": "/a b/m", "port": 8123, "context": 4096}
    argv = [fill_placeholders(word, values) for word in template.words]
    told = subprocess.run(argv, capture_output=True, text=True, check=True).stdout

    assert told.strip().replace("\n", " ").endswith(expected)
    assert {"/a b/m", "8123", "127.0.0.1"} <= set(told.splitlines())


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_ship_and_can_be_planned(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CORPUS", raising=False)
    made_world(tmp_path, monkeypatch)
    for program in ("vllm", "llama-server", "ollama", "python3"):
        script(tmp_path / "bin" / program, "echo version 1")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    needs_model = name not in {"ollama", "tabbyapi"}
    of_file = name in {"ik-llama", "koboldcpp"}
    args = ["--model", "model.gguf" if of_file else "org/model"]
    command = get_command(app).commands["sweep"]
    # As much as the weights of the test were trained for.
    words = [name, "--corpus", "tiny", "--context", "8192"]
    words += args if needs_model else []
    request, execution, _ = command.make_context("sweep", words).obj

    (plan,) = make_plans(request, execution)

    is_free = name in {"ik-llama", "tabbyapi"}
    types = len(request.grid_k_types)
    assert types * (types if is_free else 1) == len(plan.pairs)
    if name not in BY_SHELL:
        assert "version 1" == plan.engine.identity().version
    assert plan.engine.name in printed(plan_document(plan))
    notes = resources.files("codeneedle").joinpath("sweep", "files", f"{name}.toml")
    assert "to go wrong" in notes.read_text()


@pytest.fixture
def engine_programs(tmp_path, monkeypatch):
    """A folder for each recipe, with a program that takes its engine's options."""
    programs = {}
    for name in RECIPES:
        known = options_of(name)
        words = shlex.join([sys.executable, fake_command.__file__, name])
        folder = tmp_path / "programs" / name
        script(folder / known["program"], f'exec {words} "$@"')
        programs[name] = folder
    (tmp_path / "main.py").touch()
    monkeypatch.chdir(tmp_path)
    return programs


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_runs_with_the_options_that_its_engine_has(
    name, swept, codeneedle, engine_programs, nano, tmp_path
):
    path = f"{engine_programs[name]}:/usr/bin:/bin"
    model = ["--model", "org/model"] * (name in {"vllm", "sglang", "mlx-server"})
    if name in {"ik-llama", "koboldcpp"}:
        model = ["--model", str(nano)]
    asked = ("--corpus", "tiny", "--context", "4096", "--probe", "recall", *model)
    types = read_sweep(name).types[:2]

    done = codeneedle("sweep", name, *asked, "--types", ",".join(types), PATH=path)

    records = [json.loads(f.read_text()) for f in tmp_path.rglob("*.recall.json")]
    assert 0 == done.returncode, done.stderr
    assert {"finished"} == {record["status"] for record in records}
    echoes = "echo" in options_of(name)["serves"].get("faults", ())
    answers = [a for r in records for a in r["observation"]["answers"].items()]
    forced = [answer for key, answer in answers if not key.startswith("written")]
    assert echoes == bool([a for a in forced if not a.get("error")])


def test_a_recipe_with_an_option_that_its_engine_lacks_would_fail():
    """Of ik_llama.cpp before the first fix: the option had a value since 2025-11."""
    words = ["--model", "m", "--flash-attn", "--cache-type-k", "f16"]

    for name, refused in (
        ("ik-llama", words),
        ("vllm", ["serve", "m", "--ctk", "f16"]),
    ):
        with pytest.raises(SystemExit) as caught:
            fake_command.given(options_of(name), refused)
        assert "error: " in str(caught.value)


@pytest.mark.real
@pytest.mark.parametrize("name", OWN)
def test_a_sweep_file_of_llama_cpp_is_one_that_its_programs_take(
    name, codeneedle, nano, llama_server
):
    """llama-fit-params is asked about each pair with the arguments of the sweep."""
    asked = ("--model", str(nano), "--context", "8192", "--fit", "--json")
    done = codeneedle("plan", name, *asked, LLAMA_SERVER=str(llama_server))

    assert 0 == done.returncode, done.stderr
    assert json.loads(done.stdout)
