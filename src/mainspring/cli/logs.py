"""How a process writes its log: readable on a terminal, JSON elsewhere."""

import logging
import sys

import structlog

from mainspring.sections import LogSection


def configure(log: LogSection) -> None:
    """Set up structlog and route the standard library's logging into the same stream."""
    readable = log.format == "text" or (log.format == "auto" and sys.stderr.isatty())
    level = logging.getLevelNamesMapping()[log.level.upper()]
    shared: list[structlog.types.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderer: structlog.types.Processor = (
        # A plain traceback: a pretty one shows local variables, and secrets are among them.
        structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback)
        if readable
        else structlog.processors.JSONRenderer()
    )
    errors: list[structlog.types.Processor] = [] if readable else [structlog.processors.format_exc_info]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.make_filtering_bound_logger(level),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *errors, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level)
    # It tells of every request, and who renews a lease makes some eight a second.
    logging.getLogger("httpx2").setLevel(max(level, logging.WARNING))
