"""A backup: one file with everything that a store holds, as it was at one moment."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from mainspring.core.model.base.instant import Instant
from mainspring.core.model.runs.restored import Restored, Unfinished

#: The form of the file. A program refuses a backup of another form; checkouts before the first release wrote form 1.
FORMAT = 2
#: Numbers of sessions and places of events, given out after the backup was taken, are not given out again: so many are
#: left out.
LEFT_OUT = 1 << 20


class Part(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One member of the file."""

    name: str
    bytes: int
    sha256: str
    #: Of a table.
    rows: int = 0
    columns: tuple[str, ...] = ()


class Partition(msgspec.Struct, frozen=True, kw_only=True):
    """A partition that was there, outermost first."""

    name: str
    parent: str
    bound: str
    #: How it is partitioned itself; empty: it is not.
    by: str = ""


class Manifest(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What the file says of itself."""

    kind: Literal["sqlite", "postgresql"]
    #: The program that took it.
    program: str
    taken_at: Instant
    store_id: str
    store_epoch: int
    shards: int
    #: The migrations that had been applied, by number.
    migrations: tuple[int, ...]
    parts: tuple[Part, ...]
    #: Rows of each table.
    rows: dict[str, int]
    #: Runs that had not ended, by state.
    unfinished: dict[str, int]
    sequences: dict[str, int] = {}
    partitions: tuple[Partition, ...] = ()
    format: int = FORMAT


#: Of what, how much is done, of how much; 0: nobody knows.
Tell = Callable[[str, int, int], None]
#: Opens a member of the backup, to be read from its beginning.
Open = Callable[[str], AsyncIterator[bytes]]


class Writing(Protocol):
    """A backup that is being written."""

    async def add(self, name: str, fill: Callable[[Callable[[bytes], Awaitable[None]]], Awaitable[int]]) -> Part:
        """One member: ``fill`` is given where to write to, and says how many rows it wrote."""
        ...


class Backups(Protocol):
    """A store that can be backed up while others work on it, and made anew of a backup."""

    async def take(self, writing: Writing, program: str, tell: Tell) -> Manifest:
        """Everything, as it was at one moment. Nobody waits for it."""
        ...

    async def restore(
        self, manifest: Manifest, opened: Open, unfinished: Unfinished, tell: Tell, *, replace: bool
    ) -> Restored:
        """Make the store of a backup: all of it, or nothing has happened. ``Conflict`` if something is in it and it is
        not to be replaced, if processes work on it, or if the backup needs a newer program.

        It has a new identity and a greater epoch: leases, fences and hints of before are void. Unless what is
        unfinished shall run, everything is paused.
        """
        ...

    async def examine(self, manifest: Manifest, opened: Open, folder: Path) -> None:
        """Whether the content is sound, beyond its checksums. ``Conflict`` says what is not."""
        ...
