"""``python -m codeneedle``: what has to work before and after everything else."""

import os
import signal
import sys

INTERRUPTED = 130
"""Exit code of a command that Ctrl-C ended."""

_NO_MEMORY = b"""\
error: the system refuses: Cannot allocate memory
 hint: Close other programs, or raise the limit: ulimit -v unlimited
"""

_BLAS_THREADS = "OPENBLAS_NUM_THREADS"
"""
numpy's linear algebra allocates memory per core, and sends SIGINT to its own process
where it cannot start a thread. Nothing here needs more than one.
"""


def main() -> None:
    """Entry point: imports the rest, during which Ctrl-C may come or memory run out."""
    if _BLAS_THREADS not in os.environ:
        # Not through os.environ, from which children inherit.
        os.putenv(_BLAS_THREADS, "1")
    try:
        from codeneedle.cli import app

        app.main()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except (MemoryError, OSError, ImportError) as error:
        if not _is_out_of_memory(error):
            raise
        os.write(2, _NO_MEMORY)
        sys.exit(3)
    finally:
        # Ctrl-C while the interpreter shuts down would only print a traceback.
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _is_out_of_memory(error: Exception) -> bool:
    # The loader of libraries raises an ImportError in these words.
    words = ("Cannot allocate memory", "failed to map segment")
    return isinstance(error, MemoryError) or any(word in str(error) for word in words)


if __name__ == "__main__":
    main()
