"""Whether and when a failed run is retried."""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from random import Random
from typing import Literal

import msgspec

from mainspring.core.model.base.checks import check_kind, check_whole, check_word
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import DAY, HOUR, SECOND, Micros, format_duration

MAX_RETRIES = 1_000
LONGEST_DELAY: Micros = 366 * DAY
MAX_PATTERNS = 50
MAX_PATTERN = 200
_BACKOFFS = ("exponential", "fixed", "list")
_DELAY_HINT = "0s to 366 days"


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The number of retries and the delays between them. A run has ``max_retries`` + 1 attempts."""

    max_retries: int = 3
    backoff: Literal["exponential", "fixed", "list"] = "exponential"
    #: The first delay (exponential), or every delay (fixed).
    first_delay: Micros = SECOND
    max_delay: Micros = HOUR
    #: The delays in order (list); the last one repeats.
    delays: tuple[Micros, ...] = ()
    #: Patterns of error kinds: ``ConnectionError``, ``smtplib.*``. If any are given, other errors are not retried.
    retry_on: tuple[str, ...] = ()
    #: Patterns of error kinds that are never retried. They take precedence over ``retry_on``.
    never_on: tuple[str, ...] = ()

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
        _check_patterns("retry.retryOn", self.retry_on)
        _check_patterns("retry.neverOn", self.never_on)

    def check_meant(self) -> None:
        """Refuse options that would be ignored. This applies to new input only: stored policies keep working."""
        if self.delays and self.backoff != "list":
            raise Invalid("retry.delays", f"does not go with backoff {self.backoff}", 'backoff "list", or leave it out')
        if self != self.effective():
            reason = f"{format_duration(self.max_delay)} is shorter than firstDelay"
            raise Invalid("retry.maxDelay", reason, f"at least {format_duration(self.first_delay)}")

    def effective(self) -> "RetryPolicy":
        """Return the policy without the options that are ignored."""
        first = min(self.first_delay, self.max_delay) if self.backoff == "exponential" else self.first_delay
        delays = self.delays if self.backoff == "list" else ()
        return msgspec.structs.replace(self, first_delay=first, delays=delays)

    def allows(self, failures: int) -> bool:
        """Return whether a run that has failed this many times is retried."""
        return failures <= self.max_retries

    def covers(self, kinds: Sequence[str]) -> bool:
        """Return whether an error of these kinds, the most derived first, is retried at all.

        An error without known kinds is: it did not come from the handler.
        """
        if not kinds or not (self.retry_on or self.never_on):
            return True
        if any(_matches(pattern, kind) for pattern in self.never_on for kind in kinds):
            return False
        return not self.retry_on or any(_matches(pattern, kind) for pattern in self.retry_on for kind in kinds)

    def delay_after(self, failures: int, jitter: Random) -> Micros:
        """Return the delay after the n-th failure."""
        match self.backoff:
            case "fixed":
                return self.first_delay
            case "list":
                return self.delays[min(failures, len(self.delays)) - 1]
            case "exponential":
                # Full jitter spreads the retries after a shared outage. The exponent is capped to bound the shift.
                ceiling = min(self.first_delay << min(failures - 1, 40), self.max_delay)
                return round(ceiling * jitter.random())


def check_retries(field: str, retries: int) -> int:
    check_whole(field, retries, 0, MAX_RETRIES, f"0 to {MAX_RETRIES}")
    return retries


def _matches(pattern: str, kind: str) -> bool:
    """Match a pattern with a dot against the qualified class name, otherwise against the class name alone."""
    return fnmatchcase(kind if "." in pattern else kind.rpartition(".")[2], pattern)


def _check_patterns(field: str, patterns: tuple[str, ...]) -> None:
    check_kind(field, patterns, tuple)
    if len(patterns) > MAX_PATTERNS:
        raise Invalid(field, f"has {len(patterns)} patterns", f"at most {MAX_PATTERNS}")
    for pattern in patterns:
        check_kind(field, pattern, str)
        if not 0 < len(pattern) <= MAX_PATTERN or not pattern.isprintable() or " " in pattern:
            raise Invalid(field, f"{pattern!r:.40} is not a kind of error", "for example ConnectionError or smtplib.*")
