"""
The generation probe: how long answers may be, whether the model may think, which
prompts are copies or refused; each begins with an empty cache; and its remarks.
"""

import hashlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median, quantiles

from typing_extensions import override

from codeneedle.corpora.fitting import TooLong
from codeneedle.corpora.registry import slug
from codeneedle.document import Document
from codeneedle.engines.engine import Ability, ChatTemplate, Engine, Served
from codeneedle.engines.messages import Chat, Completion, Message, Refused
from codeneedle.engines.pace import Price
from codeneedle.errors import BadInput, CellError
from codeneedle.probes.answers import ScoredAnswer
from codeneedle.probes.cell import ProbeContext, RunContext
from codeneedle.probes.estimates import Bill, Estimates
from codeneedle.probes.generation.loops import first_loop_in
from codeneedle.probes.generation.metrics import (
    METRICS,
    comparisons_not_out,
    prompts_needed_without_loss,
    tokens_before_difference,
)
from codeneedle.probes.generation.prompts import (
    Prompt,
    make_built_in_prompts,
    read_hash_and_prompts,
)
from codeneedle.probes.generation.record import (
    LEAST_TOKENS,
    NAME,
    OPTION,
    OWN,
    TOKENS,
    WORDING,
    First,
    GenerationLayout,
    GenerationSettings,
    PromptFacts,
    generation_layout,
    parse_written_answers,
    reference_answers,
    written_from,
)
from codeneedle.probes.observations import Answer, Observed
from codeneedle.probes.probe import Asker, Calibrating, Probe, Question
from codeneedle.probes.prompts import (
    PromptForm,
    template_with_past_date,
)
from codeneedle.probes.thinking import NO_THINK_ARGS, NO_THINK_PREFILL
from codeneedle.records.comparability import OtherSetup
from codeneedle.records.record import (
    AGAIN,
    CellRecord,
    Frame,
    Json,
    Run,
    Setup,
    Status,
    as_json,
    from_json,
)
from codeneedle.reference import reference_among
from codeneedle.text import plural

ROOM = 512
"""Tokens beside an answer: one of our prompts, with tools, in a chat template."""

PROMPT_TOKENS = 160
"""Estimate for a prompt, used only by the plan."""

LOOP_FREE = 0.025
"""Chance of an error of one pair that is asked once; see `verdict.statistics`."""


def answer_token_limit(settings: GenerationSettings, context: int) -> int:
    """
    The limit of an answer that *settings* mean in a *context* of so many tokens.

    Without a choice, `TOKENS` or what the context leaves, `LEAST_TOKENS` at least.
    """
    return settings.tokens or min(TOKENS, max(LEAST_TOKENS, context - ROOM))


class FirstAnswers(Calibrating):
    """The answers of the reference."""

    @override
    def calibration_lines(self, setup: Setup) -> tuple[str, ...]:
        """Which prompts are out, and why; a line for each reason."""
        return tuple(f"{NAME}: {line}" for line in _left_out_remarks(setup))


