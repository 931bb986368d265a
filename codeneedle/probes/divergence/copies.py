"""
The copy probe: how well a model predicts a text that stands in its context twice.

A tool that compares distributions scores the second half of each chunk. So each chunk
is laid out as two halves of the same tokens: scored is the second copy, and nothing
else.
"""

import hashlib
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from codeneedle.corpora.random_bodies import random_bytes
from codeneedle.engines.engine import Ability, Engine, Tokenizer
from codeneedle.errors import BadInput, FolderUnusable
from codeneedle.grid import Pair
from codeneedle.models.weights import Weights
from codeneedle.probes.divergence.comparison import (
    Text,
    compared,
    refuse_full_disk,
    refuse_untrained,
)
from codeneedle.probes.divergence.metrics import COPY_METRICS, at_contexts
from codeneedle.probes.divergence.record import COPY as NAME
from codeneedle.probes.metrics import METRICS as OF_CELL
from codeneedle.probes.metrics import Metric
from codeneedle.probes.probe import (
    Outlook,
    Probe,
    ProbeContext,
    RunContext,
    Work,
    tokenizing,
)
from codeneedle.probes.recall.metrics import FORCED
from codeneedle.probes.recall.record import NAME as RECALL
from codeneedle.probes.stored import conditions_in
from codeneedle.records.record import (
    MOST_TOKENS,
    Json,
    Length,
    Run,
    Setup,
    as_json,
)
from codeneedle.system.files import read_regular, write_whole
from codeneedle.text import size

LAYOUT = 1
"""Version of the layout and of the words: another one is another text."""

DEFAULT_CONTEXT = 1024
DEFAULT_CHUNKS = 16
SMALLEST_CONTEXT = 256
SEPARATOR = "\n"
"""Stands before each passage; has to be one token."""

ALPHA = 0.05
"""Share of runs in which some pair is wrongly said to be read and written unlike."""

TRIES = 200
"""Places in a text at which a passage may begin, before the tokenizer is given up."""

START_CHARACTERS = 4
"""Characters of a made text per token that is needed, at first; doubled if too few."""

_WORDS = (
    "able acid army aunt baby bake ball band bank base bath bear beat bell belt bird "
    "blue boat body bone book born boss bowl brain bread brick brush cake call camp "
    "card care cart case cash cave chain chair chalk chest child city clay clean "
    "clock cloud coal coat cold cook corn cost cream crowd dance dark date desk dirt "
    "door draw dream dress drink drum dust earth east edge face fact farm field fire "
    "fish flag floor flour food foot fork fox frame fresh fruit game gate gift girl "
    "glass goat gold grass green group hair hall hand hat head heart hill home honey "
    "horse house ice iron jar judge juice key king knee lake lamp land lead leaf lip "
    "list lock log meal meat milk mind mine moon mouse mouth music nail neck news "
    "night north nose note oil oven page paint pan paper park path pen pipe plane "
    "plant plate pond pool queen rain river road rock roof room root rope rose salt "
    "sand school sea seat seed sheep ship shirt shoe shop silk silver sister skin sky "
    "smoke snow soap song soup south spoon spring star steam steel stone storm story "
    "sugar summer sun table tail tea tent thread tiger tooth town toy train tree truck "
    "uncle valley voice wall war watch water wave west wheel wind wine winter wire "
    "wood wool word work yard year"
)

WORDS = tuple(_WORDS.split())
"""Common English words: most vocabularies have each as one token."""

_Context = Annotated[int, Meta(ge=SMALLEST_CONTEXT, le=MOST_TOKENS, multiple_of=2)]
_Chunks = Annotated[int, Meta(ge=1, le=10_000)]


