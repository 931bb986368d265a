"""The answers of a pair, next to the expected lines; and the content of a corpus."""

import re
from dataclasses import replace

import pytest
from made_records import (
    failed_record,
    made_forced,
    made_needle,
    made_record,
    made_round,
    made_run,
    made_setup,
    renamed,
)
from made_retrieval import made_texts, retrieval_record
from printing import printed
from rich.cells import cell_len

from codeneedle.corpora import corpus
from codeneedle.errors import BadInput, UnknownName
from codeneedle.grid import Pair
from codeneedle.probes.recall.alignment import score
from codeneedle.probes.recall.record import Round
from codeneedle.probes.recall.rounds import ScoredRound
from codeneedle.probes.retrieval.outcomes import outcomes
from codeneedle.records.record import Effective, KvBuffer, Run, Status
from codeneedle.report.answers import (
    answers,
    failure_words,
    listing,
    overview,
    overview_row,
    rounds_overview,
    side_by_side,
    truth,
)

NEEDLE = made_needle(3)
LINES = NEEDLE.lines
TYPES = ("bf16", "q4_0")
SETUP = made_setup(needles=3, types_k=TYPES, types_v=TYPES)
PAIR = Pair("q4_0", "q4_0")
CORPUS = "[generate]\nfunctions = 6\nvalue_length = 6\nname_length = 5\nseed = 7\n"


def shown(*runs, function=None, colour=False):
    """What a terminal gets of the answers of `PAIR`."""
    parts = answers(runs, PAIR, function, width=100, colour=colour)
    return printed(*parts, colour=colour)


def compared(reply, *, needle=NEEDLE, width=100, colour=False):
    """The lines of one reply, without title, heading and tally."""
    view = side_by_side(needle, score(needle, reply), width=width, colour=colour)
    lines = printed(view, width=width, colour=colour).splitlines()
    return [line.rstrip() for line in lines[2:-2]]


def test_matching_lines_are_next_to_each_other():
    """Numbered as in the corpus, without a mark."""
    lines = compared("\n".join(LINES))

    assert 20 == len(lines)
    assert f"74   {LINES[0]}" in lines[0]
    assert lines[0].endswith(f"|   {LINES[0]}")
    assert lines[-1].startswith("93")


def test_every_kind_of_line_has_its_mark():
    """Missing lines on the left, the others on the right, distinct without colour."""
    reply = [*LINES[:5], *LINES[6:15], "    made_up()", *LINES[15:]]

    lines = compared("\n".join([*reply, *NEEDLE.more, "after"]))

    assert f"79 - {LINES[5]}" in lines[5]
    assert any(line.endswith("| +     made_up()") for line in lines)
    assert 2 == sum("| *" in line for line in lines)
    assert lines[-1].endswith("| ~ after")


def test_a_line_in_place_of_another_is_next_to_it():
    """
    One differing character is one row, with the character underlined; lines that have
    little in common are not underlined.
    """
    slip = LINES[4].replace("0000", "0007")
    reply = "\n".join([*LINES[:4], slip, *LINES[5:]])
    other = "\n".join([*LINES[:4], "return", *LINES[5:]])

    assert 20 == len(compared(reply))
    assert "- " in compared(reply)[4]
    assert compared(reply)[4].endswith(f"| + {slip}")
    assert 2 == compared(reply, colour=True)[4].count("\x1b[1;4;")
    assert 0 == compared(other, colour=True)[4].count("\x1b[1;4;")


def test_blank_lines_count_in_the_numbering():
    """They are not shown, but an editor counts them."""
    spaced = replace(NEEDLE, lines=(LINES[0], "", *LINES[1:]))

    lines = compared("\n".join(LINES), needle=spaced)

    assert ["74", "76"] == [line[:2] for line in lines[:2]]


def test_control_characters_of_replies_are_escaped():
    """Escapes, carriage returns and direction marks do nothing; markup is no markup."""
    evil = "\x1b[2J\x1b]0;title\x07\u202eback\x9b1m [red]markup[/red]"

    text = "\n".join(compared("\n".join([evil, *LINES]), width=160))

    assert r"\x1b[2J\x1b]0;title\x07\u202eback\x9b1m [red]markup[/red]" in text
    assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(text)


def test_long_lines_continue_in_the_next_row():
    """Nothing is cut off: a difference may be in the last character."""
    long = "    x = " + repr("".join(chr(ord("a") + at % 26) for at in range(90)))
    needle = replace(NEEDLE, lines=(long, *LINES[1:]))

    lines = compared("\n".join(needle.lines), needle=needle, width=80)

    left = "".join(line.partition(" |")[0][5:].rstrip() for line in lines[:-19])
    assert long.replace(" ", "") == left.replace(" ", "")
    assert max(map(len, lines)) <= 80


