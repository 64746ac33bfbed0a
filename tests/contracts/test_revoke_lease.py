"""Revoking the lease of a scheduler: it expires at once."""

import pytest

from mainspring.core.model.base.errors import Fenced
from mainspring.core.model.base.ids import SessionId
from mainspring.core.model.base.instant import DAY, MINUTE
from mainspring.core.ports.storage.access import Author
from tests.support.builders import a_job, a_run, a_spec, every
from tests.support.store_harness import Harness

pytestmark = pytest.mark.api

ADA = Author("ada", why="a drill")


async def test_a_revoked_scheduler_loses_its_shards_at_once_and_must_join_again(harness: Harness) -> None:
    victim, other = await harness.store.join("victim", DAY), await harness.store.join("other", DAY)
    before = await harness.store.take(victim, [1, 2, 3])
    assert await harness.store.take(other, [1, 2, 3]) == {}
    now = await harness.now()
    gone = await harness.store.revoke_lease(victim, ADA)
    assert gone is not None
    assert now <= gone <= await harness.now()
    taken = await harness.store.take(other, [1, 2, 3])
    assert taken == {shard: epoch + 1 for shard, epoch in before.items()}
    with pytest.raises(Fenced):
        await harness.store.renew(victim, DAY)
    assert await harness.store.take(victim, [4]) == {}
    assert [(one.id, one.shards) for one in await harness.store.sessions("scheduler")] == [(other, 3)]


async def test_writes_of_a_revoked_scheduler_are_rejected_at_once(harness: Harness) -> None:
    victim = await harness.store.join("victim", DAY)
    shards = list(range(harness.store.shards))
    await harness.store.take(victim, shards)
    run = a_run(delay=MINUTE)
    await harness.submit(run)
    await harness.put(a_job(a_spec(schedule=every(MINUTE))))
    await harness.advance(2 * MINUTE)
    await harness.store.revoke_lease(victim, ADA)
    staged = await harness.store.stage(victim, shards, 10)
    assert (staged.runs, staged.schedules_due) == (0, False)
    other = await harness.store.join("other", DAY)
    await harness.store.take(other, shards)
    staged = await harness.store.stage(other, shards, 10)
    assert (staged.runs, staged.schedules_due) == (1, True)


async def test_revoking_a_lease_is_audited_once(harness: Harness) -> None:
    victim = await harness.store.join("victim", DAY)
    assert await harness.store.revoke_lease(victim, ADA) is not None
    assert await harness.store.revoke_lease(victim, ADA) is None
    (entry,) = await harness.store.audit(None)
    assert (entry.action, entry.target, entry.author, entry.why) == (
        "schedulers.revoke",
        str(victim),
        "ada",
        "a drill",
    )


async def test_only_the_lease_of_a_scheduler_can_be_revoked(harness: Harness) -> None:
    worker = await harness.worker()
    assert await harness.store.revoke_lease(worker, ADA) is None
    assert await harness.store.revoke_lease(SessionId(999), ADA) is None
    assert (await harness.store.heartbeat(worker, MINUTE, [], [], 0)).alive
    assert await harness.store.audit(None) == []
