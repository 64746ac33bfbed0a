"""Locks of PostgreSQL: a second connection holds rows, and a call of the store skips them or waits for them."""

from collections.abc import AsyncIterator

import msgspec
import pytest

from mainspring.core.model.access.access import Quotas, Tenant
from mainspring.core.model.base.ids import SessionId
from mainspring.core.model.base.instant import DAY, HOUR, MINUTE
from mainspring.core.model.limits.budget import Budget
from mainspring.core.model.limits.limits import Breaker, build_limiters
from mainspring.core.model.limits.queues import QueuePolicy
from mainspring.core.model.runs.completion import complete_success
from mainspring.core.model.runs.new_run import Idempotency, NewRun
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.runs.unique import Unique
from mainspring.core.model.schedules.job import JobState
from mainspring.core.ports.storage.upkeep import Retention
from mainspring.core.store import KEYS_KEPT
from mainspring.stores.postgres.rows import compute_order_lock
from tests.support.boundaries import ADA, on_every_claim_path, prepare_claim_path
from tests.support.builders import a_fire, a_job, a_limit, a_policy, a_run, a_spec, a_tick, every
from tests.support.kept_connections import KeptConnections
from tests.support.rival import Rival, connect_rival, open_frozen_store
from tests.support.store_harness import PostgresHarness, ids

pytestmark = pytest.mark.postgres

LIMIT = a_limit("customer", 1)
[GATE] = build_limiters("default", "greet", (LIMIT,), None)
KEY = compute_order_lock("default", "key")


@pytest.fixture
async def harness(contract_database: str, kept_connections: KeptConnections) -> AsyncIterator[PostgresHarness]:
    async with open_frozen_store(contract_database, kept_connections) as harness:
        yield harness


@pytest.fixture
async def rival(harness: PostgresHarness) -> AsyncIterator[Rival]:
    async with connect_rival(harness) as rival:
        yield rival


# Rows that are held are skipped


@on_every_claim_path
async def test_a_claim_skips_a_run_that_another_holds(harness: PostgresHarness, rival: Rival, path: str) -> None:
    way = await prepare_claim_path(harness, path)
    worker = await way.worker(HOUR)
    held, free = way.adapt(a_run()), way.adapt(a_run())
    await harness.submit(held)
    await harness.submit(free)
    await rival.hold("run WHERE id = $1", held.id)
    assert ids(await rival.at_once(way.claim(worker, [held, free]))) == [free.id]
    await rival.release()
    assert ids(await way.claim(worker, [held, free])) == [held.id]


async def test_the_reaper_skips_a_session_that_another_holds(harness: PostgresHarness, rival: Rival) -> None:
    workers = [await harness.worker(MINUTE) for _ in range(2)]
    await harness.submit(a_run(), a_run())
    first, second = [(await harness.claim(worker, 1))[0] for worker in workers]
    await harness.move_clock(MINUTE)
    await rival.hold("session WHERE id = $1", workers[0])
    assert ids(await rival.at_once(harness.store.lost_runs(10))) == [second.id]
    await rival.release()
    assert set(ids(await harness.store.lost_runs(10))) == {first.id, second.id}


async def test_a_renewal_skips_an_expired_scheduler_that_another_holds(harness: PostgresHarness, rival: Rival) -> None:
    expired = await harness.store.join("expired", MINUTE)
    member = await harness.store.join("member", HOUR)
    await harness.move_clock(MINUTE)
    await rival.hold("session WHERE id = $1", expired)
    assert (await rival.at_once(harness.store.renew(member, HOUR))).members == (expired, member)
    await rival.release()
    assert (await harness.store.renew(member, HOUR)).members == (member,)


async def test_a_takeover_skips_a_shard_that_another_holds(harness: PostgresHarness, rival: Rival) -> None:
    member = await harness.store.join("member", HOUR)
    await rival.hold("shard WHERE id = 1")
    assert set(await rival.at_once(harness.store.take(member, [1, 2]))) == {2}
    await rival.release()
    assert set(await harness.store.take(member, [1, 2])) == {1}


