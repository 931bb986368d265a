"""The recall probe: asks for functions verbatim and stores the replies."""

import functools
import hashlib
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from msgspec import structs

from codeneedle.corpora.corpus import Corpus
from codeneedle.corpora.needles import (
    WRITTEN_LINES,
    block_ends,
    depth_of,
    forced_needle,
    written_needle,
)
from codeneedle.document import Document
from codeneedle.engines.engine import Ability, Engine, Served
from codeneedle.engines.messages import (
    BadReply,
    Chat,
    Completion,
    Forced,
    Generation,
    Reply,
)
from codeneedle.errors import BadInput, CellError, CodeneedleError
from codeneedle.grid import Pair
from codeneedle.models.kv_cache import padded
from codeneedle.probes import frames
from codeneedle.probes.answers import Answer
from codeneedle.probes.asking import Asker
from codeneedle.probes.metrics import Metric
from codeneedle.probes.probe import (
    Estimates,
    Probe,
    ProbeContext,
    Question,
    RunContext,
    Times,
    Work,
)
from codeneedle.probes.prompts import request
from codeneedle.probes.recall.alignment import answer_lines, score
from codeneedle.probes.recall.metrics import (
    FORCED,
    METRICS,
    asked_for,
    forced_metrics,
    is_answered,
    unanswered,
)
from codeneedle.probes.recall.prompts import chat_messages, completion_prompt
from codeneedle.probes.recall.record import (
    NAME,
    WRITTEN,
    Facts,
    ForcedRound,
    Round,
    recall_of,
)
from codeneedle.probes.recall.settings import (
    Ask,
    RecallConditions,
    RecallSettings,
    conditions,
    conditions_of,
)
from codeneedle.probes.stored import Observed
from codeneedle.records.record import (
    CellRecord,
    Json,
    NeedleFacts,
    Run,
    Setup,
    Status,
    as_json,
    shared_with,
)
from codeneedle.text import one_line, plural

PRIMING_TOKENS = 8
"""Enough to make the server read the corpus; the reply is not scored."""

TAIL_LINES = 2
"""Lines after a complete answer that are still read, to see whether it runs on."""

SLACK_LINES = 8
"""Lines beyond the asked ones that an answer with slips in it may take."""

CEILING_LINES = 19.95
"""Matched lines, a mean, from which no more can be told than that nothing is lost."""

FLOOR_LINES = 1.0
"""Matched lines of the reference, a mean, up to which next to nothing can be lost."""


def needles_of(
    corpus: Corpus, chosen: RecallConditions
) -> tuple[tuple[NeedleFacts, ...], tuple[NeedleFacts, ...]]:
    """
    The functions of *corpus* to be written, and those whose lines are forced.

    Both in asking order; the latter with those that open pairs may be asked for. The
    budgets of replies are not counted yet.
    """
    parts = chosen.ask.parts
    written = corpus.written() if Ask.WRITTEN in parts else []
    forced = (
        corpus.forced(chosen.functions, chosen.lines) if Ask.FORCED in parts else []
    )
    depth = {
        each.line: round(depth_of(each, line_count=corpus.line_count), 4)
        for each in (*written, *forced)
    }
    return (
        tuple(written_needle(each, depth=depth[each.line]) for each in written),
        tuple(
            forced_needle(
                each,
                depth=depth[each.line],
                lines=chosen.lines,
                seed=corpus.sample_seed,
            )
            for each in forced
        ),
    )


def _phrase(chosen: RecallConditions, written: int, forced: int) -> str:
    """What is asked of so many functions."""
    phrases = []
    if Ask.WRITTEN in chosen.ask.parts:
        functions, limit = plural(written, "function"), chosen.reply_tokens
        until = f", up to {plural(limit, 'token')} each" if limit else ""
        phrases.append(f"{WRITTEN_LINES} lines of {functions} written{until}")
    if Ask.FORCED in chosen.ask.parts:
        functions, lines = plural(forced, "function"), plural(chosen.lines, "line")
        phrases.append(f"{lines} of {functions} forced")
    return "; ".join(phrases)


