"""
What is no score is no number: of every engine, every reader of evaluations and every
probe, so that a new one is held to it.
"""

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_evaluations import evaluated
from made_losses import diverging
from made_records import (
    asking_recall,
    forced_of,
    made_forced,
    made_record,
    made_setup,
    with_scores,
)
from made_retrieval import made_texts, retrieval_record
from made_reuse import made_question, reuse_record
from made_transcripts import forced_turn, transcript_record

from codeneedle.cli.engines import ENGINES
from codeneedle.engines.llama_cpp.client import parse_completion_event
from codeneedle.engines.llama_cpp.forced import score_of
from codeneedle.engines.messages import (
    BadReply,
    Token,
    check_and_convert_answer,
    read_reply_stream,
)
from codeneedle.engines.openai.client import _StatedEvent, read_echo, read_event
from codeneedle.probes import PROBES
from codeneedle.probes.divergence.record import divergence_of
from codeneedle.probes.evaluation.readers import (
    READERS,
    Unreadable,
    read_samples_of_known_tool,
)
from codeneedle.probes.evaluation.record import evaluation_of
from codeneedle.probes.recall.record import recall_of
from codeneedle.probes.retrieval.record import retrieval_of
from codeneedle.probes.reuse.record import reuse_of
from codeneedle.probes.transcript.record import turn_answers
from codeneedle.records.record import BadRecord
from codeneedle.scores import (
    LOWEST,
    MOST_LIKELY,
    ComputesNan,
    NoScore,
    checked_log_probability,
    why_contradictory,
    why_first_contradictory,
)

IMPOSSIBLE = {
    "null": (None, -2.0),
    "NaN": (math.nan, -2.0),
    "infinity": (math.inf, -2.0),
    "above 0": (7.5, -2.0),
    "another one is null": (-0.5, None),
    "another one is NaN": (-0.5, math.nan),
    "another one is above 0": (-0.5, 0.5),
    "both are certain": (0.0, 0.0),
    "certain, and behind another": (0.0, -0.25),
}
"""Log-probabilities of the right token and of the most probable other one."""


# Engines


def llama_event(own, other):
    """An event of llama-server, and of the child of MLX."""
    top = [{"id": 1, "logprob": own}, {"id": 2, "logprob": other}]
    token = {"id": 1, "logprob": own, "top_logprobs": top}
    return {"content": "a", "completion_probabilities": [token]}


def forced_by_llama(own, other):
    score_of(1, Token(1, own, (Token(1, own), Token(2, other))))


def openai_event(own, other):
    """An event of a server with OpenAI's API."""
    top = [{"token": "a", "logprob": own}, {"token": "b", "logprob": other}]
    told = {"content": [{"token": "a", "logprob": own, "top_logprobs": top}]}
    return {"choices": [{"delta": {"content": "a"}, "logprobs": told}]}


def forced_by_openai(own, other):
    told = {
        "tokens": ["x", "a"],
        "token_logprobs": [None, own],
        "top_logprobs": [None, {"a": own, "b": other}],
    }
    answer = {"choices": [{"text": "xa", "logprobs": told}]}
    stated = check_and_convert_answer(answer, _StatedEvent, expected="an echo")
    return read_echo(stated, "xa", [(1, 2)], wall_s=0.0)


LLAMA_LAST = {"content": "", "stop": True, "stop_type": "eos"}
OPENAI_LAST = {"choices": [{"delta": {"content": ""}, "finish_reason": "stop"}]}
OF_LLAMA = (llama_event, parse_completion_event, LLAMA_LAST, forced_by_llama)
OF_OPENAI = (openai_event, read_event, OPENAI_LAST, forced_by_openai)
SAYING = {
    "llama.cpp": OF_LLAMA,
    "mlx": OF_LLAMA,
    "command": OF_OPENAI,
    "endpoint": OF_OPENAI,
}
"""How each engine says numbers: an event, its reader, the last event, a given text."""


def test_every_engine_is_here():
    assert ENGINES.keys() == SAYING.keys()


