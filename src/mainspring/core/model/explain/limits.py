"""Why a run is blocked by a limit, as a reason: which limit, which runs hold it, and when there may be room."""

from collections.abc import Sequence

from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import Instant
from mainspring.core.model.explain.reason import Holder, Reason
from mainspring.core.model.limits.limits import (
    BREAKER,
    LimiterState,
    build_limiters,
    describe_limiter,
    room,
    room_comes_at,
)
from mainspring.core.model.runs.view import RunView

#: The maximum number of holders named.
NAMED = 5


def reason_of_limit(run: RunView, state: LimiterState, inside: Sequence[RunId], now: Instant) -> Reason:
    """Return the reason for a run that a limiter blocks, from the limiter's state and some of the runs that hold it."""
    assert run.limiter is not None
    policy = run.policy
    limiter = next(
        limiter
        for limiter in build_limiters(run.tenant, run.task, policy.limits, policy.breaker)
        if limiter.number == run.limiter
    )
    what = describe_limiter(run.limiter, run.tenant, run.task, policy.limits, policy.breaker)
    comes = now if room(limiter, state, now) else room_comes_at(limiter, state, now)
    if limiter.kind == BREAKER:
        ahead = state.used > 0
        words = what + ("; one run is active" if ahead else "; when its pause ends, one run starts")
        words += " to see whether the task works again"
        return Reason(code="breaker", words=words, hint="look at why it fails: mainspring dead-letters", until=comes)
    words = f"blocked by {what}"
    named = inside[:NAMED]
    if named:
        more = " …" if len(inside) > NAMED else ""
        words += f", held by {', '.join(named)}{more}"
    holders = (*(Holder("run", holder) for holder in named),)
    return Reason(code="limit", words=words, holders=holders, until=comes)
