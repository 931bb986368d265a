"""
Receipts: a run as at most 20 KB of text to pass on, which is parsed, and refused if it
was changed or cut; and several of them side by side.

A receipt has a line of setup and a row for each pair: names, versions, numbers and
words as reports show them, and no text, reply or path.
"""

import hashlib
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from codeneedle.cache_types import Pair, most_precise_first
from codeneedle.document import Document, Facts, Heading, Lines, Table
from codeneedle.errors import BadInput
from codeneedle.probes import PROBES
from codeneedle.records.record import CellRecord, Effective, Json, Run, Setup
from codeneedle.report.compare import WALL
from codeneedle.report.display import display_of
from codeneedle.report.shown import (
    ERROR,
    KERNEL_WORDS,
    NOT_RUN_WORD,
    Shown,
    legend,
    parse_marks,
    shown_value,
    unit_count_mark,
)
from codeneedle.report.table import Column, PairTable, pair_table
from codeneedle.text import NO_VALUE_WORD, escape_invisible, plural
from codeneedle.verdict.judge import Verdict, judge
from codeneedle.verdict.metric_phrases import units_phrase
from codeneedle.verdict.metric_results import MetricResult

VERSION = 3
"""Of the layout of a receipt."""

TITLE = "codeneedle receipt"
"""With the version, how a receipt begins."""

MOST_BYTES = 20_000
"""Of a receipt; the body of an issue holds 64 KB."""

TEXT_BYTES = 1 << 20
"""Most bytes of a text that is searched for receipts."""

MOST_RECEIPTS = 32
"""More are no table that can be read."""

ALWAYS = ("model", "engine", "context", "limit")
"""Facts that each receipt has."""

SUM = "sum"
"""The last fact of a printed receipt: a sum of all else that it says."""

PAIR = "K/V"
"""Heading of the pairs."""

ATTENTION = "attention"
"""Heading of where attention ran, in words."""

_START = re.compile(rf"{TITLE} (\d{{1,9}}): ")


@dataclass(frozen=True, slots=True)
class Receipt:
    """A run to pass on."""

    facts: Mapping[str, str]
    """What decides the numbers, by a word each: model, engine, text ..."""

    columns: tuple[str, ...]  # headings of the numbers and words of a pair
    rows: Mapping[Pair, tuple[str, ...]]  # these of each pair, as reports show them

    @property
    def pair_texts_but_attention(self) -> Iterator[tuple[Pair, str]]:
        """Each pair with its text in a column, but for where attention ran."""
        for pair, row in self.rows.items():
            for column, text in zip(self.columns, row, strict=True):
                if column != ATTENTION:
                    yield pair, text

    def text(self) -> str:
        """The receipt as it is printed."""
        known = {**self.facts, SUM: self.content_digest}
        facts = "; ".join(f"{word} {fact}" for word, fact in known.items())
        lines = self._heading_and_rows()
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        rows = (" | ".join(map(str.ljust, line, widths)).rstrip() for line in lines)
        return "\n".join([f"{TITLE} {VERSION}: {facts}", *rows, ""])

    @property
    def content_digest(self) -> str:
        """A digest of all facts and rows: what was changed has another one."""
        return _facts_digest([dict(self.facts), self._heading_and_rows()])

    def _heading_and_rows(self) -> list[tuple[str, ...]]:
        """Heading and rows, the pair in front."""
        rows = ((escape_invisible(str(pair)), *row) for pair, row in self.rows.items())
        return [(PAIR, *self.columns), *rows]


# --- a run as a receipt


def receipt_of(run: Run) -> Receipt:
    """
    *run* as a receipt.

    The last columns are left out, and named, as long as it is longer than `MOST_BYTES`.
    """
    verdict = judge(run)
    table = pair_table(run, tuple(PROBES.values()))
    cells = {
        **dict(_verdict_column_if_any(table, verdict)),
        **dict(_loss_columns(table, verdict)),
        **dict(_attention_column_if_any(table)),
        **dict(_metric_columns(table)),
    }
    left_out: list[str] = []
    while True:
        facts = dict(_facts(verdict, left_out))
        receipt = Receipt(
            facts={word: _field_text(fact) for word, fact in facts.items() if fact},
            columns=tuple(map(_field_text, cells)),
            rows={
                pair: tuple(_field_text(column[at]) for column in cells.values())
                for at, pair in enumerate(table.pairs)
            },
        )
        if len(receipt.text().encode()) <= MOST_BYTES or not cells:
            return receipt
        left_out.insert(0, cells.popitem()[0])


