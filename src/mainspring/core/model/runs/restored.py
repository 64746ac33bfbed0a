"""A store that was restored from a backup knows nothing of what happened after the backup was taken.

What had not ended then may have run since. So may ticks that came due between the backup and the restore. Nobody here
can say: such runs are in doubt, and people decide.
"""

from enum import StrEnum

import msgspec

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.fingerprint import fingerprint_of
from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import Instant, isoformat
from mainspring.core.model.runs.names import MAX_RESULT
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.runs.view import RunView

#: What the audit calls a restore.
RESTORED = "store.restore"
#: Whose pause it is that a restored store comes up with.
AUTHOR = "mainspring restore"
#: States that may be in doubt.
UNFINISHED = frozenset({RunState.SCHEDULED, RunState.BLOCKED, RunState.QUEUED, RunState.RUNNING, RunState.CANCELLING})


class Unfinished(StrEnum):
    """What becomes of runs that had not ended when the backup was taken."""

    HOLD = "hold"
    RERUN = "rerun"
    CANCEL = "cancel"


class PausedBefore(msgspec.Struct, frozen=True, kw_only=True):
    """A pause of everything that people had made before the backup was taken."""

    since: Instant
    author: str
    why: str
    until: Instant | None = None


class Restored(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The last restore of a store, as its audit has it."""

    taken_at: Instant
    restored_at: Instant
    #: Which store the backup was taken of.
    store_id: str
    unfinished: Unfinished
    #: What comes back when it is released.
    paused: PausedBefore | None = None


class Doubt(StrEnum):
    """Why nobody knows whether a run has been done."""

    STARTED = "it had started"
    WAITED = "it may have run since"
    TICK = "its tick may have run"


class KnownEnd(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ended that the store has as unfinished: somebody saw it elsewhere."""

    run: RunId
    state: RunState = RunState.SUCCEEDED
    reason: str = ""
    #: JSON; None: nobody knows.
    result: bytes | None = None
    error: str | None = None

    def check(self) -> None:
        if not self.state.ended:
            raise Invalid("state", f"{self.state} is no end")
        if len(self.result or b"") > MAX_RESULT:
            raise Invalid("result", f"is {len(self.result or b'')} bytes", f"at most {MAX_RESULT}")

    @property
    def fingerprint(self) -> str:
        """What groups it with other dead letters; empty: it is none."""
        return fingerprint_of(self.reason, self.error or "") if self.state is RunState.FAILED else ""


def doubt_of(run: RunView, restored: Restored, now: Instant) -> Doubt | None:
    """Whether a run may have been done after the backup was taken; None: it cannot have been, or has ended here."""
    # What waited for others has come due here by their ends, which may have been before.
    if run.state not in UNFINISHED or run.due > (now if run.parents else restored.restored_at):
        return None
    if run.created_at <= restored.taken_at:
        return Doubt.STARTED if run.attempt else Doubt.WAITED
    if run.scheduled_at is not None and run.scheduled_at <= restored.restored_at:
        return Doubt.TICK
    return None


def why_held(restored: Restored) -> str:
    """The words of the pause that a restored store comes up with."""
    return (
        f"restored from a backup of {isoformat(restored.taken_at)}: what had not ended then may have run since; "
        "mainspring restore review shows it, mainspring restore release lets everything go on"
    )


def paused_before(found: PausedBefore | None, last: bytes | None) -> PausedBefore | None:
    """What a pause of everything, found in the backup, was before: one that an earlier restore had made stands for what
    that one has kept. ``last``: how the audit has that restore."""
    if found is None or found.author != AUTHOR:
        return found
    return None if last is None else msgspec.json.decode(last, type=Restored).paused
