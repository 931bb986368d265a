"""Two runs side by side: setups, tested metrics, and what must not be compared."""

import json
from dataclasses import replace

import pytest
from made_losses import BEYOND, diverging, losing_run
from made_records import (
    asking_for,
    asking_recall,
    forced_of,
    lost_round,
    made_forced,
    made_record,
    made_round,
    made_run,
    made_setup,
    stored_run,
    written_of,
)
from made_retrieval import (
    made_calibration,
    made_dial,
    made_texts,
    retrieval_record,
    with_calibration,
)
from printing import printed

from codeneedle.cache_types import Pair
from codeneedle.errors import BadInput
from codeneedle.records.record import Attention, Effective, Run
from codeneedle.report.chosen_runs import read_single_run
from codeneedle.report.compare import (
    NOTHING_SHARED,
    WALL,
    compare,
    comparison_document,
    comparison_object,
    comparisons_document,
    kernel_difference_phrase,
)
from codeneedle.report.data import json_text

SETUP = made_setup(types_k=("bf16", "q4_0"), types_v=("bf16", "q4_0"))


def compared(before=20, after=20, *, setup=SETUP, other=SETUP):
    first, second = (
        made_run(lambda _pair, at, lines=lines: lines - at % 2, setup=each)
        for lines, each in ((before, setup), (after, other))
    )
    return compare(first, second)


def change(found, name):
    return next(each for each in found.changes if each.metric.name == name)


def test_a_loss_is_worse_and_the_setting_behind_it_is_named():
    found = compared(20, 18, other=replace(SETUP, rotation=False))

    assert (("rotation", "on", "off"),) == found.setups
    matched = change(found, "matched")
    assert ("worse", -2.0) == (matched.better_or_worse_phrase, matched.bounds.mean)
    assert matched.bounds.high < 0
    assert "better" == change(compared(18, 20), "matched").better_or_worse_phrase


def test_equal_runs_show_no_difference():
    found = compared()

    assert () == found.setups
    assert "no difference shown" == change(found, "matched").better_or_worse_phrase


def test_what_must_not_be_compared_says_why(golden):
    speeds = compared(other=replace(SETUP, machine="another"))
    memory = compared(other=replace(SETUP, context=999))
    corpus = replace(SETUP.corpus, sha256="00" * 32)
    texts = compared(other=replace(SETUP, corpus=corpus))

    refused = change(speeds, "decode")
    assert refused.bounds is None
    assert "K/V" not in printed(
        comparison_document(replace(speeds, changes=(refused,)))
    )
    assert "" == change(compared(), "decode").refused
    others = (change(memory, "kv"), change(texts, "matched"))
    assert golden == [each.better_or_worse_phrase for each in (refused, *others)]


@pytest.mark.parametrize(
    ("text", "words"),
    [("prose", "no difference shown"), ("other", "other settings: text")],
)
def test_divergence_on_a_text_of_its_own_is_compared_across_corpora(text, words):
    corpus = replace(SETUP.corpus, sha256="00" * 32)
    first, second = (
        replace(
            losing_run({}),
            setup=replace(setup, probes={"divergence": {"text": name}}),
            records=(diverging("bf16/bf16", [0.01, 0.02, 0.03]),),
        )
        for setup, name in ((SETUP, "prose"), (replace(SETUP, corpus=corpus), text))
    )

    assert words in change(compare(first, second), "kld").better_or_worse_phrase


def test_texts_of_another_seed_are_not_compared(golden):
    runs = [
        replace(
            made_run(setup=SETUP),
            setup=replace(with_calibration(SETUP, made_calibration()), seed=seed),
            records=(retrieval_record("bf16/bf16", made_texts()),),
        )
        for seed in (1, 2)
    ]

    assert golden == change(compare(*runs), "retrieval").better_or_worse_phrase


def test_functions_that_both_runs_ask_for_are_paired_by_name(golden):
    asked = written_of(SETUP)[:8]
    elsewhere = [replace(each, name=f"{each.name}_again") for each in asked]
    fewer, others = (
        change(compared(20, 18, other=asking_for(SETUP, written=each)), "matched")
        for each in (asked, elsewhere)
    )

    assert ("worse", -2.0) == (fewer.better_or_worse_phrase, fewer.bounds.mean)
    assert golden == others.better_or_worse_phrase