def receipt_markdown(run: Run) -> str:
    """The receipt of *run* as GitHub shows text that is to stay as it is."""
    return f"~~~text\n{receipt_of(run).text()}~~~\n"


def _field_text(text: str) -> str:
    """*text* without what separates fields, on one line."""
    return escape_invisible(text).replace("; ", ", ").replace("|", "/").strip()


def _facts(verdict: Verdict, left_out: Sequence[str]) -> Iterator[tuple[str, str]]:
    """
    What decides the numbers of a run, a word and a phrase each.

    A phrase is empty where there is nothing to say.
    """
    setup = verdict.run.setup
    weights, corpus = setup.weights, setup.corpus
    known = filter(None, [setup.architecture, setup.quant, weights.sha256[:8]])
    yield "model", f"{_name_without_folders(weights.name)} ({', '.join(known)})"
    yield "engine", f"{setup.engine} {setup.llama.removeprefix(f'{setup.engine} ')}"
    yield "arguments", _facts_digest(setup.server_args) if setup.server_args else ""
    yield "rotation", "" if setup.rotation else "off"
    yield "backend", _backend_phrase(verdict.run.records)
    yield "machine", setup.machine
    yield "features", setup.cpu_features
    tokens = plural(corpus.tokens, "token")
    text = f"{_name_without_folders(corpus.name)} ({tokens}, {corpus.sha256[:8]})"
    yield "text", text if corpus.is_counted else ""
    yield "context", plural(setup.context, "token")
    yield "prompt", f"{setup.prompt_form}, version {_wording_version(setup)}"
    yield "seed", str(setup.seed)
    for name, stored in setup.probes.items():
        told = PROBES[name].deciding_settings(setup) if name in PROBES else stored
        yield name, _settings_phrase(told)
    yield "date", setup.created.partition("T")[0]
    yield "reference", str(verdict.reference or "none")
    yield "limit", f"{100 * verdict.limits.max_loss:g} %"
    yield "without", ", ".join(left_out)


def _wording_version(setup: Setup) -> int:
    """The latest version of how a probe words its questions; the first if none does."""
    stored = (settings.get("wording") for settings in setup.probes.values())
    return max((version for version in stored if isinstance(version, int)), default=1)


def _backend_phrase(records: Iterable[CellRecord]) -> str:
    """``CUDA0, 33 of 33 layers, flash attention enabled``: each way that cells ran."""
    ways = (
        _cell_backend_phrase(record.effective)
        for record in records
        if record.has_numbers
    )
    return " or ".join(filter(None, dict.fromkeys(ways)))


def _cell_backend_phrase(effective: Effective) -> str:
    """Devices, layers and flash attention of one cell, as far as known."""
    layers = f"{effective.offloaded_layers} of {effective.total_layers} layers"
    flash = f"flash attention {effective.flash_attention}"
    return ", ".join(
        [
            *effective.devices,
            *([layers] if effective.offloaded_layers is not None else []),
            *([flash] if effective.flash_attention else []),
        ]
    )


_NAMES = {"text", "llama"}
"""Settings whose facts stand elsewhere."""


def _settings_phrase(told: Json) -> str:
    """Settings that are numbers, and a digest of all: texts may be the user's own."""
    stated = {key: value for key, value in told.items() if key not in _NAMES}
    numbers = {
        key: value if isinstance(value, list) else [value]
        for key, value in stated.items()
    }
    phrases = [
        f"{key.replace('_', ' ')} {' '.join(f'{value:g}' for value in values)}"
        for key, values in numbers.items()
        if values and all(isinstance(value, int | float) for value in values)
    ]
    return ", ".join([*phrases, f"digest {_facts_digest(stated)}"])


def _facts_digest(facts: object) -> str:
    data = msgspec.json.encode(facts, order="sorted")
    return hashlib.sha256(data).hexdigest()[:8]


