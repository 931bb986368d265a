"""Every command takes a name, a folder, or the only run."""

import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from calls import called
from made_losses import losing_run

import codeneedle as api
from codeneedle.cache_types import RUNS
from codeneedle.errors import BadInput
from codeneedle.report.captions import run_command_text
from codeneedle.sweep.request import find_run_folder, read_sweep

GOLDEN = Path(__file__).parents[1] / "golden" / "runs"
NAME = "golden/needle-nano"
COMMANDS = ("grid", "table", "verdict", "memory", "receipt")
DRAWING = ("heatmap", "page")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with one run in its ``sweeps``."""
    place = tmp_path_factory.mktemp("place")
    shutil.copytree(GOLDEN / "recall" / NAME, place / "sweeps" / NAME)
    return place


@pytest.fixture
def two(tmp_path, monkeypatch):
    """Two runs in the ``sweeps`` of the working folder."""
    for kind in ("recall", "divergence"):
        shutil.copytree(GOLDEN / kind / NAME, tmp_path / "sweeps" / "golden" / kind)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("command", COMMANDS)
def test_a_name_a_folder_and_no_name_mean_the_only_run(place, command):
    forms = ((), ("golden",), (NAME,), (f"sweeps/{NAME}",), ("sweeps/golden/",))

    shown = [called(place, command, *form) for form in forms]

    assert {0} == {each.returncode for each in shown}, shown
    assert 1 == len({each.stdout for each in shown})


@pytest.mark.slow
@pytest.mark.parametrize("command", DRAWING)
def test_pictures_are_of_the_only_run_by_a_folder_and_without_a_name(place, command):
    shown = [called(place, command, *form) for form in ((), ("sweeps/golden/",))]

    assert {0} == {each.returncode for each in shown}, shown
    assert shown[0].stdout == shown[1].stdout


def test_panels_that_there_are_none_of_are_those_of_the_only_run(place):
    shown = [called(place, "panels", *name) for name in ((), (NAME,))]

    assert shown[0].stderr == shown[1].stderr


@pytest.mark.slow
def test_a_picture_of_a_run_by_its_folder_goes_to_that_folder(place):
    drawn = called(place.parent, "heatmap", str(place / "sweeps" / NAME))

    assert 0 == drawn.returncode, drawn.stderr
    folders = {Path(line).parent for line in drawn.stdout.splitlines()}
    assert {place / "sweeps" / NAME} == folders


@pytest.mark.parametrize("command", [*COMMANDS, *DRAWING])
def test_among_several_runs_one_must_be_named(two, command, golden):
    refused = called(two, command)

    assert 2 == refused.returncode
    assert golden == refused.stderr


def test_without_any_run_the_next_command_is_named(tmp_path, golden):
    refused = called(tmp_path, "verdict")

    assert 2 == refused.returncode
    assert golden == refused.stderr


@pytest.mark.parametrize(
    "name", ["golden/recall", "sweeps/golden/recall", Path("sweeps/golden/recall")]
)
def test_python_takes_names_as_commands_do(two, name):
    assert "golden/recall" == api.load(name).run.name
    assert Path("sweeps/golden/recall") == find_run_folder(str(name))


def test_python_takes_the_only_run_and_refuses_several(two):
    with pytest.raises(BadInput, match="2 runs"):
        api.load()
    shutil.rmtree(two / "sweeps" / "golden" / "recall")
    assert "golden/divergence" == api.load().run.name


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("smollm2", "--model smollm2"),
        ("needle-nano", "--model needle-nano"),
        ("models/some.gguf", "--model models/some.gguf"),
        ("random-bodies", "--corpus random-bodies"),
    ],
)
def test_a_model_or_corpus_in_place_of_a_sweep_is_refused_with_its_option(name, option):
    with pytest.raises(BadInput) as caught:
        read_sweep(name)
    assert f"codeneedle sweep {option}" in caught.value.hint


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("codeneedle verdict ", "golden/recall"),
        ("codeneedle grid golden/d", "golden/divergence"),
        ("codeneedle sweep pub", "published"),
        ("codeneedle sweep sweeps/g", "sweeps/golden/recall"),
        ("codeneedle grid x --metric recall-l", "recall-logp"),
        ("codeneedle sweep --corpus jq", "jquery"),
        ("codeneedle corpus show http", "http_server"),
        ("codeneedle plan --model smol", "smollm2"),
    ],
)
def test_a_shell_completes_runs_sweeps_metrics_corpora_models(two, words, found):
    completed = called(
        two,
        _CODENEEDLE_COMPLETE="complete_bash",
        COMP_WORDS=words,
        COMP_CWORD=str(len(words.split(" ")) - 1),
    )

    assert found in completed.stdout.split(), completed.stderr


@pytest.mark.parametrize("root", [None, RUNS, Path("O ut"), Path("/else/where")])
def test_a_command_that_shows_a_run_finds_it_wherever_its_folder_is(root):
    run = replace(losing_run({}), root=root)
    words = shlex.split(run_command_text("table", run, "--metric", "kld"))

    elsewhere = ["--out", str(root)] if root not in {None, RUNS} else []
    expected = ["codeneedle", "table", run.name, *elsewhere, "--metric", "kld"]
    assert expected == words
