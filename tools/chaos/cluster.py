"""The cluster: its processes, by name, each with a link of its own to the store."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import httpx2

from tools.chaos.ensembles import BROKERS, Ensemble
from tools.chaos.export import STAMPS
from tools.chaos.link import Link, Way

ROOT = Path(__file__).parents[2]
APP = "tools.chaos.tasks:app"
FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")
QUEUES = {"load": 200, "ticks": 400}
#: A busy machine takes its time to start a dozen interpreters.
STARTING = 300
#: Seconds to wait for a cluster to be well again. Whether it was is for the judge to say.
PATIENCE = 30
#: As many workers and schedulers live as there are, each under the lease of a process that runs.
_ALL_BACK = """
    SELECT count(*) FILTER (WHERE kind = 1) >= $1::int AND count(*) FILTER (WHERE kind = 2) >= $2::int
    FROM (SELECT DISTINCT kind, name FROM mainspring.session
          WHERE live AND lease_until > mainspring.now_us()) AS living
"""
#: No expired session is left, every shard has an owner, and nothing is late.
_ALL_WELL = """
    SELECT count(*) FILTER (WHERE kind = 1) = $1::int AND count(*) FILTER (WHERE kind = 2) = $2::int
       AND bool_and(lease_until > mainspring.now_us())
       AND NOT EXISTS (SELECT FROM mainspring.shard
                       WHERE owner IS NULL OR owner NOT IN (SELECT id FROM mainspring.session WHERE live))
       AND NOT EXISTS (SELECT FROM mainspring.schedule WHERE active AND next_fire < mainspring.now_us() - 500000)
       AND NOT EXISTS (SELECT FROM mainspring.run WHERE due < mainspring.now_us() - 1000000)
    FROM mainspring.session WHERE live