def answered(missing, *, functions):
    """A run of one pair that lacks the answer of one of so many functions."""
    setup = made_setup(needles=0, forced=24, types_k=("bf16",), types_v=("bf16",))
    setup = asking_recall(setup, {"way": ["force"], "functions": 16})
    forced = [
        lost_round(n, "timed out")
        if at == missing
        else made_forced(n, logprob=-0.1 - 0.01 * at)
        for at, n in enumerate(forced_of(setup)[:functions])
    ]
    record = made_record("bf16/bf16", [], forced=forced)
    return Run(name="made", setup=setup, records=(record,))


@pytest.mark.parametrize("functions", [16, 20])
def test_functions_are_paired_by_name(functions):
    runs = [answered(0, functions=16), answered(15, functions=functions)]

    recalled = change(compare(*runs), "recall-logp")

    assert ("no difference shown", 0.0, 14) == (
        recalled.better_or_worse_phrase,
        recalled.bounds.mean,
        recalled.bounds.units,
    )


def test_functions_that_are_asked_for_other_lines_are_not_compared(golden):
    """The seed of their choice, which a corpus file sets, decides the lines."""
    first, second = (answered(0, functions=16) for _ in range(2))
    forced = forced_of(second.setup)
    moved = [replace(each, lines=each.lines[::-1]) for each in forced]
    second = replace(second, setup=asking_for(second.setup, forced=moved))

    told = change(compare(first, second), "recall-logp").better_or_worse_phrase
    assert golden == told


def test_pairs_without_enough_answers_are_not_compared():
    setup = replace(SETUP, types_v=("bf16",))
    rounds = [
        made_round(n, reply="", error="gone") if at < 4 else made_round(n)
        for at, n in enumerate(written_of(setup))
    ]
    broken = made_run(setup=setup, failed=[made_record("q4_0/bf16", rounds)])

    matched = change(compare(made_run(setup=setup), broken), "matched")

    assert ("no difference shown", 0.0) == (
        matched.better_or_worse_phrase,
        matched.bounds.mean,
    )


def test_other_settings_of_a_probe_are_not_compared(golden):
    written, both = ({"way": way} for way in (["write"], ["write", "force"]))
    other = {"way": ["write", "force"], "strict": True}

    def words(conditions):
        changed = compared(
            setup=asking_recall(SETUP, written), other=asking_recall(SETUP, conditions)
        )
        return change(changed, "matched").better_or_worse_phrase

    assert "no difference shown" == words(both)
    assert golden == words(other)


def test_tasks_of_another_difficulty_are_not_compared(golden):
    runs = [
        replace(
            made_run(setup=SETUP),
            setup=with_calibration(SETUP, made_calibration(made_dial(level=setting))),
            records=(retrieval_record("bf16/bf16", made_texts()),),
        )
        for setting in (2, 3)
    ]

    found = compare(*runs)

    [told] = {
        each.better_or_worse_phrase
        for each in found.changes
        if each.metric.name.startswith("retrieval")
    }
    assert golden == told


def test_forced_recall_changes_by_a_share_of_the_right_tokens():
    before, after = (
        losing_run({"q8_0/q8_0": losses}) for losses in (BEYOND, [0.05] * 16)
    )
    before = replace(before, name="first")

    found = compare(before, after)

    recalled = change(found, "recall-logp")
    # The reference is the same in both: half of what the other pair gains.
    assert ("better", 0.025) == (
        recalled.better_or_worse_phrase,
        pytest.approx(recalled.bounds.mean),
    )
    text = printed(comparison_document(found), width=80)
    (row,) = (line for line in text.splitlines() if line.startswith("recall-logp  "))
    assert row.split()[1:3] == ["+2.5", "%"]
    (metric,) = (
        each
        for each in comparison_object(found)["changes"]
        if each["metric"] == "recall-logp"
    )
    assert "share" == metric["unit"]


def test_the_json_keeps_its_keys():
    found = json.loads(json_text(comparison_object(compared(20, 18))))

    assert {"first", "second", "setups", "remark", "changes", "rows"} == set(found)
    [matched] = [each for each in found["changes"] if each["metric"] == "matched"]
    rows = [row for row in found["rows"] if row["metric"] == "matched"]
    assert (-2.0, "worse") == (matched["change"], matched["words"])
    assert [19.5] * 4 + [17.5] * 4 == [row["value"] for row in rows]
    assert matched["low"] <= matched["change"] <= matched["high"] < 0
    assert "lines" == matched["unit"]


