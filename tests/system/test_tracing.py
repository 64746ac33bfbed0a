"""One trace from submit to completion, over real processes, as a collector gets it."""

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.support.collector import Collector, Recorded
from tests.support.processes import Processes, free_port, until_ready

pytestmark = [pytest.mark.system, pytest.mark.timeout(300), pytest.mark.xdist_group("system")]

CALLER = "4bf92f3577b34da6a3ce929d0e0e4736"
SENT = {"traceparent": f"00-{CALLER}-00f067aa0ba902b7-01"}
SERVER, PRODUCER, CONSUMER = 2, 4, 5


async def until_ended(client: httpx2.AsyncClient, job: str, processes: Processes) -> dict[str, Any]:
    give_up = time.monotonic() + 40
    while True:
        found: dict[str, Any] = (await client.get(f"/v1/runs/{job}")).raise_for_status().json()
        if found["status"] in ("succeeded", "failed"):
            return found
        assert time.monotonic() < give_up, processes.logs()
        await asyncio.sleep(0.1)


def json_lines(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]


def one(spans: list[Recorded], name: str, **attributes: object) -> Recorded:
    found = [
        span
        for span in spans
        if span.name == name
        and all(span.attributes.get(f"mainspring.{key}") == value for key, value in attributes.items())
    ]
    assert len(found) == 1, (name, attributes, [(span.name, span.attributes) for span in spans])
    return found[0]


@pytest.mark.parametrize("engine", ["store", "redis"])
async def test_one_trace_from_the_request_to_the_child_of_the_run(
    postgres_database: str, address_of: Callable[[str], str], tmp_path: Path, engine: str
) -> None:
    port = free_port()
    with Collector() as collector:
        environment = {
            "MAINSPRING_TRACING_ENABLED": "true",
            "MAINSPRING_TRACING_ENDPOINT": collector.url,
            "MAINSPRING_TRACING_RATIO": "0",
            "MAINSPRING_METRICS_ENABLED": "false",
            "MAINSPRING_DISPATCH_ENGINE": engine if engine == "store" else address_of(engine),
        }
        async with (
            Processes(postgres_database, tmp_path, environment) as processes,
            httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=30) as client,
        ):
            api = processes.start("api", "--port", str(port))
            await until_ready(client, api, processes)
            processes.start("scheduler")
            processes.start("worker", "tests.support.traced_tasks:app")
            body = {"task": "order", "queue": "mail", "payload": {"number": 7}, "maxRetries": 2}
            made = await client.post("/v1/jobs", json=body, headers=SENT)
            job = made.raise_for_status().json()["jobId"]
            run = await until_ended(client, job, processes)
            assert (run["status"], run["attemptNumber"], run["traceId"]) == ("succeeded", 2, CALLER), run
            assert run["result"] == CALLER
            # What no caller asked to record is not: the ticks of the cron, and this.
            body["payload"] = {"number": 8}
            plain = (await client.post("/v1/jobs", json=body)).raise_for_status().json()["jobId"]
            assert "traceId" not in await until_ended(client, plain, processes)
            spans = collector.until(lambda spans: any(span.name == "write the bill" for span in spans))
            spans = collector.until(lambda spans: any(span.name == "process bill" for span in spans))

    lines = {line["message"]: line for line in json_lines(tmp_path / "2-worker.log")}
    for said, task, attempt in (("order 7", "order", 2), ("bill 7", "bill", 1)):
        line = lines[said]
        assert (line["trace.id"], line["mainspring.task"], line["mainspring.attempt"]) == (CALLER, task, attempt)
        assert (line["mainspring.tenant"], line["event.dataset"]) == ("default", "mainspring.task")
    assert lines["order 7"]["mainspring.run_id"] == job
    assert lines["bill 7"]["span.id"] == one(spans, "write the bill").span

    assert {span.trace for span in spans} == {CALLER}
    assert {span.service for span in spans} == {"mainspring"}
    request, submit = one(spans, "POST /v1/jobs"), one(spans, "submit order")
    assert (request.kind, request.parent) == (SERVER, "00f067aa0ba902b7")
    assert request.attributes["http.response.status_code"] == 201
    assert (submit.kind, submit.parent) == (PRODUCER, request.span)
    first, second = one(spans, "process order", attempt=1), one(spans, "process order", attempt=2)
    assert first.kind == second.kind == CONSUMER
    assert first.parent == second.parent == submit.span
    assert second.links == ((CALLER, first.span),)
    assert (first.status, first.events, first.attributes["mainspring.outcome"]) == (2, ("exception",), "error")
    assert (second.status, second.attributes["mainspring.state"]) == (0, "succeeded")
    assert second.attributes["messaging.system"] == "mainspring"
    assert second.attributes["messaging.destination.name"] == "mail"
    assert second.attributes["messaging.message.id"] == job
    assert {span.parent for span in spans if span.name == "look up"} == {first.span, second.span}
    assert all(span.attributes["mainspring.waited_ms"] >= 0 and span.start <= span.end for span in (first, second))
    # The child: submitted inside the second attempt, run in another process.
    spawned, child = one(spans, "submit bill"), one(spans, "process bill")
    assert (spawned.parent, child.parent) == (second.span, spawned.span)
    assert one(spans, "write the bill").parent == child.span