@pytest.mark.parametrize(
    "pair",
    [
        (a_run(delay=MINUTE), a_run(delay=MINUTE)),
        (a_run(delay=MINUTE, key="one"), a_run(delay=MINUTE, key="two")),
        (a_run(delay=MINUTE, limits=(a_limit("one"),)), a_run(delay=MINUTE, limits=(a_limit("two"),))),
    ],
    ids=["plain", "ordering key", "limit"],
)
async def test_staging_skips_a_run_that_another_holds(
    harness: PostgresHarness, rival: Rival, pair: tuple[NewRun, NewRun]
) -> None:
    await harness.owner()
    await harness.submit(*pair)
    await harness.move_clock(MINUTE)
    await rival.hold("waiting WHERE id = $1", pair[0].id)
    assert (await rival.at_once(harness.stage())).runs == 1
    assert await harness.states(pair) == [RunState.SCHEDULED, RunState.QUEUED]
    await rival.release()
    assert (await harness.stage()).runs == 1


@pytest.mark.parametrize("place", ["run", "waiting"])
@pytest.mark.parametrize("missed", ["start_by", "deadline", "target"])
async def test_expiry_skips_a_run_that_another_holds(
    harness: PostgresHarness, rival: Rival, place: str, missed: str
) -> None:
    worker = await harness.worker(MINUTE)
    timed = {"start_by": a_run(start_within=HOUR), "deadline": a_run(deadline=HOUR), "target": a_run(target=worker)}
    base = msgspec.structs.replace(timed[missed], delay=MINUTE if place == "waiting" else 0)
    held, free = (msgspec.structs.replace(base, id=a_run().id) for _ in range(2))
    await harness.submit(held, free)
    await harness.move_clock(2 * HOUR)
    await harness.store.lost_runs(10)
    await rival.hold(f"{place} WHERE id = $1", held.id)
    assert await rival.at_once(harness.store.expire(10)) == 1
    ended = [state.ended for state in await harness.states([held, free])]
    assert ended == [False, True]
    await rival.release()
    assert await harness.store.expire(10) == 1


async def test_a_completion_gives_its_key_to_the_next_run_that_is_not_locked(
    harness: PostgresHarness, rival: Rival
) -> None:
    [held] = await harness.start(a_run(key="key"))
    first, second = a_run(key="key"), a_run(key="key")
    await harness.submit(first, second)
    await rival.hold("waiting WHERE id = $1", first.id)
    await rival.at_once(harness.succeed(held))
    assert await harness.states([first, second]) == [RunState.BLOCKED, RunState.QUEUED]
    await rival.release()


async def test_a_completion_admits_the_next_run_of_a_limit_that_is_not_locked(
    harness: PostgresHarness, rival: Rival
) -> None:
    [held] = await harness.start(a_run(limits=(LIMIT,)))
    first, second = a_run(limits=(LIMIT,)), a_run(limits=(LIMIT,))
    await harness.submit(first, second)
    await rival.hold("waiting WHERE id = $1", first.id)
    await rival.at_once(harness.succeed(held))
    assert await harness.states([first, second]) == [RunState.BLOCKED, RunState.QUEUED]
    await rival.release()


async def test_resolving_skips_a_parent_that_another_holds(harness: PostgresHarness, rival: Rival) -> None:
    parents = [a_run(delay=HOUR), a_run(delay=HOUR)]
    children = [a_run(after=[parent]) for parent in parents]
    await harness.submit(*parents, *children)
    # Both parents have ended, and their children are not decided yet.
    await harness._connection.execute(
        "INSERT INTO ended_parent (run_id, state, at) SELECT id, 5, 0 FROM unnest($1::uuid[]) AS id", ids(parents)
    )
    await rival.hold("ended_parent WHERE run_id = $1", parents[0].id)
    await rival.at_once(harness.resolve())
    assert await harness.states(children) == [RunState.BLOCKED, RunState.QUEUED]
    await rival.release()
    await harness.resolve()
    assert await harness.states(children) == [RunState.QUEUED, RunState.QUEUED]


@pytest.mark.parametrize("table", ["job", "schedule"])
async def test_upkeep_resumes_the_paused_jobs_that_are_not_locked(
    harness: PostgresHarness, rival: Rival, table: str
) -> None:
    jobs = [await harness.put(a_job(a_spec(schedule=every(DAY)))) for _ in range(2)]
    until = await harness.now() + MINUTE
    await harness.store.set_jobs_state([job.id for job in jobs], JobState.PAUSED, ADA, resume_at=until)
    await harness.move_clock(MINUTE)
    await rival.hold(f"{table} WHERE {'id' if table == 'job' else 'job_id'} = $1", jobs[0].id)
    await rival.at_once(harness.store.tidy())
    states = [(await harness.job(job.id)).state for job in jobs]
    assert states == [JobState.PAUSED, JobState.SCHEDULED]
    await rival.release()


