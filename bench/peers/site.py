"""Where a peer is measured: its own database (or an empty Redis), a folder, and the processes on them."""

import asyncio
import contextlib
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import msgspec

from bench.children import Child, Children
from bench.figures import Figures
from bench.machine import family_processor_seconds, scratch_parent
from bench.peers.adapter import Peer, Programs
from bench.sizes import PAYLOAD
from bench.stamps import Stamps
from tools.services.ensemble import ask

SUBMITTER, WORKER, SCHEDULER = "submitter", "worker", "scheduler"
_DATABASE = "mainspring_peer"


class Wrong(Exception):
    """Not every job ran exactly once, or in time. The figures of this measurement are worth nothing."""


class Servers(msgspec.Struct, frozen=True, kw_only=True):
    """The servers of the benchmark."""

    postgres: str
    postgres_pid: int
    redis: str = ""

    @property
    def redis_address(self) -> str:
        return urlsplit(self.redis).netloc


class PeerSite:
    """A fresh store of one peer."""

    def __init__(self, peer: Peer, programs: Programs, servers: Servers, children: Children, directory: Path) -> None:
        self.peer = peer
        self.stamps = Stamps(directory)
        self.children = children
        self._programs = programs
        self._servers = servers
        self._directory = directory
        self.url = servers.redis if peer.server == "redis" else _database_on(servers.postgres)
        self._server_pid = servers.postgres_pid if peer.server == "postgres" else _redis_pid(servers)
        self._environment = {
            **programs.environment,
            "PEER_URL": self.url,
            peer.url_variable: self.url,
            "PEER_DIRECTORY": str(directory),
            "PEER_PAYLOAD": PAYLOAD.decode(),
        }

    def start_submitter(self, what: str, *numbers: float) -> Child:
        arguments = (what, *(f"{number:.6g}" if isinstance(number, float) else str(number) for number in numbers))
        command = [*self._programs.submitter, *arguments]
        return self.children.run(SUBMITTER, command, environment=self._environment, pipes=True)

    async def finish(self, child: Child) -> Any:
        """Close the submitter's standard input and return its answer."""
        output, _ = await asyncio.to_thread(child.process.communicate)
        if child.process.returncode != 0:
            child.check()
        await self.children.stop(SUBMITTER)
        return msgspec.json.decode(output or b"null")

    async def submit(self, what: str, *numbers: float) -> Any:
        return await self.finish(self.start_submitter(what, *numbers))

    async def start_workers(self, count: int) -> None:
        started = [self._start(WORKER, self._programs.worker) for _ in range(count)]
        if self._programs.scheduler:
            started.append(self._start(SCHEDULER, self._programs.scheduler))
        for child in started:
            await child.ready()

    def _start(self, kind: str, command: Any) -> Child:
        return self.children.run(kind, list(command), environment=self._environment)

    def executed(self) -> int:
        """How many executions the workers have counted."""
        return sum(int.from_bytes(path.read_bytes(), "little") for path in self._directory.glob("*.count"))

    def processor_seconds(self) -> dict[str, float]:
        """Of the client processes with their children, and of the server with its own."""
        kinds = (SUBMITTER, WORKER, SCHEDULER)
        pids = [child.pid for kind in kinds for child in self.children.of(kind)]
        return {"client": sum(map(family_processor_seconds, pids)), "server": self.server_seconds()}

    def server_seconds(self) -> float:
        return family_processor_seconds(self._server_pid)

    async def logged(self) -> int | None:
        """How many bytes PostgreSQL has written ahead."""
        if self.peer.server == "redis":
            return None
        return await self._fetch("SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint")

    async def unfinished(self) -> int:
        if self.peer.server == "redis":
            words = (b"LLEN celery\r\n", b"HLEN unacked\r\n")
            return sum(int(ask(self._servers.redis_address, word).strip(b":\r\n")) for word in words)
        return await self._fetch(self.peer.unfinished)

    async def verify(self, submitted: int, timeout: float = 120) -> None:
        """Wait until everything has run and is recorded. Every job must have run once."""
        give_up_at = time.monotonic() + timeout
        while time.monotonic() < give_up_at and (self.executed() < submitted or await self.unfinished()):
            self.children.check()
            await asyncio.sleep(0.1)
        executed, unfinished = self.executed(), await self.unfinished()
        if executed != submitted or unfinished:
            raise Wrong(f"{submitted:,} submitted, {executed:,} executions, {unfinished:,} not finished")

    async def _fetch(self, query: str) -> int:
        connection = await asyncpg.connect(self.url, server_settings={"jit": "off"})
        try:
            found: int = await connection.fetchval(query)
        finally:
            await connection.close()
        return found


@contextlib.asynccontextmanager
async def peer_site(peer: Peer, programs: Programs, servers: Servers) -> AsyncIterator[PeerSite]:
    """A fresh store with the peer's tables. All processes have ended after, and the store is gone."""
    with tempfile.TemporaryDirectory(prefix="mainspring-peer-", dir=scratch_parent()) as name:
        await _clear(peer, servers)
        try:
            async with Children(Path(name)) as children:
                site = PeerSite(peer, programs, servers, children, Path(name))
                await site.submit("install")
                yield site
        finally:
            await _clear(peer, servers, create=False)


async def facts(servers: Servers) -> Figures:
    connection = await asyncpg.connect(servers.postgres)
    try:
        names = ("server_version", "fsync", "synchronous_commit", "shared_buffers", "max_wal_size")
        return {name: await connection.fetchval("SELECT current_setting($1)", name) for name in names}
    finally:
        await connection.close()


async def _clear(peer: Peer, servers: Servers, *, create: bool = True) -> None:
    if peer.server == "redis":
        ask(servers.redis_address, b"FLUSHALL\r\n")
        return
    connection = await asyncpg.connect(servers.postgres)
    try:
        await connection.execute(f"DROP DATABASE IF EXISTS {_DATABASE} WITH (FORCE)")
        if create:
            await connection.execute(f"CREATE DATABASE {_DATABASE}")
    finally:
        await connection.close()


def _database_on(server: str) -> str:
    return urlunsplit(urlsplit(server)._replace(path=f"/{_DATABASE}"))


def _redis_pid(servers: Servers) -> int:
    for line in ask(servers.redis_address, b"INFO server\r\n").decode().splitlines():
        if line.startswith("process_id:"):
            return int(line.partition(":")[2])
    raise LookupError("Redis does not name its process")
