"""Processes of every role that Prometheus can scrape, and a task that a test can break."""

import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import httpx2

from tests.support.processes import START_SECONDS, Processes, api_client, free_port, until_ready
from tests.support.waiting import eventually


class Cluster:
    """An API, schedulers and workers, each a process of its own."""

    def __init__(self, processes: Processes, client: httpx2.AsyncClient, ports: dict[str, list[int]]) -> None:
        self.processes = processes
        self.client = client
        self.ports = ports
        self.workers: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def targets(self) -> dict[str, list[int]]:
        """Ports that Prometheus scrapes, by job."""
        return {f"mainspring-{role}": ports for role, ports in self.ports.items()}

    def start_worker(self, number: int) -> None:
        self.workers[number] = self.processes.start(
            "worker", "tests.support.alerting_tasks:app", "--queue", "mail:20", **_at(self.ports["worker"][number])
        )

    async def metrics(self, role: str, number: int = 0) -> str:
        """Wait until a process serves metrics; their text."""

        async def read() -> str:
            with suppress(httpx2.TransportError):
                answer = await self.client.get(f"http://127.0.0.1:{self.ports[role][number]}/metrics")
                return answer.raise_for_status().text
            return ""

        return await eventually(read, self.processes.logs, deadline=START_SECONDS)

    async def submit(self, runs: int) -> None:
        made = [{"task": "send", "queue": "mail", "payload": {"number": number}} for number in range(runs)]
        answer = await self.client.post("/v1/jobs/batch", json={"jobs": made})
        assert answer.status_code == 200, answer.text


def _at(port: int) -> dict[str, str]:
    return {"MAINSPRING_METRICS_FIRST_PORT": str(port), "MAINSPRING_METRICS_LAST_PORT": str(port)}


@asynccontextmanager
async def a_cluster(
    store: str, folder: Path, *, schedulers: int = 1, workers: int = 1, **settings: str
) -> AsyncIterator[Cluster]:
    counts = {"api": 1, "scheduler": schedulers, "worker": workers}
    ports = {role: [free_port() for _ in range(count)] for role, count in counts.items()}
    [port] = ports["api"]
    environment = {
        "MAINSPRING_METRICS_INTERVAL": "1s",
        "BROKEN_WHILE": str(folder / "broken"),
        **settings,
    }
    async with (
        Processes(store, folder / "logs", environment) as processes,
        api_client(port) as client,
    ):
        api = processes.start("api", "--port", str(port))
        await until_ready(client, api, processes)
        cluster = Cluster(processes, client, ports)
        for scheduler in ports["scheduler"]:
            processes.start("scheduler", **_at(scheduler))
        for number in range(workers):
            cluster.start_worker(number)
        for role, count in counts.items():
            for number in range(count):
                await cluster.metrics(role, number)
        yield cluster
