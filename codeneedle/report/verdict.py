"""The verdict on a run, for people: what to set, what was shown, and what was not."""

import math
import shlex
from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from codeneedle.analysis.metrics import Metric
from codeneedle.analysis.recall import NAME as RECALL
from codeneedle.analysis.verdict import AxisFinding, Certificate
from codeneedle.corpora.corpus import LIMIT
from codeneedle.grid import RUNS, Pair
from codeneedle.models.pretrained import BUILT_IN
from codeneedle.probes import PROBES, copies
from codeneedle.probes.probe import Probe
from codeneedle.records.record import Run
from codeneedle.report import captions
from codeneedle.report.captions import named_pairs, number
from codeneedle.report.judgement import (
    UNDECIDED,
    Advice,
    Standing,
    Verdict,
)
from codeneedle.report.units import AXES, Judged
from codeneedle.text import duration, json_text, or_null, plain, table_lines, visible

Spell = Callable[[Pair], str]
"""How a pair is asked for on an engine's command line."""


def verdict_view(found: Verdict, spell: Spell) -> RenderableType:
    """The verdict for a terminal: what to set, why, and what is open."""
    parts: list[RenderableType] = [
        Text(f"{visible(found.run.name)}: verdict", style="bold"),
        Text(),
        Text(headline(found, spell), style="bold green"),
        Text(),
        captions.entry_table(statements(found, spell), style="bold"),
    ]
    if any(each.is_on_front for each in found.standings):
        parts += [Text(), _front_table(found)]
    parts += [Text(), captions.facts_table(found.run)]
    return Group(*parts)


def brief_view(found: Verdict, spell: Spell) -> RenderableType:
    """What to set and why, for the end of a sweep."""
    return Group(
        Text(headline(found, spell), style="bold green"),
        captions.entry_table(statements(found, spell), style="bold"),
    )


def headline(found: Verdict, spell: Spell) -> str:
    """What to set, with what it saves."""
    if found.reference is None:
        return "Nothing can be said: no cell of this run has numbers."
    if found.run.setup.weights.name == BUILT_IN:
        return "Nothing to set: the built-in model is an instrument."
    chosen = next((each.pair for each in found.advice if each.is_shown), None)
    if chosen is None:
        return f"Keep: {spell(found.reference)}. No smaller cache was shown to be safe."
    return f"Set: {spell(chosen)}{_savings(found, chosen)}"


def statements(found: Verdict, spell: Spell) -> list[tuple[str, str]]:
    """What was shown, what was not, and what is undecided: a word and a phrase."""
    if found.reference is None:
        return [("cells", "none is finished; codeneedle grid says why")]
    entries = [("reference", visible(str(found.reference)))]
    entries += [
        (each.goal, _advice_phrase(found, each, spell)) for each in found.advice
    ]
    for each in found.judged:
        entries += [(each.metric.name, line) for line in judged_lines(each)]
    entries += _undecided(found)
    entries += [("sizes", line) for line in _size_lines(found)]
    entries += [("not judged", line) for line in _troubles(found)]
    entries += [("finding", line) for line in copies.remarks(found.run)]
    if found.run.setup.weights.name == BUILT_IN:
        entries.append(("instrument", INSTRUMENT_NOTE))
    return entries


INSTRUMENT_NOTE = (
    "the built-in model copies text and is no language model: this verdict tells "
    "whether the instrument works, not what to set for your model"
)


def _savings(found: Verdict, pair: Pair) -> str:
    standing = found.standing(pair)
    parts = []
    if standing.memory is not None:
        parts.append(f"{standing.memory:.0%} of the KV memory of {found.reference}")
    if standing.speed is not None:
        parts.append(f"{standing.speed:.0%} of its writing speed")
    return f"   ({', '.join(map(visible, parts))})" if parts else ""


