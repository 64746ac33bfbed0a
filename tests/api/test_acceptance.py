"""While the store is unavailable, a log accepts jobs; each is created once, with the id that its caller received."""

import asyncio
from collections.abc import Sequence

import pytest

from mainspring.core.model.access.access import Role
from mainspring.core.model.base.errors import Invalid, StoreUnavailable
from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import SECOND
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.ports.storage.access import AuditFilter
from mainspring.core.ports.storage.answers import SubmitResult
from mainspring.core.ports.storage.catalog import RunFilter
from mainspring.features.ingest.intake import JobCreator
from mainspring.features.ingest.service import Ingest
from mainspring.http.schemas.jobs import JobIn
from mainspring.http.submit_buffer import SubmitBuffer
from mainspring.stores.memory import MemoryStore
from mainspring.testing.virtual_time import VirtualClock
from tests.api.conftest import Service
from tests.support.builders import SHARDS, a_run
from tests.support.clock import ManualClock
from tests.support.request_log import MemoryLog
from tests.support.virtual import in_virtual_time


class AwayStore(MemoryStore):
    """A store that can be unavailable, and whose answers can be lost."""

    away = False
    mute = False

    async def submit(self, runs: Sequence[NewRun]) -> list[SubmitResult]:
        if self.away and not self.mute:
            raise StoreUnavailable("unavailable for the test")
        accepted = await super().submit(runs)
        if self.mute:
            raise StoreUnavailable("answer lost for the test")
        return accepted


class Kit:
    def __init__(self, *, auth: bool = False) -> None:
        clock = VirtualClock()
        self.store = AwayStore(clock, SHARDS)
        self.service = Service(auth=auth, store=self.store, clock=clock)
        self.log = MemoryLog(self.service.clock.now())
        self.accept(None)
        self.client = self.service.client()

    def accept(self, bound_to: str | None) -> None:
        self.service.api.submit_buffer = SubmitBuffer(self.log, self.service.clock, bound_to)

    async def ingest(self) -> None:
        """Create the accepted jobs, as a scheduler does when the store is available again."""
        service = self.service
        maker = JobCreator(service.api, None)
        await Ingest(self.log, maker.create, service.clock, service.wakeups.listen([])).tick()

    async def count(self) -> int:
        return await self.store.count_runs(RunFilter(tenant=None), 100)


@in_virtual_time
async def test_a_job_goes_to_the_store_while_it_is_available() -> None:
    kit = Kit()
    answer = await kit.client.post("/v1/jobs", json={"task": "greet"})
    assert answer.status_code == 201
    assert (await kit.count(), kit.log.open) == (1, 0)


@in_virtual_time
async def test_the_log_accepts_a_job_while_the_store_is_unavailable_and_its_id_stays_valid() -> None:
    kit = Kit()
    kit.store.away = True
    body = {"task": "greet", "orderingKey": "k", "idempotencyKey": "once", "payload": {"a": 1}}
    first = await kit.client.post("/v1/jobs", json=body)
    assert first.status_code == 202
    assert "unavailable" in first.json()["warnings"][0]
    assert (await kit.client.post("/v1/jobs", json={"task": "greet"})).status_code == 202
    kit.store.away = False
    await kit.ingest()
    made = await kit.client.get(f"/v1/jobs/{first.json()['jobId']}")
    assert made.json()["payload"] == {"a": 1}
    assert (await kit.count(), kit.log.open, kit.log.dead) == (2, 0, [])


@in_virtual_time
async def test_a_submit_whose_answer_was_lost_creates_one_job() -> None:
    kit = Kit()
    kit.store.mute = True
    assert (await kit.client.post("/v1/jobs", json={"task": "greet"})).status_code == 202
    assert await kit.count() == 1
    kit.store.mute = False
    await kit.ingest()
    assert (await kit.count(), kit.log.dead) == (1, [])


@in_virtual_time
async def test_an_invalid_job_is_rejected_while_the_store_is_unavailable() -> None:
    kit = Kit()
    kit.store.away = True
    past = {"task": "greet", "scheduleTime": "2001-01-01T00:00:00Z"}
    assert (await kit.client.post("/v1/jobs", json=past)).status_code == 400
    assert (await kit.client.post("/v1/jobs", json={"task": ""})).status_code == 400
    assert kit.log.open == 0


