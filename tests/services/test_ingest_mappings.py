"""Records of other programs become jobs, changes and cancels, each once. On the memory store."""

from collections.abc import AsyncIterator, Callable, Mapping

import msgspec
import pytest

from mainspring.config.api import open_local_api
from mainspring.config.runtime import Runtime
from mainspring.config.settings import Settings
from mainspring.core.model.access.access import Quotas, Tenant
from mainspring.core.model.base.instant import SECOND
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.runs.view import RunView
from mainspring.core.model.schedules.job import Job, JobState
from mainspring.core.model.schedules.schedule import CronSchedule
from mainspring.core.ports.storage.access import Author
from mainspring.core.ports.storage.catalog import JobFilter, RunFilter
from mainspring.features.ingest.intake import JobCreator
from mainspring.features.ingest.mappings import read_mappings
from mainspring.features.ingest.service import Ingest
from mainspring.stores.memory import MemoryStore
from tests.support.clock import ManualClock
from tests.support.request_log import MemoryLog

ADA = Author("ada")
#: As in the lecture: its Job Service publishes the rows of its table, and cancels by id.
TOPICS = {
    "encoding-jobs": {
        "task": "encode",
        "queue": "encoding",
        "priority": "{value.priority}",
        "ordering_key": "{value.videoId}",
        "idempotency_key": "{value.jobId}",
        "payload": {"video": "{value.videoId}", "resolution": "{value.resolution}"},
    },
    "job_events": {
        "action": "{value.action?}",
        "job": "{value.job_id}",
        "task": "run_script",
        "name": "{value.name?}",
        "schedule_type": "{value.schedule_type?}",
        "schedule_time": "{value.schedule_time?}",
        "cron_expression": "{value.cron_expression?}",
        "max_retries": "{value.max_retries?}",
        "payload": "{value.payload?}",
    },
    "cancel_requests": {"action": "cancel", "job": "{value.job_id}"},
}
CLEANUP = {
    "job_id": "job_123",
    "name": "Daily Cleanup",
    "schedule_type": "cron",
    "schedule_time": None,
    "cron_expression": "0 0 2 * * *",
    "status": "scheduled",
    "payload": {"script": "cleanup.py", "params": {"days": 30}},
    "max_retries": 3,
    "created_at": "2026-01-21T12:00:00Z",
}


class Kit:
    """The ingest service with its log, one step at a time."""

    def __init__(self, runtime: Runtime, maker: JobCreator) -> None:
        assert isinstance(runtime.store, MemoryStore)
        self.store = runtime.store
        self.maker = maker
        self.log = MemoryLog(runtime.clock.now())
        self._runtime = runtime
        self._clock = ManualClock()
        self.service = self._make_service()

    def _make_service(self) -> Ingest:
        return Ingest(self.log, self.maker.create, self._clock, self._runtime.wakeups.listen([]))

    def send(self, topic: str, value: object, key: str = "", tenant: str | None = None) -> None:
        self.log.send(msgspec.json.encode(value), key, tenant, topic=topic)

    async def step(self) -> None:
        self._clock.advance(SECOND)
        await self.service.tick()

    async def read_again(self) -> None:
        """Read everything from the first record on, as after a rewind of the group."""
        self.log.rewind(forget=True)
        self.service = self._make_service()
        await self.step()

    async def runs(self, tenant: str | None = None) -> list[RunView]:
        found = (await self.store.list_runs(RunFilter(tenant=tenant), None, 1_000)).items
        views = await self.store.seen_by(None).runs([run.id for run in reversed(found)], payloads=True)
        return [view for view in views if view is not None]

    async def jobs(self) -> list[Job]:
        found = (await self.store.list_jobs(JobFilter(tenant=None), None, 100)).items
        return [job for job in await self.store.seen_by(None).jobs([job.id for job in found]) if job is not None]

    @property
    def refused(self) -> list[tuple[str, str]]:
        return [(why.field, why.detail) for _, why in self.log.dead]

    async def set_quota(self, tenant: str, quotas: Quotas) -> None:
        await self.store.put_tenant(Tenant(name=tenant, quotas=quotas), ADA)
        self.maker._api.admission._quotas.forget()


@pytest.fixture
async def make() -> AsyncIterator[Callable[[str | None, Mapping[str, object]], Kit]]:
    runtime = Runtime(Settings(store="memory:"))
    await runtime.open()
    async with open_local_api(runtime) as api:
        yield lambda tenant, topics: Kit(runtime, JobCreator(api, tenant, read_mappings(topics)))
    await runtime.close()