def _advice_phrase(found: Verdict, advice: Advice, spell: Spell) -> str:
    if advice.pair is None:
        return advice.reason
    return f"{spell(advice.pair)}{_savings(found, advice.pair)}: {advice.reason}"


def judged_lines(each: Judged) -> Iterator[str]:
    """What one metric says of K and of V."""
    if each.silent:
        yield f"has no say: {each.silent}"
        return
    for axis, types, finding in zip(AXES, each.types, each.axes, strict=True):
        if math.isnan(finding.p):
            yield f"{axis} was not tested: fewer than two types without gaps"
        elif finding.matters:
            yield f"{axis} matters{_costs_phrase(each, types, finding)}"
        else:
            yield f"{axis}: nothing found{_least_phrase(each, axis)}"
    if each.incomplete:
        lacking = named_pairs(each.incomplete)
        yield f"left out, without all {each.units} {each.metric.noun}: {lacking}"
    if each.odd is not None and each.odd_pair:
        shortfall = number(each.odd.shortfall, digits=each.metric.digits)
        more = "more" if each.metric.better == "lower" else "less"
        yield (
            f"{visible(str(each.odd_pair))} is odd: {shortfall} "
            f"{each.metric.unit} {more} than its types explain"
        )


def _costs_phrase(each: Judged, types: Sequence[str], finding: AxisFinding) -> str:
    costs = [
        f"{visible(types[cost.index])} costs {_amount(cost.loss, each.metric)}"
        for cost in finding.costs
    ]
    unit = f" {each.metric.unit}" if each.metric.unit else ""
    named = f": {', '.join(costs)}{unit}"
    if not costs:
        coarser = visible(", ".join(types[finding.split :]))
        gap = _amount(finding.gap, each.metric)
        named = f": {coarser}, taken together, cost {gap}{unit} beside finer types"
    return f"{named} (n {finding.needles}, p {_p(finding.p)})"


def _amount(value: float, metric: Metric) -> str:
    """*value* with the decimals of *metric*; two digits where these are all 0."""
    digits = max(metric.digits, 2)
    return number(value, digits=digits) if round(value, digits) else f"{value:.2g}"


def _p(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.3f}"  # noqa: PLR2004 - as printed


def _least_phrase(each: Judged, axis: str) -> str:
    found = each.least.get(axis, {})
    parts = [
        f"{_amount(size, each.metric)}{'' if kind == 'shift' else f' {kind}'}"
        for kind, size in found.items()
        if math.isfinite(size)
    ]
    if not parts:
        return "; with so few, large effects can hide" if found else ""
    unit = f" {each.metric.unit}" if each.metric.unit else ""
    return f"; {', '.join(parts)}{unit} would have been found 9 times in 10"


def _undecided_certificates(found: Verdict) -> dict[Pair, Certificate]:
    """Of the pairs that may lose something, by what they answered."""
    return {
        each.pair: each.certificate
        for each in found.standings
        if each.certificate and each.certificate.verdict == UNDECIDED
        if found.word(each.pair) == UNDECIDED
    }


def _undecided(found: Verdict) -> Iterator[tuple[str, str]]:
    """Pairs that may lose functions: how many were lost, and what would decide it."""
    certificates = _undecided_certificates(found)
    if not certificates or found.certified is None:
        return
    every = list(certificates.values())
    line = (
        f"{named_pairs(list(certificates))}: {_span([each.lost for each in every])} of "
        f"{_span([each.needles for each in every])} {found.certified.noun} lost, so "
        f"the true share may be up to "
        f"{_span([round(100 * each.upper) for each in every])}%; "
        f"{_span([each.more for each in every])} more without a loss would make a pair "
        "free"
    )
    yield "undecided", line
    yield "to decide", settling(found)


