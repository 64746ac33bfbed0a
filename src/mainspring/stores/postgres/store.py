"""The store on PostgreSQL: an ordinary role, its own schema, no extension."""

import asyncio

from mainspring.core.model.base.errors import Conflict, Invalid
from mainspring.core.model.base.ids import MAX_SHARDS
from mainspring.core.model.base.instant import Micros
from mainspring.core.ports.health import PoolUse
from mainspring.core.ports.storage.catalog import Reads
from mainspring.core.ports.upkeep.schema import Migrated
from mainspring.stores.postgres import schema as schemas
from mainspring.stores.postgres.database import Connection, Database, find_wrong_setting
from mainspring.stores.postgres.names import NameCache
from mainspring.stores.postgres.partitions import Partitions, compute_day
from mainspring.stores.postgres.rank_floors import RankFloors
from mainspring.stores.postgres.records.access import AccessMixin
from mainspring.stores.postgres.records.catalog import CatalogMixin
from mainspring.stores.postgres.records.coordination import CoordinationMixin
from mainspring.stores.postgres.records.datacenters import DataCenterMixin
from mainspring.stores.postgres.records.dead_letters import DeadLetterMixin
from mainspring.stores.postgres.records.explaining import ExplainMixin
from mainspring.stores.postgres.records.notifications import NotificationMixin
from mainspring.stores.postgres.records.operations import UserChangeMixin
from mainspring.stores.postgres.records.slos import SloMixin
from mainspring.stores.postgres.records.tasks import TaskCatalogMixin
from mainspring.stores.postgres.records.usage import BudgetMixin
from mainspring.stores.postgres.replica import Replica, ReplicaRunner
from mainspring.stores.postgres.row_security import ReaderRole, TenantScopedRunner
from mainspring.stores.postgres.rows import PolicyCodec
from mainspring.stores.postgres.tenant_scope import PostgresTenantScope
from mainspring.stores.postgres.transactions import HandlerStatements, TransactionMixin
from mainspring.stores.postgres.upkeep.archiving import ArchiveMixin
from mainspring.stores.postgres.upkeep.placement_moves import PlacementMoveMixin
from mainspring.stores.postgres.wakeups import PostgresWakeups
from mainspring.stores.postgres.work.reaping import ReaperMixin
from mainspring.stores.postgres.work.upkeep import MaintenanceMixin


