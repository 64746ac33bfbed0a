"""Limits, circuit breakers and unique keys in the wire format."""

from typing import Annotated, Literal, TypeAlias

from msgspec import UNSET, Meta, UnsetType

from mainspring.core.model.base.instant import format_duration
from mainspring.core.model.limits.limits import MAX_KEY, MAX_LIMITS, MOST_AT_ONCE, Breaker, Limit
from mainspring.core.model.runs.unique import Unique
from mainspring.http.schemas.common import Request, Span, parse_span

Key: TypeAlias = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=MAX_KEY,
        description="May name fields of the payload, such as `customer:{payload.customer}`.",
    ),
]


class LimitIn(Request, omit_defaults=True):
    """At most `most` runs with the same key at a time; with `per`, at most `most` starts in any such period."""

    key: Key
    most: Annotated[int, Meta(ge=1, le=MOST_AT_ONCE)]
    per: Span | None = None


class BreakerIn(Request, omit_defaults=True):
    """A circuit breaker: after so many failures within a period, the runs of the task pause, then one run probes."""

    failures: Annotated[int, Meta(ge=1, le=1_000)] = 5
    within: Span = "1m"
    pause: Span = "30s"


class UniqueIn(Request, omit_defaults=True):
    """Allows one run with a key until it has ended, or for a period, and says what happens to a second one."""

    key: Key
    period: Span | None = None
    """How long the key is taken after the run was created; without it, until the run has ended."""
    otherwise: Literal["reject", "existing", "replace", "debounce"] = "existing"
    """`reject`: answer 409. `existing`: answer with the first run. `replace`: skip the first run. `debounce`:
    change the first run to the new request. A run that has started is neither replaced nor changed.
    """


Limits: TypeAlias = Annotated[tuple[LimitIn, ...], Meta(max_length=MAX_LIMITS)]


def read_limits(given: tuple[LimitIn, ...] | UnsetType) -> tuple[Limit, ...]:
    return tuple(
        Limit(key=limit.key, most=limit.most, per=None if limit.per is None else parse_span(limit.per, "limits.per"))
        for limit in (() if given is UNSET else given)
    )


def render_limits(limits: tuple[Limit, ...]) -> tuple[LimitIn, ...]:
    return tuple(
        LimitIn(key=limit.key, most=limit.most, per=None if limit.per is None else format_duration(limit.per))
        for limit in limits
    )


def read_breaker(given: BreakerIn | UnsetType | None) -> Breaker | None:
    if given is UNSET or given is None:
        return None
    return Breaker(
        failures=given.failures,
        within=parse_span(given.within, "breaker.within"),
        pause=parse_span(given.pause, "breaker.pause"),
    )


def render_breaker(breaker: Breaker | None) -> BreakerIn | None:
    if breaker is None:
        return None
    return BreakerIn(
        failures=breaker.failures, within=format_duration(breaker.within), pause=format_duration(breaker.pause)
    )


def read_unique(given: UniqueIn) -> Unique:
    period = None if given.period is None else parse_span(given.period, "unique.period")
    return Unique(key=given.key, period=period, otherwise=given.otherwise)


def render_unique(unique: Unique | None) -> UniqueIn | UnsetType:
    if unique is None:
        return UNSET
    period = None if unique.period is None else format_duration(unique.period)
    return UniqueIn(key=unique.key, period=period, otherwise=unique.otherwise)
