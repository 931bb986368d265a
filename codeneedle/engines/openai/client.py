"""
Requests to any server with OpenAI's API: scores by an echo of the prompt, fields that
it refuses, prompts and replies that it cuts, and log-probabilities that cannot be.
"""

import contextlib
import itertools
import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any

from msgspec import Meta

from codeneedle.engines.http import (
    ANSWER_LIMIT_BYTES,
    SHORT_S,
    Connection,
    never_enough,
)
from codeneedle.engines.messages import (
    TOP_TOKENS,
    BadReply,
    BrokenOff,
    Chat,
    Completion,
    Finish,
    Forced,
    Message,
    PromptCut,
    Readiness,
    Refused,
    Reply,
    ServerGone,
    ServerSilent,
    StreamEvent,
    Timings,
    Token,
    check_and_convert_answer,
    passage_token_ranges_and_costs,
    read_reply_stream,
    round_finite_score_or_zero,
)
from codeneedle.engines.openai.retries import (
    BUSY,
    KEY_HINT,
    NOT_FOUND,
    WAITS_S,
    WANTS_KEY,
    ask_patiently,
)
from codeneedle.engines.openai.spelling import is_told, token_ends
from codeneedle.errors import CellError
from codeneedle.records.record import Json, Status
from codeneedle.scores import (
    LOWEST,
    ComputesNan,
    NoScore,
    NotANumber,
    checked_log_probability,
    refuse_contradiction,
)
from codeneedle.system.secrets import SHORTEST_IN_ANSWERS, mask_text

OPTIONAL = (
    ("top_k", "min_p", "repetition_penalty", "repeat_penalty"),
    ("chat_template_kwargs",),
    ("continue_final_message", "add_generation_prompt"),
    ("stream_options",),
    ("logprobs", "top_logprobs"),
    ("seed", "presence_penalty", "frequency_penalty"),
)
"""
Groups of fields that a strict server may refuse; they are left out then.

The first are no fields of OpenAI's, but vLLM, SGLang and others take their defaults
from the model's ``generation_config.json`` where a request does not state them.
"""

NEUTRAL: Json = {
    "temperature": 0.0,
    "top_p": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "top_k": 1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "repeat_penalty": 1.0,
    "stream": True,
    "stream_options": {"include_usage": True},
}
"""Greedy sampling without penalties, streamed, with the counts of tokens at the end."""

REFUSES_FIELDS = frozenset({400, 422})
"""Status codes of servers that do not take a field."""

BROKEN_OFF = frozenset(
    {"abort", "aborted", "cancelled", "content_filter", "error", "timeout"}
)
"""Reasons for an end before the model or the limit ended the reply."""

REFUSES_PROMPTS = REFUSES_FIELDS | {413}
"""The same of servers that do not take a prompt."""

REFUSES_ECHOES = NOT_FOUND | REFUSES_PROMPTS | {500, 501}
"""
The same of servers that do not echo: some answer 500 to that, and to nothing else.

All others are about the moment, the key or the way to the server.
"""

FIRST_WAITS_S = WAITS_S[:2]
"""How long to wait for an echo until one has come, where a server may have none."""

PROBABILITIES = "probabilities of given text"

LISTED = 5
"""Names of models that a message tells."""

TOKEN_BYTES = 16 << 10
"""Of a reply for each token that it may have: thirty times what an event takes."""

ECHO_BYTES = 256
"""Of an echo for each character of its prompt: if each is a token, twice its bytes."""

UNCOUNTED = 8
"""Tokens of a reply that a server may not count: marks of its parts, and of its end."""

UNSPELLED = 64
"""Characters of tokens that may be in no reply: marks of its parts, and of its end."""


