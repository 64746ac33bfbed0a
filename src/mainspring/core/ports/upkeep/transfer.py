"""Moving everything from one store to another: one is emptied into the other, kind by kind, in batches of rows.

A row has the words of the domain: states and outcomes by name, ids as hexadecimal digits, instants as microseconds,
payloads and results as bytes. The source is locked from ``open`` on: nobody changes it meanwhile.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import msgspec

Row: TypeAlias = dict[str, Any]

#: What is moved, in this order, and what tells its rows apart.
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
    "gate": ("key", "holder"),
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
    "idempotency_key": ("made", "fingerprint"),
    "progress": ("run_id", "at"),
    "checkpoint": ("run_id", "state"),
    "log": ("run_id", "position"),
    "audit": ("position", "at"),
    "minute": ("at", "succeeded", "failed"),
    "usage": ("day", "unit", "amount"),
    "budget": ("id", "spec"),
    # After what waits: a budget of retries must not move what is placed already.
    "queue_policy": ("policy", "retries"),
}
BATCH = 5_000


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What a target must know before the first row."""

    store_id: str
    shards: int
    store_epoch: int
    fence_seq: int
    last_session: int
    epochs: Mapping[int, int]
    #: The names that rows use.
    tenants: frozenset[str]
    tasks: frozenset[str]
    queues: frozenset[str]
    #: The sets of labels that runs require.
    requirements: frozenset[tuple[str, ...]]
    #: Days since 1970 in which something has ended, was tried, ticked or was printed, by kind; history by how it ended.
    days: Mapping[str, frozenset[int]]
    #: What ended before this is in the figures by the minute, and nothing else; 0: nothing has ended yet.
    counted_until: int


class Tally(msgspec.Struct, frozen=True):
    """How many rows, and a sum over what tells them apart that does not depend on their order."""

    rows: int = 0
    checksum: int = 0

    def plus(self, kind: str, rows: Sequence[Mapping[str, Any]]) -> "Tally":
        columns = KINDS[kind]
        checksum = self.checksum
        for row in rows:
            text = "\x1f".join([str(row[column]) for column in columns])
            checksum += int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
        return Tally(self.rows + len(rows), checksum & (1 << 64) - 1)


class Source(Protocol):
    """The store that is left. Blocks: a move has nothing else to do."""

    def open(self) -> Facts:
        """Lock it. ``Conflict`` while processes work on it, which are named, or if it was moved before."""
        ...

    def close(self) -> None:
        """Let it go; unless it was marked it is as it was."""
        ...

    def counts(self) -> Mapping[str, int]:
        """How many rows of each kind there are."""
        ...

    def batches(self, kind: str) -> Iterator[list[Row]]: ...

    def mark_moved(self, to: str) -> None:
        """From now on whoever opens it, or has it open and writes, is told where it went."""
        ...


class Target(Protocol):
    """The store that takes all in: everything or nothing."""

    async def open(self, facts: Facts) -> bool:
        """Whether it holds the very same store already: a move that ended before the source was marked. ``Conflict`` if
        it holds anything else, or processes work on it."""
        ...

    async def write(self, kind: str, rows: Sequence[Row]) -> None: ...

    async def tally(self, kind: str) -> Tally:
        """What it holds now."""
        ...

    async def commit(self) -> None: ...

    async def close(self) -> None:
        """What is not committed is gone."""
        ...
