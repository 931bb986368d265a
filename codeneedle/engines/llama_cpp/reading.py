"""
Reads rows of a base file through a pipe while llama-perplexity writes them: scores
right tokens (bounds, ties), compares with the reference, refuses what cannot be a row.

A row has the log-probabilities of the whole vocabulary at one place of a text. Only
those in front of right tokens are kept, or each is compared with that of the reference,
so that nothing takes disk.
"""

import contextlib
import math
import os
import select
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from codeneedle.engines.distributions import (
    DEEPEST,
    SCALE_VALUES,
    Sums,
    decoded_row,
    values_per_row,
)
from codeneedle.engines.llama_cpp.base_file import (
    HEADER,
    MAGIC,
    BaseFile,
    Job,
    scored_token_count,
    translating_folder_errors,
    write_text_file,
)
from codeneedle.engines.messages import round_finite_score_or_zero
from codeneedle.engines.tools import (
    ChunkValues,
    Comparison,
    DivergenceTask,
    Estimate,
    ReadingTask,
    ReadTokens,
    indices_of_first_equals,
)
from codeneedle.errors import CellError
from codeneedle.records.record import Status
from codeneedle.scores import NoScore, checked_log_probability
from codeneedle.system.files import (
    open_regular,
    reason_of,
    refuse_linked_folder,
    temporary_private_folder,
)
from codeneedle.text import plural

Stored = npt.NDArray[np.uint16]
"""A row as it is written: scale and minimum, then a value for each token."""

Ids = npt.NDArray[np.int32]
"""Numbers of tokens."""

OTHER_HEADER = "its header is that of another file"

TOP = 65535
"""The value of the most probable token."""

SLACK = 0.05
"""
By how much the probabilities of a row may not add up to 1.

Of those that are too small for a row each counts as 16 nats below the first: 0.02 in
total with a vocabulary of 150,000.
"""

READ_BYTES = 1 << 20
"""Taken from the pipe at once, at most."""

LOWEST = -1e9
"""Below any log-probability, in nats."""

POLL_S = 0.05
"""How long the reader of a pipe waits before it looks whether it is to stop."""


@dataclass(slots=True, kw_only=True)
class RowStream(ABC):
    """Takes a base file piece by piece, and has each row looked at as it comes."""

    vocabulary: int  # tokens that the model knows
    context: int  # length of a chunk, in tokens
    chunks: int  # chunks of text
    fault: str = field(default="", init=False)
    """What is wrong with the file, as a phrase; empty if nothing so far."""

    nan_from: int | None = field(default=None, init=False)
    """The first wanted token, from 1, whose row is NaN; None if none is so far."""

    taken: int = field(default=0, init=False)  # bytes so far
    _rest: bytearray = field(init=False)
    _row: int = field(init=False)

    def start_over(self) -> None:
        """Forget what was taken: the file is written again."""
        self.fault, self.nan_from, self.taken, self._row = "", None, 0, -1
        self._rest = bytearray()

    @abstractmethod
    def header_fault(self, stated: tuple[object, ...], ids: Ids) -> str:
        """What is wrong with the *stated* header or the *ids* of the text; or empty."""

    @abstractmethod
    def process_row(self, number: int, stored: Stored) -> None:
        """Look at the row of that *number*, from 0, as it is *stored*."""

    def note_row_fault(self, stored: Stored, place: int) -> bool:
        """
        Whether the row of the token at *place* is no distribution.

        If so, set `fault`, and `nan_from` where it is NaN.
        """
        scale, low = (
            float(number) for number in stored[:SCALE_VALUES].view(np.float32)
        )
        if math.isnan(scale) or math.isnan(low):
            self.nan_from = place + 1
        if fault := row_fault(stored, self.vocabulary):
            self.fault = f"its row of token {place:,} is none: {fault}"
        return bool(fault)

    def token_place_of_row(self, number: int) -> int:
        """The place in the text, from 0, that the row of that *number* tells of."""
        chunk, at = divmod(number, scored_token_count(chunks=1, context=self.context))
        return chunk * self.context + self.context // 2 + 1 + at

    @property
    def expected_row_count(self) -> int:
        """Rows of a whole file."""
        return scored_token_count(chunks=self.chunks, context=self.context)

    @property
    def has_all_rows(self) -> bool:
        """Whether all rows have come, and nothing behind them."""
        return self._row == self.expected_row_count and not self._rest

    @property
    def is_whole(self) -> bool:
        """Whether all rows have come, and nothing is wrong with them."""
        return self.has_all_rows and not self.fault

    @property
    def final_fault(self) -> str:
        """What is wrong with a file that has ended, as a phrase; empty if nothing."""
        if self.is_whole:
            return ""
        rows = f"{max(self._row, 0):,} of {self.expected_row_count:,} rows"
        over = f" and {plural(len(self._rest), 'byte')}" if self._rest else ""
        return self.fault or f"it ended after {rows}{over}"

    def feed_bytes(self, data: bytes) -> None:
        """Take the next bytes of the file; once it has a `fault`, only count them."""
        self.taken += len(data)
        self._rest += data
        while part := self._pop_header_or_row():
            self._process_header_or_row(part)
        if self._row > self.expected_row_count or (
            self._row == self.expected_row_count and self._rest
        ):
            self.fault = f"it has more than {plural(self.expected_row_count, 'row')}"

    def _pop_header_or_row(self) -> bytes:
        """Header and tokens, or a row, once all of it has come; else empty."""
        is_begun = self._row >= 0
        size = 2 * values_per_row(self.vocabulary)
        size = size if is_begun else HEADER.size + 4 * self.context * self.chunks
        if self.fault:
            self._rest.clear()
        if len(self._rest) < size:
            return b""
        part = bytes(memoryview(self._rest)[:size])
        del self._rest[:size]
        return part

    def _process_header_or_row(self, part: bytes) -> None:
        """Take in the header, or the next row; further rows are only counted."""
        if self._row < 0:
            ids = np.frombuffer(part, dtype=np.int32, offset=HEADER.size)
            stated = HEADER.unpack(part[: HEADER.size])
            self.fault = self.header_fault(stated, ids)
        elif self._row < self.expected_row_count:
            self.process_row(self._row, np.frombuffer(part, dtype=np.uint16))
        self._row += 1


