"""An application pauses its schedules and queues, in its store or through an API."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from mainspring import Conflict, Invalid, Mainspring, NotFound
from mainspring.config.node import Node, Role
from mainspring.config.runtime import Runtime
from mainspring.core.model.base.instant import from_datetime
from mainspring.core.model.schedules.job import Job, JobState
from mainspring.core.ports.storage.access import Author
from mainspring.core.ports.storage.catalog import Pause
from tests.support.processes import free_port


class Site:
    def __init__(self, app: Mainspring, runtime: Runtime) -> None:
        self.app = app
        self.runtime = runtime

    async def job(self, name: str = "nightly") -> Job:
        found = await self.runtime.store.job_named("default", name)
        assert found is not None
        [job] = await self.runtime.store.jobs([found])
        assert job is not None
        return job

    async def pauses(self) -> list[Pause]:
        return await self.runtime.store.pauses()


@pytest.fixture(params=["store", "api"])
async def site(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Site]:
    port = free_port()
    app = Mainspring(str(tmp_path / "site.db"), name="site")

    @app.cron("0 3 * * *")
    async def nightly() -> None: ...

    @app.cron("0 4 * * *")
    async def nightly_report() -> None: ...

    node = Node(app.settings({"port": port}), {Role.HTTP}, app, None)
    await node.runtime.open()
    app.use(node.runtime)
    await app.declare()
    await node.start()
    client = app if request.param == "store" else Mainspring.connect(f"http://127.0.0.1:{port}", name="site")
    yield Site(client, node.runtime)
    await client.close()
    await node.stop()


async def test_a_schedule_stays_paused_until_it_is_resumed(site: Site) -> None:
    await site.app.pause("nightly", reason="the bank is closed")
    job = await site.job()
    assert (job.state, job.pause_why, job.resume_at) == (JobState.PAUSED, "the bank is closed", None)
    assert (await site.job("nightly_report")).state is JobState.SCHEDULED
    await site.app.resume("nightly")
    assert (await site.job()).state is JobState.SCHEDULED


async def test_a_pause_can_have_an_end_time(site: Site) -> None:
    end = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=2)
    await site.app.pause("nightly", until=end)
    assert (await site.job()).resume_at == from_datetime(end, "until")
    await site.app.pause_queue("mail", until=end, reason="the provider is down")
    [pause] = await site.pauses()
    assert (pause.tenant, pause.queue, pause.until) == ("default", "mail", from_datetime(end, "until"))
    assert pause.why == "the provider is down"
    gone = end - timedelta(days=1)
    for paused in (site.app.pause("nightly", until=gone), site.app.pause_queue("mail", until=gone)):
        with pytest.raises(Invalid, match=r"until: .* is in the past"):
            await paused


async def test_resuming_a_queue_ends_the_pause_of_its_own_tenant_only(site: Site) -> None:
    await site.runtime.store.pause(Pause(tenant=None, queue="mail"), Author("ada", None, "everybody"))
    await site.app.pause_queue("mail")
    assert len(await site.pauses()) == 2
    await site.app.resume_queue("mail")
    assert [pause.tenant for pause in await site.pauses()] == [None]


async def test_pausing_a_missing_or_cancelled_schedule_fails(site: Site) -> None:
    with pytest.raises(NotFound, match="no recurring job 'night'"):
        await site.app.pause("night")
    job = await site.job()
    await site.runtime.jobs.cancel_jobs([job.id])
    for change in (site.app.pause("nightly"), site.app.resume("nightly")):
        with pytest.raises(Conflict, match="cancelled"):
            await change
    with pytest.raises(Invalid, match="reason"):
        await site.app.pause("nightly", reason="x" * 1_001)


async def test_sync_code_can_pause_and_resume(site: Site) -> None:
    await asyncio.to_thread(site.app.pause_sync, "nightly", reason="a test")
    assert (await site.job()).state is JobState.PAUSED
    await asyncio.to_thread(site.app.resume_sync, "nightly")
    assert (await site.job()).state is JobState.SCHEDULED
    await asyncio.to_thread(site.app.pause_queue_sync, "mail")
    assert len(await site.pauses()) == 1
    await asyncio.to_thread(site.app.resume_queue_sync, "mail")
    assert await site.pauses() == []
