"""Wake-ups on PostgreSQL: a submit on a quiet system sends its own, and many submits share few."""

import asyncio
from collections.abc import AsyncIterator
from random import Random

import asyncpg
import pytest

from mainspring.adapters.clock.system import SystemClock
from mainspring.adapters.store.postgres import PostgresStore
from mainspring.adapters.wakeups.postgres import PostgresWakeups
from mainspring.control.jobs import Jobs
from mainspring.domain.instant import MILLISECOND, SECOND
from mainspring.ports.wakeups import CANCELS, queue_topic
from tests.support.builders import a_run, some_runs

pytestmark = pytest.mark.postgres

#: Long enough for the notifier to send whatever it would.
A_MOMENT = 0.1


class Submitter:
    """A process that submits, and somebody who hears every message that any process sends."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.wakeups = PostgresWakeups(dsn, SystemClock())
        self.store = PostgresStore(dsn, shards=4, wakeups=self.wakeups)
        self.jobs = Jobs(self.store, self.wakeups, SystemClock(), Random(1), shards=4)
        self.heard: list[str] = []
        self.ear: asyncpg.Connection | None = None

    async def open(self) -> None:
        await self.store.open()
        self.ear = await asyncpg.connect(self.dsn)
        await self.ear.add_listener("mainspring_wakeups", self._hear)

    async def close(self) -> None:
        await self.wakeups.close()
        await self.store.close()
        if self.ear is not None:
            await self.ear.close()

    def _hear(self, _connection: object, _pid: object, _channel: object, message: object) -> None:
        sender, _, topics = str(message).partition(" ")
        if sender != "probe":
            self.heard.append(topics)


@pytest.fixture
async def submitter(postgres_database: str) -> AsyncIterator[Submitter]:
    submitter = Submitter(postgres_database)
    await submitter.open()
    yield submitter
    await submitter.close()


async def test_on_a_quiet_system_the_commit_of_a_submit_rings_and_nothing_else_does(submitter: Submitter) -> None:
    # The notifier has not been started: what is heard came with the commit.
    await submitter.jobs.submit(a_run(queue="mail"))
    await asyncio.sleep(A_MOMENT)
    assert submitter.heard == [queue_topic("mail")]
    await submitter.wakeups.open()
    await asyncio.sleep(A_MOMENT)
    assert submitter.heard == [queue_topic("mail")]


async def test_the_bells_of_this_process_and_of_others_ring(submitter: Submitter, postgres_database: str) -> None:
    other = PostgresWakeups(postgres_database, SystemClock())
    await other.open()
    try:
        far, near = other.listen([queue_topic("mail")]), submitter.wakeups.listen([queue_topic("mail")])
        # It rings once when it begins to listen.
        assert await far.wait(5 * SECOND)
        await submitter.jobs.submit_many([a_run(queue="mail"), a_run(queue="other")])
        assert await near.wait(0)
        assert await far.wait(5 * SECOND)
    finally:
        await other.close()


async def test_a_thousand_quick_submits_send_few_messages_and_the_last_is_told(submitter: Submitter) -> None:
    await submitter.wakeups.open()
    clock = SystemClock()
    began = clock.monotonic()
    for run in some_runs(1_000):
        await submitter.jobs.submit(run)
    took = clock.monotonic() - began
    sent = len(submitter.heard)
    assert sent <= took / (10 * MILLISECOND) + 2
    await asyncio.sleep(A_MOMENT)
    # The last of them, and what was on its way when the others were counted.
    assert len(submitter.heard) <= sent + 2
    assert set(submitter.heard) == {queue_topic("default")}


async def test_a_submit_just_after_another_is_told_by_the_notifier(submitter: Submitter) -> None:
    await submitter.wakeups.open()
    await submitter.jobs.submit(a_run(queue="mail"))
    await submitter.jobs.submit(a_run(queue="other"))
    await asyncio.sleep(A_MOMENT)
    assert submitter.heard == [queue_topic("mail"), queue_topic("other")]


async def test_while_others_send_a_submit_takes_nothing_along(submitter: Submitter) -> None:
    topics = [queue_topic("default")]
    bell = submitter.wakeups.listen(topics)
    await submitter.wakeups.open()
    # It rings once when it begins to listen.
    assert await bell.wait(5 * SECOND)
    assert submitter.ear is not None
    await submitter.ear.execute("SELECT pg_notify('mainspring_wakeups', 'other queue:default')")
    assert await bell.wait(5 * SECOND)
    assert submitter.wakeups.take_along(topics) is None
    await asyncio.sleep(A_MOMENT)
    assert submitter.wakeups.take_along(topics) is not None


async def test_a_submit_that_was_known_already_rings_all_the_same(submitter: Submitter) -> None:
    await submitter.wakeups.open()
    run = a_run()
    await submitter.jobs.submit(run)
    await asyncio.sleep(A_MOMENT)
    submitter.heard.clear()
    # The first statement breaks a primary key, and its message is rolled back with it.
    assert not (await submitter.jobs.submit(run)).new
    await asyncio.sleep(A_MOMENT)
    assert submitter.heard == [queue_topic("default")]


async def test_what_a_commit_has_told_hides_no_other_ring(submitter: Submitter) -> None:
    await submitter.jobs.submit(a_run())
    await submitter.wakeups.open()
    submitter.wakeups.ring([queue_topic("default"), CANCELS])
    await asyncio.sleep(A_MOMENT)
    assert submitter.heard == [queue_topic("default"), f"{CANCELS}\n{queue_topic('default')}"]
