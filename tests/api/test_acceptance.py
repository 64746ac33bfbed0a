"""While the store is away jobs are taken in by a log, and each is made once, with the id that its caller was told."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from mainspring.adapters.clock.system import SystemClock
from mainspring.adapters.store.memory import MemoryStore
from mainspring.api.acceptance import Acceptance
from mainspring.api.ingest import JobMaker
from mainspring.api.schemas.jobs import JobIn
from mainspring.control.ingest import Ingest
from mainspring.domain.access import Role
from mainspring.domain.errors import Invalid, StoreUnavailable
from mainspring.domain.ids import RunId
from mainspring.domain.instant import SECOND
from mainspring.domain.run import NewRun
from mainspring.ports.access import AuditFilter
from mainspring.ports.catalog import RunFilter
from mainspring.ports.store import Accepted
from tests.api.conftest import Service
from tests.support.builders import a_run
from tests.support.clock import ManualClock
from tests.support.request_log import MemoryLog


class AwayStore(MemoryStore):
    """One that can be away, and whose answers can be lost."""

    away = False
    mute = False

    async def submit(self, runs: Sequence[NewRun]) -> list[Accepted]:
        if self.away and not self.mute:
            raise StoreUnavailable("it is away for the test")
        accepted = await super().submit(runs)
        if self.mute:
            raise StoreUnavailable("its answer is lost for the test")
        return accepted


class Kit:
    def __init__(self, *, auth: bool = False) -> None:
        self.store = AwayStore(SystemClock(), 4)
        self.service = Service(auth=auth, store=self.store)
        self.log = MemoryLog(self.service.clock.now())
        self.accept(None)
        self.client = self.service.client()

    def accept(self, bound_to: str | None) -> None:
        self.service.api.acceptance = Acceptance(self.log, self.service.clock, bound_to)

    async def ingest(self) -> None:
        """What a scheduler does when the store is back."""
        service = self.service
        maker = JobMaker(service.api, None)
        await Ingest(self.log, maker.make, service.clock, service.wakeups.listen([])).tick()

    async def count(self) -> int:
        return await self.store.count_runs(RunFilter(tenant=None), 100)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    # Whoever waits for a store that is away waits for less long here.
    monkeypatch.setattr("mainspring.control.jobs._PATIENCE", 100_000)


@pytest.fixture
async def kit(impatient: None) -> AsyncIterator[Kit]:
    kit = Kit()
    async with kit.client:
        yield kit


async def test_while_the_store_is_there_it_is_used(kit: Kit) -> None:
    answer = await kit.client.post("/v1/jobs", json={"task": "greet"})
    assert answer.status_code == 201
    assert (await kit.count(), kit.log.open) == (1, 0)


async def test_while_it_is_away_the_log_has_it_and_the_id_is_good(kit: Kit) -> None:
    kit.store.away = True
    body = {"task": "greet", "orderingKey": "k", "idempotencyKey": "once", "payload": {"a": 1}}
    first = await kit.client.post("/v1/jobs", json=body)
    assert first.status_code == 202
    assert "away" in first.json()["warnings"][0]
    assert (await kit.client.post("/v1/jobs", json={"task": "greet"})).status_code == 202
    kit.store.away = False
    await kit.ingest()
    made = await kit.client.get(f"/v1/jobs/{first.json()['jobId']}")
    assert made.json()["payload"] == {"a": 1}
    assert (await kit.count(), kit.log.open, kit.log.dead) == (2, 0, [])


async def test_a_submit_whose_answer_was_lost_is_not_made_twice(kit: Kit) -> None:
    kit.store.mute = True
    assert (await kit.client.post("/v1/jobs", json={"task": "greet"})).status_code == 202
    assert await kit.count() == 1
    kit.store.mute = False
    await kit.ingest()
    assert (await kit.count(), kit.log.dead) == (1, [])


async def test_what_is_wrong_is_said_at_once(kit: Kit) -> None:
    kit.store.away = True
    past = {"task": "greet", "scheduleTime": "2001-01-01T00:00:00Z"}
    assert (await kit.client.post("/v1/jobs", json=past)).status_code == 400
    assert (await kit.client.post("/v1/jobs", json={"task": ""})).status_code == 400
    assert kit.log.open == 0


async def test_a_log_that_is_away_as_well_or_for_others_is_no_way_in(kit: Kit) -> None:
    kit.store.away = True
    kit.accept("acme")
    assert (await kit.client.post("/v1/jobs", json={"task": "greet"})).status_code == 503
    kit.accept(None)
    kit.log.away = True
    assert (await kit.client.post("/v1/jobs", json={"task": "greet"})).status_code == 503


@pytest.mark.parametrize("run", ["not an id", "0192f0c000007000bfff000000000000"])
async def test_an_id_that_cannot_be_is_refused(kit: Kit, run: str) -> None:
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


@pytest.mark.parametrize("body", [WORKFLOW, FAN_OUT, NESTED, {"task": "t", "queue": "prod"}])
async def test_a_key_reaches_no_further_while_the_store_is_away(impatient: None, body: dict[str, object]) -> None:
    kit = Kit(auth=True)
    key = await kit.service.key(Role.SUBMITTER, "acme", queues=("mail",))
    everywhere = await kit.service.key(Role.SUBMITTER, "acme")
    async with kit.service.client(key) as bound, kit.service.client(everywhere) as free:
        asked = {"queue": "mail"} | body
        there = await bound.post("/v1/jobs", json=asked)
        kit.store.away = True
        assert (await free.post("/v1/jobs", json=asked)).status_code == 202
        # That it is away is known by now, and it is not asked.
        away = await bound.post("/v1/jobs", json=asked)
        assert (there.status_code, away.status_code) == (403, 403)
        assert kit.log.open == 1


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"task": "workflow", "payload": {"nodes": {}}}, "payload.nodes"),
        ({"task": "greet", "dependsOn": ["#0"]}, "dependsOn"),
        ({"task": "fan_in"}, "task"),
    ],
)
async def test_what_needs_no_store_to_be_wrong_is_said_at_once(kit: Kit, body: dict[str, object], field: str) -> None:
    kit.store.away = True
    await kit.client.post("/v1/jobs", json={"task": "greet"})
    answer = await kit.client.post("/v1/jobs", json=body)
    assert (answer.status_code, kit.log.open) == (400, 1), answer.text
    assert answer.json()["field"] == field


async def test_who_has_submitted_it_is_its_author(impatient: None) -> None:
    kit = Kit(auth=True)
    key = await kit.service.key(Role.SUBMITTER, "acme")
    kit.store.away = True
    async with kit.service.client(key) as client:
        assert (await client.post("/v1/jobs", json={"task": "greet"})).status_code == 202
    kit.store.away = False
    await kit.ingest()
    [entry] = await kit.store.audit("acme", AuditFilter(action="jobs.submit"))
    assert entry.author == f"key:{key.split('_')[1]}"


async def test_records_of_one_ordering_key_have_it_as_their_key_and_each_is_made_once(kit: Kit) -> None:
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
    # The caller who comes once more when the store is back makes no other.
    kit.accept(None)
    again = await kit.client.post("/v1/jobs", json=by_header, headers={"idempotency-key": "once"})
    assert again.status_code == 201
    assert await kit.count() == 5


async def test_who_asks_again_with_the_same_key_is_told_the_same_id_by_whichever_api(kit: Kit) -> None:
    kit.store.away = True
    header = {"idempotency-key": "once"}
    body = {"task": "greet", "payload": 1}
    first = await kit.client.post("/v1/jobs", json=body, headers=header)
    # That it is away is known by now; another API asks the store first.
    second = await kit.client.post("/v1/jobs", json=body, headers=header)
    kit.accept(None)
    third = await kit.client.post("/v1/jobs", json=body, headers=header)
    other = await kit.client.post("/v1/jobs", json=body | {"payload": 2}, headers=header)
    assert [answer.status_code for answer in (first, second, third, other)] == [202] * 4
    kit.store.away = False
    await kit.ingest()
    for told in (first, second, third):
        made = await kit.client.get(told.headers["location"])
        assert (made.json()["jobId"], made.json()["payload"]) == (told.json()["jobId"], 1)
    [(ask, why)] = kit.log.dead
    assert (b'"payload":2' in ask.body, why.title) == (True, "Conflict")
    assert (await kit.client.get(other.headers["location"])).status_code == 404
    assert await kit.count() == 1
    kit.accept(None)
    again = await kit.client.post("/v1/jobs", json=body, headers=header)
    assert (again.status_code, again.json()["jobId"]) == (201, first.json()["jobId"])


async def test_a_probe_whose_answer_was_lost_has_made_what_was_told(kit: Kit) -> None:
    kit.store.away = True
    header = {"idempotency-key": "once"}
    await kit.client.post("/v1/jobs", json={"task": "greet"}, headers=header)
    kit.store.mute = True
    assert kit.service.api.acceptance is not None
    kit.service.api.acceptance._ask_at = 0
    probe = await kit.client.post("/v1/jobs", json={"task": "greet"}, headers=header)
    kit.store.mute = kit.store.away = False
    assert (probe.status_code, await kit.count()) == (202, 1)
    assert (await kit.client.get(probe.headers["location"])).status_code == 200


class Asked:
    """A store as an acceptance sees it: how often it was asked, and what it answers."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.log = MemoryLog(self.clock.now())
        self.acceptance = Acceptance(self.log, self.clock, None)
        self.answer: Exception | None = None
        self.hangs = False
        self.times = 0

    async def submit(self) -> bool:
        run = a_run()
        return await self.acceptance.stored(run, run, JobIn(task="greet"), self._make, self._check)

    async def _make(self, run: NewRun) -> None:
        self.times += 1
        if self.hangs:
            await asyncio.Event().wait()
        if self.answer is not None:
            raise self.answer

    async def _check(self) -> None: ...


async def test_a_probe_that_is_refused_says_that_the_store_is_back() -> None:
    asked = Asked()
    asked.answer = StoreUnavailable("it is away for the test")
    assert not await asked.submit()
    asked.clock.advance(3 * SECOND)
    asked.answer = Invalid("task", "is refused for the test")
    with pytest.raises(Invalid):
        await asked.submit()
    asked.answer = None
    assert await asked.submit()
    assert asked.times == 3


async def test_a_probe_whose_caller_leaves_does_not_keep_others_from_asking() -> None:
    asked = Asked()
    asked.answer = StoreUnavailable("it is away for the test")
    assert not await asked.submit()
    asked.clock.advance(3 * SECOND)
    asked.hangs = True
    probe = asyncio.create_task(asked.submit())
    await asyncio.sleep(0)
    assert not await asked.submit()
    probe.cancel()
    await asyncio.gather(probe, return_exceptions=True)
    asked.hangs, asked.answer = False, None
    assert await asked.submit()
    assert asked.times == 3
