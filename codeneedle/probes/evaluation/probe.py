"""
The evaluation probe: its options; runs a program against each cell, and a grader; each
cell must have the samples and prompts of the first one.

Each cell has a fresh server with one slot. Slots that share a cache damage tool calls
without any quantization (llama.cpp issue 26356), and with quantization so do prompts
that a server keeps from earlier samples: both would look like a loss of the pair.
"""

import functools
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Annotated

from msgspec import Meta, Struct
from typing_extensions import override

from codeneedle.corpora.registry import slug
from codeneedle.document import Document, Lines
from codeneedle.engines.engine import Ability, Engine, Served
from codeneedle.engines.exit_causes import last_log_lines
from codeneedle.errors import BadInput, CellError, UnknownName
from codeneedle.probes.cell import ProbeContext, RunContext
from codeneedle.probes.cell_metrics import OF_CELL
from codeneedle.probes.estimates import Estimates
from codeneedle.probes.evaluation.contract import (
    OFFLINE,
    PLACEHOLDERS,
    EvaluationCommand,
    run_within_limits,
    split_and_check_command,
)
from codeneedle.probes.evaluation.metrics import METRICS, USUAL_FLIPS
from codeneedle.probes.evaluation.readers import (
    AUTO,
    LINES_NAME,
    READERS,
    read_samples_of_known_tool,
)
from codeneedle.probes.evaluation.record import (
    NAME,
    Evaluation,
    Sample,
    evaluation_of,
    has_too_many_unscored,
    phrase_of_unscored,
    reference_evaluation,
)
from codeneedle.probes.metrics import samples_needed
from codeneedle.probes.probe import Calibrating, Probe
from codeneedle.quantities import parse_seconds
from codeneedle.records.record import CellRecord, Json, Run, Status, as_json
from codeneedle.system.commands import refuse_unset_variable
from codeneedle.system.files import make_or_empty_folder, refuse_linked_folder
from codeneedle.text import escape_invisible, plural

FOLDER = "evaluations"
"""Folder in the run folder that holds the working folders of all cells."""

SCRIPTS = frozenset({".js", ".mjs", ".py", ".sh", ".ts"})
"""Of arguments by which a run is called, instead of by what runs them."""

ONE_PAIR = 0.025
"""Chance of an error on one side, for one pair beside the reference."""


class EvaluationLayout(Struct, frozen=True):
    """What a setup stores: those of the settings that decide scores."""

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


