"""``deploy/nginx/mainspring.conf`` in a real nginx in front of two APIs, one of which dies."""

import asyncio
import os
import re
import signal
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import httpx2
import pytest

from mainspring.config.resources import RESOURCES
from tests.support.certificates import make_certificate
from tests.support.processes import PYTHONPATH, Processes, api_client, free_port, kill, until_ready
from tests.support.waiting import DEADLINE_SECONDS, eventually

ROOT = Path(__file__).parents[2]
FILE = ROOT / "deploy" / "nginx" / "mainspring.conf"
pytestmark = [
    pytest.mark.system,
    pytest.mark.postgres,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("system"),
]
_AROUND = """
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log {folder}/error.log info;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/mainspring.conf;
}}
"""


def configuration(folder: Path, port: int, apis: list[int]) -> Path:
    """Our file with the addresses of this test, inside of an nginx.conf like Debian's."""
    text = FILE.read_text()
    for old, new in {
        "10.0.0.11:7070": f"127.0.0.1:{apis[0]}",
        "10.0.0.12:7070": f"127.0.0.1:{apis[1]}",
        "listen 443": f"listen 127.0.0.1:{port}",
        "/etc/ssl/certs/jobs.example.org.pem": str(folder / "certificate.pem"),
        "/etc/ssl/private/jobs.example.org.key": str(folder / "key.pem"),
    }.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    make_certificate(folder)
    (folder / "mainspring.conf").write_text(text)
    whole = folder / "nginx.conf"
    whole.write_text(_AROUND.format(folder=folder))
    return whole


