"""The store on PostgreSQL: an ordinary role, its own schema, no extension."""

from mainspring.adapters.store.postgres import schema as schemas
from mainspring.adapters.store.postgres.coordination import Coordination
from mainspring.adapters.store.postgres.database import Connection, Database, wrong_setting
from mainspring.adapters.store.postgres.jobs import Jobs
from mainspring.adapters.store.postgres.names import Names
from mainspring.adapters.store.postgres.partitions import Partitions, day_of
from mainspring.adapters.store.postgres.reaping import Reaping
from mainspring.adapters.store.postgres.rows import Policies
from mainspring.adapters.store.postgres.upkeep import Upkeep
from mainspring.adapters.wakeups.postgres import PostgresWakeups
from mainspring.domain.ids import MAX_SHARDS


class PostgresStore(Jobs, Reaping, Upkeep, Coordination):
    """Implements the store and the coordination port."""

    def __init__(
        self,
        dsn: str,
        *,
        schema: str = "mainspring",
        shards: int = 100,
        connections: int = 8,
        migrate: bool = True,
        wakeups: PostgresWakeups | None = None,
    ) -> None:
        """``wakeups``: those that a submit may send with its commit."""
        assert 0 < shards <= MAX_SHARDS
        self.shards = shards
        self._db = Database(dsn, schema, connections)
        self._names = Names(self._db)
        self._policies = Policies()
        self._partitions = Partitions(self._db)
        self._migrate = migrate
        self._wakeups = wakeups
        self._db.make_partitions = self._make_partitions

    async def open(self) -> None:
        await self._db.open()
        try:
            if self._migrate and not await schemas.is_current(self._db):
                await schemas.migrate(self._db, self.shards)
            self.shards = await self._db.run(self._read_shards)
            await self._make_partitions()
        except BaseException as error:
            await self._db.close()
            if wrong := wrong_setting(error):
                raise wrong from error
            raise

    async def close(self) -> None:
        await self._db.close()

    async def _read_shards(self, connection: Connection) -> int:
        shards: int = await connection.fetchval(f"SELECT shards FROM {self._db.schema}.meta")
        return shards

    async def _make_partitions(self) -> None:
        await self._partitions.make_ahead(day_of(await self.now()))
