"""Failures of built-in tasks, and whether they are retried."""

from typing import Any

from mainspring.core.model.base.errors import MainspringError
from mainspring.core.model.base.instant import Micros
from mainspring.core.model.runs.handler_errors import GiveUp, RetryLater
from mainspring.core.worker.reporting.trace import ReportedError


class HttpFailed(ReportedError):
    """The call got no answer or an unexpected one, or was refused."""


class MailFailed(ReportedError):
    """The mail server did not answer, or rejected the mail."""


class ScriptFailed(ReportedError):
    """The script could not be started, timed out, or ended with an exit code that means failure."""


class ContainerFailed(ReportedError):
    """The container could not be started, timed out, or ended with an exit code that means failure."""


class OutOfMemory(ReportedError):
    """A program used more memory than is available to it."""


def for_good(kind: type[ReportedError], message: str) -> ReportedError:
    """Return a failure that is not retried."""
    failure: ReportedError = _both(kind, GiveUp)(message)
    return failure


def for_now(kind: type[ReportedError], message: str, delay: Micros) -> ReportedError:
    """Return a failure that is retried after a pause, if any retries are left."""
    failure: ReportedError = _both(kind, RetryLater)(delay, message)
    return failure


#: By the names of both classes.
_MADE: dict[tuple[str, str], Any] = {}


def _both(kind: type[ReportedError], answer: type[MainspringError]) -> Any:
    """Return a combined class with the name of ``kind``: failures are grouped by name, and policies refer to it."""
    names = (kind.__name__, answer.__name__)
    if names not in _MADE:
        _MADE[names] = type(kind.__name__, (kind, answer), {"__module__": kind.__module__})
    return _MADE[names]