@dataclass(slots=True, kw_only=True)
class Rows(RowStream):
    """Takes a base file of one chunk piece by piece, and keeps what is asked for."""

    ids: Sequence[int]  # numbers of the tokens that the chunk must consist of
    wanted: Sequence[int]
    """
    Places in the chunk, from 0, ascending, whose tokens are scored; each in the second
    half, behind its first token.
    """

    chunks: int = field(default=1, init=False)
    context: int = field(init=False)
    _kept: dict[int, tuple[float, float, bool]] = field(init=False)
    _asked: frozenset[int] = field(init=False)

    def __post_init__(self) -> None:
        self.context = len(self.ids)
        self._asked = frozenset(self.wanted)
        self.start_over()

    @override
    def start_over(self) -> None:
        RowStream.start_over(self)
        self._kept = {}

    @property
    @override
    def is_whole(self) -> bool:
        """Whether the file is whole, and each wanted token has its score."""
        return self.has_all_rows and not self.fault and not self._places_without_score

    @property
    def _places_without_score(self) -> list[int]:
        """Wanted places whose row has not come, or that no row tells of."""
        return [place for place in self.wanted if place not in self._kept]

    @property
    @override
    def final_fault(self) -> str:
        if self.has_all_rows and not self.fault and self._places_without_score:
            return f"no row of it tells of token {self._places_without_score[0]:,}"
        return RowStream.final_fault.fget(self)  # type: ignore[attr-defined, no-any-return]

    def wanted_token_scores(self) -> ReadTokens:
        """The scores of the wanted tokens of a whole file."""
        scores = [self._kept[place] for place in self.wanted]
        return ReadTokens(
            logprobs=tuple(logprob for logprob, _, _ in scores),
            leads=tuple(lead for _, lead, _ in scores),
            bounds=tuple(at for at, (_, _, is_bound) in enumerate(scores) if is_bound),
        )

    @override
    def process_row(self, number: int, stored: Stored) -> None:
        """Score the token behind the row, if it is wanted."""
        place = self.token_place_of_row(number)
        if place in self._asked:
            self._keep_score_or_fault(place, stored)

    @override
    def header_fault(self, stated: tuple[object, ...], ids: Ids) -> str:
        if stated != (MAGIC, self.context, self.vocabulary, 1):
            return OTHER_HEADER
        # A token that begins each prompt is put over the first when it is read.
        unlike = np.flatnonzero(ids != np.asarray(self.ids, dtype=np.int32))
        if len(unlike):
            at = int(unlike[0])
            return f"token {at:,} of its text is {ids[at]}, not {self.ids[at]}"
        if not 0 <= ids.min() <= ids.max() < self.vocabulary:
            return f"its text has tokens beyond the {self.vocabulary:,} of the model"
        return ""

    def _keep_score_or_fault(self, place: int, stored: Stored) -> None:
        """Keep the score of the token at *place*; if its row is none, set `fault`."""
        scale, low = (
            float(number) for number in stored[:SCALE_VALUES].view(np.float32)
        )
        values = stored[SCALE_VALUES : SCALE_VALUES + self.vocabulary]
        if self.note_row_fault(stored, place):
            return
        right = self.ids[place]
        value = int(values[right])
        others = (values[:right], values[right + 1 :])
        runner_up = max(int(other.max()) for other in others if len(other))
        self._kept[place] = (
            round_finite_score_or_zero(checked_log_probability(low + scale * value)),
            # Values that are equal are a tie: their order was lost.
            round_finite_score_or_zero(scale * (value - runner_up)),
            value == 0,
        )


