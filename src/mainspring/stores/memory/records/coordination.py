"""Memory store: shard ownership by the sessions of schedulers."""

from collections.abc import Collection, Mapping

from mainspring.core.model.base.errors import Fenced
from mainspring.core.model.base.ids import SessionId
from mainspring.core.model.base.instant import Micros
from mainspring.core.model.cluster.clock_guard import ClockReading
from mainspring.core.model.schedules.cron import find_zone_database
from mainspring.core.ports.storage.coordination import Membership
from mainspring.stores.memory.rows import SessionRow
from mainspring.stores.memory.tables import Tables


class MemoryCoordination:
    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    async def join(self, name: str, ttl: Micros) -> SessionId:
        with self._tables.transaction() as now:
            member = SessionId(len(self._tables.sessions) + 1)
            self._tables.sessions[member] = SessionRow(
                id=member,
                name=name,
                kind="scheduler",
                started_at=now,
                lease_until=now + ttl,
                lease=ttl,
                # No clock guard runs in a process with a memory store, so none sets this later.
                tzdata=find_zone_database().version,
            )
            return member

    async def renew(self, member: SessionId, ttl: Micros) -> Membership:
        tables = self._tables
        with tables.transaction() as now:
            row = tables.sessions.get(member)
            if row is None or not row.live or row.kind != "scheduler":
                raise Fenced(f"member {member} is not one any more")
            row.lease_until = now + ttl
            members = [row for row in tables.sessions.values() if row.kind == "scheduler"]
            for row in members:
                row.live = row.live and not row.expired(now)
            return Membership(
                now=now,
                members=tuple(row.id for row in members if row.live),
                owned={shard: row.epoch for shard, row in enumerate(tables.shard_rows) if row.owner == member},
                first_end=min(
                    (row.lease_until - now for row in members if row.live and row.id != member), default=None
                ),
            )

    async def take(self, member: SessionId, shards: Collection[int]) -> dict[int, int]:
        tables = self._tables
        with tables.transaction():
            taken: dict[int, int] = {}
            if tables.find_live_session(member) is None:
                return taken
            for shard in sorted(set(shards)):
                if not 0 <= shard < tables.shards:
                    continue
                row = tables.shard_rows[shard]
                if row.owner is None or tables.find_live_session(row.owner) is None:
                    row.owner = member
                    row.epoch += 1
                    taken[shard] = row.epoch
            return taken

    async def give_up(self, member: SessionId, shards: Collection[int]) -> None:
        with self._tables.transaction():
            self._free(member, shards)

    async def leave(self, member: SessionId) -> None:
        tables = self._tables
        with tables.transaction():
            self._free(member, range(tables.shards))
            row = tables.sessions.get(member)
            if row is not None:
                row.live = False

    async def identity(self) -> str:
        return self._tables.store_id

    async def epochs(self, shards: Collection[int]) -> dict[int, int]:
        return {shard: self._tables.shard_rows[shard].epoch for shard in shards if 0 <= shard < self._tables.shards}

    async def seal(self, member: SessionId, epochs: Mapping[int, int]) -> dict[int, int]:
        tables = self._tables
        with tables.transaction():
            if tables.find_live_session(member) is None:
                return {}
            sealed: dict[int, int] = {}
            for shard, epoch in epochs.items():
                row = tables.shard_rows[shard] if 0 <= shard < tables.shards else None
                if row is not None and row.epoch == epoch and row.owner != member:
                    row.owner = member
                    row.epoch += 1
                    sealed[shard] = row.epoch
            return sealed

    async def record_clock(self, sessions: Collection[SessionId], reading: ClockReading, tzdata: str) -> None:
        with self._tables.transaction():
            for session in sessions:
                if (row := self._tables.sessions.get(session)) is not None:
                    row.clock = reading
                    row.tzdata = tzdata

    def _free(self, member: SessionId, shards: Collection[int]) -> None:
        for shard in shards:
            if 0 <= shard < self._tables.shards and self._tables.shard_rows[shard].owner == member:
                self._tables.shard_rows[shard].owner = None
