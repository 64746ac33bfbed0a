"""Limits, circuit breakers and unique keys of applications, with durations as text."""

from collections.abc import Sequence
from typing import Literal

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import Duration, parse_duration
from mainspring.core.model.limits import limits
from mainspring.core.model.limits.key_template import check_template
from mainspring.core.model.runs import unique


class Limit:
    """At most ``most`` runs with the same key at a time; with ``per``, at most so many starts in any period of
    this length.

    The key may name arguments of the call: ``Limit("customer:{payload.customer}", 3)``. Runs of different tasks
    with the same key share the limit.
    """

    def __init__(self, key: str, most: int, *, per: Duration | None = None) -> None:
        self.kept = limits.Limit(key=key, most=most, per=None if per is None else parse_duration(per, "limits.per"))
        self.kept.check()
        check_template(key, "limits.key")

    def __repr__(self) -> str:
        return f"Limit({self.kept.key!r}, {self.kept.most})"


class Breaker:
    """After ``failures`` failures within a period, the runs of a task wait for ``pause``. Then one run probes."""

    def __init__(self, failures: int = 5, *, within: Duration = "1m", pause: Duration = "30s") -> None:
        self.kept = limits.Breaker(
            failures=failures,
            within=parse_duration(within, "breaker.within"),
            pause=parse_duration(pause, "breaker.pause"),
        )
        self.kept.check()


class Unique:
    """Allows one run with a key until it has ended, or for a ``period`` after it was created.

    ``otherwise`` says what a second submit does. ``existing`` creates nothing and returns the handle of the first
    run. ``reject`` raises ``Conflict``. ``replace`` skips the first run and creates the second. ``debounce``
    changes the first run to the new request.

    A run that has started is neither replaced nor changed. The key may name arguments of the call.
    """

    def __init__(
        self,
        key: str,
        *,
        period: Duration | None = None,
        otherwise: Literal["existing", "reject", "replace", "debounce"] = "existing",
    ) -> None:
        self.kept = unique.Unique(
            key=key, period=None if period is None else parse_duration(period, "unique.period"), otherwise=otherwise
        )
        self.kept.check()
        check_template(key, "unique.key")


def build_limits(task: str, limit: int | None, several: Sequence[Limit] | None) -> tuple[limits.Limit, ...]:
    """Combine the limits of a task. ``limit`` applies to all its runs."""
    kept: list[limits.Limit] = []
    if limit is not None:
        kept.append(limits.Limit(key=f"task:{task}", most=limit))
    for one in several or ():
        if not isinstance(one, Limit):
            raise Invalid("limits", f"{one!r:.40} is not a Limit", 'for example Limit("api", 10)')
        kept.append(one.kept)
    limits.check_limits(tuple(kept))
    return tuple(kept)


def build_breaker(breaker: Breaker | None) -> limits.Breaker | None:
    if breaker is not None and not isinstance(breaker, Breaker):
        raise Invalid("breaker", f"{breaker!r:.40} is not a Breaker", "for example Breaker(5)")
    return None if breaker is None else breaker.kept
