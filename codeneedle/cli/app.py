"""Every command: its arguments and help, what it calls and shows, its exit code."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

import codeneedle
from codeneedle.cache_types import ENGINE, RUNS
from codeneedle.cli.command_line import (
    SWEEP_WORDS,
    RunCommand,
    ServeCommand,
    SlurmCommand,
    SweepCommand,
    TranscriptCommand,
    refuse_deleted_working_folder,
    resolve_cell_request,
)
from codeneedle.cli.options import (
    AnswerFormOption,
    AtOption,
    ContextOption,
    CorpusName,
    CsvOption,
    DifferenceOption,
    EngineOption,
    EnvOption,
    JsonOption,
    MarkdownOption,
    MaxEvalLost,
    MaxLoss,
    MaxLost,
    MaxMemory,
    MetricOption,
    ModelOption,
    ModelsOption,
    OnlyRunName,
    OutOption,
    PictureFormsOption,
    PlacesCsvOption,
    PortOption,
    RunNames,
    ServerOption,
    VerdictNames,
    argument,
    chosen_report_form,
    limits_with_defaults,
    option,
    parse_path,
    parse_word,
    run_names,
    stated_pace,
)
from codeneedle.cli.streams import (
    BestEffort,
    answers_width,
    print_csv,
    print_escaped_on_terminal,
    print_json,
    print_text,
    show_document,
    stderr_console,
    stdout_console,
)
from codeneedle.errors import BadInput, UnknownName
from codeneedle.exit_codes import BAD_REQUEST
from codeneedle.quantities import parse_speed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from codeneedle.document import Document
    from codeneedle.records.record import Run
    from codeneedle.report.llama_form import Dialect
    from codeneedle.verdict.judge import Verdict
    from codeneedle.verdict.limits import Limits

# Without markup: rich takes longer to import than all the rest of --help.
app = typer.Typer(
    help="What does a quantized KV cache cost? Sweeps the grid of K types x V types on "
    "a real llama-server and shows what breaks.",
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
corpora = typer.Typer(
    help="Show the texts that a model recalls.",
    rich_markup_mode=None,
)
app.add_typer(corpora, name="corpus")
submit = typer.Typer(
    help="Submit a sweep to a scheduler, a share for each task.",
    rich_markup_mode=None,
)
app.add_typer(submit, name="submit")


@app.callback(invoke_without_command=True)
def show_version_or_help(
    context: typer.Context,
    *,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.")
    ] = False,
) -> None:
    """Take the option of the program itself."""
    if version and context.invoked_subcommand:
        raise BadInput(
            source="--version",
            reason="takes no arguments",
            hint="Run: codeneedle --version",
        )
    if version:
        print_text(f"codeneedle {codeneedle.__version__}\n")
    else:
        show_help(context)


@submit.callback(invoke_without_command=True)
@corpora.callback(invoke_without_command=True)
def show_help(context: typer.Context) -> None:
    """Show the commands of a group if none is named, as a usage error."""
    if context.invoked_subcommand is None:
        print_text(f"{context.get_help()}\n")
        raise typer.Exit(BAD_REQUEST)


EXAMPLES = """\
Examples:
  codeneedle sweep --model model.gguf --types bf16,q8_0,q4_0
  codeneedle sweep --model model.gguf --decide --budget 2h
  codeneedle sweep sweeps/random-bodies/model --more
  codeneedle sweep vllm --model org/model --probe recall,throughput
