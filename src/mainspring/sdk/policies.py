"""Retry and catch-up policies of applications, with durations as text."""

import re
from collections.abc import Sequence
from typing import Literal

from msgspec.structs import replace

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import Duration, parse_duration
from mainspring.core.model.runs import retry
from mainspring.core.model.schedules import catch_up


class RetryPolicy:
    """How often a failed run is retried, after which delay, and after which errors.

    ``max_retries``: attempts are this plus one.

    ``backoff``: ``exponential`` waits a random time up to ``first_delay``, then up to twice as long each time, at most
    ``max_delay``. ``fixed`` waits ``first_delay`` each time. ``list`` waits ``delays`` one by one; the last repeats.

    ``retry_on``: kinds of errors, as patterns such as ``ConnectionError`` or ``smtplib.*``. If there are any, other
    errors are not retried. ``never_on``: kinds of errors that are never retried, even if ``retry_on`` has them.
    """

    def __init__(
        self,
        *,
        max_retries: int = 3,
        backoff: Literal["exponential", "fixed", "list"] = "exponential",
        first_delay: Duration = "1s",
        max_delay: Duration = "1h",
        delays: Sequence[Duration] = (),
        retry_on: Sequence[str] = (),
        never_on: Sequence[str] = (),
    ) -> None:
        for field, several in (("delays", delays), ("retry_on", retry_on), ("never_on", never_on)):
            if isinstance(several, str) or not isinstance(several, Sequence):
                raise Invalid(f"retry.{field}", f"{several!r:.40} is not a list")
        self.kept = retry.RetryPolicy(
            max_retries=max_retries,
            backoff=backoff,
            first_delay=parse_duration(first_delay, "retry.first_delay"),
            max_delay=parse_duration(max_delay, "retry.max_delay"),
            delays=tuple(parse_duration(delay, "retry.delays") for delay in delays),
            retry_on=tuple(retry_on),
            never_on=tuple(never_on),
        )
        _check(self.kept)

    def __repr__(self) -> str:
        return f"RetryPolicy(max_retries={self.kept.max_retries}, backoff={self.kept.backoff!r})"


class CatchUp:
    """How missed ticks are handled, for example after all schedulers were down.

    ``mode``: ``none`` skips late ticks, ``latest`` runs only the newest, ``all`` runs all within ``cap`` and
    ``max_age``, spaced by ``pace``.

    ``grace``: a tick fired within this time is not late; it must exceed the worst delay of a healthy scheduler.
    ``cap``: at most this many missed ticks run; the newest are kept. ``max_age``: missed ticks older than this are
    skipped. ``pace``: runs of missed ticks start at least this far apart.
    """

    def __init__(
        self,
        *,
        mode: Literal["none", "latest", "all"] = "latest",
        grace: Duration = "1m",
        cap: int = 100,
        max_age: Duration = "1d",
        pace: Duration = 0,
    ) -> None:
        self.kept = catch_up.CatchUp(
            mode=mode,
            grace=parse_duration(grace, "catch_up.grace"),
            cap=cap,
            max_age=parse_duration(max_age, "catch_up.max_age"),
            pace=parse_duration(pace, "catch_up.pace"),
        )
        _check(self.kept)

    def __repr__(self) -> str:
        return f"CatchUp(mode={self.kept.mode!r})"


def build_catch_up(chosen: CatchUp | Literal["none", "latest", "all"]) -> catch_up.CatchUp:
    """Return the policy. A mode alone is a valid policy."""
    if isinstance(chosen, CatchUp):
        return chosen.kept
    return CatchUp(mode=chosen).kept


def _check(policy: retry.RetryPolicy | catch_up.CatchUp) -> None:
    """Refuse invalid values, and values that would be ignored, by their Python names."""
    try:
        policy.check()
        policy.check_meant()
    except Invalid as error:
        field = re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", error.field)
        raise Invalid(field, error.reason.replace("firstDelay", "first_delay"), error.hint) from None


def combine_retries(retries: int | None, chosen: RetryPolicy | None, default: retry.RetryPolicy) -> retry.RetryPolicy:
    """Return ``chosen`` or the default, with ``retries`` as the number of retries. Refuse two different numbers."""
    if chosen is not None and not isinstance(chosen, RetryPolicy):
        raise Invalid("retry", f"{chosen!r:.40} is not a RetryPolicy", "for example RetryPolicy(max_retries=5)")
    if retries is None:
        return default if chosen is None else chosen.kept
    retry.check_retries("retries", retries)
    if chosen is not None and chosen.kept.max_retries not in (retries, retry.RetryPolicy().max_retries):
        reason = f"{retries} contradicts max_retries={chosen.kept.max_retries} of retry"
        raise Invalid("retries", reason, "give one of them")
    return replace(default if chosen is None else chosen.kept, max_retries=retries)
