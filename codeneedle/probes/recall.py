"""Verbatim recall: every needle asked once, the reply stored as it came."""

import hashlib

from codeneedle import prompts
from codeneedle.client import Chat, Client, Completion, Reply
from codeneedle.enough import enough_for
from codeneedle.errors import CellError
from codeneedle.probe import Measurement, Probe, Step
from codeneedle.probes.recall_metrics import METRICS
from codeneedle.prompts import PromptForm
from codeneedle.records import NeedleFacts
from codeneedle.rounds import Recall, Round, observation_of
from codeneedle.scoring import answer_lines
from codeneedle.stage import Stage

PRIMING_TOKENS = 8
"""Enough to make the server read the corpus; what it says is not scored."""


class NoAnswers(CellError):  # noqa: N818 - named after the fact
    """Not one round of a cell had an answer to score."""

    def __init__(self, *, reason: str) -> None:
        super().__init__(
            f"no round has an answer: {reason}",
            hint="Try --prompt-form completion, or --prefill-no-think for a model "
            "that thinks whatever it is told.",
        )


def measure(stage: Stage) -> Measurement:
    """
    Ask every needle of the setup, after one unscored round.

    That round asks for the last needle, so that each scored one finds the corpus
    in the cache and nothing else: the same path for all.

    Raises:
        CellError: If the server fails, or no round has an answer.
    """
    needles = stage.setup.needles
    yield Step(0, len(needles), "loading")
    with stage.serving() as served:
        ask = Asker(served.client, stage)
        yield Step(0, len(needles), "reading the corpus")
        priming = ask.round(needles[-1], tokens=PRIMING_TOKENS)
        # Some fallbacks are only told at the first token.
        stage.heed(served.reread())
        rounds: list[Round] = []
        for needle in needles:
            yield Step(len(rounds), len(needles), needle.name)
            rounds.append(ask.round(needle, tokens=needle.budget))
        yield Step(len(needles), len(needles), "stopping")
    if all(asked.error for asked in rounds):
        raise NoAnswers(reason=rounds[0].error)
    return observation_of(Recall(rounds=tuple(rounds), priming=priming))


class Asker:
    """Asks one server for needles of one stage."""

    def __init__(self, client: Client, stage: Stage) -> None:
        self._client = client
        self._stage = stage

    def round(self, needle: NeedleFacts, *, tokens: int) -> Round:
        """Ask for *needle*, allowing *tokens* tokens of reply."""
        question = self._question(needle, tokens=tokens)
        enough = enough_for(needle)
        if isinstance(question, Chat):
            reply = self._client.chat(question, enough=enough)
        else:
            reply = self._client.complete(question, enough=enough)
        return _round(needle, _identity(question), reply)

    def _question(self, needle: NeedleFacts, *, tokens: int) -> Chat | Completion:
        setup, text = self._stage.setup, self._stage.text
        if setup.prompt_form == PromptForm.COMPLETION:
            prompt = prompts.completion_prompt(text, needle)
            return Completion(prompt=prompt, max_tokens=tokens, seed=setup.seed)
        prefill = self._stage.plan.request.prefill_no_think
        return Chat(
            messages=prompts.chat_messages(text, needle, prefill_no_think=prefill),
            max_tokens=tokens,
            seed=setup.seed,
            template_args=prompts.NO_THINK_ARGS,
        )


def _identity(question: Chat | Completion) -> str:
    """SHA-256 of what was sent, each message on a line of its own."""
    if isinstance(question, Completion):
        text = question.prompt
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
    )


def _unanswered(needle: NeedleFacts, reply: Reply) -> str:
    """Why there is nothing to score, if so: an error of the round, never a zero."""
    answer = answer_lines(reply.text, signature=needle.signature)
    if any(line.strip() for line in answer):
        return ""
    thought = reply.reasoning or reply.text.strip()
    if thought and reply.finish == "length":
        return f"all {reply.predicted_tokens} tokens went into reasoning"
    return "the answer is empty"


PROBE = Probe(name="recall", metrics=METRICS, measure=measure)
