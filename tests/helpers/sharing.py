"""
A sweep of cells that only wait, in a folder that several processes share:
``sharing.py FOLDER SETTINGS``; prints each cell when it begins and when it is over.

SETTINGS is a JSON object: ``share``, as ``1/2``; ``cell_s``, how long a cell takes; and
the faults ``slow_s`` (how long the folder takes to write) and ``full`` (whether nothing
can be written).
"""

import errno
import json
import sys
import time
from pathlib import Path

from fake_engine import FakeEngine
from made_contexts import run_context
from made_metrics import made_probe
from made_records import made_setup

from codeneedle.cache_types import shuffled, whole_grid
from codeneedle.errors import CodeneedleError
from codeneedle.records import store
from codeneedle.records.store import Store
from codeneedle.sweep.runner import Runner
from codeneedle.sweep.workers import Share

TYPES = ("f16", "q8_0", "q4_0")
PAIRS = shuffled(whole_grid(TYPES, TYPES), seed=42)
SETUP = made_setup(needles=1, types_k=TYPES, types_v=TYPES)


def break_things(slow_s=0.0, full=False):
    """The faults of this process."""
    write_whole = store.write_whole

    def slow_write(path, data, **how):
        time.sleep(slow_s)
        if full:
            raise OSError(errno.ENOSPC, "No space left on device")
        write_whole(path, data, **how)

    store.write_whole = slow_write


def say(line):
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main():
    folder, settings = Path(sys.argv[1]), json.loads(sys.argv[2])
    share, cell_s = settings.pop("share"), settings.pop("cell_s", 0.05)

    def measure(cell):
        say(f"begun {cell.pair}")
        time.sleep(cell_s)
        say(f"over {cell.pair}")
        return {"said": str(cell.pair)}

    ours = Store(folder)
    ours.adopt(SETUP)
    break_things(**settings)
    context = run_context(folder, FakeEngine(), setup=ours.setup())
    with ours.locked(share=share):
        probe = made_probe("recall", outcome=measure)
        Runner(run=context, store=ours).sweep(probe, Share.parse(share).pairs(PAIRS))


if __name__ == "__main__":
    try:
        main()
    except CodeneedleError as error:
        say(f"error: {error}")
        sys.exit(3)
