"""Makes records of the retrieval probe: real questions, answers as right as wished."""

import hashlib
from dataclasses import replace

from made_contexts import run_context, stored_by
from made_records import made_setup, with_scores

from codeneedle.cache_types import Pair
from codeneedle.engines.messages import Forced, Reply
from codeneedle.probes.answers import Skipped
from codeneedle.probes.observations import Answer
from codeneedle.probes.prompts import PromptForm
from codeneedle.probes.retrieval.probe import PROBE
from codeneedle.probes.retrieval.record import (
    NAME,
    Answered,
    Calibration,
    Dialled,
    DialStep,
    Fitted,
    Retrieval,
    TextAnswer,
    TextKey,
    TextRead,
)
from codeneedle.probes.retrieval.settings import RetrievalSettings
from codeneedle.probes.retrieval.task_kinds import make_texts
from codeneedle.probes.retrieval.tasks import QuestionFields
from codeneedle.records.record import (
    CellRecord,
    Phases,
    Status,
    as_json,
    shared_field_values,
)

DEPTHS = (0.1, 0.5, 0.9)


def right(question, _length):
    """An answer that is right."""
    return question.payload


def made_scored(payload):
    """A right answer of one token per character, all of them alike."""
    count = len(payload)
    return Forced(
        logprobs=(-0.5,) * count,
        leads=(1.0,) * count,
        ends=tuple(range(1, count + 1)),
        wall_s=0.1,
    )


def made_asked(question, length, decoys, *, answer=right, scored=made_scored):
    """*question* with the answer that *answer* gives it at *length*."""
    named = replace(question, name=f"{length}-{question.name}")
    return TextAnswer(
        **shared_field_values(named, QuestionFields),
        decoys=tuple(decoys.index(each) for each in question.decoys),
        answer=Answer(
            name=named.name,
            reply=Reply(
                text=answer(question, length),
                finish="stop",
                predicted_tokens=9,
                predicted_ms=90.0,
                wall_s=0.2,
            ),
            scores=scored(question.payload) if scored else None,
        ),
    )


def made_texts(task="multikey", *, length=1024, dial=2, questions=2, **answers):
    """The texts of *task* at *length*, read and answered."""
    made = make_texts(
        task,
        dial=dial,
        characters=length * 4,
        depths=DEPTHS,
        questions=questions,
        seed=7,
    )
    found = []
    for number, text in enumerate(made):
        each = dict.fromkeys(d for asked in text.questions for d in asked.decoys)
        decoys = tuple(each)
        found.append(
            TextRead(
                task=task,
                length=length,
                number=number,
                characters=len(text.text),
                sha256=hashlib.sha256(text.text.encode()).hexdigest(),
                decoys=decoys,
                prompt_tokens=length + 20,
                cached_tokens=20,
                prompt_ms=1000.0,
                answers=tuple(
                    made_asked(asked, length, decoys, **answers)
                    for asked in text.questions
                ),
            )
        )
    return found


def scored_texts(logps):
    """Texts of one right answer, whose tokens have the log-probability *logps*."""
    (first, *_) = made_texts(questions=1)
    asked = first.answers[0]
    count = len(asked.answer.scores.logprobs)
    return [
        replace(
            first,
            number=number,
            answers=(
                replace(
                    asked,
                    answer=with_scores(
                        asked.answer, logprobs=(logp,) * count, leads=(4.0,) * count
                    ),
                ),
            ),
        )
        for number, logp in enumerate(logps)
    ]


def made_dial(task="multikey", *, level=2, score=0.7, is_fixed=False):
    """A dial that found *level* at once."""
    path = (DialStep(level, score, 10),)
    return Dialled(task=task, level=level, is_fixed=is_fixed, path=path)


def made_calibration(*dials, left_out=(), answered=()):
    """What the reference f16/f16 found out."""
    chosen = dials or (made_dial(),)
    return Calibration(
        reference="f16/f16",
        dials=chosen,
        sizes=tuple(Fitted(dial.task, 1024, 4096) for dial in chosen),
        left_out=tuple(Skipped(*each) for each in left_out),
        answered=tuple(Answered(*each) for each in answered),
    )


def with_calibration(setup, calibration):
    """*setup*, once the reference has set *calibration*."""
    return replace(setup, calibrated={NAME: as_json(calibration)})


def retrieval_record(pair, texts, *, not_asked=()):
    """A finished record of the probe, as it comes from disk."""
    found = Retrieval(
        answers={text.key.name: text for text in texts},
        skipped={
            TextKey(task, length, number).name: reason
            for task, length, reason in not_asked
            for number in sorted({e.number for e in texts if e.task == task}) or [0]
        },
    )
    return CellRecord(
        pair=Pair.parse(pair),
        probe=NAME,
        status=Status.FINISHED,
        started="2025-11-20T12:00:00+00:00",
        phases=Phases(ready_s=0.5, measure_s=10.0, stop_s=0.2),
        observation=as_json(found),
    )


def made_run(folder, engine, *, form=PromptForm.COMPLETION, **asked):
    """A run with these settings, its conditions in the setup."""
    wanted = {
        "tasks": ("multikey",),
        "lengths": (500,),
        "depths": (0.1, 0.9),
        "questions": 2,
        "dial": (0,),
    }
    settings = {NAME: RetrievalSettings(**wanted | asked)}
    setup = replace(made_setup(), prompt_form=form)
    run = run_context(folder, engine, setup=setup, settings=settings)
    return replace(run, setup=replace(setup, probes={NAME: stored_by(PROBE, run)}))
