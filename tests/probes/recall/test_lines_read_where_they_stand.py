"""Right lines that are read where they stand in a text, laid out and stored."""

import contextlib
import itertools
import json
import re
from dataclasses import replace

import pytest
from fake_engine import ByteTokenizer, FakeEngine, FakeServer, forced_to
from made_contexts import made_outlook, real_context
from made_reading import READING, HalfTool, made_context, made_engine
from made_records import (
    asking_recall,
    failed_record,
    forced_of,
    made_forced,
    made_forced_needle,
    made_record,
    made_setup,
)

from codeneedle.cache_types import Pair
from codeneedle.corpora.registry import load
from codeneedle.engines.engine import Ability
from codeneedle.engines.messages import TokenPiece
from codeneedle.engines.tools import ReadTokens
from codeneedle.errors import BadInput, CellError, ToolMissing
from codeneedle.probes import reading
from codeneedle.probes.cell import ProbeContext, tokenizing
from codeneedle.probes.reading import (
    Chunk,
    Span,
    chunk_lengths,
    lay_out_chunk,
    padded_chunk_tokens,
    questions_room,
)
from codeneedle.probes.recall.further_functions import FURTHER
from codeneedle.probes.recall.metrics import FORCED
from codeneedle.probes.recall.passages import (
    group_functions_by_chunk,
    lines_per_question_and_answer,
    passage_of,
    question_and_answer_tokens,
)
from codeneedle.probes.recall.probe import PROBE
from codeneedle.probes.recall.prompts import completion_prompt
from codeneedle.probes.recall.record import recall_of
from codeneedle.probes.recall.settings import RecallSettings, Way
from codeneedle.system import machine

BEGIN = -1


class Merging:
    """
    A tokenizer that merges: quotes with line breaks, line breaks, parts of words.

    Attributes:
        begins: Whether a special token, which has a text, begins each prompt.
        blank: Whether a blank is put before every text.
    """

    def __init__(self, *, begins=False, blank=False):
        self.begins, self.blank = begins, blank
        self.known = {}

    def tokens(self, text, *, add_special=True):
        text = f" {text}" if self.blank else text
        found = re.findall(r'"\n+|\n+ *| ?\w{1,4}| ?[^\w\s]| ', text)
        numbers = [self.known.setdefault(piece, len(self.known)) for piece in found]
        begin = [TokenPiece(BEGIN, "<s>")] if self.begins and add_special else []
        return (*begin, *map(TokenPiece, numbers, found))


def seen(observation):
    """What a stored *observation* says."""
    return recall_of(replace(failed_record("q8_0/q4_0"), observation=observation))


NEEDLES = [made_forced_needle(at) for at in range(5)]
PASSAGES = [passage_of(needle) for needle in NEEDLES]
RIGHT = ["\n".join(needle.lines) for needle in NEEDLES]


# How it is laid out