def settling(found: Verdict) -> str:
    """
    The command that decides the undecided pair that needs least, with its time.

    A sentence where no command can; empty where nothing is undecided.
    """
    certificates = _undecided_certificates(found)
    probe = _deciding_probe(found)
    if not certificates or probe is None or probe.blocks is None:
        return ""
    pair = min(certificates, key=lambda each: (certificates[each].whole, str(each)))
    setup, whole = found.run.setup, certificates[pair].whole
    functions = setup.corpus.functions
    room = min(LIMIT, functions) if probe.name == RECALL else LIMIT
    if whole > room:
        noun, of = (
            ("functions", "a longer --corpus")
            if probe.name == RECALL
            else ("texts", "more --questions in a new folder")
        )
        return (
            f"{visible(str(pair))} takes {whole} {noun}, and a sweep asks {room} at "
            f"most: use {of}"
        )
    words = _here(found.run)
    at = words.index("--") if "--" in words else len(words)
    settle = ["--settle", str(pair)]
    if probe.name != RECALL or len(setup.probes) > 1:
        settle = ["--probe", probe.name, *settle]
    command = shlex.join(["codeneedle", "sweep", *words[:at], *settle, *words[at:]])
    if not setup.words:
        command = f"the command that made this run, with {shlex.join(settle)}"
    time = duration(_settling_s(found, pair, certificates[pair], probe))
    return visible(f"{command}   (about {time} if it loses nothing)")


def _deciding_probe(found: Verdict) -> Probe | None:
    """The probe of the metric behind the certificates."""
    name = found.certified.name if found.certified else ""
    return next(
        (
            probe
            for probe in PROBES.values()
            if name in {metric.name for metric in probe.metrics_of(found.run.setup)}
        ),
        None,
    )


def _here(run: Run) -> list[str]:
    """
    The words of the sweep of *run*, for the folder where it lies now.

    Without probes and shares: one probe settles a pair, and all of it.
    """
    words = _without(run.setup.words, {"--probe", "--shard", "--out"})
    if words and run.root not in {None, RUNS}:
        words[:0] = ["--out", str(run.root)]
    return words


def _without(words: Sequence[str], names: Container[str]) -> list[str]:
    """*words* without the options *names* and their values."""
    kept: list[str] = []
    skips = False
    for at, word in enumerate(words):
        if word == "--":
            return [*kept, *words[at:]]
        name, equals, _ = word.partition("=")
        if not skips and name in names:
            skips = not equals
        elif skips:
            skips = False
        else:
            kept.append(word)
    return kept


def _settling_s(
    found: Verdict, pair: Pair, certificate: Certificate, probe: Probe
) -> float:
    """Seconds that it takes to ask *pair* and the reference until it is decided."""
    total, setup, blocks = 0.0, found.run.setup, probe.blocks
    both = [
        record
        for record in found.run.records
        if record.probe == probe.name and record.has_numbers
        if record.pair in {pair, found.reference}
    ]
    if blocks is None or found.certified is None or not both:
        return total
    asked = [blocks.asked(each, setup, found.certified.name) for each in both]
    # A certificate does not count the texts of tasks that tell nothing.
    goal = min(asked) + certificate.whole - certificate.asked
    for record, units in zip(both, asked, strict=True):
        if units < goal:
            wanted = blocks.effort_for(probe.settings(), setup, goal - units)
            total += or_null(blocks.time_s(wanted, [record])) or 0.0
    return total


def _span(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low} to {high}"


_SIZE_WORDS = {
    "top1": "tokens with another first choice, of a hundred",
    "copy-ppl": "perplexity of a copy",
    "copy-top1": "tokens of a copy with another first choice, of a hundred",
    "recall-right": "right tokens that were the first choice, of a hundred",
}
"""What the metrics of `SIZES` say; of those with another first choice, 100 less."""

SIZED_PAIRS = 4
"""Pairs of the front whose sizes are named: the largest, the smallest, and between."""


