"""The verdict in words: what to set, what is open, and what may not have been seen."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from made_losses import (
    BEYOND,
    OPEN,
    REFERENCE,
    WITHIN,
    losing,
    losing_run,
    losing_setup,
)
from made_records import failed_record
from made_transcripts import transcript_run
from made_verdicts import (
    BELOW,
    continuing,
    losing_long_texts,
    made_verdicts,
    texts,
    with_klds,
)
from printing import printed

from codeneedle.cache_types import Pair
from codeneedle.records.record import Phases, Status
from codeneedle.report.check import Check, exit_code_and_reason
from codeneedle.report.data import json_text
from codeneedle.report.markdown import markdown
from codeneedle.report.verdict import (
    beyond_phrase,
    brief_document,
    decision_entries,
    further_metric_tables,
    headline_and_gain_lines,
    headline_sentences,
    verdict_table,
    verdicts_document,
)
from codeneedle.report.verdict_data import verdict_objects
from codeneedle.verdict.judge import Outcome, judge
from codeneedle.verdict.limits import Limits
from codeneedle.verdict.remarks import remarks

GOOD, COARSE = "q8_0/q8_0", "q4_0/q4_0"

VERDICTS = made_verdicts()


def pair_flags(pair):
    return f"-ctk {pair.k} -ctv {pair.v}"


def said(run, limits=None):
    """The first lines of the verdict on *run*."""
    return headline_sentences(judge(run, limits), pair_flags)


def rows(run, limits=None):
    """By pair, its row of the whole table; and the heading."""
    found = judge(run, limits)
    shown = verdict_table(found, found.results)
    at = shown.heading.index("K/V")
    return shown.heading, {line[at]: line for line in shown.rows}


# The first lines


@pytest.mark.parametrize("about", VERDICTS)
def test_the_first_line_says_set_or_keep_where_that_is_the_outcome(about):
    found = VERDICTS[about]
    first, *_ = headline_sentences(found, pair_flags)
    begins = first.partition(":")[0]

    assert found.outcome in {
        "Set": {Outcome.SET},
        "Keep": {Outcome.KEEP},
    }.get(begins, {Outcome.NO_ANSWER, Outcome.NOTHING_FITS})


def test_the_command_that_continues_repeats_folder_and_limits(golden):
    run = continuing({GOOD: BELOW, COARSE: BEYOND})
    limits = Limits(max_loss=0.0101, max_lost=0.2)
    elsewhere = replace(run, root=Path("my runs"))
    screened = with_klds(run, {GOOD: 0.01, COARSE: 0.01})

    assert golden == (said(elsewhere, limits)[2], said(screened)[2])


def test_the_nearest_pair_needs_as_many_functions_as_its_row_says(golden):
    run = continuing({GOOD: BELOW, COARSE: BEYOND})
    word, _, phrase = rows(run)[1][GOOD][-1].partition(": ")

    assert "open" == word
    assert golden == phrase
    assert said(run)[1].endswith(f"; {phrase}.")


@pytest.mark.parametrize("about", VERDICTS)
def test_what_a_pair_that_is_not_set_would_save_says_so(about):
    found = VERDICTS[about]
    gain = None if found.is_of_built_in_model else found.memory_saving
    lines = [str(each) for each in headline_and_gain_lines(found, pair_flags).lines]
    told = [line for line in lines if " of the memory " in line]

    assert (gain is not None) == bool(told)
    if gain and gain.pair != found.chosen:
        which = f"(by {gain.pair}, which is {found.decision(gain.pair)}"
        assert f" at most {which}" in told[0]


def test_few_chunks_of_a_screening_are_not_taken_for_functions():
    """Divergence of four chunks decides a pair; recall has 16 functions."""
    run = with_klds(losing_run({GOOD: OPEN, COARSE: OPEN}), {COARSE: 0.2}, chunks=4)

    found = judge(run)

    assert "can show" not in " ".join(headline_sentences(found, pair_flags))
    assert "functions" == found.results_of_main_metric[0].metric.unit_noun
    assert "of 16 functions" in verdict_table(found, found.results).heading


def test_a_check_tells_a_program_within_open_and_beyond():
    found = judge(
        losing_run(
            {GOOD: WITHIN, "q4_0/q8_0": OPEN, COARSE: BEYOND},
            failed_record("q5_0/q5_0"),
        )
    )

    for pair, code, begins in (
        (REFERENCE, Check.WITHIN, "bf16/bf16: within, as the reference"),
        (GOOD, Check.WITHIN, "q8_0/q8_0: within: "),
        ("q4_0/q8_0", Check.OPEN, "q4_0/q8_0: open"),
        (COARSE, Check.BEYOND, "q4_0/q4_0: beyond: loses "),
        ("q5_0/q5_0", Check.OPEN, "q5_0/q5_0: "),
        ("q5_1/q5_1", Check.OPEN, "q5_1/q5_1: not measured"),
        ("Q8_0/Q8_0", Check.OPEN, "Q8_0/Q8_0: not measured. Did you mean 'q8_0/q8_0'?"),
    ):
        told, line = exit_code_and_reason(found, Pair.parse(str(pair)))
        assert (code, True) == (told, line.startswith(begins)), line


def test_a_size_of_memory_leaves_out_the_rows_that_do_not_fit():
    run = losing_run({GOOD: OPEN, COARSE: BEYOND})
    small = int(judge(run).result(Pair.parse(COARSE)).memory_bytes)

    _, found = rows(run, Limits(max_memory_bytes=small))

    assert [REFERENCE, COARSE] == list(found)
    assert "1.1 MiB" == found[COARSE][1]


# The table


def test_a_row_has_the_loss_its_bounds_and_the_word(golden):
    unclear = tuple(0.005 + 0.01 * (-1) ** at for at in range(16))
    losses = {GOOD: WITHIN, COARSE: BEYOND, "q8_0/q4_0": unclear}
    heading, found = rows(losing_run(losses))

    assert ["K/V", "memory", "loss", "from", "to", "of 16 functions"] == heading
    assert [REFERENCE, "100%", "", "", "", "reference *"] == found[REFERENCE]
    assert [GOOD, "53%", "0.0 %", "-0.1 %", "0.1 %", "within"] == found[GOOD]
    assert "beyond" == found[COARSE][-1]
    assert golden == found["q8_0/q4_0"][-1]
    assert [REFERENCE, GOOD, "q8_0/q4_0", COARSE] == list(found)


def test_pairs_of_more_functions_are_said_to_have_more():
    setup = losing_setup([REFERENCE, GOOD, COARSE], forced=96)
    run = losing_run({GOOD: WITHIN * 4, COARSE: BEYOND}, setup=setup)

    heading, found = rows(run)

    assert "of 64 functions" in heading
    assert "beyond (of 16 functions)" == found[COARSE][-1]


def test_a_pair_beyond_by_another_metric_names_it():
    run = with_klds(losing_run({GOOD: WITHIN, COARSE: WITHIN}), {COARSE: 0.2})

    heading, found = rows(run)

    assert "by" == heading[-1]
    assert ["0.0 %", "beyond", "kld"] == [found[COARSE][at] for at in (2, -2, -1)]
    assert "" == found[GOOD][-1]


def test_classes_of_tokens_are_columns_of_the_one_table():
    """Calls of tools lose, and all else does not: they decide, and the whole stands."""
    run = transcript_run(
        {
            "f16/f16": lambda _n, _at: 0.9,
            GOOD: lambda n, at: 0.9 - (0.3 + 0.01 * (n % 3)) * (at >= 4),
        }
    )

    heading, found = rows(run)

    assert ["by", "all", "tool", "text"] == heading[-4:]
    assert ["beyond", "transcript-logp@tool"] == found[GOOD][-5:-3]
    assert found[GOOD][2] == found[GOOD][-2]
    assert "0.0 % within" == found[GOOD][-1]
    assert [] == [*further_metric_tables(judge(run), judge(run).results)]


def test_a_pair_in_trouble_has_its_status_there_and_the_reason_below():
    reason = "cannot allocate 9 GiB, " * 4 + "which would fold"
    run = losing_run(
        {GOOD: WITHIN}, failed_record(COARSE, Status.OUT_OF_MEMORY, reason)
    )

    _, found = rows(run)

    assert "out-of-memory" == found[COARSE][-1]
    assert any(line.endswith(reason) for line in texts(judge(run)))


def test_a_single_function_has_no_bounds(golden):
    heading, found = rows(losing_run({GOOD: [0.1]}))

    assert "of 1 function" == heading[-1]
    assert ["10.0 %", "-", "-"] == found[GOOD][2:-1]
    assert golden == found[GOOD][-1]


def test_lengths_from_which_answers_are_lost_are_told():
    (told,) = verdict_objects([judge(losing_long_texts())], lambda _engine: pair_flags)

    assert [("single", 2048, "q4_0", "f16")] == [
        (each.task, each.length, each.k, each.v) for each in told.lost_from
    ]


# By metric


def test_grids_name_the_pairs_of_each_word_by_one_metric(golden):
    run = with_klds(
        losing_run({GOOD: WITHIN, COARSE: BEYOND, "q8_0/q4_0": OPEN}),
        {GOOD: 0.001, COARSE: 0.2},
    )
    found = judge(run)

    for metric in ("recall-logp", "kld"):
        assert golden == decision_entries(found, metric)
    assert [] == decision_entries(found, "kv")
    assert ["1 pair", "1 pair", ""] == [
        beyond_phrase(found, name) for name in ("recall-logp", "kld", "kv")
    ]


def test_a_metric_that_has_no_say_says_why():
    setup = losing_setup([REFERENCE, GOOD])
    poor = losing(setup, REFERENCE, [0.0] * 16, behind=range(5))
    run = losing_run({GOOD: WITHIN}, poor, reference="", setup=setup)

    ((word, phrase),) = decision_entries(judge(run), "recall-logp")
    assert "verdict" == word
    assert phrase.startswith("no say: ")
    assert "" == beyond_phrase(judge(run), "recall-logp")


@pytest.mark.parametrize(("coarse", "phrase"), [(BEYOND, "K q4_0"), (WITHIN, "none")])
def test_the_summary_names_what_is_beyond(coarse, phrase):
    run = losing_run({GOOD: WITHIN, "q4_0/q8_0": coarse, COARSE: coarse})

    assert phrase == beyond_phrase(judge(run), "recall-logp")


# Forms


def test_a_terminal_of_80_columns_is_wide_enough():
    types = ("bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0")
    pairs = [f"{k}/{v}" for k in types for v in types][1:]
    run = losing_run(dict.fromkeys(pairs[:20], OPEN) | {COARSE: BEYOND})
    run = with_klds(run, dict.fromkeys(pairs[:3], 0.2))

    lines = printed(
        verdicts_document([judge(run)], lambda _engine: pair_flags), width=80
    ).splitlines()

    assert 80 >= max(map(len, lines))
    row = next(line for line in lines if line.startswith("q4_0/q4_0 "))
    assert "beyond" in row


def test_the_end_of_a_sweep_has_the_rows_that_matter_and_names_the_others(golden):
    run = losing_run(
        {
            "bf16/q8_0": BEYOND,
            "q8_0/bf16": [0.2 + each for each in BEYOND],
            GOOD: WITHIN,
            COARSE: BEYOND,
        }
    )
    text = printed(brief_document(judge(run), pair_flags))
    full = printed(verdicts_document([judge(run)], lambda _engine: pair_flags))

    [others] = [line for line in text.splitlines() if "more pairs" in line]
    shown = text.partition(others)[0]
    assert all(pair in shown for pair in (REFERENCE, GOOD, COARSE))
    # As small as the pair that is set, and smaller than the reference: both lose more.
    assert "q8_0/bf16" not in shown
    assert "bf16/q8_0" not in shown
    assert golden == others
    assert all(str(record.pair) in full for record in run.records)
    elsewhere = replace(run, root=Path("other"))
    limits = Limits(max_loss=0.02)
    assert "made-model --out other --max-loss 2%\n" in printed(
        brief_document(judge(elsewhere, limits), pair_flags)
    )


def test_markdown_has_the_headline_the_table_and_the_facts():
    found = judge(losing_run({GOOD: WITHIN}))
    text = markdown(verdicts_document([found], lambda _engine: pair_flags))
    lines = text.split("\n")

    assert "### random-bodies/made-model: verdict" == lines[0]
    assert lines[2].startswith("- **Set: ")
    assert "loses" in lines[3]
    assert any("| K/V | memory | loss |" in line for line in lines)
    assert any("like these 16" in line for line in lines)
    assert text.endswith("\n")


def test_json_has_what_the_verdict_rests_on():
    run = with_klds(
        losing_run({GOOD: WITHIN, COARSE: [0.1]}, failed_record("q5_1/q5_1")),
        {GOOD: 0.001},
    )
    objects = verdict_objects([judge(run)], lambda _engine: pair_flags)
    (found,) = json.loads(json_text(objects))

    assert (REFERENCE, GOOD, False) == (
        found["reference"],
        found["set"],
        found["is_instrument"],
    )
    assert {
        "max_loss": 0.01,
        "max_lost": 0.1,
        "max_eval_lost": 0.02,
        "max_change": 0.03,
        "max_memory_bytes": None,
        "at": None,
    } == found["limits"]
    by_pair = {f"{each['k']}/{each['v']}": each for each in found["pairs"]}
    good, coarse, failed = (by_pair[name] for name in (GOOD, COARSE, "q5_1/q5_1"))
    assert ("within", []) == (good["decision"], good["lacking"])
    assert ["recall-logp", "kld"] == [row["name"] for row in good["metrics"]]
    row = good["metrics"][0]
    assert row["low"] < row["loss"] < row["high"] < row["limit"]
    assert (16, "functions", "probability", None) == (
        row["units"],
        row["noun"],
        row["kind"],
        row["needed"],
    )
    assert (None, None) == tuple(coarse["metrics"][0][end] for end in ("low", "high"))
    assert (None, "crashed: it died", []) == (
        failed["decision"],
        failed["trouble"],
        failed["metrics"],
    )
    assert found["headline"][0].startswith("Set: ")
    assert [(each.kind, each.text) for each in remarks(judge(run), pair_flags)] == [
        (each["kind"], each["text"]) for each in found["remarks"]
    ]
    assert ["q5_1/q5_1"] == found["remarks"][-1]["pairs"]
    assert "made-model" in found["facts"]["model"]


def test_the_time_of_further_functions_is_told_where_it_is_known(golden):
    run = continuing({GOOD: OPEN})
    timeless = replace(
        run, records=tuple(replace(r, phases=Phases()) for r in run.records)
    )

    assert " (about " in said(run)[2]
    assert golden == said(timeless)[2].partition(" (about")[0]


@pytest.mark.parametrize("gain", [0.001, 0.004])
def test_a_pair_with_more_right_tokens_than_the_reference_shows_no_loss(gain, golden):
    better = tuple(loss - gain for loss in WITHIN)
    _, loses, *_ = said(losing_run({GOOD: better, COARSE: BEYOND}))

    assert golden == loses
