"""
Which functions share a chunk where right lines are read behind a text, and about how
many tokens their questions take.
"""

from collections.abc import Iterator, Sequence
from statistics import fmean

from codeneedle.corpora.corpus import Corpus
from codeneedle.corpora.needles import WRITTEN_LINES, NeedleFacts
from codeneedle.probes.probe import Question
from codeneedle.probes.reading import ROOM, Group, Passage, questions_room
from codeneedle.probes.recall.prompts import WORDING, completion_prompt
from codeneedle.probes.recall.record import READ
from codeneedle.probes.recall.settings import Way, recall_layout
from codeneedle.records.record import Setup

HEADING_LINES = 2.5
"""Of a question, beside lines of the body: a blank one, a heading, a signature."""


def lines_per_question_and_answer(corpus: Corpus, lines: int) -> float:
    """About how many lines a question has with its answer, of so many *lines*."""
    bodies = [
        function.nonblank_line_count for function in corpus.long_enough_functions(lines)
    ]
    # The answer begins at a seeded line, behind those before it.
    whole = [min(body, WRITTEN_LINES) for body in bodies] or [lines]
    return HEADING_LINES + (fmean(whole) + lines) / 2


def passage_of(needle: NeedleFacts) -> Passage:
    """The question for *needle*, as it stands behind the text, and its right lines."""
    right = "\n".join(needle.lines)
    return Passage(needle.name, completion_prompt("", needle), right)


def reading_question(group: Group) -> Question:
    """The question for the functions in the chunk of *group*."""
    return Question(
        f"{READ} {group.key}", phrase="reading right lines", body=(Way.READ, group)
    )


def question_and_answer_tokens(setup: Setup, passages: Sequence[Passage]) -> float:
    """
    About the tokens of the questions of *passages*, with their answers.

    By the characters per token of the corpus.
    """
    characters = sum(len(passage.asked + passage.right) for passage in passages)
    return setup.corpus.estimate_tokens(characters)


def group_functions_by_chunk(setup: Setup, blocks: Sequence[int]) -> Iterator[Group]:
    """
    The forced functions of *setup*, by the chunk that they are read in.

    Those that a pair is asked for later make chunks of their own, and so do those that
    a context is too short for.

    Args:
        setup: Of the run.
        blocks: After how many functions a chunk ends at the latest, ascending.
    """
    begin = 0
    room = questions_room(setup.corpus.tokens, setup.context)
    for end in blocks:
        taken: list[Passage] = []
        length = 0.0
        for needle in recall_layout(setup).forced[begin:end]:
            asked = passage_of(needle)
            more = ROOM * question_and_answer_tokens(setup, [asked])
            if taken and length + more > room:
                yield _group_of_passages(setup, taken)
                taken, length = [], 0.0
            taken.append(asked)
            length += more
        if taken:
            yield _group_of_passages(setup, taken)
        begin = end


def _group_of_passages(setup: Setup, passages: Sequence[Passage]) -> Group:
    return Group.of(passages, str(WORDING), setup.corpus.sha256)
