"""What a user may choose of recall, and what a setup stores of it."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct, structs

from codeneedle.corpora.corpus import FUNCTIONS, LIMIT
from codeneedle.corpora.needles import FORCED_LINES, WRITTEN_LINES, NeedleFacts
from codeneedle.probes.observations import cached, calibrated_in, settings_in
from codeneedle.probes.recall.record import NAME
from codeneedle.records.record import MOST_TOKENS, Amount, Setup


class Ask(StrEnum):
    """
    What is asked of each needle.

    Written recall is the published protocol: the model writes the lines. Forced recall
    scores the right lines token by token, which has a gradient where writing is all
    right or all wrong.

    Automatic is both, and forced alone once the reference has written too little back
    for any pair to lose.
    """

    AUTOMATIC = "automatic"
    WRITTEN = "written"
    FORCED = "forced"
    BOTH = "both"

    @property
    def parts(self) -> tuple["Ask", ...]:
        """What it consists of: written, forced, or these two."""
        is_either = self in {Ask.BOTH, Ask.AUTOMATIC}
        return (Ask.WRITTEN, Ask.FORCED) if is_either else (self,)


class By(StrEnum):
    """
    How right lines are scored that are forced.

    By writing, a server is made to write them token by token. By reading, a tool reads
    the text with all questions and answers in batches: a model reads faster than it
    writes, on an accelerator ten to forty times. Both compute the same by different
    kernels, behind other prompts: they are never compared with each other.

    Automatic is what takes less time, by how fast the reference read and wrote.
    """

    AUTOMATIC = "automatic"
    WRITING = "writing"
    READING = "reading"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallCalibration:
    """What is asked of all pairs, and how, as the reference has set it."""

    by: By | None = None  # how right lines are scored; None for how the settings say
    ask: Ask | None = None  # what is asked; None for what the settings say
    matched: Amount | None = None
    """Lines that the reference wrote back, a mean; None if it wrote none."""

    written_s: Amount | None = None  # seconds that these took
    functions: Annotated[int, Meta(ge=1, le=LIMIT)] | None = None
    """Functions that each is asked for; None for those of the settings."""

    reading_s: Amount | None = None
    """Seconds of the reference for a token of the text; None if unknown."""

    forcing_s: Amount | None = None
    """Seconds of the reference for a right token that was forced; None if unknown."""

    read_cell_s: Amount | None = None
    """Seconds that a cell takes by reading, about; None if unknown."""

    forced_cell_s: Amount | None = None
    """Seconds that a cell takes by writing, about; None if unknown."""

    is_tried: bool = False
    """Whether the reference was read, which took *read_cell_s*."""

    unread: str = ""
    """
    Why lines are forced although reading takes less time: the reference could not be
    read; empty if it could, or was not to be.
    """


DECIDING_FUNCTIONS, DECIDING_LINES = 12, 3
"""
The fewest functions of the first step of a sweep that decides, and lines of each.

Twelve decide a pair that loses nothing against 1 % (`scripts/truth.py`); three lines of
many functions tell more than more lines of few.
"""


class RecallSettings(Struct, frozen=True, omit_defaults=True):
    """
    What recall asks of every pair.

    None is what a user leaves open, for what the run folder holds or else a default. As
    a setup stores them, nothing is open that has a default.
    """

    ask: Annotated[
        Ask | None,
        Meta(
            description="What recall asks: lines written, right lines forced, or both.",
            extra={
                "option": "--ask",
                "metavar": "AUTOMATIC|WRITTEN|FORCED|BOTH",
                "default": "both; forced alone where the reference writes too little",
            },
        ),
    ] = None
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
    by: Annotated[
        By | None,
        Meta(
            description="How forced lines are scored: token by token as they are "
            "written, or where they stand in a text that is read in batches.",
            extra={
                "option": "--by",
                "metavar": "AUTOMATIC|WRITING|READING",
                "default": "automatic: what takes less time, by the reference",
            },
        ),
    ] = None

    @property
    def parts(self) -> tuple[Ask, ...]:
        """What is asked: lines written, lines forced, or these two."""
        return (self.ask or Ask.BOTH).parts

    @property
    def function_count(self) -> int:
        """Functions whose lines are forced; open pairs may be asked for more."""
        return FUNCTIONS if self.functions is None else self.functions

    @property
    def line_count(self) -> int:
        """Lines of each of them that are not blank."""
        return self.lines or FORCED_LINES

    @property
    def is_reading(self) -> bool:
        """Whether right lines are read, rather than forced as they are written."""
        return self.by is By.READING

    @property
    def how(self) -> str:
        """What becomes of right lines, as a word of phrases."""
        return "read" if self.is_reading else "forced"

    @property
    def decided(self) -> "RecallSettings":
        """These, with the defaults of what was left open, as they are stored."""
        return structs.replace(
            self,
            ask=self.ask or Ask.BOTH,
            functions=self.function_count,
            lines=self.line_count,
            by=None if self.by is By.WRITING else self.by,
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


FUNCTIONS_KEYS = frozenset({"wording", "written", "forced"})
"""Keys of what is stored beside settings."""


@cached()
def functions_in(setup: Setup) -> RecallLayout:
    """
    The functions that *setup* asks for; none where it says nothing of recall.

    Raises:
        BadRecord: If it says something that is none.
    """
    return settings_in(setup, NAME, RecallLayout)


def stated_in(setup: Setup) -> RecallSettings:
    """
    What *setup* says of recall; all open where it says nothing.

    Raises:
        BadRecord: If it says something that is none.
    """
    return settings_in(setup, NAME, RecallSettings)


def choice_in(setup: Setup) -> RecallCalibration | None:
    """
    What the reference has set; None before it has, or where it sets nothing.

    Raises:
        BadRecord: If it says something that is none.
    """
    return calibrated_in(setup, NAME, RecallCalibration) if leaves_open(setup) else None


def leaves_open(setup: Setup) -> bool:
    """
    Whether *setup* leaves something to the reference.

    Raises:
        BadRecord: As of `stated_in`.
    """
    stated = stated_in(setup)
    return stated.by is By.AUTOMATIC or stated.ask is Ask.AUTOMATIC


def settings_of(setup: Setup) -> RecallSettings:
    """
    What is asked under *setup*: what it says, with what the reference has set.

    Raises:
        BadRecord: As of `stated_in` and `choice_in`.
    """
    return with_choice(stated_in(setup), setup)


def with_choice(settings: RecallSettings, setup: Setup | None) -> RecallSettings:
    """
    *settings* with what the reference of *setup* has set, if it has set something.

    Raises:
        BadRecord: As of `settings_of`.
    """
    choice = choice_in(setup) if setup else None
    if choice is None:
        return settings
    return structs.replace(
        settings,
        by=choice.by or settings.by,
        ask=choice.ask or settings.ask,
        functions=choice.functions or settings.functions,
    )
