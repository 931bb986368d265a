"""What a report is about."""

from dataclasses import replace

import pytest
from made_metrics import failed
from made_records import (
    asking_recall,
    made_forced,
    made_record,
    made_run,
    made_setup,
    sized,
    written_of,
)
from made_retrieval import (
    made_calibration,
    made_dial,
    made_texts,
    retrieval_record,
    with_calibration,
)

from codeneedle.cache_types import Pair
from codeneedle.errors import BadInput, UnknownName
from codeneedle.probes import PROBES
from codeneedle.probes.cell_metrics import OF_CELL
from codeneedle.probes.divergence import probe as divergence
from codeneedle.probes.throughput.record import ThroughputLayout
from codeneedle.records.record import Run, as_json
from codeneedle.records.store import Store, checked_run_folder
from codeneedle.report.chosen_runs import (
    probe_and_metric,
    read_and_judge_pair_tables,
    read_runs,
    read_runs_and_output_folder,
    read_selection,
)

TYPES = ("bf16", "q4_0")
PLAIN = made_setup(needles=2, types_k=TYPES, types_v=TYPES)
SPEEDS = as_json(
    ThroughputLayout(
        depths=(0, 256),
        repetitions=1,
        prompt_tokens=512,
        generated_tokens=32,
        arguments={},
    )
)


@pytest.fixture
def setup():
    """The setup of a run of all probes, with two contexts and two depths."""
    compared = as_json(
        divergence.DivergenceLayout(
            contexts=(512, 1024),
            chunks=(2, 2),
            text="made",
            text_sha256="",
            llama="",
            arguments=(),
        )
    )
    return replace(PLAIN, probes={"divergence": compared, "throughput": SPEEDS})


def stored(root, run, *, model="made-model", corpus="random-bodies"):
    """*run* in a folder below *root*."""
    store = Store(checked_run_folder(root, corpus=corpus, model=model))
    store.check_and_store_setup(run.setup)
    for record in run.records:
        store.write_record(record)
    return store


def test_no_two_probes_call_a_metric_alike():
    of_cell = {metric.name for metric in OF_CELL}
    names = [metric.name for probe in PROBES.values() for metric in probe.metrics]

    assert of_cell == {name for name in names if names.count(name) > 1}
    assert {len(PROBES)} == {names.count(name) for name in of_cell}


def test_a_metric_of_cells_is_read_from_the_first_probe_with_a_value():
    record = replace(sized(made_record("q4_0/q4_0", [])), probe="divergence")
    run = replace(made_run(setup=PLAIN), records=(record,))

    probe, metric = probe_and_metric("kv", [run])

    assert ("divergence", "kv") == (probe.name, metric.name)


@pytest.mark.parametrize(
    ("name", "probe"),
    [
        ("kld@512", "divergence"),
        ("kld@1024", "divergence"),
        ("top1@1024", "divergence"),
        ("tg@0", "throughput"),
        ("pp@256", "throughput"),
    ],
)
def test_settings_make_metrics_of_their_own(setup, name, probe):
    runs = [made_run(setup=PLAIN), replace(made_run(setup=PLAIN), setup=setup)]

    found, metric = probe_and_metric(name, runs)

    assert (probe, name) == (found.name, metric.name)


def test_a_depth_that_was_not_measured_is_no_metric(setup):
    with pytest.raises(UnknownName) as caught:
        probe_and_metric("tg@257", [replace(made_run(setup=PLAIN), setup=setup)])
    assert "unknown metric 'tg@257'" == str(caught.value)
    assert "tg@256" in caught.value.hint

    with pytest.raises(UnknownName):
        probe_and_metric("tg@256", [made_run(setup=PLAIN)])


def test_a_selection_knows_all_metrics_of_its_runs_each_once(tmp_path, setup):
    run = replace(made_run(setup=PLAIN), setup=setup)
    for model in ("one", "two"):
        stored(tmp_path, run, model=model)

    names = [
        m.name
        for m in read_selection(tmp_path, "random-bodies", metric="tg@0").probe.metrics
    ]

    plain = [metric.name for metric in PROBES["throughput"].metrics]
    assert [*plain, "tg@0", "pp@0", "tg@256", "pp@256", "peak@0", "peak@256"] == names