def test_wide_characters_keep_the_columns_aligned():
    """They take two columns each; a tab is visible."""
    needle = replace(NEEDLE, lines=("\tx = '漢字漢字漢字漢字漢字漢字'", *LINES[1:]))

    rows = compared("\n".join(needle.lines), needle=needle, width=70)

    assert 21 == len(rows)
    assert "»" in rows[0]
    assert 1 == len({cell_len(row.partition("|")[0]) for row in rows})


def test_the_overview_has_a_line_per_round():
    """Depth, line, counts, margin and how the reply ended."""
    run = made_run(lambda pair, at: 20 - at, setup=made_setup(needles=2))

    lines = printed(rounds_overview(run, run.records[0])).splitlines()

    assert "2 of 2 rounds answered" in lines
    assert [
        ["f_a", "0%", "1", "20", "0", "0", "0", "1", "4.00", "cut"],
        ["f_b", "50%", "25", "19", "1", "1", "0", "0", "4.00", "cut"],
    ] == [line.split() for line in lines[-2:]]


def test_a_round_without_an_answer_has_its_error():
    """In the overview, escaped, and by itself."""
    first, second, _ = SETUP.needles
    lost = Round(needle=first.name, prompt_sha256="d0", error="HTTP 500 \x1b[1m")
    record = made_record(PAIR, [lost, made_round(second)])
    run = made_run(setup=SETUP, failed=[record])

    text = printed(rounds_overview(run, record), width=140)

    assert r"error: HTTP 500 \x1b[1m" in text
    assert "1 of 2 rounds answered" in text
    assert r"no answer: HTTP 500 \x1b[1m" in shown(run, function="f_a")


def test_the_overview_names_a_method_without_its_class():
    """And a method is found by its own name."""
    needle = replace(SETUP.needles[0], name="VeryLongRequestHandler.f_a")
    run = made_run(setup=replace(SETUP, needles=(needle, *SETUP.needles[1:])))

    assert "f_a" == overview_row(ScoredRound(needle, made_round(needle)))[0]
    assert "VeryLongRequestHandler.f_a" in shown(run, function="f_a")


def test_one_round_is_shown_line_by_line():
    """
    With its run, pair and function above it, nothing of the others, and colours on
    request.
    """
    run = made_run(setup=SETUP)
    text = shown(run, function="f_b")

    assert text.startswith("random-bodies/made-model  q4_0/q4_0  f_b")
    assert SETUP.needles[1].lines[0].strip() in text
    assert SETUP.needles[0].lines[0].strip() not in text
    assert "\x1b[" not in text
    assert "\x1b[" in shown(run, function="f_b", colour=True)


def test_an_unknown_function_or_pair_is_refused_with_a_hint():
    """The nearest function that was asked for, or the command that lists the pairs."""
    run = made_run(setup=SETUP)

    with pytest.raises(UnknownName) as caught:
        shown(run, function="f_bb")
    assert "Did you mean 'f_b'?" == caught.value.hint

    with pytest.raises(BadInput) as caught:
        shown(made_run(setup=SETUP, untried=["q4_0/q4_0"]))
    assert "q4_0/q4_0: no record in random-bodies/made-model" == str(caught.value)
    assert "codeneedle grid random-bodies/made-model" in caught.value.hint

    run = made_run(setup=SETUP)
    other = replace(run.records[0], pair=Pair("q4_0", "q4_0"), probe="divergence")
    with pytest.raises(BadInput, match="has no answers"):
        shown(replace(run, records=(other,)), function="f_a")


def test_each_run_that_has_the_pair_is_shown():
    """In the order given; those without it are left out."""
    first = renamed(made_run(setup=SETUP), "c/one")
    second = renamed(made_run(setup=SETUP), "c/two")
    without = renamed(made_run(setup=SETUP, untried=["q4_0/q4_0"]), "c/three")

    text = shown(first, second, without)

    assert text.index("c/one") < text.index("c/two")
    assert "c/three" not in text


def test_a_failed_cell_has_its_reason():
    """It has no rounds."""
    failed = failed_record(PAIR, Status.OUT_OF_MEMORY, "cannot allocate")
    run = made_run(setup=SETUP, failed=[failed])

    assert "out-of-memory: cannot allocate" in shown(run)
    with pytest.raises(BadInput, match="has no answers"):
        shown(run, function="f_a")


