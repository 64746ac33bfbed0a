"""Rows of the audit, written in the transaction of the change."""

from collections.abc import Iterable, Mapping

import apsw
import msgspec

from mainspring.adapters.store.changes import what_differs
from mainspring.domain.ids import RunId
from mainspring.domain.instant import Instant
from mainspring.domain.run import RunState
from mainspring.ports.access import Author


class Change(msgspec.Struct, frozen=True):
    """One thing that somebody changed."""

    #: Empty: of no tenant.
    tenant: str
    target: str
    before: bytes | None = None
    after: bytes | None = None


def find_state_changes(before: Iterable[tuple[str, str, str]], after: Mapping[RunId, RunState]) -> list[Change]:
    """Compare the states of runs before a call, as (id, tenant, state), with those after it."""
    return [
        Change(tenant, run, *(what_differs({"state": state}, {"state": after[RunId(run)]}) or ()))
        for run, tenant, state in before
        if after[RunId(run)] != state
    ]


def write_audit(
    connection: apsw.Connection, now: Instant, action: str, author: Author | None, changes: Iterable[Change]
) -> None:
    """One row a tenant; none for nobody, or for nothing."""
    if author is None:
        return
    by_tenant: dict[str, list[Change]] = {}
    for change in changes:
        by_tenant.setdefault(change.tenant if author.tenant is None else author.tenant, []).append(change)
    for tenant, changed in by_tenant.items():
        first = changed[0] if len(changed) == 1 else Change(changed[0].tenant, changed[0].target)
        connection.execute(
            "INSERT INTO audit (at, tenant, author, action, target, count, before, after, why)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                now,
                tenant,
                author.name,
                action,
                first.target,
                len(changed),
                None if first.before is None else first.before.decode(),
                None if first.after is None else first.after.decode(),
                author.why,
            ),
        )
