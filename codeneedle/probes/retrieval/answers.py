"""Shows answers of a retrieval record: a table of failures, or one question whole."""

import functools
import itertools
from collections.abc import Iterator, Sequence
from statistics import fmean

from rich.text import Text

from codeneedle.document import Document, Facts, Lines, Table
from codeneedle.engines.messages import Forced
from codeneedle.probes import forced
from codeneedle.probes.answers import Beside, ScoredAnswer, View
from codeneedle.probes.retrieval.outcomes import QuestionOutcome, outcomes
from codeneedle.probes.retrieval.prompts import right_answer_text
from codeneedle.probes.retrieval.scoring import AnswerScore, Mode
from codeneedle.records.record import CellRecord, Run
from codeneedle.text import NO_VALUE_WORD, escape_invisible_in_lines, one_line, plural

PAYLOAD_COLUMNS = 24
"""Of a payload and of an answer in a list; a question alone shows them whole."""


def answers(run: Run, record: CellRecord) -> Iterator[ScoredAnswer]:
    """The questions of *record*."""
    for outcome in outcomes(record):
        yield ScoredAnswer(
            name=outcome.question,
            show=functools.partial(_question_document, run, record, outcome),
            task=outcome.task,
            length=outcome.length,
            depth=outcome.depth,
            text=outcome.text,
            right=outcome.score.share,
            logp=outcome.scores.mean_logprob if outcome.scores else None,
            outcome=outcome.score.mode.value,
            beside=functools.partial(_lines_side_by_side, outcome),
        )


def _lines_side_by_side(outcome: QuestionOutcome) -> Beside:
    """Lines of the right answer and of the reply, side by side; None where one ends."""
    expected, reply = outcome.asked.payload, outcome.asked.answer.text.strip()
    return list(itertools.zip_longest(expected.split("\n"), reply.split("\n")))


def overview(record: CellRecord) -> Document:
    """How the answers of a retrieval record failed, and each that did."""
    results = outcomes(record)
    wrong = [result for result in results if result.score.mode is not Mode.CORRECT]
    right = len(results) - len(wrong)
    yield Lines([f"{right} of {plural(len(results), 'question')} right"])
    yield _mode_counts_by_task_table(results)
    heading = ["question", "expected", "answered", "mode"]
    if wrong:
        yield Table(heading, list(map(_wrong_row, wrong)), words=heading)


def _mode_counts_by_task_table(results: Sequence[QuestionOutcome]) -> Table:
    """A row for each task: how often each mode that occurs, and mean nats of scores."""
    modes = [mode for mode in Mode if any(o.score.mode is mode for o in results)]
    rows = []
    for task in dict.fromkeys(result.task for result in results):
        of_task = [result for result in results if result.task == task]
        counts = [sum(o.score.mode is mode for o in of_task) for mode in modes]
        logps = [outcome.scores.mean_logprob for outcome in of_task if outcome.scores]
        mean = f"{fmean(logps):.3f}" if logps else NO_VALUE_WORD
        rows.append([task, *map(str, counts), mean])
    heading = ["task", *(mode.value for mode in modes), "nats/token"]
    return Table(heading, rows, words={"task"})


def _wrong_row(outcome: QuestionOutcome) -> list[str]:
    """Question, right answer and reply, shortened, and how it failed."""
    return [
        outcome.question,
        _shorten_to_one_line(outcome.asked.payload),
        _shorten_to_one_line(outcome.asked.answer.text),
        answer_mode_phrase(outcome.score),
    ]


def answer_mode_phrase(judged: AnswerScore) -> str:
    """``intrusion of Oslo, 31 % later``, ``near-miss, 2 edits``, ``salad``."""
    if judged.decoy is not None:
        phrase = f"{judged.mode} of {judged.decoy}"
        if not judged.away:
            return phrase
        where = "later" if judged.away > 0 else "earlier"
        return f"{phrase}, {abs(judged.away):.0%} {where}"
    if judged.edits:
        return f"{judged.mode}, {plural(judged.edits, 'edit')}"
    return judged.mode.value


def _shorten_to_one_line(text: str) -> str:
    """*text* on one line of at most `PAYLOAD_COLUMNS`."""
    line = one_line(text)
    if len(line) <= PAYLOAD_COLUMNS:
        return line
    return f"{line[: PAYLOAD_COLUMNS - 3]}..."


def _question_document(
    run: Run, record: CellRecord, outcome: QuestionOutcome, _view: View
) -> Document:
    """One question of a task, verbatim, with what is known of its answer."""
    asked, scores = outcome.asked, outcome.scores
    place = (
        f"{outcome.task}, {plural(outcome.length, 'token')}, depth {outcome.depth:g}"
    )
    entries = [("place", place), ("asked", asked.prompt)]
    if asked.begin:
        entries.append(("begun", asked.begin))
    entries += [
        ("expected", asked.payload),
        ("answered", asked.answer.text),
        ("mode", answer_mode_phrase(outcome.score)),
    ]
    if scores:
        bound = "at most " if scores.bounds else ""
        count = (
            f"the first {scores.leading_first_choices} of {len(scores.logprobs)} tokens"
        )
        phrase = (
            f"{bound}{scores.mean_logprob:.3f} nats per token; {count} are first "
            "choices"
        )
        entries.append(
            ("read" if outcome.is_scored_without_reply else "forced", phrase)
        )
    shown = [
        (word, Text(escape_invisible_in_lines(phrase))) for word, phrase in entries
    ]
    yield Facts(shown, is_quiet=True)
    if scores:
        tokens = forced.tokens_beside_reference(
            run,
            record,
            outcome.question,
            _scores_by_question,
            text=right_answer_text(asked),
        )
        yield from forced.compared_tokens_document(tokens)


def _scores_by_question(record: CellRecord) -> dict[str, Forced]:
    every = outcomes(record)
    return {outcome.question: outcome.scores for outcome in every if outcome.scores}
