"""A secret is used by every kind of task, and then looked for everywhere: it is found nowhere."""

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

from mainspring.domain.masking import forms_of
from tests.conftest import as_administrator
from tests.support.processes import Processes, free_port, until_ready

pytestmark = [pytest.mark.system, pytest.mark.timeout(300), pytest.mark.xdist_group("system")]

CANARY = 'canary/7f"3a9 b+c&d=e'
HERE = "tests.support.secret_tasks:app"
SAY = """
echo plain "$KEY"; echo packed "$(printf %s "user:$KEY" | base64)"; echo trouble "$KEY" >&2
echo "::progress 1/2 note $KEY"; cat; exit $CODE
"""


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A receiver that answers with whatever it was sent; with 500 if it was asked for /fail."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next((int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")), 0)
    seen = head + await reader.readexactly(length)
    assert CANARY.encode() in seen, "it was really used"
    status = b"500 No" if b" /fail" in head else b"200 OK"
    writer.write(b"HTTP/1.1 " + status + b"\r\nX-Request-Id: " + CANARY.encode())
    writer.write(b"\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(seen) + seen)
    await writer.drain()
    writer.close()


def jobs(receiver: int) -> dict[str, dict[str, Any]]:
    """Each with the state that it must end in."""
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


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "mainspring.db")
    database: str = request.getfixturevalue("postgres_database")
    return database


@asynccontextmanager
async def everything(store: str, tmp_path: Path, port: int) -> AsyncIterator[httpx2.AsyncClient]:
    folder, logs = tmp_path / "scripts", tmp_path / "logs"
    folder.mkdir()
    logs.mkdir()
    (folder / "show.sh").write_text('echo "$@"; cat')
    settings = {
        "MAINSPRING_SECRET_CANARY": CANARY,
        "MAINSPRING_TASKS_HTTP_ALLOW": "127.0.0.1",
        "MAINSPRING_TASKS_SCRIPTS": str(folder),
        "MAINSPRING_TASKS_COMMANDS": "true",
        "MAINSPRING_LOG_LEVEL": "debug",
        "MAINSPRING_WORKER_CHILDREN": "1",
    }
    async with Processes(store, logs) as processes:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in settings.items():
                patch.setenv(name, value)
            process = processes.start("up", HERE, "--port", str(port))
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30, trust_env=False) as client:
            await until_ready(client, process, processes)
            yield client
        process.terminate()
        await asyncio.to_thread(process.wait, 30)


async def ended(client: httpx2.AsyncClient, run: str) -> dict[str, Any]:
    for _ in range(2_000):
        view: dict[str, Any] = (await client.get(f"/v1/runs/{run}")).json()
        if view["status"] in ("succeeded", "failed", "cancelled"):
            return view
        await asyncio.sleep(0.02)
    raise AssertionError(view)


async def test_the_value_is_found_nowhere(store: str, tmp_path: Path) -> None:
    receiver = await asyncio.start_server(echo, "127.0.0.1", 0)
    answers: list[str] = []
    states: dict[str, str] = {}
    port = free_port()
    async with receiver, everything(store, tmp_path, port) as client:
        runs = {}
        for name, job in jobs(receiver.sockets[0].getsockname()[1]).items():
            made = await client.post("/v1/jobs", json=job)
            assert made.status_code == 201, made.text
            runs[name] = made.json()["jobId"]
        for name, run in runs.items():
            view = await ended(client, run)
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
    kept = dumped(store)
    logs = b"".join(path.read_bytes() for path in (tmp_path / "logs").iterdir())
    seen = {"answers": "\n".join(answers).encode(), "store": kept, "logs": logs}
    needles = {form.encode() for form in forms_of(CANARY)}
    needles |= {needle.hex().encode() for needle in needles}
    for place, data in seen.items():
        assert b"***" in data or b"***".hex().encode() in data, place
        found = {needle: data.index(needle) for needle in needles if needle in data}
        assert not found, (place, [data[max(0, at - 300) : at + 100] for at in found.values()])
    assert b"nothing to hide" in kept or b"nothing to hide".hex().encode() in kept, "results are looked at, too"


def dumped(store: str) -> bytes:
    if not store.startswith("postgres"):
        return b"".join(Path(store + end).read_bytes() for end in ("", "-wal", "-shm") if Path(store + end).exists())
    program = shutil.which("pg_dump") or str(Path(os.environ.get("POSTGRES_BIN", "/usr/bin")) / "pg_dump")
    done = subprocess.run([program, as_administrator(store)], capture_output=True, check=True, timeout=60)
    return done.stdout
