"""One trace from submit to completion, over real processes, as a collector receives it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.support.collector import Collector, Recorded
from tests.support.processes import Processes, api_client, free_port, until_ended, until_ready
from tests.support.waiting import eventually

pytestmark = [pytest.mark.system, pytest.mark.timeout(900), pytest.mark.xdist_group("system")]

CALLER = "4bf92f3577b34da6a3ce929d0e0e4736"
SENT = {"traceparent": f"00-{CALLER}-00f067aa0ba902b7-01"}
SERVER, PRODUCER, CONSUMER = 2, 4, 5


async def until_completed(client: httpx2.AsyncClient, job: str, processes: Processes) -> dict[str, Any]:
    async def completed() -> dict[str, Any] | None:
        found: dict[str, Any] = (await client.get(f"/v1/runs/{job}")).raise_for_status().json()
        return found if found["status"] in ("succeeded", "failed") else None

    view = await eventually(completed, processes.logs)
    assert view is not None
    return view


def json_lines(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]


def find_span(spans: list[Recorded], name: str, **attributes: object) -> Recorded:
    found = [
        span
        for span in spans
        if span.name == name
        and all(span.attributes.get(f"mainspring.{key}") == value for key, value in attributes.items())
    ]
    assert len(found) == 1, (name, attributes, [(span.name, span.attributes) for span in spans])
    return found[0]


@pytest.mark.parametrize("broker", ["store", "redis"])
async def test_one_trace_has_the_request_every_attempt_and_the_child_run(
    postgres_database: str, address_of: Callable[[str], str], tmp_path: Path, broker: str
) -> None:
    port = free_port()
    with Collector() as collector:
        environment = {
            "MAINSPRING_TRACING_ENABLED": "true",
            "MAINSPRING_TRACING_ENDPOINT": collector.url,
            "MAINSPRING_TRACING_RATIO": "0",
            "MAINSPRING_METRICS_ENABLED": "false",
            "MAINSPRING_DISPATCH_BROKER": broker if broker == "store" else address_of(broker),
        }
        async with (
            Processes(postgres_database, tmp_path, environment) as processes,
            api_client(port) as client,
        ):
            api = processes.start("api", "--port", str(port))
            await until_ready(client, api, processes)
            processes.start("scheduler")
            processes.start("worker", "tests.support.traced_tasks:app")
            body = {"task": "order", "queue": "mail", "payload": {"number": 7}, "maxRetries": 2}
            made = await client.post("/v1/jobs", json=body, headers=SENT)
            job = made.raise_for_status().json()["jobId"]
            run = await until_completed(client, job, processes)
            assert (run["status"], run["attemptNumber"], run["traceId"]) == ("succeeded", 2, CALLER), run
            assert run["result"] == CALLER
            # Runs that no caller traces are not recorded: the ticks of the cron, and this one.
            body["payload"] = {"number": 8}
            plain = (await client.post("/v1/jobs", json=body)).raise_for_status().json()["jobId"]
            assert "traceId" not in await until_completed(client, plain, processes)
            spans = collector.until(lambda spans: {"write the bill", "process bill"} <= {span.name for span in spans})

    lines = {line["message"]: line for line in json_lines(tmp_path / "2-worker.log")}
    for message, task, attempt in (("order 7", "order", 2), ("bill 7", "bill", 1)):
        line = lines[message]
        assert (line["trace.id"], line["mainspring.task"], line["mainspring.attempt"]) == (CALLER, task, attempt)
        assert (line["mainspring.tenant"], line["event.dataset"]) == ("default", "mainspring.task")
    assert lines["order 7"]["mainspring.run_id"] == job
    assert lines["bill 7"]["span.id"] == find_span(spans, "write the bill").span

    assert {span.trace for span in spans} == {CALLER}
    assert {span.service for span in spans} == {"mainspring"}
    request, submit = find_span(spans, "POST /v1/jobs"), find_span(spans, "submit order")
    assert (request.kind, request.parent) == (SERVER, "00f067aa0ba902b7")
    assert request.attributes["http.response.status_code"] == 201
    assert (submit.kind, submit.parent) == (PRODUCER, request.span)
    first, second = find_span(spans, "process order", attempt=1), find_span(spans, "process order", attempt=2)
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
    # The second attempt spawned the child run, which ran in another process.
    spawned, child = find_span(spans, "submit bill"), find_span(spans, "process bill")
    assert (spawned.parent, child.parent) == (second.span, spawned.span)
    assert find_span(spans, "write the bill").parent == child.span


async def test_a_tick_has_a_trace_of_its_own(tmp_path: Path) -> None:
    port = free_port()
    logs = tmp_path / "logs"
    with Collector() as collector:
        environment = {
            "MAINSPRING_TRACING_ENABLED": "true",
            "MAINSPRING_TRACING_ENDPOINT": collector.url,
            "MAINSPRING_TRACING_RATIO": "1",
        }
        async with (
            Processes(str(tmp_path / "m.db"), logs, environment) as processes,
            api_client(port) as client,
        ):
            up = processes.start("up", "tests.support.traced_tasks:app", "--port", str(port))
            await until_ready(client, up, processes)
            spans = collector.until(
                lambda spans: any(span.name == "process tick" and len(collector.of(span.trace)) > 1 for span in spans)
            )
            process = next(span for span in spans if span.name == "process tick" and len(collector.of(span.trace)) > 1)
            run = (await client.get(f"/v1/runs/{process.attributes['messaging.message.id']}")).raise_for_status().json()
            metrics = (await client.get("/metrics")).text
    tick = find_span(collector.of(process.trace), "tick of tick")
    assert run["traceId"] == run["runId"] == process.trace
    assert (tick.parent, process.parent) == ("", tick.span)
    assert 'mainspring_trace_spans_total{outcome="exported"}' in metrics


async def test_runs_and_shutdown_do_not_depend_on_the_collector(tmp_path: Path) -> None:
    port = free_port()
    logs = tmp_path / "logs"
    environment = {
        "MAINSPRING_TRACING_ENABLED": "true",
        "MAINSPRING_TRACING_ENDPOINT": f"http://127.0.0.1:{free_port()}",
        "MAINSPRING_TRACING_RATIO": "1",
    }
    async with (
        Processes(str(tmp_path / "m.db"), logs, environment) as processes,
        api_client(port) as client,
    ):
        up = processes.start("up", "tests.support.traced_tasks:app", "--port", str(port))
        await until_ready(client, up, processes)
        for number in range(20):
            body = {"task": "bill", "queue": "mail", "payload": {"number": number}}
            job = (await client.post("/v1/jobs", json=body)).raise_for_status().json()["jobId"]
            assert (await until_completed(client, job, processes))["status"] == "succeeded"

        async def dropped() -> bool:
            text = (await client.get("/metrics")).text
            assert 'mainspring_trace_spans_total{outcome="dropped"}' in text
            return 'mainspring_trace_spans_total{outcome="dropped"} 0.0' not in text

        await eventually(dropped, processes.logs)
        up.terminate()
        assert await until_ended(up, processes) == 0
        assert "Traceback" not in processes.logs()