def _verdict_column_if_any(
    table: PairTable, verdict: Verdict
) -> Iterator[tuple[str, list[str]]]:
    """What the verdict says, if it says anything."""
    words = {pair: verdict.decision(pair) for pair in table.pairs}
    if any(words.values()):
        words |= {pair: "reference" for pair in words if pair == verdict.reference}
        yield "verdict", list(words.values())


def _loss_columns(
    table: PairTable, verdict: Verdict
) -> Iterator[tuple[str, list[str]]]:
    """The loss by each metric of the verdict, with its interval."""
    results = [verdict.result(pair) for pair in table.pairs]
    rows = [row for result in results if result for row in result.metric_results]
    for name in dict.fromkeys(row.metric.name for row in rows):
        found = [result.metric_result(name) if result else None for result in results]
        yield f"{_LOSS}{name}", [_loss_text(verdict, row) for row in found]


def _loss_text(verdict: Verdict, row: MetricResult | None) -> str:
    """``0.5 % (-0.2 % to 1.1 %), 20 functions``; empty where nothing is compared."""
    if row is None:
        return ""
    ends = (row.bounds.mean, row.bounds.low, row.bounds.high)
    mean, low, high = (
        verdict.limits.loss_amount_text(row.kind, end)
        if math.isfinite(end)
        else NO_VALUE_WORD
        for end in ends
    )
    return f"{mean} ({low} to {high}), {units_phrase(row)}"


def _attention_column_if_any(table: PairTable) -> Iterator[tuple[str, list[str]]]:
    """Where attention ran, if anything tells: ``kernel``, ``cpu``, ``f16``."""
    places: dict[Pair, str] = {}
    for (pair, _), record in table.records.items():
        if record.has_numbers and record.attention:
            places.setdefault(pair, KERNEL_WORDS[record.attention])
    if places:
        yield ATTENTION, [places.get(pair, "") for pair in table.pairs]


def _metric_columns(table: PairTable) -> Iterator[tuple[str, list[str]]]:
    """The columns of metrics that have values, and that tables or comparisons show."""
    for column in table.columns:
        if column.has_values and (column.is_shown or display_of(column.metric).is_kept):
            heading = f"{column.metric.name} {column.metric.unit}".rstrip()
            yield heading, [_cell_value_text(column, pair) for pair in table.pairs]


def _cell_value_text(column: Column, pair: Pair) -> str:
    """``0.98 ± 0.01 cpu``: value, standard error, and where attention ran."""
    cell, usual = column.cell(pair), display_of(column.metric)
    value = shown_value(cell, replace(usual, shows_error=True))
    count = unit_count_mark(cell).sign if cell.has_value and cell.left_out else ""
    text = value.text.replace(ERROR.sign, f" {ERROR.sign} ")
    return " ".join(filter(None, (text, count)))


def _name_without_folders(name: str) -> str:
    """A name without the folders of its path."""
    return name.rpartition("/")[2]


# --- receipts out of texts


def is_file_or_stdin(name: str) -> bool:
    """Whether *name* is a text, not a run; ``-`` is standard input."""
    path = Path(name)
    return name == "-" or (path.exists() and not path.is_dir())


def read_or_make_receipts(
    names: Sequence[str], run_named: Callable[[str], Run]
) -> list[Receipt]:
    """
    The receipts in texts among *names*, and those of the runs among them, each once.

    Raises:
        BadInput: If a text cannot be read, is too long or has no receipt, if one is
            damaged or of another version, and if there are too many.
    """
    found: list[Receipt] = []
    for name in names:
        if is_file_or_stdin(name):
            in_text = list(parse_receipts(read_text_or_stdin(name), source=name))
            if not in_text:
                raise BadInput(
                    source=name,
                    reason="there is no receipt in it",
                    hint=f"A receipt begins with '{TITLE} {VERSION}:' and is printed "
                    "by: codeneedle receipt NAME",
                )
            found += in_text
        else:
            found.append(receipt_of(run_named(name)))
    distinct = [
        receipt for at, receipt in enumerate(found) if receipt not in found[:at]
    ]
    if len(distinct) > MOST_RECEIPTS:
        raise BadInput(
            source=f"{len(distinct)} receipts",
            reason=f"are more than the {MOST_RECEIPTS} that can stand side by side",
            hint="Name fewer texts or runs.",
        )
    return distinct


