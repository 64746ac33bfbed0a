"""Requests from a log become jobs, each once, or dead letters with a reason. On the memory store."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence

import msgspec
import pytest

from mainspring.config.api import open_local_api
from mainspring.config.runtime import Runtime
from mainspring.config.settings import Settings
from mainspring.core.model.access.access import Quotas, Tenant
from mainspring.core.model.base.errors import StoreUnavailable
from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import HOUR, MINUTE, SECOND, Micros, isoformat
from mainspring.core.model.runs.policy import RunPolicy
from mainspring.core.model.runs.view import RunView
from mainspring.core.model.tasks.task_entry import TaskEntry
from mainspring.core.ports.ingest import JobRequest, Rejection
from mainspring.core.ports.storage.access import Author
from mainspring.core.ports.storage.catalog import JobFilter, RunFilter
from mainspring.core.runtime.local_wakeups import LocalWakeups
from mainspring.core.store import KEYS_KEPT
from mainspring.features.ingest.intake import JobCreator
from mainspring.features.ingest.service import MAX_WAIT, Ingest
from mainspring.stores.memory import MemoryStore
from tests.support.clock import ManualClock
from tests.support.request_log import MemoryLog

ADA = Author("ada")


class Kit:
    """The ingest service with its log, one step at a time."""

    def __init__(self, runtime: Runtime, maker: JobCreator) -> None:
        assert isinstance(runtime.store, MemoryStore)
        self.store = runtime.store
        self.log = MemoryLog(runtime.clock.now())
        self.away = False
        #: Payloads of the requests that became jobs, in order.
        self.made: list[object] = []
        self.maker = maker
        self._runtime = runtime
        self._clock = ManualClock()
        self.service = self.make_service()

    def make_service(self) -> Ingest:
        return Ingest(self.log, self._make, self._clock, self._runtime.wakeups.listen([]))

    def send(self, key: str = "", tenant: str | None = None, **fields: object) -> None:
        self.log.send(msgspec.json.encode({"task": "greet"} | fields), key, tenant)

    def new_id(self) -> RunId:
        return self._runtime.jobs.new_run_id("", tenant="default")

    async def step(self) -> None:
        await self.service.tick()

    async def finish(self) -> None:
        """Let time pass until every request is made or refused."""
        for _ in range(10):
            self._clock.advance(SECOND)
            await self.step()
            if not self.log.open:
                return
        raise AssertionError(f"{self.log.open} requests are open")

    async def runs(self) -> list[RunView]:
        return list((await self.store.list_runs(RunFilter(tenant=None), None, 1_000)).items)

    async def set_quota(self, tenant: str, quotas: Quotas) -> None:
        await self.store.put_tenant(Tenant(name=tenant, quotas=quotas), ADA)
        self.maker._api.admission._quotas.forget()

    async def _make(self, asks: Sequence[JobRequest], held: Mapping[str, Rejection]) -> list[Rejection | None]:
        if self.away:
            raise StoreUnavailable("it is away for the test")
        answers = await self.maker.create(asks, held)
        bodies = [msgspec.json.decode(ask.body) for ask, why in zip(asks, answers, strict=True) if why is None]
        self.made += [body.get("payload") for body in bodies]
        return answers


@pytest.fixture
async def make() -> AsyncIterator[Callable[[str | None], Kit]]:
    runtime = Runtime(Settings(store="memory:"))
    await runtime.open()
    async with open_local_api(runtime) as api:
        yield lambda tenant: Kit(runtime, JobCreator(api, tenant))
    await runtime.close()


@pytest.fixture
def kit(make: Callable[[str | None], Kit]) -> Kit:
    return make("default")


async def test_each_request_becomes_a_job(kit: Kit) -> None:
    kit.send(queue="mail", priority=2, payload={"user": 42})
    kit.send(task="wave")
    await kit.step()
    first, second = sorted(await kit.runs(), key=lambda run: run.task)
    assert (first.queue, first.priority, first.tenant, second.task) == ("mail", 2, "default", "wave")
    assert (kit.log.open, kit.service.created, kit.service.refused) == (0, 2, 0)


async def test_a_request_starts_from_the_options_of_its_task(kit: Kit) -> None:
    arguments = {"type": "object", "properties": {"user": {"type": "integer"}}}
    declared = TaskEntry(name="greet", queue="mail", priority=2, policy=RunPolicy(timeout=MINUTE), arguments=arguments)
    await kit.store.register_tasks([declared], "w1")
    kit.send(task="greet", payload={"user": 1})
    kit.send(task="greet", priority=7)
    kit.send(task="greet", payload={"user": "1"})
    await kit.step()
    runs = sorted(await kit.runs(), key=lambda run: run.priority)
    assert [(run.queue, run.priority, run.policy.timeout) for run in runs] == [("mail", 2, MINUTE), ("mail", 7, MINUTE)]
    [(_, refusal)] = kit.log.dead
    assert refusal.detail == "payload.user: expected 'int', got 'str'"


async def test_a_request_with_a_cron_expression_becomes_a_recurring_job(kit: Kit) -> None:
    for _ in range(2):
        kit.send(key="nightly", name="nightly", cronExpression="0 3 * * *")
    await kit.step()
    [job] = (await kit.store.list_jobs(JobFilter(tenant=None), None, 10)).items
    assert job.spec.name == "nightly"
    assert kit.log.dead == []


async def test_a_repeated_request_makes_no_second_job(kit: Kit) -> None:
    kit.send(key="order-1", payload=1)
    kit.send(key="order-1", payload=1)
    kit.send(payload=1)
    for _ in range(3):
        await kit.step()
        kit.log.rewind(forget=True)
    assert len(await kit.runs()) == 2
    assert kit.log.dead == []


@pytest.mark.parametrize(
    ("body", "field", "words"),
    [
        (b"not json", "body", "JSON"),
        (b"", "body", "empty"),
        (b'{"task": "greet", "priority": 11}', "priority", "10"),
        (b'{"task": "greet", "prioritty": 1}', "prioritty", ""),
        (b'{"task": "greet", "task": "pay"}', "task", "is given twice"),
        (b'{"task": "greet", "retry": {"maxRetries": 1, "maxRetries": 2}}', "retry.maxRetries", "is given twice"),
        (b'{"payload": 1}', "task", "missing"),
        (b'{"task": "greet", "tenant": "acme"}', "tenant", "acme"),
        (b'{"task": "greet", "scheduleTime": "2001-01-01T00:00:00Z"}', "scheduleTime", "past"),
        (b'{"task": "greet", "dependsOn": ["#0"]}', "dependsOn", "#0"),
        (b'{"name": "x", "task": "greet", "cronExpression": "99 * * * *"}', "cronExpression", "99"),
        (b'{"task": "greet", "payload": "\xff"}', "body", "UTF-8"),
    ],
)
async def test_an_invalid_request_is_moved_to_the_dead_letters_with_the_reason(
    kit: Kit, body: bytes, field: str, words: str
) -> None:
    kit.send()
    kit.log.send(body)
    kit.send()
    await kit.step()
    [(ask, why)] = kit.log.dead
    assert ask.body == body
    assert why.field == field
    assert words in why.detail
    assert (len(await kit.runs()), kit.log.open) == (2, 0)


async def test_a_request_with_an_unknown_parent_is_refused_alone(kit: Kit) -> None:
    kit.send(dependsOn=["0192f0c0000070008000000000000000"])
    kit.send()
    await kit.step()
    [(_, why)] = kit.log.dead
    assert why.field == "dependsOn"
    assert len(await kit.runs()) == 1


async def test_a_key_that_was_used_for_another_request_is_a_conflict(kit: Kit) -> None:
    kit.send(key="order-1", payload=1)
    kit.send(key="order-1", payload=2)
    await kit.step()
    [(ask, why)] = kit.log.dead
    assert b"2" in ask.body
    assert why.title == "Conflict"


async def test_an_idempotency_key_in_the_body_overrides_the_record_key(kit: Kit) -> None:
    kit.send(key="video-1", idempotencyKey="a", payload=1)
    kit.send(key="video-1", idempotencyKey="b", payload=2)
    kit.send(key="video-2", idempotencyKey="b", payload=2)
    await kit.step()
    assert len(await kit.runs()) == 2
    assert kit.log.dead == []


async def test_a_schedule_time_that_passed_in_transit_is_accepted(kit: Kit) -> None:
    sent_at = (await kit.store.now()) - HOUR
    kit.log = MemoryLog(sent_at)
    kit.service = kit.make_service()
    kit.send(scheduleTime=isoformat(sent_at + HOUR // 2))
    await kit.step()
    assert len(await kit.runs()) == 1


async def test_an_unavailable_store_neither_loses_nor_doubles_requests(kit: Kit) -> None:
    for number in range(5):
        kit.send(payload=number)
    kit.away = True
    for _ in range(3):
        with pytest.raises(StoreUnavailable):
            await kit.step()
    kit.away = False
    await kit.step()
    assert sorted(kit.made, key=str) == [0, 1, 2, 3, 4]
    assert len(await kit.runs()) == 5
    assert kit.log.open == 0


async def test_an_unavailable_log_is_read_again_later(kit: Kit) -> None:
    kit.send()
    kit.log.away = True
    await kit.step()
    assert kit.service.health()["state"] == "away"
    kit.log.away = False
    await kit.step()
    assert len(await kit.runs()) == 1
    assert kit.service.health()["state"] == "ok"


async def test_a_crash_after_the_commit_makes_no_second_job(kit: Kit) -> None:
    kit.send()
    kit.log.away = False
    [ask] = await kit.log.take(10, 0)
    assert await kit._make([ask], {}) == [None]
    kit.log.rewind()
    kit.service = kit.make_service()
    await kit.step()
    assert len(await kit.runs()) == 1
    assert kit.log.open == 0


async def test_a_tenant_at_its_quota_waits_and_others_do_not(make: Callable[[str | None], Kit]) -> None:
    kit = make(None)
    await kit.set_quota("small", Quotas(queued=0))
    kit.send(tenant="small")
    kit.send(tenant="large")
    await kit.step()
    assert [run.tenant for run in await kit.runs()] == ["large"]
    assert (kit.log.dead, kit.log.open) == ([], 1)
    await kit.set_quota("small", Quotas())
    await kit.finish()
    assert sorted(run.tenant for run in await kit.runs()) == ["large", "small"]


async def test_a_request_can_depend_on_an_earlier_one_of_the_same_batch(kit: Kit) -> None:
    parent = kit.new_id()
    kit.log.send(b'{"task": "greet"}', run=parent)
    kit.send(dependsOn=[parent])
    kit.send()
    await kit.step()
    assert kit.log.dead == []
    assert len(await kit.runs()) == 3


async def test_requests_that_wait_for_a_quota_keep_their_order(make: Callable[[str | None], Kit]) -> None:
    kit = make(None)
    await kit.set_quota("small", Quotas(queued=2))
    for number in range(4):
        kit.send(tenant="small", orderingKey="k", payload=number)
    await kit.step()
    assert kit.made == [0, 1]
    await kit.set_quota("small", Quotas())
    kit.send(tenant="small", orderingKey="k", payload=4)
    kit.send(tenant="large", payload="another's")
    kit.send(tenant="small", name="nightly", cronExpression="0 3 * * *", payload="recurring")
    await kit.step()
    assert kit.made == [0, 1, "another's", "recurring"]
    await kit.finish()
    assert kit.made == [0, 1, "another's", "recurring", 2, 3, 4]
    assert kit.service.health()["waiting"] == 0


async def test_a_recurring_job_beyond_its_quota_does_not_delay_runs(make: Callable[[str | None], Kit]) -> None:
    kit = make(None)
    await kit.set_quota("small", Quotas(jobs=0))
    kit.send(tenant="small", name="nightly", cronExpression="0 3 * * *")
    kit.send(tenant="small", payload=1)
    await kit.step()
    assert (kit.made, kit.log.open) == ([1], 1)


async def test_a_request_that_depends_on_a_waiting_one_waits_too(make: Callable[[str | None], Kit]) -> None:
    kit = make(None)
    await kit.set_quota("small", Quotas(queued=0))
    parent = kit.new_id()
    kit.log.send(b'{"task": "greet", "payload": "parent"}', tenant="small", run=parent)
    kit.send(tenant="small", dependsOn=[parent], payload="child")
    await kit.step()
    await kit.set_quota("small", Quotas())
    await kit.finish()
    assert (kit.made, kit.log.dead) == (["parent", "child"], [])


async def test_waiting_requests_keep_their_order_while_new_ones_arrive() -> None:
    clock, made = ManualClock(), list[int]()
    log = MemoryLog(clock.now())
    full = True

    async def make(asks: Sequence[JobRequest], held: Mapping[str, Rejection]) -> list[Rejection | None]:
        answers: list[Rejection | None] = []
        for ask in asks:
            lane = "odd" if int(ask.body) % 2 else "even"
            waits = full or lane in held
            answers.append(Rejection(title="", detail="", later=True, lane=lane) if waits else None)
            if not waits:
                made.append(int(ask.body))
        return answers

    service = Ingest(log, make, clock, LocalWakeups().listen([]))
    for number in range(2_500):
        log.send(str(number).encode())
    for number in range(2_500, 2_530):
        log.send(str(number).encode())
        await service.tick()
        clock.advance(SECOND // 3)
    assert made == []
    full = False
    for number in range(2_530, 2_560):
        log.send(str(number).encode())
        await service.tick()
        clock.advance(SECOND // 3)
    assert log.open == 0
    for rest in (0, 1):
        lane = [number for number in made if number % 2 == rest]
        assert lane == sorted(lane)
    assert len(made) == 2_560


class Quota:
    """An ingest service whose requests name their lane. Lanes in ``full`` are at their quota."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.log = MemoryLog(self.clock.now())
        self.full = {"a", "b"}
        self.made: list[bytes] = []
        self.service = Ingest(self.log, self._make, self.clock, LocalWakeups().listen([]))

    def send(self, lane: str, *numbers: int) -> None:
        for number in numbers:
            self.log.send(f"{lane}{number}".encode())

    async def tick(self, after: Micros = SECOND) -> None:
        self.clock.advance(after)
        # An empty log would make the service wait in real time.
        self.log.send(b"z")
        await self.service.tick()
        await self.service.tick()

    @property
    def dead(self) -> list[tuple[str, str]]:
        return [(ask.body.decode(), why.detail) for ask, why in self.log.dead]

    async def _make(self, asks: Sequence[JobRequest], held: Mapping[str, Rejection]) -> list[Rejection | None]:
        answers: list[Rejection | None] = []
        for ask in asks:
            lane = chr(ask.body[0])
            waits = lane in self.full or lane in held
            answers.append(
                Rejection(title="Quota", detail=f"{lane} may have 0", later=True, lane=lane) if waits else None
            )
            if not waits and lane != "z":
                self.made.append(ask.body)
        return answers


