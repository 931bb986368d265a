"""Logs of a Vulkan build tell where attention runs, by its rule and by imposed ones."""

import pytest
from made_tools import HERE, made_facts, made_model
from programs import script

from codeneedle.cache_types import Pair
from codeneedle.engines.llama_cpp.installation import Program
from codeneedle.engines.llama_cpp.log import effective_settings
from codeneedle.engines.llama_cpp.survey import Surveyor
from codeneedle.records.record import Attention

LOGS = HERE / "logs"


def said(name):
    return (LOGS / f"lavapipe-{name}.log").read_text(encoding="utf-8")


@pytest.fixture
def surveyor(tmp_path, monkeypatch):
    """What asks a llama-fit-params that prints the log of a *rule* for each pair."""
    monkeypatch.setenv("CODENEEDLE_CACHE", str(tmp_path / "cache"))

    def surveyor(rule):
        file = LOGS / f"lavapipe-fit-{rule}.log"
        table = f"-E '^(Vulkan0|Host) ' {file}"
        body = f"grep -v {table} >&2\ngrep {table}"  # stdout last, as of the program
        tool = Program(script(tmp_path / "llama-fit-params", body))
        return Surveyor.of_installed_tool(tool, made_facts(), made_model())

    return surveyor


@pytest.mark.parametrize(
    ("rule", "pair", "attention"),
    [
        ("vulkan-whole", "q8_0/q4_0", Attention.KERNEL),
        ("vulkan-cpu", "bf16/q8_0", Attention.CPU),
        ("metal-rule-whole", "q8_0/q8_0", Attention.KERNEL),
        ("metal-rule-cpu", "q8_0/q4_0", Attention.CPU),
        ("no-kernel", "f16/f16", Attention.CPU),
        ("no-bf16", "bf16/bf16", Attention.CPU),
    ],
)
def test_a_survey_reads_where_attention_runs_from_a_real_log(
    rule, pair, attention, surveyor, tmp_path
):
    asked = Pair(*pair.split("/"))
    told = surveyor(rule).survey([asked], context=1024, log=tmp_path / "log")

    assert attention is told.expected_attention_place(asked)
    assert {"Vulkan0", "Host"} == {each.device for each in told.pairs[asked].memory}


@pytest.mark.parametrize(
    ("rule", "splits"),
    [
        ("vulkan-whole", 2),
        ("vulkan-cpu", 6),
        ("metal-rule-whole", 2),
        ("metal-rule-cpu", 6),
    ],
)
def test_a_server_says_what_the_survey_said(rule, splits):
    """Its graph has as many parts, and only that tells: the rest is the same."""
    server, fit = (
        effective_settings(said(f"server-{rule}")),
        effective_settings(said(f"fit-{rule}")),
    )

    assert splits == server.graph_splits == fit.graph_splits
    assert ("enabled", 1024) == (server.flash_attention, server.context)
    assert server.kv[0].k_type == fit.kv[0].k_type


def test_a_patch_of_the_tested_build_says_its_purpose_and_changes_one_file():
    """A header that became the whole of a file would only be noticed by a build."""
    root = HERE.parent.parent / "scripts" / "vulkan_patches"
    for patch in root.glob("*.patch"):
        purpose, _, change = patch.read_text(encoding="utf-8").partition("\n--- a/")
        assert "make vulkan" in purpose
        assert change.startswith("ggml/src/ggml-vulkan/ggml-vulkan.cpp\n+++ b/")
        assert "\n@@ " in change