@dataclass(slots=True, kw_only=True)
class CheckedRows(RowStream):
    """Takes a base file, and finds the first row that is none."""

    def __post_init__(self) -> None:
        self.start_over()

    def feed_file(self, path: Path) -> None:
        """
        Take all of the file at *path*.

        Raises:
            OSError: If it cannot be read.
        """
        with open_regular(path) as file:
            while data := file.read(READ_BYTES):
                self.feed_bytes(data)

    @override
    def header_fault(self, stated: tuple[object, ...], ids: Ids) -> str:
        expected = (MAGIC, self.context, self.vocabulary, self.chunks)
        return "" if stated == expected else OTHER_HEADER

    @override
    def process_row(self, number: int, stored: Stored) -> None:
        """Set `fault` if the row is none."""
        self.note_row_fault(stored, self.token_place_of_row(number))


@dataclass(slots=True, kw_only=True)
class ComparedRows(RowStream):
    """Takes the base file of a pair, and compares its rows with the reference's."""

    base: Path  # the base file of the reference, on the same text
    _there: BinaryIO | None = field(default=None, init=False)
    _ids: Ids = field(init=False)
    _sums: Sums = field(init=False)
    _by_chunk: list[ChunkValues] = field(init=False)

    @override
    def start_over(self) -> None:
        """Forget what was taken, and open the base file of the reference anew."""
        RowStream.start_over(self)
        self._sums, self._by_chunk = Sums(), []
        self.close()
        self._there = open_regular(self.base)
        self._there.seek(HEADER.size)
        size = 4 * self.context * self.chunks
        self._ids = np.frombuffer(self._there.read(size), dtype=np.int32)

    def close(self) -> None:
        """Close the reference's base file."""
        if self._there is not None:
            self._there.close()
            self._there = None

    @override
    def header_fault(self, stated: tuple[object, ...], ids: Ids) -> str:
        if stated != (MAGIC, self.context, self.vocabulary, self.chunks):
            return OTHER_HEADER
        if len(ids) != len(self._ids) or (ids != self._ids).any():
            return "its text has other tokens than that of the reference"
        if not 0 <= ids.min() <= ids.max() < self.vocabulary:
            return f"its text has tokens beyond the {self.vocabulary:,} of the model"
        return ""

    @override
    def process_row(self, number: int, stored: Stored) -> None:
        """
        Add the row's distance from that of the reference, or set `fault`.

        The last of a chunk ends its means.
        """
        if self._there is None:
            return
        of_chunk = scored_token_count(chunks=1, context=self.context)
        chunk, at = divmod(number, of_chunk)
        place = self.token_place_of_row(number)
        base = np.frombuffer(self._there.read(stored.nbytes), dtype=np.uint16)
        if len(base) != len(stored) or row_fault(base, self.vocabulary):
            self.fault = f"the base file of the reference has no row of token {place:,}"
        if self.fault or self.note_row_fault(stored, place):
            return
        self._sums.add_token(
            decoded_row(stored, self.vocabulary),
            decoded_row(base, self.vocabulary),
            int(self._ids[place]),
        )
        if at + 1 == of_chunk:
            self._by_chunk.append(self._sums.means_from(chunk * of_chunk))

    def comparison(self, *, ppl: Estimate | None, retries: int) -> Comparison:
        """
        The pair, all of whose rows have come, beside the reference.

        Args:
            ppl: Perplexity of the pair as the tool states it, before it was rounded
                into rows; None where it does not: that of the rows is another one.
            retries: How often the tool ran again.
        """
        return Comparison(
            statistics=replace(self._sums.statistics(), ppl=ppl),
            tokens=len(self._sums),
            retries=retries,
            by_chunk=tuple(self._by_chunk),
            logprobs=self._sums.rounded_logprobs,
            first_choices=self._sums.first_choice_percent,
            # The first token may be one that begins each prompt.
            same_as=indices_of_first_equals(
                chunk[1:].tobytes() for chunk in self._ids.reshape(self.chunks, -1)
            ),
        )