async def test_a_request_that_waited_too_long_is_refused_and_later_ones_are_not() -> None:
    quota = Quota()
    quota.send("a", 1)
    await quota.tick()
    quota.send("a", 2, 3)
    await quota.tick(MAX_WAIT // 2)
    assert (quota.dead, quota.service.waiting) == ([], 3)
    await quota.tick(MAX_WAIT // 2)
    await quota.tick()
    assert quota.dead == [("a1", "a may have 0: waited for too long")]
    quota.full.clear()
    quota.send("a", 4)
    await quota.tick()
    assert (quota.made, quota.service.waiting, quota.log.open) == ([b"a2", b"a3", b"a4"], 0, 0)
    assert MAX_WAIT * 10 < KEYS_KEPT


async def test_a_full_waiting_list_refuses_the_newest_requests_of_the_tenant_with_the_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mainspring.features.ingest.service._MAX_WAITING", 4)
    quota = Quota()
    quota.send("a", 1, 2, 3, 4, 5)
    await quota.tick()
    assert quota.dead == [("a5", "a may have 0: too many requests are waiting")]
    quota.send("b", 1, 2, 3)
    quota.send("c", 1)
    await quota.tick()
    assert [body for body, _ in quota.dead[1:]] == ["a3", "a4", "b3"]
    assert (quota.made, quota.service.waiting) == ([b"c1"], 4)
    quota.full.clear()
    await quota.tick()
    assert (quota.made, quota.log.open) == ([b"c1", b"a1", b"a2", b"b1", b"b2"], 0)


async def test_a_request_refused_for_its_quota_names_the_quota(make: Callable[[str | None], Kit]) -> None:
    kit = make(None)
    await kit.set_quota("small", Quotas(queued=0, jobs=0))
    kit.send(tenant="small")
    kit.send(tenant="small", name="nightly", cronExpression="0 3 * * *")
    kit.send(tenant="small")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mainspring.features.ingest.service.MAX_WAIT", 0)
        await kit.step()
    assert [(why.title, why.detail.split(":")[0]) for _, why in kit.log.dead] == [
        ("Quota reached", "the tenant may have 0 queued runs"),
        ("Quota reached", "the tenant may have 0 recurring jobs"),
        ("Quota reached", "the tenant may have 0 queued runs"),
    ]
    assert kit.log.open == 0


async def test_a_request_whose_job_exists_needs_no_quota(make: Callable[[str | None], Kit]) -> None:
    kit = make(None)
    kit.send(tenant="small", payload=1)
    kit.send(tenant="small", name="nightly", cronExpression="0 3 * * *")
    kit.send(tenant="small", payload=2, dependsOn=[])
    await kit.step()
    await kit.set_quota("small", Quotas(queued=0, jobs=0))
    kit.log.rewind(forget=True)
    kit.service = kit.make_service()
    await kit.step()
    assert (kit.log.open, kit.service.waiting, len(await kit.runs())) == (0, 0, 2)


async def test_a_request_may_name_its_tenant_if_the_log_serves_all_tenants(make: Callable[[str | None], Kit]) -> None:
    kit = make(None)
    kit.send(tenant="acme")
    kit.send(tenant=None)
    kit.log.send(b'{"task": "greet", "tenant": "other"}', tenant="acme")
    kit.log.send(b'{"task": "greet", "tenant": "other"}')
    kit.log.send(b'{"task": "greet"}', tenant="*")
    await kit.step()
    assert sorted(run.tenant for run in await kit.runs()) == ["acme", "default", "other"]
    assert [why.field for _, why in kit.log.dead] == ["tenant", "tenant"]
