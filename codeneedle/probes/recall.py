"""The recall probe: asks for functions verbatim and stores the replies."""

import bisect
import functools
import hashlib
import itertools
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from codeneedle.analysis.recall import METRICS
from codeneedle.corpora.needles import ASKED_LINES
from codeneedle.engines.client import Chat, Client, Completion
from codeneedle.engines.llama_cpp.arguments import difference
from codeneedle.engines.llama_cpp.server import Served
from codeneedle.engines.responses import Reply, ServerGone
from codeneedle.errors import CellError
from codeneedle.probes import prompts
from codeneedle.probes.probe import Measurement, Probe, Stage, Step
from codeneedle.probes.prompts import PromptForm
from codeneedle.records.record import (
    Json,
    NeedleFacts,
    Recall,
    Round,
    Run,
    Trial,
    as_json,
)
from codeneedle.scoring.alignment import answer_end, answer_lines, score
from codeneedle.sweep.plan import Plan

TAIL_LINES = 2
"""Lines after a complete answer that are still read, to see whether it runs on."""

SLACK_LINES = 8
"""Lines beyond the asked ones that an answer with slips in it may take."""


def enough_for(needle: NeedleFacts) -> Callable[[str], bool]:
    """
    A judge of the reply so far: true once reading on would tell nothing more.

    That is when every asked line has matched and `TAIL_LINES` more have come, or
    when the answer is `SLACK_LINES` longer than what was asked. Only complete
    lines are looked at, so the verdict does not depend on how tokens fall.
    """
    judge = functools.lru_cache(maxsize=1)(functools.partial(_is_enough, needle))

    def is_enough(so_far: str) -> bool:
        # Blank lines change no verdict, and a model may write them without end.
        return judge(so_far.rpartition("\n")[0].rstrip())

    return is_enough


def _is_enough(needle: NeedleFacts, complete: str) -> bool:
    if complete.count("\n") + 1 < ASKED_LINES:
        return False
    answer = answer_lines(needle, complete)
    if len(answer) >= ASKED_LINES + SLACK_LINES:
        return True
    if len(answer) < ASKED_LINES or not _is_whole(needle, complete):
        return False
    return _lines_after_start(complete) >= ASKED_LINES + TAIL_LINES


def _is_whole(needle: NeedleFacts, so_far: str) -> bool:
    return score(needle, so_far).matched == ASKED_LINES


def _lines_after_start(so_far: str) -> int:
    """Non-blank lines of any kind: prose after a closed fence is a tail, too."""
    return sum(bool(line.strip()) for line in so_far.split("\n"))


SLACK_TOKENS = 256
"""What a server may read anew for one lead beyond the answer itself, in tokens."""


@dataclass(frozen=True, slots=True)
class Leads:
    """
    Probabilities at some places of an answer; parallel, ascending by place.

    Attributes:
        places: Where in the answer, in characters.
        logprobs: Natural logarithm of the probability of the token that is there.
        gaps: That minus the best other token's, in nats.
        is_dear: Whether the server had to read the prompt again for them, so that
            nobody should ask for more.
    """

    places: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    gaps: tuple[float, ...] = ()
    is_dear: bool = False


def leads(client: Client, prompt: str, answer: str, *, seed: int = 0) -> Leads:
    """
    Ask how sure the model was of the first word of each line of its *answer*.

    A server that speculates tells the probabilities of none of the tokens that it
    had guessed. Asked for a single token, it has nothing to guess: each lead is
    one request, that goes on with the answer up to there. From the last to the
    first, each finds all that it needs in the cache.

    Args:
        client: Of the server that gave the answer.
        prompt: What it was asked, as the template renders it.
        answer: The part of its reply that is scored.
        seed: Of sampling.

    Raises:
        CellError: If the server fails.
    """
    tokens = client.tokens(prompt + answer)
    places = _token_of_each(client, answer, tokens)
    found: list[tuple[int, float, float]] = []
    is_dear = False
    for place, at in reversed(places):
        question = Completion(prompt=tokens[:at], max_tokens=1, seed=seed)
        reply = client.complete(question)
        if reply.gaps:
            # Computed alone and not in a batch, a near tie may fall otherwise.
            is_same = reply.ids == tokens[at : at + 1]
            found.append((place, reply.logprobs[0], reply.gaps[0] if is_same else 0.0))
        read = reply.prompt_tokens - reply.cached_tokens
        is_dear = read > len(answer) + SLACK_TOKENS
        if is_dear:
            break
    found.reverse()
    return Leads(
        places=tuple(place for place, _, _ in found),
        logprobs=tuple(logprob for _, logprob, _ in found),
        gaps=tuple(gap for _, _, gap in found),
        is_dear=is_dear,
    )


