"""The reuse probe: asks the same with a cold cache and with one that is used again."""

import contextlib
import itertools
import shutil
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from codeneedle.engines.engine import Ability, CannotSave
from codeneedle.engines.messages import Chat, Completion, Forced, Reply
from codeneedle.errors import BadInput, CellError, FolderUnusable
from codeneedle.grid import Pair, most_precise, most_precise_first
from codeneedle.probes.asking import Asker
from codeneedle.probes.metrics import METRICS as OF_CELL
from codeneedle.probes.probe import Outlook, Probe, ProbeContext, RunContext, Work
from codeneedle.probes.reuse.metrics import LABELS, METRICS
from codeneedle.probes.reuse.prompts import (
    ReuseText,
    Turn,
    asking,
    functions_in,
    made_text,
)
from codeneedle.probes.reuse.record import (
    AGAIN,
    NAME,
    Reuse,
    ReuseAnswer,
    ReuseQuestion,
    Way,
    reuse_of,
)
from codeneedle.probes.reuse.settings import (
    LEAST_LENGTH,
    ROOM,
    ReuseConditions,
    ReuseSettings,
    chosen,
    conditions_of,
)
from codeneedle.records.record import Json, NeedleFacts, Run, Status, as_json
from codeneedle.text import one_line, plural

REPLY_TOKENS = 32
"""Of each answer: what is in the cache on a second turn was written one by one."""

RIGHT_TOKENS = 64
"""About, of the right lines of a function; for the plan alone."""

COLD_TOKENS = 16
"""
A cold prompt may find so many tokens in the cache: those that begin every prompt.
"""

LEAST_REUSED = 0.5
"""Share of a prompt that must come from the cache for it to be used again."""

NOTABLE_NATS = 1.0
NOTABLE_TIMES = 4.0
"""
A difference that is worth a word: so many nats, and so many times the reference's.

On a healthy server (llama.cpp b11434, CPU) no way differs on the built-in model, and
with SmolLM2 none but the second turn of f16/f16, by up to 0.33 nats, where values were
computed token by token instead of in a batch; q8_0/q8_0 and q4_0/q4_0 do not differ.
"""