def test_a_selection_has_the_records_of_one_probe(tmp_path):
    run = made_run(setup=PLAIN)
    (_, other) = failed("throughput", "q4_0/q4_0")
    stored(tmp_path, replace(run, records=(*run.records, other)))

    recalled = read_selection(tmp_path, "random-bodies", metric="matched")
    timed = read_selection(tmp_path, "random-bodies", metric="tg")

    assert {"recall"} == {record.probe for record in recalled.runs[0].records}
    assert [(other.pair, "throughput")] == [
        (record.pair, record.probe) for record in timed.runs[0].records
    ]
    assert ("recall", "throughput") == (recalled.probe.name, timed.probe.name)


def test_without_a_metric_the_headline_of_what_ran_is_shown(tmp_path):
    stored(tmp_path, made_run(), corpus="recalled")
    chosen = {
        "tasks": ["single"],
        "lengths": [1024],
        "depths": [0.5],
        "questions": 1,
        "dial": [],
        "gate": True,
        "graded": "",
    }
    setup = replace(made_setup(), probes={"retrieval": chosen})
    texts = made_texts("single", dial=0)
    for score, name in ((0.7, "mixed"), (0.0, "nothing")):
        frozen = made_calibration(made_dial("single", level=0, score=score))
        record = retrieval_record("f16/f16", texts)
        run = Run(name="x/y", setup=with_calibration(setup, frozen), records=(record,))
        stored(tmp_path, run, corpus=name)

    shown = {
        name: read_selection(tmp_path, name).metric.name
        for name in ("recalled", "mixed", "nothing")
    }

    assert {"recalled": "matched", "mixed": "retrieval", "nothing": "single"} == shown


def test_a_summary_has_passes_next_to_another_metric(tmp_path):
    stored(tmp_path, made_run(setup=PLAIN))

    matched, passed = (
        read_selection(tmp_path, "random-bodies", metric=metric)
        for metric in ("matched", "pass")
    )

    assert ["pass"] == [metric.name for metric in matched.summary_metrics]
    assert () == passed.summary_metrics


def test_forced_recall_is_shown_first_where_it_was_asked(tmp_path):
    former = made_run(setup=PLAIN)
    stored(tmp_path, former, model="former")
    setup = asking_recall(PLAIN, {"way": ["write", "force"]})
    forced = [
        made_record(Pair(k, k), [], forced=map(made_forced, written_of(PLAIN)))
        for k in TYPES
    ]
    newer = replace(former, setup=setup, records=tuple(forced))
    stored(tmp_path, newer, model="newer")

    both = read_selection(tmp_path, "random-bodies")

    assert "recall-logp" == both.metric.name == both.probe.metrics[0].name
    assert ["matched", "pass"] == [metric.name for metric in both.summary_metrics]
    assert () == read_selection(tmp_path, "random-bodies/newer").summary_metrics
    assert "matched" == read_selection(tmp_path, "random-bodies/former").metric.name


def test_pages_are_shown_by_one_name(tmp_path):
    run = made_run(setup=PLAIN)
    for model in ("m+rotation-on", "m+rotation-off"):
        stored(tmp_path, run, model=model)
    stored(tmp_path, run, model="other")

    both = {"random-bodies/m+rotation-on", "random-bodies/m+rotation-off"}
    assert both == {run.name for run in read_runs(tmp_path, "random-bodies/m")}
    assert 3 == len(read_runs(tmp_path, "random-bodies"))
    assert 2 == len(read_and_judge_pair_tables(tmp_path, "random-bodies/m+", sort=None))


def test_a_table_is_sorted_by_what_ranks(tmp_path):
    bad = Pair("q4_0", "q4_0")
    run = made_run(lambda pair, _at: 3 if pair == bad else 20, setup=PLAIN)
    (_, broken) = failed("divergence", "q4_0/q4_0")
    stored(tmp_path, replace(run, records=(*run.records, broken)))

    (table,) = read_and_judge_pair_tables(tmp_path, "random-bodies", sort="matched")

    assert bad == table.pairs[-1]
    for metric, error in (("ppl", BadInput), ("machted", UnknownName)):
        with pytest.raises(error):
            read_and_judge_pair_tables(tmp_path, "random-bodies", sort=metric)


def test_a_page_goes_to_the_folder_of_its_only_run_and_else_beside_all(tmp_path):
    first = stored(tmp_path, made_run(setup=PLAIN))
    folder = str(first.folder)

    runs, where = read_runs_and_output_folder(tmp_path, ["random-bodies", folder])
    assert (1, first.folder) == (len(runs), where)

    other = stored(tmp_path, made_run(setup=PLAIN), model="second")
    runs, where = read_runs_and_output_folder(tmp_path, [folder, str(other.folder)])
    assert (2, tmp_path) == (len(runs), where)