def _token_of_each(
    client: Client, answer: str, tokens: tuple[int, ...]
) -> list[tuple[int, int]]:
    """
    The first word of each line, as places in *answer* and indices into *tokens*.

    Counted from the end: what a tokenizer makes of a beginning depends on what comes
    before it, so places are left out from where on the tokens are not the same.
    """
    pieces = client.pieces(answer)
    starts = list(itertools.accumulate((piece.size for piece in pieces), initial=0))
    found = []
    for place in first_words(answer):
        index = bisect.bisect_right(starts, len(answer[:place].encode())) - 1
        rest = pieces[index:]
        at = len(tokens) - len(rest)
        if rest and tokens[at:] == tuple(piece.id for piece in rest):
            found.append((place, at))
    return found


def first_words(answer: str) -> list[int]:
    """Where the first word of each line that has one stands, in characters."""
    found, start = [], 0
    for line in answer.split("\n"):
        if line.strip():
            found.append(start + len(line) - len(line.lstrip()))
        start += len(line) + 1
    return found


BACK_OFF_S = (0.1, 0.5, 2.0)
"""How long to wait before each further attempt, in seconds."""

_Answer = TypeVar("_Answer")


@dataclass(slots=True)
class Asker:
    """
    Asks one server for needles of one stage.

    Attributes:
        served: The server.
        stage: The cell.
        speculates: Whether the server drafts; it tells no probabilities then, and
            is asked for some.
    """

    served: Served
    stage: Stage
    speculates: bool = False
    _retries: list[str] = field(default_factory=list)

    def round(
        self, needle: NeedleFacts, *, tokens: int, with_leads: bool = True
    ) -> tuple[Round, tuple[int, ...]]:
        """
        Ask for *needle*, allowing *tokens* tokens of reply.

        Returns:
            The round, and the tokens of its reply where the server tells them.

        Raises:
            CellError: If the server fails, or the line breaks time and again.
        """
        question = self._question(needle, tokens=tokens)
        self._retries.clear()
        with self.stage.asking():
            reply = self._persistently(lambda: self._reply(question, needle))
            asked = _round(needle, _identity(question), reply)
            if self.speculates and with_leads and not asked.error:
                found = self._persistently(lambda: self._leads(question, needle, reply))
                asked = _with_leads(asked, found)
        return replace(asked, retries=tuple(self._retries)), reply.ids

    def settle(self) -> None:
        """Wait until the server is idle, before it is stopped."""
        self._persistently(self.served.client.settle)

    def _persistently(self, ask: Callable[[], _Answer]) -> _Answer:
        """Ask again if the line breaks, as long as the server lives."""
        for wait_s in BACK_OFF_S:
            try:
                return ask()
            except ServerGone as error:
                # A line also breaks when a server dies, a moment before it is gone.
                if self.served.ends_within(wait_s):
                    raise
                self._retries.append(" ".join(str(error).split()))
        return ask()

    def _reply(self, question: Chat | Completion, needle: NeedleFacts) -> Reply:
        enough = enough_for(needle)
        if isinstance(question, Chat):
            return self.served.client.chat(question, enough=enough)
        return self.served.client.complete(question, enough=enough)

    def _question(self, needle: NeedleFacts, *, tokens: int) -> Chat | Completion:
        setup, text = self.stage.setup, self.stage.text
        if setup.prompt_form == PromptForm.COMPLETION:
            prompt = prompts.completion_prompt(text, needle)
            return Completion(prompt=prompt, max_tokens=tokens, seed=setup.seed)
        prefill = self.stage.plan.request.prefill_no_think
        return Chat(
            messages=prompts.chat_messages(text, needle, prefill_no_think=prefill),
            max_tokens=tokens,
            seed=setup.seed,
            template_args=prompts.NO_THINK_ARGS,
        )

    def _leads(
        self, question: Chat | Completion, needle: NeedleFacts, reply: Reply
    ) -> Leads:
        client = self.served.client
        if isinstance(question, Chat):
            prompt = client.render(question.messages, question.template_args)
        else:
            prompt = str(question.prompt)
        answer = reply.text[: answer_end(needle, reply.text)]
        found = leads(client, prompt, answer, seed=question.seed)
        # A cache that cannot be cut back has the whole prompt read for each lead.
        self.speculates = not found.is_dear
        return found


