"""
Receipts: a run as text that can be passed on, and several of them side by side.

A receipt is one line of canonical JSON with a checksum, which shows damage, not who
made it. It holds numbers and hashes, and no text, reply or path.
"""

import base64
import binascii
import functools
import hashlib
import math
import re
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import msgspec

from codeneedle.document import Document, Facts, Heading, Lines, Table
from codeneedle.errors import BadInput
from codeneedle.grid import Pair, most_precise_first
from codeneedle.probes import PROBES
from codeneedle.probes.metrics import LEAST_DIVERGENCE, LossKind, Metric
from codeneedle.records.record import Attention, Json, Run, Setup, Status
from codeneedle.report.captions import attention_mark, status_word, with_error
from codeneedle.report.compare import WALL, other_kernels
from codeneedle.report.table import Column, PairTable, attention_of, pair_table
from codeneedle.text import plural, visible

if TYPE_CHECKING:
    from codeneedle.report.llama_form import Dialect

VERSION = 1
"""Of the layout of a receipt."""

MARK = '{"codeneedle":'
"""How the line begins: keys are sorted."""

TEXT_BYTES = 16 << 20
LINE_BYTES = 1 << 20
UNITS_BYTES = 2 << 20
"""Most bytes of a text, of a line, and of values of units when they are unpacked."""

MOST_RECEIPTS = 32
"""More are no table that can be read."""

MOST_METRICS = 200
"""A run has some twenty."""

DIGITS, UNIT_DIGITS = 5, 4
"""Significant digits of numbers, and of values of units."""

TOLERANCE = 0.01
"""How far rounding may bring a mean of units from the number, as a share of it."""

_SHA256 = re.compile("[0-9a-f]{64}")