def test_a_cell_shows_its_command_its_log_and_what_that_proved(tmp_path):
    """Once for all probes of one server, and of a pair without answers, too."""
    buffer = KvBuffer(
        cells=8192, layers=7, k_type="q4_0", v_type="q4_0", k_mib=1.5, v_mib=1.25
    )
    record = replace(
        made_record(PAIR, []),
        probe="divergence",
        command=("/bin/llama-server", "--model", "my model.gguf"),
        effective=Effective(kv=(buffer,), flash_attention="enabled", rotation_k=64),
    )
    run = replace(made_run(setup=SETUP), records=(record,), root=tmp_path)
    log = tmp_path / run.name / "logs" / "q4_0-q4_0.log"
    log.parent.mkdir(parents=True)

    said = shown(run)
    log.touch()

    assert "divergence: /bin/llama-server --model 'my model.gguf'" in said
    assert "K q4_0 1.5 MiB, V q4_0 1.25 MiB of 8,192 tokens in 7 layers" in said
    assert "flash attention enabled; K rotated by 64" in " ".join(said.split())
    assert "q4_0-q4_0.log" not in said
    assert "q4_0-q4_0.log" in shown(run).replace("\n", "")


def test_a_forced_function_shows_what_each_token_lost_against_the_reference():
    """
    The worst is named; colours only on request; without a reference nothing is lost.
    """
    setup = replace(SETUP, probes={"recall": {"ask": "forced"}})
    whole = made_forced(setup.forced[0], logprob=-0.01)
    worse = replace(whole, logprobs=(-0.01, -3.0, *whole.logprobs[2:]), bounds=(1,))
    records = [
        made_record(
            f"{k}/{v}", [], forced=[worse if (k, v) == TYPES[1:] * 2 else whole]
        )
        for k in TYPES
        for v in TYPES
    ]
    run = made_run(setup=setup, failed=records)
    second = setup.forced[0].lines[1]

    text = shown(run, function="f_a")

    assert f"lost most: '\\n{second}' 94%; mean of 5 tokens 18.8%" in text
    assert ["at", "most", "5.0%", "99.0%", "94.0", "yes"] == text.split(second)[
        -1
    ].split()[1:7]
    assert "\x1b[" in shown(run, function="f_a", colour=True)
    alone = replace(run, records=tuple(r for r in run.records if r.pair == PAIR))
    assert "no token lost 1% or more" in shown(alone, function="f_a")


@pytest.fixture
def tiny(tmp_path):
    """A generated corpus of six functions."""
    (tmp_path / "tiny.toml").write_text(CORPUS, encoding="utf-8")
    return corpus.load("tiny", folder=tmp_path)


def test_each_corpus_has_a_line(tmp_path):
    """Name, kind and origin; a broken file has its error."""
    (tmp_path / "tiny.toml").write_text(CORPUS, encoding="utf-8")
    (tmp_path / "odd.toml").write_text("seed = 1", encoding="utf-8")

    text = printed(listing(corpus.names(tmp_path)), width=200)

    lines = [line.split(maxsplit=2) for line in text.splitlines()]
    rows = {line[0]: line[1] for line in lines if len(line) > 1}
    assert "incompressible" == rows["tiny"] == rows["random-bodies"]
    assert "memorised" == rows["http_server"]
    assert "-" == rows["odd"]
    assert "unknown key 'seed'" in text


def test_an_overview_has_the_functions_that_would_be_asked_for(tiny):
    """Each with its depth, line, length and signature, below facts of the text."""
    text = printed(overview(tiny), width=200)

    assert "6 functions of 5 lines or more" in text
    assert "20 lines of 6 would be written and 5 of 6 forced" in text
    for function in tiny.functions:
        assert f" {function.line} " in text
        assert function.signature in text


def test_files_that_were_left_out_are_listed(tmp_path):
    """With the reason; control characters of their names are escaped."""
    body = "".join(f"    name_{n} = {n}\n" for n in range(24))
    (tmp_path / "good.py").write_text(f"def first():\n{body}")
    (tmp_path / "bad\x1b[2J.py").write_text("def (:\n")

    text = printed(overview(corpus.load(str(tmp_path))))

    assert "left out: bad" in text
    assert "\x1b" not in text


def test_files_that_a_second_parser_does_not_see_alike_are_listed(tmp_path):
    body = "".join(f"  const name_{n} = {n};\n" for n in range(24))
    for name, last in (("good", ""), ("newer", "a ??= 1;\n")):
        (tmp_path / f"{name}.js").write_text(f"function {name}() {{\n{body}}}\n{last}")

    text = printed(overview(corpus.load(str(tmp_path))))

    assert "in doubt: newer.js: esprima, which knows ES2017 at most" in text
    assert 1 == text.count("in doubt")


