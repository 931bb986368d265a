"""
Right answers that are read in batches: one text with all questions in it, each behind
those before it with their answers.

llama-perplexity parses no special tokens, so that all is worded as a completion. It
scores the second half of a chunk, and wants as much text again behind it.
"""

import contextlib
import hashlib
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from codeneedle.engines.engine import Ability, Served, Tokenizer
from codeneedle.engines.messages import Forced, TokenPiece
from codeneedle.engines.tools import ReadingTask, ReadingTool, ReadTokens
from codeneedle.errors import BadInput, CodeneedleError
from codeneedle.models.kv_cache import pad_context
from codeneedle.probes.cell import ProbeContext
from codeneedle.probes.estimates import Estimates
from codeneedle.probes.observations import Answer, AnswerGroup, Observed
from codeneedle.probes.probe import (
    Answering,
    Asker,
    Probe,
    Question,
    ask_and_keep_missing_answers,
)
from codeneedle.system.files import (
    read_json_or_none,
    refuse_linked_folder,
    write_json_if_possible,
)

LAYOUT_VERSION = 1
"""Raised with every change of how texts and questions are laid out."""

ROOM = 1.25
"""How much longer questions may turn out than by the characters of a text."""

UNTOLD = "the server tells the text of none of its tokens"
"""Why an answer whose tokens are all parts of characters has no scores."""

ROUNDS = 12
"""Paddings that are tried before a tokenizer is given up; each is longer."""


def padded_chunk_tokens(text: int, questions: int) -> int:
    """About how many tokens a chunk has, by those of its *text* and *questions*."""
    return pad_context(max(text, questions) + questions + 2)