class OpenAi(Connection):
    """
    Talks to one server with OpenAI's API, one request at a time.

    Implements `engine.Replies`. A complete reply is never requested again.
    """

    model: str = ""  # what the server calls the model; empty until it is known
    left_out: tuple[str, ...] = ()
    """Fields that the server has refused, and that are not sent any more."""

    strange: str = ""  # why the server was last taken for a stranger, as a phrase
    advice: str = ""  # what to do about it
    wants_key: bool = False
    """Whether that is for lack of a key, which time does not mend."""

    no_echo: str = ""  # why it does not echo prompts; empty if it does, or is not known
    unscored: str = ""
    """Why log-probabilities of a reply were not used; empty if all were."""

    _echoes: bool = False
    sleep: Callable[[float], None] = staticmethod(time.sleep)  # waits so many seconds

    def ask_model_names(self, *, limit_s: float = SHORT_S) -> tuple[str, ...] | None:
        """
        The names under which it serves models; None if it does not list any.

        Raises:
            CellError: If it does not answer, or refuses.
        """
        try:
            listed = self._ask("GET", "models", _Models, limit_s=limit_s).data
        except BadReply:
            return None
        except Refused as error:
            if error.code in NOT_FOUND:
                return None
            raise
        return tuple(mask_text(model.id) for model in listed)

    def ask_readiness_and_adopt_model(
        self, *, health: str, limit_s: float = SHORT_S
    ) -> Readiness:
        """
        State of the server; one that lists models, but not ours, is a stranger.

        A name stands for the one with ``:latest`` behind it, as Ollama lists it; if
        `model` is empty, the first that is listed becomes it. Why it is a stranger is
        kept in `strange`, `advice` and `wants_key`.

        Args:
            health: Path that answers with a success once it is ready; none if empty.
            limit_s: Time for each of the two questions, in seconds.
        """
        self.strange, self.wants_key = "", False
        self.advice = "Is --served-name right? Or give --health PATH."
        missing: Refused | None = None
        is_well = not health
        try:
            if health:
                missing = self._ask_health_path_error(health, limit_s)
                is_well = missing is None
            listed = self.ask_model_names(limit_s=limit_s)
        except Refused as error:
            if error.code in BUSY:
                return Readiness.LOADING
            self.wants_key = error.code in WANTS_KEY
            self.advice = KEY_HINT if self.wants_key else self.advice
            self.strange = str(error) if is_well or self.wants_key else ""
            return Readiness.STRANGER
        except (ServerGone, ServerSilent):
            return Readiness.SILENT
        if missing is not None:
            return self._readiness_without_health_path(missing, listed)
        if listed is None and health:
            return Readiness.READY
        return self._adopt_model_if_listed(listed)

    def _readiness_without_health_path(
        self, missing: Refused, listed: Sequence[str] | None
    ) -> Readiness:
        """
        LOADING until it lists models, then STRANGER: it lacks its health path.

        Some have the path only once the model is loaded, and list it by then.
        """
        if not listed:
            return Readiness.LOADING
        if self._adopt_model_if_listed(listed) is Readiness.READY:
            self.strange = str(missing)
            self.advice = "Is --health right? Without it, /v1/models is asked."
        return Readiness.STRANGER

    def _adopt_model_if_listed(self, listed: Sequence[str] | None) -> Readiness:
        """
        READY if our model is *listed*; without a name, the first of them becomes ours.

        Else a stranger, and `strange` says why; it is empty if nothing is listed.
        """
        if listed is None:
            self.strange = "the server does not list its models"
            return Readiness.STRANGER
        wanted = self.model or next(iter(listed), "")
        if not is_listed(wanted, listed):
            some = ", ".join(listed[:LISTED])
            self.strange = f"the server lists {some}, not {self.model}" if some else ""
            return Readiness.STRANGER
        self.model = wanted
        return Readiness.READY

    def _ask_health_path_error(self, health: str, limit_s: float) -> Refused | None:
        """An error if the server does not have this path; None if it has."""
        try:
            with self._response_to(
                "GET", self._url_from_root(health), None, limit_s=limit_s
            ):
                return None
        except Refused as error:
            if error.code not in NOT_FOUND:
                raise
            return error

    def _url_from_root(self, path: str) -> str:
        """*path* from the root of the server, not from its ``/v1``."""
        return str(self._http.base_url.copy_with(raw_path=path.encode()))

    def complete(
        self, question: Completion, *, enough: Callable[[str], bool] = never_enough
    ) -> Reply:
        """Continue a text; see `engine.Replies`."""
        body = self._request_body(question) | {
            "prompt": question.prompt,
            "logprobs": TOP_TOKENS,
        }
        return self._ask_without_refused_fields("completions", body, enough)

    def chat(
        self, question: Chat, *, enough: Callable[[str], bool] = never_enough
    ) -> Reply:
        """Answer a chat; a last message of the assistant is continued."""
        body = self._request_body(question) | {
            "messages": [asdict(message) for message in question.messages],
            "logprobs": True,
            "top_logprobs": TOP_TOKENS,
        }
        if question.template_args:
            body["chat_template_kwargs"] = dict(question.template_args)
        if question.messages[-1].role == "assistant":
            body |= {"continue_final_message": True, "add_generation_prompt": False}
        return self._ask_without_refused_fields("chat/completions", body, enough)

    def force(self, question: Completion | Chat, right: str) -> Forced:
        """
        The scores of *right* behind a completion, by an echo of both.

        Source:
            ``echo`` with ``logprobs`` of OpenAI's /completions, as vLLM and others have
            it and lm-evaluation-harness uses it (``local-completions``).

        Raises:
            BadReply: If it does not echo, tells no probabilities or impossible ones, or
                refuses its first echo for anything but the key.
        """
        if isinstance(question, Chat):
            raise _unscorable_error(
                "chats cannot be forced; --prompt-form completion can"
            )
        text = question.prompt + right
        question = replace(question, prompt=text)
        (forced,) = self.force_each(question, [(len(text) - len(right), len(text))])
        return forced

    def force_each(
        self, question: Completion, passages: Sequence[tuple[int, int]]
    ) -> list[Forced]:
        """
        The scores of *passages*, by one echo of the whole prompt.

        Raises:
            BadReply: See `force`.
        """
        started = time.perf_counter()
        body = self._request_body(replace(question, max_tokens=1)) | {
            "prompt": question.prompt,
            "logprobs": TOP_TOKENS,
            "echo": True,
            "stream": False,
        }
        body = self._without_fields(body, (*self.left_out, "stream_options"))
        answer = self._request_echo(body, question.prompt[slice(*passages[-1])])
        elapsed_s = round(time.perf_counter() - started, 4)
        return read_echo(answer, question.prompt, passages, wall_s=elapsed_s)

    def _request_echo(self, body: Json, right: str) -> "_StatedEvent":
        """
        The answer to *body*, which is to have *right* in it.

        A server that does not echo gets no further request. What fails for a moment
        says nothing of that.

        Raises:
            BadReply: If it does not echo, or not this prompt.
        """
        if self.no_echo:
            raise _unscorable_error(self.no_echo)
        waits_s = WAITS_S if self._echoes else FIRST_WAITS_S
        try:
            answer = self._request_whole_answer(body, waits_s)
        except Refused as error:
            answer = self._retry_echo(error, body)
        if not answer.choices:
            raise BadReply(expected=PROBABILITIES, answer="a reply without a choice")
        if right.strip() not in (answer.choices[0].text or ""):
            self.no_echo = "a reply without an echo"
            raise _unscorable_error(self.no_echo)
        self._echoes = True
        return answer

    def _retry_echo(self, failure: Refused, body: Json) -> "_StatedEvent":
        """
        The answer to *body* after a *failure*, once the same without an echo has one.

        A server that fails at both is broken or busy, for whatever is asked.

        Raises:
            BadReply: If it does not echo, or not this prompt: for its length.
            Refused: If it fails at both, or for a moment.
        """
        code = failure.code
        if self._echoes and code in REFUSES_PROMPTS:
            raise BadReply(expected=PROBABILITIES, answer=str(failure)) from failure
        if self._echoes or code not in BUSY | REFUSES_ECHOES:
            raise failure
        if code not in BUSY:
            raise _unscorable_error(str(failure)) from failure
        self._request_whole_answer(
            self._without_fields(body, ("echo", "logprobs")), WAITS_S
        )
        is_busy = code not in REFUSES_ECHOES
        try:
            return self._request_whole_answer(
                body, WAITS_S if is_busy else FIRST_WAITS_S
            )
        except Refused as error:
            if error.code != code or is_busy:
                raise
            self.no_echo = str(error)
            raise _unscorable_error(self.no_echo) from error

    def _request_whole_answer(
        self, body: Json, waits_s: Sequence[float]
    ) -> "_StatedEvent":
        """The answer to *body* in one piece, asked for again while it is busy."""
        limit_bytes = ANSWER_LIMIT_BYTES + ECHO_BYTES * len(body["prompt"])
        return ask_patiently(
            lambda: self._ask(
                "POST",
                "completions",
                _StatedEvent,
                body,
                limit_s=self._silence_s,
                limit_bytes=limit_bytes,
            ),
            sleep=self.sleep,
            waits_s=waits_s,
        )

    def wait_idle(self) -> None:
        """Return at once: a server that is stopped needs no waiting."""

    def continue_text(self, text: str, *, max_tokens: int, request: str = "") -> Reply:
        """
        What follows *text*; the reply to it, with a *request* behind it, in one message
        of a chat if the server does not continue texts.

        Raises:
            CellError: If it fails.
        """
        try:
            return self.complete(Completion(prompt=text, max_tokens=max_tokens))
        except Refused as error:
            if error.code not in NOT_FOUND | REFUSES_FIELDS:
                raise
        message = Message("user", f"{text}{request}")
        return self.chat(Chat(messages=(message,), max_tokens=max_tokens))

    def ask_prompt_token_count(self, text: str) -> int:
        """
        The server's own count of a prompt; see `continue_text`.

        Raises:
            CellError: If it fails, or does not count.
        """
        reply = self.continue_text(text, max_tokens=1)
        if not reply.prompt_tokens:
            raise BadReply(expected="usage: how many tokens a prompt has", answer="")
        return reply.prompt_tokens

    def _request_body(self, question: Chat | Completion) -> Json:
        """What every request has: model, limit, seed, and greedy sampling."""
        return {
            "model": self.model,
            "max_tokens": question.max_tokens,
            "seed": question.seed,
            **NEUTRAL,
        }

    def _ask_without_refused_fields(
        self, path: str, body: Json, enough: Callable[[str], bool]
    ) -> Reply:
        """
        The reply to *body*; without fields that the server turns out to refuse.

        Those are left out of all further requests.
        """

        def ask(left_out: Sequence[str]) -> Reply:
            sent = self._without_fields(body, left_out)
            return ask_patiently(
                lambda: self._stream_reply(path, sent, enough), sleep=self.sleep
            )

        # Asked twice: what is left out is so for all further requests.
        for _ in range(2):
            try:
                return ask(self.left_out)
            except Refused as error:
                if error.code not in REFUSES_FIELDS:
                    raise
                refused = error
        for left_out in self._fields_to_leave_out(body):
            with contextlib.suppress(Refused):
                reply = ask(left_out)
                self.left_out = left_out
                return reply
        raise refused

    def _fields_to_leave_out(self, body: Json) -> Iterator[tuple[str, ...]]:
        """
        Fields to leave out next, those that are left out already among them.

        Each group of `OPTIONAL` that *body* has, then the first two, three and so on.
        """
        sent = [
            group
            for group in OPTIONAL
            if any(name in body and name not in self.left_out for name in group)
        ]
        for group in sent:
            yield (*self.left_out, *group)
        for count in range(2, len(sent) + 1):
            yield (*self.left_out, *(name for group in sent[:count] for name in group))

    @staticmethod
    def _without_fields(body: Json, names: Sequence[str]) -> Json:
        return {name: value for name, value in body.items() if name not in names}

    def _stream_reply(
        self, path: str, body: Json, enough: Callable[[str], bool]
    ) -> Reply:
        """
        The reply to *body*, asked for once; its times are by our clock.

        Log-probabilities that cannot be are dropped, and `unscored` keeps why; secrets
        in its texts are masked.

        Raises:
            CellError: If it breaks off, or a limit of the server ends it early.
        """
        seen = _ReceivedReply()
        limit_bytes = TOKEN_BYTES * (body["max_tokens"] + UNSPELLED)
        with self._post_for_stream(path, body) as response:
            reply = read_reply_stream(
                self._events(response, limit_bytes=limit_bytes),
                read=lambda event: self._shorten_deadline_at_end(
                    seen.note_and_return_event(read_event(event))
                ),
                enough=enough,
                max_tokens=body["max_tokens"],
            )
        _refuse_early_end(reply, body["max_tokens"])
        reply = replace(
            reply,
            prompt_ms=round(seen.first_s * 1e3, 4),
            predicted_ms=round((seen.last_s - seen.first_s) * 1e3, 4),
            # A reply that we cut has no usage: most servers send an event a token.
            predicted_tokens=reply.predicted_tokens or seen.events,
            wall_s=round(seen.elapsed_s(), 4),
        )
        if (
            fault := seen.fault
            or reply.unscored
            or _spelling_fault(seen.spelled, reply)
        ):
            self.unscored = self.unscored or fault
            reply = replace(reply, logprobs=(), gaps=(), lengths=(), unscored=fault)
        return replace(
            reply,
            text=mask_text(reply.text, shortest=SHORTEST_IN_ANSWERS),
            reasoning=mask_text(reply.reasoning, shortest=SHORTEST_IN_ANSWERS),
        )


