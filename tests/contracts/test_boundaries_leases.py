"""A lease is valid until its end, and not at its end. Every method of every store draws the line at the same place."""

import msgspec
import pytest

from mainspring.core.model.base.errors import Fenced
from mainspring.core.model.base.ids import SessionId
from mainspring.core.model.base.instant import DAY, MINUTE
from mainspring.core.model.runs.completion import CompletionAnswer, complete_loss, complete_success
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.model.schedules.job import Fire
from mainspring.core.model.schedules.plan import plan
from mainspring.core.ports.storage.upkeep import Retention
from tests.support.boundaries import ADA, around_the_boundary, on_every_claim_path, prepare_claim_path
from tests.support.builders import a_job, a_limit, a_policy, a_run, a_spec, a_worker, every
from tests.support.store_harness import Harness, SqliteHarness, ids

LEASE = 10 * MINUTE


async def own_all_shards(harness: Harness, ttl: int = LEASE) -> SessionId:
    """Return a scheduler that owns every shard by a lease of this length."""
    scheduler = await harness.store.join("scheduler", ttl)
    assert set(await harness.store.take(scheduler, harness.all_shards)) == set(harness.all_shards)
    return scheduler


@on_every_claim_path
@around_the_boundary
async def test_a_worker_claims_until_its_lease_ends(harness: Harness, path: str, offset: int) -> None:
    way = await prepare_claim_path(harness, path)
    worker = await way.worker(LEASE)
    run = way.adapt(a_run())
    await harness.submit(run)
    await harness.move_clock(LEASE + offset)
    assert ids(await way.claim(worker, [run])) == ([run.id] if offset < 0 else [])


@around_the_boundary
async def test_the_reaper_expires_a_session_at_the_end_of_its_lease(harness: Harness, offset: int) -> None:
    worker = await harness.worker(LEASE)
    [held], waiting = await harness.start(a_run()), a_run()
    await harness.fail(held)
    await harness.submit(waiting)
    [mine] = await harness.claim(worker)
    await harness.move_clock(LEASE + offset)
    assert ids(await harness.store.lost_runs(10)) == ([] if offset < 0 else [mine.id])


@around_the_boundary
async def test_a_session_never_claims_at_an_instant_at_which_it_expires(harness: Harness, offset: int) -> None:
    worker = await harness.worker(LEASE)
    first, second = a_run(), a_run()
    await harness.submit(first, second)
    await harness.claim(worker, 1)
    await harness.move_clock(LEASE + offset)
    claims = bool(await harness.claim(worker))
    expires = bool(await harness.store.lost_runs(10))
    assert (claims, expires) == (offset < 0, offset >= 0)


@around_the_boundary
async def test_a_heartbeat_renews_until_the_reaper_has_expired_the_session(harness: Harness, offset: int) -> None:
    reaped, left_alone = await harness.worker(LEASE), await harness.worker(LEASE + 2)
    await harness.move_clock(LEASE + offset)
    await harness.store.lost_runs(10)
    heartbeats = [await harness.store.heartbeat(worker, LEASE, (), (), 0) for worker in (reaped, left_alone)]
    assert [heartbeat.alive for heartbeat in heartbeats] == [offset < 0, True]


@around_the_boundary
async def test_many_leases_are_renewed_until_the_reaper_has_expired_them(harness: Harness, offset: int) -> None:
    worker = await harness.worker(LEASE)
    await harness.move_clock(LEASE + offset)
    await harness.store.lost_runs(10)
    [heartbeat] = await harness.store.renew_leases([(worker, LEASE)])
    assert heartbeat.alive is (offset < 0)


@around_the_boundary
@pytest.mark.parametrize("many", [False, True], ids=["heartbeat", "renew_leases"])
async def test_a_renewed_lease_ends_exactly_one_ttl_later(harness: Harness, many: bool, offset: int) -> None:
    worker, run = await harness.worker(LEASE), a_run()
    await harness.move_clock(LEASE - 1)
    if many:
        await harness.store.renew_leases([(worker, 2 * LEASE)])
    else:
        await harness.store.heartbeat(worker, 2 * LEASE, (), (), 0)
    await harness.submit(run)
    await harness.move_clock(2 * LEASE + offset)
    assert ids(await harness.claim(worker)) == ([run.id] if offset < 0 else [])