@in_virtual_time
async def test_a_submit_fails_if_the_log_is_unavailable_or_serves_another_tenant() -> None:
    kit = Kit()
    kit.store.away = True
    kit.accept("acme")
    assert (await kit.client.post("/v1/jobs", json={"task": "greet"})).status_code == 503
    kit.accept(None)
    kit.log.away = True
    assert (await kit.client.post("/v1/jobs", json={"task": "greet"})).status_code == 503


@in_virtual_time
@pytest.mark.parametrize("run", ["not an id", "0192f0c000007000bfff000000000000"])
async def test_an_accepted_job_with_an_invalid_id_is_rejected(run: str) -> None:
    kit = Kit()
    await kit.log.accept(b'{"task": "greet"}', key="k", tenant="default", run=RunId(run), author="ada")
    await kit.ingest()
    [(_, why)] = kit.log.dead
    assert why.field == "job"


WORKFLOW = {"task": "workflow", "payload": {"name": "w", "nodes": {"a": {"task": "t", "queue": "prod"}}}}
FAN_OUT = {"task": "fan_out", "payload": {"task": "t", "items": [1, 2], "options": {"queue": "prod"}}}
NESTED = {
    "task": "fan_out",
    "payload": {"task": "workflow", "items": [WORKFLOW["payload"]], "options": {"queue": "mail"}},
}


@in_virtual_time
@pytest.mark.parametrize("body", [WORKFLOW, FAN_OUT, NESTED, {"task": "t", "queue": "prod"}])
async def test_a_key_bound_to_queues_stays_bound_while_the_store_is_unavailable(body: dict[str, object]) -> None:
    kit = Kit(auth=True)
    key = await kit.service.key(Role.SUBMITTER, "acme", queues=("mail",))
    everywhere = await kit.service.key(Role.SUBMITTER, "acme")
    async with kit.service.client(key) as bound, kit.service.client(everywhere) as free:
        request = {"queue": "mail"} | body
        there = await bound.post("/v1/jobs", json=request)
        kit.store.away = True
        assert (await free.post("/v1/jobs", json=request)).status_code == 202
        # The API knows by now that the store is unavailable, and does not call it.
        away = await bound.post("/v1/jobs", json=request)
        assert (there.status_code, away.status_code) == (403, 403)
        assert kit.log.open == 1


@in_virtual_time
@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"task": "workflow", "payload": {"nodes": {}}}, "payload.nodes"),
        ({"task": "greet", "dependsOn": ["#0"]}, "dependsOn"),
        ({"task": "fan_in"}, "task"),
    ],
)
async def test_checks_that_need_no_store_reject_a_job_before_the_log_accepts_it(
    body: dict[str, object], field: str
) -> None:
    kit = Kit()
    kit.store.away = True
    await kit.client.post("/v1/jobs", json={"task": "greet"})
    answer = await kit.client.post("/v1/jobs", json=body)
    assert (answer.status_code, kit.log.open) == (400, 1), answer.text
    assert answer.json()["field"] == field


@in_virtual_time
async def test_an_accepted_job_is_audited_with_the_key_that_submitted_it() -> None:
    kit = Kit(auth=True)
    key = await kit.service.key(Role.SUBMITTER, "acme")
    kit.store.away = True
    async with kit.service.client(key) as client:
        assert (await client.post("/v1/jobs", json={"task": "greet"})).status_code == 202
    kit.store.away = False
    await kit.ingest()
    [entry] = await kit.store.audit("acme", AuditFilter(action="jobs.submit"))
    assert entry.author == f"key:{key.split('_')[1]}"


@in_virtual_time
async def test_records_in_the_log_use_the_ordering_key_and_become_one_job_each() -> None:
    kit = Kit()
    kit.store.away = True
    for number in range(3):
        body = {"task": "greet", "orderingKey": "video-1", "payload": number}
        assert (await kit.client.post("/v1/jobs", json=body)).status_code == 202
    by_header = {"task": "greet", "orderingKey": "video-1", "payload": "once"}
    for _ in range(2):
        answer = await kit.client.post("/v1/jobs", json=by_header, headers={"idempotency-key": "once"})
        assert answer.status_code == 202
    await kit.client.post("/v1/jobs", json={"task": "greet", "idempotencyKey": "other"})
    assert kit.log.keys == [*["video-1"] * 5, "other"]
    kit.store.away = False
    await kit.ingest()
    assert (await kit.count(), kit.log.open, kit.log.dead) == (5, 0, [])
    # The same request after the store is available again creates no other job.
    kit.accept(None)
    again = await kit.client.post("/v1/jobs", json=by_header, headers={"idempotency-key": "once"})
    assert again.status_code == 201
    assert await kit.count() == 5


