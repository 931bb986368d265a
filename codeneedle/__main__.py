"""``python -m codeneedle``."""

from codeneedle.cli import main

if __name__ == "__main__":
    main()