class EvaluationSettings(EvaluationLayout, frozen=True, forbid_unknown_fields=True):
    """What a user may choose."""

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
    """Runs the user's command beside the server of each cell, and reads its results."""

    @override
    def adapt(
        self, settings: EvaluationSettings, _estimates: Estimates
    ) -> EvaluationSettings:
        """*settings* as they are, if the commands can be run."""
        _checked_command_words(settings)
        if settings.score:
            split_and_check_command(
                settings.score, option="--eval-score", known=OFFLINE
            )
        if settings.read not in {AUTO, *READERS}:
            known = [AUTO, *READERS]
            raise UnknownName(
                kind="value of --eval-read", name=settings.read, known=known
            )
        parse_seconds("--eval-timeout", settings.timeout)
        for name in settings.env:
            refuse_unset_variable(name, option="--eval-env")
        return settings

    @override
    def notes(
        self, _settings: EvaluationSettings, _estimates: Estimates
    ) -> tuple[str, ...]:
        """The number of samples that show a loss."""
        needed = samples_needed(USUAL_FLIPS, share=ONE_PAIR)
        note = (
            f"{NAME}: to show a loss of 5 points takes about {needed} samples for one "
            "pair, more for several, where one sample in ten differs"
        )
        return (note,)

    @override
    def as_stored(self, settings: EvaluationSettings, _run: RunContext) -> Json:
        """The settings that decide scores; nothing tells of changes of the program."""
        chosen = as_json(settings)
        return {name: chosen[name] for name in EvaluationLayout.__struct_fields__}

    @override
    def left_out_lines(self, run: Run) -> tuple[str, ...]:
        """Samples of each pair without a score; how many results are repeats."""
        lines = [
            f"{record.pair}: {phrase}; left out"
            for record in run.records
            if record.probe == NAME and record.has_numbers
            if (phrase := phrase_of_unscored(evaluation_of(record).samples))
        ]
        first = reference_evaluation(run.setup)
        results = len(first.samples) if first else 0
        units = len({sample.unit for sample in first.samples}) if first else 0
        if units < results:
            what = plural(units, "sample")
            lines.append(
                f"{results:,} results of {what}: attempts, repeats and copies of what "
                "was asked count as one"
            )
        return tuple(lines)

    @override
    def own_text_name(self, settings: EvaluationSettings, _engine: Engine) -> str:
        """
        The name of the first script that it runs, else of its program.

        Empty without a command.
        """
        if not settings.command:
            return ""
        words = _checked_command_words(settings)
        program, *others = map(Path, words)
        scripts = (path for path in others if path.suffix in SCRIPTS)
        return slug(next(scripts, program).stem)

    @override
    def overview(self, _run: Run, record: CellRecord) -> Document:
        """How many samples have a score, their mean, and why others have none."""
        samples = evaluation_of(record).samples
        scores = [sample.score for sample in samples if not sample.error]
        mean = f", {fmean(scores):.3f} on average" if scores else ""
        of = plural(len(samples), "sample")
        yield Lines([f"{len(scores)} of {of} have a score{mean}"])
        if phrase := phrase_of_unscored(samples):
            yield Lines([escape_invisible(f"{phrase}; left out")])

    @override
    def measure(self, context: ProbeContext) -> Json:
        """
        Run the command and the grader, and read their results.

        If only the grader failed before, only the grader runs again. The first cell
        sets the samples and the scores that others are compared with.

        Raises:
            CellError: If one of them fails, too many samples have no score, or they
                differ from those of the first cell.
        """
        cell = _EvaluatedCell(context, is_again=bool(context.variant))
        evaluation = cell.run_evaluation_unless_done()
        if cell.settings.score:
            context.store_observation_so_far(as_json(evaluation))
            cell.run_command(cell.settings.score, "--eval-score", None)
        context.report_step(1, 1, "reading the results")
        reader, samples = cell.read_reader_name_and_samples()
        if reader == LINES_NAME:
            samples = reset_seed_if_shared(samples, cell.seed)
        evaluation = replace(evaluation, reader=reader)
        first = reference_evaluation(context.run.setup)
        if first is not None:
            samples = align_or_refuse_samples(samples, first)
        refuse_too_many_unscored(samples)
        if first is None:
            first = replace(evaluation, samples=samples, against=str(context.pair))
            context.calibrate(as_json(first))
            return as_json(first)
        return as_json(replace(evaluation, samples=samples, against=first.against))


class FirstScores(Calibrating):
    """The samples and scores of the reference, which each record names."""

    @override
    def recover_calibration(self, records: Sequence[CellRecord]) -> Json | None:
        names = {evaluation_of(record).against for record in records}
        own = [record for record in records if {str(record.pair)} == names]
        is_one = len(own) == 1 and own[0].has_numbers
        return own[0].observation if is_one else None


PROBE = EvaluationProbe(
    name=NAME,
    purpose="any evaluation program",
    metrics=(*METRICS, *OF_CELL),
    settings=EvaluationSettings,
    layout=EvaluationLayout,
    needs=frozenset({Ability.ADDRESS}),
    repeats=True,
    asked_by="command",
    calibrating=FirstScores(),
)


def _checked_command_words(settings: EvaluationSettings) -> tuple[str, ...]:
    """
    The words of the command.

    Raises:
        BadInput: If there is none, or it cannot be run.
        ToolMissing: If its program does not exist.
    """
    if not settings.command:
        raise BadInput(
            source=f"--probe {NAME}",
            reason="needs a command that evaluates",
            hint="For example: --eval 'python ${here}/ask.py ${base_url} ${out}'",
        )
    return split_and_check_command(
        settings.command, option="--eval", known=PLACEHOLDERS
    )


def reset_seed_if_shared(samples: Sequence[Sample], seed: int) -> tuple[Sample, ...]:
    """
    *samples* without the *seed* of the command, which differs in a repetition.

    As they are unless all have it: among others it is the number of an attempt.
    """
    if {sample.seed for sample in samples} != {seed}:
        return tuple(samples)
    return tuple(replace(sample, seed=0) for sample in samples)


def refuse_too_many_unscored(samples: Sequence[Sample]) -> None:
    """
    Refuse an evaluation that failed itself.

    Raises:
        CellError: If more than `MOST_UNSCORED` of *samples* have no score.
    """
    if has_too_many_unscored(samples):
        raise CellError(
            phrase_of_unscored(samples),
            hint="Mend what grades them, then measure it again: --retry-failed.",
        )


