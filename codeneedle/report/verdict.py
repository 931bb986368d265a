"""The verdict on a run, for people: what to set, what was shown, and what was not."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from codeneedle.analysis.metrics import Metric
from codeneedle.analysis.verdict import AxisFinding
from codeneedle.grid import Pair
from codeneedle.models.pretrained import BUILT_IN
from codeneedle.probes import copies
from codeneedle.report import captions
from codeneedle.report.captions import named_pairs, number
from codeneedle.report.export import json_text, or_null, plain, table_lines
from codeneedle.report.judgement import AXES, Advice, Judged, Standing, Verdict
from codeneedle.text import visible

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
        entries += [(each.metric.name, line) for line in _judged_lines(each)]
    entries += _undecided(found)
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


def _judged_lines(each: Judged) -> Iterator[str]:
    """What one metric says of K and of V."""
    if each.silent:
        yield f"has no say: {each.silent}" if "itself" in each.silent else each.silent
        return
    for axis, types, finding in zip(AXES, each.types, each.axes, strict=True):
        if math.isnan(finding.p):
            yield f"{axis} was not tested: fewer than two types without gaps"
        elif finding.matters:
            yield f"{axis} matters{_costs_phrase(each, types, finding)}"
        else:
            yield f"{axis}: nothing found{_least_phrase(each, axis)}"
    if each.odd is not None and each.odd_pair:
        shortfall = number(each.odd.shortfall, digits=each.metric.digits)
        yield (
            f"{visible(str(each.odd_pair))} is odd: {shortfall} "
            f"{each.metric.unit} less than its types explain"
        )


def _costs_phrase(each: Judged, types: Sequence[str], finding: AxisFinding) -> str:
    costs = [
        f"{visible(types[cost.index])} costs {_amount(cost.loss, each.metric)}"
        for cost in finding.costs
    ]
    unit = f" {each.metric.unit}" if each.metric.unit else ""
    named = f": {', '.join(costs)}{unit}" if costs else ", but no single type is shown"
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


def _undecided(found: Verdict) -> Iterator[tuple[str, str]]:
    open_pairs = [
        (each.pair, each.certificate)
        for each in found.standings
        if each.certificate and each.certificate.verdict == "undecided"
    ]
    if not open_pairs:
        return
    more = [certificate.more for _, certificate in open_pairs]
    spread = f"{min(more)}" if min(more) == max(more) else f"{min(more)} to {max(more)}"
    pairs = named_pairs([pair for pair, _ in open_pairs])
    yield (
        "undecided",
        f"{pairs}: whether they lose functions; {spread} more functions each decide it",
    )


def _troubles(found: Verdict) -> Iterator[str]:
    by_reason: dict[str, list[Pair]] = {}
    for each in found.standings:
        if each.trouble:
            by_reason.setdefault(each.trouble, []).append(each.pair)
    for reason, pairs in by_reason.items():
        yield f"{named_pairs(pairs)}: {reason}"


def front_rows(found: Verdict) -> list[list[str]]:
    """A heading, and a row for each pair that no other one beats."""
    names = list(
        dict.fromkeys(name for each in found.standings for name in each.losses)
    )
    digits = {each.metric.name: each.metric.digits for each in found.judged}
    heading = ["K/V", "memory", "speed", *(f"loss of {name}" for name in names), "lost"]
    rows = [
        [
            visible(str(each.pair)),
            _percent(each.memory),
            _percent(each.speed),
            *(_loss_text(each, name, digits[name] + 1) for name in names),
            _lost_text(each),
        ]
        for each in found.standings
        if each.is_on_front
    ]
    return [heading, *rows]


def _front_table(found: Verdict) -> Table:
    heading, *rows = front_rows(found)
    table = Table(
        box=None,
        padding=(0, 2, 0, 0),
        header_style="bold",
        title_justify="left",
        title="No other pair beats these in loss, memory and speed:",
        title_style="",
    )
    for at, word in enumerate(heading):
        table.add_column(word, justify="right" if at else "left")
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def _percent(share: float | None) -> str:
    return captions.NO_VALUE_WORD if share is None else f"{share:.0%}"


def _loss_text(each: Standing, name: str, digits: int) -> str:
    if name not in each.losses:
        return captions.NO_VALUE_WORD
    loss, half = each.losses[name]
    if not math.isfinite(half):
        return number(loss, digits=digits)
    return f"{number(loss, digits=digits)} +/- {number(half, digits=digits)}"


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


def verdict_json(found: Sequence[Verdict]) -> str:
    """
    A list of verdicts; null where there is no number.

    Keys: ``run``, ``reference``, ``is_instrument``, ``advice`` (``goal``, ``k``,
    ``v``, ``reason``), ``metrics`` (``name``, ``unit``, ``units``, ``reference``,
    ``silent``, ``odd``, ``axes``: per axis ``p``, ``alpha``, ``matters``, ``costs``
    and ``least``), ``pairs`` (``k``, ``v``, ``memory``, ``speed``, ``is_on_front``,
    ``trouble``, ``losses`` and ``certificate``).
    """
    return json_text([_verdict_object(each) for each in found])


def _verdict_object(found: Verdict) -> dict[str, Any]:
    return {
        "run": found.run.name,
        "reference": str(found.reference) if found.reference else None,
        "is_instrument": found.run.setup.weights.name == BUILT_IN,
        "certified": found.certified.name if found.certified else None,
        "advice": [
            {**_sides(each.pair), "goal": each.goal, "reason": each.reason}
            for each in found.advice
        ],
        "metrics": [_judged_object(each) for each in found.judged],
        "pairs": [_standing_object(each) for each in found.standings],
    }


def _sides(pair: Pair | None) -> dict[str, str | None]:
    return {"k": pair.k if pair else None, "v": pair.v if pair else None}


def _judged_object(each: Judged) -> dict[str, Any]:
    findings = zip(AXES, each.types, each.axes, strict=False)
    return {
        "name": each.metric.name,
        "unit": each.metric.unit,
        "units": each.units,
        "reference": or_null(each.reference),
        "silent": each.silent,
        "odd": str(each.odd_pair) if each.odd_pair else None,
        "axes": {
            axis: {
                "p": or_null(finding.p),
                "alpha": finding.alpha,
                "matters": finding.matters,
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
