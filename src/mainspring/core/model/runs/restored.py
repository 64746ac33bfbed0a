"""Runs in doubt after a store was restored from a backup.

The store has no record of what happened after the backup was taken. Runs that had not ended by then may have run since,
and so may ticks that came due between backup and restore. Such runs are in doubt, and a user decides about them.
"""

from enum import StrEnum

import msgspec

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.fingerprint import compute_fingerprint
from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import Instant, isoformat
from mainspring.core.model.runs.names import MAX_RESULT
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.runs.view import RunView

#: The action name of a restore in the audit log.
RESTORED = "store.restore"
#: The author of the pause that a restored store starts with.
AUTHOR = "mainspring restore"
#: The states of runs that can be in doubt.
UNFINISHED = frozenset({RunState.SCHEDULED, RunState.BLOCKED, RunState.QUEUED, RunState.RUNNING, RunState.CANCELLING})


class Unfinished(StrEnum):
    """What happens to runs that had not ended when the backup was taken."""

    HOLD = "hold"
    RERUN = "rerun"
    CANCEL = "cancel"


class PausedBefore(msgspec.Struct, frozen=True, kw_only=True):
    """A pause of all queues that a user had set before the backup was taken."""

    since: Instant
    author: str
    why: str
    until: Instant | None = None


class RestoreRecord(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The last restore of a store, as recorded in its audit log."""

    taken_at: Instant
    restored_at: Instant
    #: The id of the store that the backup was taken of.
    store_id: str
    unfinished: Unfinished
    #: The pause that is reinstated when the restored store is released.
    paused: PausedBefore | None = None


class Uncertainty(StrEnum):
    """Why it is unknown whether a run was done."""

    STARTED = "it had started"
    WAITED = "it may have run since"
    TICK = "its tick may have run"


class KnownOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a run that the store has as unfinished, as known from another source."""

    run: RunId
    state: RunState = RunState.SUCCEEDED
    reason: str = ""
    #: JSON; None: unknown.
    result: bytes | None = None
    error: str | None = None

    def check(self) -> None:
        if not self.state.ended:
            raise Invalid("state", f"{self.state} is no end")
        if len(self.result or b"") > MAX_RESULT:
            raise Invalid("result", f"is {len(self.result or b'')} bytes", f"at most {MAX_RESULT}")

    @property
    def fingerprint(self) -> str:
        """The group of the dead letter; empty if the run did not fail."""
        return compute_fingerprint(self.reason, self.error or "") if self.state is RunState.FAILED else ""


def find_uncertainty(run: RunView, restored: RestoreRecord, now: Instant) -> Uncertainty | None:
    """Return why a run may have been done after the backup; None: it cannot have been, or has ended in this store."""
    # A run with dependencies came due here when they ended, which may have happened earlier in the lost time.
    if run.state not in UNFINISHED or run.due > (now if run.parents else restored.restored_at):
        return None
    if run.created_at <= restored.taken_at:
        return Uncertainty.STARTED if run.attempt else Uncertainty.WAITED
    if run.scheduled_at is not None and run.scheduled_at <= restored.restored_at:
        return Uncertainty.TICK
    return None


def why_held(restored: RestoreRecord) -> str:
    """Return the reason of the pause that a restored store starts with."""
    return (
        f"restored from a backup of {isoformat(restored.taken_at)}: what had not ended then may have run since; "
        "mainspring restore review shows it, mainspring restore release lets everything go on"
    )


def paused_before(found: PausedBefore | None, last: bytes | None) -> PausedBefore | None:
    """Return the user's own pause behind the pause found in the backup.

    If an earlier restore made the found pause, the result is the pause that this restore had saved. ``last`` is the
    audit record of that earlier restore.
    """
    if found is None or found.author != AUTHOR:
        return found
    return None if last is None else msgspec.json.decode(last, type=RestoreRecord).paused
