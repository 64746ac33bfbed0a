"""Dead letter groups: growth, events, and stored replays."""

import msgspec
import pytest

from mainspring.core.model.base.instant import DAY, HOUR, MINUTE, SECOND
from mainspring.core.model.runs.completion import complete_loss
from mainspring.core.model.runs.dead_letters import GROWS_BY, TREND
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.model.runs.replay import Replay
from mainspring.core.ports.storage.access import Author
from mainspring.core.ports.storage.catalog import RunFilter
from tests.support.builders import a_policy, a_run, an_id, some_runs
from tests.support.store_harness import Harness

pytestmark = pytest.mark.api

DEAD = RunFilter(tenant="default", dead=True)


def a_failing_run(tenant: str = "default") -> NewRun:
    return a_run(tenant=tenant, policy=a_policy(retries=0))


async def run_and_fail(harness: Harness, *runs: NewRun, error: str = "boom") -> None:
    await harness.fail(*await harness.start(*runs), error=error)


async def read_alerts(harness: Harness, reader: str = "pager") -> list[str]:
    found = [f"{batch.kind} {batch.tenant}" for batch in await harness.events(reader) if "dead_letters" in batch.kind]
    for batch in await harness.events(reader):
        await harness.store.acknowledge(reader, batch.position)
    return found


async def test_a_dead_letter_group_has_a_trend(harness: Harness) -> None:
    await run_and_fail(harness, a_failing_run(), a_failing_run())
    await harness.advance(3 * HOUR)
    await run_and_fail(harness, a_failing_run())
    [group] = await harness.store.dead_groups(DEAD, 10)
    assert (group.count, len(group.trend), sum(group.trend)) == (3, TREND, 3)
    assert (group.trend[-4], group.trend[-1]) == (2, 1)
    await harness.advance(22 * HOUR)
    [group] = await harness.store.dead_groups(DEAD, 10)
    assert (group.count, sum(group.trend)) == (3, 1)
    await harness.advance(3 * HOUR)
    [group] = await harness.store.dead_groups(DEAD, 10)
    assert (group.count, group.trend) == (3, (0,) * TREND)


async def test_the_group_of_a_poison_run_is_marked(harness: Harness) -> None:
    [held] = await harness.start(a_failing_run())
    held.lost = 2
    await harness.complete(complete_loss(held, blamed=True))
    [group] = await harness.store.dead_groups(DEAD, 10)
    assert (group.reason, group.error) == ("poison", "3 workers died while they ran it")


async def test_a_new_dead_letter_group_is_reported_once(harness: Harness) -> None:
    await harness.store.attach_reader("pager")
    await harness.store.watch_dead_letters()
    await harness.advance(MINUTE)
    newest = a_failing_run()
    await run_and_fail(harness, a_failing_run("acme"))
    await run_and_fail(harness, newest, error="other")
    assert await harness.store.watch_dead_letters() == 0, "the newest failures are not counted yet"
    await harness.advance(MINUTE)
    assert await harness.store.watch_dead_letters() == 2
    assert sorted(await read_alerts(harness)) == ["dead_letters.opened acme", "dead_letters.opened default"]
    assert await harness.store.watch_dead_letters() == 0
    await run_and_fail(harness, a_failing_run())
    await harness.advance(MINUTE)
    assert await harness.store.watch_dead_letters() == 1, "the same error of another tenant is another group"
    await run_and_fail(harness, a_failing_run())
    await harness.advance(MINUTE)
    assert await harness.store.watch_dead_letters() == 0
    await harness.advance(2 * DAY)
    await harness.store.watch_dead_letters()
    await run_and_fail(harness, a_failing_run())
    await harness.advance(MINUTE)
    assert await harness.store.watch_dead_letters() == 1, "after a quiet day it is new again"


async def test_a_quickly_growing_group_is_reported_at_most_once_an_hour(harness: Harness) -> None:
    await harness.store.attach_reader("pager")
    await run_and_fail(harness, a_failing_run())
    await harness.advance(MINUTE)
    await harness.store.watch_dead_letters()
    assert await read_alerts(harness) == ["dead_letters.opened default"]
    many = [msgspec.structs.replace(run, policy=a_policy(retries=0)) for run in some_runs(GROWS_BY)]
    await run_and_fail(harness, *many)
    await harness.advance(MINUTE)
    assert await harness.store.watch_dead_letters() == 1
    assert await read_alerts(harness) == ["dead_letters.growing default"]
    for run in some_runs(GROWS_BY):
        await harness.submit(msgspec.structs.replace(run, policy=a_policy(retries=0), queue="more"))
    worker = await harness.worker()
    await harness.fail(*await harness.claim(worker, queue="more"))
    await harness.advance(MINUTE)
    assert await harness.store.watch_dead_letters() == 0


async def test_a_replay_is_stored_and_moved_by_one_scheduler_at_a_time(harness: Harness) -> None:
    now = await harness.now()
    first = Replay(id=an_id(), author="ada", tenant="acme", canaries=2, made_at=now, next=(an_id(),), patch=b"{}")
    second = Replay(id=an_id(), author="bob", tenant=None, per_second=1.5, made_at=now)
    for replay in (first, second, msgspec.structs.replace(first, author="eve")):
        await harness.store.put_replay(replay)
    assert list(await harness.store.open_replays()) == [first, second]
    assert list(await harness.store.replays(None, 10)) == [second, first]
    assert list(await harness.store.replays("acme", 10)) == [first]
    assert await harness.store.move_replay(msgspec.structs.replace(first, replayed=1))
    assert not await harness.store.move_replay(msgspec.structs.replace(first, replayed=2))
    moved = await harness.store.replay(first.id)
    assert moved is not None
    assert (moved.replayed, moved.rev) == (1, 1)
    over = msgspec.structs.replace(moved, state="done", ended_at=now)
    assert await harness.store.move_replay(over)
    assert [replay.id for replay in await harness.store.open_replays()] == [second.id]
    assert await harness.store.replay(an_id()) is None
    await harness.advance(31 * DAY)
    await harness.store.watch_dead_letters()
    assert [replay.id for replay in await harness.store.replays(None, 10)] == [second.id]


async def test_a_second_watch_of_dead_letters_reports_nothing(harness: Harness) -> None:
    await run_and_fail(harness, a_failing_run())
    await harness.advance(20 * SECOND)
    assert await harness.store.watch_dead_letters() == 1
    assert await harness.store.discard([], Author("ada")) == 0
    assert await harness.store.watch_dead_letters() == 0