"""


@app.command(cls=RunCommand, epilog=EXAMPLES)
def sweep(context: typer.Context) -> int:
    """
    Run the grid: a fresh llama-server for each pair of types.

    The same command resumes it. Ctrl-C once ends after the current cell, twice at once.
    """
    from codeneedle.cli import sweep as sweep_module
    from codeneedle.cli.budget import sweep_together

    request, execution, options = context.obj
    # Best effort: the sweep goes on without a reader; the end reports a full disk.
    shown = stdout_console(BestEffort(sys.stdout))
    return sweep_module.sweep(
        request, execution, stderr_console(), options, shown, sweep_together
    )


@app.command(cls=RunCommand)
def plan(
    context: typer.Context,
    *,
    pp: Annotated[
        float | None,
        option("--pp", "TOKENS/S", parse_speed, "How fast the model reads, for times."),
    ] = None,
    tg: Annotated[
        float | None,
        option("--tg", "TOKENS/S", parse_speed, "How fast it writes; see llama-bench."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Show what a sweep would do, without measuring anything."""
    from codeneedle.cli import sweep as sweep_module
    from codeneedle.cli.progress import show_task_progress
    from codeneedle.report.plan import plan_document, plan_object
    from codeneedle.sweep.measure import with_next_task
    from codeneedle.sweep.prepare import (
        count_and_refuse_long_corpus,
        refuse_or_void_unfit_folder,
    )
    from codeneedle.sweep.request import refuse_decided_share
    from codeneedle.sweep.steps import with_steps
    from codeneedle.system.signals import interrupting_on_end_signals

    request, execution, options = context.obj
    refuse_decided_share(request, execution)
    with show_task_progress(stderr_console(), "reading the corpus") as tell:
        pace = stated_pace(pp, tg)
        plans = sweep_module.make_plans(request, execution, tell, pace)
        sweep_module.refuse_unstartable_plans(plans, options)
        for planned in plans:
            refuse_or_void_unfit_folder(planned)
        with interrupting_on_end_signals():
            for planned in plans:
                count_and_refuse_long_corpus(planned)
    plans = [with_next_task(with_steps(planned), options) for planned in plans]
    if json:
        print_json(list(map(plan_object, plans)))
        return
    for planned in plans:
        document = plan_document(
            planned,
            at=options.limits.at,
            tries_reference=options.calibration,
        )
        show_document(document)


@app.command(cls=SweepCommand)
def kernels(context: typer.Context, *, json: JsonOption = False) -> None:
    """Show which pairs have a kernel here, and their memory."""
    from codeneedle.cli import sweep as sweep_module
    from codeneedle.cli.progress import show_task_progress
    from codeneedle.report.kernels import kernels_object
    from codeneedle.report.plan import plan_survey_document

    request, execution = context.obj
    with show_task_progress(stderr_console(), "asking the engine") as tell:
        plans = sweep_module.make_plans(request, execution, tell)
    surveyed = [(plan, plan.survey) for plan in plans if plan.survey]
    if not surveyed:
        raise BadInput(
            source=f"--engine {request.engine}",
            reason="it cannot say where attention runs before it has started",
            hint="Start a sweep: its cells tell.",
        )
    if json:
        print_json([kernels_object(survey) for _, survey in surveyed])
        return
    for plan, survey in surveyed:
        show_document(plan_survey_document(plan, survey))


@app.command(cls=TranscriptCommand)
def transcript(context: typer.Context) -> None:
    """
    Show the turns of conversations that a sweep would force.

    Names what the chat template drops, and what does not fit the context.
    """
    from msgspec.structs import replace

    from codeneedle.cli.progress import end_and_report_orphans
    from codeneedle.cli.sweep import make_plans
    from codeneedle.probes.transcript.answers import turn_choice_document
    from codeneedle.probes.transcript.probe import (
        PROBE,
        read_and_count_turns,
        read_unread_part_lines,
    )
    from codeneedle.system.signals import interrupting_on_end_signals

    request, execution = context.obj
    end_and_report_orphans(stderr_console())
    with (
        interrupting_on_end_signals(),
        stderr_console().status("rendering conversations"),
    ):
        plan = make_plans(replace(request, probes=(PROBE.name,)), execution)[0]
        settings = request.transcript
        counted = read_and_count_turns(settings, plan.engine, plan.context)
    command = shlex.join(["codeneedle", "sweep", *context.meta[SWEEP_WORDS]])
    show_document(
        turn_choice_document(
            str(settings.file),
            counted,
            context=plan.context,
            command=command,
            unread=read_unread_part_lines(settings),
        )
    )


MOST_TASKS = 4_000_000
"""Largest array that SLURM can be set to take: MaxArraySize of slurm.conf(5)."""

MOST_OF_A_NODE = 65_533
"""SLURM counts the cores of a node in 16 bits, and the last values have meanings."""


@submit.command(cls=SlurmCommand)
def slurm(
    context: typer.Context,
    *,
    tasks: Annotated[
        int, typer.Option(min=1, max=MOST_TASKS, help="Number of array tasks.")
    ] = 8,
    gpus: Annotated[
        int, typer.Option(min=0, max=MOST_OF_A_NODE, help="GPUs per task.")
    ] = 1,
    cpus: Annotated[
        int, typer.Option(min=1, max=MOST_OF_A_NODE, help="Cores per task.")
    ] = 4,
    sbatch: Annotated[
        str, typer.Option(help="More arguments: '--partition=gpu --time=8:00:00'.")
    ] = "",
    script: Annotated[
        Path, option("--script", "FILE", parse_path, "The script to write.")
    ] = Path("codeneedle.sbatch"),
    send: Annotated[bool, typer.Option("--submit", help="Send it by sbatch.")] = False,
) -> None:
    """
    Write the script of a SLURM array that runs a sweep.

    Each task has a run folder of its own; sent again, it resumes.
    """
    from codeneedle.cli import sweep as sweep_module
    from codeneedle.cli.progress import print_notes
    from codeneedle.sweep.slurm import SlurmArray

    array = SlurmArray(tasks=tasks, gpus=gpus, cpus=cpus, more=sbatch)
    array.write_script_and_sweeps(script, sweep_module.make_plans(*context.obj))
    if not send:
        print_notes(
            stderr_console(), [f"send it with: sbatch {shlex.quote(str(script))}"]
        )
    print_escaped_on_terminal(f"{array.submit_script(script) if send else script}\n")


