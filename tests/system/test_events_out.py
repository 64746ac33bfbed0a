"""Events of real processes in real sinks: schedulers are killed, and a webhook rejects deliveries."""

import asyncio
import json
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from mainspring.core.dispatch.outbox import SINK
from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import DAY
from mainspring.core.model.events.events import Topic
from mainspring.stores.postgres import PostgresStore
from tests.support.doc_blocks import write_blocks
from tests.support.load import APP, a_moment, make_jobs
from tests.support.processes import ROOT, START_SECONDS, Processes, api_client, free_port, kill, until_ready
from tests.support.sink_harness import HARNESSES, SinkHarness
from tests.support.waiting import eventually

pytestmark = [pytest.mark.postgres, pytest.mark.system, pytest.mark.timeout(900), pytest.mark.xdist_group("system")]

PAGE = ROOT / "docs/guides/events.md"


@pytest.fixture(params=list(HARNESSES))
async def sink(
    request: pytest.FixtureRequest,
    address_of: Callable[[str], str],
    store: PostgresStore,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[SinkHarness]:
    sink = HARNESSES[request.param](address_of(request.param))
    sink.source = f"/mainspring/{await store.identity()}"
    await sink.begin()
    monkeypatch.setenv(f"MAINSPRING_EVENTS_{request.param.upper()}", sink.address)
    yield sink
    await sink.close()


async def submit(store: PostgresStore, number: int) -> list[RunId]:
    jobs = make_jobs(store)
    runs = [a_moment(jobs, 5) for _ in range(number)]
    await jobs.submit_many(runs)
    return [run.id for run in runs]


async def read_events(sink: SinkHarness) -> list[dict[str, Any]]:
    found = [json.loads(body) for body in await sink.bodies(Topic.JOBS)]
    return [event for event in found if event["source"] == sink.source]


async def until_published(sink: SinkHarness, runs: list[RunId], kind: str, processes: Processes) -> None:
    """Wait until the sink has an event of this kind of each run."""

    async def published() -> bool:
        return {event["subject"] for event in await read_events(sink) if event["type"] == kind} >= set(runs)

    await eventually(published, processes.logs)


def check_order(events: list[dict[str, Any]], runs: list[RunId]) -> None:
    """The first deliveries of the events of each run must be in order. Events may be repeated."""
    first: dict[str, list[str]] = {}
    seen: dict[str, dict[str, Any]] = {}
    for event in events:
        if event["id"] not in seen:
            seen[event["id"]] = event
            first.setdefault(event["subject"], []).append(event["type"])
        assert seen[event["id"]] == event, "another event has the same id"
    for run in runs:
        kinds = [kind for kind in first[run] if kind not in ("run.lost", "run.released", "run.queued")]
        assert kinds[0] == "job.submitted", (run, first[run])
        assert kinds[-1] == "run.succeeded", (run, first[run])
        assert Counter(kinds)["run.succeeded"] == Counter(kinds)["job.submitted"] == 1, (run, first[run])


async def test_killed_schedulers_lose_no_event_and_keep_their_order(
    sink: SinkHarness, store: PostgresStore, postgres_database: str, tmp_path: Path
) -> None:
    async with Processes(postgres_database, tmp_path / "logs") as processes:
        schedulers = [processes.start("scheduler") for _ in range(2)]
        processes.start("worker", APP, "--queue", "load:20")

        async def attached() -> bool:
            return any(reader.name.startswith(SINK) for reader in await store.readers())

        await eventually(attached, processes.logs, deadline=START_SECONDS)
        runs: list[RunId] = []
        for _ in range(3):
            new = await submit(store, 20)
            for _ in range(9):
                runs += await submit(store, 20)
            # The events of the others are being published.
            await until_published(sink, new, "job.submitted", processes)
            runs += new
            kill(schedulers.pop(0))
            schedulers.append(processes.start("scheduler"))
        runs += await submit(store, 20)
        await until_published(sink, runs, "run.succeeded", processes)
        check_order(await read_events(sink), runs)


async def test_a_publisher_that_dies_before_it_acknowledges_repeats_events_with_the_same_ids(
    sink: SinkHarness, store: PostgresStore, postgres_database: str, tmp_path: Path
) -> None:
    await store.attach_reader(f"{SINK}{sink.kind}", DAY)
    runs = []
    for _ in range(3):
        runs += await submit(store, 1_500)
    for after in ("0", "1"):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.support.dying_publisher", postgres_database, sink.kind, sink.address, after),
            cwd=ROOT,
        )
        assert await process.wait() == -9
    before = await read_events(sink)
    assert len(before) > len({event["id"] for event in before}), "no event was repeated"
    async with Processes(postgres_database, tmp_path / "logs") as processes:
        processes.start("scheduler")
        await until_published(sink, runs, "job.submitted", processes)
    events = await read_events(sink)
    assert len({event["id"] for event in events}) == len(runs)
    seen: dict[str, dict[str, Any]] = {}
    for event in events:
        assert seen.setdefault(event["id"], event) == event


