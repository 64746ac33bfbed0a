"""Makes a standby the primary, and everything that the old one may still give out older than what this one will."""

import asyncio
import ssl
from typing import TypeAlias
from urllib.parse import parse_qsl, urlsplit

import asyncpg
import msgspec

from mainspring.adapters.postgres_servers import split
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
    others = [dsn for dsn in split(store) if _place(dsn) != _place(address)]
    signs = await asyncio.gather(*(_sign_of_life(dsn) for dsn in others))
    alive = [f"{':'.join(_place(dsn))} {sign}" for dsn, sign in zip(others, signs, strict=True) if sign]
    if alive:
        raise Conflict(
            f"{'; '.join(alive)}: stop it first, or what it acknowledges from now on is lost "
            "(--force promotes all the same)"
        )


def _place(dsn: str) -> tuple[str, str]:
    """Which server an address of one means, however it is written."""
    parts = urlsplit(dsn)
    query = dict(parse_qsl(parts.query))
    host, _, port = parts.netloc.rpartition("@")[2].rpartition(":")
    if not port.isdecimal():
        host, port = f"{host}:{port}" if host else port, ""
    return (host or query.get("host", "localhost")).lower(), port or query.get("port", "5432")


async def _sign_of_life(dsn: str) -> str:
    """Why a server must be taken for one that writes; nothing if it is away, or a standby."""
    try:
        async with asyncio.timeout(_ANSWER):
            connection: Connection = await asyncpg.connect(dsn)
            try:
                return "" if await connection.fetchval("SELECT pg_is_in_recovery()") else "still writes"
            finally:
                connection.terminate()
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
        return "" if _is_away(error) else f"answers ({str(error) or type(error).__name__})"


def _is_away(error: Exception) -> bool:
    """Whether nobody is there. One that has no connection to spare, or lets us not in, writes for others."""
    # Of these two the first is about certificates, and the second is asyncpg's of a server that has no TLS.
    if isinstance(error, ssl.SSLError) or type(error) is ConnectionError:
        return False
    return isinstance(error, OSError | asyncpg.ConnectionDoesNotExistError | asyncpg.CannotConnectNowError)
