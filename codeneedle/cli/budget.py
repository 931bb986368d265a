"""A sweep of several files of weights that decides: one budget for all of them."""

import math
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rich.console import Console

from codeneedle.cache_types import Candidate, Pair
from codeneedle.cli.engines import asks_for
from codeneedle.cli.progress import note_lines, say
from codeneedle.cli.sweep import Page, duration_phrase, step_phrase
from codeneedle.exit_codes import UNFINISHED
from codeneedle.probes.cell import RunContext
from codeneedle.sweep.decide import share_order
from codeneedle.sweep.schedule import Stage, Task, Variant, reference_of
from codeneedle.system.signals import stop_request
from codeneedle.text import duration, visible
from codeneedle.verdict.joint import (
    candidates_of,
    join_runs,
    weight_names,
    weight_order,
)
from codeneedle.verdict.judge import Verdict, judge
from codeneedle.verdict.next import FURTHER, PROBE, NextStep, limit_options, next_step
from codeneedle.verdict.order import JointRun, order_in
from codeneedle.verdict.trust import trusted


@dataclass(slots=True, kw_only=True)
class JointSweep:
    """Several files of weights, a page for each, and one schedule."""

    pages: list[Page] = field(default_factory=list, init=False)
    """The finest weights first."""

    taken: set[tuple[int, Task]] = field(default_factory=set, init=False)
    failed: set[Pair] = field(default_factory=set, init=False)
    """Candidates that were to be asked for further functions, and failed."""

    codes: list[int] = field(default_factory=lambda: [0], init=False)

    def sweep(self, pages: Sequence[tuple[Page, RunContext]]) -> int:
        """
        Measure candidate by candidate until nothing could change the answer.

        Args:
            pages: One of each file of weights, with its run.

        Returns:
            The exit code of the command.

        Raises:
            BadInput: If the runs do not stand on one scale.
            KeyboardInterrupt: If the user asked to stop and something is left.
        """
        with stop_request() as stop:
            for page, run in sorted(
                pages, key=lambda each: weight_order(each[1].setup), reverse=True
            ):
                page.begin(run, stop)
                self.pages.append(page)
            self._measure_reference()
            if len(self.pages) > 1:
                self._fix_orders()
                self._measure_candidates()
        self._show_verdict()
        return max(self.codes)

    @property
    def _console(self) -> Console:
        return self.pages[0].console

    def _leave_out(self, page: Page, reason: str) -> None:
        note_lines(page.console, [f"{visible(page.plan.model)}: {reason}: left out"])
        self.codes.append(1)

    def _measure_reference(self) -> None:
        """The most precise pair of the finest weights, or of the next that runs."""
        while self.pages:
            page = self.pages[0]
            schedule = page.schedule
            while not schedule.has_reference(page.runner.read()):
                turn = schedule.next_turn(page.left_s())
                self._refuse_to_go_on(page)
                if turn is None:
                    break
                say(page.console, f"the reference: {self._named(page, turn.task)}")
                self.codes.append(page.take(turn.task))
                schedule.taken.tasks.add(turn.task)
            if schedule.has_reference(page.runner.read()):
                return
            self._leave_out(page, "no pair that could be the reference has numbers")
            self.pages.remove(page)

    def _named(self, page: Page, task: Task) -> str:
        pairs = ", ".join(map(str, task.pairs))
        return visible(f"{page.plan.weights.file_type or page.plan.model} {pairs}")

    def _refuse_to_go_on(self, page: Page) -> None:
        if page.stop.asked_to_stop:
            raise KeyboardInterrupt

    def _fix_orders(self) -> None:
        """Which candidates may be measured, before one beside the reference is."""
        fitting, first = self._fitting(), self.pages[0]
        schedule = first.schedule
        reference = reference_of(first.runner.read(), schedule.wanted)
        own = [pair for pair in (reference, *fitting[0]) if pair]
        schedule.wanted = replace(schedule.wanted, pairs=tuple(dict.fromkeys(own)))
        # It also fixes after how many functions a pair is judged.
        schedule.next_turn(first.left_s())
        order = order_in(first.runner.run.setup)
        if order is not None:
            for page, pairs in zip(self.pages[1:], fitting[1:], strict=True):
                share_order(page.runner, order, pairs)

    def _fitting(self) -> list[list[Pair]]:
        """Of each page, the pairs that fit into the memory."""
        limits = self.pages[0].options.limits
        most = limits.max_memory_bytes
        runs = [page.runner.read() for page in self.pages]
        return [
            [
                pair
                for pair in page.plan.may_measure
                if most is None or of_file.of(pair).size <= most
            ]
            for of_file, page in zip(
                candidates_of(runs, limits.at), self.pages, strict=True
            )
        ]

    def _joined(self) -> JointRun:
        at = self.pages[0].options.limits.at
        return join_runs([page.runner.read() for page in self.pages], at)

    def _verdict(self) -> Verdict:
        return judge(self._joined(), self.pages[0].options.limits)

    def _measure_candidates(self) -> None:
        """Step by step, each by the verdict on all that was measured."""
        first = self.pages[0]
        telling = [PROBE.name]
        while True:
            self._refuse_to_go_on(first)
            verdict = self._verdict()
            step = next_step(
                verdict,
                telling,
                may_continue=first.options.more is not False,
                failed=self.failed,
            )
            todo = [*self._tasks(step)] if step else []
            if step is None or not todo:
                break
            if not self._fits(step):
                self._say_over(step)
                return
            self._say_step(step, verdict)
            for at, task in todo:
                self._take(at, task)
                self._refuse_to_go_on(first)
        for at, task in self._checks(verdict):
            self._take(at, task)

    def _tasks(self, step: NextStep) -> Iterator[tuple[int, Task]]:
        """The tasks of *step* that were not taken, each with the place of its page."""
        places = self._places()
        for pair, units in step.goals.items():
            task = Task(
                probe=PROBE.name,
                pairs=(pair.cache,),
                units=units,
                is_further=True,
                stage=Stage.STEP,
            )
            yield places[pair.weights], task
        for pair in step.new:
            task = Task(
                probe=PROBE.name,
                pairs=(pair.cache,),
                units=step.asked.goal or None,
                stage=Stage.STEP,
            )
            if (places[pair.weights], task) not in self.taken:
                yield places[pair.weights], task

    def _places(self) -> Mapping[str, int]:
        runs = [page.runner.read() for page in self.pages]
        return {name: at for at, name in enumerate(weight_names(runs))}

    def _take(self, at: int, task: Task) -> None:
        page = self.pages[at]
        self.taken.add((at, task))
        code = page.take(task)
        page.schedule.taken.tasks.add(task)
        self.codes.append(code)
        if code and task.is_further:
            names = weight_names([page.runner.read() for page in self.pages])
            self.failed |= {
                Candidate(pair.k, pair.v, weights=names[at]) for pair in task.pairs
            }

    def _checks(self, verdict: Verdict) -> Iterator[tuple[int, Task]]:
        """What was read of the reference and of what is set, another way."""
        if verdict.chosen is None:
            return
        places = self._places()
        for pair in filter(None, (verdict.reference, verdict.chosen)):
            at, cache = places[pair.weights], pair.cache
            runner = self.pages[at].runner
            if any(
                FURTHER.unchecked(record, runner.run.setup)
                for record in runner.read().records
                if (record.pair, record.probe) == (cache, PROBE.name)
                if record.has_numbers
            ):
                task = Task(probe=PROBE.name, pairs=(cache,), variant=Variant.CHECK)
                yield at, task

    # --- what is said

    def _fits(self, step: NextStep) -> bool:
        left_s = self.pages[0].left_s()
        return left_s > 0 and not (math.isfinite(step.time_s) and step.time_s > left_s)

    def _say_step(self, step: NextStep, verdict: Verdict) -> None:
        from codeneedle.report.budget import budget_headline

        if verdict.compared:
            flags = asks_for(verdict.run.setup.engine)
            spent = duration(time.monotonic() - self.pages[0].began)
            so_far = budget_headline(verdict, flags)[0]
            say(self._console, f"so far, after {spent}: {so_far}")
        about = duration_phrase(step.time_s)
        say(self._console, f"next: {step_phrase(step, verdict)}{about}")

    def _say_over(self, step: NextStep) -> None:
        names = visible(", ".join(map(str, step.asked.pairs)))
        say(self._console, f"The time is up. Missing: {names}. Run it again to go on.")
        self.codes.append(UNFINISHED)

    def _show_verdict(self) -> None:
        """The verdict on all that is stored, and the command that shows it again."""
        from codeneedle.report.budget import budget_closing, budget_document
        from codeneedle.report.terminal import print_report

        stored = [page.plan.store.read() for page in self.pages]
        runs = [trusted(run) for run in stored if run]
        if len(runs) < 2:  # noqa: PLR2004 - several
            return
        first = self.pages[0]
        limits = first.options.limits
        verdict = judge(join_runs(runs, limits.at), limits)
        flags = asks_for(verdict.run.setup.engine)
        document = budget_document(verdict, flags)
        print_report(first.shown, document, budget_closing(verdict, flags))
        words = ["codeneedle", "verdict", *(str(run.folder) for run in runs)]
        words += limit_options(verdict)
        say(first.console, f"look again: {visible(shlex.join(words))}")


def sweep_together(pages: Sequence[tuple[Page, RunContext]]) -> int:
    """Measure several files of weights as of `JointSweep`; the exit code."""
    return JointSweep().sweep(pages)
