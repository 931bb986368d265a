"""The files of a run folder that hold cells: which they are, and which can be used."""

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from codeneedle.comparability import refuse_foreign
from codeneedle.grid import Pair
from codeneedle.keeping import contents, why
from codeneedle.recordfile import Decode, decode_record
from codeneedle.records import BadRecord, CellRecord, Setup, Status

CELLS = "cells"

_CELL_NAME = re.compile(r"(?P<k>[^-]+)-(?P<v>[^-]+)\.(?P<probe>\w+)\.json")


@dataclass(frozen=True, slots=True)
class CellFiles:
    """
    The cells of a run.

    Attributes:
        run: The run folder.
    """

    run: Path

    def path(self, pair: Pair, probe: str) -> Path:
        """Where the record of *pair* and *probe* stands, if there is one."""
        return self.run / CELLS / f"{pair.slug}.{probe}.json"

    def cells(self) -> Iterator[tuple[Pair, str]]:
        """Pair and probe of each file, by file name."""
        for path in self._all():
            named = _CELL_NAME.fullmatch(path.name)
            if named:
                yield Pair(named["k"], named["v"]), named["probe"]

    def identities(self) -> set[str]:
        """Those of the setups that records name; empty ones of those that name none."""
        found = map(_readable, self._all())
        return {record.setup.partition("-")[0] for record in found if record}

    def read(
        self,
        pair: Pair,
        probe: str,
        *,
        setup: Setup | None,
        decode: Decode = decode_record,
    ) -> CellRecord | None:
        """
        The record of *pair* and *probe*; None if there is none.

        A file that cannot be used is a cell that was interrupted, and why.

        Args:
            pair: The cell's cache types.
            probe: What measured it.
            setup: That of the run; None if nobody knows.
            decode: Makes a record of what stands in a file.

        Raises:
            RecordTooNew: If a later codeneedle wrote it.
        """
        try:
            return self._own(pair, probe, setup, decode)
        except (OSError, BadRecord) as error:
            reason = error.reason if isinstance(error, BadRecord) else why(error)
        return CellRecord(
            pair=pair,
            probe=probe,
            status=Status.INTERRUPTED,
            started="",
            reason=f"its record cannot be used: {reason}",
        )

    def is_in_the_way(self, pair: Pair, probe: str, *, setup: Setup | None) -> bool:
        """Whether something stands where a record should, and is none of this cell."""
        with contextlib.suppress(OSError, BadRecord):
            self._own(pair, probe, setup, decode_record)
            return False
        return True

    def _own(
        self, pair: Pair, probe: str, setup: Setup | None, decode: Decode
    ) -> CellRecord | None:
        path = self.path(pair, probe)
        data = contents(path)
        if data is None:
            return None
        record = decode(data, file=str(path))
        refuse_foreign(record, pair, probe, setup=setup, file=str(path))
        return record

    def _all(self) -> list[Path]:
        return sorted((self.run / CELLS).glob("*.json"))


def _readable(path: Path) -> CellRecord | None:
    with contextlib.suppress(OSError, BadRecord):
        data = contents(path)
        return None if data is None else decode_record(data, file=str(path))
    return None
