"""The command line."""

import sys


def start() -> None:
    """Loading it takes a moment, in which Ctrl-C is no reason for a traceback."""
    try:
        from mainspring.cli.main import main
    except KeyboardInterrupt:
        sys.exit(130)
    main()
