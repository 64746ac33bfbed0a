"""Real API processes that are killed, lose their store or stop: every answer is right, and none is lost."""

import asyncio
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import httpx2
import pytest

from mainspring.config.loading import load
from mainspring.config.node import Node, Role
from mainspring.core.model.base.instant import SECOND, Micros
from mainspring.core.runtime.system_clock import SystemClock
from tests.support.load import APP
from tests.support.processes import Processes, api_client, free_port, kill, until_ended, until_ready
from tests.support.waiting import eventually

pytestmark = [pytest.mark.system, pytest.mark.timeout(900), pytest.mark.xdist_group("system")]

JOB = {"task": "unknown-task"}


@pytest.fixture
async def processes(any_store: str, tmp_path: Path) -> AsyncIterator[Processes]:
    async with Processes(any_store, tmp_path / "logs") as processes:
        yield processes


@asynccontextmanager
async def an_api(
    processes: Processes, port: int, command: str = "api"
) -> "AsyncIterator[tuple[subprocess.Popen[bytes], httpx2.AsyncClient]]":
    """Start an API and wait until it is ready; its process and a client."""
    process = processes.start(command, "--port", str(port))
    async with api_client(port) as client:
        await until_ready(client, process, processes)
        yield process, client


async def test_a_killed_api_keeps_accepted_jobs_and_repeated_submits_make_no_duplicates(processes: Processes) -> None:
    port = free_port()
    acknowledged: dict[str, str] = {}
    unanswered: set[str] = set()

    async def submit(client: httpx2.AsyncClient, key: str) -> str:
        answer = await client.post("/v1/jobs", json={**JOB, "idempotencyKey": key})
        assert answer.status_code == 201, answer.text
        job: str = answer.json()["jobId"]
        return job

    async def submit_until_it_dies(client: httpx2.AsyncClient, name: str) -> None:
        for number in range(100_000):
            key = f"{name}-{number}"
            try:
                acknowledged[key] = await submit(client, key)
            except httpx2.TransportError:
                unanswered.add(key)
                return

    async with an_api(processes, port) as (process, client):
        submitters = [asyncio.create_task(submit_until_it_dies(client, str(number))) for number in range(20)]
        await eventually(lambda: len(acknowledged) >= 300, processes.logs)
        assert not any(task.done() for task in submitters), processes.logs()
        kill(process)
        await asyncio.gather(*submitters)
    assert len(unanswered) == 20
    async with an_api(processes, port) as (_, client):
        for key, job in acknowledged.items():
            assert (await client.get(f"/v1/jobs/{job}")).status_code == 200, key
        for key in [*unanswered, *list(acknowledged)[-20:]]:
            first = await submit(client, key)
            assert await submit(client, key) == first
            assert acknowledged.setdefault(key, first) == first
        assert await all_jobs(client) == sorted(acknowledged.values())


async def all_jobs(client: httpx2.AsyncClient) -> list[str]:
    found: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        page = (await client.get("/v1/jobs", params={"limit": "500", **({"cursor": cursor} if cursor else {})})).json()
        found += [item["jobId"] for item in page["items"]]
        cursor = page.get("nextCursor")
    return sorted(found)


class Wire:
    """A proxy between an API and its server that can cut its connections or stop forwarding."""

    def __init__(self, host: str, port: int) -> None:
        self._target = host, port
        self.port = free_port()
        self._listening: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._open = asyncio.Event()

    async def restore(self) -> None:
        self._open.set()
        if self._listening is None:
            self._listening = await asyncio.start_server(self._connected, "127.0.0.1", self.port)

    async def cut(self) -> None:
        """Close every connection, and accept no new one."""
        if self._listening is not None:
            self._listening.close()
            self._listening = None
        for writer in list(self._writers):
            writer.transport.abort()

    def go_silent(self) -> None:
        self._open.clear()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, to_there = await asyncio.open_connection(*self._target)
        self._writers |= {writer, to_there}
        try:
            await asyncio.gather(self._pass_on(reader, to_there), self._pass_on(there, writer))
        finally:
            self._writers -= {writer, to_there}
            writer.transport.abort()
            to_there.transport.abort()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65_536):
                await self._open.wait()
                writer.write(data)
                await writer.drain()
        writer.transport.abort()


@pytest.mark.postgres
async def test_an_api_without_its_store_answers_503_and_recovers_without_a_restart(
    postgres_database: str, tmp_path: Path
) -> None:
    there = urlsplit(postgres_database)
    wire = Wire(there.hostname or "127.0.0.1", there.port or 5432)
    await wire.restore()
    through = urlunsplit(there._replace(netloc=f"{there.username}:secret@127.0.0.1:{wire.port}"))
    async with Processes(through, tmp_path) as processes, an_api(processes, free_port()) as (_, client):
        assert (await client.post("/v1/jobs", json=JOB)).status_code == 201
        for away in (wire.cut, wire.go_silent):
            gone = away()
            if gone is not None:
                await gone
            submit, read, batch, ready, health = await asyncio.gather(
                client.post("/v1/jobs", json={**JOB, "idempotencyKey": away.__name__}),
                client.get("/v1/jobs"),
                client.post("/v1/jobs/batch", json={"jobs": [JOB] * 3}),
                client.get("/readyz"),
                client.get("/healthz"),
            )
            for answer in (submit, read, batch):
                assert answer.headers["content-type"] == "application/problem+json"
                assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
            assert (ready.status_code, ready.json()["problems"]) == (503, ["the store does not answer"])
            assert "secret" not in ready.text
            assert health.status_code == 200
            await wire.restore()

            async def accepted(key: str = away.__name__) -> bool:
                answer = await client.post("/v1/jobs", json={**JOB, "idempotencyKey": key})
                assert answer.status_code in (201, 503)
                return answer.status_code == 201

            await eventually(accepted, processes.logs)
            assert (await client.get("/readyz")).status_code == 200
        assert "secret" not in processes.logs()
    await wire.cut()