def test_a_run_is_named_by_its_folder_or_by_a_name_that_is_its_alone(tmp_path):
    run = stored_run(tmp_path / "a")
    assert (
        run.name == read_single_run(tmp_path / "b", str(tmp_path / "a" / run.name)).name
    )
    assert run.name == read_single_run(tmp_path / "a", "random-bodies").name

    twin = tmp_path / "a" / "random-bodies" / "other-model"
    (tmp_path / "a" / run.name).rename(twin)
    stored_run(tmp_path / "a")
    with pytest.raises(BadInput, match="name of 2 runs"):
        read_single_run(tmp_path / "a", "random-bodies")


def test_runs_of_one_name_are_told_apart_by_their_folders(tmp_path):
    run = made_run(setup=SETUP)
    first, second = (replace(run, root=tmp_path / each) for each in ("a", "b"))

    said = printed(comparison_document(compare(first, second)), width=1000)

    assert (
        f"{tmp_path / 'b' / run.name} compared with {tmp_path / 'a' / run.name}" in said
    )
    assert str(first.folder) == comparison_object(compare(first, second))["first"]


def test_runs_without_a_metric_in_common_say_so(golden):
    run = made_run(setup=SETUP)

    said = printed(comparison_document(compare(run, replace(run, records=()))))

    assert golden == NOTHING_SHARED
    assert NOTHING_SHARED in said
    assert "the second is" not in said


def test_another_number_of_functions_is_another_number_of_units_alone():
    first, fewer = answered(0, functions=16), answered(0, functions=8)
    fewer = replace(
        fewer,
        setup=asking_recall(
            asking_for(fewer.setup, forced=forced_of(fewer.setup)[:8]),
            {"way": ["force"], "functions": 8},
        ),
    )

    assert not change(compare(first, fewer), "recall-logp").refused
    assert (
        "not tested"
        not in change(compare(first, fewer), "recall-logp").better_or_worse_phrase
    )


@pytest.mark.parametrize(
    "facts",
    [{"llama": "0.7.0"}, {"cpu_features": "AVX2"}],
    ids=["builds", "processors"],
)
def test_divergence_is_not_compared_across_builds_and_processors(facts, golden):
    record = diverging("bf16/bf16", [0.01, 0.02])
    run = replace(losing_run({}), records=(record, *losing_run({}).records))
    found = compare(run, replace(run, setup=replace(run.setup, **facts)))

    for name in ("kld", "top1"):
        assert golden == change(found, name).refused
        assert change(found, name).bounds is None
    assert "" == change(found, "ppl").refused == change(found, "recall-logp").refused
    assert WALL in " ".join(printed(comparison_document(found)).split())
    assert WALL == comparison_object(found)["remark"]
    assert "" == compare(run, run).why_divergence_not_compared


def test_kernels_are_other_ones_by_build_or_by_features_of_the_processor(golden):
    def phrase(builds, features=("", "")):
        first, second = (
            replace(SETUP, llama=build, cpu_features=names)
            for build, names in zip(builds, features, strict=True)
        )
        return kernel_difference_phrase(first, second)

    assert "" == phrase(("1", "1"), ("AVX2 FMA", "FMA AVX2"))
    assert "builds 1 and -" == phrase(("1", ""))
    assert golden == phrase(("1", "2"), ("AVX2 FMA", "FMA"))


def test_only_cells_whose_attention_ran_in_the_same_place_are_tested(golden):
    moved = Pair("q4_0", "q4_0")

    def run(lines, attention):
        made = made_run(lambda _pair, at: lines - at % 2, setup=SETUP)
        ran = Effective(attention=attention, attention_evidence="62 graph splits")
        records = (
            replace(each, effective=ran) if each.pair == moved else each
            for each in made.records
        )
        return replace(made, records=tuple(records))

    found = compare(run(20, Attention.KERNEL), run(18, Attention.CPU))
    matched = change(found, "matched")

    assert (moved,) == matched.elsewhere
    assert moved in matched.values
    assert "worse" == matched.better_or_worse_phrase
    lines = printed(comparison_document(found)).splitlines()
    assert golden == [line for line in lines if "attention ran" in line]
    assert ["q4_0/q4_0"] == comparison_object(found)["changes"][0]["not_tested"]


def test_several_runs_are_compared_with_the_first_in_a_column_each():
    worse, other = compared(20, 18), compared(other=replace(SETUP, machine="another"))

    said = printed(comparisons_document([worse, other]), width=120)

    first, *_ = said.split("compared with")
    rows = {line.split()[0]: line.rstrip() for line in first.splitlines() if line}
    assert ["-2.00", "worse", "0.00", "no", "difference", "shown"] == (
        rows["matched"].split()[1:]
    )
    assert rows["decode"].endswith("not compared")
    assert 2 == said.count("compared with")
