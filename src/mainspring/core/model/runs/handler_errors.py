"""Errors with which a handler controls what happens after its failure."""

from mainspring.core.model.base.errors import Invalid, MainspringError
from mainspring.core.model.base.instant import Micros


class RetryLater(MainspringError):
    """Retry after this delay, if any retries are left."""

    def __init__(self, delay: Micros, message: str = "") -> None:
        super().__init__(message or "asked to be tried again later")
        self.delay = delay


class GiveUp(MainspringError):
    """Do not retry: another attempt would fail in the same way."""


class InvalidResult(Invalid, GiveUp):
    """The result cannot be stored. The work was done, so another attempt would only repeat it."""


class InvalidPayload(Invalid, GiveUp):
    """The payload does not match the arguments of its task: another attempt would read the same payload."""


class NoTransactions(Invalid, GiveUp):
    """The store cannot provide the transaction that the handler asks for."""


class Snooze(MainspringError):
    """Nothing failed: the run waits for something else without occupying a slot. The attempt is not charged.

    For built-in tasks only: the attempt starts again every time, which users would not expect of their functions.
    """

    def __init__(self, delay: Micros, reason: str) -> None:
        super().__init__(reason)
        self.delay = delay
