"""The commands of long scripts are parsed, without running them."""

import contextlib
import importlib
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from named_commands import accepted

from codeneedle.records.store import SWEEP, checked_run_folder
from codeneedle.sweep.request import Execution
from codeneedle.sweep.slurm import SlurmArray

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "scripts"))
import bench  # noqa: E402 - found in the folder just added
import cluster  # noqa: E402
import evaluations  # noqa: E402
import golden  # noqa: E402
import humaneval  # noqa: E402
import vulkan  # noqa: E402

SCRIPT = re.compile(r"scripts/(?P<name>\w+)\.py(?P<arguments>.*)")
STARTED = re.compile(
    r"(?:\"\$codeneedle\"|\$\(BIN\)/codeneedle|\$\(codeneedle) ([^|&>;)]+)"
)
OPTIONAL = re.compile(r"\$\(\w+_ARGS\)")


def recipe(target: str) -> str:
    """The lines of a target in the Makefile."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    (found,) = re.findall(rf"^{target}:.*\n((?:\t.*\n)+)", text, re.MULTILINE)
    return OPTIONAL.sub("", found)


@pytest.mark.parametrize(
    "target", ["fuzz", "humaneval", "mutants", "truth", "bench", "vulkan"]
)
def test_a_long_target_starts_its_script_with_arguments_it_accepts(target):
    if target == "mutants":
        pytest.importorskip("cosmic_ray", reason="its target installs it")
    found = SCRIPT.search(recipe(target))
    script = importlib.import_module(found["name"])

    script.parsed(found["arguments"].split())


def test_every_module_that_is_changed_for_a_mutant_exists():
    pytest.importorskip("cosmic_ray", reason="its target installs it")
    mutants = importlib.import_module("mutants")

    assert [] == [
        name
        for name in mutants.MODULES
        if not (ROOT / "codeneedle" / f"{name}.py").exists()
    ]


def test_every_script_of_a_long_target_is_looked_at_here():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    started = {found["name"] for found in SCRIPT.finditer(makefile)}
    started -= {"module_map"}  # a listing, without arguments

    assert {
        *("bench", "cluster", "evaluations", "fuzz", "humaneval", "mutants"),
        *("truth", "vulkan"),
    } == started


@pytest.mark.parametrize(
    "words",
    re.findall(
        r"python (scripts/\w+\.py[^`]*)", (ROOT / "RESULTS.md").read_text("utf-8")
    ),
)
def test_a_script_that_results_name_takes_these_arguments(words):
    found = SCRIPT.match(words)
    script = importlib.import_module(found["name"])

    assert script.parsed(found["arguments"].replace("...", "").split())


def usages():
    """Each line of a docstring that starts its script with arguments."""
    for name in (
        "bench",
        "fuzz",
        "humaneval",
        "moved_attention",
        "mutants",
        "pictures",
        "sensitivity",
        "truth",
        "vulkan",
    ):
        text = (ROOT / "scripts" / f"{name}.py").read_text(encoding="utf-8")
        doc = text.split('"""')[1]
        for words in re.findall(rf"python scripts/{name}\.py(.*)", doc):
            shown = re.split(r"  +(?! )|#|``", f"{words} ")[0]
            yield name, shown.replace("...", "").strip()


@pytest.mark.parametrize(("name", "words"), [*usages()])
def test_a_script_takes_the_arguments_that_it_shows(name, words):
    if name == "mutants":
        pytest.importorskip("cosmic_ray", reason="its target installs it")
    script = importlib.import_module(name)

    assert script.parsed(words.split())


def shell_commands():
    """Each command of the program in a shell script or the Makefile."""
    for file in (*sorted((ROOT / "scripts").glob("*.sh")), ROOT / "Makefile"):
        text = file.read_text(encoding="utf-8").replace("$$", "$")
        text = text.replace("2>&1", "")
        lists = dict(re.findall(r"^(\w+)=\((.*)\)$", text, re.MULTILINE))
        for line in text.splitlines():
            for words in STARTED.findall(line):
                filled = words
                for name, values in lists.items():
                    filled = filled.replace(f'"${{{name}[@]}}"', values)
                yield pytest.param(filled, id=f"{file.name}: {filled.strip()}")


@pytest.mark.parametrize("words", [*shell_commands()])
def test_a_shell_script_names_commands_that_are_accepted(words, tmp_path, monkeypatch):
    """Words that come from outside, as of a user of the action, stand for nothing."""
    (tmp_path / "made.md").write_text("")
    monkeypatch.chdir(tmp_path)
    known = {'"$1"': "made.md", '"$CHECK"': "q8_0/q8_0", '"$out"': "made"}
    known |= {'"${MAX_LOSS:-1%}"': "1%"}
    for variable, value in known.items():
        words = words.replace(variable, value)
    words = re.sub(r'"?\$[({]?\w+[^\s]*', "", words)

    assert accepted(shlex.split(words)).startswith("codeneedle ")