def _size_lines(found: Verdict) -> Iterator[str]:
    """What the pairs of the front cost, in sizes that people understand."""
    front = [each for each in found.standings if each.is_on_front]
    front.sort(key=lambda each: -(each.memory or 0.0))
    others = [each for each in front if each.pair != found.reference]
    step = max(1, math.ceil(len(others) / SIZED_PAIRS))
    chosen = others[::-step][::-1]
    for name, words in _SIZE_WORDS.items():
        is_change = name.endswith("top1")
        both = [*(e for e in found.standings if e.pair == found.reference), *chosen]
        values = [
            f"{visible(str(each.pair))} "
            f"{number(abs(100 * is_change - each.sizes[name]), digits=2)}"
            for each in (chosen if is_change else both)
            if name in each.sizes
        ]
        if values:
            yield f"{words}: {', '.join(values)}"


def _troubles(found: Verdict) -> Iterator[str]:
    by_reason: dict[str, list[Pair]] = {}
    for each in found.standings:
        if each.trouble:
            by_reason.setdefault(each.trouble, []).append(each.pair)
    for reason, pairs in by_reason.items():
        yield f"{named_pairs(pairs)}: {reason}"


def front_rows(found: Verdict) -> list[list[str]]:
    """A heading of what has values, and a row for each pair that no other beats."""
    chosen = {found.ranking, found.certified.name if found.certified else ""}
    metrics = [each.metric for each in found.judged if each.metric.name in chosen]
    front = [each for each in found.standings if each.is_on_front]
    columns = {
        "K/V": [visible(str(each.pair)) for each in front],
        "memory": [_percent(each.memory) for each in front],
        "speed": [_percent(each.speed) for each in front],
        **{
            f"loss of {metric.name}": [_loss_text(each, metric) for each in front]
            for metric in metrics
        },
        "lost": [_lost_text(each) for each in front],
        "verdict": [
            "reference"
            if each.pair == found.reference
            else found.word(each.pair) or captions.NO_VALUE_WORD
            for each in front
        ],
    }
    empty = {captions.NO_VALUE_WORD}
    told = {name: cells for name, cells in columns.items() if {*cells} != empty}
    return [[*told], *map(list, zip(*told.values(), strict=True))]


def _front_table(found: Verdict) -> Table:
    heading, *rows = front_rows(found)
    table = captions.text_table(heading, rows, words={"K/V": 0})
    table.title, table.title_style = "No other pair beats these:", ""
    table.title_justify = "left"
    return table


def _percent(share: float | None) -> str:
    return captions.NO_VALUE_WORD if share is None else f"{share:.0%}"


def _loss_text(each: Standing, metric: Metric) -> str:
    loss, half = each.losses.get(metric.name, (math.nan, math.inf))
    text = number(loss, digits=metric.digits)
    return text + f" +/- {number(half, digits=metric.digits)}" * math.isfinite(half)


def _lost_text(each: Standing) -> str:
    if each.certificate is None:
        return captions.NO_VALUE_WORD
    return f"{each.certificate.lost} of {each.certificate.needles}"


def verdict_markdown(found: Verdict, spell: Spell) -> str:
    """The verdict as GitHub renders it."""
    parts = [
        f"### {plain(found.run.name)}: verdict\n",
        f"**{plain(headline(found, spell))}**\n",
    ]
    parts += [
        f"- {plain(word)}: {plain(line)}" for word, line in statements(found, spell)
    ]
    if any(each.is_on_front for each in found.standings):
        parts += ["", table_lines(front_rows(found))]
    parts += [
        f"- {plain(word)}: {plain(line)}" for word, line in captions.facts(found.run)
    ]
    return "\n".join(parts) + "\n"


