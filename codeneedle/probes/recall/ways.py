"""
Decides whether functions are written, forced or read where ``--way`` is not given,
which ways are refused, and which pairs are not asked to write.

Also how few functions a sweep that decides asks for, and why answers of a way are
missing: a pair is not asked to write, or each answer is an error.
"""

from collections.abc import Iterator

from msgspec import structs

from codeneedle.cache_types import most_precise
from codeneedle.corpora.corpus import Corpus
from codeneedle.corpora.needles import WRITTEN_LINES
from codeneedle.engines.engine import Ability, Engine
from codeneedle.errors import BadInput, CodeneedleError
from codeneedle.probes.cell import ProbeContext
from codeneedle.probes.estimates import Estimates
from codeneedle.probes.metrics import ABLE
from codeneedle.probes.observations import Observed, observation_of
from codeneedle.probes.recall.metrics import matched_share
from codeneedle.probes.recall.record import recall_of
from codeneedle.probes.recall.settings import (
    DECIDING_FUNCTIONS,
    DECIDING_LINES,
    DECIDING_READ,
    MOST_READ,
    RecallSettings,
    Way,
    settings_of,
)
from codeneedle.records.record import CellRecord, Setup
from codeneedle.text import number_text


def default_ways(settings: RecallSettings, estimates: Estimates) -> tuple[Way, ...]:
    """
    How functions are asked for where no way is named.

    Written alone where nothing can be scored; scored alone in a sweep that decides
    without a limit of replies.
    """
    if Ability.FORCED not in estimates.engine.abilities:
        return (Way.WRITE,)
    is_read = (
        would_read_lines_if_possible(estimates) and estimates.can_read_right_tokens
    )
    scored = Way.READ if is_read else Way.FORCE
    is_brief = estimates.decides and not settings.reply_tokens
    return (scored,) if is_brief else (Way.WRITE, scored)


def would_read_lines_if_possible(estimates: Estimates) -> bool:
    """
    Whether right lines are read by default, if a tool can hold the text.

    They are on an accelerator, of texts up to `MOST_READ`; not of the built-in model.
    """
    is_fast = estimates.engine.is_on_accelerator and not estimates.is_built_in
    return is_fast and estimates.sent_corpus_tokens <= MOST_READ


def refuse_impossible_ways(settings: RecallSettings, engine: Engine) -> None:
    """
    Stop at *settings* that *engine* cannot ask, or that contradict each other.

    Raises:
        CodeneedleError: If it cannot score right lines, and is to; if these are to be
            both forced and read; if settings of scored lines are given where lines are
            written alone, or a limit of replies where none is written.
    """
    way = settings.ways if settings.way else ()
    if {Way.FORCE, Way.READ} <= {*way}:
        raise BadInput(
            source=f"--way {','.join(settings.way)}",
            reason="lines that are forced are never compared with lines that are read",
            hint="Name one of them; of lines that are read, the pair to set is forced "
            "for a check, too.",
        )
    if settings.reply_tokens and way and Way.WRITE not in way:
        raise BadInput(
            source=f"--reply-tokens {settings.reply_tokens}",
            reason=f"is of lines that are written; --way {','.join(way)} writes none",
            hint="Leave it out, or use --way write.",
        )
    can_force = Ability.FORCED in engine.abilities
    if Way.FORCE in way:
        _require_forcing(engine)
    elif way == (Way.WRITE,) or not (way or can_force):
        _refuse_forcing_settings(settings, engine)


def _require_forcing(engine: Engine) -> None:
    """Stop at an *engine* that cannot score right lines; the hint adds --way write."""
    try:
        engine.require(Ability.FORCED)
    except CodeneedleError as error:
        error.hint = f"{error.hint.removesuffix('.')}, or --way write."
        raise


def _refuse_forcing_settings(settings: RecallSettings, engine: Engine) -> None:
    """
    Stop at *settings* that say how many functions or lines are forced: none are.

    Raises:
        BadInput: With what works with this engine.
    """
    reason, hint = f"--engine {engine.name} forces none here", "Leave it out."
    if Ability.FORCED in engine.abilities:
        reason = "--way write forces none"
        hint = "Leave it out, or use --way write,force."
    for name in ("functions", "lines"):
        value = getattr(settings, name)
        if value is not None:
            raise BadInput(
                source=f"--{name} {value}",
                reason=f"is of lines that are forced; {reason}",
                hint=hint,
            )


def refuse_lines_no_function_has(chosen: RecallSettings, corpus: Corpus) -> None:
    """
    Stop at lines to write, or to score, that no function of *corpus* has.

    Only where the user has named the way, or how many lines.

    Raises:
        BadInput: With a setting that works.
    """
    longest = max(function.nonblank_line_count for function in corpus.functions)
    if Way.WRITE in chosen.way and longest < WRITTEN_LINES:
        raise BadInput(
            source=f"--way {','.join(chosen.way)}",
            reason=f"no function of corpus {corpus.name} has {WRITTEN_LINES} lines "
            f"to write; the longest has {longest} that are not blank",
            # Whoever is asked for both can score.
            hint="Use another --corpus"
            f"{f', or --way {chosen.ways[-1]}' if chosen.scores_right_lines else ''}.",
        )
    if chosen.lines and longest < chosen.lines:
        raise BadInput(
            source=f"--lines {chosen.lines}",
            reason=f"no function of corpus {corpus.name} has so many; the longest "
            f"has {longest} that are not blank",
            hint=f"Use --lines {longest} or less, or another --corpus.",
        )


def with_few_functions_if_open(chosen: RecallSettings) -> RecallSettings:
    """*chosen* for a sweep that decides: few functions and lines to score, if open."""
    if not chosen.scores_right_lines:
        return chosen
    fewest = DECIDING_READ if chosen.reads_instead_of_forcing else DECIDING_FUNCTIONS
    return structs.replace(
        chosen,
        functions=chosen.functions or fewest,
        lines=chosen.lines or DECIDING_LINES,
    )


def why_not_asked_to_write(context: ProbeContext) -> str:
    """
    Why a pair is not asked to write, as a phrase; empty if it is.

    Where the reference writes too little back, no pair could lose any of it. Where none
    of its lines could be scored, what is written is all that there is.
    """
    by_pair = {record.pair: record for record in context.others}
    reference = most_precise([context.pair, *by_pair])
    if reference == context.pair:
        return ""
    recall = recall_of(by_pair[reference])
    is_scored = any(answer.scores for answer in recall.scored_answers)
    if not (recall.rounds and is_scored):
        return ""
    share = matched_share(by_pair[reference], context.run.setup)
    if share >= ABLE:
        return ""
    lines = number_text(share * WRITTEN_LINES, digits=1)
    return f"{reference} wrote {lines} of {WRITTEN_LINES} lines back"


def missing_way_phrases(record: CellRecord, setup: Setup) -> Iterator[str]:
    """Why *record* has not one scored answer, or not one written; none if it has."""
    recall = recall_of(record)
    for done, answers in (
        (settings_of(setup).read_or_forced_word, recall.scored_answers),
        ("written", recall.rounds),
    ):
        errors = {answer.error for answer in answers}
        if errors and "" not in errors:
            yield f"no lines {done}: {min(errors)}"
    skipped = observation_of(record, Observed).skipped
    if skipped and not recall.rounds:
        yield f"no lines written: {min(skipped.values())}"