class Receiver:
    """A server that reads deliveries with the code of the page, and answers with ``answers``."""

    def __init__(self, read: Callable[[str, Any, bytes], list[dict[str, Any]]]) -> None:
        self.events: list[dict[str, Any]] = []
        self.answers: list[int] = []
        self.refused = 0
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status = receiver.answers.pop(0) if receiver.answers else 204
                events = read("a key to sign with", self.headers, body)
                if status == 204:
                    receiver.events += events
                else:
                    receiver.refused += 1
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/hook"


@pytest.fixture
def receiver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    write_blocks(PAGE, tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    import receiver as page  # type: ignore[import-not-found]

    made = Receiver(page.read_delivery)
    thread = Thread(target=made.server.serve_forever, args=[0.05])
    thread.start()
    yield made
    made.server.shutdown()
    thread.join()
    made.server.server_close()


async def test_webhook_deliveries_are_signed_and_retried_and_rejected_ones_are_dead_letters(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "MAINSPRING_EVENTS_WEBHOOKS", f"hook={receiver.url} secret=HOOK_KEY type=run.succeeded task=moment"
    )
    monkeypatch.setenv("MAINSPRING_SECRET_HOOK_KEY", "a key to sign with")
    monkeypatch.setenv("MAINSPRING_TASKS_HTTP_ALLOW", "127.0.0.1")
    port = free_port()
    async with (
        Processes(str(tmp_path / "m.db"), tmp_path / "logs") as processes,
        api_client(port) as client,
    ):
        up = processes.start("up", APP, "--port", str(port))
        await until_ready(client, up, processes)

        async def has_sink() -> bool:
            return 'mainspring_events_lag_seconds{sink="webhook:hook"}' in (await client.get("/metrics")).text

        await eventually(has_sink, processes.logs)

        async def run_one() -> str:
            job = {"task": "moment", "queue": "load", "payload": {"milliseconds": 1}}
            answer = await client.post("/v1/jobs", json=job)
            assert answer.status_code == 201, answer.text
            return str(answer.json()["jobId"])

        receiver.answers = [503, 503]
        first = await run_one()
        await eventually(lambda: [event["subject"] for event in receiver.events] == [first], processes.logs)
        assert receiver.refused == 2
        receiver.answers = [400]
        await run_one()

        async def dead() -> list[dict[str, Any]]:
            answer = await client.get("/v1/dead-letters/runs", params={"queue": "webhooks"})
            return list(answer.json()["items"])

        [letter] = await eventually(dead, processes.logs)
        assert (letter["task"], letter["queue"]) == ("event_webhook", "webhooks")
        assert "400" in letter["errorMessage"]
        third = await run_one()
        await eventually(lambda: [event["subject"] for event in receiver.events] == [first, third], processes.logs)
        answer = await client.post("/v1/dead-letters/replay", json={"runIds": [letter["runId"]]})
        assert answer.json()["count"] == 1, answer.text
        await eventually(lambda: len(receiver.events) == 3, processes.logs)
        forged = await client.post(
            "/v1/jobs", json={"task": "event_webhook", "payload": {"webhook": "hook", "events": []}}
        )
        assert forged.status_code == 400, forged.text
        shown = (await client.get("/metrics")).text
        assert 'mainspring_events_lag_seconds{sink="webhook:hook"}' in shown
        assert 'mainspring_events_sent_total{sink="webhook:hook"}' in shown
