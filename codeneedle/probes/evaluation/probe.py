"""
The evaluation probe: any program that speaks to OpenAI's API, against each cell.

Each cell has a fresh server with one slot. Slots that share a cache damage tool calls
without any quantization (llama.cpp issue 26356), and prompts that a server keeps from
earlier samples damage them with it: both would be taken for a cost of the cache types.
"""

import functools
import shlex
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from codeneedle.corpora.corpus import Corpus
from codeneedle.engines.engine import Ability, Engine, Served
from codeneedle.errors import BadInput, CellError, UnknownName
from codeneedle.grid import Pair, most_precise_first
from codeneedle.models.gguf import Weights
from codeneedle.probes.evaluation.contract import (
    OFFLINE,
    PLACEHOLDERS,
    Task,
    checked_names,
    emptied,
    end_of,
    run,
    span_s,
    words_of,
)
from codeneedle.probes.evaluation.metrics import METRICS, USUAL_FLIPS, samples_needed
from codeneedle.probes.evaluation.readers import AUTO, LINES_NAME, READERS, read
from codeneedle.probes.evaluation.record import (
    NAME,
    Evaluation,
    EvaluationSetup,
    Sample,
    evaluation_of,
    first_of,
    settings_of,
)
from codeneedle.probes.metrics import METRICS as OF_CELL
from codeneedle.probes.probe import Probe, ProbeContext, RunContext
from codeneedle.records.record import Json, Status, as_json
from codeneedle.text import plural, visible

FOLDER = "evaluations"
"""In the run folder: all that commands wrote, a folder for each cell."""

ONE_PAIR = 0.025
"""Chance of an error on one side where one pair is compared with the reference."""


class EvaluationSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """What a user may choose."""

    command: Annotated[
        str,
        Meta(
            description="Evaluate each cell by a program that speaks to OpenAI's API: "
            "'PROGRAM --url ${base_url} --model ${model} --out ${out}'. No shell; the "
            "key is in OPENAI_API_KEY.",
            extra={"option": "--eval", "metavar": "COMMAND"},
        ),
    ] = ""
    score: Annotated[
        str,
        Meta(
            description="Grade what it left in ${out}, after the server has ended.",
            extra={"option": "--eval-score", "metavar": "COMMAND"},
        ),
    ] = ""
    read: Annotated[
        str,
        Meta(
            description=f"What wrote the results: {', '.join(READERS)}; lines are "
            "${out}/results.jsonl.",
            extra={"option": "--eval-read", "metavar": "NAME", "default": AUTO},
        ),
    ] = AUTO
    timeout: Annotated[
        str,
        Meta(
            description="How long it may take in each cell: 90m.",
            extra={"option": "--eval-timeout", "metavar": "TIME", "default": "2h"},
        ),
    ] = "2h"
    env: Annotated[
        tuple[str, ...],
        Meta(
            description="Names of further variables that it gets.",
            extra={"option": "--eval-env", "metavar": "LIST"},
        ),
    ] = ()


class EvaluationProbe(Probe):
    """Runs the user's command beside each cell's server, and reads what it leaves."""

    def check(self, settings: EvaluationSettings, _corpus: Corpus | None) -> None:
        """As of `Probe`."""
        if not settings.command:
            raise BadInput(
                source=f"--probe {NAME}",
                reason="needs a command that evaluates",
                hint="For example: --eval 'python ${here}/ask.py ${base_url} ${out}'",
            )
        words_of(settings.command, option="--eval", known=PLACEHOLDERS)
        if settings.score:
            words_of(settings.score, option="--eval-score", known=OFFLINE)
        if settings.read not in {AUTO, *READERS}:
            known = [AUTO, *READERS]
            raise UnknownName(
                kind="value of --eval-read", name=settings.read, known=known
            )
        span_s(settings.timeout)
        checked_names(settings.env)

    def reads_corpus(self, _settings: EvaluationSettings) -> bool:
        """As of `Probe`."""
        return False

    def notes(
        self,
        _settings: EvaluationSettings,
        _weights: Weights,
        _engine: Engine,
        _folder: Path,
    ) -> tuple[str, ...]:
        """As of `Probe`: how many samples it takes, before any was asked."""
        needed = samples_needed(USUAL_FLIPS, share=ONE_PAIR)
        note = (
            f"{NAME}: to show a loss of 5 points takes about {needed} samples for one "
            "pair, more for several, where one sample in ten differs"
        )
        return (note,)

    def conditions(self, run: RunContext) -> Json:
        """As of `Probe`; that the program stays the same is up to its user."""
        chosen = run.settings_of(EvaluationSettings, NAME)
        return as_json(
            EvaluationSetup(
                command=chosen.command, score=chosen.score, read=chosen.read
            )
        )

    def order(self, pairs: Sequence[Pair]) -> Sequence[Pair]:
        """As of `Probe`: the first pair decides which samples there are."""
        return most_precise_first(pairs)

    def measure(self, context: ProbeContext) -> Json:
        """
        As of `Probe`: the command, the grader after it, and what they have left.

        Where the grader failed before, it alone is run again.

        Raises:
            CellError: If one of them fails, or the samples are not those of the first
                cell.
        """
        cell = _Cell(context, is_again=self.name != NAME)
        found = cell.evaluated()
        if cell.chosen.score:
            context.keep(as_json(found))
            cell.graded()
        context.step(1, 1, "reading the results")
        reader, samples = cell.results()
        if reader == LINES_NAME:
            # Lines may name the seed that they were given, which a repetition has not.
            samples = tuple(
                replace(each, seed=0) if each.seed == cell.seed else each
                for each in samples
            )
        found = replace(found, reader=reader)
        if cell.first is None:
            first = replace(found, samples=samples, against=str(context.pair))
            # Not of another cache than the one that was asked for.
            if context.fallback is None:
                context.calibrate(as_json(first))
            return as_json(first)
        against = cell.first.against
        return as_json(
            replace(found, samples=aligned(samples, cell.first), against=against)
        )


