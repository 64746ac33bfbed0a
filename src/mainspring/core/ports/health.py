"""Looking at a store without changing it: not even its schema. And at how a process was told to be."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec

from mainspring.core.model.base.instant import Micros
from mainspring.core.model.cluster.diagnosis import Finding, Signs


class Examination(msgspec.Struct, frozen=True, kw_only=True):
    #: Of the store itself.
    findings: list[Finding]
    #: Of the engine on it; none where the store cannot be read.
    signs: Signs | None = None


class TableVitals(NamedTuple):
    """A table whose rows come and go, as far as the server has counted."""

    name: str
    dead: int
    live: int
    #: None: it never was.
    vacuumed_ago: Micros | None


class PoolUse(NamedTuple):
    """Connections of this process to a server: how many are at work, how many wait for work, how many there may be,
    and how many calls wait for one."""

    used: int
    idle: int
    most: int
    waiting: int


class Vitals(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one server that are watched over time. None: it does not know such a thing."""

    dead_letters: int
    #: Runs that wait for their time, and those that wait for a key, a limit or others; an estimate where they are many.
    scheduled: int
    blocked: int
    #: Schedules that miss an objective.
    missed_objectives: int
    #: That ended in the last six hours without saying so.
    lost_workers: int | None = None
    #: How long the oldest has been due that nobody queued or fired.
    staging_lag: Micros
    firing_lag: Micros
    size: int
    disk_free: int | None = None
    oldest_transaction: Micros | None = None
    transaction_id_age: int | None = None
    connections: int | None = None
    connections_limit: int | None = None
    #: Bytes that are kept for who replicates.
    wal_kept: int | None = None
    #: How far the standby is behind that is furthest; None: there is none that can be seen.
    replication_lag: Micros | None = None
    replication_bytes: int | None = None
    tables: tuple[TableVitals, ...] = ()


class Health(Protocol):
    async def examine(self) -> Examination:
        """A store that cannot be reached is a finding, too."""
        ...

    async def vitals(self) -> list[Vitals]:
        """Of each server, in order. Cheap enough for every few seconds. ``StoreUnavailable`` if one does not answer."""
        ...


class Watched(Protocol):
    """A store that others can hurt."""

    async def pains(self) -> list[Finding]:
        """What can get worse from one minute to the next; quick enough to be asked all the time.

        :raises StoreUnavailable: it cannot be reached
        """
        ...


class SettingView(NamedTuple):
    """A setting as it may be shown."""

    name: str
    value: str
    #: It is not as it would be if nobody said anything.
    changed: bool


class System(Protocol):
    """What an administrator wants to know of a process."""

    def settings(self) -> Sequence[SettingView]:
        """No secret is among them."""
        ...

    async def examine(self) -> list[Finding]:
        """All that ``mainspring doctor`` says. Takes its time."""
        ...