class ReuseProbe(Probe):
    """Compares what a cold cache gives with what the same cache gives again."""

    def reads_corpus(self, _settings: ReuseSettings) -> bool:
        """It makes a text of its own."""
        return False

    def check_context(
        self, settings: ReuseSettings, context: int, _trained: int | None
    ) -> None:
        """
        Stop at a text that does not fit the context with its questions and answers.

        Raises:
            BadInput: Naming a context that is enough.
        """
        length = settings.length or LEAST_LENGTH
        if length + ROOM <= context:
            return
        enough = -(-(length + ROOM) // 256) * 256
        option = f"--reuse-length {length}" if settings.length else f"--probe {NAME}"
        raise BadInput(
            source=option,
            reason=f"with questions and answers it needs {length + ROOM:,} tokens, the "
            f"context has {context:,}",
            hint=f"Use --context {enough} or more.",
        )

    def work(self, settings: ReuseSettings, outlook: Outlook) -> Work:
        """The text with an empty cache: once for all, and twice for each question."""
        planned = chosen(settings, outlook.context)
        if outlook.setup and NAME in outlook.setup.probes:
            planned = conditions_of(outlook.setup)
        texts = (planned.length,) * (1 + 2 * planned.questions)
        # Of a question each way has a reply and right lines; a turn is made twice.
        answers = len(Way) * (REPLY_TOKENS + RIGHT_TOKENS) + 3 * REPLY_TOKENS
        questions = plural(planned.questions, "question")
        return Work(
            texts=texts,
            written=planned.questions * answers,
            depth=planned.length,
            phrase=f"{questions}, each in {len(Way)} ways",
        )

    def conditions(self, run: RunContext) -> Json:
        """Length of the text, and how many questions."""
        settings = run.settings_of(ReuseSettings, NAME)
        return as_json(chosen(settings, run.setup.context))

    def measure(self, context: ProbeContext) -> Json:
        """
        Ask each question that has no answer yet in all ways.

        Raises:
            CellError: If the server fails, or no way can be compared.
        """
        planned = conditions_of(context.run.setup)
        found = None
        if context.former and context.former.observation:
            found = reuse_of(context.former)
        context.step(0, 1, "loading")
        with _slots(context) as slots, context.serving(slots=slots) as served:
            seed = context.run.setup.seed
            if found is None:
                functions = functions_in(planned.length, served.tokenizer, seed=seed)
                found = Reuse(functions=functions)
            text = made_text(found.functions, seed=seed)
            asker = _ReuseAsker(served, context, text=text)
            for number in range(len(found.questions), planned.questions):
                context.step(number, planned.questions, "reading the text")
                question = asker.question(number, planned.questions)
                found = replace(found, questions=(*found.questions, question))
                context.keep(as_json(found))
            asker.settle()
            context.step(1, 1, "stopping")
        _refuse_without_differences(found)
        return as_json(found)

    def remarks(self, run: Run) -> tuple[str, ...]:
        """Which pairs differ from themselves more than the reference; and gaps."""
        records = [r for r in run.records if r.probe == NAME and r.has_numbers]
        found = {record.pair: reuse_of(record) for record in records}
        return (*_differences(found), *_gaps(found)) if found else ()


PROBE = ReuseProbe(
    name=NAME,
    metrics=(*METRICS, *OF_CELL),
    settings=ReuseSettings,
    layout=ReuseConditions,
    needs=frozenset({Ability.FORCED}),
)


@contextlib.contextmanager
def _slots(context: ProbeContext) -> Iterator[Path]:
    """A folder for the saved cache of one cell; deleted, as it holds the text."""
    folder = context.log(NAME).with_suffix(".slots").resolve()
    try:
        shutil.rmtree(folder, ignore_errors=True)  # of a program that was killed
        folder.mkdir(parents=True, mode=0o700)
    except OSError as error:
        raise FolderUnusable(folder=folder, reason=str(error)) from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _refuse_without_differences(found: Reuse) -> None:
    """
    Stop where nothing was used again.

    Raises:
        CellError: Saying why.
    """
    gaps = [gap for way in AGAIN for gap in found.gaps(way)]
    if gaps and all(found.largest(way) is None for way in AGAIN):
        raise CellError(
            f"the cache was never used again: {gaps[0]}",
            hint="Leave the probe reuse out for this model and engine.",
            status=Status.UNSUPPORTED,
        )


@dataclass(slots=True)
class _ReuseAsker(Asker):
    """
    Brings the cache into a state, and asks; both again where a connection breaks.

    Attributes:
        text: What is asked about.
        cannot_save: Why the cache cannot be saved; None before that was tried.
    """

    text: ReuseText = field(kw_only=True)
    cannot_save: str | None = None

    def question(self, number: int, of: int) -> ReuseQuestion:
        """
        The question *number*, from 0, of *of*, in each way.

        Raises:
            CellError: If the server fails.
        """
        functions = self.text.functions
        at = (2 * number + 1) * len(functions) // (2 * of)
        needle, before, other = (
            functions[(at + away) % len(functions)]
            for away in (0, len(functions) // 2, len(functions) // 4)
        )
        if self.cannot_save is None:
            self.cannot_save = self._retried(lambda: self._saved(other))
        turn = Turn(before, self._retried(lambda: self._told(before)).text)
        answers = []
        for way in Way:
            words = f"{needle.name}: {way}"
            self.context.step(number, of, words)
            answers.append(self._answer(way, needle, turn, other))
        self.context.observe_fallback(self.served)
        return ReuseQuestion(
            function=needle.name,
            before=before.name,
            first=turn.answer,
            answers=tuple(answers),
        )

    def _answer(
        self, way: Way, needle: NeedleFacts, turn: Turn, other: NeedleFacts
    ) -> ReuseAnswer:
        run, text = self.context.run, self.text.text
        question = asking(run, text, needle, tokens=REPLY_TOKENS, before=turn)
        right = "\n".join(needle.lines)

        def replied() -> Reply:
            self._prepare(way, turn.needle, other)
            return self._sent(question)

        def forced() -> Forced:
            self._prepare(way, turn.needle, other)
            return self.served.client.force(question, right)

        try:
            with self.context.asking():
                reply, scored = self._retried(replied), self._retried(forced)
        except CannotSave as error:
            return ReuseAnswer(way=way, gap=one_line(str(error)))
        prompt = reply.prompt_tokens
        cached = sorted((reply.cached_tokens, scored.cached_tokens))
        if way is Way.COLD and cached[1] > COLD_TOKENS:
            raise CellError(
                f"of a cold prompt of {prompt:,} tokens {cached[1]:,} came from the "
                "cache: another prompt does not clear it",
                hint="Leave the probe reuse out for this engine.",
                status=Status.UNSUPPORTED,
            )
        is_reused = way is Way.COLD or cached[0] >= LEAST_REUSED * prompt
        return ReuseAnswer(
            way=way,
            reply=reply.text,
            scored=scored,
            prompt_tokens=prompt,
            cached_tokens=cached[0],
            gap=""
            if is_reused
            else f"{cached[0]:,} of {prompt:,} tokens came from the cache",
        )

    def _prepare(self, way: Way, before: NeedleFacts, other: NeedleFacts) -> None:
        """Bring the cache into the state that *way* is about."""
        if way is Way.TURN:
            self._told(before)
        elif way is Way.PREFIX:
            self._told(other, tokens=1)
        else:
            # Another prompt takes the place of all that was in the cache.
            self.served.client.complete(Completion(prompt="\n", max_tokens=1))
        if way is Way.RESTORE:
            if self.cannot_save:
                raise CannotSave(self.cannot_save)
            self.served.restore_cache()

    def _saved(self, other: NeedleFacts) -> str:
        """Save a cache with the text and another question; why not, if not."""
        self._told(other, tokens=1)
        try:
            self.served.save_cache()
        except CannotSave as error:
            return one_line(str(error))
        return ""

    def _told(self, needle: NeedleFacts, *, tokens: int = REPLY_TOKENS) -> Reply:
        """The answer to a first question."""
        run, text = self.context.run, self.text.text
        return self._sent(asking(run, text, needle, tokens=tokens))

    def _sent(self, question: Chat | Completion) -> Reply:
        client = self.served.client
        if isinstance(question, Chat):
            return client.chat(question)
        return client.complete(question)


# --- in words


def _differences(found: Mapping[Pair, Reuse]) -> Iterator[str]:
    """The ways in which pairs answer otherwise; if none, how much rounding changes."""
    reference = most_precise(found)
    largest, is_notable = 0.0, False
    for pair, way in itertools.product(most_precise_first(found), AGAIN):
        value = found[pair].largest(way) or 0.0
        largest = max(largest, value)
        own = 0.0 if pair == reference else found[reference].largest(way) or 0.0
        if value < max(NOTABLE_NATS, NOTABLE_TIMES * own):
            continue
        is_notable = True
        questions = found[pair].questions
        others = sum(each.differs(way) or False for each in questions)
        beside = "" if pair == reference else f", with {reference} by {own:.2f}"
        yield (
            f"{pair} answers otherwise {LABELS[way]}: by up to {value:.2f} nats a "
            f"token{beside}; other replies: {others} of {len(questions)}"
        )
    if not is_notable:
        by = f", but for rounding: up to {largest:.2f} nats a token"
        by = by if largest else ", to the last digit"
        yield f"a cache that is used again gives what a cold one gives{by}"


def _gaps(found: Mapping[Pair, Reuse]) -> Iterator[str]:
    """What could not be compared, and why."""
    for way in AGAIN:
        pairs: dict[str, list[str]] = defaultdict(list)
        for pair in most_precise_first(found):
            for gap in found[pair].gaps(way):
                pairs[gap].append(str(pair))
        for gap, named in pairs.items():
            of = "all pairs" if len(named) == len(found) else ", ".join(named)
            yield f"not compared {LABELS[way]}: {gap} ({of})"