@app.command(cls=ServeCommand)
def serve(
    arguments: typer.Context,
    pair: Annotated[str, argument("K/V", "Cache types: q8_0/q4_0.")],
    *,
    model: ModelsOption = None,
    context: ContextOption = None,
    engine: EngineOption = ENGINE,
    port: PortOption = None,
    llama_server: ServerOption = None,
    env: EnvOption = None,
) -> int:
    """
    Start one cell's server, and print its address and key.

    The key is random, or that in the variable CODENEEDLE_API_KEY. What follows -- goes
    to llama-server: -- -ngl 99
    """
    from codeneedle.cache_types import Pair
    from codeneedle.cli.serve import serve_until_stopped as serve_pair

    request, execution = resolve_cell_request(
        model, context, engine, llama_server, arguments.obj, env=env
    )
    chosen = Pair.parse(pair)
    return serve_pair(
        chosen, request, execution, stdout_console(), stderr_console(), port=port
    )


@app.command(cls=ServeCommand)
def ask(
    arguments: typer.Context,
    pairs: Annotated[str, argument("PAIRS", "Cache types: f16/f16,q8_0/q4_0.")],
    prompt: Annotated[str, argument("FILE", "Your prompt; - is stdin.")],
    *,
    model: ModelsOption = None,
    context: ContextOption = None,
    tokens: Annotated[int, typer.Option(help="Most tokens of an answer.", min=1)] = 400,
    engine: EngineOption = ENGINE,
    llama_server: ServerOption = None,
    env: EnvOption = None,
) -> int:
    """
    Ask pairs a prompt of yours, and show where answers differ.

    Greedy, and nothing is stored. The first pair is what others are compared with.
    What follows -- goes to llama-server: -- -ngl 99
    """
    from codeneedle.cache_types import Pair
    from codeneedle.cli.ask import ask_fresh_servers as ask_pairs
    from codeneedle.cli.ask import read_prompt
    from codeneedle.cli.options import parse_distinct_words
    from codeneedle.report.answers import replies_document

    request, execution = resolve_cell_request(
        model, context, engine, llama_server, arguments.obj, env=env
    )
    chosen = [Pair.parse(word) for word in parse_distinct_words("PAIRS", pairs)]
    text = read_prompt(parse_path("FILE", prompt))
    answers = ask_pairs(
        chosen, text, request, execution, stderr_console(), tokens=tokens
    )
    show_document(replies_document(answers))
    return int(any(isinstance(answer, str) for _, answer in answers))


@app.command()
def grid(
    names: RunNames = None,
    metric: MetricOption = None,
    *,
    max_loss: MaxLoss = None,
    max_lost: MaxLost = None,
    max_eval_lost: MaxEvalLost = None,
    csv: CsvOption = False,
    json: JsonOption = False,
    markdown: MarkdownOption = False,
    out: OutOption = RUNS,
) -> None:
    """
    Show the summary and the grid of a sweep, K down and V across.

    Of several runs it also shows what each sets, and losses side by side.
    """
    from codeneedle.cli.engines import engine_pair_flags
    from codeneedle.report import captions
    from codeneedle.report.chosen_runs import read_selection
    from codeneedle.report.data import run_tables
    from codeneedle.report.grid import grid_report, loss_report
    from codeneedle.report.tidy import loss_and_metric_rows

    form = chosen_report_form(csv=csv, json=json, markdown=markdown)
    limits = limits_with_defaults(max_loss, max_lost, max_eval_lost)
    chosen = read_selection(out, *(names or ()), metric=metric, limits=limits)
    if form in {"csv", "json"}:
        rows = loss_and_metric_rows(chosen.whole, chosen.verdicts, chosen.probe.name)
        if form == "csv":
            print_csv(rows)
        else:
            print_json(run_tables(chosen.whole, rows))
    elif chosen.asks_loss:
        losses = (
            chosen.runs,
            chosen.shown_metrics,
            chosen.summary_metrics,
            chosen.verdicts,
            engine_pair_flags,
        )
        show_document(loss_report(*losses), form)
    else:
        show_document(
            grid_report(
                chosen.runs,
                chosen.shown_metrics,
                chosen.summary_metrics,
                chosen.verdicts,
            ),
            form,
        )
    if not (chosen.asks_loss or chosen.has_values):
        run, metric_name = chosen.whole[0], chosen.metric.name
        raise captions.nothing_to_show_error(run, metric_name, chosen.probe.name)