def read_text_or_stdin(name: str) -> str:
    """
    The text of a file; ``-`` is standard input.

    Raises:
        BadInput: If it cannot be read, or is too long.
    """
    try:
        if name == "-":
            data = sys.stdin.buffer.read(TEXT_BYTES + 1)
        else:
            with Path(name).open("rb") as file:
                data = file.read(TEXT_BYTES + 1)
    except OSError as error:
        reason = f"cannot be read: {error.strerror}"
        hint = "Name a file with the text of an issue or a gist."
        raise BadInput(source=name, reason=reason, hint=hint) from error
    if len(data) > TEXT_BYTES:
        raise BadInput(
            source=name,
            reason=f"has more than {TEXT_BYTES >> 20} MiB",
            hint="Copy the receipts into a file of their own.",
        )
    return data.decode("utf-8", errors="replace")


def parse_receipts(text: str, *, source: str) -> Iterator[Receipt]:
    """
    Every receipt of *text*; what stands around them is ignored.

    What stands before the first line of a receipt, as ``> `` in a quotation, stands
    before its other lines, too.

    Raises:
        BadInput: At the first that cannot be used, naming its line in *source*.
    """
    lines = [line.rstrip() for line in text.split("\n")]
    for at, line in enumerate(lines):
        if start := _START.search(line):
            place = f"{source}, line {at + 1}"
            if int(start[1]) != VERSION:
                raise BadInput(
                    source=place,
                    reason=f"the receipt has version {start[1]}, {VERSION} is known",
                    hint="Use the version of codeneedle that printed it.",
                )
            quoted = line[: start.start()]
            rows = []
            for table_line in lines[at + 1 :]:
                if not table_line.startswith(quoted) or "|" not in table_line:
                    break
                rows.append(
                    [part.strip() for part in table_line[len(quoted) :].split("|")]
                )
            yield _parse_receipt(line[start.end() :], rows, place=place)


def _parse_receipt(facts: str, rows: Sequence[Sequence[str]], *, place: str) -> Receipt:
    """
    The receipt of a first line and its *rows*.

    Refuses one that is cut or changed.
    """
    heading, *lines = rows or [[""]]
    pairs = [
        Pair(*pair) for row in lines if len(pair := row[0].split("/")) == len("KV")
    ]
    reason = ""
    if heading[0] != PAIR or not lines:
        reason = f"no rows below it, of which the first begins with {PAIR}"
    elif any(len(row) != len(heading) for row in lines):
        reason = f"rows without the {len(heading)} columns of its heading"
    elif len({*pairs}) < len(lines) or len({*heading}) < len(heading):
        reason = "rows that are no pairs, or a pair or a column twice"
    if reason:
        raise BadInput(
            source=place,
            reason=f"the receipt has {reason}",
            hint="Copy it again, all of its lines as they were printed.",
        )
    parts = (fact.strip().partition(" ") for fact in facts.split("; "))
    known = {word: fact for word, _, fact in parts}
    missing = [word for word in ALWAYS if not known.get(word)]
    if missing:
        raise BadInput(
            source=place,
            reason=f"the first line of the receipt has no {missing[0]}: it is cut",
            hint="Copy it again, the whole line as it was printed.",
        )
    stated = known.pop(SUM, "")
    receipt = Receipt(
        facts=known,
        columns=tuple(heading[1:]),
        rows=dict(zip(pairs, (tuple(row[1:]) for row in lines), strict=True)),
    )
    if stated != receipt.content_digest:
        raise BadInput(
            source=place,
            reason="the receipt does not have the sum that its first line states: it "
            "was changed, or lines of it are missing",
            hint="Copy it again, all of its lines as they were printed.",
        )
    return receipt


# --- side by side

NOT_TESTED = (
    "Nothing is tested here: receipts have no answers to pair. For a test name the run "
    "folders: codeneedle compare A B"
)


