"""The example workers, as anybody would run them, against a real server."""

import asyncio
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import httpx2
import pytest

from mainspring.domain.access import Role
from tests.api.conftest import Service

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("store_kind", ["memory"], indirect=True)
@pytest.mark.parametrize(
    ("command", "needs"),
    [(["sh", str(EXAMPLES / "worker.sh"), "echoes"], "jq"), (["node", str(EXAMPLES / "worker.mjs"), "echoes"], "node")],
    ids=["shell", "javascript"],
)
async def test_example_worker(served: tuple[Service, str], command: list[str], needs: str) -> None:
    if shutil.which(needs) is None:
        reason = f"{needs} is not installed"
        pytest.fail(reason) if os.environ.get("CI") == "true" else pytest.skip(reason)
    service, url = served
    worker_key = await service.key(Role.WORKER, "a")
    environment = {**os.environ, "MAINSPRING_URL": url, "MAINSPRING_KEY": worker_key}
    process = await asyncio.create_subprocess_exec(*command, env=environment, stderr=asyncio.subprocess.DEVNULL)
    try:
        headers = {"authorization": f"Bearer {await service.key(Role.SUBMITTER, 'a')}"}
        async with httpx2.AsyncClient(base_url=url, headers=headers) as client:
            jobs = []
            for payload in ({"hello": "wörld"}, [1, 2], "fail"):
                body = {"task": "echo", "queue": "echoes", "payload": payload, "maxRetries": 0}
                jobs.append((await client.post("/v1/jobs", json=body)).json()["jobId"])
            async with asyncio.timeout(20):
                runs = [await ended(client, job) for job in jobs]
        assert [run["status"] for run in runs] == ["succeeded", "succeeded", "failed"]
        assert [run.get("result") for run in runs] == [{"hello": "wörld"}, [1, 2], None]
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(25):
            await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert await service.store.sessions("worker") == []


async def ended(client: httpx2.AsyncClient, job: str) -> dict[str, Any]:
    while True:
        run: dict[str, Any] = (await client.get(f"/v1/runs/{job}")).json()
        if run["status"] in ("succeeded", "failed"):
            return run
        await asyncio.sleep(0.05)
