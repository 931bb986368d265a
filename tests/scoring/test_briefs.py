"""Records of the recall probe in brief."""

from dataclasses import replace

import msgspec
import pytest
from made_records import (
    failed_record,
    made_priming,
    made_record,
    made_reply,
    made_round,
    made_setup,
)

from codeneedle.analysis.recall import METRICS
from codeneedle.records import encoding
from codeneedle.records.encoding import decode_record, encode
from codeneedle.records.record import BadRecord, Round
from codeneedle.records.store import Store
from codeneedle.report import export
from codeneedle.report.selection import select
from codeneedle.scoring import rounds as scored_rounds
from codeneedle.scoring.rounds import BriefRecord, Reading, asked_rounds, decoding

SETUP = made_setup(needles=5)


@pytest.fixture
def record():
    """Rounds of all kinds: whole, short, running on, empty, and failed."""
    one, two, three, four, five = SETUP.needles
    tail = made_round(two, reply=made_reply(two, junk=3))
    length = len(tail.reply)
    rounds = [
        made_round(one, reply=made_reply(one, matched=12)),
        replace(tail, gaps=tuple(range(length, 0, -1)), lengths=(1,) * length),
        made_round(three, reply="\n".join(line.strip() for line in three.lines)),
        made_round(four, reply="  \n"),
        Round(needle=five.name, prompt_sha256="d0", error="HTTP 500"),
    ]
    return made_record("q8_0/q4_0", rounds, priming=made_priming(five))


def brief(record, *, tokens=True):
    """*record* as reports read it."""
    return decoding(SETUP, tokens=tokens)(encode(record), file="x")


@pytest.mark.parametrize("strict_indent", [False, True])
@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_a_brief_record_has_the_values_of_the_whole_one(record, metric, strict_indent):
    """
    By every metric, to the last bit; twice, since what was counted is kept.
    """
    reading = Reading(strict_indent=strict_indent)
    whole = decode_record(encode(record), file="x")
    short = brief(record)

    expected = list(metric.values(whole, SETUP, reading))

    assert expected == list(metric.values(short, SETUP, reading))
    assert expected == list(metric.values(short, SETUP, reading))


def test_a_brief_record_keeps_no_tokens(record):
    """
    Only what their gaps say of the answer.
    """
    short = brief(record)

    assert isinstance(short, BriefRecord)
    assert not any(asked.round.gaps for asked in asked_rounds(short, SETUP))
    assert [True, True, True, False, False] == [bool(a.kept) for a in short.asked]


def test_without_tokens_margins_cannot_be_asked_for(record):
    """
    That is a mistake of ours, and no gap of the record.
    """
    margin = next(metric for metric in METRICS if metric.of_tokens)

    with pytest.raises(ValueError, match="without its tokens"):
        margin.values(brief(record, tokens=False), SETUP, Reading())


def test_records_of_the_first_schema_are_brief_too(record):
    """
    They are read whole first, and upgraded.
    """
    old = msgspec.json.encode(replace(record, schema=1))

    short = decoding(SETUP, tokens=True)(old, file="x")

    assert isinstance(short, BriefRecord)
    assert brief(record).asked == short.asked


@pytest.mark.parametrize(
    "whole",
    [
        failed_record("q4_0/q4_0"),
        replace(made_record("q4_0/q4_0", []), probe="divergence"),
        replace(made_record("q4_0/q4_0", []), observation={"kld": 0.1}),
    ],
)
def test_other_records_are_read_whole(whole):
    """
    Those without rounds, those of other probes, and those that hold something else.
    """
    assert whole == brief(whole)


def test_a_round_of_an_unknown_needle_is_told_when_it_is_asked_for():
    """
    As it is of a record that was read whole.
    """
    stranger = replace(made_round(SETUP.needles[0]), needle="somebody_else")
    short = brief(made_record("q8_0/q4_0", [stranger]))

    with pytest.raises(BadRecord, match="somebody_else"):
        asked_rounds(short, SETUP)


def test_a_report_reads_each_record_once_and_scores_each_reply_once(
    monkeypatch, tmp_path
):
    """
    However many metrics it shows, and however many cells gave the same reply.
    """
    store = Store(tmp_path / "corpus" / "model")
    store.adopt(SETUP)
    pairs = ["bf16/bf16", "bf16/q4_0", "q4_0/q4_0"]
    for pair in pairs:
        store.add(made_record(pair, map(made_round, SETUP.needles)))
    read, scored = [], []
    decode, score = msgspec.json.decode, scored_rounds.score
    monkeypatch.setattr(
        encoding.msgspec.json,
        "decode",
        lambda data, **more: read.append(more["type"]) or decode(data, **more),
    )
    monkeypatch.setattr(
        scored_rounds,
        "score",
        lambda needle, *args, **more: (
            scored.append(needle.name) or score(needle, *args, **more)
        ),
    )
    for memory in (scored_rounds._counts, scored_rounds._answer_end):
        memory.cache_clear()

    shown = select(tmp_path, "corpus", "matched")
    export.grid_csv(shown.runs, shown.probe.metrics, shown.reading)

    # The setup is one more.
    assert len(pairs) + 1 == len(read)
    assert sorted(needle.name for needle in SETUP.needles) == sorted(scored)