def test_the_truth_of_a_function_is_what_a_model_should_answer(tiny):
    """Its first twenty lines, verbatim; for a typo, the nearest name is offered."""
    function = tiny.functions[2]

    assert "\n".join(function.body[:20]) == truth(tiny, function.name)
    with pytest.raises(UnknownName) as caught:
        truth(tiny, f"{function.name}x")
    assert f"'{function.name}'" in caught.value.hint


# Questions of tasks


def missed(question, _length):
    """At depth 0.1 the answer to another question, at 0.5 one wrong digit."""
    if question.depth < 0.4:
        return question.decoys[0].payload
    if question.depth < 0.8:
        return question.payload[:-1] + ("0" if question.payload[-1] != "0" else "1")
    return question.payload


TASKS_RUN = Run(
    name="random-bodies/made-model",
    setup=made_setup(),
    records=(retrieval_record("q4_0/q4_0", made_texts(answer=missed)),),
)
QUESTIONS = outcomes(TASKS_RUN.records[0])


def task_answers(run, function=None, width=100):
    pair = Pair("q4_0", "q4_0")
    parts = answers([run], pair, function, width=width, colour=False)
    return " ".join(printed(*parts, width=width).split())


def test_failure_modes_of_a_pair_are_counted_by_task():
    """Only those that occur have a column; the graded endpoint is the last one."""
    text = task_answers(TASKS_RUN)

    assert "2 of 6 questions right" in text
    assert "task correct intrusion" in text
    assert "multikey 2 2" in text
    assert "-0.500" in text
    assert "salad" not in text


def test_a_wrong_answer_stands_beside_what_was_expected():
    """An intrusion names what the answer belongs to and how far away that is."""
    text = task_answers(TASKS_RUN)
    intrusion = next(each for each in QUESTIONS if each.depth < 0.4)

    assert f"{intrusion.answer.payload} {intrusion.answer.reply}" in text
    assert f"intrusion of {intrusion.score.decoy}" in text
    said = failure_words(intrusion.score)
    assert re.search(r"intrusion of .+, \d+% (later|earlier)", said)


def test_one_question_is_shown_in_full():
    """
    What was asked, expected and answered, and what forcing the right answer found.
    """
    asked = QUESTIONS[0]
    text = task_answers(TASKS_RUN, asked.question)

    assert f"expected {asked.answer.payload} answered {asked.answer.reply}" in text
    assert "multikey, 1,024 tokens, depth 0.1" in text
    assert "-0.500 nats per token" in text


def test_an_unknown_question_is_refused_with_the_nearest():
    """As an unknown function is."""
    with pytest.raises(UnknownName) as caught:
        task_answers(TASKS_RUN, QUESTIONS[0].question[:-1] + "x")

    assert QUESTIONS[0].question[:-1] in caught.value.hint


def test_a_pair_that_did_not_answer_says_why():
    """Its status and the reason."""
    failed = replace(failed_record("q4_0/q4_0"), probe="retrieval")

    assert "crashed: it died" in task_answers(replace(TASKS_RUN, records=(failed,)))


def test_long_answers_are_shortened_and_cannot_write_on_the_terminal():
    """In the list; a question alone shows all of it, escapes as text."""

    def answer(_question, _length):
        return "\x1b[2J" + "never " * 20

    record = retrieval_record("q4_0/q4_0", made_texts(answer=answer))
    run = replace(TASKS_RUN, records=(record,))

    assert "\x1b" not in task_answers(run)
    assert "never never never..." in task_answers(run)
    assert "never " * 19 in task_answers(run, QUESTIONS[0].question)


def test_forced_lines_are_shown_by_needle():
    """Where writing would leave the truth, beside what was written or without it."""
    setup = replace(made_setup(needles=2), probes={"recall": {"ask": "both"}})
    first, _ = setup.needles
    scored, other = setup.forced
    forced = [made_forced(scored, behind=[3]), made_forced(other)]
    run = made_run(setup=setup)

    for rounds in ([], [made_round(first)]):
        record = made_record("q8_0/q8_0", rounds, forced=forced)
        text = printed(rounds_overview(run, record))
        assert "right lines of 2 needles scored token by token" in text
        assert bool(rounds) == ("1 of 1 round answered" in text)
        rows = [line.split() for line in text.splitlines()[-2:]]
        assert ["f_a", "0%", "1", "3", "-0.500", "80.0", "-1.00"] == rows[0]
        assert "5" == rows[1][3]
