"""Where attention runs, end to end, on a server that prints the splits of a device."""

import json

import pytest
from calls import called
from programs import fit_params, llama_like, server
from started_sweeps import RUN, impatient, record

from codeneedle.engines.llama_cpp import survey

TYPES = ("q8_0", "q4_0")
WHOLE, ON_CPU = "splits=2", "splits=62"
SAME, MIXED = ("q8_0-q8_0", "q4_0-q4_0"), ("q8_0-q4_0", "q4_0-q8_0")


@pytest.fixture(autouse=True)
def _needed(nano, tmp_path, monkeypatch):
    """The weights are there, and surveys of former tests are not."""
    monkeypatch.setenv("CODENEEDLE_CACHE", str(tmp_path / "cache"))


def swept(folder, splits, *arguments):
    """The sweep of a grid of two types whose servers say *splits*, by cell."""
    binary = server(
        folder.path, {cell: [said, "slots=right"] for cell, said in splits.items()}
    )
    grid = ("--corpus", "tiny", "--context", "4096", "--types", ",".join(TYPES))
    command = ("sweep", *grid, "--llama-server", binary, *arguments)
    return impatient(folder.path, *command)


def said_of(folder):
    """The verdict as data, by pair, and as a whole."""
    told = called(folder.path, "verdict", "tiny", "--json")
    verdict = json.loads(told.stdout)
    return {f"{e['k']}-{e['v']}": e for e in verdict["pairs"]}, verdict


def test_metals_rule_has_a_number_in_every_cell_and_each_says_where_it_ran(folder):
    splits = {**dict.fromkeys(SAME, WHOLE), **dict.fromkeys(MIXED, ON_CPU)}
    told = swept(folder, splits)
    grid = called(folder.path, "grid", "tiny", "--metric", "recall-logp").stdout

    assert 0 == told.returncode, told.stderr
    for cell in (*SAME, *MIXED):
        stored = record(folder.path, cell)
        expected = "kernel" if cell in SAME else "cpu"
        assert "finished" == stored["status"]
        assert expected == stored["effective"]["attention"]
    assert len(MIXED) == grid.count(" cpu ") - grid.count("\n cpu ")
    pairs, verdict = said_of(folder)
    assert "q8_0/q8_0" == verdict["reference"]
    assert {"cpu"} == {pairs[cell]["attention"] for cell in MIXED}


def test_a_run_without_any_kernel_keeps_its_numbers_and_sets_nothing(folder):
    told = swept(folder, dict.fromkeys((*SAME, *MIXED), ON_CPU))
    _, verdict = said_of(folder)

    assert 0 == told.returncode, told.stderr
    assert verdict["set"] is None
    assert {"finished"} == {record(folder.path, e)["status"] for e in (*SAME, *MIXED)}


def test_a_reference_without_a_kernel_leaves_its_place_to_a_pair_with_one(folder):
    splits = {**dict.fromkeys((*SAME, *MIXED), WHOLE), "q8_0-q8_0": ON_CPU}
    told = swept(folder, splits)
    _, verdict = said_of(folder)

    assert 0 == told.returncode, told.stderr
    assert verdict["reference"] in {"q8_0/q4_0", "q4_0/q8_0"}


# What a survey says before the first cell, or cannot say


ASKED = ("--types", "f16,q8_0")


def said(folder, command, *words, rule=None, devices=""):
    """What *command* says, with a survey of that *rule*."""
    binary = llama_like(folder.path / "bin" / "llama-server", devices=devices)
    if rule:
        fit_params(folder.path, rule)
    where = ("--corpus", "tiny", "--context", "4096", "--llama-server", binary)
    return called(folder.path, command, *where, *words)


@pytest.mark.parametrize("command", ["plan", "sweep"])
def test_a_build_that_refuses_every_pair_is_told_and_starts_no_server(
    folder, command, golden
):
    told = said(folder, command, "--pairs", "f16/q8_0,q8_0/f16", rule="mla")

    assert 2 == told.returncode
    assert golden == told.stderr.partition("error: ")[2]
    assert not (folder.path / RUN).exists()


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        ("crash", "SIGSEGV"),
        ("hang", "gave no answer"),
        ("silent", "neither graph nor"),
        ("other-words", "neither graph nor"),
        ("old", "too old"),
        (None, "is not beside"),
    ],
)
def test_a_survey_that_says_nothing_is_told_in_one_note(
    folder, rule, reason, monkeypatch
):
    monkeypatch.setattr(survey, "TRIES", 2)
    if rule == "hang":
        monkeypatch.setattr(survey, "TIMEOUT_S", 0.5)
    told = said(folder, "plan", *ASKED, rule=rule)
    text = " ".join(told.stdout.split())

    assert 0 == told.returncode, told.stderr
    assert 1 == text.count("note: where attention")
    assert reason in text


