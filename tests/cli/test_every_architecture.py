"""Commands on each kind of model that llama.cpp has, by the real program."""

import json

import pytest
import zoo
from calls import called

pytestmark = pytest.mark.real

SMALL = ("--probe", "divergence", "--divergence-context", "128", "--chunks", "2")


@pytest.fixture
def run(llama_server, tmp_path, monkeypatch):
    """What ``codeneedle COMMAND`` says of a model of the zoo."""
    monkeypatch.setenv("CODENEEDLE_CACHE", str(tmp_path / "cache"))

    def run(command, name, *words):
        path = zoo.write(name, tmp_path)
        where = ("--model", path, "--llama-server", llama_server)
        return called(tmp_path, command, *where, *words)

    return run


def planned(run, name, *words):
    """The plan of a grid of two types, as data."""
    told = run("plan", name, "--types", "f16,q8_0", "--json", *words)
    (plan,) = json.loads(told.stdout)
    return plan


@pytest.mark.parametrize("name", ["mamba2", "bert"])
def test_a_model_without_a_cache_is_refused_from_the_plan_on(
    run, tmp_path, name, golden
):
    refused = [run(command, name) for command in ("plan", "kernels", "sweep")]
    found = json.loads(run("doctor", name, "--json").stdout)
    stopping = [each["what"] for each in found["problems"] if each["stops"]]

    assert [2, 2, 2] == [told.returncode for told in refused]
    assert not (tmp_path / "sweeps").exists()
    assert golden == stopping
    for told in refused:
        assert f"error: {stopping[0]}\n" in told.stderr
    assert {} == found["model"]["kv_bytes"]


@pytest.mark.parametrize(
    ("name", "possible", "reason"),
    [
        ("deepseek2", ("f16/f16", "q8_0/q8_0"), "not support different"),
        ("llama80", ("f16/f16",), "does not divide n_embd_head"),
    ],
)
def test_pairs_that_a_model_cannot_have_cost_nothing_and_fail_nothing(
    run, tmp_path, name, possible, reason
):
    """Latent attention keeps K and V as one; no block of 32 divides a head of 80."""
    grid = ("--types", "f16,q8_0", "--context", "512", *SMALL)
    plan = planned(run, name, "--context", "512", *SMALL)
    told = run("sweep", name, *grid)
    (folder,) = (tmp_path / "sweeps" / "random-bodies").iterdir()
    records = [json.loads(each.read_text()) for each in folder.glob("cells/*.json")]
    refused = [each for each in records if each["status"] == "unsupported"]
    asked = {log.name.split(".")[0] for log in folder.glob("logs/*")}

    assert 0 == told.returncode, told.stderr
    assert len(possible) == plan["probes"][0]["cells"]
    assert 4 - len(possible) == len(refused)
    assert {True} == {reason in each["reason"] for each in refused}
    assert asked - {"counting"} == {pair.replace("/", "-") for pair in possible}


@pytest.mark.parametrize(
    ("name", "mib"),
    [
        ("deepseek2", 40.0),  # latent: K alone
        ("deepseek2old", 320.0),  # heads of 192 and 128
        ("llama80", 80.0),
        ("lfm2", 32.0),  # two of four layers keep K and V
        ("qwen35", 16.0),  # one of four does
        ("qwen3moe", 64.0),
        ("gemma3", 9.25),  # one of six layers keeps more than its window
        ("gptoss", 32.75),
    ],
)
def test_a_plan_has_the_memory_of_each_kind_of_cache(run, name, mib):
    plan = planned(run, name)
    sizes = {f"{each['k']}/{each['v']}": each["kv_bytes"] for each in plan["memory"]}

    assert mib * 2**20 == sizes["f16/f16"]["32768"]


def test_a_plan_counts_what_a_hybrid_reads_again(run):
    (plain,), (hybrid,) = (
        planned(run, name, "--probe", "recall")["probes"]
        for name in ("llama", "qwen35")
    )

    assert 1.21 == pytest.approx(
        hybrid["read_tokens"] / plain["read_tokens"], abs=0.001
    )


@pytest.mark.parametrize(
    ("name", "mark"),
    [("gptoss", "attention sinks"), ("qwen2bias", "K has biases"), ("llama80", "80 ")],
    ids=["sinks", "biases", "heads of 80"],
)
def test_a_plan_warns_of_what_the_weights_show(run, name, mark, golden):
    assert golden == [note for note in planned(run, name)["notes"] if mark in note]


@pytest.mark.parametrize(
    ("name", "has_state"),
    [
        ("gemma3", False),
        ("gptoss", False),
        ("qwen3moe", False),
        ("qwen35", True),
        ("deepseek2old", False),
    ],
)
def test_each_kind_of_model_is_measured_and_its_verdict_says_what_is_saved(
    run, tmp_path, name, has_state
):
    """Windows, sinks, a mixture of experts, a hybrid, heads of 192 and 128."""
    told = run("sweep", name, "--types", "f16,q8_0", "--context", "512", *SMALL)
    verdict = json.loads(called(tmp_path, "verdict", "--at", "256", "--json").stdout)
    gain = verdict["gain"]

    assert 0 == told.returncode, told.stderr
    assert {""} == {each["trouble"] for each in verdict["pairs"]}
    assert has_state == (gain["recurrent"] > 0)
    assert 17 / 32 == gain["kv"] / gain["reference"]
    whole = sum(gain[part] for part in ("weights", "reference", "recurrent", "compute"))
    assert (gain["reference"] - gain["kv"]) / whole == gain["share"]
