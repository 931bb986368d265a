"""The script of a SLURM array: what sbatch reads, and what a shell runs."""

import subprocess
from pathlib import Path

import pytest
from made_plans import made_world, measured, planned

from codeneedle.errors import BadInput
from codeneedle.records.comparability import OtherSetup
from codeneedle.sweep.prepare import prepare_run_and_store_setup
from codeneedle.sweep.request import Execution, read_sweep
from codeneedle.sweep.slurm import SlurmArray

FOLDER = Path("sweeps/tiny/model")


@pytest.fixture(autouse=True)
def world(tmp_path, monkeypatch):
    """A working folder with a corpus and weights."""
    made_world(tmp_path, monkeypatch)


def lines_of(array, *folders, **execution):
    """The lines of a script."""
    return array.script(folders or (FOLDER,), Execution(**execution)).splitlines()


def test_a_slurm_array_shares_a_sweep(tmp_path):
    array = SlurmArray(tasks=8, cpus=2, more="-p gpu --comment='a b'")

    lines = lines_of(array)

    assert "#!/bin/sh" == lines[0]
    options = [line for line in lines if line.startswith("#SBATCH ")]
    assert f"#SBATCH --output={tmp_path}/sweeps/slurm-%A_%a.log" in options
    for option in ("array=1-8", "gres=gpu:1", "cpus-per-task=2"):
        assert f"#SBATCH --{option}" in options
    assert "#SBATCH -p gpu '--comment=a b'" == options[-1]
    with pytest.raises(BadInput, match="No closing quotation"):
        lines_of(SlurmArray(tasks=1, more="it's"))
    share = '--shard "$SLURM_ARRAY_TASK_ID/8"'
    assert lines[-1].endswith(f"-m codeneedle sweep sweeps/tiny/model {share}")
    assert not any("gres" in line for line in lines_of(SlurmArray(tasks=1, gpus=0)))


def test_what_a_run_folder_does_not_keep_is_repeated():
    chosen = {"llama_server": Path("/a b/ls"), "devices": ("0", "1")}

    assert (
        "model --llama-server '/a b/ls' --devices 0,1 --shard"
        in (lines_of(SlurmArray(tasks=1), **chosen)[-1])
    )
    assert " --workers 2 --shard" in lines_of(SlurmArray(tasks=1), workers=2)[-1]


@pytest.mark.parametrize(
    "make",
    [
        lambda: lines_of(SlurmArray(tasks=1, more="--comment='a\ntouch x\n'")),
        lambda: lines_of(SlurmArray(tasks=1), Path("out\ntouch x\n/a/b")),
        lambda: lines_of(SlurmArray(tasks=1), Path("out/a\rb/c")),
    ],
    ids=["option", "folder", "return"],
)
def test_a_line_break_is_refused(make, golden):
    """What follows it would be no comment, but a command of the script."""
    with pytest.raises(BadInput) as caught:
        make()
    assert golden == str(caught.value)


def test_a_working_folder_with_a_line_break_is_refused(tmp_path, monkeypatch, golden):
    folder = tmp_path / "a\ntouch x\n"
    folder.mkdir()
    monkeypatch.chdir(folder)

    with pytest.raises(BadInput) as caught:
        lines_of(SlurmArray(tasks=1))
    assert golden == str(caught.value)


def test_a_percent_sign_in_the_path_of_logs_is_doubled():
    """SLURM would put the name of the user in place of %u."""
    log = lines_of(SlurmArray(tasks=1), Path("100%u/a/b"))[7]

    assert log.endswith("/100%%u/slurm-%A_%a.log")


def test_tasks_sweep_each_page_and_stop_at_all_but_cells_without_numbers(
    tmp_path, monkeypatch
):
    program = tmp_path / "python"
    program.write_text('#!/bin/sh\necho "$4 $6"\nexit $(cat code)\n')
    program.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(program))
    folders = [Path("sweeps/a/b"), Path("sweeps/a/c d")]
    Path("task.sh").write_text("\n".join(lines_of(SlurmArray(tasks=8), *folders)))

    def run(code):
        Path("code").write_text(str(code))
        done = subprocess.run(
            ["/bin/sh", "task.sh"],
            env={"SLURM_ARRAY_TASK_ID": "3", "PATH": "/usr/bin:/bin"},
            capture_output=True,
            encoding="utf-8",
            check=False,
        )
        return done.returncode, done.stdout.splitlines()

    both = ["sweeps/a/b 3/8", "sweeps/a/c d 3/8"]
    assert (0, both) == run(0)
    assert (1, both) == run(1)
    assert (130, both[:1]) == run(130)


def test_run_folders_hold_their_sweep_files_before_a_task_starts():
    SlurmArray(tasks=1).write_script_and_sweeps(Path("a.sbatch"), [planned()])

    kept = read_sweep(str(Path.cwd() / FOLDER))
    assert ("tiny", (8192,), ("q8_0", "q4_0")) == (
        kept.corpus,
        kept.contexts,
        kept.grid_k_types,
    )
    prepare_run_and_store_setup(planned(contexts=(4096,)))
    SlurmArray(tasks=1).write_script_and_sweeps(Path("a.sbatch"), [planned()])
    assert kept == read_sweep(str(Path.cwd() / FOLDER))
    measured(planned())
    with pytest.raises(OtherSetup):
        SlurmArray(tasks=1).write_script_and_sweeps(Path("a.sbatch"), [planned(seed=7)])
    assert kept == read_sweep(str(Path.cwd() / FOLDER))
