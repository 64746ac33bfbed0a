"""The HTTP listener for metrics and health of a process without an API."""

import socket
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import httpx2
import pytest

from mainspring.core.runtime.metrics import listener as listeners
from mainspring.core.runtime.metrics.listener import MetricsListener
from tests.support.processes import free_port


async def render() -> bytes:
    return b"figures 1\n"


async def health() -> Mapping[str, object]:
    return {"status": "ok"}


@asynccontextmanager
async def listening(ports: range | None = None, token: str = "") -> AsyncIterator[tuple[MetricsListener, str]]:
    ports = ports if ports is not None else range(port := free_port(), port + 1)
    service = MetricsListener("127.0.0.1", ports, render, health, token)
    await service.start()
    try:
        yield service, f"http://127.0.0.1:{service.address[1]}" if service.address else ""
    finally:
        await service.stop()


async def ask(url: str, **headers: str) -> httpx2.Response:
    async with httpx2.AsyncClient(timeout=120) as client:
        return await client.get(url, headers=headers)


async def test_the_listener_serves_metrics_and_health() -> None:
    async with listening() as (_, url):
        metrics = await ask(f"{url}/metrics?from=prometheus")
        assert (metrics.status_code, metrics.text) == (200, "figures 1\n")
        assert metrics.headers["content-type"].startswith("text/plain; version=0.0.4")
        assert (await ask(f"{url}/healthz")).json() == {"status": "ok"}
        assert (await ask(f"{url}/v1/jobs")).status_code == 404


async def test_only_health_is_served_without_a_token() -> None:
    async with listening(token="geheim") as (_, url):
        assert (await ask(f"{url}/metrics")).status_code == 401
        assert (await ask(f"{url}/metrics", authorization="Bearer gehei")).status_code == 401
        assert (await ask(f"{url}/metrics", authorization="Bearer geheim")).status_code == 200
        assert (await ask(f"{url}/healthz")).status_code == 200


async def test_the_listener_takes_the_first_free_port() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        first = taken.getsockname()[1]
        async with listening(range(first, first + 20)) as (one, _), listening(range(first, first + 20)) as (other, _):
            assert one.address is not None
            assert other.address is not None
            assert first < one.address[1] < other.address[1]


async def test_the_listener_does_nothing_without_a_free_port() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        async with listening(range(port, port + 1)) as (service, _):
            assert service.address is None


async def test_a_blocked_loop_is_not_healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listeners, "_SECONDS_TO_ANSWER", 0.2)
    async with listening() as (_, url):
        with ThreadPoolExecutor(1) as elsewhere:
            # Waiting for the result blocks the loop.
            answer = elsewhere.submit(httpx2.get, f"{url}/healthz", timeout=120).result()
            assert answer.status_code == 503


async def test_a_stopped_listener_frees_its_port() -> None:
    async with listening() as (service, _):
        assert service.address is not None
        port = service.address[1]
    async with listening(range(port, port + 1)) as (again, _):
        assert again.address == ("127.0.0.1", port)