@pytest.fixture
def kit(make: Callable[[str | None, Mapping[str, object]], Kit]) -> Kit:
    return make("default", TOPICS)


def encoding(job: str, video: str, resolution: str = "4K", priority: int = 1) -> dict[str, object]:
    """Java's EncodingJob of the seed."""
    return {
        "jobId": job,
        "videoId": video,
        "resolution": resolution,
        "inputUrl": f"s3://raw/{video}.mov",
        "status": "PENDING",
        "createdAt": "2026-11-18T21:00:00Z",
        "priority": priority,
    }


async def test_records_of_one_key_become_jobs_in_order(kit: Kit) -> None:
    sizes = ["4K", "1080p", "720p", "480p"]
    for number, size in enumerate(sizes):
        for video in ("v1", "v2"):
            kit.send("encoding-jobs", encoding(f"{video}-{size}", video, size, number + 1), key=video)
    await kit.step()
    assert kit.refused == []
    runs = await kit.runs()
    assert {(run.task, run.queue, run.tenant) for run in runs} == {("encode", "encoding", "default")}
    for video in ("v1", "v2"):
        mine = [run for run in runs if run.policy.ordering_key == video]
        payloads = [msgspec.json.decode(run.payload or b"") for run in mine]
        assert payloads == [{"video": video, "resolution": size} for size in sizes]
        assert [run.priority for run in mine] == [1, 2, 3, 4]


async def test_a_record_that_is_read_or_sent_again_makes_no_second_job(kit: Kit) -> None:
    for _ in range(2):
        kit.send("encoding-jobs", encoding("e-1", "v1"), key="v1")
    await kit.step()
    await kit.read_again()
    assert (len(await kit.runs()), kit.refused) == (1, [])


async def test_without_an_idempotency_key_each_record_is_one_job_whatever_its_key(
    make: Callable[[str | None, Mapping[str, object]], Kit],
) -> None:
    kit = make("default", {"jobs": {"task": "t"}})
    for number in range(2):
        kit.send("jobs", number, key="video-1")
    await kit.step()
    await kit.read_again()
    assert (len(await kit.runs()), kit.refused) == (2, [])


async def test_a_bad_record_goes_to_the_dead_letters_and_the_others_do_not(kit: Kit) -> None:
    kit.send("encoding-jobs", encoding("e-1", "v1"))
    kit.send("encoding-jobs", {"jobId": "e-2"})
    kit.log.send(b"\x00avro", topic="encoding-jobs")
    kit.send("encoding-jobs", encoding("e-3", "v1", priority=11))
    kit.send("encoding-jobs", encoding("e-4", "v1"))
    await kit.step()
    assert [field for field, _ in kit.refused] == [
        "ingest.topics.encoding-jobs.priority",
        "ingest.topics.encoding-jobs.priority",
        "ingest.topics.encoding-jobs.priority",
    ]
    assert "the record has no value.priority" in kit.refused[0][1]
    assert "not JSON" in kit.refused[1][1]
    assert (len(await kit.runs()), kit.log.open) == (2, 0)


async def test_job_events_make_change_and_end_a_recurring_job(kit: Kit) -> None:
    kit.send("job_events", CLEANUP, key="job_123")
    kit.send("job_events", {"action": "update", "job_id": "job_123", "cron_expression": "0 0 3 * * *"}, key="job_123")
    await kit.step()
    assert kit.refused == []
    [job] = await kit.jobs()
    assert (job.spec.name, job.spec.task, job.version, job.state) == (
        "Daily Cleanup",
        "run_script",
        2,
        JobState.SCHEDULED,
    )
    assert isinstance(job.spec.schedule, CronSchedule)
    assert job.spec.schedule.expression == "0 0 3 * * *"
    assert msgspec.json.decode(job.payload) == CLEANUP["payload"]
    kit.send("job_events", {"action": "delete", "job_id": "job_123"}, key="job_123")
    await kit.step()
    assert [job.state for job in await kit.jobs()] == [JobState.CANCELLED]
    await kit.read_again()
    assert [job.state for job in await kit.jobs()] == [JobState.CANCELLED]


async def test_job_events_make_and_change_a_one_off_job(kit: Kit) -> None:
    later = {"job_id": "job_7", "schedule_type": "future", "schedule_time": "2099-01-22T02:00:00Z"}
    kit.send("job_events", later | {"payload": {"script": "a.sh"}})
    kit.send("job_events", {"action": "updated", "job_id": "job_7", "max_retries": 5})
    await kit.step()
    assert kit.refused == []
    [run] = await kit.runs()
    assert (run.state, run.policy.retry.max_retries, run.payload) == (RunState.SCHEDULED, 5, b'{"script":"a.sh"}')