def receipts_document(receipts: Sequence[Receipt]) -> Document:
    """The setups of *receipts*, and a table for each of their columns."""
    numbered = {str(at): receipt for at, receipt in enumerate(receipts, 1)}
    yield Heading(plural(len(receipts), "receipt"))
    words = dict.fromkeys(word for receipt in receipts for word in receipt.facts)
    setups = [[w, *(receipt.facts.get(w, "") for receipt in receipts)] for w in words]
    yield Table(["setup", *numbered], setups, words={"setup", *numbered})
    for column in dict.fromkeys(
        name for receipt in receipts for name in receipt.columns
    ):
        having = {
            at: receipt for at, receipt in numbered.items() if column in receipt.columns
        }
        for group in _comparable_groups(column, having):
            yield Heading(column)
            yield _table_of_column(column, group)
    texts = (
        (pair, text)
        for receipt in receipts
        for pair, text in receipt.pair_texts_but_attention
    )
    yield Facts(receipt_legend(texts))
    of_distance = [e for e in receipts if any(map(is_divergence, e.columns))]
    lines = (
        [NOT_TESTED, WALL]
        if len({*map(_divergence_base_facts, of_distance)}) > 1
        else [NOT_TESTED]
    )
    yield Lines(lines)


_DISTANCES = {
    metric.name
    for probe in PROBES.values()
    for metric in probe.metrics
    if metric.is_distance
}


_GRADED = {
    metric.name
    for probe in PROBES.values()
    for metric in probe.metrics
    if metric.loss and metric.loss.kind.is_of_right_tokens
} | {probe.further.metric for probe in PROBES.values() if probe.further}

_LOSS = "loss by "


def _metric_name_of_column(column: str) -> str:
    """Name of the metric of *column*, or of the loss by it."""
    return column.removeprefix(_LOSS).partition(" ")[0].partition("@")[0]


def is_loss(column: str) -> bool:
    """Whether *column* is a loss, of whatever kind."""
    return column.startswith(_LOSS)


def is_divergence(column: str) -> bool:
    """Whether *column* is a divergence, or a loss by one."""
    return _metric_name_of_column(column) in _DISTANCES


def is_right_tokens_loss(column: str) -> bool:
    """Whether *column* is a loss that is a share of right tokens."""
    return is_loss(column) and _metric_name_of_column(column) in _GRADED


def probe_name_of_column(column: str) -> str:
    """Name of the probe that has the metric of *column*, or begins it; else empty."""
    name = _metric_name_of_column(column)
    for probe in PROBES.values():
        names = {metric.name for metric in probe.metrics}
        if name and (name in names or name.startswith(probe.name)):
            return probe.name
    return ""


def _divergence_base_facts(receipt: Receipt) -> tuple[str, ...]:
    """Facts that two divergences must share to stand in one table."""
    return tuple(receipt.facts.get(word, "") for word in ("engine", "features"))


def _comparable_groups(
    column: str, receipts: Mapping[str, Receipt]
) -> Iterator[Mapping[str, Receipt]]:
    """Groups of *receipts* that may stand in one table; divergences share a base."""
    if not is_divergence(column):
        yield receipts
        return
    for base in dict.fromkeys(map(_divergence_base_facts, receipts.values())):
        yield {
            at: receipt
            for at, receipt in receipts.items()
            if _divergence_base_facts(receipt) == base
        }


def _table_of_column(column: str, receipts: Mapping[str, Receipt]) -> Table:
    """A row for each pair, a column for each receipt; a dot where it was not run."""
    pairs = most_precise_first(
        {pair for receipt in receipts.values() for pair in receipt.rows}
    )
    at = [receipt.columns.index(column) for receipt in receipts.values()]
    rows = [
        [
            str(pair),
            *(
                receipt.rows[pair][place] if pair in receipt.rows else NOT_RUN_WORD
                for place, receipt in zip(at, receipts.values(), strict=True)
            ),
        ]
        for pair in pairs
    ]
    return Table([PAIR, *receipts], rows, words={PAIR})


def receipt_legend(texts: Iterable[tuple[Pair, str]]) -> list[tuple[str, str]]:
    """What the marks in *texts* of pairs mean."""
    return legend(
        Shown(pair=pair, text=text, marks=tuple(parse_marks(text)))
        for pair, text in texts
    )


def receipt_objects(receipts: Sequence[Receipt]) -> list[dict[str, Any]]:
    """For each receipt ``setup`` and ``pairs``, with the texts of their columns."""
    return [
        {
            "setup": dict(receipt.facts),
            "pairs": [
                {
                    "k": pair.k,
                    "v": pair.v,
                    **dict(zip(receipt.columns, row, strict=True)),
                }
                for pair, row in receipt.rows.items()
            ],
        }
        for receipt in receipts
    ]
