"""Rows of runs to insert: into the queue, or into the table of waiting runs."""

from typing import Any

import msgspec

from mainspring.core.model.base.instant import Instant, Micros


class LiveRow(msgspec.Struct, kw_only=True):
    """The columns that both tables have. ``tenant``, ``queue`` and ``claim_group`` are numbers of names."""

    id: str | None
    shard: int
    priority: int
    tenant: int
    queue: int
    #: The bucket of its body, and the id of the body if that is not the run's.
    bucket: int
    body_id: str | None = None
    due: Instant
    created_at: Instant
    timeout: Micros | None
    start_by: Instant | None
    deadline: Instant | None
    #: The lock of its ordering key.
    key_lock: int | None
    job_id: str | None = None
    job_version: int | None = None
    scheduled_at: Instant | None = None
    replay_of: str | None = None
    origin: int
    claim_group: int
    #: The session that it is for.
    target: int | None = None
    #: Its limits, as text that PostgreSQL casts to an array.
    limits: str | None
    has_children: bool | None = None


class QueuedRow(LiveRow, kw_only=True):
    rank: int
    queued_at: Instant | None = None


class WaitingRow(LiveRow, kw_only=True):
    state: int
    late: bool = False
    #: The number of the limiter that blocks it.
    waits: int | None = None
    #: Whether it holds its ordering key.
    holds: bool = False


def build_queued_row(row: LiveRow, *, rank: int, queued_at: Instant | None = None) -> QueuedRow:
    return QueuedRow(**_columns(row), rank=rank, queued_at=queued_at)


def build_waiting_row(
    row: LiveRow, *, state: int, late: bool = False, waits: int | None = None, holds: bool = False
) -> WaitingRow:
    return WaitingRow(**_columns(row), state=state, late=late, waits=waits, holds=holds)


def _columns(row: LiveRow) -> dict[str, Any]:
    return {name: getattr(row, name) for name in row.__struct_fields__}