def verdict_json(found: Sequence[Verdict], asks_for: Callable[[str], Spell]) -> str:
    """
    A list of verdicts; null where there is no number. *asks_for* spells pairs in the
    words of an engine.

    Keys: ``run``, ``headline``, ``reference``, ``is_instrument``, ``certified``,
    ``ranking``, ``advice`` (``goal``, ``k``, ``v``, ``reason``, ``is_shown``),
    ``metrics`` (``name``, ``unit``, ``noun``, ``units``, ``reference``, ``silent``,
    ``incomplete``, ``odd``, ``odd_shortfall``, ``axes``: per axis ``p``, ``alpha``,
    ``units``, ``matters``, ``coarser``, ``gap``, ``costs`` and ``least``), ``pairs``
    (``k``, ``v``, ``verdict``, ``memory``, ``speed``, ``is_on_front``, ``trouble``,
    ``seen``, ``losses``, ``sizes`` and ``certificate``: ``verdict``, ``lost``, ``of``,
    ``upper``, ``more``), ``to_decide`` (a command, or why there is none; null where
    nothing is undecided), ``findings`` (pairs on which copies and forced recall
    disagree: ``k``, ``v``, and what ``copy_logp`` and ``recall_logp`` differ from the
    reference, in nats) and ``facts`` (what it was measured on, a phrase by word).
    """
    return json_text(
        [_verdict_object(each, asks_for(each.run.setup.engine)) for each in found]
    )


def _verdict_object(found: Verdict, spell: Spell) -> dict[str, Any]:
    return {
        "run": found.run.name,
        "headline": headline(found, spell),
        "reference": str(found.reference) if found.reference else None,
        "is_instrument": found.run.setup.weights.name == BUILT_IN,
        "certified": found.certified.name if found.certified else None,
        "ranking": found.ranking or None,
        "advice": [
            {
                **_sides(each.pair),
                "goal": each.goal,
                "reason": each.reason,
                "is_shown": each.is_shown,
            }
            for each in found.advice
        ],
        "metrics": [_judged_object(each) for each in found.judged],
        "pairs": [
            {**_standing_object(each), "verdict": found.word(each.pair)}
            for each in found.standings
        ],
        "to_decide": settling(found) or None,
        "findings": [
            {**_sides(pair), "copy_logp": copied, "recall_logp": recalled}
            for pair, (copied, recalled) in copies.disagreements(found.run).items()
        ],
        "facts": dict(captions.facts(found.run)),
    }


def _sides(pair: Pair | None) -> dict[str, str | None]:
    return {"k": pair.k if pair else None, "v": pair.v if pair else None}


def _judged_object(each: Judged) -> dict[str, Any]:
    findings = zip(AXES, each.types, each.axes, strict=False)
    return {
        "name": each.metric.name,
        "unit": each.metric.unit,
        "noun": each.metric.noun,
        "units": each.units,
        "reference": or_null(each.reference),
        "silent": each.silent,
        "incomplete": [str(pair) for pair in each.incomplete],
        "odd": str(each.odd_pair) if each.odd_pair else None,
        "odd_shortfall": each.odd.shortfall if each.odd else None,
        "axes": {
            axis: {
                "p": or_null(finding.p),
                "alpha": finding.alpha,
                "units": finding.needles,
                "matters": finding.matters,
                "coarser": list(types[finding.split :]) if finding.matters else [],
                "gap": finding.gap if finding.matters else None,
                "costs": {types[cost.index]: cost.loss for cost in finding.costs},
                "least": {
                    kind: or_null(size)
                    for kind, size in each.least.get(axis, {}).items()
                },
            }
            for axis, types, finding in findings
        },
    }


def _standing_object(each: Standing) -> dict[str, Any]:
    certificate = each.certificate
    return {
        **_sides(each.pair),
        "memory": each.memory,
        "speed": each.speed,
        "is_on_front": each.is_on_front,
        "trouble": each.trouble,
        "seen": list(each.seen),
        "sizes": dict(each.sizes),
        "losses": {
            name: {"mean": or_null(mean), "half_width": or_null(half)}
            for name, (mean, half) in each.losses.items()
        },
        "certificate": None
        if certificate is None
        else {
            "verdict": certificate.verdict,
            "lost": certificate.lost,
            "of": certificate.needles,
            "upper": certificate.upper,
            "more": certificate.more,
        },
    }