def _refuse_early_end(reply: Reply, max_tokens: int) -> None:
    """
    Refuse a *reply* that a limit of the server ended before *max_tokens* tokens came.

    Raises:
        CellError: If it is so; what is missing would be a loss of the pair.
    """
    written = reply.predicted_tokens  # 0: it does not count
    if reply.finish == "length" and 0 < written < max_tokens - UNCOUNTED:
        raise CellError(
            f"the server ended a reply after {written:,} of {max_tokens:,} tokens",
            hint="Raise its own limit of replies, or its context.",
            status=Status.MISMATCHED,
        )


def is_listed(name: str, listed: Sequence[str]) -> bool:
    """Whether *listed* has *name* or ``NAME:latest``."""
    return name in listed or f"{name}:latest" in listed


@dataclass(slots=True)
class _ReceivedReply:
    """What came of a reply, and when, in seconds from the request."""

    started: float = field(default_factory=time.perf_counter)
    events: int = 0
    first_s: float = 0.0
    last_s: float = 0.0
    spelled: list[str] = field(default_factory=list)
    fault: str = ""

    def note_and_return_event(self, event: "Event") -> "Event":
        """Take in *event*, its time if it has text; returns it."""
        if event.text or event.reasoning:
            self.last_s = self.elapsed_s()
            self.first_s = self.first_s or self.last_s
            self.events += 1
        self.spelled += event.spelled
        self.fault = self.fault or event.fault
        return event

    def elapsed_s(self) -> float:
        return time.perf_counter() - self.started


