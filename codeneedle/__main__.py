"""
``python -m codeneedle``: refuses too little memory or a broken installation before the
command line is imported, and ends quietly at Ctrl-C.
"""

import os
import resource
import signal
import sys
from typing import NoReturn

from codeneedle.exit_codes import CANNOT_RUN, INTERRUPTED

LEAST_MEMORY_BYTES = 256 << 20
"""
Address space that is needed to load numpy and what is built on it.

With less, numpy's linear algebra may end the process by itself, with exit code 1.
"""

_BLAS_THREADS = "OPENBLAS_NUM_THREADS"
"""
numpy's linear algebra allocates memory per core, and sends SIGINT to its own process
where it cannot start a thread. Nothing here needs more than one.
"""


def main() -> None:
    """Run the command line; end with an error where memory is too little to load it."""
    if _BLAS_THREADS not in os.environ:
        # Not through os.environ, from which children inherit.
        os.putenv(_BLAS_THREADS, "1")
    most_bytes, _ = resource.getrlimit(resource.RLIMIT_AS)
    if resource.RLIM_INFINITY != most_bytes < LEAST_MEMORY_BYTES:
        _exit_with_error(
            f"Cannot allocate memory: {most_bytes >> 20} MiB are allowed, and "
            f"{LEAST_MEMORY_BYTES >> 20} needed",
            "Raise the limit: ulimit -v unlimited",
        )
    try:
        _load_and_run()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    finally:
        # Ctrl-C while the interpreter shuts down would only print a traceback.
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _load_and_run() -> None:
    """Run the command line; refuse where it cannot be loaded."""
    try:
        from codeneedle.cli.main import main as run_command
    except (MemoryError, OSError, ImportError) as error:
        _exit_with_error(
            f"codeneedle cannot be loaded: {str(error) or 'Cannot allocate memory'}",
            "Close other programs, or install it anew: "
            "pip install --force-reinstall codeneedle",
        )
    run_command()


def _exit_with_error(reason: str, hint: str) -> NoReturn:
    """End the program with an error, written without any library."""
    os.write(2, f"error: {reason}\n hint: {hint}\n".encode(errors="replace"))
    sys.exit(CANNOT_RUN)


if __name__ == "__main__":
    main()