@pytest.mark.parametrize("blank", [False, True])
@pytest.mark.parametrize("begins", [False, True])
@pytest.mark.parametrize("length", [10, 300, 20_000])
def test_right_tokens_stand_in_the_second_half_of_a_chunk(length, begins, blank):
    """However short the text; and behind the chunk there is as much again."""
    tokenizer, tool = Merging(begins=begins, blank=blank), HalfTool()
    text = "words of a text\n" * (length // 16 + 1)
    chunk = lay_out_chunk(tokenizer, tool, text, PASSAGES)

    pieces = tokenizer.tokens(chunk.text)
    size = len(chunk.ids)
    assert 0 == size % 256
    assert chunk.ids == tuple(piece.id for piece in pieces[:size])
    assert len(pieces) > 2 * size
    assert set(chunk.right_token_places) <= set(tool.scorable_places(size))
    assert text in chunk.text
    for span, right in zip(chunk.spans, RIGHT, strict=True):
        read = "".join(pieces[place].piece for place in span.places)
        # A line break and the indentation behind it are one token, as are a quote and
        # the line break behind: the last is left out where it crosses the end.
        assert right.startswith(read.removeprefix("\n").removeprefix("\n"))
        assert len(right) - len(read) <= 2
        assert span.ends[-1] <= len(right)
        assert list(span.ends) == sorted(span.ends)


def test_each_question_stands_behind_the_answers_of_those_before():
    chunk = lay_out_chunk(Merging(), HalfTool(), "a text\n" * 900, PASSAGES)

    asked = [completion_prompt("", needle) for needle in NEEDLES]
    parts = (part for both in zip(asked, RIGHT, strict=True) for part in both)
    assert "a text\n" + "".join(parts) + "\n\n# line 1\n" in chunk.text


def test_a_tokenizer_whose_tokens_are_not_the_text_is_refused(golden):
    class Lowering(Merging):
        def tokens(self, text, *, add_special=True):
            return super().tokens(text.upper(), add_special=add_special)

    with pytest.raises(BadInput) as caught:
        lay_out_chunk(Lowering(), HalfTool(), "text\n" * 99, PASSAGES)
    assert golden == str(caught.value)


class Placeless(HalfTool):
    """A tool that scores no place of any chunk."""

    def scorable_places(self, tokens):
        return range(tokens, tokens)


def test_a_tool_that_scores_no_place_is_given_up_after_twelve_paddings(golden):
    tried = []

    class Noting(Merging):
        def tokens(self, text, *, add_special=True):
            tried.append(len(text))
            return super().tokens(text, add_special=add_special)

    with pytest.raises(BadInput) as caught:
        lay_out_chunk(Noting(), Placeless(), "text\n" * 9, PASSAGES[:1])

    assert golden == str(caught.value)
    assert 12 == len(tried)
    assert sorted({*tried}) == tried  # each is longer


def test_scores_of_a_function_are_its_part_of_a_chunk():
    chunk = lay_out_chunk(Merging(), HalfTool(), "a text\n" * 900, PASSAGES)
    first, second = (len(span.places) for span in chunk.spans[:2])
    count = len(chunk.right_token_places)
    read = ReadTokens(
        logprobs=tuple(-float(at) for at in range(count)),
        leads=(0.0,) * count,
        bounds=(0, first, first + 2, first + second, count - 1),
    )
    forced = chunk.scores_of(read, chunk.spans[1], wall_s=2.5)

    assert forced.has_matching_lengths
    assert tuple(-float(at) for at in range(first, first + second)) == forced.logprobs
    assert ((0, 2), 2.5) == (forced.bounds, forced.wall_s)
    assert chunk.spans[1].places[0] == forced.prompt_tokens


def test_a_function_has_the_tokens_behind_those_of_the_one_before_it():
    """The first has those of its lines alone: its question is read with the text."""
    chunk = lay_out_chunk(Merging(), HalfTool(), "a text\n" * 900, PASSAGES)
    first, *others = chunk.spans

    assert len(first.places) == chunk.passage_token_count(first)
    assert [
        after.places[-1] - before.places[-1]
        for before, after in itertools.pairwise(chunk.spans)
    ] == list(map(chunk.passage_token_count, others))


def test_functions_are_read_by_blocks_and_by_what_a_context_holds():
    setup = made_setup(needles=0, forced=12)
    one, two = group_functions_by_chunk(setup, [8, 12])
    assert [8, 4] == [len(one.passages), len(two.passages)]
    assert (one, two) == tuple(group_functions_by_chunk(setup, [8, 12]))

    tight = replace(setup, context=setup.corpus.tokens + 2 * len(RIGHT[0]) + 600)
    parts = list(group_functions_by_chunk(tight, [8, 12]))
    assert len(parts) > 2
    every = [passage for part in parts for passage in part.passages]
    assert [passage_of(needle) for needle in forced_of(setup)] == every
    none = list(group_functions_by_chunk(replace(setup, context=10), [3]))
    assert [1, 1, 1] == [len(part.passages) for part in none]


def test_a_chunk_with_its_padding_is_no_longer_than_the_context():
    """In front of a text that is shorter than its questions stands padding."""
    setup = made_setup(needles=0, forced=12)
    short = replace(setup, corpus=replace(setup.corpus, tokens=100, characters=100))

    twelve = [passage_of(needle) for needle in forced_of(short)[:12]]
    assert 3181 == question_and_answer_tokens(short, twelve)
    assert [1, 2] == [
        len(list(group_functions_by_chunk(replace(short, context=context), [12])))
        for context in (8192, 6000)
    ]


@pytest.mark.parametrize(
    ("text", "context", "room"),
    [
        *((100, 512, 256), (256, 512, 256), (257, 512, 255)),
        *((511, 512, 1), (512, 512, 0), (600, 512, 0)),
        (100, 513, 256),  # half of it, in whole tokens
    ],
)
def test_questions_have_what_a_text_leaves_of_a_context_and_half_of_it_at_most(
    text, context, room
):
    assert room == questions_room(text, context)


def test_without_room_for_questions_each_function_has_a_chunk_of_its_own():
    """As long as the text and its own question, whatever the context."""
    assert (padded_chunk_tokens(600, 1),) * 10 == chunk_lengths(600, 8, 10, 512)


@pytest.mark.parametrize("tokens", [0, 1])
def test_a_text_of_no_or_one_token_has_the_questions_of_its_characters(tokens):
    setup = made_setup(needles=0, forced=12)
    corpus = replace(setup.corpus, tokens=tokens, characters=1)
    short = replace(setup, corpus=corpus)

    twelve = [passage_of(needle) for needle in forced_of(short)[:12]]
    assert 3181 == question_and_answer_tokens(short, twelve)
    assert [1, 2] == [
        len(list(group_functions_by_chunk(replace(short, context=context), [12])))
        for context in (8192, 6000)
    ]


def test_questions_have_as_many_characters_to_a_token_as_their_text():
    setup = made_setup(needles=0, forced=12)
    corpus = replace(setup.corpus, tokens=100, characters=400)
    short = replace(setup, corpus=corpus)

    twelve = [passage_of(needle) for needle in forced_of(short)[:12]]
    assert 3181 / 4 == question_and_answer_tokens(short, twelve)
    assert [1, 2] == [
        len(list(group_functions_by_chunk(replace(short, context=context), [12])))
        for context in (2048, 1536)
    ]


def test_a_chunk_is_of_functions_of_a_token_at_least():
    passages, tool = PASSAGES[:2], HalfTool()
    spans = [
        Span(name=passage.name, places=(130 + at,), ends=(5,))
        for at, passage in enumerate(passages)
    ]
    chunk = Chunk(text="", ids=(0,) * 256, spans=tuple(spans))

    assert chunk.has_passages_scored_by(passages, tool)
    assert [1, 1] == [chunk.passage_token_count(span) for span in spans]
    none = replace(spans[1], places=(), ends=())
    assert not replace(chunk, spans=(spans[0], none)).has_passages_scored_by(
        passages, tool
    )
    same = replace(spans[1], places=(130,))
    assert not replace(chunk, spans=(spans[0], same)).has_passages_scored_by(
        passages, tool
    )
    early = replace(spans[0], places=(128,))
    assert not replace(chunk, spans=(early, spans[1])).has_passages_scored_by(
        passages, tool
    )


def test_a_text_that_is_longer_than_its_questions_has_no_padding_in_front():
    text = "words of a text\n" * 1200
    chunk = lay_out_chunk(Merging(), HalfTool(), text, PASSAGES)

    assert chunk.text.startswith(text)


def test_a_chunk_of_another_text_or_of_other_functions_has_another_key():
    setup = made_setup(needles=0, forced=6)
    other = replace(setup, corpus=replace(setup.corpus, sha256="dd" * 32))
    keys = [
        next(group_functions_by_chunk(each, [ends])).key
        for each, ends in ((setup, 6), (other, 6), (setup, 5))
    ]

    assert 3 == len(set(keys))
    assert all(re.fullmatch(r"[0-9a-f]{12}", key) for key in keys)


def test_a_plan_counts_what_a_chunk_takes():
    """Text and questions, to a multiple of 256; a short text is padded in front."""
    assert [1536, 1280, 2304] == [
        padded_chunk_tokens(*each) for each in ((990, 503), (1000, 200), (900, 1100))
    ]
    assert [1024, 1280] == [padded_chunk_tokens(800, each) for each in (222, 223)]
    assert (1536,) == chunk_lengths(990, 503, 12, 3072)
    assert (1024,) * 3 == chunk_lengths(800, 500, 12, 1024)
    assert (1024,) * 2 == chunk_lengths(100, 900, 12, 1280)
    mini = load("random-bodies-mini")
    assert 2.5 + (20 + 5) / 2 == lines_per_question_and_answer(mini, 5)


# What is stored


def test_lines_are_read_without_a_server(tmp_path):
    engine = made_engine()
    context = made_context(tmp_path, engine)
    found = seen(PROBE.measure(context))

    names = [needle.name for needle in forced_of(context.run.setup)[:4]]
    assert names == [each.name for each in found.read]
    assert ((), (), 0) == (found.forced, found.rounds, len(engine.served))
    assert found.read == found.scored_answers
    assert (1,) == found.read[0].scores.bounds
    assert ("read", str(tmp_path / "q8_0-q4_0.reading.log")) == context.command
    (task,) = engine.tool.tasks
    assert Pair("q8_0", "q4_0") == task.pair
    assert context.phases.measure_s is not None


def test_the_seconds_of_a_tool_are_shared_by_its_tokens(tmp_path):
    """What an open pair takes is told by them: a text again, and so many functions."""
    engine, moments = made_engine(), [0.0]
    context = made_context(tmp_path, engine, clock=lambda: moments[-1])
    read = engine.tool.read_and_score

    def read_slowly(task, **told):
        moments.append(moments[-1] + 10.0)
        return read(task, **told)

    engine.tool.read_and_score = read_slowly
    observation = PROBE.measure(context)
    read = recall_of(replace(made_record("q8_0/q4_0", []), observation=observation))
    (task,) = engine.tool.tasks
    chunk = lay_out_chunk(ByteTokenizer(), engine.tool, context.run.text, PASSAGES[:4])
    own = [chunk.passage_token_count(span) for span in chunk.spans]

    assert 4 == len(read.read)
    assert [each.wall_s for each in read.read] == pytest.approx(
        [10.0 * tokens / len(task.ids) for tokens in own], abs=1e-6
    )
    units_s = sum(each.wall_s for each in read.read)
    assert 10.0 - units_s == pytest.approx(read.texts_s[0], abs=1e-4)


class ScoringEngine(FakeEngine):
    """
    An engine whose servers score their prompts.

    A server takes 7 s to start, and 20 s for a text with its functions, of 2 s each.
    """

    scores_prompts = True
    now_s = 0.0
    text_s = 20.0

    @contextlib.contextmanager
    def serving(self, cell, *, log):
        self.now_s += 7.0
        with super().serving(cell, log=log) as server:
            server.force_each = self.force_each
            yield server

    def force_each(self, question, passages):
        self.now_s += self.text_s
        return [
            forced_to(question, question.prompt[begin:end], wall_s=2.0)
            for begin, end in passages
        ]


def test_a_server_that_scores_prompts_reads_all_functions_of_a_text_at_once(tmp_path):
    """The first text has waited for the server; a function takes what it took."""
    engine = ScoringEngine()
    context = made_context(tmp_path, engine, clock=lambda: engine.now_s)
    record = replace(made_record("q8_0/q4_0", []), observation=PROBE.measure(context))
    read = recall_of(record)

    assert [needle.name for needle in NEEDLES[:4]] == [
        each.name for each in seen(record.observation).read
    ]
    assert 1 == len(engine.served)
    units = [each.wall_s for each in read.read]
    assert ([2.0] * 4, (7.0 + 20.0 - 4 * 2.0,)) == (units, read.texts_s)


def test_a_text_takes_no_time_where_its_functions_took_all_of_it(tmp_path):
    """By two clocks they may take more."""
    engine = ScoringEngine()
    context = made_context(tmp_path, engine, clock=lambda: engine.now_s)
    with reading.start_reader(context) as read:
        engine.text_s = 3.0
        texts_s = [
            read(each, context.run.text).text_s
            for each in group_functions_by_chunk(context.run.setup, [2, 4])
        ]

    assert [7.0, 0.0] == texts_s


def test_a_server_that_scores_prompts_is_waited_for_by_the_first_text_alone(tmp_path):
    engine = ScoringEngine()
    context = made_context(tmp_path, engine, clock=lambda: engine.now_s)
    with reading.start_reader(context) as read:
        texts_s = [
            read(each, context.run.text).text_s
            for each in group_functions_by_chunk(context.run.setup, [2, 4])
        ]

    assert [7.0 + 20.0 - 2 * 2.0, 20.0 - 2 * 2.0] == texts_s


def test_functions_that_come_later_are_a_chunk_of_their_own(tmp_path):
    engine = made_engine()
    first = PROBE.measure(made_context(tmp_path, engine))
    previous = replace(made_record("q8_0/q4_0", []), observation=first)
    found = seen(
        PROBE.measure(made_context(tmp_path, engine, previous_record=previous, goal=5))
    )

    assert [4, 1] == [
        len(text.text.decode().split("# recall")) - 1 for text in engine.tool.tasks
    ]
    assert 5 == len(found.read)


def test_a_chunk_is_laid_out_once_for_all_cells(tmp_path, monkeypatch):
    engine = made_engine()
    PROBE.measure(made_context(tmp_path, engine))
    monkeypatch.setattr(reading, "lay_out_chunk", None)
    PROBE.measure(made_context(tmp_path, engine, pair="f16/f16"))

    one, two = engine.tool.tasks
    assert (one.ids, one.text) == (two.ids, two.text)


@pytest.mark.parametrize(
    "damage",
    [
        {"places": [], "ends": []},
        {"places": [0, 1], "ends": [1, 2]},
        {"places": [1 << 40], "ends": [1]},
        {"ends": [1]},
        {"name": "another"},
    ],
)
def test_a_stored_chunk_that_is_damaged_is_laid_out_again(tmp_path, damage):
    engine = made_engine()
    PROBE.measure(made_context(tmp_path, engine))
    (path,) = tmp_path.rglob("*.chunk.json")
    whole = path.read_bytes()
    note = json.loads(whole)
    note["spans"][0] |= damage
    path.write_text(json.dumps(note))

    PROBE.measure(made_context(tmp_path, engine, pair="f16/f16"))

    assert whole == path.read_bytes()
    one, two = engine.tool.tasks
    assert (one.ids, one.wanted) == (two.ids, two.wanted)


def test_lines_are_written_by_a_server_behind_those_that_were_read(tmp_path):
    engine = made_engine()
    engine.server = FakeServer(engine)
    both = READING | {"way": ["write", "read"]}
    found = seen(PROBE.measure(made_context(tmp_path, engine, conditions=both)))

    assert [3, 0, 4] == [len(found.rounds), len(found.forced), len(found.read)]
    assert [] == engine.server.forced


def test_a_tool_that_fails_fails_the_cell(tmp_path):
    engine = made_engine(error=CellError("it died", hint="Look."))
    with pytest.raises(CellError, match="it died"):
        PROBE.measure(made_context(tmp_path, engine))


def test_read_lines_and_forced_ones_are_never_compared():
    """A setup says which are; what is of the other kind counts as not measured."""
    setup = made_setup(needles=0, forced=4)
    forced = made_record("q8_0/q4_0", [], forced=map(made_forced, forced_of(setup)))
    read = asking_recall(setup, READING)
    probability = FORCED[0].values

    assert [] == probability(forced, read)
    assert 4 == len(probability(forced, setup))


# What cannot be read


@pytest.fixture
def free_bytes(monkeypatch):
    """So many bytes of main memory are free, by what the system is asked."""
    free_bytes = 4 << 30
    monkeypatch.setattr(machine, "available_memory_bytes", lambda: free_bytes)
    return free_bytes


@pytest.mark.usefixtures("free_bytes")
def test_what_cannot_be_read_is_refused(golden):
    chosen = RecallSettings(way=(Way.READ,))
    engine = made_engine(memory_bytes=1 << 60)
    with pytest.raises(BadInput) as raised:
        PROBE.adapt(
            chosen, made_outlook(engine=engine, unread=engine.why_it_cannot_read(4096))
        )

    assert golden == str(raised.value)
    assert raised.value.hint


def test_cells_that_are_read_side_by_side_take_memory_each(free_bytes, golden):
    engine = made_engine(memory_bytes=free_bytes // 4)

    assert "" == engine.why_it_cannot_read(1024, workers=2)
    unread = engine.why_it_cannot_read(1024, workers=8)
    assert golden == unread
    with pytest.raises(BadInput) as raised:
        PROBE.adapt(
            RecallSettings(way=(Way.READ,)), made_outlook(engine=engine, unread=unread)
        )
    assert unread in str(raised.value)


def test_an_engine_without_a_tool_is_refused(golden):
    engine = FakeEngine(abilities=frozenset({Ability.FORCED}))
    with pytest.raises(ToolMissing) as caught:
        PROBE.adapt(RecallSettings(way=(Way.READ,)), made_outlook(engine=engine))
    assert golden == str(caught.value)


# The real tool


def really_read(folder):
    """A cell of the built-in model, whose right lines llama-perplexity reads."""
    run = real_context(folder / "run", setup=made_setup())
    setup = asking_recall(made_setup(needles=0, forced=4), READING)
    lines = ("\n".join((each.signature, *each.before, *each.lines)) for each in NEEDLES)
    run = replace(run, setup=setup, text="\n\n".join(lines))
    logs = folder / "logs"
    logs.mkdir()
    return ProbeContext(run=run, pair=Pair("bf16", "bf16"), logs=logs)


@pytest.mark.real
def test_the_real_tool_reads_what_was_laid_out(tmp_path):
    """It checks the tokens of its own file; and a small model copies each line."""
    context = really_read(tmp_path)
    run, setup = context.run, context.run.setup
    found = seen(PROBE.measure(context))

    assert 4 == len(found.read)
    for each, right in zip(found.read, RIGHT, strict=False):
        assert len(right) == each.scores.ends[-1] == len(each.scores.logprobs)
    with tokenizing(run.engine, run.folder) as tokenizer:
        passages = [passage_of(needle) for needle in forced_of(setup)]
        chunk = lay_out_chunk(tokenizer, run.engine.reading_tool(), run.text, passages)
    assert chunk.ids


@pytest.mark.real
def test_what_the_real_tool_read_is_forced_by_the_real_server_as_a_check(tmp_path):
    """The same tokens of the same functions, behind what was read."""
    context = really_read(tmp_path)
    run, setup = context.run, context.run.setup
    previous = replace(made_record("bf16/bf16", []), observation=PROBE.measure(context))
    assert FURTHER.needs_check(previous, setup)
    check = ProbeContext(
        run=run,
        pair=previous.pair,
        logs=context.logs,
        previous_record=previous,
        is_check=True,
    )
    found = seen(PROBE.measure(check))

    assert [4, 4] == [len(found.forced), len(found.read)]
    for forced, read in zip(found.forced, found.read, strict=True):
        assert forced.name == read.name
        assert forced.scores.ends == read.scores.ends
