"""The port for backups: one file with the whole content of a store at one moment."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from mainspring.core.model.base.instant import Instant
from mainspring.core.model.runs.restored import RestoreRecord, Unfinished

#: The format version of the file. A program refuses other versions; checkouts before the first release wrote version 1.
FORMAT = 3
#: How many session numbers and event positions are skipped after a restore, so that none issued after the backup is
#: issued again.
LEFT_OUT = 1 << 20


class BackupPart(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One member of the file."""

    name: str
    bytes: int
    sha256: str
    #: Tables only.
    rows: int = 0
    columns: tuple[str, ...] = ()


class Partition(msgspec.Struct, frozen=True, kw_only=True):
    """A partition in the backup; outer partitions come first."""

    name: str
    parent: str
    bound: str
    #: How it is partitioned itself. Empty: it is not.
    by: str = ""


class Manifest(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The description of a backup file."""

    kind: Literal["sqlite", "postgresql"]
    #: The program that took the backup.
    program: str
    taken_at: Instant
    store_id: str
    store_epoch: int
    shards: int
    #: The applied migrations, by number.
    migrations: tuple[int, ...]
    parts: tuple[BackupPart, ...]
    #: Rows of each table.
    rows: dict[str, int]
    #: Runs that had not ended, by state.
    unfinished: dict[str, int]
    sequences: dict[str, int] = {}
    partitions: tuple[Partition, ...] = ()
    format: int = FORMAT


#: Reports progress: what is processed, how much is done, and the total; 0: unknown.
ReportProgress = Callable[[str, int, int], None]
#: Opens a member of the backup for reading from its beginning.
Open = Callable[[str], AsyncIterator[bytes]]


class BackupWriter(Protocol):
    """A backup that is being written."""

    async def add(self, name: str, fill: Callable[[Callable[[bytes], Awaitable[None]]], Awaitable[int]]) -> BackupPart:
        """Add one member. ``fill`` gets a function that writes, and returns how many rows it wrote."""
        ...


class Backups(Protocol):
    """A store that can be backed up while it is in use, and restored from a backup."""

    async def take(self, writing: BackupWriter, program: str, report: ReportProgress) -> Manifest:
        """Back up everything as of one moment, without blocking other processes."""
        ...

    async def restore(
        self, manifest: Manifest, opened: Open, unfinished: Unfinished, report: ReportProgress, *, replace: bool
    ) -> RestoreRecord:
        """Restore the store from a backup, completely or not at all.

        1. ``Conflict`` if the target is not empty and ``replace`` is False, if processes work on it, or if the backup
           needs a newer program.
        2. The restored store has a new identity and a greater epoch: earlier leases, fences and hints are void.
        3. Everything is paused, unless ``unfinished`` says that unfinished runs shall run.
        """
        ...

    async def examine(self, manifest: Manifest, opened: Open, folder: Path) -> None:
        """Check the content beyond its checksums. ``Conflict`` names the problem."""
        ...
