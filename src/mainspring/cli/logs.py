"""Configures the log of command line processes."""

import sys

from mainspring.config.sections.monitoring import LogSection
from mainspring.core.runtime import log_lines


def configure(log: LogSection) -> None:
    readable = log.format == "text" or (log.format == "auto" and sys.stderr.isatty())
    log_lines.configure(log.level, readable, log.output)