def test_a_sweep_goes_on_as_without_a_survey_that_crashes(folder):
    fit_params(folder.path, "crash")
    told = swept(folder, {**dict.fromkeys((*SAME, *MIXED), WHOLE), "q8_0-q4_0": ON_CPU})
    where = {
        cell: record(folder.path, cell)["effective"]["attention"]
        for cell in (*SAME, *MIXED)
    }

    assert 0 == told.returncode, told.stderr
    assert {**dict.fromkeys((*SAME, *MIXED), "kernel"), "q8_0-q4_0": "cpu"} == where


def test_a_cell_that_contradicts_the_survey_says_so_in_its_record(folder):
    fit_params(folder.path, "vulkan")
    told = swept(folder, {**dict.fromkeys((*SAME, *MIXED), WHOLE), "q8_0-q4_0": ON_CPU})
    effective = record(folder.path, "q8_0-q4_0")["effective"]

    assert 0 == told.returncode, told.stderr
    assert "cpu" == effective["attention"]
    assert effective["attention_evidence"].endswith("survey said kernel")


def test_a_cuda_build_says_itself_which_pairs_it_converts(folder):
    """Composed of the format strings of the sources: no GPU wrote the line."""
    told = "system_info: n_threads = 8 / 16 | CUDA : ARCHS = 890 | FA_QUANTS = f16-f16"
    binary = llama_like(
        folder.path / "bin" / "llama-server", system_info=f"{told} | CPU : AVX = 1 | "
    )
    fit_params(folder.path, "cuda")
    asked = (*ASKED, "--llama-server", binary, "--json")
    (survey,) = json.loads(called(folder.path, "kernels", *asked).stdout)

    assert {"f16/f16": "kernel", "f16/q8_0": "converted"} == {
        f"{each['k']}/{each['v']}": each["attention"]
        for each in survey["pairs"]
        if each["k"] == "f16"
    }


def test_kernels_alone_are_refused_where_no_pair_has_one(folder, golden):
    told = said(folder, "sweep", *ASKED, "--kernels-only", rule="never")

    assert 2 == told.returncode
    assert golden == told.stderr.partition("error: ")[2]


@pytest.mark.parametrize("arguments", [("-ngl", "0"), ("--no-kv-offload",)])
def test_a_cache_on_the_host_by_choice_has_kernels_and_the_plan_says_whose(
    folder, arguments
):
    gpu = "  Vulkan0: a GPU (8192 MiB, 8000 MiB free)"
    told = said(folder, "plan", *ASKED, "--", *arguments, rule="never", devices=gpu)
    text = " ".join(told.stdout.split())

    assert 0 == told.returncode, told.stderr
    assert "nothing is learned" in text
    assert "no pair has" not in text


def test_attention_that_is_switched_off_is_refused(folder):
    told = said(folder, "plan", *ASKED, "--", "-fa", "off", rule="cpu")

    assert 2 == told.returncode
    assert "-fa" in told.stderr


@pytest.mark.parametrize(
    ("order", "surveyed", "has_kernels"),
    [("0,1", "a fast GPU", True), ("1,0", "a slow GPU", False)],
)
def test_a_plan_on_devices_of_two_kinds_says_which_one_was_surveyed(
    folder, order, surveyed, has_kernels
):
    listed = "".join(
        f"  Vulkan{at}: {name} (8192 MiB, 8000 MiB free)\n"
        for at, name in enumerate(("a fast GPU", "a slow GPU"))
    )
    devices = ("--devices", order)
    told = said(folder, "plan", *ASKED, *devices, rule="by-device", devices=listed)
    text = " ".join(told.stdout.split())

    assert 0 == told.returncode, told.stderr
    assert f"were asked of {surveyed}" in text
    assert has_kernels is ("no pair has" not in text)