async def test_a_tick_has_a_trace_of_its_own(tmp_path: Path) -> None:
    port = free_port()
    (logs := tmp_path / "logs").mkdir()
    with Collector() as collector:
        environment = {
            "MAINSPRING_TRACING_ENABLED": "true",
            "MAINSPRING_TRACING_ENDPOINT": collector.url,
            "MAINSPRING_TRACING_RATIO": "1",
        }
        async with (
            Processes(str(tmp_path / "m.db"), logs, environment) as processes,
            httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=30) as client,
        ):
            up = processes.start("up", "tests.support.traced_tasks:app", "--port", str(port))
            await until_ready(client, up, processes)
            spans = collector.until(lambda spans: any(span.name == "process tick" for span in spans))
            process = next(span for span in spans if span.name == "process tick")
            run = (await client.get(f"/v1/runs/{process.attributes['messaging.message.id']}")).raise_for_status().json()
            metrics = (await client.get("/metrics")).text
    tick = one(collector.of(process.trace), "tick of tick")
    assert run["traceId"] == run["runId"] == process.trace
    assert (tick.parent, process.parent) == ("", tick.span)
    assert 'mainspring_trace_spans_total{outcome="exported"}' in metrics


async def test_a_collector_that_is_away_stops_nothing(tmp_path: Path) -> None:
    port = free_port()
    (logs := tmp_path / "logs").mkdir()
    environment = {
        "MAINSPRING_TRACING_ENABLED": "true",
        "MAINSPRING_TRACING_ENDPOINT": f"http://127.0.0.1:{free_port()}",
        "MAINSPRING_TRACING_RATIO": "1",
    }
    async with (
        Processes(str(tmp_path / "m.db"), logs, environment) as processes,
        httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=30) as client,
    ):
        up = processes.start("up", "tests.support.traced_tasks:app", "--port", str(port))
        await until_ready(client, up, processes)
        for number in range(20):
            body = {"task": "bill", "queue": "mail", "payload": {"number": number}}
            job = (await client.post("/v1/jobs", json=body)).raise_for_status().json()["jobId"]
            assert (await until_ended(client, job, processes))["status"] == "succeeded"
        give_up = time.monotonic() + 60
        while 'mainspring_trace_spans_total{outcome="dropped"} 0.0' in (text := (await client.get("/metrics")).text):
            assert time.monotonic() < give_up, processes.logs()
            await asyncio.sleep(0.2)
        assert 'mainspring_trace_spans_total{outcome="dropped"}' in text
        began = time.monotonic()
        up.terminate()
        assert await asyncio.to_thread(up.wait) == 0
        assert time.monotonic() - began < 15
        assert "Traceback" not in processes.logs()
