"""Exceptions that a handler raises to control how its failure is handled."""

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import Duration, parse_duration
from mainspring.core.model.runs.handler_errors import RetryLater
from mainspring.core.model.runs.retry import LONGEST_DELAY


class Retry(RetryLater):
    """Raise this to retry after a delay, if any retries are left: ``raise Retry(after="5m")``."""

    def __init__(self, after: Duration, message: str = "") -> None:
        delay = parse_duration(after, "after")
        if delay > LONGEST_DELAY:
            raise Invalid("after", f"{after!r:.40} is too long", "at most 366 days")
        super().__init__(delay, message)