def test_the_target_of_faults_names_an_option_of_pytest(request):
    (option,) = re.findall(r"--([\w-]+)", recipe("faults"))
    option = option.replace("-", "_")

    assert request.config.getoption(option) in {True, False}


def test_the_target_of_evaluations_names_one_folder():
    found = SCRIPT.search(recipe("evaluations"))

    assert len(found["arguments"].split()) == 1


@pytest.mark.parametrize(
    "words",
    [*bench.START_UP, *bench.REPORTS, *map(str.split, golden.REPORTS)],
    ids=" ".join,
)
def test_a_command_on_made_or_stored_runs_is_accepted(words):
    if words[0].startswith("--"):
        pytest.skip("an option of the program itself")
    assert accepted([*words, "--out", "made"]) == f"codeneedle {words[0]}"


@pytest.mark.parametrize("words", golden.SWEEPS.values(), ids=golden.SWEEPS)
def test_a_sweep_of_a_golden_run_is_accepted(words):
    words = ["sweep", *words.split(), "--out", "made"]

    assert accepted(words) == "codeneedle sweep"


def test_the_sweep_of_a_bench_is_accepted(tmp_path, monkeypatch):
    asked = []

    def start(*words, log):
        asked.append(accepted(words))
        raise InterruptedError

    monkeypatch.setattr(bench, "codeneedle", start)
    settings = bench.Bench(folder=tmp_path, say=print)
    with contextlib.suppress(InterruptedError):
        bench._sweep(settings, Path("corpus.toml"), "f16", "q8_0")

    assert asked == ["codeneedle sweep"]


@pytest.mark.parametrize("name", evaluations.TOOLS)
def test_the_commands_of_evaluations_are_accepted(name, tmp_path, monkeypatch):
    asked = []

    def start(*words):
        asked.append(accepted(words))
        return 0

    monkeypatch.setattr(evaluations, "_codeneedle", start)
    evaluations._swept(name, evaluations.TOOLS[name], tmp_path, tmp_path)

    assert asked == ["codeneedle sweep", "codeneedle verdict"]


def test_the_sweeps_beside_a_task_are_accepted(tmp_path, monkeypatch):
    asked = []

    def start(argv, *, check):
        asked.append(accepted(argv[3:]))
        return subprocess.CompletedProcess(argv, returncode=0)

    monkeypatch.setattr(humaneval, "write_solutions", lambda folder: folder.mkdir())
    monkeypatch.setattr(humaneval.subprocess, "run", start)
    humaneval.sweep("smollm2", tmp_path / "out")

    assert asked == ["codeneedle sweep"] * len(humaneval.SWEEPS)


def test_the_commands_of_a_cluster_are_accepted_and_merge_every_share(
    tmp_path, monkeypatch
):
    asked = []

    def start(*words):
        asked.append((accepted(words), words))
        out = Path(words[words.index("--out") + 1])
        folder = checked_run_folder(out, corpus="tiny", model="needle-nano")
        folder.mkdir(parents=True)
        (folder / SWEEP).write_text("")
        if words[0] != "submit":
            return str(folder)
        array = SlurmArray(tasks=cluster.TASKS)
        Path("array.sh").write_text(array.script([folder], Execution()))
        return "array.sh"

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cluster, "codeneedle", start)
    monkeypatch.setattr(cluster, "cluster", contextlib.nullcontext)
    monkeypatch.setattr(cluster, "swept_in_tasks", lambda _script: None)
    cluster._compared(tmp_path)

    assert [name for name, _ in asked] == [
        "codeneedle sweep",
        "codeneedle submit slurm",
        "codeneedle merge",
    ]
    assert ("merge", "shares", "--out", "merged") == asked[-1][1]
    assert "shares/tiny/needle-nano --shard" in Path("array.sh").read_text()


def test_the_commands_of_vulkan_are_accepted(tmp_path, monkeypatch):
    """Its numbers are looked at by the script itself, where there is such a build."""
    asked = []

    def said(_bench, argv, _variables):
        asked.append(accepted(argv))
        raise InterruptedError

    monkeypatch.setattr(vulkan.Bench, "said", said)
    bench = vulkan.Bench(server=tmp_path / "llama-server", folder=tmp_path)
    for begun in (
        lambda: bench.ask(vulkan.METAL, "smollm2"),
        lambda: bench.compare_places("smollm2"),
        bench.set_pair,
        lambda: bench.diverge("smollm2"),
    ):
        with pytest.raises(InterruptedError):
            begun()

    assert ["codeneedle kernels", *["codeneedle sweep"] * 3] == asked