@app.command()
def heatmap(
    name: OnlyRunName = None,
    metric: MetricOption = None,
    *,
    panels: Annotated[
        bool,
        typer.Option("--panels", help="Draw answers to tasks, a map for each pair."),
    ] = False,
    difference: DifferenceOption = False,
    plain: Annotated[
        bool,
        typer.Option("--plain", help="Leave out the text below, for a paper."),
    ] = False,
    forms: PictureFormsOption = "png,svg",  # the option makes a tuple of it
    max_loss: MaxLoss = None,
    max_lost: MaxLost = None,
    max_eval_lost: MaxEvalLost = None,
    out: OutOption = RUNS,
) -> None:
    """
    Draw the loss of each pair, or a metric, and print the paths.

    For a speed (pp, tg), draw its curves by depth, too.
    """
    from codeneedle.cli.engines import engine_pair_flags
    from codeneedle.errors import NothingToShow
    from codeneedle.report.chosen_runs import read_selection
    from codeneedle.report.heatmap import Files
    from codeneedle.report.panel_pictures import draw_panels
    from codeneedle.report.pictures import draw_loss_or_metric

    wanted = metric or ("retrieval" if panels else None)
    limits = limits_with_defaults(max_loss, max_lost, max_eval_lost)
    chosen = read_selection(out, name, metric=wanted, limits=limits)
    empty: NothingToShow | None = None
    for run, verdict in zip(chosen.runs, chosen.verdicts, strict=True):
        files = Files(
            folder=run.folder, forms=cast("tuple[str, ...]", forms), is_plain=plain
        )
        pair_flags = engine_pair_flags(run.setup.engine)
        try:
            pictures = (
                draw_panels(run, chosen.metric, difference=difference, files=files)
                if panels
                else draw_loss_or_metric(
                    run, chosen, verdict, pair_flags, files, difference=difference
                )
            )
        except NothingToShow as error:
            empty = error
            continue
        for picture in pictures:
            print_escaped_on_terminal(f"{picture}\n")
    if empty:
        raise empty


@app.command()
def panels(
    name: OnlyRunName = None,
    metric: Annotated[
        str,
        option("--metric", "METRIC", parse_word, "All tasks, or one: nth, nth-logp."),
    ] = "retrieval",
    *,
    difference: DifferenceOption = False,
    csv: PlacesCsvOption = False,
    json: JsonOption = False,
    out: OutOption = RUNS,
) -> None:
    """Show answers to tasks by length and depth."""
    from codeneedle.report.chosen_runs import read_selection
    from codeneedle.report.panels import panel_objects, panel_rows, panels_document

    chosen_report_form(csv=csv, json=json, difference=difference)
    chosen = read_selection(out, name, metric=metric)
    if csv:
        print_csv(panel_rows(chosen.runs, chosen.metric))
    elif json:
        print_json(panel_objects(chosen.runs, chosen.metric))
    else:
        show_document(
            panels_document(chosen.runs, chosen.metric, difference=difference)
        )


@app.command()
def table(
    name: OnlyRunName = None,
    *,
    sort: Annotated[
        str | None,
        option(
            "--sort", "METRIC", parse_word, "Best first, pairs without a value last."
        ),
    ] = None,
    metric: Annotated[
        str | None,
        option("--metric", "METRIC", parse_word, "Only a speed, pp or tg, by depth."),
    ] = None,
    max_loss: MaxLoss = None,
    max_lost: MaxLost = None,
    max_eval_lost: MaxEvalLost = None,
    csv: CsvOption = False,
    json: JsonOption = False,
    markdown: MarkdownOption = False,
    form: Annotated[
        str | None,
        option(
            "--form", "FORM", parse_word, "llama.cpp: the columns of llama-perplexity."
        ),
    ] = None,
    out: OutOption = RUNS,
) -> None:
    """Show one row per pair with the metrics of all probes."""
    from codeneedle.cli.engines import engine_pair_flags
    from codeneedle.report.chosen_runs import read_and_judge_pair_tables
    from codeneedle.report.table import pair_table_rows, table_objects, tables_document

    chosen = chosen_report_form(
        csv=csv, json=json, markdown=markdown, form=form is not None
    )
    if metric and sort:
        raise BadInput(
            source="--metric and --sort",
            reason="a speed by depth is listed by precision",
            hint="Leave one out.",
        )
    limits = limits_with_defaults(max_loss, max_lost, max_eval_lost)
    if form:
        for document in _documents_in_foreign_form(form, out, name, limits):
            show_document(document, "markdown")
        return
    if metric:
        _show_speeds(out, name, metric, chosen)
        return
    tables = read_and_judge_pair_tables(out, name, sort=sort, limits=limits)
    if csv:
        print_csv(pair_table_rows(tables))
    elif json:
        print_json(table_objects(tables))
    else:
        show_document(
            tables_document(tables, engine_pair_flags if markdown else None), chosen
        )


