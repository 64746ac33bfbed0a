"""When a failed run is tried again."""

from random import Random
from typing import Literal

import msgspec

from mainspring.domain.checks import check_kind, check_whole, check_word
from mainspring.domain.errors import Invalid
from mainspring.domain.instant import DAY, HOUR, SECOND, Micros

MAX_RETRIES = 1_000
LONGEST_DELAY: Micros = 366 * DAY
_BACKOFFS = ("exponential", "fixed", "list")
_DELAY_HINT = "microseconds, 0 to 366 days"


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How often and after which pause. Attempts are ``max_retries`` + 1."""

    max_retries: int = 3
    backoff: Literal["exponential", "fixed", "list"] = "exponential"
    #: The first pause (exponential), or every pause (fixed).
    first_delay: Micros = SECOND
    max_delay: Micros = HOUR
    #: The pauses one by one (list); the last one repeats.
    delays: tuple[Micros, ...] = ()

    def check(self) -> None:
        check_retries("maxRetries", self.max_retries)
        check_word("retry.backoff", self.backoff, _BACKOFFS)
        check_whole("retry.firstDelay", self.first_delay, 0, LONGEST_DELAY, _DELAY_HINT)
        check_whole("retry.maxDelay", self.max_delay, 0, LONGEST_DELAY, _DELAY_HINT)
        check_kind("retry.delays", self.delays, tuple)
        for delay in self.delays:
            check_whole("retry.delays", delay, 0, LONGEST_DELAY, _DELAY_HINT)
        if self.backoff == "list" and not self.delays:
            raise Invalid("retry.delays", "is empty")

    def allows(self, failures: int) -> bool:
        """Whether a run that has failed this many times is tried again."""
        return failures <= self.max_retries

    def delay_after(self, failures: int, jitter: Random) -> Micros:
        """The pause after the n-th failure."""
        match self.backoff:
            case "fixed":
                return self.first_delay
            case "list":
                return self.delays[min(failures, len(self.delays)) - 1]
            case "exponential":
                # Full jitter spreads the herd that one outage makes. The exponent is capped before the product is.
                ceiling = min(self.first_delay << min(failures - 1, 40), self.max_delay)
                return round(ceiling * jitter.random())


def check_retries(field: str, retries: int) -> int:
    check_whole(field, retries, 0, MAX_RETRIES, f"0 to {MAX_RETRIES}")
    return retries
