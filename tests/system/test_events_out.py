"""Events of real processes to real servers: schedulers that are killed, a receiver that refuses."""

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import httpx2
import pytest

from mainspring.adapters.store.postgres import PostgresStore
from mainspring.control.publisher import SINK
from mainspring.domain.events import Topic
from mainspring.domain.ids import RunId
from mainspring.domain.instant import DAY
from mainspring.domain.run import NewRun
from tests.support.doc_blocks import write_blocks
from tests.support.processes import ROOT, Processes, free_port, kill, until_ready
from tests.support.sink_harness import HARNESSES, SinkHarness
from tests.system.test_deaths import the_jobs

pytestmark = [pytest.mark.postgres, pytest.mark.system, pytest.mark.timeout(180), pytest.mark.xdist_group("system")]

APP = "tests.support.load_tasks:app"
PAGE = ROOT / "docs/how-to/events.md"


@pytest.fixture
async def store(postgres_database: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(postgres_database)
    await store.open()
    yield store
    await store.close()


@pytest.fixture(params=list(HARNESSES))
async def they(
    request: pytest.FixtureRequest,
    address_of: Callable[[str], str],
    store: PostgresStore,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[SinkHarness]:
    they = HARNESSES[request.param](address_of(request.param))
    they.source = f"/mainspring/{await store.identity()}"
    await they.begin()
    monkeypatch.setenv(f"MAINSPRING_EVENTS_{request.param.upper()}", they.address)
    yield they
    await they.close()


async def submit(store: PostgresStore, number: int) -> list[RunId]:
    jobs = the_jobs(store)
    runs = [
        NewRun(id=jobs.new_run_id(), task="moment", payload=b'{"milliseconds":5}', queue="load") for _ in range(number)
    ]
    await jobs.submit_many(runs)
    return [run.id for run in runs]


async def told(they: SinkHarness) -> list[dict[str, Any]]:
    found = [json.loads(body) for body in await they.bodies(Topic.JOBS)]
    return [event for event in found if event["source"] == they.source]


async def until_told(they: SinkHarness, runs: list[RunId], kind: str, processes: Processes | None = None) -> None:
    until = time.monotonic() + 60
    while not {event["subject"] for event in await told(they) if event["type"] == kind} >= set(runs):
        assert time.monotonic() < until, "" if processes is None else processes.logs()
        await asyncio.sleep(0.3)


def judge(events: list[dict[str, Any]], runs: list[RunId]) -> int:
    """Each run's life is told in order, whatever is repeated; how many events were told again."""
    first: dict[str, list[str]] = {}
    seen: dict[str, dict[str, Any]] = {}
    for event in events:
        if event["id"] not in seen:
            seen[event["id"]] = event
            first.setdefault(event["subject"], []).append(event["type"])
        assert seen[event["id"]] == event, "the same id says something else"
    for run in runs:
        kinds = [kind for kind in first[run] if kind not in ("run.lost", "run.released", "run.queued")]
        assert kinds[0] == "job.submitted", (run, first[run])
        assert kinds[-1] == "run.succeeded", (run, first[run])
        assert Counter(kinds)["run.succeeded"] == Counter(kinds)["job.submitted"] == 1, (run, first[run])
    return len(events) - len(seen)


async def test_schedulers_that_are_killed_lose_nothing_and_keep_the_order(
    they: SinkHarness, store: PostgresStore, postgres_database: str, tmp_path: Path
) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    async with Processes(postgres_database, logs) as processes:
        schedulers = [processes.start("scheduler") for _ in range(2)]
        processes.start("worker", APP, "--queue", "load:20")
        until = time.monotonic() + 60
        while not any(reader.name.startswith(SINK) for reader in await store.readers()):
            assert time.monotonic() < until, processes.logs()
            await asyncio.sleep(0.1)
        runs = []
        for _ in range(3):
            for _ in range(10):
                runs += await submit(store, 20)
                await asyncio.sleep(0.05)
            kill(schedulers.pop(0))
            schedulers.append(processes.start("scheduler"))
        runs += await submit(store, 20)
        await until_told(they, runs, "run.succeeded", processes)
        judge(await told(they), runs)


async def test_who_is_killed_between_telling_and_remembering_tells_it_again_under_the_same_ids(
    they: SinkHarness, store: PostgresStore, postgres_database: str, tmp_path: Path
) -> None:
    await store.attach_reader(f"{SINK}{they.kind}", DAY)
    runs = []
    for _ in range(3):
        runs += await submit(store, 1_500)
    for after in ("0", "1"):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.support.dying_publisher", postgres_database, they.kind, they.address, after),
            cwd=ROOT,
        )
        assert await process.wait() == -9
    told_before = await told(they)
    assert len(told_before) > len({event["id"] for event in told_before}), "nothing was told twice"
    logs = tmp_path / "logs"
    logs.mkdir()
    async with Processes(postgres_database, logs) as processes:
        processes.start("scheduler")
        await until_told(they, runs, "job.submitted", processes)
    events = await told(they)
    assert len({event["id"] for event in events}) == len(runs)
    seen: dict[str, dict[str, Any]] = {}
    for event in events:
        assert seen.setdefault(event["id"], event) == event


class Receiver:
    """A server that reads deliveries as the page says, and answers as it is told."""

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
    sys.modules.pop("receiver", None)


async def test_a_webhook_is_told_signed_again_after_failures_and_what_it_refuses_is_a_dead_letter(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "MAINSPRING_EVENTS_WEBHOOKS", f"hook={receiver.url} secret=HOOK_KEY type=run.succeeded task=moment"
    )
    monkeypatch.setenv("MAINSPRING_SECRET_HOOK_KEY", "a key to sign with")
    monkeypatch.setenv("MAINSPRING_TASKS_HTTP_ALLOW", "127.0.0.1")
    (tmp_path / "logs").mkdir()
    port = free_port()
    async with (
        Processes(str(tmp_path / "m.db"), tmp_path / "logs") as processes,
        httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client,
    ):
        up = processes.start("up", APP, "--port", str(port))
        await until_ready(client, up, processes)
        await until(lambda: has_sink(client), processes)

        async def run_one() -> str:
            job = {"task": "moment", "queue": "load", "payload": {"milliseconds": 1}}
            answer = await client.post("/v1/jobs", json=job)
            assert answer.status_code == 201, answer.text
            return str(answer.json()["jobId"])

        receiver.answers = [503, 503]
        first = await run_one()
        await until(lambda: [event["subject"] for event in receiver.events] == [first], processes)
        assert receiver.refused == 2
        receiver.answers = [400]
        await run_one()

        async def dead() -> list[dict[str, Any]]:
            answer = await client.get("/v1/dead-letters/runs", params={"queue": "webhooks"})
            return list(answer.json()["items"])

        await until(dead, processes)
        [letter] = await dead()
        assert (letter["task"], letter["queue"]) == ("event_webhook", "webhooks")
        assert "400" in letter["errorMessage"]
        third = await run_one()
        await until(lambda: [event["subject"] for event in receiver.events] == [first, third], processes)
        answer = await client.post("/v1/dead-letters/replay", json={"runIds": [letter["runId"]]})
        assert answer.json()["count"] == 1, answer.text
        await until(lambda: len(receiver.events) == 3, processes)
        forged = await client.post(
            "/v1/jobs", json={"task": "event_webhook", "payload": {"webhook": "hook", "events": []}}
        )
        assert forged.status_code == 400, forged.text
        shown = (await client.get("/metrics")).text
        assert 'mainspring_events_lag_seconds{sink="webhook:hook"}' in shown
        assert 'mainspring_events_sent_total{sink="webhook:hook"}' in shown


async def has_sink(client: httpx2.AsyncClient) -> bool:
    return 'mainspring_events_lag_seconds{sink="webhook:hook"}' in (await client.get("/metrics")).text


async def until(asked: Callable[[], Any], processes: Processes) -> None:
    give_up_at = time.monotonic() + 60
    while True:
        found = asked()
        if found if not asyncio.iscoroutine(found) else await found:
            return
        assert time.monotonic() < give_up_at, processes.logs()
        await asyncio.sleep(0.1)