@pytest.mark.parametrize("table", ["idempotency", "unique_run"])
async def test_upkeep_skips_an_expired_key_that_another_holds(
    harness: PostgresHarness, rival: Rival, table: str
) -> None:
    for number in range(2):
        idempotency = Idempotency(f"key-{number}", b"same") if table == "idempotency" else None
        unique = Unique(key=f"key-{number}", period=HOUR) if table == "unique_run" else None
        await harness.submit(a_run(idempotency=idempotency, unique=unique))
    await harness.move_clock(KEYS_KEPT)
    await rival.hold(f"{table} WHERE key = (SELECT key FROM {table} ORDER BY key LIMIT 1)")
    await rival.at_once(harness.store.prune(Retention(), 10) if table == "unique_run" else harness.store.tidy())
    assert await harness._connection.fetchval(f"SELECT count(*) FROM {table}") == 1
    await rival.release()


@pytest.mark.parametrize("held", ["run", "limit"])
async def test_an_opening_breaker_skips_a_queued_run_that_another_holds(
    harness: PostgresHarness, rival: Rival, held: str
) -> None:
    """The run, or a limit that it would leave, is held: the run is blocked later."""
    policy = a_policy(retries=0, breaker=Breaker(failures=1))
    [failing] = await harness.start(a_run(policy=policy))
    limited = a_run(policy=msgspec.structs.replace(policy, limits=(LIMIT,)))
    free = a_run(policy=policy)
    await harness.submit(limited, free)
    if held == "run":
        await rival.hold("run WHERE id = $1", limited.id)
    else:
        await rival.hold("limiter WHERE number = $1", GATE.number)
    await rival.at_once(harness.fail(failing))
    assert await harness.states([limited, free]) == [RunState.QUEUED, RunState.BLOCKED]
    await rival.release()
    await harness.resolve()
    assert await harness.states([limited, free]) == [RunState.BLOCKED, RunState.BLOCKED]


@pytest.mark.parametrize("table", ["key_lock", "limiter"])
async def test_upkeep_keeps_the_row_of_a_key_or_limit_that_another_is_taking(
    harness: PostgresHarness, rival: Rival, table: str
) -> None:
    parts = {"key": "key"} if table == "key_lock" else {"limits": (LIMIT,)}
    await harness.succeed(*await harness.start(a_run(**parts)))
    await harness.move_clock(DAY)
    await rival.hold(table)
    await rival.at_once(harness.store.prune(Retention(), 10))
    assert await harness._connection.fetchval(f"SELECT count(*) FROM {table}") == 1
    await rival.release()
    await harness.store.prune(Retention(), 10)
    assert await harness._connection.fetchval(f"SELECT count(*) FROM {table}") == 0


async def test_a_budget_lowers_the_runs_that_are_not_locked(harness: PostgresHarness, rival: Rival) -> None:
    held, free = a_run(), a_run()
    await harness.submit(held, free)
    await rival.hold("run WHERE id = $1", held.id)
    budget = Budget(tenant="default", name="cheap", unit="attempts", limit=1, then="lower")
    assert await rival.at_once(harness.store.lower(budget, 10)) == 1
    await rival.release()


async def test_a_claim_of_a_queue_that_became_fair_skips_a_run_that_another_holds(
    harness: PostgresHarness, rival: Rival
) -> None:
    held, free = a_run(), a_run()
    await harness.submit(held, free)
    await harness.store.put_queue_policy("default", QueuePolicy(fair=True), ADA)
    await rival.hold("run WHERE id = $1", held.id)
    assert ids(await rival.at_once(harness.claim(await harness.worker()))) == [free.id]
    await rival.release()


# Rows that are held are waited for


@on_every_claim_path
async def test_a_claim_waits_for_the_session_that_another_changes(
    harness: PostgresHarness, rival: Rival, path: str
) -> None:
    way = await prepare_claim_path(harness, path)
    worker, run = await way.worker(HOUR), way.adapt(a_run())
    await harness.submit(run)
    await rival.hold("session WHERE id = $1", worker)
    claiming = await rival.waits(way.claim(worker, [run]))
    await rival.release()
    assert ids(await claiming) == [run.id]


@on_every_claim_path
async def test_a_claim_of_a_session_that_expires_meanwhile_returns_nothing(
    harness: PostgresHarness, rival: Rival, path: str
) -> None:
    way = await prepare_claim_path(harness, path)
    worker, run = await way.worker(HOUR), way.adapt(a_run())
    await harness.submit(run)
    await rival.execute("UPDATE session SET live = false, ended_at = 0 WHERE id = $1", worker)
    claiming = await rival.waits(way.claim(worker, [run]))
    await rival.commit()
    assert await claiming == []


