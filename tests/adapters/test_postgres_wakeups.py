"""Wakeups on PostgreSQL: a submit on a quiet system sends its own notification, and many submits share few."""

from collections.abc import AsyncIterator
from random import Random

import asyncpg
import pytest

from mainspring.core.model.base.instant import HOUR, MILLISECOND, SECOND
from mainspring.core.ports.wakeups import CANCELS, queue_topic
from mainspring.core.runtime.system_clock import SystemClock
from mainspring.core.submit.jobs import Jobs
from mainspring.stores.postgres import PostgresStore
from mainspring.stores.postgres.wakeups import PostgresWakeups
from tests.support.builders import a_run, some_runs
from tests.support.clock import ManualClock
from tests.support.waiting import eventually

pytestmark = pytest.mark.postgres

#: One process sends one notification per this time at most.
PAUSE = 10 * MILLISECOND
FENCE = "fence"


class Submitter:
    """A process that submits, with a clock that stands still, and a listener that records every notification."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.clock = ManualClock()
        self.wakeups = PostgresWakeups(dsn, self.clock)
        self.store = PostgresStore(dsn, shards=4, wakeups=self.wakeups)
        self.jobs = Jobs(self.store, self.wakeups, SystemClock(), Random(1), shards=4)
        self.received: list[set[str]] = []
        self.listener: asyncpg.Connection | None = None

    async def open(self) -> None:
        await self.store.open()
        self.listener = await asyncpg.connect(self.dsn)
        await self.listener.add_listener("mainspring_wakeups", self._record)

    async def close(self) -> None:
        await self.wakeups.close()
        await self.store.close()
        if self.listener is not None:
            await self.listener.close()

    async def flush(self) -> list[set[str]]:
        """The topics of every notification so far, including those that the notifier has not sent yet."""
        self.wakeups.notify([FENCE])

        def is_sent() -> bool:
            self.clock.advance(SECOND)
            return any(FENCE in topics for topics in self.received)

        await eventually(is_sent)
        return [topics - {FENCE} for topics in self.received if topics != {FENCE}]

    def _record(self, _connection: object, _pid: object, _channel: object, message: object) -> None:
        sender, _, topics = str(message).partition(" ")
        if sender != "probe":
            self.received.append(set(topics.split("\n")))


@pytest.fixture
async def submitter(postgres_database: str) -> AsyncIterator[Submitter]:
    submitter = Submitter(postgres_database)
    await submitter.open()
    yield submitter
    await submitter.close()


async def test_on_a_quiet_system_only_the_commit_of_a_submit_notifies(submitter: Submitter) -> None:
    # The notifier has not been started: this notification came with the commit.
    await submitter.jobs.submit(a_run(queue="mail"))
    await eventually(lambda: submitter.received)
    await submitter.wakeups.open()
    assert await submitter.flush() == [{queue_topic("mail")}]


async def test_a_submit_wakes_listeners_of_its_process_and_of_others(
    submitter: Submitter, postgres_database: str
) -> None:
    other = PostgresWakeups(postgres_database, SystemClock())
    await other.open()
    try:
        far, near = other.listen([queue_topic("mail")]), submitter.wakeups.listen([queue_topic("mail")])
        # Every listener is woken once when the connection begins to listen.
        assert await far.wait(HOUR)
        await submitter.jobs.submit_many([a_run(queue="mail"), a_run(queue="other")])
        assert await near.wait(0)
        assert await far.wait(HOUR)
    finally:
        await other.close()


async def test_a_thousand_quick_submits_share_two_notifications(submitter: Submitter) -> None:
    await submitter.wakeups.open()
    for run in some_runs(1_000):
        await submitter.jobs.submit(run)
    assert await submitter.flush() == [{queue_topic("default")}] * 2


async def test_the_notifier_sends_for_a_submit_just_after_another(submitter: Submitter) -> None:
    await submitter.wakeups.open()
    await submitter.jobs.submit(a_run(queue="mail"))
    await submitter.jobs.submit(a_run(queue="other"))
    assert await submitter.flush() == [{queue_topic("mail")}, {queue_topic("other")}]


async def test_a_submit_carries_no_notification_while_other_processes_send(submitter: Submitter) -> None:
    topics = [queue_topic("default")]
    wakeup = submitter.wakeups.listen(topics)
    await submitter.wakeups.open()
    # The listener is woken once when the connection begins to listen.
    assert await wakeup.wait(HOUR)
    assert submitter.listener is not None
    await submitter.listener.execute("SELECT pg_notify('mainspring_wakeups', 'other queue:default')")
    assert await wakeup.wait(HOUR)
    assert submitter.wakeups.take_along(topics) is None
    submitter.clock.advance(PAUSE)
    assert submitter.wakeups.take_along(topics) is not None


async def test_a_repeated_submit_notifies_again(submitter: Submitter) -> None:
    await submitter.wakeups.open()
    run = a_run()
    await submitter.jobs.submit(run)
    submitter.clock.advance(PAUSE)
    # The first statement violates a primary key, and its notification is rolled back with it.
    assert not (await submitter.jobs.submit(run)).new
    assert await submitter.flush() == [{queue_topic("default")}] * 2


async def test_the_notification_of_a_commit_suppresses_no_other_topic(submitter: Submitter) -> None:
    await submitter.jobs.submit(a_run())
    await submitter.wakeups.open()
    submitter.wakeups.notify([queue_topic("default"), CANCELS])
    assert await submitter.flush() == [{queue_topic("default")}, {queue_topic("default"), CANCELS}]
