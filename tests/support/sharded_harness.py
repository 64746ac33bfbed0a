"""A sharded store over three databases of one server, for the contract tests."""

from collections.abc import Sequence

import asyncpg

from mainspring.core.model.base.ids import JobId, RunId
from mainspring.core.model.base.instant import Instant, Micros
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.model.schedules.job import NewJob
from mainspring.core.runtime.system_clock import SystemClock
from mainspring.stores.postgres import PostgresStore
from mainspring.stores.sharded import ShardedStore
from tests.support.builders import SHARDS
from tests.support.databases import create_database, make_template, migrations_digest, with_database
from tests.support.kept_connections import KeptConnections
from tests.support.state_changes import StateChange
from tests.support.store_harness import HARNESS_SQL, Harness, PostgresHarness, build_reader_role


def build_sharded_store(addresses: Sequence[str], shards: int = SHARDS, connections: int = 4) -> ShardedStore:
    return _with(ShardedStore, addresses, shards, connections)


def _with(
    kind: type[ShardedStore],
    addresses: Sequence[str],
    shards: int,
    connections: int,
    kept: KeptConnections | None = None,
) -> ShardedStore:
    def make(address: str, _: object) -> PostgresStore:
        store = PostgresStore(address, shards=shards, connections=connections, one_of_several=True)
        if kept is not None:
            kept.lend_to(store)
        return store

    store = kind([(address, address.rpartition("/")[2]) for address in addresses], SystemClock(), make)
    # On a busy machine a claim must not skip a server that is only slow.
    store.claim_timeout = 60
    return store


class _OneGroupStore(ShardedStore):
    """A sharded store that keeps all tenants in placement group 0, because the contract tests choose ids freely."""

    async def open(self) -> None:
        await super().open()
        self._servers.of_tenant = lambda tenant, placement="": 0  # type: ignore[method-assign]

    def _check_group(self, run: NewRun) -> None:
        pass

    def _check_job(self, job: NewJob) -> None:
        pass


class ShardedHarness(Harness):
    store: ShardedStore

    def __init__(self, addresses: Sequence[str], kept: KeptConnections) -> None:
        super().__init__()
        self.parts = [PostgresHarness(address, kept) for address in addresses]
        self.store = _with(_OneGroupStore, addresses, SHARDS, 4, kept)

    @classmethod
    async def prepare(cls, dsn: str, names: Sequence[str]) -> list[str]:
        """Create the databases of one sharded store and return their addresses."""
        template = await make_template(dsn, f"template_sharded_{migrations_digest(HARNESS_SQL)}", cls._prepare_one)
        addresses = [with_database(dsn, name) for name in names]
        for name, address in zip(names, addresses, strict=True):
            await create_database(dsn, name, template)
            connection = await asyncpg.connect(address)
            try:
                await connection.execute("UPDATE mainspring.meta SET store_id = gen_random_uuid()")
            finally:
                await connection.close()
        store = build_sharded_store(addresses)
        await store.open()
        try:
            for address, (_, part) in zip(addresses, store.stores, strict=True):
                await build_reader_role(part, address)
            # No test may depend on the first server.
            await store.move_placement_group(0, 0, 1)
        finally:
            await store.close()
        return addresses

    @classmethod
    async def _prepare_one(cls, address: str) -> None:
        await PostgresHarness.prepare(address, row_security=False)
        connection = await asyncpg.connect(address)
        try:
            await connection.execute(
                "CREATE OR REPLACE FUNCTION mainspring.compute_tenant_placement(tenant text, groups integer) "
                "RETURNS integer LANGUAGE sql IMMUTABLE AS $$ SELECT 0 $$"
            )
        finally:
            await connection.close()

    async def open(self) -> None:
        for part in self.parts:
            await part.connect()
            await part.wipe()
        await self.store.open()

    async def close(self) -> None:
        try:
            await self.store.close()
        finally:
            for part in self.parts:
                await part.disconnect()

    async def state_changes(self) -> list[StateChange]:
        return [change for part in self.parts for change in await part.state_changes()]

    async def spoil_policy(self, run: RunId) -> None:
        for part in self.parts:
            await part.spoil_policy(run)

    async def spoil_spec(self, job: JobId) -> None:
        for part in self.parts:
            await part.spoil_spec(job)

    async def move_clock(self, duration: Micros) -> None:
        for part in self.parts:
            await part.move_clock(duration)

    async def freeze_clock(self) -> Instant:
        now = await self.store.now()
        for part in self.parts:
            await part.freeze_clock_at(now)
        return now

    async def let_transactions_end(self) -> None:
        for part in self.parts:
            await part.let_transactions_end()
