"""Spans of submits and attempts, sent by the real SDK to a real collector."""

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

import httpx2
import msgspec
import pytest
from opentelemetry import context as contexts
from opentelemetry.context import _SUPPRESS_INSTRUMENTATION_KEY

from mainspring.config.loading import load
from mainspring.core.model.base.errors import Conflict, Invalid
from mainspring.core.model.base.ids import JobId
from mainspring.core.model.base.instant import MINUTE, Micros
from mainspring.core.model.runs.completion import (
    CompletionAnswer,
    complete_failure,
    complete_loss,
    complete_release,
    complete_success,
)
from mainspring.core.model.runs.new_run import JobRef, NewRun, made_once
from mainspring.core.model.runs.policy import RunPolicy
from mainspring.core.model.runs.run import HeldRun
from mainspring.core.model.runs.traces import span_of_attempt, traced
from mainspring.core.ports.egress import Answer, OutgoingRequest
from mainspring.core.runtime.local_wakeups import LocalWakeups
from mainspring.core.runtime.tracing import sender as senders
from mainspring.core.runtime.tracing.sender import ROOM
from mainspring.core.runtime.tracing.spans import TOGETHER, Tracing, standing
from mainspring.core.store import Demand
from mainspring.core.submit.jobs import Jobs
from mainspring.core.worker.builtin.http import http_handler
from mainspring.core.worker.handler import AsyncHandler
from mainspring.core.worker.reporting.tracing import standing_in
from mainspring.stores.memory import MemoryStore
from tests.support.builders import a_held_run, a_policy, a_run, a_worker, some_runs
from tests.support.certificates import make_certificate
from tests.support.clock import ManualClock
from tests.support.collector import Collector, Recorded
from tests.support.waiting import DEADLINE_SECONDS


class Ended(NamedTuple):
    held: HeldRun
    came_at: Micros
    ended_at: Micros


ROOT = Path(__file__).parents[2]
CALLER, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SENT = f"00-{CALLER}-{SPAN}-01"


