"""Loggers for use with or without a configured structlog: the command line sets it up, an application may not."""

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from structlog.typing import BindableLogger, EventDict, Processor, WrappedLogger


def get_logger(name: str, **values: Any) -> Any:
    """Return a structlog logger by that name.

    If structlog is not configured, its default would print every debug line to the application's stdout. The logger
    then uses the standard library instead, as libraries do: by default warnings, on stderr. This is decided when
    something is logged, and without changing the application's structlog.
    """
    return _Logger(name, values)


class _Logger:
    """Imports structlog on first use: with Rich, which it imports, that takes 0.1 s."""

    def __init__(self, name: str, values: dict[str, Any]) -> None:
        self._name = name
        self._values = values
        self._logger: Any = None

    def __getattr__(self, method: str) -> Any:
        if self._logger is None:
            import structlog

            choose: Any = partial(_choose, self._name)
            self._logger = structlog.wrap_logger(
                None, wrapper_class=choose, logger_factory_args=(self._name,), **self._values
            )
        return getattr(self._logger, method)


def _choose(
    name: str, logger: "WrappedLogger", processors: "list[Processor]", context: dict[str, Any]
) -> "BindableLogger":
    import structlog

    if structlog.is_configured():
        chosen: BindableLogger = structlog.get_config()["wrapper_class"](logger, processors, context)
        return chosen
    return structlog.stdlib.BoundLogger(logging.getLogger(name), [structlog.stdlib.filter_by_level, _plain], context)


def _plain(logger: "WrappedLogger", method: str, event: "EventDict") -> tuple[tuple[str], dict[str, object]]:
    """Render the event and its values; an exception is shown as the standard library does."""
    exception = event.pop("exc_info", None)
    text = " ".join([str(event.pop("event")), *(f"{name}={value!r}" for name, value in event.items())])
    return (text,), {"exc_info": exception}