class CopySettings(Struct, frozen=True, forbid_unknown_fields=True):
    """What a user may choose; empty for what suits the model."""

    contexts: Annotated[
        tuple[_Context, ...],
        Meta(
            description="Contexts to copy in, in tokens; the copies of a token are "
            "half of it apart.",
            extra={
                "option": "--copy-context",
                "metavar": "LIST",
                "unit": "tokens",
                "default": "1024",
            },
        ),
    ] = ()
    chunks: Annotated[
        _Chunks | None,
        Meta(
            description="Texts to copy in each context.",
            extra={"option": "--copy-chunks", "default": "16"},
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyConditions:
    """
    What must be equal for copies to be comparable.

    Attributes:
        contexts: Lengths of chunks, in tokens; the first is the headline's.
        chunks: Chunks at each of them.
        texts_sha256: Of the text of each context, as it is handed to the tool.
        layout: As of `LAYOUT`.
        llama: The tool's version, as it states it.
        arguments: Of the arguments for the engine, those the tool takes too.
        ignored: The others, which change nothing here.
    """

    contexts: tuple[Length, ...]
    chunks: _Chunks
    texts_sha256: tuple[str, ...]
    layout: int
    llama: str
    arguments: tuple[str, ...]
    ignored: tuple[str, ...]


def chosen_contexts(weights: Weights, settings: CopySettings) -> tuple[int, ...]:
    """The contexts asked for, else one that the weights were trained for."""
    trained = weights.training_context or DEFAULT_CONTEXT
    default = min(DEFAULT_CONTEXT, trained // 2 * 2)
    return tuple(dict.fromkeys(settings.contexts)) or (default,)


def disagreements(run: Run) -> dict[Pair, tuple[float, float]]:
    """
    The pairs on which kernels for prompts disagree with those for single tokens.

    This probe reads through the former, forced recall through the latter, and an
    accelerator may compute them differently. They disagree where one differs from the
    reference by its interval, and that of the other does not reach half of the
    difference; the intervals hold at once for all pairs, in 95 % of runs.

    Returns:
        By pair, what copies and forced recall differ from the reference, in nats.
    """
    copied = _differences(run, NAME, COPY_METRICS)
    recalled = _differences(run, RECALL, FORCED)
    return {
        pair: (copied[pair][0], recalled[pair][0])
        for pair in copied
        if pair in recalled
        if _exceeds(copied[pair], recalled[pair])
        or _exceeds(recalled[pair], copied[pair])
    }


def _differences(
    run: Run, probe: str, metrics: Sequence[Metric]
) -> dict[Pair, tuple[float, float]]:
    """
    By pair, the log-probability that *probe* measured less the reference's.

    The mean over the chunks or needles of both, and half of its interval.
    """
    from codeneedle.probes import frames

    (logp,) = (each for each in metrics if each.name == f"{probe}-logp")
    metric = replace(logp, loss=None)  # in nats, not what losses are computed of
    narrowed = frames.of_probe(run, probe)
    reference = frames.reference(frames.cells_frame(narrowed, metric))
    named = {
        record.pair: metric.by_unit(record, run.setup)
        for record in narrowed.records
        if record.has_numbers
    }
    exact = named.pop(reference, {}) if reference else {}
    share = ALPHA / max(2 * len(named), 1)
    gaps = {
        pair: [value - exact[name] for name, value in values.items() if name in exact]
        for pair, values in named.items()
    }
    return {pair: _interval(each, share) for pair, each in gaps.items() if each}


def _interval(values: Sequence[float], share: float) -> tuple[float, float]:
    """Mean of *values* and half of its two-sided interval, by Student's t."""
    from scipy.special import stdtrit

    mean, count = statistics.fmean(values), len(values)
    if count < 2:  # noqa: PLR2004 - one value has no spread
        return mean, math.inf
    error = statistics.stdev(values) / math.sqrt(count)
    return mean, float(stdtrit(count - 1, 1 - share / 2)) * error


def _exceeds(one: tuple[float, float], other: tuple[float, float]) -> bool:
    """Whether *one* is no chance, and *other* by its interval less than half of it."""
    mean, half_width = one
    if abs(mean) <= half_width:
        return False
    sign = math.copysign(1, mean)
    return sign * other[0] + other[1] < abs(mean) / 2


class CopyProbe(Probe):
    """Compares distributions on texts whose second half repeats the first."""

    def reads_corpus(self, _settings: CopySettings) -> bool:
        """It makes its texts."""
        return False

    def more_metrics(self, setup: Setup) -> tuple[Metric, ...]:
        """The same at each context, where a run has several."""
        return at_contexts(setup, NAME)

    def notes(
        self, settings: CopySettings, weights: Weights, engine: Engine, folder: Path
    ) -> tuple[str, ...]:
        """What the distributions of the reference will take on the disk."""
        tool, chunks = engine.divergence_tool(), settings.chunks or DEFAULT_CHUNKS
        missing = sum(
            tool.missing_bytes(folder / NAME, context=context, chunks=chunks)
            for context in chosen_contexts(weights, settings)
        )
        return (f"the probe copy keeps {size(missing)} in the run folder",) * bool(
            missing
        )

    def work(self, settings: CopySettings, _outlook: Outlook) -> Work:
        """Each chunk once."""
        contexts = settings.contexts or (DEFAULT_CONTEXT,)
        chunks = settings.chunks or DEFAULT_CHUNKS
        return Work(texts=tuple(each for each in contexts for _ in range(chunks)))

    def conditions(self, run: RunContext) -> Json:
        """
        What *run* copies: its texts, laid out and stored in the run folder.

        Raises:
            BadInput: If a context is longer than the training, or the tokenizer joins
                what should stay apart.
            MachineError: If the tool is missing or too old, or the disk too small.
        """
        tool = run.engine.divergence_tool()
        settings = run.settings_of(CopySettings, NAME)
        contexts, chunks = (
            chosen_contexts(run.weights, settings),
            settings.chunks or DEFAULT_CHUNKS,
        )
        for context in contexts:
            refuse_untrained(run, context, option="--copy-context")
        texts = _stored_texts(run, contexts, chunks)
        for context, text in zip(contexts, texts, strict=True):
            tool.check(
                text_name=NAME, text_bytes=len(text), context=context, chunks=chunks
            )
        refuse_full_disk(run, _folder(run), [(context, chunks) for context in contexts])
        return as_json(
            CopyConditions(
                contexts=contexts,
                chunks=chunks,
                texts_sha256=tuple(hashlib.sha256(text).hexdigest() for text in texts),
                layout=LAYOUT,
                llama=tool.version,
                arguments=tool.arguments,
                ignored=tool.ignored,
            )
        )

    def measure(self, context: ProbeContext) -> Json:
        """
        Compare the cell with the reference on the second copies, at each context.

        Raises:
            BadInput: If a stored text has changed.
            CellError: If the tool fails, or runs other cache types than asked for.
        """
        run = context.run
        chosen = conditions_in(run.setup, NAME, CopyConditions)
        texts = []
        for at, length in enumerate(chosen.contexts):
            path = _path(run, length, chosen.chunks)
            data = read_regular(path) or b""
            if hashlib.sha256(data).hexdigest() != chosen.texts_sha256[at]:
                raise BadInput(
                    source=path,
                    reason="it has changed since this sweep began",
                    hint="Remove it, and run the command again.",
                )
            texts.append(
                Text(name=path.name, data=data, context=length, chunks=chosen.chunks)
            )
        return compared(context, texts, folder=_folder(run), probe=NAME)

    def remarks(self, run: Run) -> tuple[str, ...]:
        """A sentence for each of the `disagreements`."""
        return tuple(
            f"reading and writing disagree on {pair}, in nats per token from the "
            f"reference: {NAME}-logp {copied:+.4f}, {RECALL}-logp {recalled:+.4f}"
            for pair, (copied, recalled) in disagreements(run).items()
        )


PROBE = CopyProbe(
    name=NAME,
    purpose="the second copy of a text",
    metrics=(*COPY_METRICS, *OF_CELL),
    settings=CopySettings,
    layout=CopyConditions,
    needs=frozenset({Ability.DIVERGENCE}),
    screens=True,
    step="chunk",
    counts_tokens=True,
    calibrates=True,
)


# --- texts in the run folder


def _folder(run: RunContext) -> Path:
    """Of its own: the reference's distributions there are named by context alone."""
    return run.folder / NAME


def _path(run: RunContext, context: int, chunks: int) -> Path:
    """The text of one context, by all that decides it."""
    decisive = (LAYOUT, run.setup.seed, chunks, run.setup.weights.sha256)
    name = hashlib.sha256(repr(decisive).encode()).hexdigest()[:16]
    return _folder(run) / f"{context}-{name}.txt"


def _stored_texts(run: RunContext, contexts: Sequence[int], chunks: int) -> list[bytes]:
    """The text of each context; laid out if it is not in the run folder yet."""
    paths = {context: _path(run, context, chunks) for context in contexts}
    missing = [context for context, path in paths.items() if not path.exists()]
    try:
        if missing:
            _folder(run).mkdir(parents=True, exist_ok=True)
            with tokenizing(run.engine, run.folder) as tokenizer:
                for context in missing:
                    cutter = Cutter(tokenizer, f"{NAME}:{context}:{run.setup.seed}")
                    # The tool wants two chunks.
                    text = laid_out(cutter, context=context, chunks=max(2, chunks))
                    write_whole(paths[context], text.encode())
        return [read_regular(path) or b"" for path in paths.values()]
    except OSError as error:
        raise FolderUnusable(folder=_folder(run), reason=str(error)) from error


def made_words(seed: str, count: int) -> str:
    """At least *count* characters of lines ``word = "word word"``."""
    # Skipping the greatest bytes makes all words equally likely.
    fair = 256 - 256 % len(WORDS)
    words = (WORDS[n % len(WORDS)] for n in random_bytes(seed) if n < fair)
    made, characters = [], 0
    while characters < count:
        made.append(f' {next(words)} = "{next(words)} {next(words)}"\n')
        characters += len(made[-1])
    return "".join(made)


# --- layout


@dataclass(frozen=True, slots=True)
class Passage:
    """A text that stands in a chunk twice, with the numbers of its tokens."""

    text: str
    ids: tuple[int, ...]


@dataclass(slots=True)
class Cutter:
    """
    Cuts passages of an exact number of tokens out of made words, one after the other.

    A passage is only taken if, between separators, it is tokenized as it was in the
    text, and both times alike.

    Attributes:
        tokenizer: Of the model.
        seed: Of the words.
        separator: The token of `SEPARATOR`, once words are read.
    """

    tokenizer: Tokenizer
    seed: str
    separator: tuple[int, ...] = field(default=(), init=False)
    _pool: list[tuple[int, str]] = field(default_factory=list)
    _at: int = 0

    def read(self, tokens: int) -> None:
        """Tokenize words: *tokens* tokens, and some to spare."""
        # Some tokenizers put a blank before everything.
        self.separator = self.ids(SEPARATOR)[-1:]
        needed, count = tokens + tokens // 2 + TRIES, tokens
        while len(self._pool) < needed:
            count *= START_CHARACTERS
            text = made_words(self.seed, count)[:count]
            read = self.tokenizer.tokens(text, add_special=False)
            self._pool = [(token.id, str(token.piece)) for token in read]

    def cut(self, tokens: int) -> Passage:
        """
        The next passage of *tokens* tokens.

        Raises:
            BadInput: If the tokenizer joins tokens across each boundary that was tried.
        """
        tried = 0
        begins_words = any(piece.startswith(" ") for _, piece in self._pool[:TRIES])
        for start in range(self._at, len(self._pool) - tokens + 1):
            if begins_words and not self._pool[start][1].startswith(" "):
                continue
            passage = self._passage(start, tokens)
            if passage is not None:
                self._at = start + tokens
                return passage
            tried += 1
            if tried >= TRIES:
                break
        raise _unsuitable()

    def ids(self, text: str, *, add_special: bool = False) -> tuple[int, ...]:
        """Numbers of the tokens of *text*."""
        tokens = self.tokenizer.tokens(text, add_special=add_special)
        return tuple(token.id for token in tokens)

    def _passage(self, start: int, tokens: int) -> Passage | None:
        chosen = self._pool[start : start + tokens]
        passage = Passage(
            "".join(piece for _, piece in chosen), tuple(number for number, _ in chosen)
        )
        expected = (*self.separator, *passage.ids) * 2 + self.separator
        twice = f"{SEPARATOR}{passage.text}" * 2 + SEPARATOR
        ids = self.ids(twice)[-len(expected) :]
        return passage if ids == expected else None


def _unsuitable() -> BadInput:
    """The error for a tokenizer with which copies would not be equal."""
    return BadInput(
        source="--probe copy",
        reason="the tokenizer of these weights joins tokens across each boundary that "
        "was tried, so that two copies are not the same tokens",
        hint="Leave the probe copy out.",
    )


def laid_out(cutter: Cutter, *, context: int, chunks: int) -> str:
    """
    *chunks* chunks of *context* tokens, an even number: a passage, and it again.

    Each stands after a separator. A tool scores what follows the first token of the
    second half. That is a separator here, so scored is the second copy. The first
    token of each chunk is a separator, too, or what begins a prompt: of later chunks,
    the tool overwrites it with that. Behind all stands a word, as the tool drops a last
    line break.

    Raises:
        BadInput: If passages cannot be cut, or their tokens are not as laid out.
    """
    cutter.read(chunks * context // 2)
    text = ""
    expected: list[int] = []
    for _ in range(chunks):
        passage = cutter.cut(context // 2 - 1)
        text += f"{SEPARATOR}{passage.text}" * 2
        expected += (*cutter.separator, *passage.ids) * 2
    text += f"{SEPARATOR}{WORDS[0]}"
    # Where a token begins a prompt, it takes the place of the first separator; a
    # blank that the tokenizer puts there itself takes that of the first blank.
    for begin in (0, len(SEPARATOR), len(SEPARATOR) + 1):
        ids = cutter.ids(text[begin:], add_special=True)
        if list(ids[1 : len(expected)]) == expected[1:]:
            return text[begin:]
    raise _unsuitable()
