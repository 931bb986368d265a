"""``python -m codeneedle``, and where Ctrl-C ends that comes too early or too late."""

import signal
import sys

INTERRUPTED = 130
"""Exit code of whatever Ctrl-C ends."""


def main() -> None:
    """Entry point: loads the rest, which takes a moment in which a person may leave."""
    try:
        from codeneedle import cli

        cli.main()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    finally:
        # What is left is the interpreter's own end, which has nothing to lose.
        signal.signal(signal.SIGINT, signal.SIG_IGN)


if __name__ == "__main__":
    main()