def _show_speeds(out: Path, name: str | None, test: str, form: str) -> None:
    """Print the speeds of *test* by depth, for the runs that have any."""
    from codeneedle.report.chosen_runs import read_runs
    from codeneedle.report.speeds import (
        nonempty_speed_tables,
        speed_objects,
        speed_rows,
        speeds_document,
    )

    tables = nonempty_speed_tables(read_runs(out, name), test)
    if form == "csv":
        print_csv(speed_rows(tables))
    elif form == "json":
        print_json(speed_objects(tables))
    else:
        show_document(speeds_document(tables), form)


def _documents_in_foreign_form(
    form: str, out: Path, name: str | None, limits: "Limits | None"
) -> "list[Document]":
    """
    The tables of runs in a *form* other than ours.

    Raises:
        UnknownName: If there is no such form.
    """
    from codeneedle.report.chosen_runs import read_runs
    from codeneedle.report.llama_form import divergence_document
    from codeneedle.verdict.judge import judge

    if form != ENGINE:
        raise UnknownName(kind="form", name=form, known=[ENGINE])
    runs, dialect = read_runs(out, name), _llama_cpp_dialect()
    return [divergence_document(judge(run, limits), dialect) for run in runs]


def _llama_cpp_dialect() -> "Dialect":
    """The words of llama.cpp's tools."""
    from codeneedle.engines.llama_cpp import arguments
    from codeneedle.report.llama_form import Dialect

    return Dialect(
        base=arguments.base_file_command,
        compares=arguments.comparison_command,
        text=arguments.text_file_in,
        build=arguments.cuda_kernels_option,
    )


@app.command()
def receipt(name: OnlyRunName = None, *, out: OutOption = RUNS) -> None:
    """
    Print the setup of a run and a row for each pair, to pass on.

    For an issue or a gist; 'compare' reads them. They hold no text, no reply and no
    path.
    """
    from codeneedle.report.chosen_runs import read_single_run
    from codeneedle.report.receipt import receipt_markdown

    print_text(receipt_markdown(read_single_run(out, name)))


@app.command()
def weights(*, json: JsonOption = False) -> None:
    """Show models that Hugging Face, LM Studio and Ollama keep here."""
    from codeneedle.cli.engines import read_headers_of_stored_models
    from codeneedle.cli.progress import show_task_progress
    from codeneedle.report.weights import weights_document, weights_rows

    with show_task_progress(stderr_console(), "reading headers") as tell:
        rows = weights_rows(read_headers_of_stored_models(tell))
    if json:
        print_json(rows)
    else:
        show_document(weights_document(rows))


@app.command()
def models(
    named: Annotated[
        list[str] | None,
        argument(
            "[FILE]...",
            "Texts with a receipt, or folders of them: rows of the same weights that "
            "come with the program stand beside them. Default: all of these.",
        ),
    ] = None,
    *,
    json: JsonOption = False,
    markdown: MarkdownOption = False,
) -> None:
    """Show the table of models: receipts by model, then by pair."""
    from codeneedle.report import models as rows_of_models

    form = chosen_report_form(json=json, markdown=markdown)
    rows = rows_of_models.read_shipped_rows()
    if named:
        own = [r for name in named for r in rows_of_models.read_rows_from(Path(name))]
        rows = rows_of_models.with_rows_of_same_weights(own, rows)
    if json:
        print_json(rows_of_models.model_objects(rows))
    else:
        show_document(rows_of_models.models_document(rows), form)


