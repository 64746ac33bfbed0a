"""The log format of a process: readable on a terminal, otherwise JSON lines with Elastic Common Schema fields."""

import logging
import os
import sys
from collections.abc import Callable
from functools import partial
from importlib import metadata
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO, cast

import msgspec

from mainspring.core.runtime.masking import masks
from mainspring.core.runtime.tracing.current import current_ids

if TYPE_CHECKING:
    from structlog.typing import EventDict, Processor, WrappedLogger

#: Our names in code and their fields. All other values of a line go to ``labels``.
FIELDS = {
    "timestamp": "@timestamp",
    "level": "log.level",
    "event": "message",
    "logger": "log.logger",
    "run": "mainspring.run_id",
    "job": "mainspring.job_id",
    "attempt": "mainspring.attempt",
    "tenant": "mainspring.tenant",
    "task": "mainspring.task",
    "queue": "mainspring.queue",
    "worker": "mainspring.worker",
    "session": "mainspring.session",
    "trace": "trace.id",
    "span": "span.id",
    "error": "error.message",
    "traceback": "error.stack_trace",
}
#: Additional fields that every line, or every error, has.
MORE_FIELDS = (
    "ecs.version",
    "service.name",
    "service.version",
    "event.dataset",
    "process.pid",
    "error.type",
    "error.stack_trace",
)
LABELS = "labels"
_WHOLE = ("attempt", "session")
#: The event dataset of the process itself, and of code inside an attempt.
OURS, THEIRS = "mainspring.log", "mainspring.task"
#: Alternative names that application code uses for ours.
_SYNONYMS = {"run_id": "run", "job_id": "job"}
_encode = msgspec.json.Encoder().encode
_plain = logging.Formatter()

#: Functions that return the context of the code that logs: run, job, attempt, tenant, task, trace.
surroundings: list[Callable[[], dict[str, Any]]] = []


class Style(NamedTuple):
    level: str
    readable: bool
    #: Lines printed by tasks are log lines with the run they belong to.
    show_output: bool = False


#: The style of this process, if it was configured here.
chosen: Style | None = None


def shows_output() -> bool:
    return chosen is not None and chosen.show_output


def configure(level: str, readable: bool, show_output: bool = False) -> None:
    """Set up structlog and route the standard library's logging into the same stream."""
    # Slow to import, and an application that only submits needs no log of its own.
    import structlog

    global chosen
    chosen = Style(level, readable, show_output)
    number = logging.getLevelNamesMapping()[level.upper()]
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False)
        if readable
        else structlog.processors.TimeStamper(fmt="iso", utc=True),
        _add_surroundings,
    ]
    renderer: list[Processor] = (
        # A plain traceback: a pretty one shows local variables, which include secrets.
        [
            _shorten,
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(), exception_formatter=_show, sort_keys=False, pad_event_to=0, pad_level=False
            ),
            _hide,
        ]
        if readable
        else [partial(_render, {"version": metadata.version("mainspring")})]
    )
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.make_filtering_bound_logger(number),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderer],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(number)
    # It logs every request, and renewing a lease makes about eight per second.
    logging.getLogger("httpx2").setLevel(max(number, logging.WARNING))


def _add_surroundings(logger: "WrappedLogger", method: str, event: "EventDict") -> "EventDict":
    """Add context to a line; values of the line itself take precedence."""
    for name, synonym in _SYNONYMS.items():
        if name in event:
            event.setdefault(synonym, event.pop(name))
    for context in surroundings:
        for name, value in context().items():
            event.setdefault(name, value)
    found = current_ids()
    if found is not None and found[2]:
        event["trace"], event["span"] = f"{found[0]:032x}", f"{found[1]:016x}"
    return event


def _shorten(logger: "WrappedLogger", method: str, event: "EventDict") -> "EventDict":
    """Format for a terminal: no names of our loggers, ``attempt=2/4``, and a traceback below its line."""
    if str(event.get("logger", "")).startswith("mainspring."):
        del event["logger"]
    event.pop("inside", None)
    for name in [name for name, value in event.items() if value is None]:
        del event[name]
    for name in ("tenant", "queue"):
        if event.get(name) == "default":
            del event[name]
    if "max_attempts" in event:
        event["attempt"] = f"{event['attempt']}/{event.pop('max_attempts')}"
    if "traceback" in event:
        event["exception"] = event.pop("traceback")
    return event


def _show(out: TextIO, error: Any) -> None:
    out.write("\n" + _plain.formatException(error))


def _hide(logger: "WrappedLogger", method: str, line: Any) -> str:
    """Mask secrets in the rendered line, where all values are text by now."""
    return masks.everything(line)


def _render(service: dict[str, str], logger: "WrappedLogger", method: str, event: "EventDict") -> str:
    return _encode(ecs(event, service["version"])).decode()


def ecs(event: "EventDict", version: str) -> dict[str, object]:
    """Return a line in the fields of the Elastic Common Schema, with dotted names."""
    error = event.pop("exc_info", None)
    found: dict[str, object] = {
        FIELDS[name]: _said(name, event.pop(name)) for name in FIELDS if event.get(name) is not None
    }
    found |= {
        "ecs.version": "8.11.0",
        "service.name": os.environ.get("OTEL_SERVICE_NAME") or "mainspring",
        "service.version": version,
        "event.dataset": THEIRS if event.pop("inside", False) else OURS,
        "process.pid": os.getpid(),
    }
    if error is True:
        error = sys.exc_info()
    if isinstance(error, BaseException):
        error = (type(error), error, error.__traceback__)
    if isinstance(error, tuple) and error[0] is not None:
        found["error.type"] = error[0].__name__
        found["error.message"] = _text(error[1])
        found["error.stack_trace"] = _text(_plain.formatException(cast(Any, error)))
    labels = {name: _text(value) for name, value in event.items() if value is not None}
    return {**found, LABELS: labels} if labels else found


def _said(name: str, value: object) -> object:
    return value if name in _WHOLE and isinstance(value, int) else _text(value)


def _text(value: object) -> str:
    """Return a label value as text: numbers and words under one name would conflict in an index.

    The text is valid UTF-8, which file names, for example, need not be.
    """
    text = value if isinstance(value, str) else str(value)
    return masks.everything(text).encode("utf-8", "replace").decode()
