"""Sessions: leases, heartbeats, and the detection of claims with a lost answer."""

import pytest

from mainspring.core.model.base.ids import SessionId
from mainspring.core.model.base.instant import HOUR, MINUTE, SECOND
from mainspring.core.model.runs.completion import CompletionAnswer, complete_success
from mainspring.core.model.runs.run import RunState
from mainspring.core.store import Demand, NewSession
from tests.support.builders import a_limit, a_run, a_worker, some_runs
from tests.support.store_harness import SHORT_LEASE, Harness, ids


async def test_every_session_gets_a_fresh_growing_id(harness: Harness) -> None:
    sessions = [await harness.store.open_session(a_worker(name="same")) for _ in range(3)]
    assert sessions == sorted(set(sessions))
    assert min(sessions) > 0


async def test_a_session_may_have_optional_details(harness: Harness) -> None:
    new = NewSession(name="größe 🕰", kind="worker", ttl=MINUTE, version="1.2", datacenter="eu-1")
    session = await harness.store.open_session(new)
    assert (await harness.store.heartbeat(session, MINUTE, [], [], 0)).alive


@pytest.mark.api
async def test_a_session_has_the_priorities_of_its_worker(harness: Harness) -> None:
    for priorities in ((), (1, 5)):
        new = NewSession(
            name="pools", kind="worker", ttl=MINUTE, queues=("q",), labels=("gpu=a",), priorities=priorities
        )
        session = await harness.store.open_session(new)
        view = await harness.store.session(session)
        assert view is not None
        assert (view.queues, view.labels, view.priorities) == (("q",), ("gpu=a",), priorities)
    assert {view.priorities for view in await harness.store.sessions("worker")} == {(), (1, 5)}


@pytest.mark.api
async def test_a_session_has_the_slots_of_its_worker(harness: Harness) -> None:
    for slots in (None, 1, 250):
        session = await harness.store.open_session(NewSession(name="w", kind="worker", ttl=MINUTE, slots=slots))
        view = await harness.store.session(session)
        assert view is not None
        assert view.slots == slots
    assert [view.slots for view in await harness.store.sessions("worker")] == [None, 1, 250]


async def test_a_process_restarted_under_its_name_does_not_own_the_old_runs(harness: Harness) -> None:
    old = await harness.store.open_session(a_worker(name="same", ttl=SHORT_LEASE))
    await harness.submit(a_run())
    [held] = await harness.claim(old)
    new = await harness.store.open_session(a_worker(name="same"))
    assert (await harness.store.heartbeat(new, MINUTE, [], [], 100)).returned == 0
    assert await harness.state(held.id) is RunState.RUNNING
    await harness.advance(SHORT_LEASE + SECOND)
    await harness.store.heartbeat(new, MINUTE, [], [], 100)
    assert ids(await harness.store.lost_runs(10)) == [held.id]


async def test_a_heartbeat_extends_the_lease(harness: Harness) -> None:
    worker = await harness.worker(SHORT_LEASE)
    await harness.submit(a_run())
    for _ in range(5):
        await harness.advance(SHORT_LEASE - 2 * SECOND)
        assert await harness.store.lost_runs(10) == []
        assert (await harness.store.heartbeat(worker, SHORT_LEASE, [], [], 0)).alive
    assert len(await harness.claim(worker)) == 1


async def test_a_heartbeat_returns_the_time_of_the_store(harness: Harness) -> None:
    worker = await harness.worker()
    before = await harness.now()
    heartbeat = await harness.store.heartbeat(worker, MINUTE, [], [], 0)
    assert before <= heartbeat.now <= await harness.now()


async def test_a_heartbeat_extends_an_expired_lease_that_was_not_reaped(harness: Harness) -> None:
    worker = await harness.worker(SHORT_LEASE)
    await harness.submit(a_run())
    [held] = await harness.claim(worker)
    await harness.advance(SHORT_LEASE + SECOND)
    assert (await harness.store.heartbeat(worker, MINUTE, [held.id], [], harness.last_claim(worker))).alive
    assert await harness.store.lost_runs(10) == []
    assert await harness.complete(complete_success(held, None)) == [CompletionAnswer.ACCEPTED]


async def test_a_reaped_session_stays_expired(harness: Harness) -> None:
    worker = await harness.worker(SHORT_LEASE)
    await harness.advance(SHORT_LEASE + SECOND)
    await harness.store.lost_runs(10)
    for _ in range(2):
        assert not (await harness.store.heartbeat(worker, MINUTE, [], [], 0)).alive