@pytest.fixture(autouse=True)
def patient_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine must not make a request to the collector fail."""
    monkeypatch.setattr(senders, "_REQUEST_SECONDS", 120)


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as found:
        yield found


def send_all(tracing: Tracing) -> None:
    """Like ``tracing.flush``, which stops after two seconds."""
    assert tracing.sender.force_flush(120_000)


def refuse_to_start(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


class World:
    def __init__(self, collector: Collector, ratio: float) -> None:
        self.collector = collector
        self.tracing = Tracing(collector.url, ratio, "shop", "1")
        self.clock = ManualClock()
        self.store = MemoryStore(self.clock, 4)
        self.jobs = Jobs(self.store, LocalWakeups(), self.clock, Random(1), shards=4, tracing=self.tracing)

    async def submit(self, *runs: NewRun) -> list[str]:
        """Submit runs, and return the ``traceparent`` that each was stored with."""
        if len(runs) == 1:
            await self.jobs.submit(runs[0])
        else:
            await self.jobs.submit_many(runs)
        found = await self.store.runs([run.id for run in runs])
        return [view.policy.trace for view in found if view is not None]

    async def claim(self, number: int) -> HeldRun:
        """Stage what is due, and let a new worker claim one run."""
        owner = await self.store.join(f"scheduler {number}", MINUTE)
        await self.store.take(owner, range(4))
        await self.store.stage(owner, range(4), 100)
        await self.store.leave(owner)
        worker = await self.store.open_session(a_worker())
        [held] = await self.store.claim(worker, number, [Demand("default", 1)])
        return held

    def recorded(self) -> list[Recorded]:
        send_all(self.tracing)
        return self.collector.spans


async def test_an_unsampled_submit_stores_no_trace_and_sends_no_span(collector: Collector) -> None:
    world = World(collector, 0)
    run = a_run()
    assert await world.submit(run) == [""]
    assert await world.submit(*some_runs(3)) == [""] * 3
    assert await world.submit(*some_runs(TOGETHER + 1)) == [""] * (TOGETHER + 1)
    assert world.recorded() == []


async def test_an_empty_submit_records_no_span(collector: Collector) -> None:
    world = World(collector, 1)
    assert await world.jobs.submit_many([]) == []
    assert world.recorded() == []


async def test_a_few_runs_of_one_submit_share_a_trace(collector: Collector) -> None:
    world = World(collector, 1)
    kept = await world.submit(*some_runs(TOGETHER))
    [span] = world.recorded()
    assert set(kept) == {f"00-{span.trace}-{span.span}-01"}
    assert (span.name, span.parent, span.service) == (f"submit {TOGETHER} runs", "", "shop")
    assert span.attributes["messaging.batch.message_count"] == TOGETHER


async def test_many_runs_of_one_submit_have_their_own_traces_linked_to_the_submit(collector: Collector) -> None:
    world = World(collector, 1)
    cause = world.tracing.inside(msgspec.structs.replace(a_held_run(), policy=RunPolicy(trace=SENT)))
    assert cause is not None
    with standing(cause):
        kept = await world.submit(*some_runs(TOGETHER + 1))
    batch, *each = sorted(world.recorded(), key=lambda span: span.trace != CALLER)
    assert batch.trace == CALLER
    assert len(set(kept)) == len({span.trace for span in each}) == TOGETHER + 1
    assert all(span.links == ((CALLER, batch.span),) and span.parent == "" for span in each)


async def test_the_sampling_ratio_applies_to_each_of_many_runs(collector: Collector) -> None:
    kept = await World(collector, 0.1).submit(*some_runs(1_000))
    assert 50 < len([one for one in kept if one]) < 200


async def test_a_run_submitted_with_a_trace_continues_it(collector: Collector) -> None:
    world = World(collector, 0)
    theirs, plain = a_run(policy=RunPolicy(trace=SENT)), a_run()
    kept = await world.submit(theirs, plain)
    [span] = world.recorded()
    assert kept == [f"00-{CALLER}-{span.span}-01", ""]
    assert span.parent == SPAN


async def test_a_submit_follows_the_sampling_decision_of_its_caller(collector: Collector) -> None:
    world = World(collector, 1)
    with world.tracing.serving(
        "POST", "/v1/jobs", "create_job", {"traceparent": f"00-{CALLER}-{SPAN}-00"}, world.clock
    ):
        assert await world.submit(a_run()) == [""]
    with world.tracing.serving("POST", "/v1/jobs", "create_job", {"traceparent": SENT}, world.clock):
        assert (await world.submit(a_run()))[0].startswith(f"00-{CALLER}-")
    assert {span.trace for span in world.recorded()} == {CALLER}


async def test_a_repeated_request_in_another_trace_is_no_conflict(collector: Collector) -> None:
    world = World(collector, 1)
    first = made_once(a_run(), "once")
    again = msgspec.structs.replace(first, id=a_run().id)
    [made] = [await world.jobs.submit(first)]
    known = await world.jobs.submit(again)
    assert (known.id, known.new, known.conflict) == (made.id, False, False)


@pytest.mark.parametrize("recorded_by_caller", [True, False], ids=["submitted", "tick"])
@pytest.mark.parametrize(
    "ends",
    [
        ("released", "success"),
        ("released", "released", "error", "success"),
        ("killed", "success"),
        ("worker gone", "success"),
        ("worker gone", "error", "worker gone", "success"),
        ("error", "released", "worker gone", "success"),
    ],
    ids=" ".join,
)
async def test_each_attempt_has_one_span_and_each_tick_has_one(
    collector: Collector, ends: Sequence[str], recorded_by_caller: bool
) -> None:
    world = World(collector, 1)
    run = a_run(policy=a_policy(pause=0), job=JobRef(id=JobId("a" * 32), version=1, scheduled_at=0))
    if recorded_by_caller:
        run = msgspec.structs.replace(run, policy=traced(run.policy, SENT))
    await world.store.submit([run])
    for number, end in enumerate(ends, 1):
        held = await world.claim(number)
        completion = {
            "released": complete_release(held),
            "killed": complete_loss(held, blamed=True),
            "worker gone": complete_loss(held, blamed=False),
            "error": complete_failure(held, "ValueError: no", Random(1), now=await world.store.now()),
            "success": complete_success(held, None),
        }[end]
        assert await world.store.complete([completion]) == [CompletionAnswer.ACCEPTED]
        if end != "worker gone":
            world.tracing.completed([(Ended(held, number, number + 1), completion)], world.clock)
    spans = world.recorded()
    attempts = [span for span in spans if span.name == "process greet"]
    assert [span.attributes["mainspring.outcome"] for span in attempts] == [
        {"killed": "lost"}.get(end, end) for end in ends if end != "worker gone"
    ]
    assert len({span.span for span in spans}) == len(spans)
    [above] = {span.parent for span in attempts}
    ticks = [(span.name, span.span) for span in spans if span not in attempts]
    assert ticks == ([] if recorded_by_caller else [("tick of greet", above)])
    # A released attempt is not linked as the previous one.
    known = {span.span: span.attributes["mainspring.outcome"] for span in attempts}
    for span in attempts:
        assert len(span.links) == (span.attributes["mainspring.attempt"] > 1)
        assert all(known.get(before, "lost") in ("error", "lost") for _, before in span.links)


def test_a_remote_worker_gets_the_trace_of_a_tick_that_is_recorded_once(collector: Collector) -> None:
    world = World(collector, 1)
    tick = msgspec.structs.replace(a_held_run(), job_id=JobId("a" * 32), scheduled_at=0)
    again = msgspec.structs.replace(tick, attempt=2, lost=1)
    parent = f"00-{tick.id}-{span_of_attempt(tick.id, 0):016x}-01"
    assert world.tracing.given(tick) == world.tracing.given(again) == parent
    world.tracing.completed_elsewhere(tick, complete_release(tick))
    assert world.recorded() == []
    world.tracing.completed_elsewhere(again, complete_failure(again, "no", Random(1), now=0))
    last = msgspec.structs.replace(again, attempt=3)
    world.tracing.completed_elsewhere(last, complete_success(last, None))
    sent = msgspec.structs.replace(a_held_run(), policy=RunPolicy(trace=SENT))
    assert world.tracing.given(sent) == SENT
    assert world.tracing.given(a_held_run()) == ""
    for held in (sent, a_held_run()):
        world.tracing.completed_elsewhere(held, complete_success(held, None))
    [span] = world.recorded()
    assert (span.name, span.trace, span.parent) == ("tick of greet", tick.id, "")
    assert parent == f"00-{span.trace}-{span.span}-01"


async def test_the_span_of_a_failed_submit_has_an_error_status(collector: Collector) -> None:
    world = World(collector, 1)

    async def refuse(runs: object) -> None:
        raise Conflict("no")

    world.store.submit = refuse  # type: ignore[method-assign,assignment]
    with pytest.raises(Conflict):
        await world.jobs.submit(a_run())
    [span] = world.recorded()
    assert span.status == 2


def test_spans_beyond_the_room_for_them_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    tracing = Tracing("http://127.0.0.1:9", 1, "shop", "1")
    monkeypatch.setattr(threading.Thread, "start", refuse_to_start)
    for _ in range(ROOM + 1_000):
        record_submit(tracing)
    assert tracing.sender.dropped == 1_000


@pytest.mark.slow
def test_flush_returns_although_the_collector_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    tracing = Tracing("http://127.0.0.1:9", 1, "shop", "1")
    sending, answered = threading.Event(), threading.Event()

    def wait_for_an_answer(body: bytes) -> str:
        sending.set()
        answered.wait()
        return "no answer"

    monkeypatch.setattr(tracing.sender, "_brought", wait_for_an_answer)
    record_submit(tracing)
    tracing.flush()
    assert sending.wait(120)
    assert tracing.sender.dropped == 0
    answered.set()


def record_submit(tracing: Tracing) -> None:
    submitting = tracing.submitting([a_run()], ManualClock())
    assert submitting is not None
    with submitting:
        pass


async def test_a_request_is_retried_after_503_and_dropped_after_400(collector: Collector) -> None:
    tracing = Tracing(collector.url, 1, "shop", "1")
    collector.refusals = [503]
    record_submit(tracing)
    send_all(tracing)
    assert (tracing.sender.exported, tracing.sender.dropped, len(collector.spans)) == (1, 0, 1)
    collector.refusals = [400]
    record_submit(tracing)
    send_all(tracing)
    assert (tracing.sender.exported, tracing.sender.dropped, len(collector.spans)) == (1, 1, 1)
    assert len(collector.headers) == 3


async def test_standard_environment_variables_configure_the_sender(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"{collector.url}/")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "Api-Key=secret%20one, x-team=shop")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", "gzip")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")
    record_submit(Tracing("", 1, "shop", "1"))
    # The span is sent without a flush.
    [span] = await asyncio.to_thread(collector.until, lambda spans: len(spans) == 1)
    assert span.service == "shop"
    [headers] = collector.headers
    wanted = {"api-key": "secret one", "x-team": "shop", "content-encoding": "gzip"}
    assert wanted.items() <= headers.items()


@pytest.mark.slow
async def test_the_sender_verifies_the_collector_and_presents_a_client_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_certificate(tmp_path)
    with Collector(tmp_path) as collector:
        stranger = Tracing(collector.url, 1, "shop", "1")
        record_submit(stranger)
        send_all(stranger)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", str(tmp_path / "certificate.pem"))
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", str(tmp_path / "certificate.pem"))
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY", str(tmp_path / "key.pem"))
        tracing = Tracing(collector.url, 1, "shop", "1")
        record_submit(tracing)
        send_all(tracing)
        assert (len(collector.spans), tracing.sender.exported, stranger.sender.exported) == (1, 1, 0)


async def test_an_invalid_schedule_delay_falls_back_to_the_default(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "soon")
    tracing = Tracing(collector.url, 1, "shop", "1")
    record_submit(tracing)
    send_all(tracing)
    assert len(collector.spans) == 1


async def test_an_error_with_lone_surrogates_is_recorded(collector: Collector) -> None:
    world = World(collector, 1)
    held = a_held_run(policy=traced(a_policy(), SENT))
    failed = complete_failure(held, "Traceback\n  \ud800\nValueError: \ud800 is half a one", Random(1), now=0)
    world.tracing.completed([(Ended(held, 0, 5), failed)], world.clock)
    [span] = world.recorded()
    assert (span.status, span.events) == (2, ("exception",))


async def test_spans_of_handlers_share_the_request_and_the_trace(collector: Collector) -> None:
    world = World(collector, 1)
    tracer = world.tracing._theirs.get_tracer("shop")
    with tracer.start_as_current_span("theirs"):
        await world.submit(a_run())
    theirs, ours = sorted(world.recorded(), key=lambda span: span.name, reverse=True)
    assert (theirs.name, ours.name, ours.parent) == ("theirs", "submit greet", theirs.span)
    assert theirs.service == ours.service == "shop"
    assert len(collector.headers) == 1


async def test_a_span_that_cannot_be_encoded_is_dropped_alone(collector: Collector) -> None:
    world = World(collector, 1)
    tracer = world.tracing._theirs.get_tracer("shop")
    for name in ("good", "half a \ud800", "better"):
        tracer.start_span(name).end()
    await world.submit(a_run())
    assert {span.name for span in world.recorded()} == {"good", "better", "submit greet"}
    assert (world.tracing.sender.exported, world.tracing.sender.dropped) == (3, 1)


async def test_large_spans_are_sent_in_several_requests(collector: Collector) -> None:
    world = World(collector, 1)
    held = a_held_run(policy=traced(a_policy(), SENT))
    failed = complete_failure(held, "x" * 10_000, Random(1), now=0)
    world.tracing.completed([(Ended(held, 0, 5), failed)] * 200, world.clock)
    assert len(world.recorded()) == 200
    assert len(collector.headers) > 1
    assert all(int(headers["content-length"]) < 1_000_000 for headers in collector.headers)


async def test_a_sender_without_a_thread_starts_one_at_the_next_span(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
    world = World(collector, 1)

    with monkeypatch.context() as scarce:
        scarce.setattr(threading.Thread, "start", refuse_to_start)
        await world.submit(a_run())
        world.tracing.flush()
    await world.submit(a_run())
    await asyncio.to_thread(collector.until, lambda spans: len(spans) == 2)


async def test_sending_spans_is_not_instrumented(collector: Collector) -> None:
    world = World(collector, 1)
    seen: list[object] = []

    def post(*arguments: object, **options: object) -> httpx2.Response:
        seen.append(contexts.get_value(_SUPPRESS_INSTRUMENTATION_KEY))
        return httpx2.Response(200)

    world.tracing.sender._client = httpx2.Client(timeout=DEADLINE_SECONDS)
    world.tracing.sender._client.post = post  # type: ignore[method-assign]
    await world.submit(a_run())
    send_all(world.tracing)
    assert seen == [True]


def test_a_forked_process_sends_its_own_spans(collector: Collector) -> None:
    tracing = Tracing(collector.url, 1, "shop", "1")
    record_submit(tracing)
    pid = os.fork()
    if pid == 0:
        record_submit(tracing)
        os._exit(0 if tracing.sender.force_flush(120_000) else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert len(collector.spans) == 1
    send_all(tracing)
    assert len(collector.spans) == 2


async def test_a_call_of_the_http_task_propagates_the_trace(collector: Collector) -> None:
    world, egress = World(collector, 0), _Egress()
    handler = standing_in({"http": http_handler(lambda: egress)}, world.tracing)["http"]
    assert isinstance(handler, AsyncHandler)
    plain = msgspec.structs.replace(a_held_run(), payload=b'{"url": "https://example.org/"}')
    recorded = msgspec.structs.replace(plain, policy=RunPolicy(trace=SENT))
    own = b'{"url": "https://example.org/", "headers": {"Traceparent": "mine"}}'
    for held in (plain, recorded, msgspec.structs.replace(recorded, payload=own)):
        await handler.invoke(held)
    assert [sent.get("traceparent") for sent in egress.headers] == [
        None,
        f"00-{CALLER}-{span_of_attempt(recorded.id, recorded.attempt):016x}-01",
        None,
    ]


class _Egress:
    def __init__(self) -> None:
        self.headers: list[Mapping[str, str]] = []

    async def send(self, request: OutgoingRequest) -> Answer:
        self.headers.append(request.headers)
        return Answer(status=200, headers={}, body=b"")


def test_opentelemetry_is_not_imported_while_tracing_is_off(tmp_path: Path) -> None:
    program = """
