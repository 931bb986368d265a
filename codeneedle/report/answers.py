"""What a pair answered: the record that a person means, whole or one round of it."""

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.text import Text

from codeneedle.errors import RequestError, UnknownName
from codeneedle.grid import Pair
from codeneedle.records import CellRecord, Run
from codeneedle.report.safetext import visible
from codeneedle.report.sidebyside import rounds_overview, side_by_side
from codeneedle.scored_rounds import AskedRound, Reading, asked_rounds
from codeneedle.scoring import score


class NotMeasured(RequestError):  # noqa: N818 - named after the fact
    """The sweep has no record of the pair."""

    def __init__(self, *, pair: Pair, runs: Sequence[Run]) -> None:
        names = ", ".join(run.name for run in runs)
        super().__init__(
            f"{names} has no record of {pair}",
            hint=f"See which there are: codeneedle grid {names.split(',')[0]}",
        )


def answers(
    runs: Sequence[Run],
    pair: Pair,
    function: str | None,
    reading: Reading,
    *,
    width: int,
    colour: bool,
) -> Iterator[RenderableType]:
    """
    All rounds of *pair* at a glance, or the one of *function* line by line.

    Args:
        runs: Where to look; each that has the pair is shown.
        pair: The cell.
        function: Name of a needle, or the end of one; None for all.
        reading: How stored replies are read.
        width: Columns of the terminal.
        colour: Whether to colour; marks say the same.

    Raises:
        NotMeasured: If no run has the pair.
        UnknownName: If none of its rounds asks for the function.
    """
    found = [(run, record) for run in runs if (record := _record(run, pair))]
    if not found:
        raise NotMeasured(pair=pair, runs=runs)
    for run, record in found:
        if function is None:
            yield rounds_overview(run, record, reading)
            continue
        asked = _asked(run, record, function)
        title = f"{run.name}  {pair}  {asked.needle.name}"
        yield Text(visible(title), style="bold")
        yield _round_view(asked, reading, width=width, colour=colour)


def _record(run: Run, pair: Pair) -> CellRecord | None:
    return next((record for record in run.records if record.pair == pair), None)


def _asked(run: Run, record: CellRecord, function: str) -> AskedRound:
    rounds = asked_rounds(record, run.setup) if record.is_finished else ()
    for asked in rounds:
        if asked.needle.name == function or asked.needle.name.endswith(f".{function}"):
            return asked
    known = [asked.needle.name for asked in rounds]
    raise UnknownName(kind="function", name=function, known=known)


def _round_view(
    asked: AskedRound, reading: Reading, *, width: int, colour: bool
) -> RenderableType:
    if asked.error:
        return Text(f"no answer: {visible(asked.error)}")
    scored = score(asked.needle, asked.round.reply, strict_indent=reading.strict_indent)
    return side_by_side(asked.needle, scored, width=width, colour=colour)