@app.command()
def verdict(
    names: VerdictNames = None,
    *,
    max_loss: MaxLoss = None,
    max_lost: MaxLost = None,
    max_eval_lost: MaxEvalLost = None,
    max_memory: MaxMemory = None,
    at: AtOption = None,
    check: Annotated[
        str | None,
        option(
            "--check",
            "K/V",
            parse_word,
            "Print a line on this pair alone; exit with 0 if it is within the limits, "
            "5 if it is beyond, 4 if that is open or was not measured.",
        ),
    ] = None,
    answer: AnswerFormOption = None,
    json: JsonOption = False,
    markdown: MarkdownOption = False,
    out: OutOption = RUNS,
) -> int:
    """
    Show which pair to set, and what it loses at most.

    Of several runs of one model, each of another file of weights: which weights with
    which pair.
    """
    from codeneedle.cache_types import Pair
    from codeneedle.report.check import exit_code_and_reason
    from codeneedle.report.chosen_runs import read_runs, read_single_run
    from codeneedle.verdict.judge import judge

    form = chosen_report_form(
        json=json,
        markdown=markdown,
        check=check is not None,
        form=answer is not None,
    )
    limits = limits_with_defaults(max_loss, max_lost, max_eval_lost, max_memory, at)
    if names and names[1:]:
        _refuse_several_runs(names, check=check, answer=answer)
        return _show_joint_verdict(read_runs(out, *names), limits, form)
    name = names[0] if names else None
    if check:
        pair = Pair.parse(check)
        code, line = exit_code_and_reason(
            judge(read_single_run(out, name), limits), pair
        )
        print_text(f"{line}\n")
        return code
    every = [judge(run, limits) for run in read_runs(out, name)]
    if answer:
        _show_answers(answer, every)
        return 0
    return _show_verdicts(every, form)


def _refuse_several_runs(
    names: "Sequence[str]", *, check: str | None, answer: str | None
) -> None:
    """Stop at several *names* where what is asked for is about one run."""
    if check or answer:
        raise BadInput(
            source="--check" if check else "--form",
            reason="is about one run",
            hint=f"Name one: {', '.join(names)}.",
        )


def _show_verdicts(every: "Sequence[Verdict]", form: str) -> int:
    """Print the verdict on each run; the exit code is 1 if one has no numbers."""
    from codeneedle.cli.engines import engine_pair_flags
    from codeneedle.report.verdict import first_lines_document, verdicts_document
    from codeneedle.report.verdict_data import verdict_objects

    if form == "json":
        objects = verdict_objects(every, engine_pair_flags)
        print_json(objects if objects[1:] else objects[0])
    else:
        show_document(
            verdicts_document(every, engine_pair_flags),
            form,
            first_lines_document(every, engine_pair_flags),
        )
    runs = [verdict.run for verdict in every]
    are_measured = all(any(r.has_numbers for r in run.records) for run in runs)
    return 0 if are_measured else 1


def _show_joint_verdict(runs: "Sequence[Run]", limits: "Limits", form: str) -> int:
    """Print which file to set with which pair; the exit code, 1 without a reference."""
    from codeneedle.cli.engines import engine_pair_flags
    from codeneedle.report.budget import (
        budget_closing_line,
        budget_document_with_run_facts,
    )
    from codeneedle.report.verdict_data import verdict_objects
    from codeneedle.verdict.joint import join_runs
    from codeneedle.verdict.judge import judge

    found = judge(join_runs(runs, limits.at), limits)
    flags = engine_pair_flags(found.run.setup.engine)
    if form == "json":
        print_json(verdict_objects([found], engine_pair_flags)[0])
    else:
        document, closing = (
            budget_document_with_run_facts(found, flags),
            budget_closing_line(found, flags),
        )
        show_document(document, form, closing)
    return 0 if found.reference else 1


def _show_answers(form: str, verdicts: "Sequence[Verdict]") -> None:
    """Print what each of *verdicts* sets, in a *form* of `report.answer`."""
    from codeneedle.cli.engines import find_launch_words
    from codeneedle.report import answer as report

    answers = [report.answer_or_refuse(verdict) for verdict in verdicts]
    if form == "json":
        of_engines = [
            (answer, find_launch_words(answer.run.setup.engine)) for answer in answers
        ]
        objects = [report.answer_object(answer, words) for answer, words in of_engines]
        print_json(objects if objects[1:] else objects[0])
    elif form == "badge":
        print_escaped_on_terminal("".join(map(report.answer_badge_svg, answers)))
    else:
        lines = report.answer_lines(answers, form, find_launch_words)
        print_escaped_on_terminal("".join(f"{line}\n" for line in lines))


