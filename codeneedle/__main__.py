"""``python -m codeneedle``: what must be right before the rest can be loaded."""

import os
import resource
import signal
import sys
from typing import NoReturn

CANNOT_RUN = 3
INTERRUPTED = 130
"""Exit codes: this machine cannot run it; ended by Ctrl-C."""

LEAST_MEMORY_BYTES = 256 << 20
"""
Address space that is needed to load numpy and what is built on it.

With less, the linear algebra in numpy ends the process by itself, with exit code 1.
"""

_BLAS_THREADS = "OPENBLAS_NUM_THREADS"
"""
The linear algebra in numpy takes memory for each core, and sends SIGINT to its own
process where the system refuses it another thread. Nothing here needs the threads.
"""


def main() -> None:
    """Entry point: load the program, which takes a moment, and run it."""
    if _BLAS_THREADS not in os.environ:
        # Not by os.environ, of which children are given a part.
        os.putenv(_BLAS_THREADS, "1")
    most_bytes, _ = resource.getrlimit(resource.RLIMIT_AS)
    if resource.RLIM_INFINITY != most_bytes < LEAST_MEMORY_BYTES:
        _refuse(
            f"{most_bytes >> 20} MiB of memory are allowed, and codeneedle needs "
            f"{LEAST_MEMORY_BYTES >> 20} to start",
            "Raise the limit: ulimit -v unlimited",
        )
    try:
        _load_and_run()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    finally:
        # What is left is the interpreter's own end, which has nothing to lose.
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _load_and_run() -> None:
    try:
        from codeneedle.cli import app
    except (MemoryError, OSError, ImportError) as error:
        _refuse(
            f"codeneedle cannot be loaded: {str(error) or type(error).__name__}",
            "Close other programs, or install it anew: "
            "pip install --force-reinstall codeneedle",
        )
    app.main()


def _refuse(reason: str, hint: str) -> NoReturn:
    """Tell why this machine cannot run it, in the form that all errors have."""
    sys.stderr.write(f"error: {reason}\n hint: {hint}\n")
    sys.exit(CANNOT_RUN)


if __name__ == "__main__":
    main()
