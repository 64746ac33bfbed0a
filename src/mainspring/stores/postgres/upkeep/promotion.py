"""Promotes a standby, and raises the store epoch so that everything the old primary may still hand out is older."""

import asyncio
import re
import ssl
from collections.abc import Sequence
from typing import TypeAlias
from urllib.parse import parse_qsl, urlencode, urlsplit

import asyncpg
import msgspec

from mainspring.core.model.base.errors import Conflict, StoreUnavailable
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.upkeep.promotion import PROMOTED, Promoted
from mainspring.stores.postgres.database import connecting
from mainspring.stores.postgres.servers import split

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

#: Seconds that a server of the old region may take to answer.
_ANSWER = 3
#: Seconds that the standby may take to replay what it has received.
_PATIENCE = 600
_STOP_IT = "stop it first, or what it acknowledges from now on is lost (--force promotes all the same)"
#: A server that sent something this many seconds ago is alive. Deciding that a region is lost takes longer.
_FRESH = 10
# Commit locally: waiting for a standby that no longer exists must not block these writes.
_SETTINGS = {"application_name": "mainspring promote", "synchronous_commit": "local"}
_LAST = "SELECT (extract(epoch FROM pg_last_xact_replay_timestamp()) * 1000000)::bigint"
# Which server it follows. A role without the right to see that gets no rows or values.
_FOLLOWS = """
SELECT pg_is_in_recovery() AS is_standby, (SELECT setting FROM pg_settings WHERE name = 'primary_conninfo') AS conninfo,
       r.status, r.sender_host, r.sender_port,
       extract(epoch FROM clock_timestamp() - r.last_msg_receipt_time)::float8 AS silent
FROM (SELECT) AS one LEFT JOIN pg_stat_wal_receiver r ON true
"""
_WORD = re.compile(r"(\w+)\s*=\s*('(?:[^'\\]|\\.)*'|\S*)")
_WAITS_FOR = """
SELECT CASE WHEN EXISTS (SELECT FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum')) THEN ''
            ELSE current_setting('synchronous_standby_names') END
"""


async def promote(address: str, store: str, schema: str, clock: Clock, *, force: bool) -> Promoted:
    """Promote the server at ``address``; a repeated call completes what was left undone.

    Unless ``force`` is set, raise ``Conflict`` if another server that ``store`` names, or that it follows, writes.
    """
    others = [] if force else _without(split(store), [address])
    is_away = await _refuse_alive(others)
    with connecting():
        connection: Connection = await asyncpg.connect(address, timeout=_ANSWER, server_settings=_SETTINGS)
    try:
        if not force:
            await _refuse_followed(connection, address, others, is_away=is_away)
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
    # Fails before anything is changed if this is not the store's database.
    before: int = await connection.fetchval(f"SELECT store_epoch FROM {schema}.meta")
    began = clock.monotonic()
    last = None
    if await connection.fetchval("SELECT pg_is_in_recovery()"):
        if not await connection.fetchval("SELECT pg_promote(true, $1)", _PATIENCE):
            raise StoreUnavailable(
                f"{address} was asked to become the primary, and is not the primary after {_PATIENCE} s"
            )
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


async def _refuse_alive(servers: Sequence[str]) -> bool:
    """Raise ``Conflict`` if a server is alive; return whether one is unreachable that may have been the primary."""
    signs = await asyncio.gather(*map(_probe_writer, servers))
    alive = [f"{':'.join(_parse_endpoint(dsn))} {sign}" for dsn, sign in zip(servers, signs, strict=True) if sign]
    if alive:
        raise Conflict(f"{'; '.join(alive)}: {_STOP_IT}")
    return "" in signs