def _started(program: str, whole: Path) -> "subprocess.Popen[bytes]":
    checked = subprocess.run([program, "-t", "-c", whole], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    assert "warn" not in checked.stderr
    return subprocess.Popen([program, "-c", whole], stderr=subprocess.DEVNULL)


@asynccontextmanager
async def running_nginx(program: str, whole: Path, port: int) -> AsyncIterator[None]:
    process = _started(program, whole)
    try:

        async def accepts() -> bool:
            assert process.poll() is None
            with suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                return True
            return False

        await eventually(accepts)
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def a_client(folder: Path, port: int, key: str = "", source: str = "127.0.0.1") -> httpx2.AsyncClient:
    context = ssl.create_default_context(cafile=str(folder / "certificate.pem"))
    return httpx2.AsyncClient(
        base_url=f"https://127.0.0.1:{port}",
        transport=httpx2.AsyncHTTPTransport(verify=context, local_address=source),
        headers={"authorization": f"Bearer {key}"} if key else {},
        timeout=DEADLINE_SECONDS,
    )


class Site:
    def __init__(self, folder: Path, store: str, processes: Processes) -> None:
        self.folder = folder
        self.processes = processes
        self.port, self.apis = free_port(), [free_port(), free_port()]
        command = [sys.executable, "-m", "mainspring", "keys", "create", "--name=me", "--role=admin", "--all-tenants"]
        environment = os.environ | {"MAINSPRING_STORE": store, "PYTHONPATH": PYTHONPATH}
        self.key = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()

    async def start_api(self, number: int) -> "subprocess.Popen[bytes]":
        port = self.apis[number]
        settings = {"MAINSPRING_AUTH_MODE": "keys", "MAINSPRING_API_TRUSTED_PROXIES": "127.0.0.1/32"}
        process = self.processes.start("api", "--port", str(port), **settings)
        async with api_client(port) as client:
            await until_ready(client, process, self.processes)
        return process

    def client(self, *, known: bool = True, source: str = "127.0.0.1") -> httpx2.AsyncClient:
        return a_client(self.folder, self.port, self.key if known else "", source)


@pytest.fixture
async def site(tmp_path: Path, postgres_database: str, address_of: Callable[[str], str]) -> AsyncIterator[Site]:
    program = f"{address_of('nginx')}/nginx"
    (tmp_path / "nginx").mkdir()
    async with Processes(postgres_database, tmp_path / "logs") as processes:
        site = Site(tmp_path / "nginx", postgres_database, processes)
        whole = configuration(site.folder, site.port, site.apis)
        async with running_nginx(program, whole, site.port):
            yield site


async def test_requests_are_answered_while_either_of_two_apis_is_dead(site: Site) -> None:
    first, second = await asyncio.gather(site.start_api(0), site.start_api(1))
    unanswered: list[str] = []
    made: dict[str, str] = {}
    asked = 0
    enough = asyncio.Event()

    async def look(client: httpx2.AsyncClient) -> None:
        nonlocal asked
        while not enough.is_set():
            answer = await client.get("/v1/jobs?limit=1")
            assert answer.status_code == 200, answer.text
            asked += 1

    async def submit(client: httpx2.AsyncClient, name: str) -> None:
        for number in range(100_000):
            if enough.is_set():
                return
            key = f"{name}-{number}"
            answer = await client.post("/v1/jobs", json={"task": "unknown", "idempotencyKey": key})
            if answer.status_code == 201:
                made[key] = answer.json()["jobId"]
            else:
                # It was sent to the API that died. Only the client may send a submit again.
                assert answer.status_code == 502, answer.text
                unanswered.append(key)

    async with site.client() as client:
        tasks = [asyncio.create_task(look(client)) for _ in range(4)]
        tasks += [asyncio.create_task(submit(client, str(number))) for number in range(4)]

        async def until_answered(reads: int, submits: int) -> None:
            def answered() -> bool:
                assert not any(task.done() for task in tasks), [task for task in tasks if task.done()]
                return asked >= reads and len(made) >= submits

            await eventually(answered, site.processes.logs)

        await until_answered(100, 50)
        kill(first)
        await until_answered(asked + 100, len(made) + 50)
        enough.set()
        await asyncio.gather(*tasks)
        # At most one for each client that submits.
        assert len(unanswered) <= 4
        for key in unanswered:
            body = {"task": "unknown", "idempotencyKey": key}
            answers = [await client.post("/v1/jobs", json=body) for _ in range(2)]
            assert {answer.json()["jobId"] for answer in answers} == {answers[0].json()["jobId"]}
        assert (await client.get("/readyz")).status_code == 200

        # nginx uses an API that has returned, so the other one may die.
        await site.start_api(0)
        kill(second)

        async def answers_again() -> bool:
            return (await client.get("/v1/jobs?limit=1")).status_code == 200

        await eventually(answers_again, site.processes.logs)
        for _ in range(20):
            assert await answers_again()


async def test_nginx_streams_events_accepts_large_bodies_and_hides_metrics(site: Site) -> None:
    await asyncio.gather(site.start_api(0), site.start_api(1))
    async with site.client() as client:
        async with client.stream("GET", "/v1/events") as answer:
            assert answer.status_code == 200
            assert answer.headers["content-type"] == "text/event-stream"
            lines = answer.aiter_lines()
            while await anext(lines) != "event: hello":
                pass
            for number in range(3):
                body = {"task": "unknown", "idempotencyKey": f"event-{number}"}
                job = (await client.post("/v1/jobs", json=body)).json()["jobId"]
                async with asyncio.timeout(DEADLINE_SECONDS):
                    async for line in lines:
                        if line.startswith("data:") and job in line:
                            break
        # More than nginx allows by default.
        jobs = [{"task": "unknown", "payload": {"text": "x" * 200_000}} for _ in range(10)]
        answer = await client.post("/v1/jobs/batch", json={"jobs": jobs})
        assert answer.status_code == 200, answer.text[:300]
        refused = await client.post("/v1/jobs/batch", content=b" " * (65 * 1024 * 1024))
        assert refused.status_code == 413
        assert "nginx" in refused.headers["server"]
        assert (await client.get("/readyz")).status_code == 200
        assert (await client.get("/metrics")).status_code == 404


async def test_a_client_that_guesses_keys_is_limited_and_others_behind_nginx_are_not(site: Site) -> None:
    await asyncio.gather(site.start_api(0), site.start_api(1))
    async with site.client(known=False, source="127.0.0.2") as guesser, site.client(known=False) as other:

        async def guess(claim: str) -> int:
            headers = {"authorization": "Bearer wrong", "x-forwarded-for": claim}
            return (await guesser.get("/v1/jobs", headers=headers)).status_code

        refused = 0
        for number in range(1_000):
            refused += await guess(f"10.9.8.{number % 250}") == 429
            if refused > 20:
                break
        assert refused > 20
        assert [(await other.get("/v1/jobs")).status_code for _ in range(4)] == [401] * 4


def test_every_stream_is_passed_on_unbuffered() -> None:
    [pattern] = re.findall(r"location ~ (\S+) \{", FILE.read_text())
    streams = {operation.path for resource in RESOURCES for operation in resource.operations if operation.streams}
    # The stream of the dashboard, in layout.html.
    streams.add("/live")
    assert len(streams) == 3
    for path in streams:
        assert re.search(pattern, path), path
    largest = max(operation.largest_body for resource in RESOURCES for operation in resource.operations)
    assert f"client_max_body_size {largest // 1024**2}m;" in FILE.read_text()