@on_every_claim_path
async def test_two_claims_of_one_session_do_not_wait_for_each_other(
    harness: PostgresHarness, rival: Rival, path: str
) -> None:
    way = await prepare_claim_path(harness, path)
    worker, run = await way.worker(HOUR), way.adapt(a_run())
    await harness.submit(run)
    await rival.hold("session WHERE id = $1", worker, mode="SHARE")
    assert ids(await rival.at_once(way.claim(worker, [run]))) == [run.id]
    await rival.release()


async def test_a_heartbeat_waits_for_a_claim_of_its_session(harness: PostgresHarness, rival: Rival) -> None:
    worker = await harness.worker(HOUR)
    await rival.hold("session WHERE id = $1", worker, mode="SHARE")
    for heartbeat in (harness.store.heartbeat(worker, HOUR, (), (), 0), harness.store.renew_leases([(worker, HOUR)])):
        task = await rival.waits(heartbeat)
        await rival.release()
        await task
        await rival.hold("session WHERE id = $1", worker, mode="SHARE")
    await rival.release()


async def test_a_takeover_waits_for_the_renewal_of_an_expired_lease(harness: PostgresHarness, rival: Rival) -> None:
    owner, other = await harness.store.join("owner", MINUTE), await harness.store.join("other", HOUR)
    await harness.store.take(owner, [1])
    await harness.move_clock(MINUTE)
    await rival.execute("UPDATE session SET lease_until = lease_until + 1 WHERE id = $1", owner)
    taking = await rival.waits(harness.store.take(other, [1]))
    await rival.commit()
    assert await taking == {}


async def a_policed_queue(harness: PostgresHarness) -> tuple[SessionId, NewRun]:
    worker, run = await harness.worker(HOUR), a_run()
    await harness.submit(run)
    return worker, run


async def test_a_claim_under_a_quota_waits_for_another_claim(harness: PostgresHarness, rival: Rival) -> None:
    await harness.store.put_tenant(Tenant(name="default", quotas=Quotas(running=1)), ADA)
    worker, run = await a_policed_queue(harness)
    await rival.hold("tenant")
    claiming = await rival.waits(harness.claim(worker))
    await rival.release()
    assert ids(await claiming) == [run.id]


async def test_a_claim_under_a_policy_waits_for_another_claim(harness: PostgresHarness, rival: Rival) -> None:
    await harness.store.put_queue_policy("default", QueuePolicy(concurrency=1), ADA)
    worker, run = await a_policed_queue(harness)
    await rival.hold("queue_policy")
    claiming = await rival.waits(harness.claim(worker))
    await rival.release()
    assert ids(await claiming) == [run.id]


@pytest.mark.parametrize("call", ["submit", "complete", "stage"])
@pytest.mark.parametrize("kind", ["ordering key", "limit"])
async def test_a_call_waits_for_the_key_or_limit_that_another_changes(
    harness: PostgresHarness, rival: Rival, call: str, kind: str
) -> None:
    parts = {"key": "key"} if kind == "ordering key" else {"limits": (LIMIT,)}
    run = a_run(**parts)
    [held] = await harness.start(run)
    later = a_run(**parts, delay=MINUTE)
    if call == "stage":
        await harness.owner()
        await harness.submit(later)
        await harness.move_clock(MINUTE)
    number = KEY if kind == "ordering key" else GATE.number
    await rival.hold("key_lock WHERE key = $1" if kind == "ordering key" else "limiter WHERE number = $1", number)
    waiting = await rival.waits(
        harness.store.complete([complete_success(held, None)])
        if call == "complete"
        else harness.stage()
        if call == "stage"
        else harness.submit(a_run(**parts))
    )
    await rival.release()
    await waiting


async def test_a_completion_sees_a_run_that_was_blocked_while_it_waited(harness: PostgresHarness, rival: Rival) -> None:
    [held] = await harness.start(a_run(key="key"))
    later = a_run(key="key", delay=MINUTE)
    await harness.submit(later)
    # Staging takes these steps when the run is due and its key is held.
    await rival.hold("key_lock WHERE key = $1", KEY)
    await rival.execute("UPDATE waiting SET state = 2 WHERE id = $1", later.id)
    completing = await rival.waits(harness.succeed(held))
    await rival.commit()
    await completing
    assert await harness.state(later.id) is RunState.QUEUED


