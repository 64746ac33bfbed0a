"""How a process of the command line writes its log."""

import sys

from mainspring.runtime import log_lines
from mainspring.sections import LogSection


def configure(log: LogSection) -> None:
    readable = log.format == "text" or (log.format == "auto" and sys.stderr.isatty())
    log_lines.configure(log.level, readable, log.output)