def questions_room(text: int, context: int) -> int:
    """Tokens of questions that a chunk of a *context* holds behind a *text*."""
    # In front of a text that is shorter than its questions stands padding.
    return max(0, min(context - text, context // 2))


def chunk_lengths(
    text: int, questions: float, functions: int, context: int
) -> tuple[int, ...]:
    """
    About the lengths of the chunks that functions are read in, in tokens.

    Args:
        text: Tokens of the text, which is read with each.
        questions: Of all questions with their answers.
        functions: How many there are.
        context: What a chunk fits in, if it has more than one.
    """
    room = max(1, questions_room(text, context))
    count = max(1, min(functions, math.ceil(ROOM * questions / room)))
    return (padded_chunk_tokens(text, math.ceil(questions / count)),) * count


def padding(characters: int) -> str:
    """Numbered lines of at least so many *characters*; empty for 0."""
    lines: list[str] = []
    made = 0
    while made < characters:
        lines.append(f"# line {len(lines) + 1}\n")
        made += len(lines[-1])
    return "".join(lines)


@dataclass(frozen=True, slots=True)
class Passage:
    """A right answer behind its question, as both stand behind a text."""

    name: str  # of what is asked for
    asked: str  # the question, as a completion states it
    right: str  # its answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Passages that are read behind one copy of a text."""

    key: str  # what makes it this group, for every pair of a run
    passages: tuple[Passage, ...]  # in the order in which they are asked

    @classmethod
    def of(cls, passages: Sequence[Passage], *conditions: str) -> "Group":
        """These *passages*, and what else decides their scores: the text, a wording."""
        digest = hashlib.sha256(f"{LAYOUT_VERSION} {' '.join(conditions)}".encode())
        for passage in passages:
            digest.update(f"\0{passage.asked}\0{passage.right}".encode())
        return cls(key=digest.hexdigest()[:12], passages=tuple(passages))


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The right tokens of a passage in a chunk."""

    name: str  # of what is asked for
    places: tuple[int, ...]  # of its tokens in the chunk, from 0
    ends: tuple[int, ...]
    """Per token, how many characters of its lines are complete with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A text with questions, laid out for a tool that reads it in batches."""

    text: str  # with its paddings
    ids: tuple[int, ...]  # numbers of the tokens that are read
    spans: tuple[Span, ...]
    """The right tokens of each function, in the order of the text."""

    def has_passages_scored_by(
        self, passages: Sequence[Passage], tool: ReadingTool
    ) -> bool:
        """Whether it has these *passages*, at places that *tool* scores."""
        wanted, scored = self.right_token_places, tool.scorable_places(len(self.ids))
        return (
            [span.name for span in self.spans] == [passage.name for passage in passages]
            and all(0 < len(span.places) == len(span.ends) for span in self.spans)
            and all(one < two for one, two in itertools.pairwise(wanted))
            and all(place in scored for place in wanted)
        )

    @property
    def right_token_places(self) -> tuple[int, ...]:
        """Places of all right tokens."""
        return tuple(place for span in self.spans for place in span.places)

    def passage_token_count(self, span: Span) -> int:
        """
        Tokens of the question of *span* and of its lines.

        Of the first, of its lines alone: its question follows the text.
        """
        before = [other for other in self.spans if other.places[0] < span.places[0]]
        begin = before[-1].places[-1] + 1 if before else span.places[0]
        return span.places[-1] + 1 - begin

    def scores_of(self, read: ReadTokens, span: Span, *, wall_s: float) -> Forced:
        """The scores of *span*, out of *read*, those of all `right_token_places`."""
        at = self.right_token_places.index(span.places[0])
        end = at + len(span.places)
        return Forced(
            logprobs=read.logprobs[at:end],
            bounds=tuple(bound - at for bound in read.bounds if at <= bound < end),
            leads=read.leads[at:end],
            ends=span.ends,
            prompt_tokens=span.places[0],
            wall_s=wall_s,
        )


def lay_out_chunk(
    tokenizer: Tokenizer, tool: ReadingTool, text: str, passages: Sequence[Passage]
) -> Chunk:
    """
    *text*, and behind it each of *passages* asked and answered, in one chunk.

    In front stands padding if the questions are longer than the text; behind, as much
    text again as the chunk has.

    Raises:
        BadInput: If the tokens of the text do not add up to it, or a function has no
            token of its own.
    """
    front, behind = 0, len(text)
    for _ in range(ROUNDS):
        before = padding(front)
        body, ranges = _compose_text(f"{before}\n" if before else "", text, passages)
        whole = f"{body}\n\n{padding(behind)}end"
        pieces = tokenizer.tokens(whole)
        ends = _token_ends(pieces, whole)
        spans = [_passage_span(ends, whole, passage, *at) for passage, at in ranges]
        last = spans[-1].places[-1]
        length = pad_context(last + 2)
        first = spans[0].places[0]
        if first not in tool.scorable_places(length):
            # Half of what is missing is in the other half of the chunk.
            missing = tool.scorable_places(length).start - first
            front += (
                2 * math.ceil(missing * len(whole) / len(pieces)) + len(whole) // 64
            )
        elif len(pieces) < 2 * length + 1:
            behind *= 2
        else:
            ids = tuple(piece.id for piece in pieces[:length])
            return Chunk(text=whole, ids=ids, spans=tuple(spans))
    raise _unreadable_in_batches_error("no padding makes a chunk of it")


def _compose_text(
    before: str, text: str, passages: Sequence[Passage]
) -> tuple[str, list[tuple[Passage, tuple[int, int]]]]:
    """*before*, *text* and *passages* in one, and where each right answer is in it."""
    body, ranges = before + text, []
    for passage in passages:
        body += passage.asked
        begin = len(body)
        body += passage.right
        ranges.append((passage, (begin, len(body))))
    return body, ranges


def _passage_span(
    ends: Sequence[int], whole: str, passage: Passage, begin: int, end: int
) -> Span:
    """
    The right tokens of a passage: those that end in its answer, none that ends behind.

    A token that holds the line break before lines and the indentation of the first is
    one of them: to write it is to begin the answer.

    Raises:
        BadInput: If there are none.
    """
    first, last = (len(whole[:at].encode(errors="replace")) for at in (begin, end))
    right = passage.right.encode(errors="replace")
    inside = [(place, at) for place, at in enumerate(ends) if first < at <= last]
    if not inside:
        raise _unreadable_in_batches_error(f"{passage.name} has no token of its own")
    return Span(
        name=passage.name,
        places=tuple(place for place, _ in inside),
        ends=tuple(
            len(right[: at - first].decode(errors="ignore")) for _, at in inside
        ),
    )


def _token_ends(pieces: Sequence[TokenPiece], whole: str) -> list[int]:
    """
    Where each token ends in *whole*, in bytes.

    Counted from the end: a tokenizer may put a blank before all, and the token that
    begins a prompt may have a text.

    Raises:
        BadInput: If the tokens are not those of the text.
    """
    data = whole.encode(errors="replace")
    if not b"".join(map(_piece_bytes, pieces)).endswith(data):
        raise _unreadable_in_batches_error("its tokens do not add up to the text")
    end, ends = len(data), []
    for piece in reversed(pieces):
        ends.append(end)
        end -= piece.utf8_size
    return ends[::-1]


def _piece_bytes(piece: TokenPiece) -> bytes:
    if isinstance(piece.piece, str):
        return piece.piece.encode(errors="replace")
    return bytes(piece.piece)


Read = Callable[[Group, str], AnswerGroup]
"""Has a group read behind a text."""


def answer_by_reading(
    probe: Probe,
    context: ProbeContext,
    observed: Observed,
    questions: Callable[[], Iterable[Question]],
    answering: Callable[[Read], Answering],
) -> None:
    """
    Have all *questions* answered by reading, to which *observed* has no answer.

    Args:
        probe: Whose they are.
        context: The cell.
        observed: What is known of it; answers are added.
        questions: Called behind each answer, as one may set what is asked then.
        answering: Makes what answers them, given what reads.

    Raises:
        CellError: If the tool fails, or the server.
    """
    if any(observed.needs_asking(question.key) for question in questions()):
        with start_reader(context) as read:
            ask_and_keep_missing_answers(
                probe, context, observed, questions, answering(read)
            )


@contextlib.contextmanager
def start_reader(context: ProbeContext) -> Iterator[Read]:
    """
    What reads the groups of a cell: a tool, or a server that scores its prompts.

    Raises:
        CellError: If the server does not get ready, or is not what was asked for.
    """
    if not context.run.engine.scores_prompts:
        yield partial(read_group_by_tool, context)
        return
    before, began = context.phases, context.clock()
    with context.serving() as served:
        starts_s = [context.clock() - began]

        def read_group_by_server(group: Group, text: str) -> AnswerGroup:
            found = _read_by_echo(context, served, group, text)
            # The first text has waited for the server, as that of a tool has.
            waited_s = starts_s.pop() if starts_s else 0.0
            return replace(found, text_s=round(found.text_s + waited_s, 4))

        yield read_group_by_server
    if before.ready_s is not None:
        context.phases = context.phases.with_previous_added(before)


def _read_by_echo(
    context: ProbeContext, served: Served, group: Group, text: str
) -> AnswerGroup:
    """The answers of *group* behind *text*, by one request to a server that echoes."""
    body, ranges = _compose_text("", text, group.passages)
    started = context.clock()
    every = Asker(served, context).score_passages(
        body, [passage for _, passage in ranges]
    )
    whole_s = context.clock() - started
    own_s = math.fsum(forced.wall_s for forced in every)
    answers = _answers_of_group(group, every, body.encode(errors="replace"))
    return AnswerGroup(answers=answers, text_s=max(0.0, whole_s - own_s))


def read_group_by_tool(context: ProbeContext, group: Group, text: str) -> AnswerGroup:
    """
    The answers of *group*, read by a tool behind *text*.

    Raises:
        BadInput: See `lay_out_chunk`.
        CellError: If the tool fails.
    """
    run = context.run
    tool = run.engine.reading_tool()
    chunk = _find_or_lay_out_chunk(context, tool, group, text)
    with (
        context.record_tool_time(),
        context.limit_and_record_silence() as silence_limit,
    ):
        task = ReadingTask(
            pair=context.pair,
            ids=chunk.ids,
            wanted=chunk.right_token_places,
            text=chunk.text.encode(errors="replace"),
            text_name=run.setup.corpus.name,
            folder=run.folder,
            silence_limit=silence_limit,
        )
        log, started = context.cell_log_path("reading"), context.clock()
        tokens = tool.read_and_score(task, log=log, note=context.record_tool_run)
        token_s = (context.clock() - started) / len(chunk.ids)
    # A passage took the share of its question and its answer, the text the rest.
    own = sum(map(chunk.passage_token_count, chunk.spans))
    text_s = round(token_s * (len(chunk.ids) - own), 4)
    every = [
        chunk.scores_of(
            tokens, span, wall_s=round(token_s * chunk.passage_token_count(span), 6)
        )
        for span in chunk.spans
    ]
    return AnswerGroup(
        answers=_answers_of_group(group, every, task.text), text_s=text_s
    )


def _answers_of_group(
    group: Group, every: Sequence[Forced], text: bytes
) -> tuple[Answer, ...]:
    """The scores of the passages of *group*, in a *text* that was read."""
    digest = hashlib.sha256(text).hexdigest()
    return tuple(
        Answer(name=passage.name, prompt_sha256=digest, scores=scores)
        if scores.logprobs
        else Answer(name=passage.name, prompt_sha256=digest, error=UNTOLD)
        for passage, scores in zip(group.passages, every, strict=True)
    )


def _find_or_lay_out_chunk(
    context: ProbeContext, tool: ReadingTool, group: Group, text: str
) -> Chunk:
    """The chunk of *group*, as stored in the run folder, else laid out and stored."""
    run = context.run
    path = refuse_linked_folder(run.folder / "base") / f"{group.key}.chunk.json"
    chunk = read_json_or_none(path, Chunk)
    if chunk is None or not chunk.has_passages_scored_by(group.passages, tool):
        with run.engine.tokenizing(log=context.cell_log_path("counting")) as tokenizer:
            chunk = lay_out_chunk(tokenizer, tool, text, group.passages)
        write_json_if_possible(path, chunk)
    return chunk


def refuse_impossible_reading(
    estimates: Estimates, *, wanted: str, otherwise: str
) -> None:
    """
    Stop at an engine that cannot read right answers in its context, or has none.

    Args:
        estimates: What is known of the run.
        wanted: The option that asks for it.
        otherwise: One that works.

    Raises:
        BadInput: If memory does not suffice.
        MachineError: If the engine has no tool for it.
    """
    try:
        if not estimates.engine.scores_prompts:
            estimates.engine.require(Ability.READING)
    except CodeneedleError as error:
        error.hint = f"{error.hint.removesuffix('.')}, or {otherwise}."
        raise
    if estimates.unread:
        raise BadInput(
            source=wanted,
            reason=estimates.unread,
            hint=f"Use {otherwise}, or a smaller --context.",
        )


def _unreadable_in_batches_error(reason: str) -> BadInput:
    """The error for right answers that cannot be read in batches."""
    return BadInput(
        source="tokenizer of the weights",
        reason=f"right answers cannot be read in batches: {reason}",
        hint="Have them forced: --way force, --no-read-answers.",
    )