@app.command()
def page(
    names: RunNames = None,
    *,
    max_loss: MaxLoss = None,
    max_lost: MaxLost = None,
    max_eval_lost: MaxEvalLost = None,
    max_memory: MaxMemory = None,
    at: AtOption = None,
    out: OutOption = RUNS,
) -> None:
    """Write one HTML file of one or more runs, and print its path."""
    from codeneedle.cli.engines import engine_pair_flags
    from codeneedle.report.chosen_runs import read_runs_and_output_folder
    from codeneedle.report.page import page as html_page
    from codeneedle.system.files import write_atomically

    runs, folder = read_runs_and_output_folder(out, names or ())
    html = html_page(
        runs,
        limits_with_defaults(max_loss, max_lost, max_eval_lost, max_memory, at),
        engine_pair_flags,
    )
    file = folder / "page.html"
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, html.encode())
    print_escaped_on_terminal(f"{file}\n")


@app.command()
def compare(
    first: Annotated[
        str, argument("A", "A run by name or folder, or a text with receipts (or -).")
    ],
    others: Annotated[
        list[str] | None, argument("B...", "Runs to compare with it, or texts.")
    ] = None,
    *,
    json: JsonOption = False,
    out: OutOption = RUNS,
) -> None:
    """
    Compare runs with the first: setups, then metrics by pair.

    Where a text with receipts is named, all stand side by side, and nothing is tested.
    """
    from codeneedle.report import compare as comparison
    from codeneedle.report.chosen_runs import read_single_run
    from codeneedle.report.receipt import is_file_or_stdin

    names = [first, *(others or ())]
    if any(map(is_file_or_stdin, names)):
        _show_receipts(names, out, json=json)
        return
    if not others:
        raise BadInput(
            source=f"compare {first}",
            reason="names a single run",
            hint="Name another run beside it, or a text with receipts.",
        )
    base = read_single_run(out, first)
    compared = [
        comparison.compare(base, read_single_run(out, other)) for other in others
    ]
    if json:
        print_json([*map(comparison.comparison_object, compared)])
    else:
        show_document(comparison.comparisons_document(compared))


def _show_receipts(names: list[str], out: Path, *, json: bool) -> None:
    """Print texts with receipts, and runs, side by side."""
    from codeneedle.report import receipt
    from codeneedle.report.chosen_runs import read_single_run

    found = receipt.read_or_make_receipts(
        names, lambda name: read_single_run(out, name)
    )
    if json:
        print_json(receipt.receipt_objects(found))
    else:
        show_document(receipt.receipts_document(found))


@app.command()
def merge(
    folders: Annotated[
        list[str],
        argument("FOLDER...", "Run folders, or folders given to --out."),
    ],
    *,
    out: OutOption = RUNS,
) -> None:
    """
    Join shares of several hosts, and print the run folder.

    It copies records; reports read shares as one without it. Setups that differ, also
    in processor or build, are refused: see 'compare'.
    """
    from codeneedle.cli.progress import print_notes, show_task_progress
    from codeneedle.sweep.merge import merge as joined
    from codeneedle.text import plural

    with show_task_progress(stderr_console(), "merging") as tell:
        runs = joined([Path(folder) for folder in folders], out, tell=tell)
    for folder, run in runs:
        print_notes(
            stderr_console(), (f"left out of {reason}" for reason in run.left_out)
        )
        alike = plural(len(run.compared), "cell")
        taken = f"{plural(len(run.cells), 'record')} of {len(run.stores)} folders"
        print_notes(stderr_console(), [f"{taken}; {alike} of several, the same in all"])
        print_escaped_on_terminal(f"{folder}\n")


@app.command()
def memory(
    name: OnlyRunName = None, *, json: JsonOption = False, out: OutOption = RUNS
) -> None:
    """Show the memory of each pair, as it was measured."""
    from codeneedle.report.chosen_runs import read_runs
    from codeneedle.report.memory import (
        measured_memory_document,
        measured_memory_objects,
    )

    runs = read_runs(out, name)
    if json:
        print_json(measured_memory_objects(runs))
        return
    for run in runs:
        show_document(measured_memory_document(run))


@app.command()
def show(
    named: Annotated[
        list[str],
        argument(
            "[NAME] K/V [FUNCTION]",
            "A run, as others take it; a pair: q8_0/q4_0; one function, question or "
            "turn alone.",
            complete=run_names,
        ),
    ],
    *,
    transcript: Annotated[
        Path | None,
        option(
            "--transcript",
            "FILE",
            parse_path,
            "The conversations: a run does not hold their text.",
            "the file that was measured",
        ),
    ] = None,
    out: OutOption = RUNS,
) -> None:
    """Show the answers of a pair and its failures, or one answer."""
    from codeneedle.probes.answers import View
    from codeneedle.report.answers import answers_document, parse_run_pair_function
    from codeneedle.report.chosen_runs import read_runs

    name, pair, function = parse_run_pair_function(named)
    view = View(answers_width(), transcript)
    show_document(answers_document(read_runs(out, name), pair, function, view))


