"""The transcript probe: forces the assistant's turns of recorded conversations."""

import functools
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from codeneedle.corpora.corpus import Corpus
from codeneedle.engines.engine import Ability, Engine
from codeneedle.engines.messages import BadReply, Completion, Forced, Refused
from codeneedle.errors import BadInput, CellError
from codeneedle.models.gguf import Weights
from codeneedle.probes.asking import Asker
from codeneedle.probes.metrics import Metric
from codeneedle.probes.probe import Outlook, Probe, ProbeContext, RunContext, Work
from codeneedle.probes.transcript.choice import CountedTurn, counted_turns
from codeneedle.probes.transcript.conversations import read_conversations
from codeneedle.probes.transcript.metrics import (
    FEWEST_UNITS,
    OVER_ALL,
    class_metrics,
)
from codeneedle.probes.transcript.record import (
    NAME,
    Conditions,
    ForcedTurn,
    Transcript,
    TurnFacts,
    conditions_of,
    transcript_of,
)
from codeneedle.probes.transcript.rendering import Kind, RenderedTurn
from codeneedle.records.record import (
    Json,
    Run,
    Setup,
    as_json,
    from_json,
    shared_with,
)
from codeneedle.text import plural

CHARACTERS_PER_TOKEN = 4
"""About; for a plan that has counted nothing yet."""


class TranscriptSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """What a user may choose."""

    file: Annotated[
        Path | None,
        Meta(
            description="Recorded conversations whose answers are forced: OpenAI's "
            "messages or ShareGPT's conversations, as JSON or JSON lines.",
            extra={"option": "--transcript", "metavar": "FILE", "default": "none"},
        ),
    ] = None
    tokens: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(
            description="Most tokens of answers to force in a cell: turns evenly "
            "spread over the conversations.",
            extra={"option": "--transcript-tokens", "default": "all"},
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscriptProbe(Probe):
    """Forces the assistant's turns; its units are turns, or conversations if many."""

    def check(self, settings: TranscriptSettings, _corpus: Corpus | None) -> None:
        """
        Stop at a transcript that is missing or cannot be read.

        Raises:
            BadInput: With the line that is wrong.
        """
        read_conversations(_file(settings))

    def reads_corpus(self, _settings: TranscriptSettings) -> bool:
        """Conversations are its text."""
        return False

    def notes(
        self,
        settings: TranscriptSettings,
        _weights: Weights,
        _engine: Engine,
        _folder: Path,
    ) -> tuple[str, ...]:
        """That runs keep numbers alone."""
        note = "is not stored: 'codeneedle show' reads it again"
        return (f"what is said in {_file(settings)} {note}",)

    def price(self, settings: TranscriptSettings, setup: Setup | None) -> str:
        """How many turns are forced; before they are counted, how many there are."""
        if setup and NAME in setup.probes:
            return plural(len(conditions_of(setup).turns), "turn")
        _, conversations = read_conversations(_file(settings))
        turns = (turn for each in conversations for turn in each.turns)
        count = sum(turn.role == "assistant" for turn in turns)
        most = f", at most {settings.tokens:,} tokens" if settings.tokens else ""
        return f"{plural(count, 'turn')}{most}"

    def work(self, settings: TranscriptSettings, outlook: Outlook) -> Work:
        """Conversations, each read once, and turns, forced as far as they fit."""
        setup = outlook.setup
        if setup and NAME in setup.probes:
            turns = conditions_of(setup).turns
            forced = sum(turn.tokens for turn in turns)
            texts = _longest_prompts(turns)
            depths = [turn.prompt_tokens for turn in turns]
            return _work(texts, forced, sum(depths) // len(depths))
        per_token = 1 if outlook.is_built_in else CHARACTERS_PER_TOKEN
        _, conversations = read_conversations(_file(settings))
        texts, forced = [], 0
        for each in conversations:
            sizes = [(len(str(turn.message())), turn.role) for turn in each.turns]
            whole = sum(size for size, _ in sizes) // per_token
            texts.append(min(whole, outlook.context))
            said = sum(size for size, role in sizes if role == "assistant")
            forced += said * texts[-1] // max(whole, 1) // per_token
        if settings.tokens:
            forced = min(forced, settings.tokens)
        return _work(texts, forced, sum(texts) // len(texts) // 2)

    def conditions(self, run: RunContext) -> Json:
        """
        The turns that every pair is forced to; rendered only where they are unknown.

        Raises:
            BadInput: If the template does not take a conversation, or no turn fits.
            CodeneedleError: If rendering fails.
        """
        settings = run.settings_of(TranscriptSettings, NAME)
        data, conversations = read_conversations(_file(settings))
        sha256 = hashlib.sha256(data).hexdigest()
        known = run.setup.probes.get(NAME)
        if known:
            stored = from_json(known, Conditions, file="setup.json")
            if (stored.sha256, stored.limit) == (sha256, settings.tokens):
                return known
        found = _turns(_Request.of(run))
        chosen = Conditions(
            sha256=sha256,
            conversations=len(conversations),
            limit=settings.tokens,
            turns=tuple(each.facts for each in found if not each.left_out),
            left_out=tuple((e.facts.name, e.left_out) for e in found if e.left_out),
            dropped=tuple(dropped_phrases(found)),
        )
        if not chosen.turns:
            raise _nothing_left(settings, found)
        return as_json(chosen)

    def measure(self, context: ProbeContext) -> Json:
        """
        Force all turns of the setup that are not scored yet.

        One server reads each conversation once: what was forced stays in its cache,
        and the next turn goes on from there. A conversation that was broken off begins
        anew, so that every turn finds what it would find otherwise.

        Raises:
            BadInput: If the file or what the template makes of it has changed.
            CellError: If the server fails, or tells no probabilities.
        """
        chosen = conditions_of(context.run.setup)
        rendered = _rendered(context.run, chosen)
        former = context.former
        found = Transcript(turns=(), starts=0)
        if former and former.observation:
            found = _whole_conversations(transcript_of(former), chosen)
        context.step(0, 1, "loading")
        with context.serving() as served:
            found = replace(found, starts=found.starts + 1)
            asker = _Forcer(served, context)
            left = chosen.turns[len(found.turns) :]
            for done, turn in enumerate(left):
                context.step(done, len(left), f"turn {turn.name}")
                forced = asker.forced(turn, rendered[turn.name])
                found = replace(found, turns=(*found.turns, forced))
                if not done:
                    context.observe_fallback(served)
                context.keep(as_json(found))
            asker.settle()
            context.step(1, 1, "stopping")
        errors = [turn.error for turn in found.turns]
        if all(errors):
            raise CellError(
                f"no turn could be scored: {errors[0]}",
                hint="The server's log may tell more.",
            )
        return as_json(found)

    def more_metrics(self, setup: Setup) -> tuple[Metric, ...]:
        """Those of the classes of tokens that occur."""
        return class_metrics(setup)

    def metrics_of(self, setup: Setup) -> tuple[Metric, ...]:
        """As of `Probe`, with the word for what the units are."""
        metrics = (*self.metrics, *self.more_metrics(setup))
        if NAME not in setup.probes or not conditions_of(setup).of_conversations:
            return metrics
        return tuple(
            replace(each, noun="conversations") if each.noun == "turns" else each
            for each in metrics
        )

    def remarks(self, run: Run) -> tuple[str, ...]:
        """What is left out, what the template drops, and classes that are too rare."""
        if NAME not in run.setup.probes:
            return ()
        chosen = conditions_of(run.setup)
        lines = []
        reasons = list(dict.fromkeys(reason for _, reason in chosen.left_out))
        for reason in reasons:
            names = [name for name, why in chosen.left_out if why == reason]
            lines.append(f"left out: {plural(len(names), 'turn')}, {reason}")
        if chosen.dropped:
            lines.append(f"the chat template drops {', '.join(chosen.dropped)}")
        for kind in Kind:
            units = len(chosen.units(kind))
            if 0 < units < FEWEST_UNITS:
                noun = "conversation" if chosen.of_conversations else "turn"
                lines.append(
                    f"{kind} tokens are in {plural(units, noun)}: shown, too few to be "
                    "judged"
                )
        return tuple(lines)


PROBE = TranscriptProbe(
    name=NAME,
    metrics=OVER_ALL,
    settings=TranscriptSettings,
    layout=Conditions,
    asked_by="file",
    needs=frozenset({Ability.FORCED, Ability.CONVERSATIONS}),
    repeats=True,
)


def dropped_phrases(turns: Iterable[CountedTurn]) -> list[str]:
    """What the chat template drops, each with the number of turns."""
    counts: dict[str, int] = {}
    for each in turns:
        for what in each.turn.dropped:
            counts[what] = counts.get(what, 0) + 1
    return [f"{what} ({plural(count, 'time')})" for what, count in counts.items()]


def _work(texts: Sequence[int], forced: int, depth: int) -> Work:
    return Work(texts=tuple(texts), written=forced, depth=depth)


def _longest_prompts(turns: Sequence[TurnFacts]) -> list[int]:
    """Of each conversation, what is read before its last turn."""
    longest: dict[str, int] = {}
    for turn in turns:
        before = longest.get(turn.conversation, 0)
        longest[turn.conversation] = max(before, turn.prompt_tokens)
    return list(longest.values())


def _file(settings: TranscriptSettings) -> Path:
    if settings.file is None:
        raise BadInput(
            source="--probe transcript",
            reason="needs recorded conversations",
            hint="Name a file: --transcript FILE",
        )
    return settings.file


def _nothing_left(
    settings: TranscriptSettings, found: Sequence[CountedTurn]
) -> BadInput:
    reasons = list(dict.fromkeys(each.left_out for each in found))
    rendered = [each.facts for each in found if each.turn.text]
    least = min((each.prompt_tokens + each.tokens for each in rendered), default=0)
    shortest = min((each.tokens for each in rendered), default=0)
    hint = f"Use --context {(least // 256 + 1) * 256} or more."
    if not rendered:
        hint = "Name a chat template that does in the arguments after '--'."
    elif settings.tokens and shortest > settings.tokens:
        hint = f"Use --transcript-tokens {shortest} or more."
    return BadInput(
        source=f"--transcript {settings.file}",
        reason=f"no turn of the assistant can be forced: {'; '.join(reasons)}",
        hint=hint,
    )


@dataclass(frozen=True, slots=True)
class _Request:
    """All that the turns depend on; rendered once per process."""

    key: tuple[object, ...]
    run: RunContext = field(compare=False)

    @classmethod
    def of(cls, run: RunContext) -> "_Request":
        setup, settings = run.setup, run.settings_of(TranscriptSettings, NAME)
        data, _ = read_conversations(_file(settings))
        key = (
            hashlib.sha256(data).digest(),
            settings.tokens,
            setup.context,
            setup.weights.sha256,
            setup.server_args,
        )
        return cls(key, run)


@functools.lru_cache(maxsize=4)
def _turns(request: _Request) -> tuple[CountedTurn, ...]:
    run = request.run
    settings = run.settings_of(TranscriptSettings, NAME)
    return turns_of(settings, run.engine, run.setup.context)


def turns_of(
    settings: TranscriptSettings, engine: Engine, context: int
) -> tuple[CountedTurn, ...]:
    """
    All turns of the assistant in the file of *settings*, rendered and counted.

    Args:
        settings: What the user chose.
        engine: Renders them.
        context: In tokens.

    Raises:
        CodeneedleError: As of `conditions`.
    """
    _, conversations = read_conversations(_file(settings))
    with engine.templating() as template:
        found = counted_turns(
            conversations, template, context=context, limit=settings.tokens
        )
    return tuple(found)


def _rendered(run: RunContext, chosen: Conditions) -> dict[str, RenderedTurn]:
    """The turns by name, the same as those that *chosen* names by their hashes."""
    found = {e.facts.name: e for e in _turns(_Request.of(run)) if not e.left_out}
    if tuple(each.facts for each in found.values()) != chosen.turns:
        settings = run.settings_of(TranscriptSettings, NAME)
        raise BadInput(
            source=f"--transcript {settings.file}",
            reason="it, or what the chat template makes of it, has changed since this "
            "sweep began",
            hint="Use the file as it was, or choose another folder with --out.",
        )
    return {name: each.turn for name, each in found.items()}


def _whole_conversations(found: Transcript, chosen: Conditions) -> Transcript:
    """*found* without the turns of a conversation that was broken off."""
    done = len(found.turns)
    while 0 < done < len(chosen.turns):
        if chosen.turns[done].conversation != chosen.turns[done - 1].conversation:
            break
        done -= 1
    return replace(found, turns=found.turns[:done])


class _Forcer(Asker):
    """Forces turns; retries broken connections."""

    def forced(self, turn: TurnFacts, rendered: RenderedTurn) -> ForcedTurn:
        """
        The scores of a turn.

        Raises:
            CellError: If the server fails. It does not quote what the server says,
                which may be what was said in the conversation.
        """
        question = Completion(
            prompt=rendered.prompt, max_tokens=1, seed=self.context.run.setup.seed
        )
        client = self.served.client
        self._retries.clear()
        try:
            with self.context.asking():
                scores = self._retried(lambda: client.force(question, rendered.text))
        except BadReply:
            error = "the server told no probabilities by token"
            return ForcedTurn(turn=turn.name, error=error)
        except Refused as refused:
            raise CellError(
                f"the server refused turn {turn.name} with {refused.code} "
                f"{refused.kind}",
                hint=refused.hint,
            ) from None
        return ForcedTurn(
            turn=turn.name,
            retries=tuple(self._retries),
            **shared_with(scores, Forced),
        )
