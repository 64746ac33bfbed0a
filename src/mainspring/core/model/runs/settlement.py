"""What the outcome of an attempt does to its run."""

from enum import StrEnum
from random import Random

import msgspec

from mainspring.core.model.base.fingerprint import fingerprint_of
from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import Instant, Micros
from mainspring.core.model.runs.cause import TIMED_OUT, UNKNOWN, Cause
from mainspring.core.model.runs.names import clean_error
from mainspring.core.model.runs.retry import LONGEST_DELAY
from mainspring.core.model.runs.run import HeldRun, Outcome, RunState
from mainspring.core.model.runs.usage import Spent

#: Why a run ends that only one worker could have run.
WORKER_LEFT = "its worker left"


#: … and why one ends whose unique key another run took.
REPLACED = "replaced"


#: Why a run fails although retries are left: its handler said so, or the kind of its error is none to try again.
GAVE_UP = "gave up"


NOT_RETRIED = "not retried"


#: A run is parked when the loss of this many processes can be laid at its door …
POISON_AFTER = 3


#: … or when it was there at this many losses, whoever was to blame.
LOST_AFTER = 6


class Settlement(msgspec.Struct, frozen=True, kw_only=True):
    """What an attempt's end does to its run. The store applies it only under the same fence.

    A run that was asked to stop and would go on (``scheduled`` or ``queued``) becomes ``cancelled`` instead: the store
    looks at the request in the very statement that moves the run.
    """

    run: RunId
    fence: int
    outcome: Outcome
    state: RunState
    reason: str = ""
    #: The pause before the next attempt, from the moment the store has this.
    delay: Micros = 0
    result: bytes | None = None
    error: str | None = None
    lets_go: bool = False
    #: Of a failed run: what groups it with others of its kind.
    fingerprint: str = ""
    #: What the attempt cost beyond its time, as far as anybody measured or told it.
    spent: Spent | None = None


class Verdict(StrEnum):
    """What the store says to a settlement."""

    APPLIED = "applied"
    #: The same outcome was applied under this fence before.
    ALREADY = "already applied"
    #: It does not count: the attempt ended otherwise, or was never this one.
    FENCED = "fenced"


def settle_success(held: HeldRun, result: bytes | None) -> Settlement:
    return Settlement(
        run=held.id,
        fence=held.fence,
        outcome=Outcome.SUCCESS,
        state=RunState.SUCCEEDED,
        result=result,
        lets_go=held.lets_go,
    )


def settle_failure(
    held: HeldRun,
    error: str,
    jitter: Random,
    *,
    now: Instant,
    timed_out: bool = False,
    reason: str = "",
    cause: Cause = UNKNOWN,
) -> Settlement:
    """The handler raised, or had to be stopped. Losses do not count against the retries."""
    outcome = Outcome.TIMEOUT if timed_out else Outcome.ERROR
    cause = TIMED_OUT if timed_out else cause
    reason = reason or outcome.value
    failures = held.attempt - held.lost
    if held.deadline is not None and now >= held.deadline:
        return _settle(held, outcome, RunState.FAILED, "deadline", error)
    if not tries_again(held, cause):
        return _settle(held, outcome, RunState.FAILED, _why_not_again(held, cause) or reason, error)
    if cause.after is not None:
        return _settle(held, outcome, RunState.SCHEDULED, reason, error, max(0, min(cause.after, LONGEST_DELAY)))
    delay = held.policy.retry.delay_after(failures, jitter)
    return _settle(held, outcome, RunState.SCHEDULED, reason, error, delay)


def tries_again(held: HeldRun, cause: Cause = UNKNOWN) -> bool:
    """Whether another attempt follows if this one fails, as far as its policy and its handler say."""
    if held.policy.guarantee == "at-most-once" or not held.policy.retry.allows(held.attempt - held.lost):
        return False
    return not _why_not_again(held, cause)


def _why_not_again(held: HeldRun, cause: Cause) -> str:
    """Of what kind a failure is that no number of retries would help; nothing: it is of none."""
    if cause.gives_up:
        return GAVE_UP
    # Who asks for another try means it, whatever the kind of the error they ask by.
    return "" if cause.after is not None or held.policy.retry.covers(cause.kinds) else NOT_RETRIED


def settle_loss(held: HeldRun, *, blamed: bool, how: str = "") -> Settlement:
    """The process that ran it is gone. ``blamed``: it ran alone there, so no other run can be the cause. ``how``: how
    the process ended, if that is known."""
    losses = held.lost + 1
    error = how or "its worker died"
    if held.cancel_requested:
        return _settle(held, Outcome.LOST, RunState.CANCELLED, "cancelled", f"{error} while it was cancelled")
    if held.policy.guarantee == "at-most-once":
        return _settle(held, Outcome.LOST, RunState.FAILED, "lost", f"{error}; at-most-once is never repeated")
    if (blamed and losses >= POISON_AFTER) or losses >= LOST_AFTER:
        if how:
            error = f"{losses} attempts lost their worker or their process; the last time {how}"
        else:
            error = f"{losses} workers died while they ran it"
        return _settle(held, Outcome.LOST, RunState.FAILED, "poison", error)
    return _settle(held, Outcome.LOST, RunState.QUEUED, "lost", error)


def settle_release(held: HeldRun, reason: str = "released", delay: Micros = 0) -> Settlement:
    """The worker gives it back unharmed; the attempt is not charged. With a delay it is left alone for that long."""
    state = RunState.SCHEDULED if delay else RunState.QUEUED
    return _settle(held, Outcome.RELEASED, state, reason, None, delay)


def settle_unreadable(run: RunId, fence: int, error: Exception) -> Settlement:
    """It was stored in a way that this program cannot read, so nobody can say how to run it."""
    return Settlement(
        run=run,
        fence=fence,
        outcome=Outcome.ERROR,
        state=RunState.FAILED,
        reason="unreadable",
        error=clean_error(f"its stored policy or payload cannot be read by this program: {error}"),
        lets_go=True,
    )


def settle_cancel(held: HeldRun) -> Settlement:
    """It was asked to stop and has stopped."""
    return _settle(held, Outcome.CANCELLED, RunState.CANCELLED, "cancelled", None)


def _settle(
    held: HeldRun, outcome: Outcome, state: RunState, reason: str, error: str | None, delay: Micros = 0
) -> Settlement:
    return Settlement(
        run=held.id,
        fence=held.fence,
        outcome=outcome,
        state=state,
        reason=reason,
        delay=delay,
        error=None if error is None else clean_error(error),
        lets_go=held.lets_go,
        fingerprint=fingerprint_of(reason, error or "") if state is RunState.FAILED else "",
    )