@pytest.mark.parametrize("engine", SAYING)
@pytest.mark.parametrize("numbers", IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_what_no_token_can_have_is_in_no_reply_of_an_engine(engine, numbers):
    """NaN ends its cell; all else leaves the reply without numbers."""
    event, reader, last, _ = SAYING[engine]
    try:
        reply = read_reply_stream(
            [event(-0.1, -3.0), event(*numbers), last],
            read=reader,
            enough=lambda _text: False,
            max_tokens=9,
        )
    except ComputesNan:
        assert any(number is None or math.isnan(number) for number in numbers)
    else:
        assert ("aa", (), ()) == (reply.text, reply.logprobs, reply.gaps)
        assert reply.unscored


@pytest.mark.parametrize("engine", SAYING)
@pytest.mark.parametrize("numbers", IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_what_no_token_can_have_is_no_score_of_a_given_text(engine, numbers):
    *_, forced = SAYING[engine]

    with pytest.raises((BadReply, ComputesNan)):
        forced(*numbers)


@pytest.mark.parametrize("least", [-math.inf, -3.4e38, -9999.0, -150.0])
def test_zero_and_what_lies_below_the_representable_is_a_bound(least):
    assert LOWEST == checked_log_probability(least)


@pytest.mark.parametrize("numbers", [(7.5,), (None,), (math.nan,), (math.inf,)])
def test_all_else_is_no_log_probability(numbers):
    with pytest.raises(NoScore):
        checked_log_probability(*numbers)


NEAR = [-200.0, LOWEST, -23.0011, -23.0005, -23.0, -1e-4, 0.0, -0.0, 0.0005, 0.002]
"""Numbers on both sides of each limit."""

anything = st.one_of(
    st.sampled_from(NEAR),
    st.floats(-30.0, 0.1),
    st.floats(allow_nan=True, allow_infinity=True),
)
"""What may stand for a log-probability or a lead."""


@given(st.lists(st.tuples(anything, anything, st.booleans()), max_size=4))
def test_many_tokens_are_refused_as_one_after_the_other_is(tokens):
    logprobs = [logprob for logprob, _, _ in tokens]
    leads = [lead for _, lead, _ in tokens]
    bounds = [at for at, (_, _, is_bound) in enumerate(tokens) if is_bound]
    faults = [why_contradictory(a, b, is_bound=bound) for a, b, bound in tokens]

    first = why_first_contradictory(logprobs, leads, bounds)

    assert next(filter(None, faults), "") == first


@given(st.floats(-24.0, 0.0), st.floats(-1e-3, 2e-3))
def test_sums_near_the_most_that_can_be_are_refused_alike(logprob, beside):
    """Two probabilities whose sum is 1.05, or 1.051 with rounding, and some."""
    other = math.log(max(MOST_LIKELY + beside - math.exp(logprob), 1e-9))
    lead = logprob - other

    one = why_contradictory(logprob, lead, is_bound=False)

    assert one == why_first_contradictory([logprob], [lead])


# Readers of evaluations


def written_lines(folder, scores, asked):
    rows = [
        {"id": f"q{at}", "score": score, "prompt_sha": f"sha of {asked[at]}"}
        for at, score in enumerate(scores)
    ]
    text = "\n".join(map(json.dumps, rows))
    (folder / "results.jsonl").write_text(text)


def written_lm_eval(folder, scores, asked):
    rows = [
        {
            "doc_id": at,
            "doc_hash": f"{at:064}",
            "arguments": {"gen_args_0": {"arg_0": asked[at]}},
            "metrics": ["acc"],
            "acc": score,
        }
        for at, score in enumerate(scores)
    ]
    text = "\n".join(map(json.dumps, rows))
    (folder / "samples_quiz_2026-11-01T00-00-00.jsonl").write_text(text)


def written_inspect(folder, scores, asked):
    samples = [
        {"id": at, "input": asked[at], "scores": {"match": {"value": score}}}
        for at, score in enumerate(scores)
    ]
    log = {
        "status": "success",
        "eval": {"task": "quiz", "scorers": [{"name": "match"}]},
        "results": {"scores": [{"metrics": {"stderr": {"value": math.nan}}}]},
        "samples": samples,
    }
    (folder / "log.json").write_text(json.dumps(log))


def written_promptfoo(folder, scores, asked):
    results = [
        {
            "testIdx": at,
            "score": score,
            "vars": {"q": asked[at]},
            "gradingResult": {"pass": True, "score": score, "reason": "ok"},
        }
        for at, score in enumerate(scores)
    ]
    stats = {"latency": math.inf}
    file = {"results": {"results": results, "stats": stats}}
    (folder / "out.json").write_text(json.dumps(file))


WRITTEN = {
    "lines": written_lines,
    "lm-eval": written_lm_eval,
    "inspect": written_inspect,
    "promptfoo": written_promptfoo,
}
"""Writes results as each reader knows them: scores, and what was asked for each."""


def test_every_reader_of_evaluations_is_here():
    assert READERS.keys() == WRITTEN.keys()


@pytest.mark.parametrize("reader", WRITTEN)
@pytest.mark.parametrize("none", [math.nan, math.inf, -math.inf, None])
def test_a_score_that_is_none_costs_its_sample_alone(tmp_path, reader, none):
    WRITTEN[reader](tmp_path, [1.0, none, 0.5], ["a", "b", "c"])

    _, samples = read_samples_of_known_tool(tmp_path, reader)

    assert [1.0, 0.0, 0.5] == [sample.score for sample in samples]
    assert [False, True, False] == [bool(sample.error) for sample in samples]


@pytest.mark.parametrize("reader", WRITTEN)
@pytest.mark.parametrize("other", [7, -0.5])
def test_scores_of_another_scale_are_a_gap_that_names_one(tmp_path, reader, other):
    WRITTEN[reader](tmp_path, [1.0, other], ["a", "b"])

    with pytest.raises(Unreadable, match=f"is {other}, not from 0 to 1"):
        read_samples_of_known_tool(tmp_path, reader)


@pytest.mark.parametrize("reader", WRITTEN)
def test_what_was_asked_the_same_is_one_unit_in_whatever_place(tmp_path, reader):
    WRITTEN[reader](tmp_path, [1.0, 0.0, 1.0, 0.0], ["a", "b", "a", "a"])

    _, samples = read_samples_of_known_tool(tmp_path, reader)

    units = [sample.unit for sample in samples]
    assert [units[0], units[1], units[0], units[0]] == units
    assert units[0] != units[1]


# What is stored, by whomever


def stored_recall(changes):
    setup = asking_recall(made_setup(), {"way": ["force"]})
    made = with_scores(made_forced(forced_of(setup)[0]), **changes)
    return made_record("q8_0/q8_0", [], forced=[made])


def stored_turns(changes):
    made = with_scores(forced_turn("1.1", lambda _at: 0.5), **changes)
    return transcript_record("q8_0/q8_0", [made])


def stored_texts(changes):
    (first, *_) = made_texts(questions=1)
    (asked, *_) = first.answers
    made = replace(asked, answer=with_scores(asked.answer, **changes))
    return retrieval_record("q8_0/q8_0", [replace(first, answers=(made,))])


def stored_ways(changes):
    made = made_question()
    first, *others = made.answers
    scored = with_scores(first, **changes)
    return reuse_record("q8_0/q8_0", replace(made, answers=(scored, *others)))


def impossible(record_of, count):
    """Records with what *count* tokens cannot have."""
    return {
        "above 0": record_of({"logprobs": (5.0,) * count}),
        "sure, and behind": record_of(
            {"logprobs": (0.0,) * count, "leads": (-5.0,) * count}
        ),
        "not of all tokens": record_of({"leads": (1.0,)}),
    }


def stored_statistics(**changes):
    made = diverging("q8_0/q8_0", [0.25])
    (answer,) = made.observation["answers"].values()
    answer["statistics"] |= changes
    return made


STORED = {
    "recall": (recall_of, impossible(stored_recall, 5)),
    "transcript": (turn_answers, impossible(stored_turns, 8)),
    "retrieval": (
        retrieval_of,
        impossible(stored_texts, len(made_texts(questions=1)[0].answers[0].payload)),
    ),
    "reuse": (reuse_of, impossible(stored_ways, 10)),
    "divergence": (
        divergence_of,
        {
            "less than nothing": stored_statistics(kld={"value": -3.0, "error": 0.1}),
            "more than all": stored_statistics(same_top={"value": 103.0, "error": 0.1}),
            "below 1": stored_statistics(ppl={"value": 0.5, "error": 0.1}),
            "no number": stored_statistics(kld_max=None),
        },
    ),
    "eval": (evaluation_of, {"another scale": evaluated("q8_0/q8_0", [1.0, 7.0])}),
}
"""What reads a record of each probe, and records that somebody changed and sealed."""

WITHOUT_SCORES = {
    "throughput": "speeds, which are not compared with probabilities",
    "generation": "texts; leads say how sure the reference was, and nothing more",
}


def test_every_probe_is_here():
    assert PROBES.keys() == STORED.keys() | WITHOUT_SCORES.keys()


@pytest.mark.parametrize(
    ("reads", "record"),
    [
        pytest.param(reads, record, id=f"{probe}, {fault}")
        for probe, (reads, records) in STORED.items()
        for fault, record in records.items()
    ],
)
def test_a_stored_score_that_cannot_be_is_a_damaged_record(reads, record):
    with pytest.raises(BadRecord):
        reads(record)


UNITS_OF_ONE_ANSWER = {"generation": "its answers are texts: there is always one"}


def test_every_loss_over_units_knows_those_that_are_not_whole():
    without = {
        probe.name
        for probe in PROBES.values()
        for metric in probe.metrics
        if metric.loss and metric.loss.units and metric.lacks is None
    }

    assert UNITS_OF_ONE_ANSWER.keys() >= without
