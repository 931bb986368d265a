"""``python -m codeneedle``, and where Ctrl-C ends that comes too early or too late."""

import os
import signal
import sys

INTERRUPTED = 130
"""Exit code of whatever Ctrl-C ends."""

_BLAS_THREADS = "OPENBLAS_NUM_THREADS"
"""
The linear algebra in numpy takes memory for each core, and interrupts us (SIGINT, as
if a person had) where the system refuses it another thread. There is nothing here
for it to compute.
"""


def main() -> None:
    """Entry point: loads the rest, which takes a moment in which a person may leave."""
    if _BLAS_THREADS not in os.environ:
        # Not by os.environ, of which children are given a part.
        os.putenv(_BLAS_THREADS, "1")
    try:
        from codeneedle.cli import app

        app.main()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    finally:
        # What is left is the interpreter's own end, which has nothing to lose.
        signal.signal(signal.SIGINT, signal.SIG_IGN)


if __name__ == "__main__":
    main()
