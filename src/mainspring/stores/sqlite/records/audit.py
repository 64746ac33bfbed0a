"""SQLite: audit rows, written in the transaction of the change."""

from collections.abc import Iterable, Mapping

import apsw

from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import Instant
from mainspring.core.model.runs.run import RunState
from mainspring.core.ports.storage.access import Author
from mainspring.stores.changes import Change, sum_up, what_differs
from mainspring.stores.sqlite.rows.answers import StoredState


def find_state_changes(before: Iterable[StoredState], after: Mapping[RunId, RunState]) -> list[Change]:
    """Compare the states of runs before a call with those after it."""
    return [
        Change(run.tenant, run.id, *(what_differs({"state": run.state}, {"state": after[run.id]}) or ()))
        for run in before
        if after[run.id] != run.state
    ]


def write_audit(
    connection: apsw.Connection, now: Instant, action: str, author: Author | None, changes: Iterable[Change]
) -> None:
    """Write one audit entry per tenant; write none without an author or without changes."""
    if author is None:
        return
    for tenant, change, count in sum_up(author, changes):
        connection.execute(
            "INSERT INTO audit (at, tenant, author, action, target, count, before, after, why)"
            " VALUES (:at, :tenant, :author, :action, :target, :count, :before, :after, :why)",
            {
                "at": now,
                "tenant": tenant,
                "author": author.name,
                "action": action,
                "target": change.target,
                "count": count,
                "before": None if change.before is None else change.before.decode(),
                "after": None if change.after is None else change.after.decode(),
                "why": author.why,
            },
        )