async def test_the_heartbeat_of_a_reaped_session_returns_no_run_to_the_queue(harness: Harness) -> None:
    worker = await harness.worker(SHORT_LEASE)
    await harness.submit(a_run())
    [held] = await harness.claim(worker)
    await harness.advance(SHORT_LEASE + SECOND)
    await harness.store.lost_runs(10)
    heartbeat = await harness.store.heartbeat(worker, MINUTE, [], [], 100)
    assert (heartbeat.alive, heartbeat.returned) == (False, 0)
    assert ids(await harness.store.lost_runs(10)) == [held.id]


async def test_an_unknown_session_is_not_alive(harness: Harness) -> None:
    assert not (await harness.store.heartbeat(SessionId(987_654_321), MINUTE, [], [], 0)).alive


async def test_runs_named_in_a_heartbeat_stay_with_their_worker(harness: Harness) -> None:
    worker = await harness.worker()
    await harness.submit(*some_runs(3))
    held = await harness.claim(worker)
    heartbeat = await harness.store.heartbeat(worker, MINUTE, ids(held), [], harness.last_claim(worker))
    assert (heartbeat.alive, heartbeat.returned, heartbeat.cancels) == (True, 0, ())
    assert set(await harness.states(held)) == {RunState.RUNNING}


async def test_a_heartbeat_returns_a_claimed_run_it_does_not_name_uncharged(harness: Harness) -> None:
    worker = await harness.worker()
    known, lost = some_runs(2)
    await harness.submit(known)
    held = await harness.claim(worker)
    await harness.submit(lost)
    await harness.claim(worker)
    heartbeat = await harness.store.heartbeat(worker, MINUTE, ids(held), [], harness.last_claim(worker))
    assert heartbeat.returned == 1
    assert await harness.states([known, lost]) == [RunState.RUNNING, RunState.QUEUED]
    assert (await harness.view(lost.id)).attempt == 0
    [again] = await harness.claim(worker)
    assert (again.id, again.attempt, again.lost) == (lost.id, 1, 0)


async def test_a_heartbeat_returns_no_named_run_beside_one_with_a_limit(harness: Harness) -> None:
    worker = await harness.worker()
    known, lost = (a_run(limits=(a_limit(most=2),)) for _ in range(2))
    await harness.submit(known, lost)
    await harness.claim(worker)
    heartbeat = await harness.store.heartbeat(worker, MINUTE, [known.id], [], harness.last_claim(worker))
    assert heartbeat.returned == 1
    assert await harness.states([known, lost]) == [RunState.RUNNING, RunState.QUEUED]


async def test_a_returned_run_keeps_its_place_in_the_queue(harness: Harness) -> None:
    worker = await harness.worker()
    early = a_run()
    await harness.submit(early)
    await harness.claim(worker)
    await harness.advance(MINUTE)
    late = a_run()
    await harness.submit(late)
    await harness.store.heartbeat(worker, MINUTE, [], [], harness.last_claim(worker))
    assert ids(await harness.claim(worker)) == [early.id, late.id]


async def test_a_completion_of_a_returned_run_is_fenced(harness: Harness) -> None:
    worker = await harness.worker()
    await harness.submit(a_run())
    [late] = await harness.claim(worker)
    await harness.store.heartbeat(worker, MINUTE, [], [], harness.last_claim(worker))
    assert await harness.complete(complete_success(late, None)) == [CompletionAnswer.STALE]
    assert await harness.state(late.id) is RunState.QUEUED


async def test_a_heartbeat_returns_no_run_of_a_claim_without_an_answer_yet(harness: Harness) -> None:
    worker = await harness.worker()
    await harness.submit(a_run())
    [held] = await harness.claim(worker)
    number = harness.last_claim(worker)
    assert (await harness.store.heartbeat(worker, MINUTE, [], [number], number)).returned == 0
    assert await harness.state(held.id) is RunState.RUNNING
    # The worker has abandoned the claim because no answer came.
    assert (await harness.store.heartbeat(worker, MINUTE, [], [], number)).returned == 1


async def test_a_heartbeat_ignores_a_newer_claim(harness: Harness) -> None:
    worker = await harness.worker()
    await harness.claim(worker)
    number_when_it_looked = harness.last_claim(worker)
    await harness.submit(a_run())
    [held] = await harness.claim(worker)
    assert (await harness.store.heartbeat(worker, MINUTE, [], [], number_when_it_looked)).returned == 0
    assert await harness.state(held.id) is RunState.RUNNING


async def test_a_claim_applied_after_the_worker_abandoned_it_is_returned_by_a_heartbeat(harness: Harness) -> None:
    """The connection broke, and the old backend committed after the worker had claimed again."""
    worker = await harness.worker()
    abandoned, newest = 1, 2
    await harness.submit(a_run())
    assert (await harness.store.heartbeat(worker, MINUTE, [], [], newest)).returned == 0
    [late] = await harness.store.claim(worker, abandoned, [Demand("default", 1)])
    assert (await harness.store.heartbeat(worker, MINUTE, [], [], newest)).returned == 1
    assert await harness.state(late.id) is RunState.QUEUED


