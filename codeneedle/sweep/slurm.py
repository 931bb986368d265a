"""The script of a SLURM array whose tasks share a sweep."""

import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from codeneedle.errors import BadInput, FolderUnusable, ToolFailed
from codeneedle.sweep.plan import Plan
from codeneedle.sweep.prepare import refuse_or_void_unfit_folder
from codeneedle.sweep.request import Execution, merge_into_sweep_file
from codeneedle.system.files import write_atomically
from codeneedle.system.processes import run_for_output
from codeneedle.text import one_line

SBATCH_TIMEOUT_S = 60.0
"""How long sbatch may take: a busy controller answers after some seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmArray:
    """A SLURM array whose tasks share a sweep."""

    tasks: int  # number of shares
    gpus: int = 1  # of each task
    cpus: int = 4  # cores of each task
    more: str = ""  # further arguments of sbatch, quoted as for a shell

    def script(self, folders: Sequence[Path], execution: Execution) -> str:
        """
        The script that sbatch takes.

        SIGTERM, by which SLURM ends a task whose node is drained or whose time is up,
        ends the server; a task that is requeued goes on with its share.

        Args:
            folders: Run folders, at least one; each holds the sweep file of a page.
                Logs of the tasks go to the folder of all run folders.
            execution: Options of the command that a run folder does not keep.

        Raises:
            BadInput: If a quote in `more` has no end, or a path or an option has more
                than one line.
        """
        here = str(Path.cwd())
        log = str((Path.cwd() / folders[0].parent.parent).absolute())
        options = [
            "--job-name=codeneedle",
            f"--array=1-{self.tasks}",
            f"--cpus-per-task={self.cpus}",
            *([f"--gres=gpu:{self.gpus}"] if self.gpus else []),
            "--requeue",
            "--open-mode=append",
            # SLURM replaces what follows a single percent sign.
            f"--output={shlex.quote(log.replace('%', '%%') + '/slurm-%A_%a.log')}",
            *self._parse_further_options(),
        ]
        for text in (*options, here, *map(str, folders)):
            _refuse_line_breaks(text)
        # Not of COUNT: some tasks may be sent again.
        share = f'--shard "$SLURM_ARRAY_TASK_ID/{self.tasks}"'
        program = [sys.executable, "-m", "codeneedle", "sweep"]
        uses = list(_execution_option_words(execution))
        commands = [
            f"{shlex.join([*program, str(folder), *uses])} {share}"
            for folder in folders
        ]
        lines = [
            "#!/bin/sh",
            *(f"#SBATCH {option}" for option in options),
            f"cd {shlex.quote(here)} || exit",
            *_sequential_shell_lines(commands),
        ]
        return "".join(f"{line}\n" for line in lines)

    def _parse_further_options(self) -> list[str]:
        """
        `more` as one line, as a value may be a word by itself; empty without any.

        Raises:
            BadInput: If a quote in it has no end.
        """
        try:
            more = shlex.split(self.more)
        except ValueError as error:
            raise BadInput(
                source=f"--sbatch {self.more}",
                reason=str(error),
                hint="Quote it as for a shell: --sbatch \"-p gpu --comment='a b'\"",
            ) from error
        return [shlex.join(more)] if more else []

    def write_script_and_sweeps(self, path: Path, plans: Sequence[Plan]) -> None:
        """
        Write the `script` for the pages of a sweep to *path*, and their sweep files.

        A run of another setup without any number is set aside in its folder.

        Raises:
            BadInput: See `script`.
            OtherSetup: If a run folder is one of another setup.
            FolderUnusable: If something cannot be written.
        """
        folders = [plan.store.folder for plan in plans]
        script = self.script(folders, plans[0].execution)
        for plan in plans:
            refuse_or_void_unfit_folder(plan)
            if plan.store.is_void:
                with plan.store.make_and_lock_folder():
                    plan.store.set_run_aside()
            merge_into_sweep_file(plan.kept, plan.store)
        try:
            write_atomically(path, script.encode())
        except OSError as error:
            raise FolderUnusable(folder=path, reason=str(error)) from error

    @staticmethod
    def submit_script(path: Path) -> str:
        """
        Send the script at *path*; returns the output of sbatch.

        Raises:
            ToolFailed: If there is no sbatch, or it refuses.
        """
        done = run_for_output(
            ["sbatch", str(path)], timeout_s=SBATCH_TIMEOUT_S, env=os.environ
        )
        if done.returncode:
            raise ToolFailed(
                tool="sbatch",
                reason=f"refuses {path}: {one_line(done.stderr)}",
                hint="Mend the arguments with --sbatch, or the script by hand.",
            )
        return done.stdout.strip()


def _execution_option_words(execution: Execution) -> Iterator[str]:
    """The options of *execution* that a run folder does not keep, as words."""
    if execution.llama_server:
        yield from ("--llama-server", str(execution.llama_server))
    if execution.devices:
        yield from ("--devices", ",".join(execution.devices))
    if execution.workers:
        yield from ("--workers", str(execution.workers))


def _sequential_shell_lines(commands: Sequence[str]) -> list[str]:
    """
    Shell lines that run *commands* in turn, while each ends with code 0 or 1.

    They end with 1, the code of cells without numbers, if one did.
    """
    if len(commands) == 1:
        return [f"exec {commands[0]}"]
    stop = "{ code=$?; [ $code -eq 1 ] || exit $code; }"
    return [*(f"{command} || {stop}" for command in commands), "exit ${code:-0}"]


def _refuse_line_breaks(text: str) -> None:
    """Stop at a line break: what follows it would be a command of the script."""
    if len(text.splitlines()) > 1:
        raise BadInput(
            source=f"'{one_line(text)}'",
            reason="has a line break, which a script for SLURM cannot hold",
            hint="Leave it out of --sbatch, or use a folder without one in its name.",
        )