@pytest.mark.parametrize("by", ["their id", "our id", "our id as a UUID"])
async def test_a_cancel_request_cancels_a_one_off_job(kit: Kit, by: str) -> None:
    kit.send("job_events", {"job_id": "job_7", "payload": {"script": "a.sh"}})
    kit.send("job_events", {"job_id": "job_8", "payload": {"script": "a.sh"}})
    await kit.step()
    first, second = await kit.runs()
    uuid = f"{first.id[:8]}-{first.id[8:12]}-{first.id[12:16]}-{first.id[16:20]}-{first.id[20:]}".upper()
    named = {"their id": "job_7", "our id": first.id, "our id as a UUID": uuid}[by]
    for _ in range(2):
        kit.send("cancel_requests", {"job_id": named})
    await kit.step()
    assert kit.refused == []
    assert [run.state for run in await kit.runs()] == [RunState.CANCELLED, RunState.QUEUED]
    assert (first.id, second.id) == tuple(run.id for run in await kit.runs())


async def test_a_change_of_an_unknown_job_goes_to_the_dead_letters(kit: Kit) -> None:
    kit.send("cancel_requests", {"job_id": "job_404"})
    kit.send("cancel_requests", {"job_id": None})
    kit.send("job_events", {"job_id": "job_404", "action": "update"})
    kit.send("job_events", {"job_id": "job_1", "action": "explode"})
    await kit.step()
    details = [detail for _, detail in kit.refused]
    assert "there is no job 'job_404'" in details[0]
    assert "cancel_requests.job: is empty" in details[1]
    assert "there is no job 'job_404'" in details[2]
    assert "'explode' is not an action" in details[3]


async def test_an_update_of_a_job_that_has_ended_is_refused(kit: Kit) -> None:
    kit.send("job_events", {"job_id": "job_7", "payload": {"script": "a.sh"}})
    kit.send("cancel_requests", {"job_id": "job_7"})
    kit.send("job_events", {"job_id": "job_7", "action": "update", "max_retries": 1})
    await kit.step()
    [(_, detail)] = kit.refused
    assert "has ended" in detail


async def test_records_reach_only_jobs_of_their_own_tenant(
    make: Callable[[str | None, Mapping[str, object]], Kit],
) -> None:
    kit = make(None, TOPICS | {"mine": {"task": "t", "tenant": "{value.tenant?}"}})
    kit.send("job_events", {"job_id": "job_7"}, tenant="acme")
    kit.send("mine", {"tenant": "other"})
    await kit.step()
    assert [run.tenant for run in await kit.runs()] == ["acme", "other"]
    [run] = await kit.runs("acme")
    kit.send("cancel_requests", {"job_id": "job_7"}, tenant="other")
    kit.send("cancel_requests", {"job_id": run.id}, tenant="other")
    await kit.step()
    assert ["there is no job" in detail for _, detail in kit.refused] == [True, True]
    assert [run.state for run in await kit.runs("acme")] == [RunState.QUEUED]
    kit.send("cancel_requests", {"job_id": "job_7"}, tenant="acme")
    await kit.step()
    assert [run.state for run in await kit.runs("acme")] == [RunState.CANCELLED]


async def test_a_record_cannot_leave_the_tenant_of_the_settings(
    make: Callable[[str | None, Mapping[str, object]], Kit],
) -> None:
    kit = make("default", {"mine": {"task": "t", "tenant": "{value.tenant}"}})
    kit.send("mine", {"tenant": "acme"})
    await kit.step()
    assert ([field for field, _ in kit.refused], await kit.runs()) == (["tenant"], [])


async def test_a_cancel_waits_behind_the_jobs_of_its_tenant_that_wait_for_a_quota(
    make: Callable[[str | None, Mapping[str, object]], Kit],
) -> None:
    kit = make(None, TOPICS)
    await kit.set_quota("small", Quotas(queued=0))
    kit.send("job_events", {"job_id": "job_7"}, tenant="small")
    kit.send("job_events", {"job_id": "job_7", "action": "cancel"}, tenant="small")
    await kit.step()
    assert (await kit.runs(), kit.refused, kit.service.waiting) == ([], [], 2)
    await kit.set_quota("small", Quotas())
    while kit.log.open:
        kit.send("job_events", {"job_id": "job_8"}, tenant="other")
        await kit.step()
        if kit.service.waiting == 0:
            break
    await kit.step()
    assert kit.refused == []
    assert [run.state for run in await kit.runs("small")] == [RunState.CANCELLED]
