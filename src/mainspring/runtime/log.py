"""Loggers. The command line sets up structlog; an application that embeds us may have, or may not."""

import logging
from functools import partial
from typing import Any

import structlog
from structlog.typing import BindableLogger, EventDict, Processor, WrappedLogger


def get_logger(name: str, **values: Any) -> Any:
    """A structlog logger by that name.

    Where nobody has set up structlog, its default would print every debug line to the application's stdout. There we
    speak through the standard library instead, as libraries do: by default that is warnings, on stderr. Decided when
    something is logged, and without touching the application's structlog.
    """
    choose: Any = partial(_choose, name)
    return structlog.wrap_logger(None, wrapper_class=choose, logger_factory_args=(name,), **values)


def _choose(name: str, logger: WrappedLogger, processors: list[Processor], context: dict[str, Any]) -> BindableLogger:
    if structlog.is_configured():
        chosen: BindableLogger = structlog.get_config()["wrapper_class"](logger, processors, context)
        return chosen
    return structlog.stdlib.BoundLogger(logging.getLogger(name), [structlog.stdlib.filter_by_level, _plain], context)


def _plain(logger: WrappedLogger, method: str, event: EventDict) -> tuple[tuple[str], dict[str, object]]:
    """What is said, then the rest; an exception as the standard library shows it."""
    exception = event.pop("exc_info", None)
    text = " ".join([str(event.pop("event")), *(f"{name}={value!r}" for name, value in event.items())])
    return (text,), {"exc_info": exception}
