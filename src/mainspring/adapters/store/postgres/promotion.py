"""Makes a standby the primary, and everything that the old one may still give out older than what this one will."""

import asyncio
from typing import TypeAlias
from urllib.parse import urlsplit

import asyncpg
import msgspec

from mainspring.adapters.postgres_servers import UNREACHABLE, split
from mainspring.adapters.store.postgres.database import connecting
from mainspring.domain.errors import Conflict, StoreUnavailable
from mainspring.ports.clock import Clock
from mainspring.ports.promotion import PROMOTED, Promoted

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

#: Seconds that a server of the old region may take to answer, …
_ANSWER = 3
#: … and that the standby may take to replay what it has received.
_PATIENCE = 600
# Whoever waits for a standby that is no more must not keep this from being written.
_SETTINGS = {"application_name": "mainspring promote", "synchronous_commit": "local"}
_LAST = "SELECT (extract(epoch FROM pg_last_xact_replay_timestamp()) * 1000000)::bigint"
_WAITS_FOR = """
SELECT CASE WHEN EXISTS (SELECT FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum')) THEN ''
            ELSE current_setting('synchronous_standby_names') END
"""


async def promote(address: str, store: str, schema: str, clock: Clock, *, force: bool) -> Promoted:
    """Promote the server at ``address``, unless another one that ``store`` names still writes. Asked again it does what
    was left undone."""
    if not force:
        await _refuse_two(address, store)
    with connecting():
        connection: Connection = await asyncpg.connect(address, timeout=_ANSWER, server_settings=_SETTINGS)
    try:
        return await _promote(connection, urlsplit(address).netloc.rpartition("@")[2], schema, clock)
    except asyncpg.InsufficientPrivilegeError as error:
        raise Conflict(f"{error}: promoting needs a superuser, or GRANT EXECUTE ON FUNCTION pg_promote") from None
    except asyncpg.UndefinedTableError:
        raise Conflict(f"there is no store in the schema {schema} of that database") from None
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise StoreUnavailable(f"PostgreSQL: {str(error) or type(error).__name__}") from error
    finally:
        connection.terminate()


async def _promote(connection: Connection, address: str, schema: str, clock: Clock) -> Promoted:
    # Before anything is changed: is this the database?
    before: int = await connection.fetchval(f"SELECT store_epoch FROM {schema}.meta")
    began = clock.monotonic()
    last = None
    if await connection.fetchval("SELECT pg_is_in_recovery()"):
        if not await connection.fetchval("SELECT pg_promote(true, $1)", _PATIENCE):
            raise StoreUnavailable(f"{address} was told to become the primary, and is not yet after {_PATIENCE} s")
        last = await connection.fetchval(_LAST)
        before = await connection.fetchval(f"SELECT store_epoch FROM {schema}.meta")
    promoted = Promoted(
        address=address,
        last_commit=last,
        took=clock.monotonic() - began,
        epoch=before + 1,
        waits_for=await connection.fetchval(_WAITS_FOR),
    )
    async with connection.transaction():
        await connection.execute(f"UPDATE {schema}.meta SET store_epoch = $1", promoted.epoch)
        await connection.execute(
            f"INSERT INTO {schema}.audit (at, count, tenant, author, action, target, why, after) "
            f"VALUES ({schema}.now_us(), 1, '', 'mainspring promote', $1, $2, '', $3)",
            PROMOTED,
            address,
            msgspec.json.encode(promoted),
        )
    return promoted


async def _refuse_two(address: str, store: str) -> None:
    here = urlsplit(address).netloc.rpartition("@")[2]
    others = [dsn for dsn in split(store) if urlsplit(dsn).netloc.rpartition("@")[2] != here]
    answers = await asyncio.gather(*(_writes(dsn) for dsn in others))
    writing = [urlsplit(dsn).netloc.rpartition("@")[2] for dsn, writes in zip(others, answers, strict=True) if writes]
    if writing:
        raise Conflict(
            f"{', '.join(writing)} still writes: stop it first, or what it acknowledges from now on is lost "
            "(--force promotes all the same)"
        )


async def _writes(dsn: str) -> bool:
    try:
        async with asyncio.timeout(_ANSWER):
            connection: Connection = await asyncpg.connect(dsn)
            try:
                return not await connection.fetchval("SELECT pg_is_in_recovery()")
            finally:
                connection.terminate()
    except UNREACHABLE:
        return False