class PostgresStore(
    UserChangeMixin,
    SloMixin,
    ReaperMixin,
    MaintenanceMixin,
    CoordinationMixin,
    CatalogMixin,
    ExplainMixin,
    BudgetMixin,
    AccessMixin,
    TransactionMixin,
    DeadLetterMixin,
    DataCenterMixin,
    NotificationMixin,
    TaskCatalogMixin,
    PlacementMoveMixin,
    ArchiveMixin,
):
    """Implements the store, the coordination port and everything that the API reads and changes."""

    def __init__(
        self,
        dsn: str,
        *,
        schema: str = "mainspring",
        shards: int = 100,
        connections: int = 8,
        migrate: bool = True,
        wakeups: PostgresWakeups | None = None,
        transactions: int = 5,
        replica: tuple[str, Micros] | None = None,
        one_of_several: bool = False,
    ) -> None:
        """Set up the store without connecting.

        ``wakeups``: notifications that a submit may send with its commit.
        ``transactions``: how many connections handlers get.
        ``replica``: the address of a standby for lists, and how far it may be behind.
        """
        assert 0 < shards <= MAX_SHARDS
        self.shards = shards
        self._database = Database(dsn, schema, connections)
        self._db = self._database
        self._names = NameCache(self._database)
        self._reader_role = ReaderRole(self._database)
        self.replica = None if replica is None else Replica(self._database, *replica)
        self._replica_reader_role = None if self.replica is None else ReaderRole(self._database, self.replica.database)
        self._policies = PolicyCodec()
        self._partitions = Partitions(self._database)
        self._migrate = migrate
        self._wakeups = wakeups
        self._with_groups = set()
        self._ranks = RankFloors()
        self._in_vain = {}
        self._bodies_made = set()
        self._policed = set()
        self._bounded = set()
        self._weighted = set()
        self._pooled = set()
        self._most_handlers = transactions
        self._one_of_several = one_of_several
        self._opening = asyncio.Lock()
        self._late = HandlerStatements(self._database)
        self._database.make_partitions = self._make_partitions
        self._database.forget = self._clear_caches
        self._watching: asyncio.Task[None] | None = None

    async def open(self) -> None:
        await self._database.open()
        if self._migrate and len(self._database.servers.dsns) > 1:
            self._watching = asyncio.create_task(self._database.servers.watch(), name="servers")
        try:
            if self._migrate and not await schemas.is_current(self._database):
                await schemas.migrate(self._database, self.shards)
                await self._reader_role.build()
            self.shards = await self._db.run(self._read_shards)
            await self._make_partitions()
        except BaseException as error:
            await self._stop()
            if wrong := find_wrong_setting(error):
                raise wrong from error
            raise

    def pool(self) -> PoolUse | None:
        return self._database.pool()

    async def migrate(self, *, contract: bool) -> Migrated:
        await self._database.open()
        try:
            done = await schemas.migrate(self._database, self.shards, contract=contract)
            await self._reader_role.build()
        except BaseException as error:
            if wrong := find_wrong_setting(error):
                raise wrong from error
            raise
        finally:
            await self._database.close()
        return done

    async def close(self) -> None:
        await self._close_handlers()
        await self._reader_role.close()
        if self.replica is not None and self._replica_reader_role is not None:
            await self._replica_reader_role.close()
            await self.replica.close()
        await self._stop()

    async def _stop(self) -> None:
        for task in (self._watching, self._looking):
            if task is not None:
                task.cancel()
        await self._database.close()

    def _clear_caches(self) -> None:
        """Forget cached data after another server has taken over.

        The new server may lack what the old one wrote last: names, partitions and policies.
        """
        self._names.forget()
        self._partitions.forget()
        for remembered in (self._with_groups, self._policed, self._bounded, self._weighted, self._pooled):
            remembered.clear()

    def seen_by(self, tenant: str | None) -> Reads:
        # A user without a tenant sees all tenants, so no tenant scope is needed.
        return (
            self
            if tenant is None
            else PostgresTenantScope(tenant, self._scope_to_tenant(tenant), self._names, self._policies)
        )

    def listed_by(self, tenant: str | None) -> Reads:
        replica, role = self.replica, self._replica_reader_role
        if replica is None or role is None:
            return self.seen_by(tenant)
        if tenant is None:
            return PostgresTenantScope(
                None, ReplicaRunner(replica, replica.database, self._database), self._names, self._policies
            )
        there = TenantScopedRunner(role, self._database, self._names, tenant)
        return PostgresTenantScope(
            tenant, ReplicaRunner(replica, there, self._scope_to_tenant(tenant)), self._names, self._policies
        )

    def _scope_to_tenant(self, tenant: str) -> TenantScopedRunner:
        return TenantScopedRunner(self._reader_role, self._database, self._names, tenant)

    async def _read_shards(self, connection: Connection) -> int:
        schema = self._database.schema
        row = await connection.fetchrow(
            f"SELECT shards, store_id, row_security_active('{schema}.run') AS bound, "
            f"(SELECT number FROM {schema}.server) AS server FROM {schema}.meta"
        )
        assert row is not None
        if row["bound"]:
            raise Invalid("store", "row-level security binds this role", f"the owner of the tables in {schema}")
        if row["server"] is not None and not self._one_of_several:
            raise Conflict(
                f"this database is server {row['server']} of a store over several: name all of them in store"
            )
        self._store_id = row["store_id"]
        shards: int = row["shards"]
        return shards

    async def _make_partitions(self) -> None:
        await self._partitions.make_ahead(compute_day(await self.now()))
