"""
The table of models: receipts of many people, by model, then by pair, and which of their
numbers can be compared.

Rows stand beside each other as their receipts have them; none is averaged or tested.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from codeneedle.cache_types import most_precise_first
from codeneedle.document import Block, Document, Facts, Heading, Lines, Table
from codeneedle.errors import BadInput
from codeneedle.report.receipt import (
    MOST_RECEIPTS,
    PAIR,
    TITLE,
    Receipt,
    is_divergence,
    is_loss,
    is_right_tokens_loss,
    parse_receipts,
    probe_name_of_column,
    read_text_or_stdin,
    receipt_legend,
    receipt_objects,
)
from codeneedle.text import plural

SHIPPED = Path(__file__).parent / "rows"
"""Receipts in the wheel; those of a checkout stand in docs/models."""

CHECKOUT = Path(__file__).parents[2] / "docs" / "models"

SUFFIX = ".md"
"""Of the files of a folder of receipts."""


_HASH = re.compile(r"[( ]([0-9a-f]{8})\)$")
"""How a model ends whose weights are known."""


@dataclass(frozen=True, slots=True)
class ModelRow:
    """A receipt in the table."""

    name: str  # of its file
    note: str  # what stands before it in the file, on one line; may be empty
    receipt: Receipt

    @property
    def weights_hash_or_name(self) -> str:
        """What tells models apart: the hash of the weights, or else all of the name."""
        model = self.receipt.facts.get("model", "")
        found = _HASH.search(model)
        return found[1] if found else model


def read_shipped_rows() -> list[ModelRow]:
    """The rows that come with the program."""
    return read_rows_from(SHIPPED if SHIPPED.is_dir() else CHECKOUT)


def read_rows_from(place: Path) -> list[ModelRow]:
    """
    The receipts of a file (``-``: standard input) or of a folder's files, by name.

    Raises:
        BadInput: If a file cannot be read, has no receipt or a damaged one.
    """
    files = sorted(place.glob(f"*{SUFFIX}")) if place.is_dir() else [place]
    return [row for file in files for row in _read_rows_of_file(file)]


def _read_rows_of_file(file: Path) -> Iterator[ModelRow]:
    """The receipts of *file*, numbered if several; refuses a file without one."""
    text = read_text_or_stdin(str(file))
    found = list(parse_receipts(text, source=str(file)))
    if not found:
        raise BadInput(
            source=file,
            reason="there is no receipt in it",
            hint="Paste there what 'codeneedle sweep row' or 'codeneedle receipt NAME' "
            "prints.",
        )
    for at, receipt in enumerate(found):
        number = f" ({at + 1})" if found[1:] else ""
        yield ModelRow(f"{file.stem}{number}", _leading_note(text), receipt)


NOTE_CHARACTERS = 500
"""More of a note is left out."""


def _leading_note(text: str) -> str:
    """
    The sentences before the first receipt, without headings and fences.

    At most `NOTE_CHARACTERS`, on one line.
    """
    lines = text.partition(TITLE)[0].splitlines()
    words = " ".join(line for line in lines if line[:1] not in {"#", "~", "`"})
    return " ".join(words.split())[:NOTE_CHARACTERS]


def with_rows_of_same_weights(
    rows: Sequence[ModelRow], others: Sequence[ModelRow]
) -> list[ModelRow]:
    """*rows*, then those of *others* of the same weights whose receipts they lack."""
    known = [row.receipt for row in rows]
    weights = {row.weights_hash_or_name for row in rows}
    same = (row for row in others if row.weights_hash_or_name in weights)
    return [*rows, *(row for row in same if row.receipt not in known)]


def models_document(rows: Sequence[ModelRow]) -> Document:
    """
    A table for each model, in order of their names, a line for each pair and row.

    Raises:
        BadInput: If there are too many rows of one model.
    """
    by_weights: dict[str, list[ModelRow]] = {}
    for row in rows:
        by_weights.setdefault(row.weights_hash_or_name, []).append(row)
    for same in sorted(by_weights.values(), key=_title):
        if len(same) > MOST_RECEIPTS:
            raise BadInput(
                source=_title(same),
                reason=f"has {len(same)} rows, and {MOST_RECEIPTS} can be read",
                hint="Name fewer files.",
            )
        yield from _model_blocks(same)


def _title(rows: Sequence[ModelRow]) -> str:
    """The model of *rows*, as the first names it; empty if it does not."""
    return rows[0].receipt.facts.get("model", "")


def _model_blocks(rows: Sequence[ModelRow]) -> Iterator[Block]:
    """The table of one model, its legend, conditions, and what can be compared."""
    numbered = {str(at): row.receipt for at, row in enumerate(rows, 1)}
    yield Heading(f"{_title(rows)}: {plural(len(rows), 'row')}")
    yield _table(numbered)
    texts = (
        number
        for receipt in numbered.values()
        for number in receipt.pair_texts_but_attention
    )
    yield Facts(receipt_legend(texts))
    yield Facts([(str(at), _conditions_of(row)) for at, row in enumerate(rows, 1)])
    if rows[1:]:
        yield Lines(list(_comparability_sentences(numbered)))


NAMES = {
    "verdict": "verdict",
    "attention": "attention",
    "kv MiB": "KV MiB",
    "kld nats": "KLD",
    "precision %": "precision %",
    "kld999 nats": "KLD 99.9 %",
    "precision999 %": "its precision %",
    "pp tokens/s": "read/s",
    "tg tokens/s": "written/s",
}
"""Columns of receipts that the table has, and their headings."""

OF_TEXT, TEXT_LOSS = "loss by text-logp", "of ordinary text"
"""Column of receipts with the loss of ordinary text, and its heading."""

LOSS = "right tokens lost"
"""Heading of a loss that is a share of right tokens; others have that of receipts."""


def _table(receipts: Mapping[str, Receipt]) -> Table:
    """Pairs from top to bottom, of each pair the rows one below the other."""
    pairs = most_precise_first(
        {p for receipt in receipts.values() for p in receipt.rows}
    )
    lines = [
        {
            PAIR: str(pair),
            "row": name,
            **dict(_texts_by_heading(receipt, receipt.rows[pair])),
        }
        for pair in pairs
        for name, receipt in receipts.items()
        if pair in receipt.rows
    ]
    losses = dict.fromkeys(name for line in lines for name in line if is_loss(name))
    order = [PAIR, "row", "verdict", LOSS, TEXT_LOSS, *losses, *NAMES.values()]
    having = {name for line in lines for name, text in line.items() if text}
    heading = [name for name in dict.fromkeys(order) if name in having]
    rows = [[line.get(name, "") for name in heading] for line in lines]
    words = {PAIR, "row", "verdict", LOSS, TEXT_LOSS, *losses, "attention"}
    return Table(heading, rows, words=words)


def _texts_by_heading(
    receipt: Receipt, row: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """What the table has of a *row*: the first loss is the one of the verdict."""
    texts = dict(zip(receipt.columns, row, strict=True))
    if text := texts.get(OF_TEXT):
        yield TEXT_LOSS, text
    if (loss := _first_loss_column(receipt)) and loss != OF_TEXT:
        yield (LOSS if is_right_tokens_loss(loss) else loss), texts[loss]
    yield from ((NAMES[name], text) for name, text in texts.items() if name in NAMES)


def _conditions_of(row: ModelRow) -> str:
    """``NAME: engine; backend; machine; context; date. note``."""
    facts = row.receipt.facts
    words = ("engine", "backend", "machine", "context", "date")
    known = "; ".join(facts[word] for word in words if word in facts)
    note = f". {row.note}" if row.note else ""
    return f"{row.name}: {known}{note}"


def _first_loss_column(receipt: Receipt) -> str:
    """The column of the loss that decides; empty where none was measured."""
    losses = (c for c in receipt.columns if is_loss(c) and not is_divergence(c))
    return next(losses, "")


ALIKE: dict[str, tuple[Callable[[str], bool], tuple[str, ...]]] = {
    "losses": (
        lambda column: is_loss(column) and not is_divergence(column),
        ("rotation", "text", "context", "prompt", "seed", "reference"),
    ),
    "divergence": (
        is_divergence,
        ("divergence", "engine", "features", "rotation", "reference"),
    ),
    "memory": (lambda column: column == "kv MiB", ("context", "engine", "arguments")),
    "speeds": (
        lambda column: column in {"pp tokens/s", "tg tokens/s"},
        ("throughput", "engine", "backend", "machine", "arguments"),
    ),
}
"""
By kind of number: its columns, and the facts that must be the same to compare them.