@pytest.mark.parametrize("command", ["api", "up"])
async def test_an_api_that_stops_answers_every_request_that_it_received(processes: Processes, command: str) -> None:
    port = free_port()
    async with an_api(processes, port, command) as (process, client):
        queues = {"name": "w", "queues": ["empty"]}
        worker = (await client.post("/v1/workers/register", json=queues)).json()["workerId"]
        poll = asyncio.create_task(client.post(f"/v1/workers/{worker}/claim", json={"waitSeconds": 25}))
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        body = b'{"task": "unknown-task"}'
        head = (
            b"POST /v1/jobs HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        )
        writer.write(head % len(body) + body[:5])
        async with client.stream("GET", "/v1/events") as events:
            lines = events.aiter_lines()
            while await anext(lines) != "event: hello":
                pass
            # The server has received the other two before it has answered these.
            for _ in range(3):
                assert (await client.get("/healthz")).status_code == 200
            process.send_signal(signal.SIGTERM)
            await eventually(lambda: refuses(port), processes.logs)
            writer.write(body[5:])
            assert (await reader.read(4_096)).startswith(b"HTTP/1.1 201")
            writer.close()
            assert (await poll).json()["runs"] == []
            assert [line async for line in lines]
        assert await until_ended(process, processes) == 0
    assert "Traceback" not in processes.logs()
    assert "by force" not in processes.logs()


async def refuses(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return True
    writer.close()
    return False


class HeldClock(SystemClock):
    """Long sleeps last until the test releases them."""

    def __init__(self) -> None:
        self.released = asyncio.Event()

    async def sleep(self, duration: Micros) -> None:
        if duration < SECOND:
            await super().sleep(duration)
        else:
            await self.released.wait()


async def test_a_stopping_api_is_not_ready_and_still_serves_requests_for_a_while(tmp_path: Path) -> None:
    port = free_port()
    node = Node(load({"store": str(tmp_path / "mainspring.db"), "port": str(port)}), {Role.HTTP})
    node.runtime.clock = clock = HeldClock()
    await node.start()
    async with api_client(port) as client:
        assert (await client.get("/readyz")).status_code == 200
        stopping = asyncio.create_task(node.stop())

        async def is_not_ready() -> bool:
            return (await client.get("/readyz")).status_code == 503

        await eventually(is_not_ready)
        assert (await client.get("/healthz")).status_code == 200
        assert (await client.post("/v1/jobs", json=JOB)).status_code == 201
        clock.released.set()
        await stopping
    assert await refuses(port)
    await node.runtime.close()


async def find_worker(client: httpx2.AsyncClient, processes: Processes) -> str:
    """Wait until there is a worker; its id."""

    async def workers() -> list[str]:
        return [worker["workerId"] for worker in (await client.get("/v1/workers")).json()["items"]]

    return (await eventually(workers, processes.logs))[0]


async def test_a_drained_worker_process_completes_its_runs_and_ends(processes: Processes, tmp_path: Path) -> None:
    async with an_api(processes, free_port()) as (_, client):
        worker = processes.start("worker", APP, "--queue", "load:1")
        name = await find_worker(client, processes)
        released = tmp_path / "released"
        jobs = [{"task": "wait_for_file", "queue": "load", "payload": {"path": str(released)}}] * 2
        running, waiting = (
            item["jobId"] for item in (await client.post("/v1/jobs/batch", json={"jobs": jobs})).json()["items"]
        )

        async def is_running() -> bool:
            return bool((await client.get(f"/v1/jobs/{running}")).json()["status"] == "running")

        await eventually(is_running, processes.logs)
        assert (await client.post(f"/v1/workers/{name}/drain")).status_code == 202
        released.touch()
        assert await until_ended(worker, processes) == 0, processes.logs()
        assert (await client.get(f"/v1/jobs/{running}")).json()["status"] == "succeeded"
        assert (await client.get(f"/v1/jobs/{waiting}")).json()["status"] == "queued"
        assert (await client.get("/v1/workers")).json()["items"] == []


async def test_draining_the_worker_of_a_process_with_other_roles_does_not_end_it(processes: Processes) -> None:
    async with an_api(processes, free_port(), "up") as (process, client):
        name = await find_worker(client, processes)
        assert (await client.post(f"/v1/workers/{name}/drain")).status_code == 202

        async def has_left() -> bool:
            return (await client.get("/v1/workers")).json()["items"] == []

        await eventually(has_left, processes.logs)
        # Its scheduler works on: a delayed job becomes due.
        later = (await client.post("/v1/jobs", json={**JOB, "delay": "1s"})).json()["jobId"]

        async def is_queued() -> bool:
            return bool((await client.get(f"/v1/jobs/{later}")).json()["status"] == "queued")

        await eventually(is_queued, processes.logs)
        assert process.poll() is None
        assert (await client.get("/readyz")).status_code == 200
        process.send_signal(signal.SIGTERM)
        assert await until_ended(process, processes) == 0
    assert "Traceback" not in processes.logs()
