"""
The program, with less patience than people have: ``impatient.py sweep ...``.

How long a server or tool may be silent, and how long it may load, in seconds, are in
the environment as ``SILENCE_S`` and ``LOAD_S``. Of servers only those of the cells in
``CELLS`` are hurried, where that is given. Children get moments to leave.
"""

import os
import signal

from codeneedle.cli import app
from codeneedle.engines.llama_cpp import perplexity, server
from codeneedle.probes import probe, throughput
from codeneedle.sweep import prepare
from codeneedle.system import processes

SILENCE_S = float(os.environ["SILENCE_S"])
LOAD_S = float(os.environ["LOAD_S"])
CELLS = os.environ.get("CELLS")
GRACES_S = ((signal.SIGINT, 2.0), (signal.SIGTERM, 0.2), (signal.SIGKILL, 60.0))


def main():
    limits = {
        "load_timeout_s": LOAD_S,
        "warmup_timeout_s": LOAD_S,
        "silence_s": SILENCE_S,
    }

    def serving(launch, **arguments):
        cell = launch.pair.slug if launch.pair else "counting"
        is_hurried = CELLS is None or cell in CELLS.split()
        hurry = limits if is_hurried else {}
        return server.serving(launch, **arguments, **hurry)

    probe.serving = prepare.serving = serving
    processes.GRACES_S = GRACES_S
    perplexity.SILENCE_S = SILENCE_S
    throughput.LOAD_TIMEOUT_S = throughput.SHORTEST_PATIENCE_S = SILENCE_S
    throughput.SLOWEST_S_PER_TOKEN = 0.0
    app.main()


if __name__ == "__main__":
    main()