def _identity(question: Chat | Completion) -> str:
    """SHA-256 of what was sent, each message on a line of its own."""
    if isinstance(question, Completion):
        text = str(question.prompt)
    else:
        text = "\n".join(f"{said.role}: {said.content}" for said in question.messages)
    return hashlib.sha256(text.encode()).hexdigest()


def _round(needle: NeedleFacts, identity: str, reply: Reply) -> Round:
    return Round(
        needle=needle.name,
        prompt_sha256=identity,
        reply=reply.text,
        error=_unanswered(needle, reply),
        finish=reply.finish,
        prompt_tokens=reply.prompt_tokens,
        cached_tokens=reply.cached_tokens,
        prompt_ms=reply.prompt_ms,
        predicted_tokens=reply.predicted_tokens,
        predicted_ms=reply.predicted_ms,
        wall_s=reply.wall_s,
        logprobs=reply.logprobs,
        gaps=reply.gaps,
        lengths=reply.lengths,
        drafted=reply.drafted,
        accepted=reply.accepted,
    )


def _with_leads(asked: Round, found: Leads) -> Round:
    return replace(
        asked,
        logprobs=found.logprobs,
        gaps=found.gaps,
        lengths=(),
        places=found.places,
    )


def _unanswered(needle: NeedleFacts, reply: Reply) -> str:
    """Why there is nothing to score, if so: an error of the round, never a zero."""
    if answer_lines(needle, reply.text):
        return ""
    thought = reply.reasoning or reply.text.strip()
    if thought and reply.finish == "length":
        return f"all {reply.predicted_tokens} tokens went into reasoning"
    return "the answer is empty"


NAME = "recall"

PRIMING_TOKENS = 8
"""Enough to make the server read the corpus; what it says is not scored."""

TRIAL_ROUNDS = 3
"""Needles that the first cell asks both ways: near the top, the middle and the end."""


class NoAnswers(CellError):  # noqa: N818 - named after the fact
    """Not one round of a cell had an answer to score."""

    def __init__(self, *, reason: str) -> None:
        super().__init__(
            f"no round has an answer: {reason}",
            hint="Try --prompt-form completion, or --prefill-no-think for a model "
            "that thinks whatever it is told.",
        )


@dataclass(slots=True)
class _Said:
    """What one server said: its rounds, and the tokens of their replies."""

    priming: Round | None = None
    rounds: list[Round] = field(default_factory=list)
    tokens: list[tuple[int, ...]] = field(default_factory=list)


_Saying = Generator[Step, None, _Said]