"""


class NotReady(Exception):
    """The cluster did not come up. The message has what its processes said last."""


class Member:
    """One process of the cluster, however often it is started."""

    def __init__(self, name: str, arguments: Sequence[str], links: Sequence[Link], log: Path, port: int = 0) -> None:
        self.name = name
        #: One to each server of the store.
        self.links = links
        #: To the nodes of the coordinator.
        self.coordinator_links: list[Link] = []
        #: Of an API.
        self.port = port
        self.log = log
        self.environment: Mapping[str, str] = {}
        self._arguments = arguments
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def kind(self) -> str:
        return self._arguments[0]

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        if self.running:
            return
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "mainspring", *self._arguments],
                cwd=ROOT,
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def send(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def silence(self, *ways: Way) -> None:
        """Between it and the store."""
        for link in self.links:
            link.silence(*ways)

    async def open(self) -> None:
        for link in (*self.links, *self.coordinator_links):
            await link.open()

    async def kill(self) -> None:
        self.send(signal.SIGKILL)
        await self._gone()

    async def stop(self, seconds: float = 30) -> None:
        """As a service manager does."""
        self.send(signal.SIGTERM)
        try:
            async with asyncio.timeout(seconds):
                await self._gone()
        except TimeoutError:
            await self.kill()

    async def _gone(self) -> None:
        while self.running:
            await asyncio.sleep(0.02)

    def said(self, words: str) -> int:
        """How often its log has these words."""
        return self.log.read_text(errors="replace").count(words) if self.log.exists() else 0


class Cluster:
    """Three schedulers, two workers, two APIs. Those of one number are a node, or a data center."""

    nodes = 3

    def __init__(
        self, dsns: Sequence[str], directory: Path, *, ensemble: Ensemble | None, ports: Sequence[int], faketime: bool
    ) -> None:
        """``dsns``: the servers in the settings of the processes, the primary first."""
        self.directory = directory
        self.stamps = directory / STAMPS
        self.stamps.mkdir(parents=True)
        self._faked = directory / "faketime"
        self._faked.write_text("+0\n")
        self.ensemble = ensemble
        self._has_broker = ensemble is not None and ensemble.name in BROKERS
        self._dsns = dsns
        self._faketime = faketime
        self.members: dict[str, Member] = {}
        for number in range(3):
            self._add(f"scheduler-{number}", ["scheduler", "--name", f"scheduler-{number}"])
        for number in range(2):
            self._add(f"worker-{number}", _worker(f"worker-{number}"))
        for number, port in enumerate(ports):
            self._add(f"api-{number}", ["api", "--port", str(port)], port)

    def _add(self, name: str, arguments: Sequence[str], port: int = 0) -> None:
        links = [Link("127.0.0.1", urlsplit(dsn).port or 0) for dsn in self._dsns]
        member = self.members[name] = Member(name, arguments, links, self.directory / f"{name}.log", port)
        if self.ensemble is not None and not self._has_broker:
            member.coordinator_links = [Link("127.0.0.1", node.ports["client"]) for node in self.ensemble.nodes]

    def __getitem__(self, name: str) -> Member:
        return self.members[name]

    @property
    def broker(self) -> Ensemble:
        assert self.ensemble is not None
        return self.ensemble

    def another_worker(self) -> Member:
        """One that is not counted on."""
        name = "worker-passing"
        member = Member(name, _worker(name), self.members["worker-0"].links, self.directory / f"{name}.log")
        member.environment = self._environment(member)
        return member

    def of(self, kind: str) -> list[Member]:
        return [member for member in self.members.values() if member.kind == kind]

    def node(self, number: int) -> list[Member]:
        return [member for member in self.members.values() if member.name.endswith(f"-{number}")]

    def lead(self, old: int, new: int) -> None:
        """Wires that led to one server lead to another from now on; connections that are open stay where they are."""
        for member in self.members.values():
            for link in member.links:
                if link.target[1] == old:
                    link.target = "127.0.0.1", new

    @property
    def apis(self) -> list[str]:
        return [f"http://127.0.0.1:{member.port}" for member in self.of("api")]

    async def start(self) -> None:
        for member in self.members.values():
            await member.open()
            member.environment = self._environment(member)
            member.start()
        async with httpx2.AsyncClient(timeout=5) as client:
            for api in self.apis:
                await self._until_ready(client, api)

    def _environment(self, member: Member) -> dict[str, str]:
        settings = {
            "MAINSPRING_STORE": self._address(member),
            "MAINSPRING_LOG_FORMAT": "text",
            "PYTHONPATH": str(ROOT),
            "CHAOS_STAMPS": str(self.stamps),
        }
        if self.ensemble is not None and self._has_broker:
            settings["MAINSPRING_DISPATCH_BROKER"] = self.ensemble.address()
        elif self.ensemble is not None:
            nodes = ",".join(f"127.0.0.1:{link.port}" for link in member.coordinator_links)
            settings["MAINSPRING_COORDINATION"] = f"{self.ensemble.name}://{nodes}"
        if self._faketime and member.name.endswith("-0"):
            settings |= {
                "LD_PRELOAD": str(FAKETIME),
                "FAKETIME_TIMESTAMP_FILE": str(self._faked),
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
                "FAKETIME_CACHE_DURATION": "1",
            }
        return settings

    def _address(self, member: Member) -> str:
        """Of all servers, by way of the member's links."""
        first = urlsplit(self._dsns[0])
        places = ",".join(f"127.0.0.1:{link.port}" for link in member.links)
        return urlunsplit(first._replace(netloc=f"{first.username}@{places}"))

    def step_clock(self, seconds: int) -> None:
        """Of the first of each kind."""
        self._faked.write_text(f"{seconds:+d}\n")

    async def _until_ready(self, client: httpx2.AsyncClient, api: str) -> None:
        until = time.monotonic() + STARTING
        while time.monotonic() < until:
            with suppress(httpx2.TransportError):
                if (await client.get(f"{api}/readyz")).status_code == 200:
                    return
            for member in self.members.values():
                if not member.running:
                    raise NotReady(f"{member.name} ended\n{self.logs()}")
            await asyncio.sleep(0.1)
        raise NotReady(self.logs())

    async def until_back(self, dsn: str) -> None:
        """Wait until every process works again."""
        async with httpx2.AsyncClient(timeout=5) as client:
            for api in self.apis:
                await self._until_ready(client, api)
        await self._until(dsn, _ALL_BACK)

    async def until_well(self, dsn: str) -> None:
        """Until every process works, nothing is left of those that died, and nothing waits that should have begun."""
        await self.until_back(dsn)
        await self._until(dsn, _ALL_WELL)

    async def _until(self, dsn: str, condition: str) -> None:
        kinds = [len(self.of("worker")), len(self.of("scheduler"))]
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            with suppress(OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
                connection = await asyncpg.connect(dsn, timeout=5)
                try:
                    while time.monotonic() < until:
                        if await connection.fetchval(condition, *kinds):
                            return
                        await asyncio.sleep(0.25)
                finally:
                    connection.terminate()
            await asyncio.sleep(0.1)

    def logs(self) -> str:
        return "\n".join(
            f"== {member.name}\n{member.log.read_text(errors='replace')[-1_500:]}"
            for member in self.members.values()
            if member.log.exists()
        )

    async def stop(self) -> None:
        for member in self.members.values():
            member.send(signal.SIGCONT)
            member.send(signal.SIGKILL)
        for member in self.members.values():
            await member.kill()
            for link in (*member.links, *member.coordinator_links):
                await link.close()


def _worker(name: str) -> list[str]:
    queues = [word for queue, slots in QUEUES.items() for word in ("--queue", f"{queue}:{slots}")]
    return ["worker", APP, *queues, "--name", name]
