"""The servers that an address names: which of them is the primary, and whether a pooler stands before it."""

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

#: What it means when there is no connection to be had, for now.
UNREACHABLE = (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
#: Seconds for one server to answer. One that is switched off answers nothing at all, and must not keep us from others.
_ANSWER = 5
#: How long the others may take once one was found that writes: there may be one with a newer timeline.
_OTHERS = 0.3
#: What an address may say of the server it wants; all of it is one that writes.
_WRITING = ("any", "read-write", "primary")

# The timeline grows by one with each promotion. That of the log that is being written is new from the first moment on;
# the one in the control file only after a checkpoint.
_STANDING = """
SELECT NOT pg_is_in_recovery() AND current_setting('transaction_read_only') = 'off' AS writes,
       (SELECT system_identifier FROM pg_control_system()) AS cluster,
       CASE WHEN pg_is_in_recovery() THEN 0
            ELSE ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int END AS timeline
"""
# Where these are not to be asked, as in some managed databases.
_STANDING_ALONE = """
SELECT NOT pg_is_in_recovery() AND current_setting('transaction_read_only') = 'off' AS writes,
       0::bigint AS cluster, 0 AS timeline
"""


class Standing(msgspec.Struct, frozen=True):
    """What a server says of itself."""

    writes: bool
    #: Which database cluster it is of; 0 where it does not say.
    cluster: int
    #: Of those that write the one with the greater timeline was promoted later.
    timeline: int


class Servers:
    """One for each address in a process: what one connection has learnt, the others need not.

    A server that does not write is refused. So is a primary of an older timeline than one that was seen: it was left up
    when another was promoted, and whatever it accepts is lost.
    """

    #: How often the other servers are looked at while all is well, on average, in seconds.
    watch_every = 5.0

    def __init__(self, dsn: str, *, reading: bool = False) -> None:
        """``reading``: a standby will do."""
        self.dsns = split(dsn, reading=reading)
        self._reading = reading
        #: A pooler that gives each transaction whatever connection is free, or must be taken for one.
        self.pooled = False
        #: It is known that there is none.
        self._straight = False
        #: Grows when another server has taken over: what was learnt from the old one may not hold.
        self.generation = 0
        self._primary: str | None = None
        self._standing = Standing(True, 0, 0)
        #: Connections to the primary, while somebody has them.
        self._made: WeakSet[Connection] = WeakSet()

    async def probe(self, settings: Mapping[str, str]) -> None:
        """Find out whether a pooler stands in between."""
        try:
            connection = await self.connect(statement_cache_size=0, server_settings=dict(settings))
        except asyncpg.ProtocolViolationError as error:
            # pgbouncer refuses what it does not know; elsewhere it is somebody who speaks another protocol.
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
        """Whether another process serves it than the one that was told when it was made."""
        async with connection.transaction():
            pid = await connection.fetchval("SELECT pg_backend_pid()")
        return self.pooled or pid != connection.get_server_pid()

    def _found_pooler(self) -> None:
        if not self.pooled:
            _log.warning(
                "a pooler stands between us and PostgreSQL: every statement gets a transaction of its own, "
                "and wake-ups are polled for; straight to the server is quicker"
            )
        self.pooled = True

    async def connect(self, *_: object, **options: Any) -> Connection:
        """A new connection to the primary."""
        options = {"timeout": _ANSWER, "target_session_attrs": "any"} | options
        known = self._primary
        if known is not None or len(self.dsns) == 1:
            try:
                connection, standing = await self._reach(known or self.dsns[0], options)
            except UNREACHABLE:
                if len(self.dsns) == 1:
                    raise
            else:
                if self._is_good(standing):
                    self._learn(known or self.dsns[0], standing)
                    self._made.add(connection)
                    return connection
                connection.terminate()
                if len(self.dsns) == 1:
                    raise _no_primary(1)
        return await self._choose(options)

    async def _choose(self, options: Mapping[str, Any]) -> Connection:
        """Ask all servers at once, and take the one that writes and was promoted last."""
        asked = {asyncio.create_task(self._reach(dsn, options)): dsn for dsn in self.dsns}
        found: list[tuple[Standing, str, Connection]] = []
        failed: BaseException | None = None
        pending = set(asked)
        chosen: Connection | None = None
        try:
            while pending:
                patience = _OTHERS if any(self._is_good(standing) for standing, _, _ in found) else None
                done, pending = await asyncio.wait(pending, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    break
                for task in done:
                    if (error := task.exception()) is None:
                        connection, standing = task.result()
                        found.append((standing, asked[task], connection))
                    else:
                        failed = error
            good = [item for item in found if self._is_good(item[0])]
            if not good:
                raise failed if failed is not None and not found else _no_primary(len(self.dsns))
            standing, dsn, chosen = max(good, key=lambda item: item[0].timeline)
            self._learn(dsn, standing)
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
        """For ever: has another server become primary, while ours is still up? Whoever talks to one that was left up
        would not notice otherwise."""
        while True:
            await asyncio.sleep(self.watch_every * (0.5 + random.random()))  # noqa: TID251
            for dsn in self.dsns:
                if dsn != self._primary:
                    await self._look_at(dsn)

    async def _look_at(self, dsn: str) -> None:
        options = {"timeout": _ANSWER, "target_session_attrs": "any", "statement_cache_size": 0}
        try:
            connection, standing = await self._reach(dsn, options)
        except UNREACHABLE:
            return
        connection.terminate()
        if standing.writes and self._is_good(standing) and standing.timeline > self._standing.timeline:
            _log.warning("another server was promoted: going there", timeline=standing.timeline)
            self._learn(dsn, standing)

    async def _reach(self, dsn: str, options: Mapping[str, Any]) -> tuple[Connection, Standing]:
        connection = await asyncpg.connect(dsn, **options)
        try:
            try:
                standing = await self._standing_of(connection, _STANDING)
            except (asyncpg.SyntaxOrAccessError, asyncpg.FeatureNotSupportedError):
                standing = await self._standing_of(connection, _STANDING_ALONE)
        except BaseException:
            connection.terminate()
            raise
        return connection, standing

    async def _standing_of(self, connection: Connection, statement: str) -> Standing:
        if self._straight:
            row = await connection.fetchrow(statement)
        else:
            # In a transaction: a pooler may give what prepares a statement and what runs it to two servers.
            async with connection.transaction():
                row = await connection.fetchrow(statement)
        assert row is not None
        return Standing(row["writes"], row["cluster"], row["timeline"])

    def _is_good(self, standing: Standing) -> bool:
        if self._reading:
            return True
        same = standing.cluster == self._standing.cluster
        return standing.writes and not (same and standing.timeline < self._standing.timeline)

    def _learn(self, dsn: str, standing: Standing) -> None:
        if self._primary is not None and standing != self._standing:
            _log.warning("PostgreSQL is another server, or was promoted", timeline=standing.timeline)
            self.generation += 1
            if not self._reading:
                self._leave()
        self._primary, self._standing = dsn, standing

    def _leave(self) -> None:
        """Whoever waits for the old server is told at once. It may be up, and its commits wait for a standby that
        follows it no more."""
        made, self._made = self._made, WeakSet()
        for connection in made:
            if not connection.is_closed():
                connection.terminate()


def servers_of(dsn: str, *, reading: bool = False) -> Servers:
    return _servers_of(dsn, reading)


@functools.cache
def _servers_of(dsn: str, reading: bool) -> Servers:
    return Servers(dsn, reading=reading)


def split(dsn: str, *, reading: bool = False) -> list[str]:
    """An address for each of its servers. ``target_session_attrs`` goes: all that we do needs a server that writes."""
    try:
        parts = urlsplit(dsn)
    except ValueError as error:
        # Not in its words: they could hold a part of a password.
        raise Invalid(
            "store", "the address of PostgreSQL cannot be read", "postgresql://user:password@host:port/database"
        ) from error
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    wanted = query.pop("target_session_attrs", None)
    if wanted not in (None, *_WRITING) and not reading:
        raise Invalid("store", f"target_session_attrs={wanted} would never write", "read-write, or leave it out")

    def address(place: str, options: Mapping[str, str]) -> str:
        return f"{parts.scheme}://{place}{parts.path}" + (f"?{urlencode(options)}" if options else "")

    credentials, at, places = parts.netloc.rpartition("@")
    hosts, ports = (query.get(name, "").split(",") for name in ("host", "port"))
    if "," in places:
        return [address(f"{credentials}{at}{place}", query) for place in places.split(",")]
    if len(hosts) > 1:
        if len(ports) not in (1, len(hosts)):
            raise Invalid("store", f"names {len(hosts)} hosts and {len(ports)} ports", "as many, or one port for all")
        each = zip(hosts, ports * len(hosts) if len(ports) == 1 else ports, strict=True)
        return [address(parts.netloc, query | {"host": host} | ({"port": port} if port else {})) for host, port in each]
    # As it was written: what is not understood here may be understood there.
    return [dsn] if wanted is None else [address(parts.netloc, query)]


def _no_primary(servers: int) -> asyncpg.TargetServerAttributeNotMatched:
    what = "the server is a standby, or read-only" if servers == 1 else f"none of the {servers} servers is a primary"
    return asyncpg.TargetServerAttributeNotMatched(what)


def _drop(task: "asyncio.Task[tuple[Connection, Standing]]") -> None:
    """Somebody who answered too late."""
    if not task.cancelled() and task.exception() is None:
        task.result()[0].terminate()
