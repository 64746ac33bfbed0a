"""The store on PostgreSQL: an ordinary role, its own schema, no extension."""

import asyncio

from mainspring.adapters.store.postgres import schema as schemas
from mainspring.adapters.store.postgres.access import Access
from mainspring.adapters.store.postgres.catalog import Catalog
from mainspring.adapters.store.postgres.coordination import Coordination
from mainspring.adapters.store.postgres.database import Connection, Database, wrong_setting
from mainspring.adapters.store.postgres.dead_letters import DeadLetters
from mainspring.adapters.store.postgres.explaining import Explaining
from mainspring.adapters.store.postgres.names import Names
from mainspring.adapters.store.postgres.operations import Operations
from mainspring.adapters.store.postgres.partitions import Partitions, day_of
from mainspring.adapters.store.postgres.reaping import Reaping
from mainspring.adapters.store.postgres.rows import Policies
from mainspring.adapters.store.postgres.seen import Seen
from mainspring.adapters.store.postgres.slos import Slos
from mainspring.adapters.store.postgres.transactions import LateStatements, Transactions
from mainspring.adapters.store.postgres.upkeep import Upkeep
from mainspring.adapters.store.postgres.usage import Budgeting
from mainspring.adapters.store.postgres.wall import Wall
from mainspring.adapters.wakeups.postgres import PostgresWakeups
from mainspring.domain.errors import Invalid
from mainspring.domain.ids import MAX_SHARDS
from mainspring.ports.catalog import Reads


class PostgresStore(
    Operations, Slos, Reaping, Upkeep, Coordination, Catalog, Explaining, Budgeting, Access, Transactions, DeadLetters
):
    """Implements the store, the coordination port, and all that the API asks for."""

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
    ) -> None:
        """``wakeups``: those that a submit may send with its commit. ``transactions``: connections for handlers."""
        assert 0 < shards <= MAX_SHARDS
        self.shards = shards
        self._engine = Database(dsn, schema, connections)
        self._db = self._engine
        self._names = Names(self._engine)
        self._wall = Wall(self._engine)
        self._policies = Policies()
        self._partitions = Partitions(self._engine)
        self._migrate = migrate
        self._wakeups = wakeups
        self._with_lanes = set()
        self._policed = set()
        self._bounded = set()
        self._weighted = set()
        self._pooled = set()
        self._most_handlers = transactions
        self._opening = asyncio.Lock()
        self._late = LateStatements(self._engine)
        self._engine.make_partitions = self._make_partitions

    async def open(self) -> None:
        await self._engine.open()
        try:
            if self._migrate and not await schemas.is_current(self._engine):
                await schemas.migrate(self._engine, self.shards)
                await self._wall.build()
            self.shards = await self._db.run(self._read_shards)
            await self._make_partitions()
        except BaseException as error:
            await self._engine.close()
            if wrong := wrong_setting(error):
                raise wrong from error
            raise

    async def close(self) -> None:
        await self._close_handlers()
        await self._wall.close()
        await self._engine.close()

    def seen_by(self, tenant: str | None) -> Reads:
        # Who is bound to no tenant sees all: there is nothing to be walled off.
        return self if tenant is None else Seen(tenant, self._wall, self._engine, self._names, self._policies)

    async def _read_shards(self, connection: Connection) -> int:
        schema = self._engine.schema
        row = await connection.fetchrow(
            f"SELECT shards, store_id, row_security_active('{schema}.run') AS bound FROM {schema}.meta"
        )
        assert row is not None
        if row["bound"]:
            raise Invalid("store", "row-level security binds this role", f"the owner of the tables in {schema}")
        self._store_id = row["store_id"]
        shards: int = row["shards"]
        return shards

    async def _make_partitions(self) -> None:
        await self._partitions.make_ahead(day_of(await self.now()))