def _least(corpus: Corpus, chosen: RecallConditions, outlook: Estimates) -> int:
    """About the tokens of the shortest part with a function, as it is asked for."""
    if not corpus.of_length(chosen.lines):
        return 0
    lines_before_and_right = WRITTEN_LINES / corpus.line_count * len(corpus.text)
    shortest = len(corpus.shortest(chosen.lines))
    return outlook.tokens(shortest + lines_before_and_right)


def _too_little(least: int) -> str:
    """What a plan says where the sweep is likely to refuse the context."""
    return (
        f"the context is too small: one function takes about {least:,} tokens with "
        f"question and answer; use --context {padded(least)} or more"
    )


def _expected(chosen: RecallConditions, outlook: Estimates) -> tuple[int, int]:
    """About how many functions of the text as sent are written, and forced."""
    corpus, share = outlook.corpus, outlook.share
    long = math.floor(share * len(corpus.of_length(WRITTEN_LINES)))
    all_lines = math.floor(share * len(corpus.of_length(chosen.lines)))
    return min(long, corpus.sample_k), min(all_lines, chosen.functions)


def _last_of_every_sweep(setup: Setup) -> NeedleFacts:
    return (*setup.forced[: conditions_of(setup).functions], *setup.needles)[-1]


def _gaps(run: Run) -> Iterator[str]:
    """Why no record has forced scores, or margins, where the same is true of all."""
    records = [r for r in run.records if r.probe == NAME and r.has_numbers]
    recalls = [recall_of(record) for record in records]
    forced = [answer for each in recalls for answer in each.forced]
    errors = {answer.error for answer in forced}
    if forced and "" not in errors:
        yield f"no forced recall: {min(errors)}"
    written = [answer for each in recalls for answer in each.rounds if not answer.error]
    drafts = any(answer.drafted for answer in written)
    if written and not drafts and not any(answer.logprobs for answer in written):
        unscored = {record.effective.unscored for record in records} - {""}
        told = min(unscored, default="no probabilities")
        yield f"no margins: the server tells {told}"


def _require_forced(engine: Engine) -> None:
    """Stop at an *engine* that cannot score right lines: they can be written."""
    try:
        engine.require(Ability.FORCED)
    except CodeneedleError as error:
        error.hint = f"{error.hint.removesuffix('.')}, or --ask written."
        raise


def _refuse_unused(settings: RecallSettings, engine: Engine) -> None:
    """
    Stop at *settings* of lines that are forced: they are written alone.

    Raises:
        BadInput: With what works with this engine.
    """
    reason, hint = f"--engine {engine.name} forces none here", "Leave it out."
    if Ability.FORCED in engine.abilities:
        reason = "--ask written forces none"
        hint = "Leave it out, or use --ask both."
    for name in ("functions", "lines"):
        value = getattr(settings, name)
        if value is not None:
            raise BadInput(
                source=f"--{name} {value}",
                reason=f"is of lines that are forced; {reason}",
                hint=hint,
            )


_WITHOUT = {
    Ask.WRITTEN: "functions without an answer, which count as nothing recalled",
    Ask.FORCED: "functions without scores of their lines, which are left out",
}
"""What `RecallProbe.silent` says of functions that were asked for."""


