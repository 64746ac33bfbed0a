"""Real API processes that die, lose their store, or are asked to leave: no answer is false, and none is lost."""

import asyncio
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import httpx2
import pytest

from tests.support.processes import Processes, kill, until_ready

pytestmark = [pytest.mark.system, pytest.mark.timeout(120), pytest.mark.xdist_group("system")]

JOB = {"task": "nobody-knows-it"}


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "mainspring.db")
    database: str = request.getfixturevalue("postgres_database")
    return database


@pytest.fixture
async def processes(store: str, tmp_path: Path) -> AsyncIterator[Processes]:
    (tmp_path / "logs").mkdir()
    async with Processes(store, tmp_path / "logs") as processes:
        yield processes


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@asynccontextmanager
async def an_api(
    processes: Processes, port: int, command: str = "api"
) -> "AsyncIterator[tuple[subprocess.Popen[bytes], httpx2.AsyncClient]]":
    """A process that answers, and somebody to ask it."""
    process = processes.start(command, "--port", str(port))
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30, trust_env=False) as client:
        await until_ready(client, process, processes)
        yield process, client


async def test_what_a_killed_api_has_acknowledged_is_there_and_a_repeat_makes_nothing_twice(
    processes: Processes,
) -> None:
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
        while len(acknowledged) < 300:
            assert not any(task.done() for task in submitters), processes.logs()
            await asyncio.sleep(0.01)
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
    """Between an API and its server: it can be cut, or go silent."""

    def __init__(self, host: str, port: int) -> None:
        self._target = host, port
        self.port = free_port()
        self._listening: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._open = asyncio.Event()

    async def mend(self) -> None:
        self._open.set()
        if self._listening is None:
            self._listening = await asyncio.start_server(self._connected, "127.0.0.1", self.port)

    async def cut(self) -> None:
        """Nobody is let in, and whoever is in is thrown out."""
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
async def test_an_api_that_lost_its_store_says_so_and_needs_no_restart(postgres_database: str, tmp_path: Path) -> None:
    there = urlsplit(postgres_database)
    wire = Wire(there.hostname or "127.0.0.1", there.port or 5432)
    await wire.mend()
    through = urlunsplit(there._replace(netloc=f"{there.username}:secret@127.0.0.1:{wire.port}"))
    async with Processes(through, tmp_path) as processes, an_api(processes, free_port()) as (_, client):
        assert (await client.post("/v1/jobs", json=JOB)).status_code == 201
        for away, longest in ((wire.cut, 7), (wire.go_silent, 12)):
            gone = away()
            if gone is not None:
                await gone
            began = time.monotonic()
            submit, read, batch, ready, health = await asyncio.gather(
                client.post("/v1/jobs", json={**JOB, "idempotencyKey": away.__name__}),
                client.get("/v1/jobs"),
                client.post("/v1/jobs/batch", json={"jobs": [JOB] * 3}),
                client.get("/readyz"),
                client.get("/healthz"),
            )
            assert time.monotonic() - began < longest
            for answer in (submit, read, batch):
                assert answer.headers["content-type"] == "application/problem+json"
                assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
            assert (ready.status_code, ready.json()["problems"]) == (503, ["the store does not answer"])
            assert "secret" not in ready.text
            assert health.status_code == 200
            await wire.mend()
            until = time.monotonic() + 15
            while (answer := await client.post("/v1/jobs", json={**JOB, "idempotencyKey": away.__name__})).is_error:
                assert answer.status_code == 503
                assert time.monotonic() < until, processes.logs()
            assert answer.status_code == 201
            assert (await client.get("/readyz")).status_code == 200
        assert "secret" not in processes.logs()
    await wire.cut()


@pytest.mark.parametrize("command", ["api", "up"])
async def test_an_api_that_is_asked_to_leave_answers_everybody(processes: Processes, command: str) -> None:
    port = free_port()
    async with an_api(processes, port, command) as (process, client):
        queues = {"name": "w", "queues": ["nobody-submits-to-it"]}
        worker = (await client.post("/v1/workers/register", json=queues)).json()["workerId"]
        poll = asyncio.create_task(client.post(f"/v1/workers/{worker}/claim", json={"waitSeconds": 25}))
        events = asyncio.create_task(client.get("/v1/events"))
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        body = b'{"task": "nobody-knows-it"}'
        head = (
            b"POST /v1/jobs HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        )
        writer.write(head % len(body) + body[:5])
        await asyncio.sleep(0.3)
        asked_at = time.monotonic()
        process.send_signal(signal.SIGTERM)
        await until(lambda: client.get("/readyz"), lambda answer: answer.status_code == 503)
        assert (await client.get("/healthz")).status_code == 200
        assert (await client.post("/v1/jobs", json=JOB)).status_code == 201
        # It is under way when the server takes no more.
        await asyncio.sleep(1.3 - (time.monotonic() - asked_at))
        assert not (await accepts(port))
        writer.write(body[5:])
        assert (await asyncio.wait_for(reader.read(4_096), 5)).startswith(b"HTTP/1.1 201")
        writer.close()
        assert (await asyncio.wait_for(poll, 5)).json()["runs"] == []
        assert "event: hello" in (await asyncio.wait_for(events, 5)).text
        assert await asyncio.to_thread(process.wait, 10) == 0
        assert time.monotonic() - asked_at < 10
    assert "Traceback" not in processes.logs()
    assert "by force" not in processes.logs()


async def until(ask: Callable[[], Awaitable[httpx2.Response]], is_right: Callable[[httpx2.Response], bool]) -> None:
    async with asyncio.timeout(2):
        while not is_right(await ask()):
            await asyncio.sleep(0.01)


async def accepts(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


async def the_worker(client: httpx2.AsyncClient) -> str:
    async with asyncio.timeout(20):
        while not (workers := (await client.get("/v1/workers")).json()["items"]):
            await asyncio.sleep(0.05)
    worker: str = workers[0]["workerId"]
    return worker


async def test_a_drained_worker_process_finishes_its_runs_and_ends(processes: Processes) -> None:
    async with an_api(processes, free_port()) as (_, client):
        worker = processes.start("worker", "tests.support.load_tasks:app", "--queue", "load:1")
        name = await the_worker(client)
        jobs = [{"task": "moment", "queue": "load", "payload": {"milliseconds": 2_000}}] * 2
        running, waiting = (
            item["jobId"] for item in (await client.post("/v1/jobs/batch", json={"jobs": jobs})).json()["items"]
        )
        await until(lambda: client.get(f"/v1/jobs/{running}"), lambda answer: answer.json()["status"] == "running")
        assert (await client.post(f"/v1/workers/{name}/drain")).status_code == 202
        assert await asyncio.to_thread(worker.wait, 20) == 0, processes.logs()
        assert (await client.get(f"/v1/jobs/{running}")).json()["status"] == "succeeded"
        assert (await client.get(f"/v1/jobs/{waiting}")).json()["status"] == "queued"
        assert (await client.get("/v1/workers")).json()["items"] == []


async def test_a_drained_worker_beside_other_roles_leaves_alone(processes: Processes) -> None:
    async with an_api(processes, free_port(), "up") as (process, client):
        name = await the_worker(client)
        assert (await client.post(f"/v1/workers/{name}/drain")).status_code == 202
        async with asyncio.timeout(20):
            while (await client.get("/v1/workers")).json()["items"]:
                await asyncio.sleep(0.1)
        await asyncio.sleep(1.5)
        assert process.poll() is None
        assert (await client.get("/readyz")).status_code == 200
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 10) == 0
    assert "Traceback" not in processes.logs()
