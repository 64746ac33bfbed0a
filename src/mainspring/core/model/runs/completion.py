"""How the outcome of an attempt changes its run."""

from enum import StrEnum
from random import Random

import msgspec

from mainspring.core.model.base.fingerprint import compute_fingerprint
from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import Instant, Micros
from mainspring.core.model.runs.cause import TIMED_OUT, UNKNOWN, Cause
from mainspring.core.model.runs.names import clean_error
from mainspring.core.model.runs.retry import LONGEST_DELAY
from mainspring.core.model.runs.run import HeldRun, Outcome, RunState
from mainspring.core.model.runs.usage import AttemptCost

#: The reason of a skipped run whose only permitted worker left.
WORKER_LEFT = "its worker left"


#: The reason of a skipped run whose unique key was taken by another run.
REPLACED = "replaced"


#: The reasons of runs that fail with retries left: the handler asked for it, or the policy excludes the error.
GAVE_UP = "gave up"


NOT_RETRIED = "not retried"


#: A run fails as poison after this many losses if it is to blame for the last one, as it was alone in its process.
POISON_AFTER = 3


#: A run fails as poison after this many losses, whether or not it is to blame.
LOST_AFTER = 6


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """The change that the outcome of an attempt makes to its run. The store applies it only under the same fence.

    If a stop was requested, a run that would become ``scheduled`` or ``queued`` becomes ``cancelled`` instead. The
    store checks the request in the same statement that changes the run.
    """

    run: RunId
    fence: int
    outcome: Outcome
    state: RunState
    reason: str = ""
    #: The delay before the next attempt, from the moment the store receives this.
    delay: Micros = 0
    result: bytes | None = None
    error: str | None = None
    unblocks_others: bool = False
    #: The group of a failed run among dead letters.
    fingerprint: str = ""
    #: The cost of the attempt beyond its time, as far as it was measured or reported.
    spent: AttemptCost | None = None


class CompletionAnswer(StrEnum):
    """The store's answer to a completion."""

    #: The outcome was applied to the run.
    ACCEPTED = "accepted"
    #: The same outcome was accepted under this fence before.
    DUPLICATE = "duplicate"
    #: Nothing was applied: the attempt has another outcome, or a newer attempt has the run.
    STALE = "stale"


def complete_success(held: HeldRun, result: bytes | None) -> Completion:
    return Completion(
        run=held.id,
        fence=held.fence,
        outcome=Outcome.SUCCESS,
        state=RunState.SUCCEEDED,
        result=result,
        unblocks_others=held.unblocks_others,
    )


def complete_failure(
    held: HeldRun,
    error: str,
    jitter: Random,
    *,
    now: Instant,
    timed_out: bool = False,
    reason: str = "",
    cause: Cause = UNKNOWN,
) -> Completion:
    """Complete an attempt whose handler raised or was stopped. Lost attempts do not count against the retries."""
    outcome = Outcome.TIMEOUT if timed_out else Outcome.ERROR
    cause = TIMED_OUT if timed_out else cause
    reason = reason or outcome.value
    failures = held.attempt - held.lost
    if held.deadline is not None and now >= held.deadline:
        return _complete(held, outcome, RunState.FAILED, "deadline", error)
    if not tries_again(held, cause):
        return _complete(held, outcome, RunState.FAILED, _why_not_again(held, cause) or reason, error)
    if cause.after is not None:
        return _complete(held, outcome, RunState.SCHEDULED, reason, error, max(0, min(cause.after, LONGEST_DELAY)))
    delay = held.policy.retry.delay_after(failures, jitter)
    return _complete(held, outcome, RunState.SCHEDULED, reason, error, delay)


def tries_again(held: HeldRun, cause: Cause = UNKNOWN) -> bool:
    """Return whether another attempt follows a failure of this one, according to its policy and its handler."""
    if held.policy.guarantee == "at-most-once" or not held.policy.retry.allows(held.attempt - held.lost):
        return False
    return not _why_not_again(held, cause)


def _why_not_again(held: HeldRun, cause: Cause) -> str:
    """Return why a failure is never retried, regardless of retries left; empty: it may be retried."""
    if cause.gives_up:
        return GAVE_UP
    # A handler that asks for a retry gets it, for any kind of error.
    return "" if cause.after is not None or held.policy.retry.covers(cause.kinds) else NOT_RETRIED


def complete_loss(held: HeldRun, *, blamed: bool, how: str = "") -> Completion:
    """Complete an attempt whose process is gone.

    ``blamed``: the run was alone in that process, so no other run can be the cause. ``how``: how it ended, if known.
    """
    losses = held.lost + 1
    error = how or "its worker died"
    if held.cancel_requested:
        return _complete(held, Outcome.LOST, RunState.CANCELLED, "cancelled", f"{error} while it was cancelled")
    if held.policy.guarantee == "at-most-once":
        return _complete(held, Outcome.LOST, RunState.FAILED, "lost", f"{error}; at-most-once is never repeated")
    if (blamed and losses >= POISON_AFTER) or losses >= LOST_AFTER:
        if how:
            error = f"{losses} attempts lost their worker or their process; the last time {how}"
        else:
            error = f"{losses} workers died while they ran it"
        return _complete(held, Outcome.LOST, RunState.FAILED, "poison", error)
    return _complete(held, Outcome.LOST, RunState.QUEUED, "lost", error)


def complete_release(held: HeldRun, reason: str = "released", delay: Micros = 0) -> Completion:
    """Complete an attempt that its worker returned unharmed. It is not charged; ``delay`` postpones the next one."""
    state = RunState.SCHEDULED if delay else RunState.QUEUED
    return _complete(held, Outcome.RELEASED, state, reason, None, delay)


def complete_unreadable(run: RunId, fence: int, error: Exception) -> Completion:
    """Complete a run that this program cannot decode, and therefore cannot execute."""
    return Completion(
        run=run,
        fence=fence,
        outcome=Outcome.ERROR,
        state=RunState.FAILED,
        reason="unreadable",
        error=clean_error(f"its stored policy or payload cannot be read by this program: {error}"),
        unblocks_others=True,
    )


def complete_cancel(held: HeldRun) -> Completion:
    """Complete an attempt that stopped because a stop was requested."""
    return _complete(held, Outcome.CANCELLED, RunState.CANCELLED, "cancelled", None)


def _complete(
    held: HeldRun, outcome: Outcome, state: RunState, reason: str, error: str | None, delay: Micros = 0
) -> Completion:
    return Completion(
        run=held.id,
        fence=held.fence,
        outcome=outcome,
        state=state,
        reason=reason,
        delay=delay,
        error=None if error is None else clean_error(error),
        unblocks_others=held.unblocks_others,
        fingerprint=compute_fingerprint(reason, error or "") if state is RunState.FAILED else "",
    )