def measure(stage: Stage) -> Measurement:
    """
    Ask every needle of the setup, after one unscored round.

    That round asks for the last needle, so that each scored one finds the corpus
    in the cache and nothing else: the same path for all.

    Where the text is to draft its own recall and nobody knows yet that this changes
    nothing, some needles are asked of a plain server first. If its replies differ,
    all are asked plainly, in this cell and in those to come.

    Raises:
        CellError: If the server fails, or no round has an answer.
    """
    needles = stage.setup.needles
    plain = None
    began = time.monotonic()
    if stage.needs_trial:
        plain = yield from _tried(stage, _spread(needles))
    trial_s = round(time.monotonic() - began, 4)
    said = yield from _asked(stage)
    if plain is not None:
        stage.trial = _compared(stage, plain, said)
        if stage.trial.difference:
            said = yield from _asked(stage)
        stage.phases = replace(stage.phases, trial_s=trial_s)
    if all(asked.error for asked in said.rounds):
        raise NoAnswers(reason=said.rounds[0].error)
    return as_json(
        Recall(
            rounds=tuple(said.rounds),
            priming=said.priming,
            plain=tuple(plain.rounds) if plain else (),
        )
    )


def _tried(stage: Stage, needles: Sequence[NeedleFacts]) -> _Saying:
    """Ask *needles* of a server that drafts nothing."""
    total = len(stage.setup.needles)
    yield Step(0, total, "loading, to compare")
    with stage.serving_plainly(tag="plain") as served:
        asker = Asker(served, stage)
        yield Step(0, total, "reading the corpus, to compare")
        return (yield from _rounds(asker, needles, total=total, aside=True))


def _asked(stage: Stage) -> _Saying:
    """Ask all needles, the way that the stage speculates."""
    needles = stage.setup.needles
    yield Step(0, len(needles), "loading")
    with stage.serving() as served:
        asker = Asker(served, stage, speculates=stage.speculation is not None)
        yield Step(0, len(needles), "reading the corpus")
        said = yield from _rounds(asker, needles, total=len(needles))
        yield Step(len(needles), len(needles), "stopping")
    return said


def _rounds(
    asker: Asker, needles: Sequence[NeedleFacts], *, total: int, aside: bool = False
) -> _Saying:
    said = _Said()
    last = asker.stage.setup.needles[-1]
    said.priming, _ = asker.round(last, tokens=PRIMING_TOKENS, with_leads=False)
    _heed(asker.served, asker.stage)
    for needle in needles:
        done = 0 if aside else len(said.rounds)
        yield Step(done, total, f"{needle.name}{', to compare' if aside else ''}")
        asked, tokens = asker.round(needle, tokens=needle.budget)
        said.rounds.append(asked)
        said.tokens.append(tokens)
    asker.settle()
    return said


def _heed(served: Served, stage: Stage) -> None:
    """Some fallbacks are only told at the first token."""
    stage.heed(served.reread())


def _spread(needles: Sequence[NeedleFacts]) -> list[NeedleFacts]:
    """Some of *needles*, from the first to the last."""
    last = len(needles) - 1
    places = {at * last // (TRIAL_ROUNDS - 1) for at in range(TRIAL_ROUNDS)}
    return [needles[at] for at in sorted(places)]


def _compared(stage: Stage, plain: _Said, said: _Said) -> Trial:
    """Token by token; by the text, where a server does not tell its tokens."""
    with_draft = {
        asked.needle: (asked, tokens)
        for asked, tokens in zip(said.rounds, said.tokens, strict=True)
    }
    found = []
    for asked, tokens in zip(plain.rounds, plain.tokens, strict=True):
        other, other_tokens = with_draft[asked.needle]
        found.append(
            difference(tokens, other_tokens, of=asked.needle)
            or difference(asked.reply, other.reply, of=asked.needle, unit="character")
        )
    return Trial(
        pair=str(stage.pair),
        rounds=len(plain.rounds),
        tokens=sum(asked.predicted_tokens for asked in plain.rounds),
        difference=next(filter(None, found), ""),
    )


def conditions(plan: Plan, _text: str) -> Json:
    """How the corpus drafts its own recall: it decides which kernels run."""
    return {"speculation": plan.speculation.phrase} if plan.speculation else {}


def remarks(run: Run) -> tuple[str, ...]:
    """That speculation was switched off, if it was."""
    trial = run.setup.trial
    return (f"speculation is {trial.phrase}",) if trial and trial.difference else ()


PROBE = Probe(
    name=NAME, metrics=METRICS, measure=measure, conditions=conditions, remarks=remarks
)
