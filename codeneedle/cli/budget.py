"""
Sweeps several files of weights under one budget: what is said before each step, and the
verdict at the end; which candidate is next, `sweep.joint` decides.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.console import Console

from codeneedle.cli.engines import engine_pair_flags
from codeneedle.cli.progress import print_notes, say
from codeneedle.cli.sweep import Page, about_duration_phrase, step_phrase
from codeneedle.exit_codes import UNFINISHED
from codeneedle.probes.cell import RunContext
from codeneedle.sweep.joint import JointLoop
from codeneedle.sweep.measure import TaskLoop
from codeneedle.sweep.schedule import JudgedTask, Task
from codeneedle.system.signals import catching_stop_request
from codeneedle.text import duration_text, escape_invisible
from codeneedle.verdict.asking_order import StepTarget
from codeneedle.verdict.commands import limit_options
from codeneedle.verdict.joint import join_runs
from codeneedle.verdict.judge import Verdict, judge
from codeneedle.verdict.next import NextStep
from codeneedle.verdict.trust import trusted_run


@dataclass(slots=True, kw_only=True)
class JointSweep:
    """Several files of weights, a page for each."""

    pages: Sequence[Page]
    stepped: StepTarget | None = field(default=None, init=False)
    """The step that was said to come."""

    def sweep(self, runs: Sequence[RunContext]) -> int:
        """
        Measure candidate by candidate until nothing could change the answer.

        Where one file of weights runs alone, its pairs are swept as of any sweep.

        Args:
            runs: That of each page.

        Returns:
            The exit code of the command.

        Raises:
            BadInput: If the runs do not stand on one scale.
            KeyboardInterrupt: If the user asked to stop and something is left.
        """
        with catching_stop_request() as stop:
            for page, run in zip(self.pages, runs, strict=True):
                page.set_up_loop(run, stop)
            joint = JointLoop(loops=[page.loop for page in self.pages], observer=self)
            ending = joint.measure()
            if ending.missing:
                self._say_time_is_up(ending.missing.task)
            alone = self._only_running_page(joint)
            ended = alone.measure_and_say_why_ended() if alone else None
        if alone and ended:
            return max(alone.show_verdict_at_end(ended), UNFINISHED)
        self._show_verdict(joint.loops)
        return 0 if ending.is_whole else UNFINISHED

    def _only_running_page(self, joint: JointLoop) -> Page | None:
        """The page of the only weights that run; None of several, or of none."""
        pages = [page for page in self.pages if page.loop in joint.loops]
        return pages[0] if len(pages) == 1 else None

    @property
    def _first_page(self) -> Page:
        """The first page, whose console, options and clock are those of all."""
        return self.pages[0]

    @property
    def _console(self) -> Console:
        return self._first_page.console

    # --- what is told while it measures

    def report_reference_task(self, weights: str, task: Task) -> None:
        """Say that *task* of these *weights* is to measure the reference."""
        pairs = ", ".join(map(str, task.pairs))
        say(self._console, f"the reference: {escape_invisible(f'{weights} {pairs}')}")

    def begin_task(self, judged: JudgedTask) -> None:
        """Say which step the task of *judged* is a part of, where that is not said."""
        step = judged.task.step
        if step and step.asked != self.stepped:
            self.stepped = step.asked
            self._say_answer_and_next_step(step, judged.verdict)

    def report_weights_left_out(self, loop: TaskLoop, reason: str) -> None:
        """Say that the weights of *loop* are measured no further."""
        print_notes(
            self._console, [f"{escape_invisible(loop.plan.model)}: {reason}: left out"]
        )

    def _say_answer_and_next_step(self, step: NextStep, verdict: Verdict) -> None:
        """Say the answer so far, once there is one, and what *step* measures."""
        from codeneedle.report.budget import budget_headline

        if verdict.compared_results:
            flags = engine_pair_flags(verdict.run.setup.engine)
            spent = duration_text(self._first_page.loop.limit.spent_s)
            so_far = budget_headline(verdict, flags)[0]
            say(self._console, f"so far, after {spent}: {so_far}")
        about = about_duration_phrase(step.time_s)
        say(self._console, f"next: {step_phrase(step, verdict)}{about}")

    # --- what is said at the end

    def _say_time_is_up(self, task: Task) -> None:
        """Say that the time is up, and which pairs of *task* are missing."""
        pairs = task.step.asked.pairs if task.step else task.pairs
        names = escape_invisible(", ".join(map(str, pairs)))
        say(self._console, f"The time is up. Missing: {names}. Run it again to go on.")

    def _show_verdict(self, loops: Sequence[TaskLoop]) -> None:
        """
        Show the verdict on all that is stored, and the command for it.

        Nothing is shown of a single run.
        """
        from codeneedle.report.budget import budget_closing_line, budget_document
        from codeneedle.report.terminal import print_with_end_if_long

        stored = [loop.plan.store.read_run() for loop in loops]
        runs = [trusted_run(run) for run in stored if run]
        if len(runs) < 2:  # noqa: PLR2004 - several
            return
        limits = self._first_page.options.limits
        verdict = judge(join_runs(runs, limits.at), limits)
        flags = engine_pair_flags(verdict.run.setup.engine)
        document = budget_document(verdict, flags)
        print_with_end_if_long(
            self._first_page.shown, document, budget_closing_line(verdict, flags)
        )
        words = ["codeneedle", "verdict", *(str(run.folder) for run in runs)]
        words += limit_options(verdict)
        say(self._console, f"look again: {escape_invisible(shlex.join(words))}")


def sweep_together(pages: Sequence[tuple[Page, RunContext]]) -> int:
    """Measure several files of weights, see `JointSweep`; returns the exit code."""
    joint = JointSweep(pages=[page for page, _ in pages])
    return joint.sweep([run for _, run in pages])
