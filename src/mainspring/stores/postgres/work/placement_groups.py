"""A server of a sharded store: which placement groups it has, and sessions that were opened on another server."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType

import asyncpg
import msgspec

from mainspring.core.model.base.errors import StoreUnavailable
from mainspring.core.model.base.instant import Micros
from mainspring.core.ports.storage.catalog import SessionView
from mainspring.stores.postgres.codes import SESSION_KINDS
from mainspring.stores.postgres.database import Connection
from mainspring.stores.postgres.mixin import PostgresMixin

#: The error code that the triggers of ``refuse_elsewhere`` raise.
_ELSEWHERE = "MS010"
#: The most servers a sharded store can have. The session numbers of a server share a remainder modulo this.
MOST_SERVERS = 64
#: Tables whose rows carry a shard, and tables whose rows carry a tenant. They refuse rows of groups on other servers.
WITH_SHARD = ("run", "waiting", "schedule")
WITH_TENANT = ("calendar", "budget")


class PlacementStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What a server reports about its part in a sharded store."""

    store_id: str
    shards: int
    #: The sharded store that it belongs to; None: to none yet.
    set_id: str | None
    number: int | None
    #: The placement groups that it has, with their versions.
    groups: dict[int, int]
    #: Placement groups that have left and have not arrived yet → the number of the server that will have them.
    departing: dict[int, int]
    #: Whether it holds work, or ever held any.
    used: bool


def is_elsewhere(error: BaseException) -> bool:
    """Whether a server refused a row because its placement group is on another server."""
    cause = error.__cause__ if isinstance(error, StoreUnavailable) else error
    return isinstance(cause, asyncpg.PostgresError) and cause.sqlstate == _ELSEWHERE


class PlacementGroupMixin(PostgresMixin):
    async def status(self) -> PlacementStatus:
        [row] = await self._db.fetch("membership")
        return PlacementStatus(
            store_id=row["store_id"],
            shards=row["shards"],
            set_id=row["set_id"],
            number=row["number"],
            groups=dict(zip(row["groups"], row["versions"], strict=True)),
            departing=dict(zip(row["departing"], row["targets"], strict=True)),
            used=row["used"],
        )

    async def while_alone(self, what: str, work: Callable[[], Awaitable[None]]) -> None:
        """Run work that uses other connections, while no other process runs work under the same name."""

        async def inside(connection: Connection) -> None:
            await connection.execute("SET LOCAL idle_in_transaction_session_timeout = 0; SET LOCAL lock_timeout = 0")
            await connection.execute("SELECT pg_advisory_xact_lock(hashtext($1))", f"{self._db.schema}.{what}")
            await work()

        await self._db.transaction(inside)

    async def join_set(
        self,
        set_id: str,
        number: int,
        groups: int,
        here: Sequence[int] = (),
        departing: Mapping[int, int] = MappingProxyType({}),
    ) -> None:
        """Make this a server of a sharded store with the groups ``here``, allowed only while it never held any work.

        ``departing``: placement groups that are in transit, and the numbers of the servers that will have them.
        """

        async def work(connection: Connection) -> None:
            await connection.execute(*self._db.sql["join_set"].bind(set_id=set_id, number=number))
            await connection.execute(
                *self._db.sql["add_placement_groups"].bind(
                    count=groups, here=here, departing=list(departing), targets=list(departing.values())
                )
            )
            last = await connection.fetchval(*self._db.sql["last_session"].bind())
            schema = self._db.schema
            await connection.execute(
                f"ALTER TABLE {schema}.session ALTER COLUMN id SET INCREMENT BY {MOST_SERVERS} "
                f"RESTART WITH {(last // MOST_SERVERS + 1) * MOST_SERVERS + number}"
            )
            await self._guard(connection)

        await self._db.transaction(work)

    async def _guard(self, connection: Connection) -> None:
        """Refuse rows of placement groups that are not here, from this transaction on."""
        schema = self._db.schema
        rows = await connection.fetch(*self._db.sql["shards_elsewhere"].bind())
        shards = ",".join(str(row["id"]) for row in rows)
        for table in WITH_SHARD:
            await connection.execute(
                f"CREATE OR REPLACE TRIGGER elsewhere BEFORE INSERT ON {schema}.{table} FOR EACH ROW "
                f"WHEN (NEW.shard = ANY ('{{{shards}}}'::smallint[])) EXECUTE FUNCTION {schema}.refuse_elsewhere()"
            )
        for table in WITH_TENANT:
            await connection.execute(
                f"CREATE OR REPLACE TRIGGER elsewhere BEFORE INSERT ON {schema}.{table} FOR EACH ROW "
                f"EXECUTE FUNCTION {schema}.refuse_tenant_elsewhere()"
            )

    async def adopt_session(self, session: SessionView, ttl: Micros) -> bool:
        """Register a session of another server under its number; return whether it was known here before."""
        [row] = await self._db.fetch(
            "adopt_session",
            session=session.id,
            kind=SESSION_KINDS[session.kind],
            name=session.name,
            datacenter=session.datacenter,
            version=session.version,
            started_at=session.started_at,
            ttl=ttl,
            lease=session.lease,
            queues=session.queues,
            tasks=session.tasks,
            owner=session.owner,
            serves=session.serves,
            labels=session.labels,
            draining=session.draining,
            priorities=session.priorities,
            slots=session.slots,
        )
        if session.labels:
            await self._db.execute("grant_claim_groups", session=session.id)
        return bool(row["was_known"])