def align_or_refuse_samples(
    samples: Sequence[Sample], first: Evaluation
) -> tuple[Sample, ...]:
    """
    *samples* in the order of those of the *first* cell.

    A missing sample has no score and says so: it is no loss, and no pair is within the
    limit by leaving samples out. Groups are those of the first cell, too.

    Raises:
        CellError: If there are other samples, or samples with other prompts.
    """
    expected = {sample.attempt_key: sample for sample in first.samples}
    by_key = {sample.attempt_key: sample for sample in samples}
    unknown = [key for key in by_key if key not in expected]
    changed = [
        key
        for key, sample in by_key.items()
        if key in expected and sample.prompt != expected[key].prompt
    ]
    if unknown or changed:
        what = "is not one of" if unknown else "has another prompt than that of"
        others = plural(len(unknown or changed), "sample")
        name = escape_invisible((unknown or changed)[0][0])
        raise CellError(
            f"the evaluation's samples differ: '{name}' {what} {first.against} "
            f"({others})",
            hint="Fix which samples are asked: a seed, a limit, an order.",
            status=Status.MISMATCHED,
        )
    return tuple(
        replace(by_key[key], group=sample.group)
        if key in by_key
        else replace(sample, score=0.0, error="missing")
        for key, sample in expected.items()
    )


class _EvaluatedCell:
    """One cell while it is evaluated."""

    settings: EvaluationSettings
    seed: int
    """
    Of the commands. That of a repetition of the reference differs, so that its scores
    differ by what sampling alone changes.
    """

    def __init__(self, context: ProbeContext, *, is_again: bool) -> None:
        """One that is measured again has another seed, log and folder."""
        self.settings = context.run.chosen_or_default_settings(EvaluationSettings, NAME)
        self.seed = context.run.setup.seed + is_again
        self._context = context
        self._name = f"{NAME}.again" if is_again else NAME
        slug = f"{context.pair.slug}{'.again' if is_again else ''}"
        self._out = refuse_linked_folder(context.run.folder / FOLDER).absolute() / slug

    def run_evaluation_unless_done(self) -> Evaluation:
        """
        Run the command, and return its observation without samples.

        A command that has finished before, with only its grader failing, is not run
        again: the cell keeps what its previous record says of the server.

        Raises:
            CellError: If it fails, or its server does.
        """
        context, previous = self._context, self._context.previous_record
        is_there = self._out.is_dir() and not self._out.is_symlink()
        if previous is not None and is_there and self.settings.score:
            context.command = previous.command
            context.effective = previous.effective
            return evaluation_of(previous)
        make_or_empty_folder(self._out)
        context.report_step(0, 1, "loading")
        # Thinking is allowed: quantized caches may damage it.
        with context.serving(thinks=True) as served:
            began = context.clock()
            with context.record_request_span():
                self.run_command(self.settings.command, "--eval", served)
            if served.wait_for_end(0):
                # The engine replaces this error by the cause.
                raise CellError("the server has ended", hint="See its log.")
            context.report_step(1, 1, "stopping")
            wall_s = round(context.clock() - began, 2)
        return Evaluation(wall_s=wall_s, seed=self.seed)

    def read_reader_name_and_samples(self) -> tuple[str, tuple[Sample, ...]]:
        """
        The reader of the results, and the samples.

        Raises:
            CellError: If there are none; with the end of the log.
        """
        try:
            return read_samples_of_known_tool(self._out, self.settings.read)
        except CellError as error:
            error.log_excerpt = last_log_lines(self._context.cell_log_path(self._name))
            raise

    def run_command(self, command: str, option: str, served: Served | None) -> None:
        """
        Run the *command* of an *option*; a grader has no server.

        Raises:
            CellError: If it fails.
        """
        address = served.address if served else None
        if served is not None and address is None:
            raise ValueError("an engine without an address")
        context = self._context
        task = EvaluationCommand(
            words=tuple(shlex.split(command)),
            option=option,
            out=self._out,
            log=context.cell_log_path(self._name if served else f"{self._name}-score"),
            values={
                "base_url": address.url if address else "",
                "model": address.model if address else "",
                "out": self._out,
                "seed": self.seed,
                "context": context.run.setup.context,
                "here": Path.cwd(),
            },
            passed_on=self.settings.env,
            limit_s=parse_seconds("--eval-timeout", self.settings.timeout),
            address=address,
        )
        run_within_limits(
            task,
            tell=functools.partial(context.report_step, 0, 1),
            is_served=lambda: served is None or not served.wait_for_end(0),
        )