async def _refuse_followed(connection: Connection, address: str, asked: Sequence[str], *, is_away: bool) -> None:
    """Raise ``Conflict`` if the old primary may still write.

    1. The standby still receives data from it.
    2. The server that the standby follows answers.
    3. No server could be asked.
    """
    row = await connection.fetchrow(_FOLLOWS)
    assert row is not None
    if not row["is_standby"]:
        return
    if row["status"] == "streaming" and row["silent"] is not None and row["silent"] < _FRESH:
        sender = f"{row['sender_host']}:{row['sender_port']}"
        raise Conflict(f"{sender} still sends to it, last {row['silent']:.1f} s ago: {_STOP_IT}")
    places = _parse_conninfo(row["conninfo"] or "")
    if row["sender_host"]:
        places.append((row["sender_host"], str(row["sender_port"])))
    # A local address seen from a remote standby would mean another server here.
    seen = [place for place in places if not _is_local(place[0]) or _is_local(_parse_endpoint(address)[0])]
    followed = _without([_at(address, *place) for place in seen], [address, *asked])
    if not await _refuse_alive(followed) and not is_away:
        raise Conflict(
            "nobody could be asked whether the old primary still writes: name both servers in --store, as in "
            "postgresql://user@near,far/database, or see to it that the old one is down and say --force"
        )


def _without(servers: Sequence[str], others: Sequence[str]) -> list[str]:
    places = {_parse_endpoint(dsn) for dsn in others}
    return list({_parse_endpoint(dsn): dsn for dsn in servers if _parse_endpoint(dsn) not in places}.values())


def _parse_conninfo(conninfo: str) -> list[tuple[str, str]]:
    """Return the hosts and ports of a libpq connection string."""
    if conninfo.startswith(("postgresql://", "postgres://")):
        return [_parse_endpoint(dsn) for dsn in split(conninfo)]
    words = {key: re.sub(r"\\(.)", r"\1", value.strip("'")) for key, value in _WORD.findall(conninfo)}
    hosts = (words.get("host") or words.get("hostaddr") or "").split(",")
    ports = (words.get("port") or "5432").split(",")
    return [(host, ports[number % len(ports)] or "5432") for number, host in enumerate(hosts) if host]


def _is_local(host: str) -> bool:
    return host in ("", "localhost", "::1", "[::1]") or host.startswith(("/", "127."))


def _at(address: str, host: str, port: str) -> str:
    """Return the address of another server with the same role and database: a standby has those of its primary."""
    parts = urlsplit(address)
    user, at, _ = parts.netloc.rpartition("@")
    query = urlencode([word for word in parse_qsl(parts.query) if word[0] not in ("host", "port")])
    if host.startswith("/"):
        return parts._replace(netloc=user + at, query=f"{query}&{urlencode({'host': host, 'port': port})}").geturl()
    host = f"[{host}]" if ":" in host and not host.startswith("[") else host
    return parts._replace(netloc=f"{user}{at}{host}:{port}", query=query).geturl()


def _parse_endpoint(dsn: str) -> tuple[str, str]:
    """Return host and port of the server that an address means, however it is written."""
    parts = urlsplit(dsn)
    query = dict(parse_qsl(parts.query))
    host, _, port = parts.netloc.rpartition("@")[2].rpartition(":")
    if not port.isdecimal():
        host, port = f"{host}:{port}" if host else port, ""
    return (host or query.get("host", "localhost")).lower(), port or query.get("port", "5432")


async def _probe_writer(dsn: str) -> str | None:
    """Return why a server must be assumed to write; empty: it is unreachable; None: it is a standby."""
    try:
        async with asyncio.timeout(_ANSWER):
            connection: Connection = await asyncpg.connect(dsn)
            try:
                return None if await connection.fetchval("SELECT pg_is_in_recovery()") else "still writes"
            finally:
                connection.terminate()
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
        return "" if _is_away(error) else f"answers ({str(error) or type(error).__name__})"


def _is_away(error: Exception) -> bool:
    """Whether no server is there. One that has no free connection, or rejects the login, writes for others."""
    # SSLError is about certificates; asyncpg raises a plain ConnectionError for a server without TLS. Both answered.
    if isinstance(error, ssl.SSLError) or type(error) is ConnectionError:
        return False
    return isinstance(error, OSError | asyncpg.ConnectionDoesNotExistError | asyncpg.CannotConnectNowError)
