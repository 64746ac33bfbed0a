"""The command line."""

from mainspring.cli.main import main

__all__ = ["main"]
