"""A fresh store for one measurement, and what is read from it afterwards: the store's own record of what happened.

Rates come from the times that the store wrote into history, not from counting on the way: nothing is asked of it while
it is being measured.
"""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol

import msgspec

from bench.figures import Figures
from mainspring.core.model.base.instant import Instant


class Span(msgspec.Struct, frozen=True):
    """What history holds: how many runs, when the first was claimed and when the last one ended."""

    runs: int
    first_started: Instant
    last_finished: Instant

    @property
    def seconds(self) -> float:
        return (self.last_finished - self.first_started) / 1e6


class Kept(msgspec.Struct, frozen=True):
    """What runs that have ended take on disk, in bytes."""

    tables: int
    indexes: int


class Site(Protocol):
    """One store, used by one measurement."""

    @property
    def embedded(self) -> bool:
        """All services run in one process."""
        ...

    @property
    def environment(self) -> Mapping[str, str]:
        """What processes need to find it."""
        ...

    @property
    def server_pid(self) -> int | None:
        """The database server, if it is on this machine and known."""
        ...

    async def span(self) -> Span: ...

    async def ended(self, since: Instant, until: Instant) -> int:
        """How many runs ended at or after ``since`` and before ``until``, by the store's clock."""
        ...

    async def ended_per(self, width: int, since: Instant) -> list[int]:
        """The same from ``since`` on, for each interval of ``width`` microseconds."""
        ...

    async def live(self) -> bool:
        """Whether anything is queued or running."""
        ...

    async def unfinished(self) -> int:
        """Return the number of runs that have not ended."""
        ...

    async def doubles(self) -> int:
        """How many runs have more than one row in history; must be 0."""
        ...

    async def transactions(self) -> int | None:
        """How many transactions the server has counted in the database; None where nothing counts them."""
        ...

    async def bytes(self) -> Mapping[str, int]:
        """Tables with their indexes, by name."""
        ...

    async def kept(self) -> Kept:
        """Return what the store keeps of ended runs, while there are no others."""
        ...

    async def logged(self) -> int | None:
        """How many bytes the server has written ahead so far: what a standby is sent. None: it does not tell."""
        ...

    async def dead_rows(self) -> Mapping[str, int]:
        """Rows that wait to be vacuumed, by table; nothing where there are none by nature."""
        ...

    async def run_ids(self) -> list[str]:
        """Return the ids of all runs, in any state."""
        ...

    async def readers(self) -> int:
        """How many read the stream of changes."""
        ...

    async def ticks(self) -> dict[str, list[Instant]]:
        """The ledger: the recorded ticks of every job that became runs."""
        ...


class SiteFactory(Protocol):
    """Where sites are made."""

    kind: str
    #: Its durability and version.
    facts: Figures
    #: A directory on the disk that the data goes to, if that is on this machine.
    directory: Path | None

    def site(self, name: str) -> AbstractAsyncContextManager[Site]:
        """A fresh store, gone afterwards."""
        ...
