"""The loss is the first grid and the first picture of a run that has a verdict."""

from dataclasses import replace
from pathlib import Path

import pytest
from made_evaluations import evaluated, with_scores
from made_grids import FAILED, lossy_grid
from made_losses import BEYOND, OPEN, WITHIN, diverging, losing_run
from made_records import failed_record, made_run, stored_run
from made_verdicts import ABOVE, BELOW, NEAR, without_kernel
from printing import printed
from syrupy.assertion import SnapshotAssertion

from codeneedle.records.record import Attention, Run, Status
from codeneedle.report.chosen_runs import (
    LOSS,
    default_metric_name,
    probe_and_metric,
    read_selection,
)
from codeneedle.report.grid import loss_report
from codeneedle.report.heatmap import Files, draw_losses, loss_picture, paint
from codeneedle.report.losses import Losses, losses_of
from codeneedle.report.losses_side_by_side import losses_side_by_side
from codeneedle.report.page import loss_object
from codeneedle.report.pictures import draw_loss_or_metric
from codeneedle.report.shown import Style, legend
from codeneedle.verdict.judge import judge
from codeneedle.verdict.limits import Limits

BROKEN = failed_record("q5_0/q5_0", Status.OUT_OF_MEMORY, "full")
RUN = losing_run(
    {
        "q8_0/q8_0": WITHIN,
        "q8_0/q5_0": OPEN,
        "q4_0/q4_0": BEYOND,
    },
    BROKEN,
)


def pair_flags_of(_engine):
    return lambda pair: f"-ctk {pair.k} -ctv {pair.v}"


def losses(run: Run = RUN, limits: Limits | None = None) -> Losses:
    """The losses of *run*, which has some."""
    found = losses_of(judge(run, limits))
    assert found
    return found


def by_pair(found: Losses) -> dict[str, tuple[str, str]]:
    """The loss of each pair with a record, to one decimal, and its word."""
    return {
        str(cell.pair): (f"{cell.value:.1f}", square.below)
        for cell, square in zip(found.cells(), found.shown_losses(), strict=True)
        if cell.status
    }


def shown(*runs: Run, width: int = 100) -> str:
    """The grid of *runs*, as `codeneedle grid` prints it."""
    _, metric = probe_and_metric(default_metric_name(runs), runs)
    verdicts = [judge(run) for run in runs]
    document = loss_report(runs, [metric], [], verdicts, pair_flags_of)
    return printed(document, width=width)


def test_every_pair_has_its_loss_of_100_right_tokens_and_its_word(
    golden: SnapshotAssertion,
) -> None:
    found = losses()

    assert {
        "bf16/bf16": ("0.0", "reference"),
        "q8_0/q8_0": ("0.0", "set"),
        "q8_0/q5_0": ("0.5", "open"),
        "q4_0/q4_0": ("10.0", "beyond"),
        "q5_0/q5_0": ("nan", ""),
    } == by_pair(found)
    assert golden == found.label
    assert 1.0 == found.limit
    assert 2 == losses(limits=Limits(max_loss=0.001)).digits


def test_losses_are_compared_wherever_attention_ran() -> None:
    """Speeds of pairs without a kernel are not."""
    found = losses(without_kernel(RUN, "q4_0/q4_0"))

    assert [True] * 4 == [cell.is_ranked for cell in found.cells() if cell.has_value]


def test_what_divergence_alone_decides_is_said() -> None:
    run = losing_run({"q8_0/q8_0": WITHIN}, diverging("q8_0/q8_0", [0.5] * 8))
    run = replace(run, records=(*run.records, diverging("bf16/bf16", [0.0] * 8)))

    found = losses(run)

    assert ("0.0", "beyond kld") == by_pair(found)["q8_0/q8_0"]
    assert "kld decides q8_0/q8_0" in " ".join(shown(run).split())


def test_a_pair_whose_losses_failed_says_so_beside_its_divergence() -> None:
    """Of several failures the first."""
    run = losing_run(
        {"q8_0/q8_0": WITHIN},
        diverging("bf16/bf16", [0.0] * 8),
        diverging("q5_0/q5_0", [0.001] * 8),
        BROKEN,
        replace(failed_record("q5_0/q5_0"), probe="retrieval"),
    )
    (cell,) = (each for each in losses(run).cells() if each.pair == BROKEN.pair)

    assert (BROKEN.status, BROKEN.reason) == (cell.status, cell.reason)


