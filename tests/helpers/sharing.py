"""
A sweep of cells that only wait, in a folder that several processes share:
``sharing.py FOLDER SETTINGS``; prints each cell when it begins and when it is over.

SETTINGS is a JSON object: ``cell_s``, how long a cell takes; and the faults ``host``
(another name of this host), ``clock_s`` (how far its clock is wrong), ``slow_s`` (how
long the folder takes to answer), ``full`` (whether nothing can be written).
"""

import errno
import json
import os
import sys
import time
from pathlib import Path

from fake_engine import FakeEngine
from made_contexts import run_context
from made_metrics import made_probe
from made_records import made_setup

from codeneedle.errors import CodeneedleError
from codeneedle.grid import shuffled_grid
from codeneedle.records import claims, store
from codeneedle.records.store import Store
from codeneedle.sweep import runner
from codeneedle.sweep.runner import Runner

TYPES = ("f16", "q8_0", "q4_0")
PAIRS = shuffled_grid(TYPES, TYPES, seed=42)
SETUP = made_setup(needles=1, types_k=TYPES, types_v=TYPES)


def hurry(beat_s=0.05, stale_s=1.0):
    """Heartbeats and patience of a test."""
    claims.HEARTBEAT_S, claims.STALE_S = beat_s, stale_s
    runner.POLL_S = 0.02


def break_things(host="", clock_s=0.0, slow_s=0.0, full=False):
    """The faults of this process."""
    if host:
        claims.this_host = lambda: host
    utime, write_whole, take = os.utime, store.write_whole, claims.Claims.take

    def wrong(path):
        now = time.time_ns() + int(clock_s * 1e9)
        utime(path, ns=(now, now))

    def slow_take(self, name):
        time.sleep(slow_s)
        return take(self, name)

    def slow_write(path, data, **how):
        time.sleep(slow_s)
        if full:
            raise OSError(errno.ENOSPC, "No space left on device")
        write_whole(path, data, **how)

    os.utime, claims.Claims.take, store.write_whole = wrong, slow_take, slow_write


def say(line):
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main():
    folder, settings = Path(sys.argv[1]), json.loads(sys.argv[2])
    cell_s = settings.pop("cell_s", 0.05)
    hurry()

    def measure(cell):
        say(f"begun {cell.pair}")
        time.sleep(cell_s)
        say(f"over {cell.pair}")
        return {"said": str(cell.pair)}

    ours = Store(folder)
    ours.adopt(SETUP)
    break_things(**settings)
    context = run_context(folder, FakeEngine(), setup=ours.setup())
    with ours.locked(is_shared=True):
        probe = made_probe("recall", outcome=measure)
        Runner(run=context, store=ours).sweep(probe, PAIRS)


if __name__ == "__main__":
    try:
        main()
    except CodeneedleError as error:
        say(f"error: {error}")
        sys.exit(3)