async def test_a_submit_counts_a_run_that_entered_the_limit_while_it_waited(
    harness: PostgresHarness, rival: Rival
) -> None:
    await harness.succeed(*await harness.start(a_run(limits=(LIMIT,))))
    await rival.execute("UPDATE limiter SET used = 1 WHERE number = $1", GATE.number)
    submitting = await rival.waits(harness.submit(a_run(limits=(LIMIT,))))
    await rival.commit()
    [accepted] = await submitting
    assert accepted.state is RunState.BLOCKED
    # No run stands behind the count that the second connection wrote, so the sweep corrects it.
    assert await harness.store.sweep(10) > 0


@pytest.mark.parametrize("wins", [False, True], ids=["rolled back", "committed"])
async def test_a_tick_that_another_records_waits_and_makes_no_second_run(
    harness: PostgresHarness, rival: Rival, wins: bool
) -> None:
    job = await harness.put(a_job(a_spec(schedule=every(HOUR, start=await harness.now() + MINUTE))))
    assert job.next_fire is not None
    await harness.move_clock(MINUTE)
    owner = await harness.owner()
    await rival.execute(
        "INSERT INTO ledger (job_id, scheduled_at, decision, job_version, epoch, tenant, target)"
        " SELECT id, $2::bigint, 2, 1, 1, tenant, '' FROM job WHERE id = $1",
        job.id,
        job.next_fire,
    )
    fire = a_fire(job, a_tick(job, job.next_fire), next_fire=job.next_fire + HOUR)
    firing = await rival.waits(harness.store.fire(owner, [fire]))
    await (rival.commit() if wins else rival.release())
    [fired] = await firing
    assert (fired.applied, fired.runs) == (True, 0 if wins else 1)
    assert len(await harness.ticks(job.id)) == 1


async def test_a_submit_takes_a_limit_that_another_adds_meanwhile(harness: PostgresHarness, rival: Rival) -> None:
    await rival.execute("INSERT INTO limiter (number, kind, used) VALUES ($1, 1, 1)", GATE.number)
    submitting = await rival.waits(harness.submit(a_run(limits=(LIMIT,))))
    await rival.commit()
    [accepted] = await submitting
    assert accepted.state is RunState.BLOCKED
    # No run stands behind the count that the second connection wrote, so the sweep corrects it.
    assert await harness.store.sweep(10) > 0


async def test_a_completion_waits_for_the_other_limits_of_the_run_that_it_admits(
    harness: PostgresHarness, rival: Rival
) -> None:
    """It locks the limits of the first run that its own limit blocks, and of no other blocked run."""
    numbers = {name: build_limiters("default", "greet", (a_limit(name),), None)[0].number for name in "abcde"}

    def a_run_of(names: str, age: int = 0, now: int = 0) -> NewRun:
        return a_run(at=now - age, limits=tuple(a_limit(name) for name in names))

    now = await harness.now()
    [held, _] = await harness.start(a_run_of("a", now=now), a_run_of("d", now=now))
    later, first = a_run_of("ac", 1, now), a_run_of("ab", 2, now)
    of_another_limit = a_run_of("de", 3, now)
    for run in (later, first, of_another_limit):
        await harness.submit(run)
    assert await harness.states([first, later, of_another_limit]) == [RunState.BLOCKED] * 3
    await rival.hold("limiter WHERE number = ANY ($1)", [numbers["c"], numbers["e"]])
    other = await rival.at_once(harness.submit(a_run_of("b", now=now)))
    assert other[0].state is RunState.QUEUED
    await rival.release()
    await harness.store.cancel([other[0].id])
    await rival.hold("limiter WHERE number = $1", numbers["b"])
    completing = await rival.waits(harness.succeed(held))
    for name in "cde":
        assert not await rival.is_locked("limiter WHERE number = $1", numbers[name])
    await rival.release()
    await completing
    assert await harness.states([first, later, of_another_limit]) == [RunState.QUEUED, *[RunState.BLOCKED] * 2]


async def test_the_end_of_a_schedule_drops_no_tick_that_another_fires_meanwhile(
    harness: PostgresHarness, rival: Rival
) -> None:
    job = await harness.put(a_job(a_spec(schedule=every(HOUR, start=await harness.now() + MINUTE))))
    await harness.move_clock(MINUTE)
    await rival.execute(
        "UPDATE schedule SET next_fire = next_fire + $2, tick = tick + $2, rev = rev + 1 WHERE job_id = $1",
        job.id,
        HOUR,
    )
    cancelling = await rival.waits(harness.store.set_jobs_state([job.id], JobState.CANCELLED, ADA))
    await rival.commit()
    await cancelling
    assert await harness.ticks(job.id) == []
