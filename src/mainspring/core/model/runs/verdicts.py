"""What a handler may say about its own failure."""

from mainspring.core.model.base.errors import Invalid, MainspringError
from mainspring.core.model.base.instant import Micros


class RetryLater(MainspringError):
    """Try again after this pause, if any retries are left."""

    def __init__(self, delay: Micros, message: str = "") -> None:
        super().__init__(message or "asked to be tried again later")
        self.delay = delay


class GiveUp(MainspringError):
    """Do not try again: it would fail the same way."""


class InvalidResult(Invalid, GiveUp):
    """A result that cannot be stored. The work was done: another attempt would only do it again."""


class InvalidPayload(Invalid, GiveUp):
    """A payload that does not fit the arguments of its task: another attempt would read the same."""


class NoTransactions(Invalid, GiveUp):
    """The store cannot give a handler the transaction that it asks for."""


class LookAgain(MainspringError):
    """Nothing has failed: it waits for something else, and holds no slot meanwhile. The attempt is not charged.

    For built-in tasks: an attempt that begins anew every time is not what people expect of their function.
    """

    def __init__(self, delay: Micros, reason: str) -> None:
        super().__init__(reason)
        self.delay = delay
