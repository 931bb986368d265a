"""
Options of recall (``--way``, ``--functions``, ``--lines``, ``--reply-tokens``), with
their defaults and limits, and what a setup stores of it.
"""

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct, structs

from codeneedle.corpora.corpus import FUNCTIONS, LIMIT
from codeneedle.corpora.needles import FORCED_LINES, WRITTEN_LINES, NeedleFacts
from codeneedle.probes.observations import keep_results, settings_in
from codeneedle.probes.recall.copied_lines import NO_LINES, TextLines
from codeneedle.records.record import MOST_TOKENS, Setup

NAME = "recall"
"""Of the probe."""


class Way(StrEnum):
    """
    How a function is asked for.

    To write is the published protocol: the model writes the lines. To force or to read
    scores the right lines token by token, which has a gradient where writing is all
    right or all wrong: forced, a server is made to write them; read, they stand in a
    text that is read in batches, which an accelerator does ten to forty times as fast.
    Both compute the same by different kernels, behind other prompts: they are never
    compared with each other.
    """

    WRITE = "write"
    FORCE = "force"
    READ = "read"


MOST_READ = 16_384
"""
Tokens of the longest text that is read rather than forced on an accelerator.

In 84 situations (seven machines, texts of 2,000 to 64,000 tokens) it takes 1.03 times
what the faster way takes, a mean; to force in all of them takes 1.43 times.
"""

FORCED_BESIDE = 6
"""Functions of the pair to set, and of the reference, that are forced for a check."""


DECIDING_FUNCTIONS, DECIDING_LINES = 12, 3
"""
The fewest functions of the first step of a sweep that decides, and lines of each.

Twelve decide a pair that loses nothing against 1 % (`scripts/truth.py`); three lines of
many functions tell more than more lines of few.
"""

DECIDING_READ = 48
"""Of lines that are read: a question costs little beside its text, which each reads."""


class RecallSettings(Struct, frozen=True, omit_defaults=True):
    """
    What recall asks of every pair.

    None is what a user leaves open, for what the run folder holds or else a default. As
    a setup stores them, nothing is open that has a default.
    """

    way: Annotated[
        tuple[Way, ...],
        Meta(
            description="How functions are asked for: write, the model writes their "
            "lines; force, right lines are scored as a server is made to write them; "
            "read, where they stand in a text that is read in batches. To write may "
            "stand beside one of the others.",
            extra={
                "option": "--way",
                "metavar": "LIST",
                "default": "read on an accelerator, of texts up to "
                f"{MOST_READ >> 10}K tokens, where the tool can hold them, else force; "
                "of a grid write, too",
            },
        ),
    ] = ()
    functions: Annotated[
        Annotated[int, Meta(ge=1, le=LIMIT)] | None,
        Meta(
            description="Functions whose lines are forced.",
            extra={
                "option": "--functions",
                "default": f"{FUNCTIONS}, or as many as the context holds",
            },
        ),
    ] = None
    lines: Annotated[
        Annotated[int, Meta(ge=1, le=WRITTEN_LINES)] | None,
        Meta(
            description="Lines of each of them that are forced.",
            extra={"option": "--lines", "default": str(FORCED_LINES)},
        ),
    ] = None
    reply_tokens: Annotated[
        Annotated[int, Meta(ge=1, le=MOST_TOKENS)] | None,
        Meta(
            description="Limit of written replies, in tokens. Only it and the model "
            "end them, so that running on is seen.",
            extra={
                "option": "--reply-tokens",
                "default": "what the lines take, and ended early",
            },
        ),
    ] = None

    @property
    def ways(self) -> tuple[Way, ...]:
        """
        How functions are asked for, in asking order.

        Written and forced by default.
        """
        return tuple(way for way in Way if way in (self.way or (Way.WRITE, Way.FORCE)))

    @property
    def writes_lines(self) -> bool:
        """Whether lines are written."""
        return Way.WRITE in self.ways

    @property
    def scores_right_lines(self) -> bool:
        """Whether right lines are scored: forced, or read."""
        return self.ways != (Way.WRITE,)

    @property
    def reads_instead_of_forcing(self) -> bool:
        """Whether right lines are read, rather than forced."""
        return Way.READ in self.ways

    @property
    def without_writing(self) -> "RecallSettings":
        """These with right lines scored alone: read if they are so far, else forced."""
        scored = (Way.READ if self.reads_instead_of_forcing else Way.FORCE,)
        return structs.replace(self, way=scored)

    @property
    def function_count(self) -> int:
        """
        Functions whose lines are scored in every sweep; `FUNCTIONS` by default.

        Open pairs may be asked for more.
        """
        return FUNCTIONS if self.functions is None else self.functions

    @property
    def lines_per_function(self) -> int:
        """Lines scored of a function, without blank ones; `FORCED_LINES` by default."""
        return self.lines or FORCED_LINES

    @property
    def read_or_forced_word(self) -> str:
        """``read`` if right lines are read, else ``forced``."""
        return "read" if self.reads_instead_of_forcing else "forced"

    @property
    def with_defaults(self) -> "RecallSettings":
        """These, with the defaults of what was left open, as they are stored."""
        return structs.replace(
            self,
            way=self.ways,
            functions=self.function_count,
            lines=self.lines_per_function,
        )


class RecallLayout(RecallSettings, frozen=True, omit_defaults=True):
    """What a setup stores of recall: settings, and the functions that it asks for."""

    wording: int = 0
    """Version of how it asks, `prompts.WORDING`; 0 where nothing is stored."""

    written: tuple[NeedleFacts, ...] = ()  # functions to be written, in asking order
    forced: tuple[NeedleFacts, ...] = ()
    """
    Functions whose lines are forced, in asking order: those of every sweep, then those
    that open pairs may be asked for in addition.
    """

    text: TextLines = NO_LINES
    """The lines of the text, where functions are written; none where none are."""


FUNCTIONS_KEYS = frozenset({"wording", "written", "forced", "text"})
"""Keys of what is stored beside settings."""


@keep_results()
def recall_layout(setup: Setup) -> RecallLayout:
    """
    The settings of recall in *setup*, with the functions that it asks for.

    All open, and no functions, where it says nothing of recall.

    Raises:
        BadRecord: If what it says has another layout.
    """
    return settings_in(setup, NAME, RecallLayout)


def settings_of(setup: Setup) -> RecallSettings:
    """
    What is asked under *setup*; all open where it says nothing of recall.

    Raises:
        BadRecord: If what it says has another layout.
    """
    return settings_in(setup, NAME, RecallSettings)