Of losses the metric, too, and the settings of its probe. Weights are the same anyhow.
"""


def _comparability_sentences(receipts: Mapping[str, Receipt]) -> Iterator[str]:
    """A sentence for each kind of number that several rows have."""
    for what, (is_of, words) in ALIKE.items():
        having = [
            at for at, receipt in receipts.items() if any(map(is_of, receipt.columns))
        ]
        groups: dict[tuple[str, ...], list[str]] = {}
        for at in having:
            facts, loss = receipts[at].facts, _first_loss_column(receipts[at])
            own = (
                (loss, facts.get(probe_name_of_column(loss), ""))
                if what == "losses"
                else ()
            )
            key = (*own, *(facts.get(word, "") for word in words))
            groups.setdefault(key, []).append(at)
        alike = [f"rows {', '.join(group)}" for group in groups.values() if group[1:]]
        if alike:
            yield f"{what} can be compared: {'; '.join(alike)}"
        elif having[1:]:
            yield f"{what} of no two rows can be compared"


def model_objects(rows: Sequence[ModelRow]) -> list[dict[str, Any]]:
    """Each row with ``name``, ``note``, and ``setup`` and ``pairs`` of its receipt."""
    receipts = receipt_objects([row.receipt for row in rows])
    return [
        {"name": row.name, "note": row.note, **receipt}
        for row, receipt in zip(rows, receipts, strict=True)
    ]
