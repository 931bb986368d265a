"""What a user may choose of recall, and what a setup stores of it."""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from codeneedle.corpora.corpus import FUNCTIONS, LIMIT
from codeneedle.corpora.needles import FORCED_LINES, WRITTEN_LINES
from codeneedle.probes.recall.record import NAME
from codeneedle.probes.stored import conditions_in
from codeneedle.records.record import MOST_TOKENS, Setup


class Ask(StrEnum):
    """
    What is asked of each needle.

    Written recall is the published protocol: the model writes the lines. Forced recall
    scores the right lines token by token, which has a gradient where writing is all
    right or all wrong.
    """

    WRITTEN = "written"
    FORCED = "forced"
    BOTH = "both"

    @property
    def parts(self) -> tuple["Ask", ...]:
        """What it consists of: written, forced, or these two."""
        return (Ask.WRITTEN, Ask.FORCED) if self is Ask.BOTH else (self,)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallConditions:
    """
    What recall asks of every pair, as a setup stores it.

    Attributes:
        ask: Lines written, lines forced, or both.
        functions: Functions whose lines are forced; open pairs may be asked for more.
        lines: Lines of each of them that are not blank.
        reply_tokens: Tokens of each written reply, which nothing ends earlier; None for
            as many as the lines may take, ended once more would tell nothing.
    """

    ask: Ask = Ask.BOTH
    functions: Annotated[int, Meta(ge=1, le=LIMIT)] = FUNCTIONS
    lines: Annotated[int, Meta(ge=1, le=WRITTEN_LINES)] = FORCED_LINES
    reply_tokens: Annotated[int, Meta(ge=1, le=MOST_TOKENS)] | None = None


def conditions_of(setup: Setup) -> RecallConditions:
    """
    What *setup* says of recall; the default where it says nothing.

    Raises:
        BadRecord: If it says something that is none.
    """
    return conditions_in(setup, NAME, RecallConditions)


class RecallSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """What a user may choose; None for what the run folder holds, or else a default."""

    ask: Annotated[
        Ask | None,
        Meta(
            description="What recall asks: lines written, right lines forced, or both.",
            extra={
                "option": "--ask",
                "metavar": "WRITTEN|FORCED|BOTH",
                "default": "both",
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


def conditions(settings: RecallSettings, setup: Setup | None) -> RecallConditions:
    """What is chosen, else what the run folder of *setup* holds, else the default."""
    stored = conditions_of(setup) if setup else RecallConditions()
    named = {name: getattr(settings, name) for name in RecallSettings.__struct_fields__}
    given = {name: value for name, value in named.items() if value is not None}
    return replace(stored, **given)