def test_scores_are_shown_where_no_right_tokens_were_measured(
    golden: SnapshotAssertion,
) -> None:
    run = losing_run({}, reference="")
    setup = with_scores(run.setup, [1.0] * 40)
    records = (
        evaluated("bf16/bf16", [1.0] * 40),
        evaluated("q8_0/q8_0", [1.0] * 30 + [0.0] * 10),
    )

    found = losses(replace(run, setup=setup, records=records))

    assert "25.0" == by_pair(found)["q8_0/q8_0"][0]
    assert golden == found.what


def test_a_run_without_a_pair_to_set_keeps_its_reference() -> None:
    run = losing_run({"q4_0/q4_0": BEYOND})

    assert " keep bf16/bf16 " in shown(run, run)


def test_divergence_alone_is_no_loss() -> None:
    records = (diverging("bf16/bf16", [0.0] * 8), diverging("q8_0/q8_0", [0.1] * 8))

    assert None is losses_of(judge(replace(RUN, records=records)))


def test_the_first_grid_is_the_loss_and_nats_are_shown_on_demand(
    golden: SnapshotAssertion,
) -> None:
    said = shown(RUN)

    assert golden == said.splitlines()[0]
    assert "[0.0]" in said
    assert "nats" not in said
    assert "oom q5_0/q5_0 out-of-memory: full" in " ".join(said.split())


def test_a_grid_says_why_pairs_are_open(golden: SnapshotAssertion) -> None:
    run = losing_run({"q8_0/q8_0": ABOVE, "q4_0/q4_0": NEAR, "q8_0/q4_0": BELOW})
    entries = legend(losses(run).shown_losses())

    assert golden == sorted(entry for entry in entries if entry[0] == "open")


def test_conditions_take_two_lines(golden: SnapshotAssertion) -> None:
    *_, first, second = shown(RUN, width=120).rstrip().splitlines()

    assert golden == (first, second)


def test_a_grid_of_36_pairs_fits_80_columns() -> None:
    said = shown(lossy_grid(), width=80)

    assert 1 == said.count("K \\ V")
    assert 80 >= max(map(len, said.splitlines()))


def test_a_run_without_a_loss_is_shown_as_before(golden: SnapshotAssertion) -> None:
    run = losing_run({})

    assert golden == [line for line in shown(run).splitlines() if "nats" in line]


def test_a_run_with_written_lines_begins_with_the_summary_of_the_published_table():
    run = lossy_grid(written=True)
    probe, metric = probe_and_metric("recall-logp", [run])
    also = [each for each in probe.metrics if each.name == "matched"]
    document = loss_report([run], [metric], also, [judge(run)], pair_flags_of)

    assert ["pairs", "loss,", "%", "set", "beyond", "avg", "matched", "/20"] == (
        printed(document).splitlines()[0].split()
    )


def test_several_runs_have_a_row_each_with_their_pair_to_set() -> None:
    said = shown(RUN, replace(RUN, name="random-bodies/other"))

    assert "random-bodies/other" in said.split("\n\n")[0]
    assert 2 == said.split("\n\n")[0].count("q8_0/q8_0")


@pytest.mark.slow
def test_the_pair_to_set_is_framed_and_words_stand_in_the_squares() -> None:
    found = losses(lossy_grid())
    picture = loss_picture(found, pair_flags_of("llama.cpp"))
    texts = [text.get_text() for text in paint(picture).axes[0].texts]

    assert found.verdict.chosen == picture.framed
    assert {"reference", "within", "set", "open", "beyond", "oom"} <= {*texts}
    assert 2 == len(picture.facts)
    assert any(FAILED in note for note in picture.notes)


def test_a_picture_of_an_unfinished_run_says_so_in_its_squares_alone() -> None:
    run = losing_run({"q4_0/q4_0": BEYOND})
    run = replace(run, setup=replace(run.setup, pairs=()))
    picture = loss_picture(losses(run), pair_flags_of(""))

    assert "not run" in {each.spelled_text for row in picture.squares for each in row}
    assert not any("not run" in note for note in picture.notes)
    assert not any("codeneedle sweep" in note for note in picture.notes)


