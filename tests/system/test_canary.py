"""Every kind of task uses a secret. Its value must not be in any answer, log or table."""

import asyncio
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from mainspring.core.model.base.masking import Mask
from tests.support.databases import as_administrator
from tests.support.processes import Processes, api_client, free_port, until_ended, until_ready
from tests.support.waiting import eventually

pytestmark = [pytest.mark.system, pytest.mark.timeout(900), pytest.mark.xdist_group("system")]

CANARY = 'canary/7f"3a9 b+c&d=e'
HERE = "tests.support.secret_tasks:app"
SAY = """
echo plain "$KEY"; echo packed "$(printf %s "user:$KEY" | base64)"; echo trouble "$KEY" >&2
echo "::progress 1/2 note $KEY"; cat; exit $CODE
"""


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A server that returns the request as its answer, with status 500 for /fail."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next((int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")), 0)
    seen = head + await reader.readexactly(length)
    assert CANARY.encode() in seen, "the secret was not used"
    status = b"500 No" if b" /fail" in head else b"200 OK"
    writer.write(b"HTTP/1.1 " + status + b"\r\nX-Request-Id: " + CANARY.encode())
    writer.write(b"\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(seen) + seen)
    await writer.drain()
    writer.close()


def jobs(receiver: int) -> dict[str, dict[str, Any]]:
    url = f"http://127.0.0.1:{receiver}"
    call = {"headers": {"X-Key": "${secret:CANARY}"}, "body": {"key": "<${secret:CANARY}>"}, "sign": "CANARY"}
    shell = {"command": ["sh", "-c", SAY], "env": {"KEY": "${secret:CANARY}", "CODE": "0"}}
    listed = {"script": "show.sh", "params": {"key": "${secret:CANARY}"}}
    return {
        "http": {"task": "http", "payload": {"url": f"{url}/ok?k=${{secret:CANARY}}", **call}},
        "http that fails": {"task": "http", "payload": {"url": f"{url}/fail", **call}, "maxRetries": 0},
        "shell": {"task": "shell", "payload": shell},
        "shell that fails": {
            "task": "shell",
            "payload": {**shell, "env": {**shell["env"], "CODE": "3"}},  # type: ignore[dict-item]
            "maxRetries": 0,
        },
        "script": {"task": "shell", "payload": listed},
        **{task: {"task": task} for task in ("on_loop", "in_child", "on_thread", "fails", "fails_in_child")},
        "asks_for_another": {"task": "asks_for_another", "maxRetries": 0},
    }


@asynccontextmanager
async def running_node(store: str, tmp_path: Path) -> AsyncIterator[httpx2.AsyncClient]:
    folder, port = tmp_path / "scripts", free_port()
    folder.mkdir()
    (folder / "show.sh").write_text('echo "$@"; cat')
    settings = {
        "MAINSPRING_SECRET_CANARY": CANARY,
        "MAINSPRING_TASKS_HTTP_ALLOW": "127.0.0.1",
        "MAINSPRING_TASKS_SCRIPTS": str(folder),
        "MAINSPRING_TASKS_COMMANDS": "true",
        "MAINSPRING_TASKS_ENV": "KEY,CODE",
        "MAINSPRING_LOG_LEVEL": "debug",
        "MAINSPRING_WORKER_CHILDREN": "1",
    }
    async with Processes(store, tmp_path / "logs", settings) as processes:
        process = processes.start("up", HERE, "--port", str(port))
        async with api_client(port) as client:
            await until_ready(client, process, processes)
            yield client
        process.terminate()
        await until_ended(process, processes)


async def until_completed(client: httpx2.AsyncClient, run: str) -> dict[str, Any]:
    async def completed() -> dict[str, Any] | None:
        view: dict[str, Any] = (await client.get(f"/v1/runs/{run}")).json()
        return view if view["status"] in ("succeeded", "failed", "cancelled") else None

    view = await eventually(completed)
    assert view is not None
    return view


async def test_the_value_of_a_secret_is_in_no_answer_log_or_table(any_store: str, tmp_path: Path) -> None:
    receiver = await asyncio.start_server(echo, "127.0.0.1", 0)
    answers: list[str] = []
    states: dict[str, str] = {}
    async with receiver, running_node(any_store, tmp_path) as client:
        runs = {}
        for name, job in jobs(receiver.sockets[0].getsockname()[1]).items():
            made = await client.post("/v1/jobs", json=job)
            assert made.status_code == 201, made.text
            runs[name] = made.json()["jobId"]
        for name, run in runs.items():
            view = await until_completed(client, run)
            states[name] = view["status"]
            if name == "asks_for_another":
                assert "there is no NOT_THERE here" in str(view)
            else:
                assert "***" in (await client.get(f"/v1/runs/{run}")).text, view
        for run in runs.values():
            paths = (f"/v1/runs/{run}", f"/v1/runs/{run}/logs", f"/v1/jobs/{run}", f"/v1/runs/{run}/explain")
            answers += [(await client.get(path)).text for path in paths]
        for path in (
            "/v1/dead-letters",
            "/v1/jobs?limit=100",
            "/v1/workers",
            "/v1/stats?step=1h",
            "/v1/audit",
            "/metrics",
        ):
            answers.append((await client.get(path)).text)
    assert states == {
        name: "failed" if "fail" in name or name == "asks_for_another" else "succeeded" for name in states
    }
    kept = dump(any_store)
    logs = b"".join(path.read_bytes() for path in (tmp_path / "logs").iterdir())
    seen = {"answers": "\n".join(answers).encode(), "store": kept, "logs": logs}
    mask = Mask([CANARY])
    for place, data in seen.items():
        assert b"***" in data or b"***".hex().encode() in data, place
        found = [line for line in data.decode("utf-8", "replace").splitlines() if mask.found_in(line)]
        assert not found, (place, found)
    assert b"nothing to hide" in kept or b"nothing to hide".hex().encode() in kept, "the dump has no results"


def dump(store: str) -> bytes:
    if not store.startswith("postgres"):
        return b"".join(Path(store + end).read_bytes() for end in ("", "-wal", "-shm") if Path(store + end).exists())
    program = shutil.which("pg_dump") or str(Path(os.environ.get("POSTGRES_BIN", "/usr/bin")) / "pg_dump")
    done = subprocess.run([program, as_administrator(store)], capture_output=True, check=True, timeout=120)
    return done.stdout