@corpora.command("list")
def list_corpora(*, json: JsonOption = False) -> None:
    """List the corpora by name."""
    from codeneedle.corpora import registry
    from codeneedle.report.corpus import corpora_objects, corpora_table

    if json:
        print_json(corpora_objects(registry.named_corpora()))
    else:
        show_document([corpora_table(registry.named_corpora())])


@corpora.command("show")
def show_corpus(
    name: CorpusName,
    function: Annotated[str | None, argument("FUNCTION", "Print its body.")] = None,
) -> None:
    """Show the functions of a corpus, or the body of one."""
    from codeneedle.corpora import registry
    from codeneedle.report.corpus import corpus_overview, right_answer_lines

    with stderr_console().status("reading the corpus"):
        loaded = registry.load(name)
    if function is None:
        show_document(corpus_overview(loaded))
    else:
        print_escaped_on_terminal(f"{right_answer_lines(loaded, function)}\n")


@app.command("gen-corpus")
def gen_corpus(
    functions: Annotated[int, typer.Option(help="How many functions.")] = 200,
    value_len: Annotated[int, typer.Option(help="Characters of each literal.")] = 24,
    lines: Annotated[int, typer.Option(help="Lines of each function's body.")] = 20,
    seed: Annotated[int, typer.Option(help="The same seed gives the same text.")] = 42,
    twins: Annotated[
        int, typer.Option(help="Functions of nearly the same name and body.")
    ] = 1,
    differ: Annotated[int, typer.Option(help="Lines in which twins differ.")] = 1,
    out: Annotated[
        Path | None,
        option(
            "--out",
            "FILE",
            parse_path,
            "The file to write.",
            "corpora/random-bodies[-SEED].py",
        ),
    ] = None,
) -> None:
    """Write a seeded corpus that nothing can compress."""
    refuse_deleted_working_folder()
    from codeneedle.corpora.random_bodies import Knobs, write_and_describe_corpus
    from codeneedle.corpora.registry import checked_generated_path

    knobs = Knobs(
        functions=functions,
        value_length=value_len,
        lines=lines,
        seed=seed,
        twins=twins,
        differ=differ,
    )
    print_escaped_on_terminal(
        f"{write_and_describe_corpus(knobs, checked_generated_path(knobs, out))}\n"
    )


@app.command()
def doctor(
    model: ModelOption = None,
    llama_server: ServerOption = None,
    engine: EngineOption = ENGINE,
    env: EnvOption = None,
    *,
    json: JsonOption = False,
) -> int:
    """Show what would run here, what is missing, and how to fix it."""
    from codeneedle.cli.doctor import diagnose, doctor_document, doctor_object
    from codeneedle.cli.progress import show_task_progress
    from codeneedle.engines.survey import reporting_survey_progress

    with (
        show_task_progress(stderr_console(), "planning a sweep") as tell,
        reporting_survey_progress(tell),
    ):
        diagnosis = diagnose(
            engine=engine, llama_server=llama_server, model=model, env=env or ()
        )
    if json:
        print_json(doctor_object(diagnosis))
    else:
        show_document(doctor_document(diagnosis))
    return 0 if diagnosis.is_ready else 3


@app.command()
def fetch(
    name: Annotated[str, argument("MODEL", "A model by name: smollm2.")],
) -> None:
    """Fetch a model by name, and print its path."""
    from codeneedle.cli.progress import fetch_missing_models
    from codeneedle.models import pretrained

    if name not in pretrained.NAMES:
        raise UnknownName(kind="model", name=name, known=pretrained.NAMES)
    path = pretrained.path_unless_built_in(name)
    fetch_missing_models(stderr_console(), [path])
    print_escaped_on_terminal(f"{path or pretrained.checked_built_in_path()}\n")


@app.command()
def llama(
    *,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Build even if one is installed already.")
    ] = False,
    backend: Annotated[
        str | None,
        typer.Option(
            "--backend",
            metavar="NAME",
            help="Where it computes: cuda, hip, vulkan, sycl, metal or cpu; built "
            "beside the others, used by LLAMA_SERVER.  [default: cuda where its "
            "compiler and a GPU are, metal on Macs, else cpu]",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Build llama.cpp into the cache folder if none is installed."""
    from codeneedle.cli.progress import build_llama_if_missing

    where = build_llama_if_missing(stderr_console(), anyway=anyway, backend=backend)
    print_escaped_on_terminal(f"{where}\n")