@pytest.mark.slow
def test_a_plain_picture_has_no_text_below_and_each_form_its_file(
    tmp_path: Path,
) -> None:
    whole = Files(folder=tmp_path / "whole", forms=("svg", "pdf"))
    plain = Files(folder=tmp_path / "plain", forms=("svg",), is_plain=True)

    svg, pdf = draw_losses(losses(), pair_flags_of(""), whole)
    (short,) = draw_losses(losses(), pair_flags_of(""), plain)

    assert ("heatmap-loss.svg", "heatmap-loss.pdf") == (svg.name, pdf.name)
    assert b"%PDF" == pdf.read_bytes()[:4]
    assert "<!-- Set: -ctk q8_0" in svg.read_text(encoding="utf-8")
    assert "<!-- Set: -ctk q8_0" not in short.read_text(encoding="utf-8")
    assert "<!-- Right tokens lost" in short.read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("metric", "options", "stem"),
    [
        (None, {}, "heatmap-loss"),
        (LOSS, {}, "heatmap-loss"),
        (None, {"difference": True}, "heatmap-recall-logp-difference"),
        ("recall-logp", {}, "heatmap-recall-logp"),
    ],
)
def test_the_first_picture_is_the_loss_and_others_have_their_metric(
    tmp_path: Path, metric, options, stem
) -> None:
    stored_run(tmp_path, RUN)
    chosen = read_selection(tmp_path, "random-bodies", metric=metric)
    files = Files(folder=tmp_path / "new", forms=("svg",))

    drawn = draw_loss_or_metric(
        *(chosen.runs[0], chosen, chosen.verdicts[0], pair_flags_of(""), files),
        **options,
    )

    assert [stem] == [path.stem for path in drawn]


def test_where_attention_ran_stands_behind_the_word_of_a_pair(
    golden: SnapshotAssertion,
) -> None:
    """It is no part of the word: the pair is as open as one in a kernel."""
    (slow,) = [each for each in RUN.records if str(each.pair) == "q8_0/q5_0"]
    told = replace(
        slow.effective, attention=Attention.CPU, attention_evidence="graph splits"
    )
    others = [each for each in RUN.records if each is not slow]
    run = replace(RUN, records=(*others, replace(slow, effective=told)))

    found = losses(run)
    picture = loss_picture(found, pair_flags_of(""))
    below = {each.below: each.style for row in picture.squares for each in row}

    assert Style.OPEN in below["open cpu"]
    assert "open cpu" in shown(run)
    assert golden == [x for x in shown(run).splitlines() if x.startswith("cpu ")]
    assert ["0.5", "open cpu"] in [each[:2] for each in loss_object(found)["cells"]]


def test_answers_are_shown_behind_the_share_that_was_lost() -> None:
    said = shown(made_run(lambda pair, at: 20 - (pair.k == "q4_0") * (at % 3)))

    assert "functions lost, of 100" in said
    assert said.index("functions lost") < said.index("matched lines of 20")


def test_losses_of_several_runs_stand_side_by_side_by_type_and_pair():
    both = {"bf16/q8_0": WITHIN, "q8_0/q8_0": WITHIN}
    first = losing_run(both)
    second = replace(losing_run(both | {"q8_0/q4_0": BEYOND}), name="other/model")

    shown = printed(losses_side_by_side([judge(run) for run in (first, second)]))

    rows = {line[:9].strip(): line[9:].split() for line in shown.splitlines()}
    assert ["0.0", "0.0"] == rows["V q8_0"]
    assert ["-", "5.0"] == rows["K q8_0"]
    assert ["*", "*"] == rows["bf16/bf16"]
    assert [".", "10.0", "beyond"] == rows["q8_0/q4_0"]
    pairs = [line[:9].strip() for line in shown.splitlines() if "/" in line[:9]]
    assert sorted({*pairs}) == sorted(pairs)


def test_a_grid_takes_several_names_and_run_folders(tmp_path):
    first, second = (stored_run(tmp_path / each) for each in ("a", "b"))
    folders = [str(tmp_path / each / first.name) for each in ("a", "b")]

    chosen = read_selection(tmp_path / "a", second.name, *folders)

    assert [tmp_path / "a", tmp_path / "b"] == [run.root for run in chosen.runs]
