"""
The copy probe: how well a model predicts a text that stands in its context twice.

A tool that compares distributions scores the second half of each chunk. So each chunk
is laid out as two halves of the same tokens: scored is the second copy, and nothing
else.
"""

import hashlib
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct

from codeneedle.corpora.corpus import Corpus
from codeneedle.corpora.random_bodies import ALPHABET, random_bytes
from codeneedle.engines.engine import Ability, Engine, Tokenizer
from codeneedle.errors import BadInput, FolderUnusable
from codeneedle.grid import Pair, most_precise_first
from codeneedle.models.gguf import Weights
from codeneedle.probes.divergence.comparison import (
    Text,
    compared,
    file_bytes,
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
from codeneedle.records.record import (
    MOST_TOKENS,
    Json,
    Length,
    Run,
    Setup,
    as_json,
    from_json,
)
from codeneedle.system.files import read_regular, write_whole
from codeneedle.text import size

LAYOUT = 1
"""Version of the layout and of the words: another one is another text."""

DEFAULT_CONTEXT = 1024
DEFAULT_CHUNKS = 16
SMALLEST_CONTEXT = 256
SHORTEST_PASSAGE = 8

SEPARATOR = "\n"
"""Stands before each passage; has to be one token."""

WORD_LENGTH = 8
"""Of words of random characters."""

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
_Length = Annotated[int, Meta(ge=SHORTEST_PASSAGE, le=MOST_TOKENS)]


class CopySettings(Struct, frozen=True, forbid_unknown_fields=True):
    """What a user may choose; empty or None for what suits the model."""

    contexts: Annotated[
        tuple[_Context, ...],
        Meta(
            description="Contexts to copy in, in tokens; the copies of a token are "
            "half of it apart.",
            extra={"option": "--copy-context", "metavar": "LIST", "default": "1024"},
        ),
    ] = ()
    length: Annotated[
        _Length | None,
        Meta(
            description="Length of the passages that are copied, in tokens; other "
            "passages fill the distance between the two copies.",
            extra={"option": "--copy-length", "default": "half of the context"},
        ),
    ] = None
    chunks: Annotated[
        _Chunks | None,
        Meta(
            description="Texts to copy in each context.",
            extra={"option": "--copy-chunks", "default": "16"},
        ),
    ] = None
    kind: Annotated[
        Literal["words", "characters"],
        Meta(
            description="What is copied: random words, or random characters.",
            extra={
                "option": "--copy-of",
                "metavar": "words|characters",
                "default": "words",
            },
        ),
    ] = "words"
    text: Annotated[
        Path | None,
        Meta(
            description="A text to copy in their place.",
            extra={"option": "--copy-text", "metavar": "FILE", "default": "none"},
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyConditions:
    """
    What must be equal for copies to be comparable.

    Attributes:
        contexts: Lengths of chunks, in tokens; the first is the headline's.
        chunks: Chunks at each of them.
        length: Of the passages, in tokens; None for half a context.
        text: ``words``, ``characters``, or the name of a file.
        texts_sha256: Of the text of each context, as it is handed to the tool.
        layout: As of `LAYOUT`.
        llama: The tool's version, as it states it.
        arguments: Of the arguments for the engine, those the tool takes too.
        ignored: The others, which change nothing here.
    """

    contexts: tuple[Length, ...]
    chunks: _Chunks
    length: _Length | None
    text: str
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

    (found,) = (each for each in metrics if each.name == f"{probe}-logp")
    metric = replace(found, loss=None)  # in nats, not what losses are computed of
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
        """It makes its texts, or reads a file."""
        return False

    def more_metrics(self, setup: Setup) -> tuple[Metric, ...]:
        """The same at each context, where a run has several."""
        return at_contexts(setup, NAME)

    def order(self, pairs: Sequence[Pair]) -> Sequence[Pair]:
        """The reference first: the others are compared with it."""
        return most_precise_first(pairs)

    def check(self, settings: CopySettings, _corpus: Corpus | None) -> None:
        """
        Stop at settings that no model can satisfy.

        Raises:
            BadInput: If ``--copy-text`` is no text, or a passage is longer than half of
                a context.
        """
        if settings.text:
            _decoded(settings.text)
        shortest = min(settings.contexts, default=DEFAULT_CONTEXT)
        if settings.length and settings.length >= shortest // 2:
            raise BadInput(
                source=f"--copy-length {settings.length}",
                reason=f"half of a context of {shortest:,} tokens has no room for it",
                hint=f"Use --copy-length {shortest // 2 - 1} or less, or a longer "
                "--copy-context.",
            )

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
            BadInput: If a context is longer than the training, a text too short, or the
                tokenizer joins what should stay apart.
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
        texts = _stored_texts(run, settings, contexts)
        for context, text in zip(contexts, texts, strict=True):
            tool.check(
                text_name=NAME, text_bytes=len(text), context=context, chunks=chunks
            )
        refuse_full_disk(run, _folder(run), [(context, chunks) for context in contexts])
        return as_json(
            CopyConditions(
                contexts=contexts,
                chunks=chunks,
                length=settings.length,
                text=settings.text.name if settings.text else settings.kind,
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
        chosen = from_json(run.setup.probes[NAME], CopyConditions, file="setup.json")
        settings = run.settings_of(CopySettings, NAME)
        texts = []
        for at, length in enumerate(chosen.contexts):
            path = _path(run, settings, length)
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
    metrics=(*COPY_METRICS, *OF_CELL),
    settings=CopySettings,
    layout=CopyConditions,
    needs=frozenset({Ability.DIVERGENCE}),
    screens=True,
    counts_tokens=True,
    calibrates=True,
)


# --- texts in the run folder


def _folder(run: RunContext) -> Path:
    """Of its own: the reference's distributions there are named by context alone."""
    return run.folder / NAME


def _path(run: RunContext, settings: CopySettings, context: int) -> Path:
    """The text of one context, by all that decides it."""
    source = hashlib.sha256(_decoded(settings.text).encode()) if settings.text else None
    decisive = (
        LAYOUT,
        source.hexdigest() if source else (settings.kind, run.setup.seed),
        settings.chunks or DEFAULT_CHUNKS,
        settings.length,
        run.setup.weights.sha256,
    )
    name = hashlib.sha256(repr(decisive).encode()).hexdigest()[:16]
    return _folder(run) / f"{context}-{name}.txt"


def _stored_texts(
    run: RunContext, settings: CopySettings, contexts: Sequence[int]
) -> list[bytes]:
    """The text of each context; laid out if it is not in the run folder yet."""
    paths = {context: _path(run, settings, context) for context in contexts}
    missing = [context for context, path in paths.items() if not path.exists()]
    try:
        if missing:
            _folder(run).mkdir(parents=True, exist_ok=True)
            with tokenizing(run.engine, run.folder) as tokenizer:
                for context in missing:
                    text = _made_text(tokenizer, run, settings, context)
                    write_whole(paths[context], text.encode())
        return [read_regular(path) or b"" for path in paths.values()]
    except OSError as error:
        raise FolderUnusable(folder=_folder(run), reason=str(error)) from error


def _made_text(
    tokenizer: Tokenizer, run: RunContext, settings: CopySettings, context: int
) -> str:
    layout = Layout(
        context=context,
        chunks=max(2, settings.chunks or DEFAULT_CHUNKS),  # the tool wants two
        length=settings.length or context // 2 - 1,
    )
    source = f"{NAME}:{context}:{run.setup.seed}"
    if settings.text:
        whole = _decoded(settings.text)
        return layout.text(Cutter(tokenizer, lambda _count: whole, settings.text.name))
    made = made_words if settings.kind == "words" else made_characters
    return layout.text(
        Cutter(tokenizer, lambda count: made(source, count), settings.kind)
    )


def _decoded(path: Path) -> str:
    try:
        return file_bytes(path, option="--copy-text").decode()
    except UnicodeDecodeError as error:
        raise BadInput(
            source=f"--copy-text {path}",
            reason="it is not UTF-8",
            hint="Convert it, or name another text.",
        ) from error


def made_words(seed: str, count: int) -> str:
    """At least *count* characters of lines ``word = "word word"``."""
    # Skipping the greatest bytes makes all words equally likely.
    fair = 256 - 256 % len(WORDS)
    chosen = (WORDS[n % len(WORDS)] for n in random_bytes(seed) if n < fair)
    return _lines(chosen, count)


def made_characters(seed: str, count: int) -> str:
    """At least *count* characters of such lines, whose words are random characters."""
    fair = 256 - 256 % len(ALPHABET)
    drawn = (ALPHABET[n % len(ALPHABET)] for n in random_bytes(seed) if n < fair)
    return _lines(map("".join, zip(*[drawn] * WORD_LENGTH, strict=False)), count)


def _lines(words: Iterator[str], count: int) -> str:
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
    Cuts passages of an exact number of tokens out of a text, one after the other.

    A passage is only taken if, between separators, it is tokenized as it was in the
    text, and both times alike.

    Attributes:
        tokenizer: Of the model.
        source: Makes at least so many characters of text, or all that there is; more
            characters continue fewer.
        name: Of the text, for messages.
        separator: The token of `SEPARATOR`, once the source is read.
    """

    tokenizer: Tokenizer
    source: Callable[[int], str]
    name: str
    separator: tuple[int, ...] = field(default=(), init=False)
    _pool: list[tuple[int, str | None]] = field(default_factory=list)
    _at: int = 0

    def read(self, tokens: int) -> None:
        """
        Tokenize the beginning of the source: *tokens* tokens, and some to spare.

        Raises:
            BadInput: If it is shorter than that.
        """
        # Some tokenizers put a blank before everything.
        self.separator = self.ids(SEPARATOR)[-1:]
        needed, count, text = tokens + tokens // 2 + TRIES, tokens, ""
        while len(self._pool) < needed:
            before, count = len(text), START_CHARACTERS * count
            text = self.source(count)[:count]
            if len(text) == before:
                break
            found = self.tokenizer.tokens(text, add_special=False)
            self._pool = [
                (token.id, token.piece if isinstance(token.piece, str) else None)
                for token in found
            ]
        if len(self._pool) < tokens:
            raise self._too_short(tokens)

    def cut(self, tokens: int) -> Passage:
        """
        The next passage of *tokens* tokens.

        Raises:
            BadInput: If the text ends before it, or the tokenizer joins tokens across
                each boundary that was tried.
        """
        tried = 0
        begins_words = any(_begins_word(piece) for _, piece in self._pool[:TRIES])
        for start in range(self._at, len(self._pool) - tokens + 1):
            if begins_words and not _begins_word(self._pool[start][1]):
                continue
            passage = self._passage(start, tokens)
            if passage is not None:
                self._at = start + tokens
                return passage
            tried += 1
            if tried >= TRIES:
                raise unsuitable(self.name)
        raise self._too_short(tokens)

    def ids(self, text: str, *, add_special: bool = False) -> tuple[int, ...]:
        """Numbers of the tokens of *text*."""
        found = self.tokenizer.tokens(text, add_special=add_special)
        return tuple(token.id for token in found)

    def _passage(self, start: int, tokens: int) -> Passage | None:
        chosen = self._pool[start : start + tokens]
        pieces = [piece for _, piece in chosen if piece is not None]
        if len(pieces) < tokens:
            return None
        passage = Passage("".join(pieces), tuple(number for number, _ in chosen))
        expected = (*self.separator, *passage.ids) * 2 + self.separator
        twice = f"{SEPARATOR}{passage.text}" * 2 + SEPARATOR
        found = self.ids(twice)[-len(expected) :]
        return passage if found == expected else None

    def _too_short(self, tokens: int) -> BadInput:
        return BadInput(
            source=f"--copy-text {self.name}",
            reason=f"it has {len(self._pool):,} tokens, too few for passages of "
            f"{tokens:,}",
            hint="Use a longer text, fewer --copy-chunks or a smaller --copy-context.",
        )


def _begins_word(piece: str | None) -> bool:
    return piece is not None and piece.startswith(" ")


def unsuitable(name: str) -> BadInput:
    """The error for a text that cannot be cut so that its copies are equal."""
    return BadInput(
        source=f"copies of {name}",
        reason="the tokenizer of these weights joins tokens across each boundary that "
        "was tried, so that two copies are not the same tokens",
        hint="Use another --copy-of or --copy-text, or leave the probe copy out.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """
    How chunks are laid out: passages, each after a separator, and all of them again.

    A tool scores what follows the first token of the second half. That is a separator
    here, so scored are the second copies and the separators between them. Neighbours
    change places in the second half, so that each passage begins anew; the copies of
    a token are half a context apart, give or take the length of a passage.

    The first token of each chunk is a separator, too, or what begins a prompt: of
    later chunks, the tool overwrites it with that.

    Attributes:
        context: Length of a chunk, in tokens; even.
        chunks: How many.
        length: About the length of a passage, in tokens.
    """

    context: int
    chunks: int
    length: int

    @property
    def lengths(self) -> tuple[int, ...]:
        """Of the passages of a half, in tokens, without separators."""
        half = self.context // 2
        count = max(1, round(half / (self.length + 1)))
        return tuple(half // count + (at < half % count) - 1 for at in range(count))

    def text(self, cutter: Cutter) -> str:
        """
        All chunks, and something behind them, as the tool drops a last line break.

        Raises:
            BadInput: If they cannot be cut, or their tokens are not as laid out.
        """
        cutter.read(self.chunks * self.context // 2)
        text = ""
        expected: list[int] = []
        for _ in range(self.chunks):
            passages = [cutter.cut(length) for length in self.lengths]
            for passage in (*passages, *swapped(passages)):
                text += f"{SEPARATOR}{passage.text}"
                expected += [*cutter.separator, *passage.ids]
        text += f"{SEPARATOR}{WORDS[0]}"
        # Where a token begins a prompt, it takes the place of the first separator; a
        # blank that the tokenizer puts there itself takes that of the first blank.
        for begin in (0, len(SEPARATOR), len(SEPARATOR) + 1):
            found = cutter.ids(text[begin:], add_special=True)
            if list(found[1 : len(expected)]) == expected[1:]:
                return text[begin:]
        raise unsuitable(cutter.name)


def swapped(passages: Sequence[Passage]) -> Iterator[Passage]:
    """*passages*, the second before the first, the fourth before the third, ..."""
    for at in range(0, len(passages), 2):
        yield from reversed(passages[at : at + 2])