class Model(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The weights, as `Setup` has them."""

    name: str
    sha256: str
    size_bytes: int
    architecture: str
    quant: str


class Place(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where it was measured: engine and build, machine and CPU features."""

    engine: str
    build: str
    machine: str
    cpu_features: str


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    The settings of a probe.

    Attributes:
        digest: Of all that decide its answers; texts go in by their hash.
        numbers: Those that are numbers, by name.
    """

    digest: str
    numbers: dict[str, bool | int | float | tuple[int | float, ...]]


class Conditions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    The rest of the setup.

    Attributes:
        text: Name of the corpus.
        text_sha256: Of the corpus as it was sent.
        tokens: Its length.
        context: In tokens.
        prompt: Form and version of the prompt.
        rotation: Whether quantized values were rotated, if possible.
        seed: Of sampling and of the running order.
        arguments: Digest of further arguments of the engine; empty without any.
        probes: Settings of each probe.
    """

    text: str
    text_sha256: str
    tokens: int
    context: int
    prompt: tuple[str, int]
    rotation: bool
    seed: int
    arguments: str
    probes: dict[str, Settings]


class PairNumbers(msgspec.Struct, frozen=True, array_like=True):
    """
    What was measured of a pair.

    Attributes:
        k: Type of K.
        v: Type of V.
        status: How its cell ended: the first that did not finish, of several probes.
        word: What the verdict says of it; may be empty.
        attention: Where its attention ran; empty if nothing tells.
        values: Of each metric of the receipt; None without a number.
        errors: Standard errors likewise.
    """

    k: str
    v: str
    status: str
    word: str
    attention: str
    values: tuple[float | None, ...]
    errors: tuple[float | None, ...]

    @property
    def pair(self) -> Pair:
        """Both types."""
        return Pair(self.k, self.v)


class Receipt(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    A run to pass on.

    Attributes:
        codeneedle: `VERSION`.
        model: The weights.
        place: Engine and machine.
        setup: What else decides the numbers.
        reference: The pair that others are compared with; empty without one.
        floor: By metric, what the reference differs from itself.
        metrics: Probe and name of each metric.
        pairs: Numbers of each pair.
        units: By metric, the values of each unit, a list for each pair, in base64 of
            compressed JSON.
        sha256: Of the same line with this field empty.
    """

    codeneedle: int
    model: Model
    place: Place
    setup: Conditions
    reference: str
    floor: dict[str, float]
    metrics: tuple[tuple[str, str], ...]
    pairs: tuple[PairNumbers, ...]
    units: str
    sha256: str = ""


Units = dict[str, tuple[tuple[float | None, ...], ...]]

# --- a run as a receipt


def receipt_markdown(run: Run, dialect: "Dialect") -> str:
    """
    The table of *run*, and its receipt folded away, for GitHub.

    Where divergence was measured the table is `llama_form`.
    """
    from codeneedle.report.llama_form import llama_form, of_divergence
    from codeneedle.report.markdown import markdown
    from codeneedle.verdict.judge import judge

    verdict = judge(run)
    table = replace(pair_table(run, tuple(PROBES.values())), verdict=verdict)
    receipt = signed(_receipt(table))
    divergence = of_divergence(run)
    if any(each.has_numbers for each in divergence.records):
        bare = replace(verdict, run=_without_paths(divergence))
        shown: Document = [*llama_form(bare, dialect), Lines([WALL])]
    else:
        shown = merged([receipt])
    return "\n".join(
        [
            markdown(shown),
            "<details><summary>Receipt, for: codeneedle merge FILE</summary>\n",
            f"~~~~~json\n{line(receipt)}\n~~~~~\n\n</details>\n",
        ]
    )


def line(receipt: Receipt) -> str:
    """*receipt* in the one form that is accepted."""
    return msgspec.json.encode(receipt, order="sorted").decode()


def signed(receipt: Receipt) -> Receipt:
    """*receipt* with its checksum."""
    bare = msgspec.structs.replace(receipt, sha256="")
    digest = hashlib.sha256(line(bare).encode()).hexdigest()
    return msgspec.structs.replace(bare, sha256=digest)


def packed(units: Units) -> str:
    """*units* as a receipt holds them."""
    return base64.b64encode(zlib.compress(msgspec.json.encode(units), 9)).decode()


def _receipt(table: PairTable) -> Receipt:
    columns = [
        each
        for each in table.columns
        if each.has_values and (each.is_shown or each.metric.is_kept)
    ]
    setup = table.run.setup
    weights = setup.weights
    return Receipt(
        codeneedle=VERSION,
        model=Model(
            name=visible(_last_part(weights.name)),
            sha256=weights.sha256,
            size_bytes=weights.size_bytes,
            architecture=visible(setup.architecture),
            quant=visible(setup.quant),
        ),
        place=Place(
            engine=setup.engine,
            build=visible(setup.llama),
            machine=visible(setup.machine),
            cpu_features=visible(setup.cpu_features),
        ),
        setup=_conditions(setup),
        reference=str(table.reference or ""),
        floor={
            each.metric.name: _rounded(each.reference_value)
            for each in columns
            if each.metric.floor and math.isfinite(each.reference_value)
        },
        metrics=tuple((each.probe, each.metric.name) for each in columns),
        pairs=tuple(_pair_numbers(table, columns, pair) for pair in table.pairs),
        units=packed(
            {e.metric.name: _units(table, e) for e in columns if e.metric.loss}
        ),
    )


def _conditions(setup: Setup) -> Conditions:
    return Conditions(
        text=visible(_last_part(setup.corpus.name)),
        text_sha256=setup.corpus.sha256,
        tokens=setup.corpus.tokens,
        context=setup.context,
        prompt=(setup.prompt_form, setup.prompt_version),
        rotation=setup.rotation,
        seed=setup.seed,
        arguments=_digest(setup.server_args) if setup.server_args else "",
        probes={name: _settings(name, stored) for name, stored in setup.probes.items()},
    )


_NAMES = {"text", "llama"}
"""Settings whose facts stand elsewhere."""


def _settings(name: str, stored: Json) -> Settings:
    others = _NAMES | (PROBES[name].neutral if name in PROBES else set())
    deciding = {key: value for key, value in stored.items() if key not in others}
    numbers = {key: value for key, value in deciding.items() if _is_numeric(value)}
    return Settings(digest=_digest(deciding), numbers=numbers)


def _is_numeric(value: object) -> bool:
    if isinstance(value, list):
        return bool(value) and all(isinstance(each, int | float) for each in value)
    return isinstance(value, int | float)


def _digest(facts: object) -> str:
    data = msgspec.json.encode(facts, order="sorted")
    return hashlib.sha256(data).hexdigest()[:16]


def _pair_numbers(
    table: PairTable, columns: Sequence[Column], pair: Pair
) -> PairNumbers:
    cells = [column.cell(pair) for column in columns]
    statuses = [
        record.status.value
        for probe in table.probes
        if (record := table.records.get((pair, probe)))
    ]
    failed = [each for each in statuses if each != Status.FINISHED]
    return PairNumbers(
        k=visible(pair.k),
        v=visible(pair.v),
        status=next(iter([*failed, *statuses]), ""),
        word=table.words.get(pair, ""),
        attention=attention_of(table, pair) or "",
        values=tuple(_finite(each.value) for each in cells),
        errors=tuple(_finite(each.error) for each in cells),
    )


def _units(table: PairTable, column: Column) -> tuple[tuple[float | None, ...], ...]:
    """Of each pair the values of all units, in one order, without their names."""
    by_pair = [_by_unit(table, column, pair) for pair in table.pairs]
    names = list(dict.fromkeys(name for units in by_pair for name in units))
    return tuple(
        tuple(_finite(units.get(name, math.nan), UNIT_DIGITS) for name in names)
        for units in by_pair
    )


def _by_unit(table: PairTable, column: Column, pair: Pair) -> dict[str, float]:
    record = table.records.get((pair, column.probe))
    if record is None or not record.has_numbers:
        return {}
    return column.metric.by_unit(record, table.run.setup)


def _finite(value: float, digits: int = DIGITS) -> float | None:
    return _rounded(value, digits) if math.isfinite(value) else None


def _rounded(value: float, digits: int = DIGITS) -> float:
    return float(f"{value:.{digits}g}")


def _without_paths(run: Run) -> Run:
    """
    *run* as its divergence may be shown to others: of each path the last part alone.

    Settings of other probes may name conversations or tools.
    """
    setup = run.setup
    origin = "a file" if "/" in setup.corpus.origin else setup.corpus.origin
    corpus = replace(setup.corpus, name=_last_part(setup.corpus.name), origin=origin)
    return replace(
        run,
        name=f"{corpus.name}/{_last_part(setup.weights.name)}",
        setup=replace(
            setup,
            corpus=corpus,
            weights=replace(setup.weights, name=_last_part(setup.weights.name)),
            server_args=_words(setup.server_args),
            probes={name: _bare(stored) for name, stored in setup.probes.items()},
        ),
        records=tuple(
            replace(each, command=_words(each.command)) for each in run.records
        ),
        again=(),
        sweep="",
    )


_WORD = re.compile(r"[\w.,:;=+~-]{0,100}")


def _words(command: Iterable[str]) -> tuple[str, ...]:
    """*command* without folders, and without texts that stand in it."""
    words = map(_last_part, command)
    return tuple(word if _WORD.fullmatch(word) else "..." for word in words)


def _bare(value: Any) -> Any:
    """*value*, of JSON, without folders."""
    if isinstance(value, dict):
        return {key: _bare(each) for key, each in value.items()}
    if isinstance(value, list):
        return list(map(_bare, value))
    return _last_part(value) if isinstance(value, str) else value


def _last_part(word: str) -> str:
    """A word of a command without the folders of its path: ``--lora=a.gguf``."""
    option, equals, value = word.partition("=")
    if equals and option.startswith("-") and "/" not in option:
        return f"{option}={value.rpartition('/')[2]}"
    return word.rpartition("/")[2]


# --- receipts out of texts


def are_texts(names: Sequence[str]) -> bool:
    """
    Whether *names* are texts with receipts, not folders; ``-`` is standard input.

    Raises:
        BadInput: If some are and some are not.
    """
    paths = {name: Path(name) for name in names}
    texts = [n for n, p in paths.items() if n == "-" or (p.exists() and not p.is_dir())]
    others = [name for name in names if name not in texts]
    if texts and others:
        raise BadInput(
            source=others[0],
            reason=f"is no text, as {texts[0]} is",
            hint="Merge folders of runs, or texts with receipts, not both at once.",
        )
    return bool(texts)


def read_receipts(names: Iterable[str]) -> list[Receipt]:
    """
    The receipts in the texts called *names*, each once.

    Raises:
        BadInput: If a text cannot be read, is too long, or has none, and if a receipt
            was damaged, cannot be true, or is of another version.
    """
    by_sum: dict[str, Receipt] = {}
    for name in names:
        receipts = list(receipts_in(_text(name), source=name))
        if not receipts:
            raise BadInput(
                source=name,
                reason="there is no receipt in it",
                hint=f"A receipt is a line that begins with {MARK} and is printed by: "
                "codeneedle receipt NAME",
            )
        by_sum.update({each.sha256: each for each in receipts})
    if len(by_sum) > MOST_RECEIPTS:
        raise BadInput(
            source=f"{len(by_sum)} receipts",
            reason=f"are more than the {MOST_RECEIPTS} that can stand side by side",
            hint="Merge fewer at once.",
        )
    return list(by_sum.values())


def _text(name: str) -> str:
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
            hint="Copy the lines of the receipts into a file.",
        )
    return data.decode("utf-8", errors="replace")


def receipts_in(text: str, *, source: str) -> Iterator[Receipt]:
    """
    Every receipt of *text*; what stands around them is ignored.

    Raises:
        BadInput: At the first that cannot be used, naming its line in *source*.
    """
    for at, each in enumerate(text.split("\n"), 1):
        start = each.find(MARK)
        if start >= 0:
            end = each.rfind("}") + 1
            yield _checked(each[start:end], place=f"{source}, line {at}")


def _checked(text: str, *, place: str) -> Receipt:
    damaged = "Copy the whole line again, unwrapped, from where it was published."
    if len(text) > LINE_BYTES:
        reason = f"a receipt has at most {LINE_BYTES >> 10} KiB"
        raise BadInput(source=place, reason=reason, hint=damaged)
    try:
        receipt = msgspec.json.decode(text, type=Receipt)
        canonical = line(receipt)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        _refuse_version(text, place)
        reason = f"the receipt is damaged: {visible(str(error))}"
        raise BadInput(source=place, reason=reason, hint=damaged) from error
    _refuse_version(text, place)
    if canonical != text or signed(receipt).sha256 != receipt.sha256:
        reason = "the receipt is damaged: it does not have its checksum"
        raise BadInput(source=place, reason=reason, hint=damaged)
    if wrong := next(_impossible(receipt), ""):
        raise BadInput(
            source=place,
            reason=f"the receipt cannot be true: {visible(wrong)}",
            hint="Leave it out, and ask its author to print it again from the run: "
            "codeneedle receipt NAME",
        )
    return receipt


def _refuse_version(text: str, place: str) -> None:
    number_read = re.match(r"(\d{1,9}),", text.removeprefix(MARK))
    if number_read and int(number_read[1]) != VERSION:
        raise BadInput(
            source=place,
            reason=f"the receipt has version {number_read[1]}, and {VERSION} is known",
            hint="Use the version of codeneedle that printed it.",
        )


def _impossible(receipt: Receipt) -> Iterator[str]:
    """What no run can have, most general first."""
    hashes = (receipt.model.sha256, receipt.setup.text_sha256)
    if not all(_SHA256.fullmatch(each) for each in hashes if each):
        yield "a hash is none"
    if len(receipt.metrics) > MOST_METRICS:
        yield f"it has {len(receipt.metrics)} metrics"
        return
    if unknown := {probe for probe, _ in receipt.metrics} - PROBES.keys():
        yield f"there is no probe {min(unknown)}"
        return
    names = [name for _, name in receipt.metrics]
    pairs = [each.pair for each in receipt.pairs]
    if len({*names}) < len(names) or len({*pairs}) < len(pairs):
        yield "a metric or a pair stands in it twice"
    if receipt.reference and receipt.reference not in map(str, pairs):
        yield f"it has no pair {receipt.reference}"
    for each in receipt.pairs:
        yield from _impossible_pair(receipt, each)
    yield from _impossible_units(receipt, names)


def _impossible_pair(receipt: Receipt, each: PairNumbers) -> Iterator[str]:
    if each.attention not in {"", *Attention}:
        yield f"{each.pair} has the attention {each.attention}"
    if each.status not in {"", *Status}:
        yield f"{each.pair} has the status {each.status}"
    if not len(each.values) == len(each.errors) == len(receipt.metrics):
        yield f"{each.pair} has numbers of other metrics"
        return
    for (probe, name), value in zip(receipt.metrics, each.values, strict=True):
        metric = _metric(probe, name)
        low, high = metric.bounds
        slack = LEAST_DIVERGENCE if metric.is_distance else 0.01
        least = -math.inf if low is None else low - slack
        most = math.inf if high is None else high + slack
        if value is not None and not least <= value <= most:
            yield f"{name} of {each.pair} is {value}"
        if str(each.pair) == receipt.reference:
            floor = receipt.floor.get(name, value)
            if floor != value:
                yield f"the floor of {name} is {floor}, and {value} of {each.pair}"
    if any(error is not None and error < 0 for error in each.errors):
        yield f"{each.pair} has an error below 0"


def _impossible_units(receipt: Receipt, names: Sequence[str]) -> Iterator[str]:
    try:
        units = unpacked(receipt.units)
    except ValueError as error:
        yield str(error)
        return
    for name, by_pair in units.items():
        if name not in names or len(by_pair) != len(receipt.pairs):
            yield f"the units of {name} are of other pairs"
            return
        at = names.index(name)
        loss = _metric(*receipt.metrics[at]).loss
        if loss is None or loss.kind is not LossKind.CHANGE:
            continue
        for each, values in zip(receipt.pairs, by_pair, strict=True):
            known, value = [v for v in values if v is not None], each.values[at]
            if not known or value is None:
                continue
            mean = fmean(known)
            # Tools print numbers near 0 with few digits.
            if abs(mean - value) > max(TOLERANCE * abs(value), 2e-5):
                yield f"{name} of {each.pair} is {value}, and {mean:.5g} by its units"


def unpacked(text: str) -> Units:
    """
    What `packed` made, never more than `UNITS_BYTES` of it.

    Raises:
        ValueError: Saying why it cannot be read.
    """
    try:
        unpacking = zlib.decompressobj()
        data = base64.b64decode(text, validate=True)
        raw = unpacking.decompress(data, UNITS_BYTES)
        if not unpacking.eof or unpacking.unused_data:
            raise ValueError("the values of units are cut off, too long, or not alone")
        return msgspec.json.decode(raw, type=Units)
    except (binascii.Error, zlib.error, msgspec.MsgspecError, RecursionError) as error:
        raise ValueError("the values of units cannot be read") from error


# --- side by side

SAME = (
    "Runs stand in one table where they measured the same: text and settings; of "
    "divergence also model, build and CPU features; of speed the machine. Nothing is "
    "averaged over runs."
)


def merged(receipts: Sequence[Receipt]) -> Document:
    """
    A table for each metric, with a column for each of *receipts*.

    Those that must not be compared stand in tables of their own.
    """
    numbered = dict(enumerate(receipts, 1))
    yield Heading(plural(len(receipts), "run"))
    yield Facts([(str(at), _about(each)) for at, each in numbered.items()])
    metrics = dict.fromkeys(each for receipt in receipts for each in receipt.metrics)
    for probe, name in metrics:
        groups: dict[tuple[object, ...], dict[int, Receipt]] = {}
        for at, each in numbered.items():
            if (probe, name) in each.metrics:
                groups.setdefault(_key(each, probe, name), {})[at] = each
        for group in groups.values():
            metric = _metric(probe, name)
            unit = f", {metric.unit}" if metric.unit else ""
            yield Heading(f"{name}: {metric.label}{unit}")
            yield _table(group, probe, metric)
    yield Lines(list(_remarks(numbered)))


def _about(receipt: Receipt) -> str:
    model, place, setup = receipt.model, receipt.place, receipt.setup
    known = [model.architecture, model.quant, f"sha256 {model.sha256[:8]}"]
    phrases = [
        f"{model.name} ({', '.join(filter(None, known))})",
        f"{place.engine} {place.build.removeprefix(f'{place.engine} ')}",
        place.machine,
        f"CPU features {place.cpu_features or 'not known'}",
        f"text {setup.text} ({setup.text_sha256[:8]})",
        f"context {plural(setup.context, 'token')}",
        "" if setup.rotation else "rotation off",
        f"reference {receipt.reference or 'none'}",
    ]
    return "; ".join(filter(None, phrases))


@functools.lru_cache(maxsize=1024)
def _metric(probe: str, name: str) -> Metric:
    """The metric of that *name*; of one that only settings have, what is known."""
    by_name = {metric.name: metric for metric in PROBES[probe].metrics}
    first = PROBES[probe].metrics[0]
    known = by_name.get(name) or by_name.get(name.partition("@")[0])
    unknown = replace(first, label=name, bounds=(None, None), loss=None, unit="")
    return replace(known or unknown, name=name)


def _key(receipt: Receipt, probe: str, name: str) -> tuple[object, ...]:
    """What must be equal for values of a metric to stand side by side."""
    metric, setup = _metric(probe, name), receipt.setup
    settings = setup.probes.get(probe)
    digest = settings.digest if settings else ""
    if metric.group == "memory":
        return (setup.context, receipt.model.sha256)
    if metric.group == "speed":
        return (receipt.place.machine, digest, receipt.model.sha256)
    base = _base(receipt) if metric.is_distance else ()
    corpus = setup.text_sha256 if PROBES[probe].asks_functions else ""
    seed = setup.seed if PROBES[probe].makes_texts else 0
    return (*base, corpus, seed, digest)


def _base(receipt: Receipt) -> tuple[object, ...]:
    """What the distributions of the reference depend on, but for text and settings."""
    setup, place = receipt.setup, receipt.place
    features = frozenset(place.cpu_features.split())
    return (
        *(receipt.model.sha256, place.engine, place.build, features),
        *(receipt.reference, setup.rotation, setup.arguments),
    )


def _table(group: Mapping[int, Receipt], probe: str, metric: Metric) -> Table:
    by_pair = [{each.pair: each for each in r.pairs} for r in group.values()]
    places = [r.metrics.index((probe, metric.name)) for r in group.values()]
    rows = [
        [
            str(pair),
            *(
                _value(pairs.get(pair), at, metric)
                for pairs, at in zip(by_pair, places, strict=True)
            ),
        ]
        for pair in most_precise_first({pair for pairs in by_pair for pair in pairs})
    ]
    return Table(["K/V", *map(str, group)], rows, words={"K/V"})


def _value(numbers: PairNumbers | None, at: int, metric: Metric) -> str:
    value = numbers.values[at] if numbers else None
    if numbers is None or value is None:
        return status_word(numbers.status if numbers else "")
    shown = with_error(value, numbers.errors[at], digits=metric.digits, mark=" ± ")
    attention = Attention(numbers.attention) if numbers.attention else None
    return f"{shown} {attention_mark(attention)}".rstrip()


def _remarks(numbered: Mapping[int, Receipt]) -> Iterator[str]:
    yield SAME
    walls = False
    measured = [
        (at, each)
        for at, each in numbered.items()
        if any(_metric(*metric).is_distance for metric in each.metrics)
    ]
    for (first, ours), (second, theirs) in combinations(measured, 2):
        kernels = other_kernels(
            (ours.place.build, theirs.place.build),
            (ours.place.cpu_features, theirs.place.cpu_features),
        )
        if kernels:
            walls = True
            which = f"{first} and {second}"
            yield f"Divergence of {which} is not compared: other {kernels}."
    if walls:
        yield WALL
