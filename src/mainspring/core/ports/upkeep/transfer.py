"""The ports for moving everything from one store to another, kind by kind, in batches of rows.

Rows use the terms of the model: states and outcomes by name, ids as hexadecimal digits, instants as microseconds,
payloads and results as bytes. The source is locked from ``open`` on, so that it does not change meanwhile.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import msgspec

Row: TypeAlias = dict[str, Any]

#: The kinds of rows in the order they are moved, with the columns that distinguish rows in the checksum.
KINDS: Mapping[str, tuple[str, ...]] = {
    "session": ("id",),
    "tenant": ("created_at", "quotas"),
    "api_key": ("id", "secret_hash"),
    "pause": ("since", "why"),
    "calendar": ("name", "version", "spec"),
    "job": ("id", "version", "next_fire", "rev"),
    "job_version": ("job_id", "version", "spec"),
    "slo": ("job_id", "rev", "next_check"),
    "run": ("id", "fence"),
    "waiting": ("id", "due"),
    "key_lock": ("key", "holder"),
    "limiter": ("number", "used"),
    "dependent": ("run_id", "parents"),
    "edge": ("child", "parent", "place"),
    "ended_parent": ("run_id", "at"),
    "unique_run": ("run_id", "until"),
    "history": ("id", "finished_at"),
    "dead_letter": ("id", "fingerprint"),
    "replay": ("id", "rev", "record"),
    "attempt": ("run_id", "fence"),
    "ledger": ("job_id", "scheduled_at", "run_id"),
    "label": ("id", "label"),
    "idempotency": ("made", "fingerprint"),
    "progress": ("run_id", "at"),
    "checkpoint": ("run_id", "state"),
    "log": ("run_id", "position"),
    "audit": ("position", "at"),
    "minute": ("at", "succeeded", "failed"),
    "usage": ("day", "unit", "amount"),
    "budget": ("id", "spec"),
    # After waiting runs: a retry budget must not move runs that already have a time.
    "queue_policy": ("policy", "retries"),
}
BATCH = 5_000


class StoreFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a target must know before the first row."""

    store_id: str
    shards: int
    store_epoch: int
    fence_seq: int
    last_session: int
    epochs: Mapping[int, int]
    #: The names used in rows.
    tenants: frozenset[str]
    tasks: frozenset[str]
    queues: frozenset[str]
    #: The sets of labels that runs require.
    requirements: frozenset[tuple[str, ...]]
    #: Days since 1970 on which runs ended, attempts or ticks happened, or logs were written, by kind; history by end
    #: state.
    days: Mapping[str, frozenset[int]]
    #: Runs that ended before this are included in the per-minute metrics, later ones are not. 0: no run has ended yet.
    counted_until: int


class RowCounts(msgspec.Struct, frozen=True):
    """The number of rows, and a checksum that does not depend on their order."""

    rows: int = 0
    checksum: int = 0

    def plus(self, kind: str, rows: Sequence[Mapping[str, Any]]) -> "RowCounts":
        columns = KINDS[kind]
        checksum = self.checksum
        for row in rows:
            text = "\x1f".join([str(row[column]) for column in columns])
            checksum += int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
        return RowCounts(self.rows + len(rows), checksum & (1 << 64) - 1)


class Source(Protocol):
    """The store to move from. Its methods block: a move has nothing else to do."""

    def open(self) -> StoreFacts:
        """Lock the store. ``Conflict`` if processes work on it, which are named, or if it was moved before."""
        ...

    def close(self) -> None:
        """Unlock the store; without ``mark_moved`` it is unchanged."""
        ...

    def counts(self) -> Mapping[str, int]:
        """Return the number of rows of each kind."""
        ...

    def batches(self, kind: str) -> Iterator[list[Row]]: ...

    def mark_moved(self, to: str) -> None:
        """Record the new location. Later opens, and writes by processes that have it open, fail with it."""
        ...


class Target(Protocol):
    """The store to move to: it receives everything or nothing."""

    async def open(self, facts: StoreFacts) -> bool:
        """Return True if it already holds the same store: a move that ended before the source was marked.

        ``Conflict`` if it holds anything else, or processes work on it.
        """
        ...

    async def write(self, kind: str, rows: Sequence[Row]) -> None: ...

    async def tally(self, kind: str) -> RowCounts:
        """Return the tally of the rows it holds now."""
        ...

    async def commit(self) -> None: ...

    async def close(self) -> None:
        """Close the store. Uncommitted rows are discarded."""
        ...
