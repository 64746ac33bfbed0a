"""The example workers as real processes, against a real server."""

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from mainspring.core.model.access.access import Role
from mainspring.core.model.base.ids import SessionId
from mainspring.core.model.runs.completion import complete_loss
from mainspring.core.ports.storage.access import Author
from mainspring.http.server import HttpServer
from tests.api.conftest import Service, memory_only
from tests.support.processes import free_port
from tests.support.servers import not_here
from tests.support.waiting import DEADLINE_SECONDS, eventually

EXAMPLES = Path(__file__).parents[2] / "examples"
pytestmark = [
    pytest.mark.slow,
    memory_only,
    pytest.mark.parametrize(
        ("command", "needs"),
        [
            (["sh", str(EXAMPLES / "worker.sh"), "echoes"], "jq"),
            (["node", str(EXAMPLES / "worker.mjs"), "echoes"], "node"),
        ],
        ids=["shell", "javascript"],
    ),
]


class Hiccups:
    """The API behind a proxy that rejects the first request of every kind."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self.refused: set[str] = set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        kind = scope["path"].rpartition("/")[2] if scope["type"] == "http" and scope["method"] == "POST" else "jobs"
        if kind == "jobs" or kind in self.refused:
            await self._app(scope, receive, send)
            return
        self.refused.add(kind)
        headers = [(b"retry-after", b"1"), (b"content-length", b"2"), (b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 503, "headers": headers})
        await send({"type": "http.response.body", "body": b"{}"})


class Example:
    """A running example worker, and a client that submits jobs to it."""

    def __init__(self, service: Service, client: httpx2.AsyncClient, process: asyncio.subprocess.Process) -> None:
        self.service = service
        self.client = client
        self.process = process

    async def submit(self, payload: Any) -> str:
        body = {"task": "echo", "queue": "echoes", "payload": payload, "maxRetries": 0}
        job: str = (await self.client.post("/v1/jobs", json=body)).json()["jobId"]
        return job

    async def wait_for(self, job: str, *states: str) -> dict[str, Any]:
        """Wait until the run is in one of the states."""

        async def find() -> dict[str, Any] | None:
            run: dict[str, Any] = (await self.client.get(f"/v1/runs/{job}")).json()
            return run if run["status"] in states else None

        found = await eventually(find)
        assert found is not None
        return found

    async def worker(self) -> SessionId:
        return (await eventually(lambda: self.service.store.sessions("worker")))[-1].id

    async def wait_until_it_left(self) -> None:
        await self.process.wait()
        assert await self.service.store.sessions("worker") == []


@asynccontextmanager
async def running(service: Service, command: list[str], needs: str) -> AsyncIterator[Example]:
    if shutil.which(needs) is None:
        not_here(f"{needs} is not installed")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    server = HttpServer("127.0.0.1", port, Hiccups(service.app), service.clock)
    await server.start()
    environment = {**os.environ, "MAINSPRING_URL": url, "MAINSPRING_KEY": await service.key(Role.WORKER, "a")}
    process = await asyncio.create_subprocess_exec(*command, env=environment, stderr=asyncio.subprocess.DEVNULL)
    headers = {"authorization": f"Bearer {await service.key(Role.OPERATOR, 'a')}"}
    try:
        async with httpx2.AsyncClient(base_url=url, headers=headers, timeout=DEADLINE_SECONDS) as client:
            yield Example(service, client, process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        await server.stop()


async def has_expired(service: Service, worker: SessionId) -> bool:
    return worker not in [session.id for session in await service.store.sessions("worker")]


async def test_an_example_worker_retries_rejected_requests_and_drains_on_sigterm(
    guarded: Service, command: list[str], needs: str
) -> None:
    async with running(guarded, command, needs) as example:
        jobs = [await example.submit(payload) for payload in ({"hello": "wörld"}, [1, 2], "fail")]
        runs = [await example.wait_for(job, "succeeded", "failed") for job in jobs]
        assert [run["status"] for run in runs] == ["succeeded", "succeeded", "failed"]
        assert [run.get("result") for run in runs] == [{"hello": "wörld"}, [1, 2], None]
        last = await example.submit({"sleep": 3})
        await example.wait_for(last, "running", "succeeded")
        example.process.send_signal(signal.SIGTERM)
        await example.wait_for(last, "succeeded")
        await example.wait_until_it_left()


async def test_an_example_worker_stops_a_cancelled_run(guarded: Service, command: list[str], needs: str) -> None:
    async with running(guarded, command, needs) as example:
        job = await example.submit({"sleep": 60})
        await example.wait_for(job, "running")
        await example.client.delete(f"/v1/jobs/{job}")
        await example.wait_for(job, "cancelled")
        after = await example.submit(1)
        await example.wait_for(after, "succeeded")


async def test_an_example_worker_exits_when_it_is_drained(guarded: Service, command: list[str], needs: str) -> None:
    async with running(guarded, command, needs) as example:
        job = await example.submit({"sleep": 3})
        await example.wait_for(job, "running", "succeeded")
        assert await guarded.store.drain(await example.worker(), Author("test", None))
        await example.wait_for(job, "succeeded")
        await example.wait_until_it_left()


async def test_an_example_worker_stops_its_runs_when_its_lease_has_expired(
    guarded: Service, command: list[str], needs: str
) -> None:
    """The worker learns from its heartbeat that its lease expired, and its report is rejected."""
    async with running(guarded, command, needs) as example:
        job = await example.submit({"sleep": 60})
        await example.wait_for(job, "running")
        store = guarded.store
        await store.close_session(await example.worker())
        await store.complete([complete_loss(held, blamed=False) for held in await store.lost_runs(10)])
        if "sh" in command:
            # The shell worker exits; its supervisor would restart it.
            await example.wait_until_it_left()
        run = await example.wait_for(job, "queued", "running")
        assert run["attempts"][0]["outcome"] == "lost"


async def test_the_heartbeat_of_an_example_worker_ends_with_its_process(
    guarded: Service, command: list[str], needs: str
) -> None:
    async with running(guarded, command, needs) as example:
        worker = await example.worker()
        example.process.kill()
        await example.process.wait()
        # A heartbeat that continued would renew the lease of 15 s every 5 s.
        await eventually(lambda: has_expired(guarded, worker))