class RecallProbe(Probe):
    """Asks for functions verbatim, and scores their right lines."""

    def times(self, record: CellRecord) -> Times:
        """The functions whose lines were forced, and all questions."""
        recall = recall_of(record)
        return Times(
            units=tuple(each.wall_s for each in recall.forced),
            questions_s=math.fsum(each.wall_s for each in recall.answers),
            servers=max(recall.starts, 1),
        )

    def suited(self, settings: RecallSettings, engine: Engine) -> RecallSettings:
        """
        *settings* as *engine* can ask them: without a choice, what it can.

        Raises:
            CodeneedleError: If it cannot score right lines, and is to; or if settings
                of forced lines are given where lines are written alone, or a limit of
                replies where they are forced alone.
        """
        if settings.reply_tokens and settings.ask is Ask.FORCED:
            raise BadInput(
                source=f"--reply-tokens {settings.reply_tokens}",
                reason="is of lines that are written; --ask forced writes none",
                hint="Leave it out, or use --ask written.",
            )
        can_force = Ability.FORCED in engine.abilities
        if settings.ask in {Ask.FORCED, Ask.BOTH}:
            _require_forced(engine)
        elif settings.ask is Ask.WRITTEN or not can_force:
            _refuse_unused(settings, engine)
            return structs.replace(settings, ask=Ask.WRITTEN)
        elif settings.reply_tokens:
            return structs.replace(settings, ask=Ask.BOTH)
        return settings

    def check(self, settings: RecallSettings, corpus: Corpus | None) -> None:
        """
        Stop at settings that contradict each other, or ask what *corpus* does not have.

        Args:
            settings: What the user chose.
            corpus: The whole corpus; None if it has not been read yet.

        Raises:
            BadInput: With a setting that works.
        """
        if corpus is None:
            return
        longest = max(function.content_lines for function in corpus.functions)
        if settings.ask in {Ask.WRITTEN, Ask.BOTH} and longest < WRITTEN_LINES:
            raise BadInput(
                source=f"--ask {settings.ask}",
                reason=f"no function of corpus {corpus.name} has {WRITTEN_LINES} lines "
                f"to write; the longest has {longest} that are not blank",
                # Whoever is asked for both can force.
                hint="Use another --corpus"
                f"{', or --ask forced' if settings.ask is Ask.BOTH else ''}.",
            )
        if settings.lines and longest < settings.lines:
            raise BadInput(
                source=f"--lines {settings.lines}",
                reason=f"no function of corpus {corpus.name} has so many; the longest "
                f"has {longest} that are not blank",
                hint=f"Use --lines {longest} or less, or another --corpus.",
            )

    def conditions(self, run: RunContext) -> Json:
        """
        What is asked, with as many forced functions as the text as sent has.

        Lines are forced alone where none are to be written and nothing else was chosen.
        """
        setup, settings = run.setup, run.settings_of(RecallSettings, NAME)
        chosen = conditions(settings, setup)
        if settings.ask is None and not setup.needles:
            chosen = replace(chosen, ask=Ask.FORCED)
        if setup.forced:
            chosen = replace(chosen, functions=min(chosen.functions, len(setup.forced)))
        return {k: value for k, value in as_json(chosen).items() if value is not None}

    def work(self, settings: RecallSettings, outlook: Estimates) -> Work:
        """The corpus once, and lines of as many functions as are likely to fit."""
        setup, corpus = outlook.setup, outlook.corpus
        chosen = conditions(settings, setup)
        lines = corpus.line_count
        a_line = outlook.tokens(len(corpus.text)) / lines
        if setup and (setup.needles or setup.forced):
            written = len(setup.needles)
            forced = min(len(setup.forced), chosen.functions)
        else:
            least = _least(corpus, chosen, outlook)
            if least > outlook.context:
                return Work(phrase=_too_little(least))
            written, forced = _expected(chosen, outlook)
            if settings.ask is None and not written:
                chosen = replace(chosen, ask=Ask.FORCED)
        written *= Ask.WRITTEN in chosen.ask.parts
        forced *= Ask.FORCED in chosen.ask.parts
        tokens = chosen.reply_tokens or WRITTEN_LINES * a_line
        return Work(
            texts=(outlook.text_tokens,),
            written=math.ceil(written * tokens + forced * chosen.lines * a_line),
            depth=outlook.text_tokens,
            phrase=_phrase(chosen, written, forced),
        )

    def questions(self, setup: Setup, goal: int | None = None) -> Iterator[Question]:
        """Functions to be written, then those whose lines are forced."""
        chosen = conditions_of(setup)
        wanted = {
            Ask.WRITTEN: setup.needles,
            Ask.FORCED: setup.forced[: goal or chosen.functions],
        }
        for part in chosen.ask.parts:
            for needle in wanted[part]:
                key = f"{part} {needle.name}"
                yield Question(key, phrase=key, body=(part, needle))

    def asker(
        self, served: Served, context: ProbeContext, observed: Observed
    ) -> "RecallAsker":
        """
        What asks for functions, behind an unscored round.

        That asks for a function of every sweep, so that each scored round finds the
        corpus in the cache and nothing else: the same path for all. Written rounds come
        before forced ones, and are the same with and without them.
        """
        setup, asker = context.run.setup, RecallAsker(served, context)
        context.step(0, 1, "reading the corpus")
        priming = asker.primed(
            context.run.text,
            setup.corpus.tokens,
            lambda: asker.round(_last_of_every_sweep(setup), tokens=PRIMING_TOKENS),
        )
        observed.facts = observed.facts or as_json(Facts(priming))
        return asker

    def useless(self, observed: Observed) -> CellError | None:
        """As of `Probe`: each answer has an error."""
        errors = {key: answer.get("error") for key, answer in observed.answers.items()}
        if not all(errors.values()):
            return None
        error, *_ = errors.values() or ("",)
        if not any(key.startswith(WRITTEN) for key in errors):
            return CellError(
                f"no right lines could be scored: {error}; --ask written needs none",
                hint="Use --ask written.",
                status=Status.UNSUPPORTED,
            )
        return CellError(
            f"no round has an answer: {error}",
            hint="Try --prompt-form completion, or --prefill-no-think for a model "
            "that thinks although it is told not to.",
        )

    def more_metrics(self, setup: Setup) -> tuple[Metric, ...]:
        """Those of forced recall, where it was asked for."""
        return forced_metrics(setup)

    def headline(self, setup: Setup) -> str:
        """
        The metric that reports show where none is named.

        Forced recall wherever it was asked for: beside it, written recall is the same
        in most cells of most grids, at 20 of 20 or near none.
        """
        return (*forced_metrics(setup), METRICS[0])[0].name

    def remarks(self, run: Run) -> tuple[str, ...]:
        """
        What its records do not tell: written recall that no pair can change; and why
        nothing was forced, where the engine cannot do that.
        """
        lines = []
        cells = frames.cells_frame(frames.of_probe(run, NAME), METRICS[0])
        values = [cell.value for cell in cells if cell.has_value]
        if values and min(values) >= CEILING_LINES:
            lines.append(
                f"written recall is at its ceiling: {min(values):.2f} lines of "
                f"{WRITTEN_LINES} or more with each pair, which tells none from another"
            )
        reference = frames.reference(cells)
        lost = frames.value_at(cells, reference) if reference else math.inf
        if lost <= FLOOR_LINES:
            lines.append(
                f"written recall is at its floor: {lost:.2f} lines of {WRITTEN_LINES} "
                f"with {reference}, so no pair has anything to lose"
            )
        return (*lines, *_gaps(run))

    def beside(self, metric: Metric) -> tuple[Metric, ...]:
        """Beside what was forced, what was written."""
        return METRICS[:1] if metric in FORCED else ()

    def unanswered(
        self, record: CellRecord, setup: Setup, metric: Metric
    ) -> frozenset[str]:
        """Functions without an answer, written or forced as the metric is."""
        part = Ask.FORCED if metric in FORCED else Ask.WRITTEN
        return unanswered(record, setup, part)

    def asks(self, setup: Setup) -> tuple[str, ...]:
        """How many functions are written, and how many lines of others are forced."""
        if setup.probes and NAME not in setup.probes:
            return ()
        phrases = []
        if setup.needles:
            phrases.append(f"{plural(len(setup.needles), 'function')} written")
        if setup.forced:
            chosen = conditions_of(setup)
            functions = plural(chosen.functions, "function")
            phrases.append(f"{plural(chosen.lines, 'line')} of {functions} forced")
        return tuple(phrases)

    def silent(self, run: Run) -> dict[str, dict[Pair, tuple[int, int]]]:
        """Functions without an answer; not of what no pair could give."""
        records = [r for r in run.records if r.probe == NAME and r.has_numbers]
        silent = {}
        for part in conditions_of(run.setup).ask.parts:
            if any(is_answered(each, run.setup, part) for each in records):
                silent[_WITHOUT[part]] = {
                    each.pair: (len(missing), len(asked_for(each, part)))
                    for each in records
                    if (missing := unanswered(each, run.setup, part))
                }
        return silent

    def answers(self, run: Run, record: CellRecord) -> Iterable[Answer]:
        """Functions that were written, then those that were forced."""
        from codeneedle.probes.recall import answers

        return answers.answers(run, record)

    def overview(self, run: Run, record: CellRecord) -> Document:
        """A line for each function."""
        from codeneedle.probes.recall import answers

        return answers.overview(run, record)

    def unit_ends(self, setup: Setup) -> list[int]:
        """Numbers of forced functions; empty if none are forced."""
        first = conditions_of(setup).functions
        return block_ends(first, len(setup.forced)) if setup.forced else []


