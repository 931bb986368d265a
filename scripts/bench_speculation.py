"""Section ``speculation``: writing with drafts of several lengths, and without."""

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

from bench_place import CONTEXT, Place, measured_on
from bench_shown import Section, lines
from bench_sums import phrase, ratios, share, spaced

from codeneedle.engines.client import Client, Completion
from codeneedle.engines.llama_cpp.arguments import CHOSEN, Speculation
from codeneedle.engines.llama_cpp.server import serving
from codeneedle.engines.responses import Reply
from codeneedle.grid import Pair
from codeneedle.probes.probe import launch_of
from codeneedle.probes.prompts import completion_prompt
from codeneedle.probes.recall import enough_for
from codeneedle.records.record import NeedleFacts
from codeneedle.sweep import plan as planning
from codeneedle.sweep import prepare
from codeneedle.sweep.plan import Plan
from codeneedle.sweep.prepare import Settled
from codeneedle.sweep.request import Request

PAIR = Pair("q8_0", "q8_0")
PRIMING_TOKENS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """
    What one server wrote.

    Attributes:
        per_round_s: Writing, in seconds a round: from a question until the next can
            be answered, without reading of prompts. A reply that is cut goes on
            until its last draft is checked, and so long the next one waits.
        tokens: Of all replies.
        drafted: Tokens that were guessed.
        accepted: Of these, the right ones.
        texts: The replies.
    """

    per_round_s: float
    tokens: int
    drafted: int
    accepted: int
    texts: tuple[str, ...]


def measured(place: Place, say: Callable[[str], None]) -> Section:
    """Measure all settings, plain first, in each repetition."""
    asked = place.asked
    plan = _plan(place)
    settled = prepare.settled(plan, [])
    settings = [None, *_settings(asked.patterns, asked.drafts)]
    found: list[list[Written]] = [[] for _ in settings]
    for at in range(1, asked.repetitions + 1):
        for setting, written in zip(settings, found, strict=True):
            say(f"repetition {at}: {setting.phrase if setting else 'plain'}")
            written.append(_written(place, plan, settled, setting))
    return _section(place, settled.setup.corpus.tokens, settings, found)


def _settings(patterns: Sequence[int], drafts: Sequence[int]) -> Iterator[Speculation]:
    for pattern, draft in itertools.product(patterns, drafts):
        yield Speculation(pattern=pattern, draft=draft)


def _plan(place: Place) -> Plan:
    """As a sweep makes it, so that servers are started in the same way."""
    return planning.plan(
        Request(
            corpus=str(place.corpus),
            k_types=(PAIR.k,),
            v_types=(PAIR.v,),
            contexts=(CONTEXT,),
            out=place.fresh("speculation"),
            llama_server=place.model.binary,
        )
    )


def _written(
    place: Place, plan: Plan, settled: Settled, setting: Speculation | None
) -> Written:
    needles = settled.setup.needles
    chosen = [needles[at] for at in spaced(len(needles), place.asked.rounds)]
    launch = launch_of(plan, PAIR, speculation=setting)
    folder = plan.store.folder
    with serving(launch, log=folder / "logs" / "bench.log", folder=folder) as served:
        return asked_of(served.client, settled.text, chosen)


def asked_of(client: Client, text: str, needles: Sequence[NeedleFacts]) -> Written:
    """
    Ask for *needles* of *text*, which the server has read before the clock starts.

    Raises:
        CellError: If the server fails.
    """
    _ask(client, text, needles[-1], tokens=PRIMING_TOKENS)
    began = time.perf_counter()
    replies = [_ask(client, text, needle, tokens=needle.budget) for needle in needles]
    closing = _ask(client, text, needles[0], tokens=1)
    wall_s = time.perf_counter() - began
    read_s = sum(reply.prompt_ms for reply in (*replies, closing)) / 1000
    return Written(
        per_round_s=(wall_s - read_s) / len(needles),
        tokens=sum(reply.predicted_tokens for reply in replies),
        drafted=sum(reply.drafted for reply in replies),
        accepted=sum(reply.accepted for reply in replies),
        texts=tuple(reply.text for reply in replies),
    )


def _ask(client: Client, text: str, needle: NeedleFacts, *, tokens: int) -> Reply:
    question = Completion(prompt=completion_prompt(text, needle), max_tokens=tokens)
    return client.complete(question, enough=enough_for(needle))


def _section(
    place: Place,
    corpus_tokens: int,
    settings: Sequence[Speculation | None],
    found: Sequence[Sequence[Written]],
) -> Section:
    plain = found[0]
    rows = [
        _row(setting, written, plain)
        for setting, written in zip(settings, found, strict=True)
    ]
    asked = place.asked
    rounds = len(spaced(asked.functions, asked.rounds))
    return Section(
        title=f"speculation: writing at {PAIR}, by lengths of pattern and draft",
        headings=(
            *("pattern n", "draft m", "s a round", "of plain", "accepted %", "same"),
        ),
        words=0,
        rows=tuple(rows),
        lines=lines(
            measured_on(
                place,
                f"corpus {corpus_tokens:,} tokens, context {CONTEXT:,}, rounds: "
                f"{rounds}, repetitions: {asked.repetitions}",
            ),
            "a round: from a question until the next can be answered, without the "
            "reading of prompts; same: rounds with the plain server's reply",
            f"a sweep uses n {CHOSEN.pattern}, m {CHOSEN.draft}",
        ),
        raw={
            "pair": str(PAIR),
            "settings": [
                {
                    "pattern": setting.pattern if setting else None,
                    "draft": setting.draft if setting else None,
                    "repetitions": [asdict(each) for each in written],
                }
                for setting, written in zip(settings, found, strict=True)
            ],
        },
    )


def _row(
    setting: Speculation | None, written: Sequence[Written], plain: Sequence[Written]
) -> tuple[str, ...]:
    walls = [each.per_round_s for each in written]
    if setting is None:
        return ("plain", "", phrase(walls, 3), "1.00", "", "")
    same = [
        ours == theirs
        for each, other in zip(written, plain, strict=True)
        for ours, theirs in zip(each.texts, other.texts, strict=True)
    ]
    return (
        *(str(setting.pattern), str(setting.draft), phrase(walls, 3)),
        phrase(ratios(walls, [each.per_round_s for each in plain]), 2),
        phrase([share(e.accepted, e.drafted) if e.drafted else None for e in written]),
        f"{sum(same)}/{len(same)}",
    )