PROBE = EvaluationProbe(
    name=NAME,
    metrics=(*METRICS, *OF_CELL),
    settings=EvaluationSettings,
    needs=frozenset({Ability.ADDRESS}),
    repeats=True,
    asked_by="command",
    calibrates=True,
)


def aligned(samples: Sequence[Sample], first: Evaluation) -> tuple[Sample, ...]:
    """
    *samples* in the order of the *first* cell's.

    What is missing scores 0: a cache that makes a model hang must not gain by it.

    Raises:
        CellError: If there are others, or another question was asked.
    """
    known = {sample.key: sample for sample in first.samples}
    found = {sample.key: sample for sample in samples}
    strangers = [key for key in found if key not in known]
    asked = [
        key
        for key, sample in found.items()
        if key in known and sample.prompt != known[key].prompt
    ]
    if strangers or asked:
        what = "is not one of" if strangers else "asks something else than that of"
        others = plural(len(strangers or asked), "sample")
        named = visible((strangers or asked)[0][0])
        raise CellError(
            f"the evaluation's samples differ: '{named}' {what} {first.against} "
            f"({others})",
            hint="Fix which samples are asked: a seed, a limit, an order.",
            status=Status.MISMATCHED,
        )
    return tuple(
        found.get(key, replace(sample, score=0.0, error="missing"))
        for key, sample in known.items()
    )


class _Cell:
    """
    One cell while it is evaluated.

    Attributes:
        context: The cell.
        chosen: What is run.
        first: The cell that its samples are compared with; None for that one.
        out: Where the commands write.
        seed: That they are given: another one where the reference is measured again,
            so that what differs is what sampling alone makes differ.
    """

    def __init__(self, context: ProbeContext, *, is_again: bool) -> None:
        setup = context.run.setup
        chosen = settings_of(setup)
        if chosen is None:
            raise ValueError("a setup without conditions of this probe")
        self._name = f"{NAME}.again" if is_again else NAME
        self._settings = context.run.settings_of(EvaluationSettings, NAME)
        self.context = context
        self.chosen = chosen
        self.first = first_of(setup)
        slug = f"{context.pair.slug}{'.again' if is_again else ''}"
        self.out = (context.run.folder / FOLDER / slug).absolute()
        self.seed = setup.seed + is_again

    def evaluated(self) -> Evaluation:
        """What the command took, after it has ended; samples are still to be read."""
        former = self.context.former
        if former is not None and self.out.is_dir() and self.chosen.score:
            self.context.command = former.command
            self.context.effective = former.effective
            self.context.peak_rss_bytes = former.peak_rss_bytes
            return evaluation_of(former)
        emptied(self.out)
        self.context.step(0, 1, "loading")
        # Reasoning is what quantized caches are suspected to damage: it is allowed.
        with self.context.serving(thinks=True) as served:
            began = time.monotonic()
            with self.context.asking():
                self._run(self.chosen.command, "--eval", served)
            self.context.observe_fallback(served)
            if served.ends_within(0):
                # The engine puts in its place why the server has ended.
                raise CellError("the server has ended", hint="See its log.")
            self.context.step(1, 1, "stopping")
            wall_s = round(time.monotonic() - began, 2)
        return Evaluation(wall_s=wall_s, seed=self.seed)

    def graded(self) -> None:
        """Run the grader, which has no server."""
        self._run(self.chosen.score, "--eval-score", None)

    def results(self) -> tuple[str, tuple[Sample, ...]]:
        """
        What has read the results, and the samples.

        Raises:
            CellError: If there are none that can be read; with the end of the log.
        """
        try:
            return read(self.out, self.chosen.read)
        except CellError as error:
            error.log_excerpt = end_of(self.context.log(self._name))
            raise

    def _run(self, command: str, option: str, served: Served | None) -> None:
        address = served.address if served else None
        if served is not None and address is None:
            raise ValueError("an engine without an address")
        kind = self._name if served else f"{self._name}-score"
        task = Task(
            words=tuple(shlex.split(command)),
            option=option,
            out=self.out,
            log=self.context.log(kind),
            values={
                "base_url": address.url if address else "",
                "model": address.model if address else "",
                "out": self.out,
                "seed": self.seed,
                "context": self.context.run.setup.context,
                "here": Path.cwd(),
            },
            passed_on=self._settings.env,
            limit_s=span_s(self._settings.timeout),
            address=address,
        )
        run(
            task,
            tell=functools.partial(self.context.step, 0, 1),
            is_served=lambda: served is None or not served.ends_within(0),
        )
