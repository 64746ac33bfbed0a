"""Decisions about a restored store: list runs in doubt, complete known ones, cancel runs, end the pause."""

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Protocol

import msgspec

from mainspring.core.model.base.errors import NotFound
from mainspring.core.model.base.ids import RunId
from mainspring.core.model.runs.restored import (
    AUTHOR,
    RESTORED,
    UNFINISHED,
    KnownOutcome,
    RestoreRecord,
    Uncertainty,
    find_uncertainty,
)
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.runs.view import RunView
from mainspring.core.ports.storage.access import Access, AuditFilter, Author
from mainspring.core.ports.storage.catalog import Catalog, Pause, RunFilter
from mainspring.core.ports.storage.operations import Operations
from mainspring.core.store import Store

_PAGE = 1_000


class RestoredStore(Store, Catalog, Operations, Access, Protocol):
    """The store methods used for restored stores."""


async def read_last_restore(store: RestoredStore) -> RestoreRecord:
    """Return the last restore in the audit log. ``NotFound`` if there is none."""
    entries = await store.audit(None, AuditFilter(action=RESTORED), limit=1)
    if not entries or entries[0].after is None:
        raise NotFound(
            "the audit log has no restore: this store was not restored from a backup, or the entry has expired"
        )
    return msgspec.json.decode(entries[0].after, type=RestoreRecord)


async def read_pause_of_all(store: RestoredStore) -> Pause | None:
    """Return the pause of all tenants and queues, if there is one."""
    return next((pause for pause in await store.pauses() if pause.tenant is None and pause.queue is None), None)


def is_restore_pause(pause: Pause | None) -> bool:
    """Whether the pause is the one that a restore sets."""
    return pause is not None and pause.author == AUTHOR


async def list_in_doubt(store: RestoredStore, restored: RestoreRecord) -> list[tuple[RunView, Uncertainty]]:
    """List the runs that may have been done after the backup was taken."""
    found: list[tuple[RunView, Uncertainty]] = []
    now = await store.now()
    after: RunId | None = None
    while True:
        page = await store.list_runs(RunFilter(tenant=None, states=UNFINISHED), after, _PAGE)
        found += [(run, doubt) for run in page.items if (doubt := find_uncertainty(run, restored, now)) is not None]
        if page.after is None:
            return found
        after = RunId(page.after)


async def cancel_runs(store: RestoredStore, runs: Collection[RunId], why: str) -> Sequence[RunId]:
    """Cancel runs; return those that are cancelled or being cancelled."""
    cancelled: list[RunId] = []
    todo = list(runs)
    for start in range(0, len(todo), _PAGE):
        answers = await store.cancel(todo[start : start + _PAGE], Author(AUTHOR, why=why))
        cancelled += [run for run, state in answers.items() if state in (RunState.CANCELLED, RunState.CANCELLING)]
    return cancelled


async def complete_known(
    store: RestoredStore, restored: RestoreRecord, ends: Sequence[KnownOutcome]
) -> Counter[RunState]:
    """Complete runs in doubt with their known ends; return the counts by state. Runs not in doubt are skipped."""
    doubtful = {run.id for run, _ in await list_in_doubt(store, restored)} if ends else set()
    wanted = [end for end in ends if end.run in doubtful]
    author = Author(AUTHOR, why="ended before the restore")
    completed: Counter[RunState] = Counter()
    for start in range(0, len(wanted), _PAGE):
        completed.update((await store.finish(wanted[start : start + _PAGE], author)).values())
    return completed


async def release_pause(store: RestoredStore, restored: RestoreRecord) -> bool:
    """End the restore's pause, or replace it by the pause from before the backup. Return whether it was held."""
    if not is_restore_pause(await read_pause_of_all(store)):
        return False
    before = restored.paused
    previous = None
    if before is not None:
        previous = Pause(
            tenant=None, queue=None, since=before.since, author=before.author, why=before.why, until=before.until
        )
    return await store.resume(None, None, Author(AUTHOR, why="released"), back=previous)
