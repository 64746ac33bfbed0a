"""The ports for examining a store without changing it, not even its schema, and for showing a process's settings."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec

from mainspring.core.model.base.instant import Micros
from mainspring.core.model.cluster.diagnosis import Finding, Signs


class Examination(msgspec.Struct, frozen=True, kw_only=True):
    #: Findings about the store itself.
    findings: list[Finding]
    #: Signs of the processes that use it. None: the store cannot be read.
    signs: Signs | None = None


class TableVitals(NamedTuple):
    """The row statistics of a table with many changes, as counted by the server."""

    name: str
    dead: int
    live: int
    #: None: it was never vacuumed.
    vacuumed_ago: Micros | None


class PoolUse(NamedTuple):
    """Connections of this process to a server: in use, idle, the limit, and the number of calls that wait for one."""

    used: int
    idle: int
    most: int
    waiting: int


class Vitals(msgspec.Struct, frozen=True, kw_only=True):
    """Metrics of one server. None: this server does not have such a value."""

    dead_letters: int
    #: Runs that wait for their time, and runs that wait for a key, a limit or other runs; an estimate for large
    #: numbers.
    scheduled: int
    blocked: int
    #: Schedules that miss an objective.
    missed_objectives: int
    #: Workers whose session ended in the last six hours without being closed.
    lost_workers: int | None = None
    #: How long the oldest run has been due without being queued, and the oldest schedule without being fired.
    staging_lag: Micros
    firing_lag: Micros
    size: int
    disk_free: int | None = None
    oldest_transaction: Micros | None = None
    transaction_id_age: int | None = None
    connections: int | None = None
    connections_limit: int | None = None
    #: Bytes of write-ahead log that are kept for replication.
    wal_kept: int | None = None
    #: How far the most delayed standby is behind. None: there is none that can be seen.
    replication_lag: Micros | None = None
    replication_bytes: int | None = None
    tables: tuple[TableVitals, ...] = ()


class StoreHealth(Protocol):
    async def examine(self) -> Examination:
        """Examine the store. An unreachable store is a finding, too."""
        ...

    async def vitals(self) -> list[Vitals]:
        """Return the metrics of each server, in order. Cheap enough for every few seconds.

        ``StoreUnavailable`` if a server does not answer.
        """
        ...


class PressureReads(Protocol):
    """A store that other processes can slow down."""

    async def read_pressure(self) -> list[Finding]:
        """Return findings about conditions that can get worse within a minute; fast enough to be called all the time.

        :raises StoreUnavailable: the store cannot be reached
        """
        ...


class SettingView(NamedTuple):
    """A setting in a form that may be shown."""

    name: str
    value: str
    #: The value differs from the default.
    changed: bool


class System(Protocol):
    """What an administrator can inspect in a process."""

    def settings(self) -> Sequence[SettingView]:
        """Return the settings without secrets."""
        ...

    async def examine(self) -> list[Finding]:
        """Return all findings of ``mainspring doctor``. Takes a while."""
        ...
