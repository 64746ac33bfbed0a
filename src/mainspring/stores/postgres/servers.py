"""The servers that an address names: which of them is the primary, and whether a pooler is in front of it."""

import asyncio
import functools
import random
from collections.abc import Mapping
from typing import Any, TypeAlias
from urllib.parse import parse_qsl, urlencode, urlsplit
from weakref import WeakSet

import asyncpg
import msgspec

from mainspring.core.model.base.errors import Invalid
from mainspring.core.runtime.log import get_logger

_log = get_logger("mainspring.postgres")

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

#: Errors that mean that no connection can be made for now.
UNREACHABLE = (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
#: Seconds for one server to answer. A server that is switched off never answers, and must not delay reaching the
#: others.
_ANSWER = 5
#: Seconds to wait for the others once a server that writes was found: one of them may have a newer timeline.
_OTHERS = 0.3
#: Values of target_session_attrs that an address may have; all of them get a server that writes.
_WRITING = ("any", "read-write", "primary")

# The timeline grows by one with each promotion. The timeline of the WAL being written is new from the first moment on;
# the one in the control file only after a checkpoint.
_READ_STATUS = """
SELECT NOT pg_is_in_recovery() AND current_setting('transaction_read_only') = 'off' AS writes,
       (SELECT system_identifier FROM pg_control_system()) AS cluster,
       CASE WHEN pg_is_in_recovery() THEN 0
            ELSE ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int END AS timeline
"""
# For servers that forbid these functions, as some managed databases do.
_RESTRICTED_STATUS = """
SELECT NOT pg_is_in_recovery() AND current_setting('transaction_read_only') = 'off' AS writes,
       0::bigint AS cluster, 0 AS timeline
"""


class ServerStatus(msgspec.Struct, frozen=True):
    """What a server reports about itself."""

    writes: bool
    #: The identifier of its database cluster; 0 if it does not report one.
    cluster: int
    #: Of the servers that write, the one with the greater timeline was promoted later.
    timeline: int


class PostgresServers:
    """The servers of one address, shared in a process: what one connection learns, the others know.

    A server that does not write is refused. So is a primary of an older timeline than one that was seen: it was left up
    when another was promoted, and every write that it accepts is lost.
    """

    #: Average seconds between checks of the other servers while all is well.
    watch_every = 5.0

    def __init__(self, dsn: str, *, reading: bool = False) -> None:
        """``reading``: accept a standby, too."""
        self.dsns = split(dsn, reading=reading)
        self._reading = reading
        #: Whether a pooler gives each transaction any free connection, or must be assumed to.
        self.pooled = False
        #: Whether it is known that there is no pooler.
        self._straight = False
        #: Grows when another server takes over: what was learned from the old one may not hold.
        self.generation = 0
        self._primary: str | None = None
        self._status = ServerStatus(True, 0, 0)
        #: Connections to the primary that are in use.
        self._made: WeakSet[Connection] = WeakSet()

    async def probe(self, settings: Mapping[str, str]) -> None:
        """Find out whether a pooler is in between."""
        try:
            connection = await self.connect(statement_cache_size=0, server_settings=dict(settings))
        except asyncpg.ProtocolViolationError as error:
            # pgbouncer rejects startup parameters that it does not know; otherwise the other end does not speak
            # PostgreSQL.
            if "startup parameter" not in str(error):
                raise
            self._found_pooler()
            return
        try:
            if await self.is_pooled(connection):
                self._found_pooler()
            else:
                self._straight = True
        finally:
            connection.terminate()

    async def is_pooled(self, connection: Connection) -> bool:
        """Whether the connection is served by another process than the one announced when it was made."""
        async with connection.transaction():
            pid = await connection.fetchval("SELECT pg_backend_pid()")
        return self.pooled or pid != connection.get_server_pid()

    def _found_pooler(self) -> None:
        if not self.pooled:
            _log.warning(
                "transaction pooler detected: each statement runs in a transaction, and wakeups are polled",
                advice="connect to the server directly",
            )
        self.pooled = True

    async def connect(self, *_: object, **options: Any) -> Connection:
        """Open a new connection to the primary."""
        options = {"timeout": _ANSWER, "target_session_attrs": "any"} | options
        known = self._primary
        if known is not None or len(self.dsns) == 1:
            try:
                connection, status = await self._reach(known or self.dsns[0], options)
            except UNREACHABLE:
                if len(self.dsns) == 1:
                    raise
            else:
                if self._is_good(status):
                    self._learn(known or self.dsns[0], status)
                    self._made.add(connection)
                    return connection
                connection.terminate()
                if len(self.dsns) == 1:
                    raise _no_primary(1)
        return await self._choose(options)

    async def _choose(self, options: Mapping[str, Any]) -> Connection:
        """Ask all servers at once, and take the one that writes and was promoted last."""
        asked = {asyncio.create_task(self._reach(dsn, options)): dsn for dsn in self.dsns}
        found: list[tuple[ServerStatus, str, Connection]] = []
        failed: BaseException | None = None
        pending = set(asked)
        chosen: Connection | None = None
        try:
            while pending:
                patience = _OTHERS if any(self._is_good(status) for status, _, _ in found) else None
                done, pending = await asyncio.wait(pending, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    break
                for task in done:
                    if (error := task.exception()) is None:
                        connection, status = task.result()
                        found.append((status, asked[task], connection))
                    else:
                        failed = error
            good = [item for item in found if self._is_good(item[0])]
            if not good:
                raise failed if failed is not None and not found else _no_primary(len(self.dsns))
            status, dsn, chosen = max(good, key=lambda item: item[0].timeline)
            self._learn(dsn, status)
            self._made.add(chosen)
            return chosen
        finally:
            for task in pending:
                task.cancel()
                task.add_done_callback(_drop)
            for _, _, connection in found:
                if connection is not chosen:
                    connection.terminate()

    async def watch(self) -> None:
        """Check forever whether another server was promoted while the known primary is still up.

        A process that is connected to the old primary would not notice otherwise.
        """
        while True:
            await asyncio.sleep(self.watch_every * (0.5 + random.random()))  # noqa: TID251
            for dsn in self.dsns:
                if dsn != self._primary:
                    await self._look_at(dsn)

    async def _look_at(self, dsn: str) -> None:
        options = {"timeout": _ANSWER, "target_session_attrs": "any", "statement_cache_size": 0}
        try:
            connection, status = await self._reach(dsn, options)
        except UNREACHABLE:
            return
        connection.terminate()
        if status.writes and self._is_good(status) and status.timeline > self._status.timeline:
            _log.warning("another server promoted: connecting to it", timeline=status.timeline)
            self._learn(dsn, status)

    async def _reach(self, dsn: str, options: Mapping[str, Any]) -> tuple[Connection, ServerStatus]:
        connection = await asyncpg.connect(dsn, **options)
        try:
            try:
                status = await self._read_status(connection, _READ_STATUS)
            except (asyncpg.SyntaxOrAccessError, asyncpg.FeatureNotSupportedError):
                status = await self._read_status(connection, _RESTRICTED_STATUS)
        except BaseException:
            connection.terminate()
            raise
        return connection, status

    async def _read_status(self, connection: Connection, statement: str) -> ServerStatus:
        if self._straight:
            row = await connection.fetchrow(statement)
        else:
            # In a transaction: a pooler may send the prepare and the execute of a statement to two servers.
            async with connection.transaction():
                row = await connection.fetchrow(statement)
        assert row is not None
        return ServerStatus(row["writes"], row["cluster"], row["timeline"])

    def _is_good(self, status: ServerStatus) -> bool:
        if self._reading:
            return True
        same = status.cluster == self._status.cluster
        return status.writes and not (same and status.timeline < self._status.timeline)

    def _learn(self, dsn: str, status: ServerStatus) -> None:
        if self._primary is not None and status != self._status:
            _log.warning("connected to another or a promoted server", timeline=status.timeline)
            self.generation += 1
            if not self._reading:
                self._leave()
        self._primary, self._status = dsn, status

    def _leave(self) -> None:
        """Close the connections to the old server, so that their callers fail at once.

        It may be up, with commits that wait for a standby that no longer follows it.
        """
        made, self._made = self._made, WeakSet()
        for connection in made:
            if not connection.is_closed():
                connection.terminate()


def get_servers(dsn: str, *, reading: bool = False) -> PostgresServers:
    return _cached_servers(dsn, reading)


@functools.cache
def _cached_servers(dsn: str, reading: bool) -> PostgresServers:
    return PostgresServers(dsn, reading=reading)


def split(dsn: str, *, reading: bool = False) -> list[str]:
    """Return one address per server.

    ``target_session_attrs`` is removed: all uses of the store need a server that writes.
    """
    try:
        parts = urlsplit(dsn)
    except ValueError as error:
        # Without the text of the error, which could contain a part of a password.
        raise Invalid(
            "store", "the address of PostgreSQL cannot be read", "postgresql://user:password@host:port/database"
        ) from error
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    wanted = query.pop("target_session_attrs", None)
    if wanted not in (None, *_WRITING) and not reading:
        raise Invalid("store", f"target_session_attrs={wanted} would never write", "read-write, or leave it out")

    def address(endpoint: str, options: Mapping[str, str]) -> str:
        return f"{parts.scheme}://{endpoint}{parts.path}" + (f"?{urlencode(options)}" if options else "")

    credentials, at, endpoints = parts.netloc.rpartition("@")
    hosts, ports = (query.get(name, "").split(",") for name in ("host", "port"))
    if "," in endpoints:
        return [address(f"{credentials}{at}{endpoint}", query) for endpoint in endpoints.split(",")]
    if len(hosts) > 1:
        if len(ports) not in (1, len(hosts)):
            raise Invalid("store", f"names {len(hosts)} hosts and {len(ports)} ports", "as many, or one port for all")
        each = zip(hosts, ports * len(hosts) if len(ports) == 1 else ports, strict=True)
        return [address(parts.netloc, query | {"host": host} | ({"port": port} if port else {})) for host, port in each]
    # Unchanged: the driver may understand an address that this function does not.
    return [dsn] if wanted is None else [address(parts.netloc, query)]


def _no_primary(servers: int) -> asyncpg.TargetServerAttributeNotMatched:
    what = "the server is a standby, or read-only" if servers == 1 else f"none of the {servers} servers is a primary"
    return asyncpg.TargetServerAttributeNotMatched(what)


def _drop(task: "asyncio.Task[tuple[Connection, ServerStatus]]") -> None:
    """Close the connection of a server that answered too late."""
    if not task.cancelled() and task.exception() is None:
        task.result()[0].terminate()