@in_virtual_time
async def test_every_api_returns_the_same_id_for_the_same_idempotency_key() -> None:
    kit = Kit()
    kit.store.away = True
    header = {"idempotency-key": "once"}
    body = {"task": "greet", "payload": 1}
    first = await kit.client.post("/v1/jobs", json=body, headers=header)
    # This API knows by now that the store is unavailable; a new one calls the store first.
    second = await kit.client.post("/v1/jobs", json=body, headers=header)
    kit.accept(None)
    third = await kit.client.post("/v1/jobs", json=body, headers=header)
    other = await kit.client.post("/v1/jobs", json=body | {"payload": 2}, headers=header)
    assert [answer.status_code for answer in (first, second, third, other)] == [202] * 4
    kit.store.away = False
    await kit.ingest()
    for answer in (first, second, third):
        made = await kit.client.get(answer.headers["location"])
        assert (made.json()["jobId"], made.json()["payload"]) == (answer.json()["jobId"], 1)
    [(ask, why)] = kit.log.dead
    assert (b'"payload":2' in ask.body, why.title) == (True, "Conflict")
    assert (await kit.client.get(other.headers["location"])).status_code == 404
    assert await kit.count() == 1
    kit.accept(None)
    again = await kit.client.post("/v1/jobs", json=body, headers=header)
    assert (again.status_code, again.json()["jobId"]) == (201, first.json()["jobId"])


@in_virtual_time
async def test_a_probe_whose_answer_was_lost_created_the_job_with_the_returned_id() -> None:
    kit = Kit()
    kit.store.away = True
    header = {"idempotency-key": "once"}
    await kit.client.post("/v1/jobs", json={"task": "greet"}, headers=header)
    kit.store.mute = True
    assert kit.service.api.submit_buffer is not None
    kit.service.api.submit_buffer._probe_at = 0
    probe = await kit.client.post("/v1/jobs", json={"task": "greet"}, headers=header)
    kit.store.mute = kit.store.away = False
    assert (probe.status_code, await kit.count()) == (202, 1)
    assert (await kit.client.get(probe.headers["location"])).status_code == 200


class FakeSubmits:
    """Submits to a store through an acceptance: counts the calls and fails them on demand."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.log = MemoryLog(self.clock.now())
        self.submit_buffer = SubmitBuffer(self.log, self.clock, None)
        self.answer: Exception | None = None
        self.hangs = False
        self.calls = 0

    async def submit(self) -> bool:
        run = a_run()
        return await self.submit_buffer.submit(run, run, JobIn(task="greet"), self._make, self._check)

    async def _make(self, run: NewRun) -> None:
        self.calls += 1
        if self.hangs:
            await asyncio.Event().wait()
        if self.answer is not None:
            raise self.answer

    async def _check(self) -> None: ...


@in_virtual_time
async def test_a_rejected_probe_shows_that_the_store_is_available_again() -> None:
    submits = FakeSubmits()
    submits.answer = StoreUnavailable("unavailable for the test")
    assert not await submits.submit()
    submits.clock.advance(3 * SECOND)
    submits.answer = Invalid("task", "is refused for the test")
    with pytest.raises(Invalid):
        await submits.submit()
    submits.answer = None
    assert await submits.submit()
    assert submits.calls == 3


@in_virtual_time
async def test_a_cancelled_probe_does_not_block_the_next_one() -> None:
    submits = FakeSubmits()
    submits.answer = StoreUnavailable("unavailable for the test")
    assert not await submits.submit()
    submits.clock.advance(3 * SECOND)
    submits.hangs = True
    probe = asyncio.create_task(submits.submit())
    await asyncio.sleep(0)
    assert not await submits.submit()
    probe.cancel()
    await asyncio.gather(probe, return_exceptions=True)
    submits.hangs, submits.answer = False, None
    assert await submits.submit()
    assert submits.calls == 3
