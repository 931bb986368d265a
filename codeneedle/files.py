"""Files written whole or not at all."""

import os
from pathlib import Path


def write_whole(path: Path, data: bytes) -> None:
    """
    Put *data* at *path*, in one step for whoever looks; folders are made.

    A write that fails, or a machine that stops in the middle of one, leaves what
    was there before.

    Raises:
        OSError: If the disk refuses.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.draft")
    try:
        with draft.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