PROBE = RecallProbe(
    name=NAME,
    purpose="lines of functions, verbatim",
    metrics=METRICS,
    settings=RecallSettings,
    layout=RecallConditions,
    continued_metric=FORCED[0].name,
    neutral=frozenset({"ask", "functions"}),
    asks_functions=True,
    repeats=True,
)


class RecallAsker(Asker):
    """Asks for the lines of functions, and scores them."""

    def ask(self, question: Question) -> Round | ForcedRound:
        """As of `Asking`."""
        part, needle = question.body
        if part is Ask.WRITTEN:
            return self.round(needle, tokens=needle.budget)
        return self.scored(needle)

    def round(self, needle: NeedleFacts, *, tokens: int) -> Round:
        """
        Ask for *needle*, allowing *tokens* tokens of reply.

        Raises:
            CellError: If the server fails, or the connection breaks at each attempt.
        """
        question = self._question(needle, tokens=tokens)
        reply = self.written(question, self._enough_for(needle))
        answer = Round(
            needle=needle.name,
            prompt_sha256=_sha256(question),
            reply=reply.text,
            error=_why_unanswered(needle, reply),
            retries=self.retries,
            **shared_with(reply, Generation),
        )
        if reply.drafted:
            # Of drafted tokens the server tells no probabilities: some are missing.
            answer = replace(answer, logprobs=(), gaps=(), lengths=())
        return answer

    def scored(self, needle: NeedleFacts) -> ForcedRound:
        """
        Score the right lines of *needle*.

        Raises:
            CellError: As of `round`.
        """
        question = self._question(needle, tokens=needle.budget)
        blank = ForcedRound(needle=needle.name, prompt_sha256=_sha256(question))
        try:
            scores = self.forced(question, "\n".join(needle.lines))
        except BadReply as error:
            # What was written stays: a server may tell no probabilities.
            return replace(blank, error=one_line(str(error)))
        return replace(blank, **shared_with(scores, Forced), retries=self.retries)

    def _enough_for(self, needle: NeedleFacts) -> Callable[[str], bool]:
        """As `enough_for`; with a limit of tokens, that alone ends a reply."""
        has_limit = conditions_of(self.context.run.setup).reply_tokens is not None
        return (lambda _so_far: False) if has_limit else enough_for(needle)

    def _question(self, needle: NeedleFacts, *, tokens: int) -> Chat | Completion:
        run = self.context.run
        prefill = run.prefill_no_think
        return request(
            run.setup,
            prompt=completion_prompt(run.text, needle),
            messages=chat_messages(run.text, needle, prefill_no_think=prefill),
            tokens=tokens,
        )


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
    if complete.count("\n") + 1 < WRITTEN_LINES:
        return False
    answer = answer_lines(needle, complete)
    if len(answer) >= WRITTEN_LINES + SLACK_LINES:
        return True
    if len(answer) < WRITTEN_LINES or score(needle, complete).matched < WRITTEN_LINES:
        return False
    # Of any kind: prose after a closed fence is a tail, too.
    lines = sum(bool(line.strip()) for line in complete.split("\n"))
    return lines >= WRITTEN_LINES + TAIL_LINES


def _sha256(question: Chat | Completion) -> str:
    """Of what was sent, each message on a line of its own."""
    if isinstance(question, Completion):
        text = str(question.prompt)
    else:
        text = "\n".join(f"{said.role}: {said.content}" for said in question.messages)
    return hashlib.sha256(text.encode()).hexdigest()


def _why_unanswered(needle: NeedleFacts, reply: Reply) -> str:
    """Why there is nothing to score, if so: an error of the round, never a zero."""
    if answer_lines(needle, reply.text):
        return ""
    thought = reply.reasoning or reply.text.strip()
    if thought and reply.finish == "length":
        return f"all {reply.predicted_tokens} tokens went into reasoning"
    return "the answer is empty"