@around_the_boundary
async def test_a_completion_counts_until_the_reaper_has_requeued_the_run(harness: Harness, offset: int) -> None:
    worker = await harness.worker(LEASE)
    await harness.submit(a_run(), a_run())
    early, late = await harness.claim(worker)
    await harness.move_clock(LEASE + offset)
    assert await harness.complete(complete_success(early, None)) == [CompletionAnswer.ACCEPTED]
    lost = await harness.store.lost_runs(10)
    await harness.complete(*(complete_loss(run, blamed=False) for run in lost))
    assert await harness.complete(complete_success(late, None)) == [
        CompletionAnswer.ACCEPTED if offset < 0 else CompletionAnswer.STALE
    ]


@around_the_boundary
async def test_a_worker_is_listed_until_its_lease_ends(harness: Harness, offset: int) -> None:
    new = msgspec.structs.replace(a_worker(ttl=LEASE), datacenter="eu")
    worker = await harness.store.open_session(new)
    await harness.move_clock(LEASE + offset)
    assert [view.id for view in await harness.store.sessions("worker")] == ([worker] if offset < 0 else [])
    [place] = await harness.store.datacenters()
    assert place.workers == (1 if offset < 0 else 0)


@around_the_boundary
async def test_a_worker_can_be_drained_until_its_lease_ends(harness: Harness, offset: int) -> None:
    worker = await harness.worker(LEASE)
    await harness.move_clock(LEASE + offset)
    assert await harness.store.drain(worker, ADA) is (offset < 0)


@around_the_boundary
async def test_a_draining_worker_is_counted_until_its_lease_ends(harness: Harness, offset: int) -> None:
    worker = await harness.store.open_session(msgspec.structs.replace(a_worker(ttl=LEASE), datacenter="eu"))
    assert await harness.store.drain(worker, ADA)
    await harness.move_clock(LEASE + offset)
    [place] = await harness.store.datacenters()
    assert (place.workers, place.draining) == (0, 1 if offset < 0 else 0)


@around_the_boundary
async def test_a_scheduler_is_listed_until_its_lease_ends(harness: Harness, offset: int) -> None:
    scheduler = await own_all_shards(harness)
    await harness.move_clock(LEASE + offset)
    alive = [scheduler] if offset < 0 else []
    assert [view.id for view in await harness.store.sessions("scheduler")] == alive
    owner = await harness.store.find_shard_owner(0)
    assert ([] if owner is None else [owner.id]) == alive


@around_the_boundary
async def test_the_lease_of_a_scheduler_can_be_revoked_until_it_ends(harness: Harness, offset: int) -> None:
    scheduler = await own_all_shards(harness)
    await harness.move_clock(LEASE + offset)
    assert (await harness.store.revoke_lease(scheduler, ADA) is not None) is (offset < 0)


@around_the_boundary
async def test_another_scheduler_takes_shards_at_the_end_of_the_lease(harness: Harness, offset: int) -> None:
    await own_all_shards(harness)
    other = await harness.store.join("other", 10 * LEASE)
    await harness.move_clock(LEASE + offset)
    taken = await harness.store.take(other, harness.all_shards)
    assert set(taken) == (set() if offset < 0 else set(harness.all_shards))


@around_the_boundary
async def test_a_scheduler_takes_shards_until_its_own_lease_ends(harness: Harness, offset: int) -> None:
    scheduler = await harness.store.join("scheduler", LEASE)
    await harness.move_clock(LEASE + offset)
    taken = await harness.store.take(scheduler, harness.all_shards)
    assert set(taken) == (set(harness.all_shards) if offset < 0 else set())


@around_the_boundary
async def test_a_scheduler_raises_epochs_until_its_own_lease_ends(harness: Harness, offset: int) -> None:
    scheduler = await harness.store.join("scheduler", LEASE)
    epochs = await harness.store.epochs([1, 2])
    await harness.move_clock(LEASE + offset)
    sealed = await harness.store.seal(scheduler, epochs)
    assert set(sealed) == ({1, 2} if offset < 0 else set())