async def test_a_heartbeat_does_not_return_runs_of_another_worker(harness: Harness) -> None:
    one, other = await harness.worker(), await harness.worker()
    await harness.submit(a_run())
    [held] = await harness.claim(one)
    assert (await harness.store.heartbeat(other, MINUTE, [], [], 100)).returned == 0
    assert await harness.state(held.id) is RunState.RUNNING


async def test_a_heartbeat_that_names_runs_of_another_worker_changes_nothing(harness: Harness) -> None:
    worker = await harness.worker()
    queued = a_run()
    [strangers] = await harness.start(a_run())
    await harness.submit(queued)
    await harness.store.cancel([strangers.id])
    heartbeat = await harness.store.heartbeat(worker, MINUTE, [queued.id, strangers.id], [], 0)
    assert (heartbeat.returned, heartbeat.cancels) == (0, ())
    assert await harness.states([queued, strangers]) == [RunState.QUEUED, RunState.CANCELLING]


async def test_a_heartbeat_returns_the_cancelling_runs(harness: Harness) -> None:
    worker = await harness.worker()
    await harness.submit(*some_runs(3))
    held = await harness.claim(worker)
    await harness.store.cancel([held[1].id])
    for _ in range(2):
        heartbeat = await harness.store.heartbeat(worker, MINUTE, ids(held), [], harness.last_claim(worker))
        assert heartbeat.cancels == (held[1].id,)


async def test_an_unnamed_cancelling_run_is_cancelled_by_the_heartbeat(harness: Harness) -> None:
    worker = await harness.worker()
    await harness.submit(a_run())
    [held] = await harness.claim(worker)
    await harness.store.cancel([held.id])
    await harness.store.heartbeat(worker, MINUTE, [], [], harness.last_claim(worker))
    assert await harness.state(held.id) is RunState.CANCELLED
    assert await harness.claim(worker) == []


async def test_an_unnamed_run_keeps_its_ordering_key(harness: Harness) -> None:
    worker = await harness.worker()
    first, second = some_runs(2, key="video-1")
    await harness.submit(first, second)
    await harness.claim(worker)
    await harness.store.heartbeat(worker, MINUTE, [], [], harness.last_claim(worker))
    assert await harness.states([first, second]) == [RunState.QUEUED, RunState.BLOCKED]
    assert ids(await harness.claim(worker)) == [first.id]


async def test_an_unnamed_cancelling_run_releases_its_ordering_key(harness: Harness) -> None:
    worker = await harness.worker()
    first, second = some_runs(2, key="video-1")
    await harness.submit(first, second)
    await harness.claim(worker)
    await harness.store.cancel([first.id])
    await harness.store.heartbeat(worker, MINUTE, [], [], harness.last_claim(worker))
    assert await harness.states([first, second]) == [RunState.CANCELLED, RunState.QUEUED]


async def test_the_runs_of_a_closed_session_are_lost(harness: Harness) -> None:
    worker = await harness.worker()
    await harness.submit(a_run())
    [held] = await harness.claim(worker)
    await harness.store.close_session(worker)
    assert ids(await harness.store.lost_runs(10)) == [held.id]


async def test_a_session_may_be_closed_again_and_stays_closed(harness: Harness) -> None:
    worker = await harness.worker()
    await harness.store.close_session(worker)
    await harness.store.close_session(worker)
    await harness.store.close_session(SessionId(987_654_321))
    assert not (await harness.store.heartbeat(worker, MINUTE, [], [], 0)).alive


async def test_many_leases_are_renewed_in_one_call(harness: Harness) -> None:
    store = harness.store
    short, long, gone = [await harness.worker(ttl) for ttl in (MINUTE, MINUTE, MINUTE)]
    await store.close_session(gone)
    unknown = SessionId(2**31 - 1)
    before = await harness.now()
    heartbeats = await store.renew_leases(
        [(long, HOUR), (gone, HOUR), (short, 2 * MINUTE), (unknown, HOUR), (long, HOUR)]
    )
    assert [heartbeat.alive for heartbeat in heartbeats] == [True, False, True, False, True]
    assert all(
        heartbeat.now >= before and not heartbeat.draining and not heartbeat.returned for heartbeat in heartbeats
    )
    await harness.advance(30 * MINUTE)
    await store.lost_runs(10)
    assert [heartbeat.alive for heartbeat in await store.renew_leases([(short, MINUTE), (long, MINUTE)])] == [
        False,
        True,
    ]