# --- events


@dataclass(frozen=True, slots=True)
class _Model:
    id: str


@dataclass(frozen=True, slots=True)
class _Models:
    data: tuple[_Model, ...]


_Count = Annotated[int, Meta(ge=0, lt=1 << 31)]


@dataclass(frozen=True, slots=True)
class _Cached:
    cached_tokens: _Count | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Usage:
    prompt_tokens: _Count = 0
    completion_tokens: _Count | None = None
    prompt_tokens_details: _Cached | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    token: str = ""
    logprob: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _TokenLogprob(_Candidate):
    top_logprobs: tuple[_Candidate, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Logprobs:
    """The scores of a chat: ``content``; of a completion: the rest."""

    content: tuple[_TokenLogprob, ...] | None = None
    tokens: tuple[str, ...] | None = None
    text_offset: tuple[int, ...] | None = None
    token_logprobs: tuple[float | None, ...] | None = None
    top_logprobs: tuple[dict[str, float | None] | None, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Delta:
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choice:
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None
    logprobs: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _StatedEvent:
    choices: tuple[_Choice, ...] = ()
    usage: _Usage | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Event(StreamEvent):
    """An event, and what its log-probabilities are worth."""

    spelled: tuple[str, ...] = ()  # texts of its tokens
    fault: str = ""
    """What is impossible about their log-probabilities; empty if nothing is."""


def _unscorable_error(answer: str) -> BadReply:
    """The error of a server that scores no given text: another kind, and not broken."""
    error = BadReply(expected=PROBABILITIES, answer=answer)
    error.status = Status.UNSUPPORTED
    return error


def read_echo(
    answer: _StatedEvent,
    text: str,
    passages: Sequence[tuple[int, int]],
    *,
    wall_s: float,
) -> list[Forced]:
    """
    The scores of *passages* of a *text* that a server echoes.

    The offsets that the server reports must agree, and all tokens must spell the text,
    too: a server may cut what is too long for it.

    Args:
        answer: What the server says.
        text: What it was sent.
        passages: Where each begins and ends in it, ascending; none is empty.
        wall_s: Seconds of the request, which passages share by their costs;
            one passage alone takes all.

    Raises:
        BadReply: If what it tells of these tokens is not all there, or impossible.
        PromptCut: If the echo lacks a part of *text*.
        ComputesNan: If a token of these has NaN.
    """
    choice = answer.choices[0] if answer.choices else _Choice()
    counted = answer.usage.completion_tokens if answer.usage else None
    every, offsets = _tokens_and_offsets(choice.logprobs)
    read = every[: max(0, len(every) - (1 if counted is None else counted))]
    ends = token_ends([token.token for token in read], text, passages[0][0])
    found = passage_token_ranges_and_costs(ends, passages)
    if not all(at for at, _ in found):
        what = "with other tokens" if every else "without log-probabilities"
        raise BadReply(expected=PROBABILITIES, answer=f"an echo {what}")
    if cut := _cut_phrase("".join(token.token for token in read), text):
        raise PromptCut(cut)
    forced = []
    for (at, taken), (begin, _) in zip(found, passages, strict=True):
        tokens = read[at.start : at.stop]
        _refuse_nan(tokens, at.start)
        if fault := _echo_fault(tokens, offsets[at.start : at.stop]):
            raise BadReply(expected=PROBABILITIES, answer=fault)
        share = taken / len(read) if passages[1:] else 1.0
        scores = _told_token_scores(
            tokens,
            ends=tuple(ends[place] - begin for place in at),
            prompt_tokens=at.start,
            wall_s=round(share * wall_s, 6),
        )
        forced.append(scores)
    if not any(passage_scores.logprobs for passage_scores in forced):
        what = "an echo that tells the text of no token"
        raise BadReply(expected=PROBABILITIES, answer=what)
    return forced


def _told_token_scores(
    tokens: Sequence["_TokenLogprob"],
    *,
    ends: tuple[int, ...],
    prompt_tokens: int,
    wall_s: float,
) -> Forced:
    """
    The scores of *tokens*, but for those whose text is not told.

    Beside one of these, others of the same text cannot be told from it.
    """
    untold = sum(not is_told(token.token) for token in tokens)
    ends = tuple(itertools.compress(ends, (is_told(token.token) for token in tokens)))
    tokens = [token for token in tokens if is_told(token.token)]
    numbers = [checked_log_probability(token.logprob) for token in tokens]
    others = [
        max(map(checked_log_probability, _other_logprobs(token))) for token in tokens
    ]
    return Forced(
        logprobs=tuple(map(round_finite_score_or_zero, numbers)),
        bounds=tuple(at for at, number in enumerate(numbers) if number <= LOWEST),
        leads=tuple(
            round_finite_score_or_zero(a - b)
            for a, b in zip(numbers, others, strict=True)
        ),
        ends=ends,
        untold=untold,
        prompt_tokens=prompt_tokens,
        wall_s=wall_s,
    )


def _refuse_nan(tokens: Sequence["_TokenLogprob"], before: int) -> None:
    """
    Stop at the first of *tokens*, behind so many *before* them, that is NaN.

    Raises:
        ComputesNan: If there is one.
    """
    for at, place in enumerate(tokens, start=before + 1):
        numbers = (place.logprob, *_other_logprobs(place))
        if any(number is not None and math.isnan(number) for number in numbers):
            raise ComputesNan(token=at)


def _echo_fault(tokens: Sequence["_TokenLogprob"], offsets: Sequence[int]) -> str:
    """Why *tokens* are no scores, as a phrase; empty if they are."""
    told = [token for token in tokens if is_told(token.token)]
    if fault := next(filter(None, map(_fault_at_place, told)), ""):
        return fault
    steps = [after - before for before, after in itertools.pairwise(offsets)]
    if any(
        step != len(token.token)
        for step, token in zip(steps, tokens, strict=False)
        if is_told(token.token)
    ):
        return "an echo with text offsets that do not fit its tokens"
    if not all(map(_other_logprobs, told)):
        return "an echo with tokens beside which no other one is listed"
    return ""


def _cut_phrase(echo: str, prompt: str) -> str:
    """How much less than *prompt* an *echo* spells; empty if it spells all of it."""
    spelled, sent = (_SPECIAL.sub("", _UNSEEN.sub("", text)) for text in (echo, prompt))
    if spelled.endswith(sent):
        return ""
    return f"its echo spells {len(spelled):,} of {len(sent):,} visible characters"


def read_event(event: Json) -> Event:
    """
    Read an event of ``/completions`` or ``/chat/completions``.

    Raises:
        BadReply: If it is none, or breaks the reply off.
    """
    if "tokens_predicted" in event:
        error = BadReply(expected="OpenAI's API", answer="an API of the server's own")
        error.hint = "End the URL with /v1."
        raise error
    stated = check_and_convert_answer(
        event, _StatedEvent, expected="an event of a reply"
    )
    timings = _timings(stated.usage)
    if not stated.choices:  # the one that states usage
        return Event(timings=timings)
    choice = stated.choices[0]
    delta, reason = choice.delta or _Delta(), choice.finish_reason
    if reason in BROKEN_OFF:
        raise BrokenOff(reason)
    ending: Finish = "length" if reason == "length" else "stop"
    places, _ = _tokens_and_offsets(choice.logprobs)
    return Event(
        text=(choice.text if choice.delta is None else delta.content) or "",
        reasoning=delta.reasoning_content or delta.reasoning or "",
        tokens=tuple(map(_token_with_alternatives, places)),
        timings=timings,
        finish=ending if reason else None,
        spelled=tuple(place.token for place in places),
        fault=next(filter(None, map(_fault_at_place, places)), ""),
    )


def _timings(usage: _Usage | None) -> Timings | None:
    """Counts of *usage*, without times; None before it is stated."""
    if usage is None:
        return None
    details = usage.prompt_tokens_details or _Cached()
    cached = min(details.cached_tokens or 0, usage.prompt_tokens)
    return Timings(
        cache_n=cached,
        prompt_n=usage.prompt_tokens - cached,
        predicted_n=usage.completion_tokens or 0,
    )


# --- log-probabilities


def _tokens_and_offsets(
    logprobs: object,
) -> tuple[Sequence["_TokenLogprob"], Sequence[int]]:
    """
    The tokens of a reply or an event with their numbers, and the offset of each.

    Both are empty where a server has a form of its own for them, or reports none;
    chats have no offsets.
    """
    with contextlib.suppress(BadReply):
        stated = check_and_convert_answer(
            logprobs or {}, _Logprobs, expected="log-probabilities"
        )
        if stated.content is not None:
            return stated.content, ()
        texts, numbers = stated.tokens or (), stated.token_logprobs or ()
        tops = stated.top_logprobs or (None,) * len(texts)
        if not len(texts) == len(numbers) == len(tops):
            return (), ()
        rows = zip(texts, numbers, tops, strict=True)
        return [
            _TokenLogprob(
                token=text,
                logprob=number,
                top_logprobs=tuple(
                    _Candidate(token=t, logprob=p) for t, p in (top or {}).items()
                ),
            )
            for text, number, top in rows
        ], _usable_offsets(stated.text_offset or ())
    return (), ()


def _usable_offsets(offsets: Sequence[int]) -> Sequence[int]:
    """
    *offsets*, or nothing where all are equal: SGLang tells -1 for each token.

    The texts of the tokens settle then where they stand.
    """
    return offsets if len(set(offsets)) > 1 else ()


def _fault_at_place(place: _TokenLogprob) -> str:
    """
    Why the numbers at *place* cannot be, as a phrase; empty if they can.

    NaN is no fault here: it ends a cell; see `messages.read_reply_stream`.
    """
    others, listed = _other_logprobs(place), place.top_logprobs or ()
    try:
        numbers = [
            checked_log_probability(number) for number in (place.logprob, *others)
        ]
        refuse_contradiction(numbers)
    except NotANumber:
        return ""
    except NoScore as error:
        return str(error)
    if -math.inf in (place.logprob, *others):
        # A sampler has left nothing of the others, or of this one: vLLM says -9999.
        return "a log-probability of -inf"
    if len({(entry.token, entry.logprob) for entry in listed}) < len(listed):
        return "a token that is listed twice"
    return ""


def _other_logprobs(place: _TokenLogprob) -> list[float | None]:
    """
    Log-probabilities of the other tokens that are listed at a place.

    The API names tokens by their text, which two may share: one entry of the list is
    the token itself, whichever has its text and the nearest probability.
    """
    listed = place.top_logprobs or ()
    same = [entry for entry in listed if entry.token == place.token]
    itself = min(same, key=lambda entry: _logprob_distance(entry, place), default=None)
    return [entry.logprob for entry in listed if entry is not itself]


def _token_with_alternatives(place: _TokenLogprob) -> Token:
    """The token that came, numbered 0, and the others that are listed."""
    others = enumerate(_other_logprobs(place), start=1)
    return Token(
        id=0,
        logprob=place.logprob,
        top_logprobs=tuple(Token(id=at, logprob=number) for at, number in others),
    )


def _logprob_distance(one: _Candidate, other: _Candidate) -> float:
    """Difference of two log-probabilities in nats; infinite if one is not told."""
    if one.logprob is None or other.logprob is None:
        return math.inf
    return abs(one.logprob - other.logprob)


_UNSEEN = re.compile(r"<0x[0-9A-F]{2}>|bytes:(\\x[0-9a-f]{2})+|[^!-~]")
"""
What tokens and replies are compared without: blanks, and all beyond ASCII.

Servers write bytes and blanks in tokens as ``<0x0A>``, ``bytes:\\x0a``, ``Ċ`` or ``▁``.
"""


_SPECIAL = re.compile(r"<\|[^|<>]*\|>|</?s>|</?(?:start|end)_of_\w+>|<[be]os>")
"""Tokens of templates, which a server may echo as nothing; compared without them."""


def _spelling_fault(tokens: Sequence[str], reply: Reply) -> str:
    """
    Error text if the *tokens* do not concatenate to the *reply*; else empty.

    Blanks and all beyond ASCII do not count, nor up to `UNSPELLED` characters more.
    """
    spelled, text, reasoning = (
        _UNSEEN.sub("", raw_text)
        for raw_text in ("".join(tokens), reply.text, reply.reasoning)
    )
    rest = len(spelled) - len(text) - len(reasoning)
    is_spelled = text in spelled and rest <= UNSPELLED
    return "" if is_spelled or not tokens else "tokens that do not spell the reply"