import asyncio, logging, sys
from mainspring import Mainspring
app = Mainspring("memory:")
@app.task
async def hello() -> int:
    logging.getLogger("shop").warning("hello")
    return 1
async def main():
    from mainspring.config.node import Node, Role
    from mainspring.core.model.runs.new_run import NewRun
    node = Node(app.settings(), {Role.WORKER, Role.SCHEDULER}, app)
    await node.start()
    run = NewRun(id=node.runtime.jobs.new_run_id(), task="hello")
    await node.runtime.jobs.submit(run)
    while (await node.runtime.store.runs([run.id]))[0].state.value != "succeeded":
        await asyncio.sleep(0.02)
    await node.stop()
    await node.runtime.close()
asyncio.run(main())
print([name for name in sys.modules if name.startswith("opentelemetry")])
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "MAINSPRING_METRICS_ENABLED": "false"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "[]", done.stderr


def test_tracing_without_opentelemetry_fails_with_a_one_line_error(tmp_path: Path) -> None:
    program = """
import sys
sys.modules["opentelemetry"] = None
sys.argv[1:] = ["worker"]
from mainspring import cli
cli.start()
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "MAINSPRING_TRACING_ENABLED": "true"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert done.stderr.strip() == (
        "mainspring: tracing.enabled: OpenTelemetry needs the package opentelemetry (pip install 'mainspring[otel]')"
    )


@pytest.mark.parametrize(
    ("name", "value", "field"),
    [
        ("RATIO", "1.5", "tracing.ratio"),
        ("ENDPOINT", "collector:4318", "tracing.endpoint"),
        ("ENDPOINT", "http://user:hush@collector", "tracing.endpoint"),
        ("SERVICE", "", "tracing.service"),
    ],
)
def test_invalid_tracing_settings_are_rejected_by_name(name: str, value: str, field: str) -> None:
    with pytest.raises(Invalid, match=field) as refused:
        load({}, {f"MAINSPRING_TRACING_{name}": value})
    assert "hush" not in str(refused.value)


def test_a_tracer_provider_of_the_application_is_not_replaced(tmp_path: Path) -> None:
    """OpenTelemetry warns if its provider is set twice."""
    program = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from mainspring.core.runtime.tracing.spans import Tracing
tracing = Tracing("http://127.0.0.1:9", 1, "shop", "1")
THEIRS
tracing.lend()
print(trace.get_tracer_provider() is tracing._theirs)
"""
    for theirs, lent in (("", "True"), ("trace.set_tracer_provider(TracerProvider())", "False")):
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", program.replace("THEIRS", theirs)],
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.stdout.strip(), done.stderr) == (lent, "")
