"""Failures of what built-in tasks do, with what they mean for another try."""

from typing import Any

from mainspring.core.model.base.errors import MainspringError
from mainspring.core.model.base.instant import Micros
from mainspring.core.model.runs.verdicts import GiveUp, RetryLater
from mainspring.core.worker.reporting.trace import Told


class HttpFailed(Told):
    """There was no answer, or another one than expected, or the call was refused."""


class MailFailed(Told):
    """The mail server did not answer, or did not take it."""


class ScriptFailed(Told):
    """It could not be started, took too long, or ended with an exit code that means a failure."""


class ContainerFailed(Told):
    """The same of a container."""


class OutOfMemory(Told):
    """A program used more memory than there was for it."""


def for_good(kind: type[Told], message: str) -> Told:
    """One that is not tried again."""
    failure: Told = _both(kind, GiveUp)(message)
    return failure


def for_now(kind: type[Told], message: str, delay: Micros) -> Told:
    """One that is tried again after a pause, if any retries are left."""
    failure: Told = _both(kind, RetryLater)(delay, message)
    return failure


#: By their names.
_MADE: dict[tuple[str, str], Any] = {}


def _both(kind: type[Told], verdict: type[MainspringError]) -> Any:
    """By the same name: failures are grouped by it, and policies speak of it."""
    names = (kind.__name__, verdict.__name__)
    if names not in _MADE:
        _MADE[names] = type(kind.__name__, (kind, verdict), {"__module__": kind.__module__})
    return _MADE[names]
