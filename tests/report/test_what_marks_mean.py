"""What a run was measured on, and what marks and words mean."""

from dataclasses import replace

import pytest
from made_records import failed_record, made_record, made_run, made_setup
from made_verdicts import read_run
from printing import printed
from syrupy.assertion import SnapshotAssertion

from codeneedle.cache_types import PairFlags
from codeneedle.probes.recall.answers import overview
from codeneedle.probes.recall.metrics import FORCED
from codeneedle.probes.recall.probe import PROBE
from codeneedle.probes.retrieval.metrics import METRICS
from codeneedle.records.record import CacheEvidence, Effective, Status
from codeneedle.report import captions, grid
from codeneedle.report.page import page
from codeneedle.report.shown import STATUS_WORDS, no_value_mark, small_number_text
from codeneedle.report.table import pair_table, tables_document
from codeneedle.report.verdict import brief_document
from codeneedle.verdict.judge import judge

SETUP = made_setup()


def test_setup_and_corpus_are_one_line_each(golden: SnapshotAssertion) -> None:
    whole = replace(SETUP, corpus=replace(SETUP.corpus, functions_before=16))

    assert golden == (captions.setup_line(SETUP), captions.corpus_line(SETUP))
    assert "; 16 functions" in captions.corpus_line(whole)


def test_an_engine_is_named_once() -> None:
    setup = replace(SETUP, engine="mlx", llama="mlx 0.32.4, mlx-lm 0.32.2")
    said = dict(captions.run_facts(replace(made_run(), setup=setup)))

    assert "0.32.4, mlx-lm 0.32.2" == said["mlx"][:21]
    assert ("endpoint", "as told") == captions.engine_name_and_version(
        "endpoint", "as told"
    )


def test_a_noise_floor_that_is_not_nothing_does_not_look_so() -> None:
    shown = [small_number_text(value, 4) for value in (0.01, -5e-7, 0)]

    assert ["0.0100", "-5e-07", "0.0000"] == shown


def test_a_run_of_several_days_says_so() -> None:
    run = made_run()
    first, second, *rest = run.records
    late = replace(second, started="2025-11-22T01:00:00+00:00")
    long = replace(run, records=(first, late, *rest))

    assert "2025-11-20" == captions.dates_phrase(run)
    assert "2025-11-20 to 2025-11-22" == captions.dates_phrase(long)
    unreadable = replace(first, started="")
    some = replace(run, records=(*run.records, unreadable))
    assert "2025-11-20" == captions.dates_phrase(some)
    assert "2025-11-20" == captions.dates_phrase(replace(run, records=(unreadable,)))


def test_a_quantized_reference_of_a_server_that_does_not_tell_is_named(
    golden: SnapshotAssertion,
) -> None:
    def told(*pairs: str, cache_evidence: CacheEvidence | None = None) -> str:
        records = (made_record(pair, []) for pair in pairs)
        effective = Effective(cache_evidence=cache_evidence)
        proved = tuple(replace(each, effective=effective) for each in records)
        return dict(captions.run_facts(replace(made_run(), records=proved))).get(
            "cache", ""
        )

    evidence = CacheEvidence()
    assert golden == told("q4_0/q4_0", "q8_0/q8_0", cache_evidence=evidence)
    assert "" == told("auto/auto", "fp8/fp8", cache_evidence=evidence)
    assert "" == told("q4_0/q4_0", "q8_0/q8_0")


def test_a_gap_of_retrieval_says_what_is_missing(golden: SnapshotAssertion) -> None:
    chosen = {"tasks": ["single"], "graded": "fake tells no probabilities"}
    plain = replace(SETUP, probes={"retrieval": chosen})
    graded = replace(SETUP, probes={"retrieval": {**chosen, "graded": ""}})
    by_name = {metric.name: metric for metric in METRICS}

    logp = no_value_mark(by_name["retrieval-logp"], plain).meaning
    right = no_value_mark(by_name["retrieval-logp"], graded).meaning

    assert golden == (logp, right)


def test_settings_of_a_probe_are_told_without_hashes_and_builds() -> None:
    told = {"contexts": [512, 1024], "text_sha256": "ab", "chunks": 2, "llama": "b1"}
    setup = replace(SETUP, probes={"divergence": told, "throughput": {"depths": [0]}})
    record = replace(failed_record("q4_0/q4_0"), probe="divergence")

    found = captions.probe_settings_entries(
        replace(made_run(), setup=setup, records=(record,))
    )

    assert (("divergence", "contexts 512, 1024; chunks 2"),) == found


def test_a_rotation_that_is_off_is_said() -> None:
    run = made_run()
    off = replace(run, setup=replace(SETUP, rotation=False))
    said = [dict(captions.run_facts(each))["context"] for each in (off, run)]

    assert said[0] == f"{said[1]}, rotation off"


def test_every_status_has_a_short_word_of_its_own() -> None:
    words = [STATUS_WORDS[status] for status in Status]

    assert sorted(set(words)) == sorted(words)
    assert 8 >= max(map(len, words))


@pytest.mark.slow
def test_lines_that_were_read_are_called_forced_nowhere(
    golden: SnapshotAssertion,
) -> None:
    """In the verdict, the grid, the table, an answer, the page and the setup."""
    run = read_run({})
    verdict, pair_flags = judge(run), PairFlags(str)
    told = [
        printed(brief_document(verdict, pair_flags), width=200),
        printed(grid.grid_report([run], FORCED[:3], (), [verdict]), width=200),
        printed(tables_document([pair_table(run, [PROBE])]), width=200),
        printed(overview(run, run.records[0]), width=200),
        page([run], None, lambda _engine: pair_flags),
        captions.setup_line(run.setup),
    ]

    assert [] == [text for text in told if "forced" in text.lower()]
    assert golden == told[-1]
