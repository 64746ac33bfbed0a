"""The command line."""

import sys


def start() -> None:
    """Load and run the command line. Ctrl-C while it loads exits without a traceback."""
    try:
        from mainspring.cli.main import main
    except KeyboardInterrupt:
        sys.exit(130)
    main()