def row_fault(stored: Stored, vocabulary: int) -> str:
    """Why a row is no distribution, as a phrase; empty if it is one."""
    scale, low = (float(number) for number in stored[:SCALE_VALUES].view(np.float32))
    values = stored[SCALE_VALUES : SCALE_VALUES + vocabulary]
    # A scale that is no number fails this, too.
    if not (0 <= scale <= (DEEPEST + SLACK) / TOP and LOWEST < low <= SLACK):
        return f"a scale of {scale:g} and a minimum of {low:g}"
    try:
        checked_log_probability(low + scale * int(values.max()))
    except NoScore as error:
        return str(error)
    total = float(np.exp(low + scale * values.astype(np.float64)).sum())
    if not math.isclose(total, 1, abs_tol=SLACK):
        return f"its probabilities add up to {total:.3f}"
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadJob(Job):
    """A run whose base file is read through a pipe, and not kept."""

    pipe: Path  # stands for the base file
    rows: RowStream  # takes what comes

    @property
    @override
    def base(self) -> Path:
        """The pipe that stands for the base file."""
        return self.pipe

    @override
    def written_bytes(self) -> int:
        """What has come through the pipe."""
        return self.rows.taken

    @override
    def fault(self) -> str:
        """What is wrong with the rows so far; empty if nothing is."""
        return self.rows.fault

    @override
    def first_nan_token(self) -> int | None:
        """The first token whose row is NaN; None without one."""
        return self.rows.nan_from


def prepare_reading(
    task: ReadingTask, *, log: Path, vocabulary: int
) -> tuple[ReadJob, Rows]:
    """
    The run that reads the text of *task*, its pipe aside, and what takes its rows.

    Raises:
        FolderUnusable: If the text cannot be written to the run folder.
    """
    rows = Rows(ids=task.ids, wanted=task.wanted, vocabulary=vocabulary)
    folder = refuse_linked_folder(task.folder / "base")
    with translating_folder_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        text = write_text_file(folder, task.text)
    asked = DivergenceTask(
        pair=task.pair,
        reference=task.pair,
        context=len(task.ids),
        chunks=1,
        text=task.text,
        text_name=task.text_name,
        weights_sha256="",
        folder=task.folder,
        silence_limit=task.silence_limit,
    )
    return ReadJob(task=asked, text=text, log=log, pipe=Path(), rows=rows), rows


def prepare_comparing(
    task: DivergenceTask, chunks: int, *, log: Path, vocabulary: int
) -> tuple[ReadJob, ComparedRows]:
    """
    The run that reads the text of *task* with its pair, and what compares its rows.

    Raises:
        FolderUnusable: If the text cannot be written to the run folder.
    """
    base = BaseFile.of(task.folder, context=task.context).path
    rows = ComparedRows(
        vocabulary=vocabulary, context=task.context, chunks=chunks, base=base
    )
    with translating_folder_errors(base.parent):
        text = write_text_file(base.parent, task.text)
    # As the reference is read: the tool writes what is compared.
    asked = replace(task, reference=task.pair, chunks=chunks)
    return ReadJob(task=asked, text=text, log=log, pipe=Path(), rows=rows), rows


@contextlib.contextmanager
def piping_into_rows(rows: RowStream) -> Iterator[Path]:
    """
    A named pipe that *rows* take from, for the length of a block.

    When the block ends, what is still in it is taken. A program that opens it to write
    never waits.

    Raises:
        CellError: If none can be made: some network drives have no pipes.
        FolderUnusable: If the cache folder cannot be written.
    """
    with temporary_private_folder() as folder:
        path = folder / "rows"
        try:
            os.mkfifo(path, mode=0o600)
            pipe = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        except OSError as error:
            raise CellError(
                f"no pipe can be made in {folder.parent}: {reason_of(error)}",
                hint="Set CODENEEDLE_CACHE to a folder of a local disk.",
                status=Status.UNSUPPORTED,
            ) from error
        over = threading.Event()
        reader = threading.Thread(
            target=_drain_pipe, args=(pipe, rows, over), daemon=True
        )
        reader.start()
        try:
            yield path
        finally:
            over.set()
            reader.join()
            os.close(pipe)


def _drain_pipe(pipe: int, rows: RowStream, over: threading.Event) -> None:
    """Give *rows* what comes through *pipe*, until it is *over* and the pipe empty."""
    while True:
        is_over = over.is_set()
        ready, _, _ = select.select([pipe], [], [], 0 if is_over else POLL_S)
        data = b""
        with contextlib.suppress(BlockingIOError):
            data = os.read(pipe, READ_BYTES) if ready else b""
        if data:
            rows.feed_bytes(data)
        elif is_over:
            return
        elif ready:
            # Nobody writes: not yet, or no longer.
            over.wait(POLL_S)