class GenerationProbe(Probe):
    """Lets every pair write, and compares with what the reference has written."""

    @override
    def adapt(
        self, settings: GenerationSettings, estimates: Estimates
    ) -> GenerationSettings:
        """
        *settings* as they are, if each prompt fits the context with its answer.

        Raises:
            TooLong: If not.
            BadInput: If prompts cannot be read, naming the line; or if the chat
                template does not take one.
            CodeneedleError: If rendering fails.
        """
        context = estimates.context
        if settings.file:
            read_hash_and_prompts(settings.file)
        needed = (settings.tokens or LEAST_TOKENS) + (0 if settings.file else ROOM)
        if needed <= context:
            if not estimates.has_asked_probe(NAME):
                tokens = answer_token_limit(settings, context)
                for sent_prompt in _render_prompts_once(
                    _Form.of_plan(estimates), settings
                ).values():
                    sent_prompt.refuse_too_long(
                        tokens, context, estimates.trained_context_limit
                    )
            return settings
        option = f"--generation-tokens {settings.tokens}"
        room = context - (0 if settings.file else ROOM)
        raise TooLong(
            source=option if settings.tokens else f"--probe {NAME}",
            needed=needed,
            context=context,
            trained=estimates.trained_context_limit,
            beside="a prompt",
            ways=_option_for_shorter_answers(room),
        )

    @override
    def own_text_name(self, settings: GenerationSettings, _engine: Engine) -> str:
        """The name of the file of prompts; empty without one."""
        return slug(settings.file.stem) if settings.file else ""

    @override
    def notes(
        self, settings: GenerationSettings, _estimates: Estimates
    ) -> tuple[str, ...]:
        """What is stored, and what so few prompts can show."""
        needed = prompts_needed_without_loss(LOOP_FREE)
        stored = (
            f"{NAME}: answers are stored in the run folder and shown by 'codeneedle "
            "show' alone"
        )
        if settings.file:
            stored += f"; the text of {settings.file} is not stored"
        power = (
            f"{NAME}: {needed} prompts without a loss show that one pair loses at most "
            "10 % of answers, more for several pairs; fewer show damage alone"
        )
        return stored, power

    @override
    def bill(self, settings: GenerationSettings, estimates: Estimates) -> Bill:
        """Each prompt is read and answered."""
        count = OWN
        if estimates.setup and NAME in estimates.setup.probes:
            settings = stored = generation_layout(estimates.setup)
            count = len(stored.prompts)
        elif settings.file:
            count = len(read_hash_and_prompts(settings.file)[1])
        tokens = answer_token_limit(settings, estimates.context)
        texts = (PROMPT_TOKENS,) * count
        return Bill(
            price=Price.of_cell(texts, written=count * tokens, depth=tokens // 2),
            phrase=f"{plural(count, 'long answer')} of at most {tokens:,} tokens",
        )

    @override
    def as_stored(self, settings: GenerationSettings, run: RunContext) -> Json:
        """
        The prompts as they are sent, and the limit of an answer.

        Raises:
            BadInput: If a prompt does not fit the context with its answer, or the chat
                template does not take it.
            OtherSetup: If the run folder is that of other prompts.
            CodeneedleError: If rendering fails.
        """
        sha256, prompts = (
            read_hash_and_prompts(settings.file) if settings.file else ("", ())
        )
        tokens = answer_token_limit(settings, run.setup.context)
        if NAME in run.setup.probes:
            stored = generation_layout(run.setup)
            if stored.sha256 != sha256:
                raise _other_prompts_error(run, settings)
            if stored.tokens == tokens and stored.wording == WORDING * (not sha256):
                return run.setup.probes[NAME]
        sent = _render_prompts_to_send(run)
        of_weights = run.weights.training_context or None
        trained = None if run.engine.stretches_context else of_weights
        for sent_prompt in sent.values():
            sent_prompt.refuse_too_long(tokens, run.setup.context, trained)
        return as_json(
            GenerationLayout(
                prompts=tuple(sent_prompt.facts for sent_prompt in sent.values()),
                tokens=tokens,
                thinking=_thinking_phrase(_Form.of_run(run), sent.values()),
                sha256=sha256,
                wording=WORDING * (not sha256),
                copies=max(0, len(prompts) - len(sent)),
            )
        )

    @override
    def questions(self, setup: Setup, _goal: int | None = None) -> Iterator[Question]:
        """The prompts, in order."""
        if NAME in setup.probes:
            for prompt in generation_layout(setup).prompts:
                yield Question(prompt.name, phrase=f"answering '{prompt.name}'")

    @override
    def asker(
        self, served: Served, context: ProbeContext, observed: Observed
    ) -> "_Writer":
        """What sends the prompts; *observed* gets the pair that is compared with."""
        first = reference_answers(context.run.setup)
        observed.facts = {"against": first.pair if first else str(context.pair)}
        return _Writer(served, context, prompts=_render_prompts_to_send(context.run))

    @override
    def measure(self, context: ProbeContext) -> Json:
        """
        Have all prompts answered; the reference sets what others are compared with.

        Raises:
            BadInput: If the prompts have changed since the sweep began.
            CellError: If the server fails.
        """
        _refuse_changed_prompts(context.run)
        observation = super().measure(context)
        if reference_answers(context.run.setup) is None:
            answers = parse_written_answers(
                from_json(observation, Observed, file=NAME), file=NAME
            )
            context.calibrate(as_json(First(pair=str(context.pair), answers=answers)))
        return observation

    @override
    def answers(self, run: Run, record: CellRecord) -> Iterable[ScoredAnswer]:
        """Prompts, each with the answer beside the reference's."""
        from codeneedle.probes.generation import answers

        return answers.answers(run, record)

    @override
    def overview(self, run: Run, record: CellRecord) -> Document:
        """A line for each prompt."""
        from codeneedle.probes.generation import answers

        return answers.overview(run, record)

    @override
    def left_out_lines(self, run: Run) -> tuple[str, ...]:
        """Copies among the prompts."""
        copies = generation_layout(run.setup).copies if NAME in run.setup.probes else 0
        return (f"left out: {plural(copies, 'prompt')}, copies of others",) * bool(
            copies
        )

    @override
    def remarks(self, run: Run) -> tuple[str, ...]:
        """Prompts that are out, the floor, loops, and how sure differences were."""
        return (*self.left_out_lines(run), *_remarks(run))


PROBE = GenerationProbe(
    name=NAME,
    purpose="long answers, written freely",
    metrics=METRICS,
    settings=GenerationSettings,
    layout=GenerationLayout,
    asked_by="file",
    chats=("user",),
    repeats=True,
    makes_texts=True,
    thinks=True,
    calibrating=FirstAnswers(),
    step="prompt",
)


# --- what is sent


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A prompt as the engine gets it."""

    facts: PromptFacts  # what is stored of it
    prompt: Prompt  # as it was read, or comes with the program
    text: str | None
    """
    What the chat template makes of it, or the text to continue; None for a chat that
    the engine renders itself.
    """

    thinks: bool = True
    """
    Whether the model may think before it answers, as far as the template decides that.
    """

    def refuse_too_long(self, tokens: int, context: int, trained: int | None) -> None:
        """
        Stop if an answer of so many *tokens* does not fit the *context*.

        Args:
            tokens: The limit of an answer.
            context: In tokens.
            trained: The longest context, in tokens, which the error names; None if
                nothing limits it.

        Raises:
            TooLong: If it does not.
        """
        needed, room = self.facts.tokens + tokens + 1, context - self.facts.tokens - 1
        if needed <= context:
            return
        raise TooLong(
            source=self.prompt.error_source,
            needed=needed,
            context=context,
            trained=trained,
            beside="an answer",
            ways=_option_for_shorter_answers(room),
        )


def _option_for_shorter_answers(room: int) -> list[str]:
    """The option for answers that have *room* tokens; none if these are too few."""
    return [f"--generation-tokens {room}"] if room >= LEAST_TOKENS else []


def _thinking_phrase(form: "_Form", sent: Iterable[Sent]) -> str:
    """Whether models may think before they answer, as a phrase for the setup."""
    if form.prompt_form == PromptForm.COMPLETION:
        return "none: completion form"
    if form.prefill_no_think:
        return "an empty thought prefilled"
    every = all(sent_prompt.thinks for sent_prompt in sent)
    return "allowed" if every else "forbidden by the chat template"


_SENT: dict[tuple[object, ...], dict[str, Sent]] = {}
"""The prompts that this process has rendered, by all that they depend on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Form:
    """How prompts are sent: what they are rendered by, and in which form."""

    engine: Engine
    seed: int
    prompt_form: str
    prefill_no_think: bool
    then: Frame | None = None
    """What the template gave when the run began; None for now."""

    @classmethod
    def of_plan(cls, estimates: Estimates) -> "_Form":
        """The form of prompts before a run, by *estimates*."""
        return cls(
            engine=estimates.engine,
            seed=estimates.seed,
            prompt_form=estimates.prompt_form,
            prefill_no_think=estimates.prefill_no_think,
        )

    @classmethod
    def of_run(cls, run: RunContext) -> "_Form":
        """The form of prompts of *run*, as it is rendered now."""
        return cls(
            engine=run.engine,
            seed=run.setup.seed,
            prompt_form=run.setup.prompt_form,
            prefill_no_think=run.prefill_no_think,
        )


def _render_prompts_to_send(run: RunContext) -> dict[str, Sent]:
    """
    The prompts of *run*; see `_render_prompts_once`.

    As they are rendered today; where the setup has others, as on the day it began.
    """
    settings = run.chosen_or_default_settings(GenerationSettings, NAME)
    form = _Form.of_run(run)
    sent = _render_prompts_once(form, settings)
    then = run.setup.frames.get("user")
    if then and NAME in run.setup.probes and not _is_as_stored(run, sent):
        return _render_prompts_once(replace(form, then=then), settings)
    return sent


def _is_as_stored(run: RunContext, sent: Mapping[str, Sent]) -> bool:
    """Whether what is *sent* is what the setup of *run* says."""
    facts = tuple(sent_prompt.facts for sent_prompt in sent.values())
    return facts == generation_layout(run.setup).prompts


def _render_prompts_once(form: _Form, settings: GenerationSettings) -> dict[str, Sent]:
    """
    The prompts by name, rendered once for all cells.

    Those that are sent as an earlier one is are left out: what is asked twice is one
    unit.
    """
    sha256, prompts = "", make_built_in_prompts(form.seed)
    if settings.file:
        sha256, prompts = read_hash_and_prompts(settings.file)
    model = form.engine.model
    key = (
        *(sha256, form.seed, model.weights.path, model.arguments),
        *(form.prompt_form, form.prefill_no_think, form.engine.identity(), form.then),
    )
    if key not in _SENT:
        firsts: dict[str, Sent] = {}
        for sent in _check_and_render_prompts(form, prompts):
            firsts.setdefault(sent.facts.sha256, sent)
        _SENT[key] = {first.facts.name: first for first in firsts.values()}
    return _SENT[key]


def _check_and_render_prompts(form: _Form, prompts: Sequence[Prompt]) -> Iterator[Sent]:
    """
    Each prompt as it is sent, in order; stops at tool calls that would not be sent.

    Rendered and counted where the engine has whole conversations; else the text of a
    chat is None.
    """
    is_text = form.prompt_form == PromptForm.COMPLETION
    counts = Ability.CONVERSATIONS in form.engine.abilities
    for prompt in prompts:
        if prompt.has_tool_calls and (is_text or not counts):
            raise BadInput(
                source=prompt.error_source,
                reason="has calls of tools, which would not be sent: they are rendered "
                "by the chat template of a model that llama.cpp serves",
                hint="Leave it out, or use --engine llama.cpp and --prompt-form chat.",
            )
    if counts:
        with form.engine.templating() as today:
            template = today if is_text else template_with_past_date(today, form.then)
            for prompt in prompts:
                text, thinks = prompt.completion_text, True
                if not is_text:
                    text, thinks = _render_and_tell_thinking(form, prompt, template)
                sent = _sent_prompt(prompt, text, template.count_tokens(text))
                yield replace(sent, thinks=thinks)
    else:
        for prompt in prompts:
            yield _sent_prompt(prompt, prompt.completion_text if is_text else None)


def _sent_prompt(prompt: Prompt, text: str | None, tokens: int = 0) -> Sent:
    """*prompt* to be sent as *text*; None for a chat, whose hash is of its messages."""
    hashed = (
        prompt.sha256 if text is None else hashlib.sha256(text.encode()).hexdigest()
    )
    facts = PromptFacts(name=prompt.name, tokens=tokens, sha256=hashed)
    return Sent(facts=facts, prompt=prompt, text=text)


def _render_and_tell_thinking(
    form: _Form, prompt: Prompt, template: ChatTemplate
) -> tuple[str, bool]:
    """
    What the chat template makes of *prompt*, and whether models may think.

    The first that it takes: with tools, thinking allowed or else not; one of our own
    then without tools. The whole answer is plain text: calls and thoughts as written.

    Raises:
        BadInput: If the template does not take it.
    """
    prefilled = NO_THINK_PREFILL * form.prefill_no_think
    offers = (prompt.tools, ()) if prompt.is_built_in_prompt else (prompt.tools,)
    refusals = []
    for tools, thinks in itertools.product(offers, (True, False)):
        if thinks and prefilled:
            continue
        try:
            rendered = template.render_conversation(
                prompt.messages, tools, begins_reply=True, thinking=thinks
            )
        except Refused as error:
            refusals.append(error)
        else:
            return f"{rendered}{prefilled}", thinks
    otherwise = "leave it out"
    if prompt.is_built_in_prompt:
        otherwise = f"ask prompts of yours, {OPTION} FILE"
    raise BadInput(
        source=prompt.error_source,
        reason=f"the chat template does not take it: "
        f"{refusals[0].message or refusals[0]}",
        hint=f"Name another chat template in the arguments after '--', or {otherwise}.",
    ) from refusals[0]


def _refuse_changed_prompts(run: RunContext) -> None:
    """Stop if prompts are sent in other words than when the sweep began."""
    if not _is_as_stored(run, _render_prompts_to_send(run)):
        settings = run.chosen_or_default_settings(GenerationSettings, NAME)
        raise BadInput(
            source=f"{OPTION} {settings.file}" if settings.file else f"--probe {NAME}",
            reason="the prompts, or what the chat template makes of them, have changed "
            "since this sweep began",
            hint="Use them as they were, or choose another folder with --out.",
        )


def _other_prompts_error(run: RunContext, settings: GenerationSettings) -> OtherSetup:
    wanted = str(settings.file) if settings.file else "those of the program"
    error = OtherSetup(
        folder=run.folder, key=NAME, stored="other prompts", wanted=wanted
    )
    error.hint = "A folder holds the answers to one set of prompts: choose another one "
    error.hint += "with --out."
    return error


@dataclass(slots=True)
class _Writer(Asker):
    """Sends prompts."""

    prompts: Mapping[str, Sent] = field(kw_only=True)  # all of them, by name

    @override
    def ask(self, question: Question) -> Answer:
        """
        The answer to a prompt; before a rendered one the server's cache is overwritten.

        Raises:
            CellError: If the server fails, or cuts the answer off before its limit.
        """
        sent, setup = self.prompts[question.key], self.context.run.setup
        tokens = answer_token_limit(generation_layout(setup), setup.context)
        args = NO_THINK_ARGS if self.context.run.prefill_no_think else {}
        request: Chat | Completion
        if sent.text is None:
            request = Chat(
                messages=tuple(map(_message_without_calls, sent.prompt.messages)),
                max_tokens=tokens,
                seed=setup.seed,
                template_args=args,
            )
        else:
            request = Completion(prompt=sent.text, max_tokens=tokens, seed=setup.seed)
        if sent.text is not None:
            self._overwrite_server_cache()
        reply = self.ask_and_refuse_cut_prompt(
            sent.text or sent.prompt.completion_text,
            sent.facts.tokens,
            lambda: self.request_reply(request, lambda _so_far: False),
        )
        written = written_from(reply)
        if not written.has_ended and 0 < written.tokens < tokens - 1:
            raise CellError(
                f"the server ended an answer after {written.tokens:,} of {tokens:,} "
                "tokens",
                hint="Raise its own limit of replies, or its context.",
                status=Status.MISMATCHED,
            )
        # Nothing is scored: all that counts is how sure it was.
        gaps = tuple(round(gap, 3) for gap in reply.gaps)
        return Answer(
            name=question.key,
            prompt_sha256=sent.facts.sha256,
            reply=replace(reply, logprobs=(), gaps=gaps),
            retries=self.retries,
        )

    def _overwrite_server_cache(self) -> None:
        """
        Replace what is in the cache, which holds the beginning of other prompts.

        So an answer is the same whichever prompts its server was asked before: those of
        a cell that was interrupted, and those of a whole one.
        """
        self.ask_with_retries(
            lambda: self.send_once(Completion(prompt="\n", max_tokens=1))
        )


def _message_without_calls(said: Json) -> Message:
    """A message without its calls of tools."""
    return Message(str(said["role"]), str(said["content"]))


# --- remarks


def _remarks(run: Run) -> Iterator[str]:
    """
    What is left out, the floor, and of each pair differences, loops, empty answers.

    Nothing without a reference.
    """
    records = [r for r in run.records if r.probe == NAME and r.has_numbers]
    reference = reference_among(records)
    if reference is None:
        return
    by_pair = {record.pair: record for record in records}
    yield from _left_out_remarks(run.setup)
    for record in run.variants:
        is_again = record.probe == NAME and record.variant == AGAIN
        if is_again and record.has_numbers:
            differs = _answers_difference_phrase(record, run.setup)
            yield f"floor: {record.pair} again {differs}"
    for pair, record in by_pair.items():
        if pair != reference:
            yield f"{pair} {_answers_difference_phrase(record, run.setup)}"
        loops = [
            f"{comparison.prompt} (from token {comparison.loop.start:,})"
            for comparison in comparisons_not_out(record, run.setup)
            if comparison.loop
        ]
        if loops:
            yield f"{pair} loops: {', '.join(loops)}"
        empty = [
            e.prompt for e in comparisons_not_out(record, run.setup) if e.ours.is_empty
        ]
        if empty:
            yield f"{pair} writes nothing: {', '.join(empty)}"


def _left_out_remarks(setup: Setup) -> Iterator[str]:
    """Prompts on which the reference loops or writes nothing, a line for either."""
    first = reference_answers(setup)
    if first is None:
        return
    by_reason: dict[str, list[str]] = {}
    for name, written in first.answers.items():
        if loop := first_loop_in(written.token_or_word_texts):
            place = f"{name} (from token {loop.start:,})"
            by_reason.setdefault("loops", []).append(place)
        elif written.is_empty:
            by_reason.setdefault("writes nothing", []).append(name)
    for why, names in by_reason.items():
        yield f"left out, as {first.pair} itself {why}: {', '.join(names)}"


def _answers_difference_phrase(record: CellRecord, setup: Setup) -> str:
    """
    Where answers leave the reference's, with quartiles, and how sure it was there.

    ``leaves 3 of 8 answers after 45 tokens``, or ``writes the same to the last token``.
    """
    every = comparisons_not_out(record, setup)
    differing = [comparison.difference for comparison in every if comparison.difference]
    if not differing:
        return f"writes the same to the last token, {plural(len(every), 'answer')}"
    at = sorted(tokens_before_difference(comparison) for comparison in every)
    middle = f"after {median(at):,.0f} tokens"
    if len(at) > 1:
        low, _, high = quantiles(at, n=4, method="inclusive")
        middle += f" (quartiles {low:,.0f} and {high:,.0f})"
    leads = [difference.lead for difference in differing if difference.lead is not None]
    sure = ""
    if leads:
        sure = (
            f"; the reference was ahead there by {median(leads):.2f} nats, "
            f"{max(leads):.2f} at most"
        )
    return f"leaves {len(differing)} of {plural(len(every), 'answer')} {middle}{sure}"