@around_the_boundary
async def test_a_renewal_expires_members_at_the_end_of_their_lease(harness: Harness, offset: int) -> None:
    short, other = await harness.store.join("short", LEASE), await harness.store.join("other", 10 * LEASE)
    await harness.move_clock(LEASE + offset)
    membership = await harness.store.renew(other, 10 * LEASE)
    assert membership.members == ((short, other) if offset < 0 else (other,))
    assert membership.first_end == (1 if offset < 0 else None)
    if offset < 0:
        await harness.store.renew(short, LEASE)
    else:
        with pytest.raises(Fenced):
            await harness.store.renew(short, LEASE)


@around_the_boundary
@pytest.mark.parametrize(
    "run",
    [a_run(delay=MINUTE), a_run(delay=MINUTE, key="key"), a_run(delay=MINUTE, limits=(a_limit(),))],
    ids=["plain", "ordering key", "limit"],
)
async def test_a_scheduler_stages_until_its_lease_ends(harness: Harness, run: NewRun, offset: int) -> None:
    scheduler = await own_all_shards(harness)
    await harness.submit(run)
    await harness.move_clock(LEASE + offset)
    staged = await harness.store.stage(scheduler, harness.all_shards, 10)
    assert staged.runs == (1 if offset < 0 else 0)


@around_the_boundary
@pytest.mark.parametrize("key", ["", "key"], ids=["plain", "ordering key"])
async def test_a_scheduler_fires_until_its_lease_ends(harness: Harness, key: str, offset: int) -> None:
    scheduler = await own_all_shards(harness)
    job = await harness.put(a_job(a_spec(schedule=every(MINUTE), policy=a_policy(key=key))))
    await harness.move_clock(LEASE + offset)
    now = await harness.now()
    fires: list[Fire] = plan(await harness.store.due_jobs(harness.all_shards, now, 10), now)
    assert [fire.job.id for fire in fires] == [job.id]
    staged = await harness.store.stage(scheduler, harness.all_shards, 10)
    [fired] = await harness.store.fire(scheduler, fires)
    assert (staged.schedules_due, fired.applied) == (offset < 0, offset < 0)


@around_the_boundary
async def test_a_takeover_and_the_old_owner_never_act_at_one_instant(harness: Harness, offset: int) -> None:
    old, new = await own_all_shards(harness), await harness.store.join("new", 10 * LEASE)
    await harness.submit(a_run(delay=MINUTE))
    await harness.move_clock(LEASE + offset)
    acts = (await harness.store.stage(old, harness.all_shards, 10)).runs == 1
    taken = bool(await harness.store.take(new, harness.all_shards))
    assert (acts, taken) == (offset < 0, offset >= 0)


@around_the_boundary
@pytest.mark.parametrize(
    ("timeout", "deadline"), [(LEASE, None), (2 * LEASE, LEASE)], ids=["timeout", "deadline before timeout"]
)
@pytest.mark.parametrize("grace", [0, MINUTE])
async def test_an_attempt_is_overdue_once_its_time_and_the_grace_are_over(
    harness: Harness, timeout: int, deadline: int | None, grace: int, offset: int
) -> None:
    [held] = await harness.start(a_run(policy=a_policy(timeout=timeout), deadline=deadline))
    assert held.attempt_until == held.started_at + LEASE
    await harness.move_clock(LEASE + grace + offset)
    assert ids(await harness.store.overdue_runs(grace, 10)) == ([held.id] if offset > 0 else [])


@pytest.mark.parametrize("end", ["closed", "expired", "left", "holds a run"])
@around_the_boundary
async def test_an_ended_session_can_be_read_for_a_day(harness: Harness, end: str, offset: int) -> None:
    """Stores may keep it longer; they keep it as long as it holds a run."""
    worker, scheduler = await harness.worker(LEASE), await own_all_shards(harness)
    if end == "holds a run":
        await harness.submit(a_run())
        await harness.claim(worker)
    await harness.move_clock(LEASE)
    if end == "left":
        await harness.store.leave(scheduler)
    elif end == "closed":
        await harness.store.close_session(worker)
    else:
        await harness.store.lost_runs(10)
    await harness.move_clock(DAY + offset)
    await harness.store.prune(Retention(), 10)
    view = await harness.store.session(scheduler if end == "left" else worker)
    gone = offset > 0 and end != "holds a run" and isinstance(harness, SqliteHarness)
    assert (view is None) is gone
