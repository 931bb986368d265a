"""
The formula of what a cell takes: its price (starts, tokens read and written, tokens
before these) times the pace of a model, in seconds.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """What is to be done, of a cell or a part of one; prices add up."""

    starts: float = 0  # servers and tools that start
    read: float = 0  # tokens of texts that are read
    read_back: float = 0  # tokens before each of these, all together
    written: float = 0  # tokens that are written or forced one after the other
    write_back: float = 0  # tokens before each of these, all together

    @classmethod
    def of_texts(cls, *lengths: float) -> "Price":
        """The price of reading texts of so many tokens, each from an empty cache."""
        back = sum(length * length / 2 for length in lengths)
        return cls(read=sum(lengths), read_back=back)

    @classmethod
    def of_answers(cls, tokens: float, depth: float) -> "Price":
        """The price of writing or forcing *tokens* behind *depth* others."""
        return cls(written=tokens, write_back=tokens * depth)

    @classmethod
    def of_cell(
        cls, texts: Iterable[float], *, written: float = 0, depth: float = 0
    ) -> "Price":
        """Price of a start, texts so long, and *written* tokens behind *depth* more."""
        return CELL + cls.of_texts(*texts) + cls.of_answers(written, depth)

    def __add__(self, other: "Price") -> "Price":
        return Price(
            starts=self.starts + other.starts,
            read=self.read + other.read,
            read_back=self.read_back + other.read_back,
            written=self.written + other.written,
            write_back=self.write_back + other.write_back,
        )

    def __mul__(self, times: float) -> "Price":
        return Price(
            starts=times * self.starts,
            read=times * self.read,
            read_back=times * self.read_back,
            written=times * self.written,
            write_back=times * self.write_back,
        )


CELL = Price(starts=1)
"""That of a cell of which nothing else is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """
    About how long a model takes here, in seconds.

    It is stated by a user, known of an engine, or taken of records.
    """

    start_s: float = 0.0  # a server, until it is ready, and its end
    read_s: float = 0.0  # a token of a text that is read
    read_back_s: float = 0.0  # each token before one that is read
    write_s: float = 0.0  # a token that is written
    write_back_s: float = 0.0  # each token before one that is written

    @classmethod
    def of_cells(cls, times: Iterable[float]) -> "Pace":
        """Pace of cells that are alike: a start takes the mean of *times* (seconds)."""
        return cls(start_s=fmean(times))

    def seconds_for(self, price: Price) -> float:
        """Seconds that *price* takes."""
        return (
            price.starts * self.start_s
            + price.read * self.read_s
            + price.read_back * self.read_back_s
            + price.written * self.write_s
            + price.write_back * self.write_back_s
        )
