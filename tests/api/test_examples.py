"""The example workers, as anybody would run them, against a real server."""

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

from mainspring.api.server import HttpServer
from mainspring.domain.access import Role
from mainspring.domain.ids import SessionId
from mainspring.domain.run import settle_loss
from mainspring.ports.access import Author
from tests.api.conftest import Service, free_port
from tests.support.servers import not_here

EXAMPLES = Path(__file__).parents[2] / "examples"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.parametrize("store_kind", ["memory"], indirect=True),
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
    """The API behind something that refuses the first request of every kind."""

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
    """A worker that runs, and somebody who submits."""

    def __init__(self, service: Service, client: httpx2.AsyncClient, process: asyncio.subprocess.Process) -> None:
        self.service = service
        self.client = client
        self.process = process

    async def submit(self, payload: Any) -> str:
        body = {"task": "echo", "queue": "echoes", "payload": payload, "maxRetries": 0}
        job: str = (await self.client.post("/v1/jobs", json=body)).json()["jobId"]
        return job

    async def reaches(self, job: str, *states: str) -> dict[str, Any]:
        async with asyncio.timeout(20):
            while True:
                run: dict[str, Any] = (await self.client.get(f"/v1/runs/{job}")).json()
                if run["status"] in states:
                    return run
                await asyncio.sleep(0.05)

    async def worker(self) -> SessionId:
        async with asyncio.timeout(20):
            while not (found := await self.service.store.sessions("worker")):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        return found[-1].id

    async def leaves(self) -> None:
        async with asyncio.timeout(25):
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
        async with httpx2.AsyncClient(base_url=url, headers=headers) as client:
            yield Example(service, client, process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        await server.stop()


async def test_it_works_and_leaves_though_every_request_is_refused_once(
    guarded: Service, command: list[str], needs: str
) -> None:
    async with running(guarded, command, needs) as example:
        jobs = [await example.submit(payload) for payload in ({"hello": "wörld"}, [1, 2], "fail")]
        runs = [await example.reaches(job, "succeeded", "failed") for job in jobs]
        assert [run["status"] for run in runs] == ["succeeded", "succeeded", "failed"]
        assert [run.get("result") for run in runs] == [{"hello": "wörld"}, [1, 2], None]
        last = await example.submit({"sleep": 2})
        await example.reaches(last, "running")
        example.process.send_signal(signal.SIGTERM)
        await example.reaches(last, "succeeded")
        await example.leaves()


async def test_it_stops_what_is_cancelled(guarded: Service, command: list[str], needs: str) -> None:
    async with running(guarded, command, needs) as example:
        job = await example.submit({"sleep": 60})
        await example.reaches(job, "running")
        await example.client.delete(f"/v1/jobs/{job}")
        await example.reaches(job, "cancelled")
        after = await example.submit(1)
        await example.reaches(after, "succeeded")


async def test_it_leaves_when_it_is_drained(guarded: Service, command: list[str], needs: str) -> None:
    async with running(guarded, command, needs) as example:
        job = await example.submit({"sleep": 2})
        await example.reaches(job, "running")
        assert await guarded.store.drain(await example.worker(), Author("test", None))
        await example.reaches(job, "succeeded")
        await example.leaves()


async def test_it_stops_what_somebody_else_has(guarded: Service, command: list[str], needs: str) -> None:
    """Its lease is lost while it works: it hears so from the heartbeat, and what it reports does not count."""
    async with running(guarded, command, needs) as example:
        job = await example.submit({"sleep": 60})
        await example.reaches(job, "running")
        store = guarded.store
        await store.close_session(await example.worker())
        await store.settle([settle_loss(held, blamed=False) for held in await store.lost_runs(10)])
        if "sh" in command:
            # Whoever started it starts it again.
            await example.leaves()
        run = await example.reaches(job, "queued", "running")
        assert run["attempts"][0]["outcome"] == "lost"


async def test_its_heartbeat_ends_with_it(guarded: Service, command: list[str], needs: str) -> None:
    async with running(guarded, command, needs) as example:
        worker = await example.worker()
        example.process.kill()
        await example.process.wait()
        await asyncio.sleep(6)
        before = await guarded.store.session(worker)
        await asyncio.sleep(6)
        assert await guarded.store.session(worker) == before
