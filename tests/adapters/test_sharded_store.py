"""A sharded store over three databases: where data lies, which requests are refused, and moves of placement groups."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator
from functools import partial
from itertools import count
from random import Random

import asyncpg
import msgspec
import pytest

from mainspring.core.model.base.errors import Conflict, Invalid, StoreUnavailable
from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import DAY, HOUR, SECOND
from mainspring.core.model.cluster.placement import choose_placement_group
from mainspring.core.model.limits.queues import QueuePolicy, RetryBudget
from mainspring.core.model.runs.completion import CompletionAnswer, complete_failure, complete_success
from mainspring.core.model.runs.new_run import Idempotency, NewRun
from mainspring.core.model.runs.run import HeldRun, RunState
from mainspring.core.model.runs.unique import Unique
from mainspring.core.model.schedules.calendar import CalendarSpec
from mainspring.core.model.schedules.plan import plan
from mainspring.core.ports.storage.access import Author
from mainspring.core.ports.storage.answers import PartialCompletion
from mainspring.core.ports.storage.catalog import JobFilter, RunFilter
from mainspring.core.runtime.local_wakeups import LocalWakeups
from mainspring.core.runtime.system_clock import SystemClock
from mainspring.core.store import Demand
from mainspring.core.submit.jobs import Jobs
from mainspring.stores.postgres import PostgresStore
from mainspring.stores.sharded import ShardedStore
from mainspring.stores.sharded.joining import move
from tests.support.builders import a_job, a_limit, a_policy, a_run, a_spec, a_worker, every
from tests.support.databases import create_database, drop_database, migrated_template, with_database
from tests.support.sharded_harness import build_sharded_store
from tests.support.waiting import eventually

pytestmark = pytest.mark.postgres

ME = Author("tests")
SHARDS = 16


@pytest.fixture(scope="module")
def addresses(postgres_dsn: str) -> Iterator[list[str]]:
    """Databases that all tests here share. Each test has its own tenants and queue."""
    names = [f"test_{uuid.uuid4().hex}" for _ in range(3)]

    async def make() -> list[str]:
        template = await migrated_template(postgres_dsn, SHARDS)
        found = [with_database(postgres_dsn, name) for name in names]
        for name, address in zip(names, found, strict=True):
            await create_database(postgres_dsn, name, template)
            await _execute(address, "UPDATE mainspring.meta SET store_id = gen_random_uuid()")
        return found

    async def drop() -> None:
        for name in names:
            await drop_database(postgres_dsn, name)

    try:
        yield asyncio.run(make())
    finally:
        asyncio.run(drop())


class Mine:
    """Names that only one test uses."""

    queue = ""
    prefix = ""


@pytest.fixture(autouse=True)
def _mine() -> None:
    Mine.queue = f"queue-{uuid.uuid4().hex}"
    Mine.prefix = uuid.uuid4().hex


@pytest.fixture
async def store(addresses: list[str]) -> AsyncIterator[ShardedStore]:
    store = build_sharded_store(addresses, SHARDS)
    await store.open()
    yield store
    await store.close()


async def _execute(address: str, statement: str) -> None:
    connection = await asyncpg.connect(address)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


def jobs_on(store: ShardedStore) -> Jobs:
    wakeups = LocalWakeups()
    return Jobs(
        store,
        wakeups,
        SystemClock(),
        Random(),
        shards=SHARDS,
        placement_groups=store.place_count,
        group_by=store.find_server,
    )


def tenant_on(store: ShardedStore, number: int, which: int = 0) -> str:
    """A tenant whose data lies on a server."""
    names = (f"{Mine.prefix}-{count}" for count in range(10_000))
    found = [
        name
        for name in (next(names) for _ in range(500))
        if store._servers.home(choose_placement_group(name, "", store.place_count)).number == number
    ]
    return found[which]


def make_runs(store: ShardedStore, tenant: str, count: int, **fields: object) -> list[NewRun]:
    policy = fields.get("policy")
    key = policy.ordering_key if policy is not None else ""  # type: ignore[attr-defined]
    ids = jobs_on(store).new_run_ids([key] * count, tenant=tenant)
    return [a_run(id=run_id, tenant=tenant, queue=Mine.queue, **fields) for run_id in ids]  # type: ignore[arg-type]


async def claim_all(store: ShardedStore, limit: int = 100) -> list[HeldRun]:
    session = await store.open_session(a_worker(ttl=DAY))
    return await store.claim(session, 1, [Demand(Mine.queue, limit)])


async def count_rows(address: str, place: int, groups: int) -> int:
    """How many rows of a placement group a server has."""
    connection = await asyncpg.connect(address)
    try:
        return int(
            await connection.fetchval(
                " UNION ALL ".join(
                    f"SELECT count(*) FROM mainspring.{table} WHERE mainspring.compute_id_placement(id, $2) = $1"
                    for table in ("run", "waiting", "body", "job", "history")
                ).join(("SELECT sum(n) FROM (", " UNION ALL SELECT count(*) FROM mainspring.departed) AS t(n)")),
                place,
                groups,
            )
        )
    finally:
        await connection.close()


async def test_runs_lie_on_the_server_of_their_tenant_and_lists_are_merged(
    store: ShardedStore, addresses: list[str]
) -> None:
    tenants = [tenant_on(store, number) for number in range(3)]
    runs = [run for tenant in tenants for run in make_runs(store, tenant, 5)]
    Random(1).shuffle(runs)
    accepted = await store.submit(runs)
    assert [(answer.id, answer.state, answer.new) for answer in accepted] == [
        (run.id, RunState.QUEUED, True) for run in runs
    ]
    for address, (_, part), tenant in zip(addresses, store.stores, tenants, strict=True):
        assert await part.count_runs(RunFilter(tenant=None, queue=Mine.queue), 100) == 5, address
        assert await part.count_runs(RunFilter(tenant=tenant), 100) == 5
    newest = sorted((run.id for run in runs), reverse=True)
    found: list[RunId] = []
    after = None
    while True:
        page = await store.list_runs(RunFilter(tenant=None, queue=Mine.queue), after, 4)
        found += [view.id for view in page.items]
        if page.after is None:
            break
        after = RunId(page.after)
    assert found == newest
    assert [depth.queued for depth in await store.depths() if depth.queue == Mine.queue] == [15]
    assert [view.id for view in await store.runs([run.id for run in runs]) if view] == [run.id for run in runs]
    held = await claim_all(store, 12)
    assert len(held) == 12
    held += await claim_all(store, 12)
    assert {run.id for run in held} == {run.id for run in runs}
    assert await store.complete([complete_success(run, None) for run in held]) == [CompletionAnswer.ACCEPTED] * 15
    assert await store.complete([complete_success(run, None) for run in held]) == [CompletionAnswer.DUPLICATE] * 15
    assert {view.state for view in await store.runs([run.id for run in runs]) if view} == {RunState.SUCCEEDED}


async def test_a_server_without_runs_is_asked_again_when_the_others_leave_demand(store: ShardedStore) -> None:
    full, empty = tenant_on(store, 0), tenant_on(store, 1)
    await store.submit(make_runs(store, full, 30))
    session = await store.open_session(a_worker(ttl=DAY))
    assert len(await store.claim(session, 1, [Demand(Mine.queue, 20)])) == 20
    await store.submit(make_runs(store, empty, 5))
    # New runs there are claimed at once if there is demand left, and in turn if there is none.
    assert {run.tenant for run in await store.claim(session, 2, [Demand(Mine.queue, 20)])} == {full, empty}
    await store.submit(make_runs(store, full, 200) + make_runs(store, empty, 5))
    numbers = count(3)

    async def reaches_the_empty_server() -> bool:
        held = await store.claim(session, next(numbers), [Demand(Mine.queue, 1)])
        return empty in {run.tenant for run in held}

    await eventually(reaches_the_empty_server)
    await store.close_session(session)
    assert not [key for key in (*store._had_nothing, *store._heard) if key[0] == session]


async def test_hinted_runs_are_claimed_on_their_servers(store: ShardedStore) -> None:
    tenants = [tenant_on(store, number) for number in range(3)]
    runs = [run for tenant in tenants for run in make_runs(store, tenant, 4)]
    await store.submit(runs)
    assert {hint.run for hint in await store.find_hints([run.id for run in runs])} == {run.id for run in runs}
    assert {hint.run for hint in await store.find_ready_hints([Mine.queue], 100)} == {run.id for run in runs}
    session = await store.open_session(a_worker())
    # Two runs of the first server, all of the second, and none of the third.
    named = tuple(run.id for run in (runs[0], runs[2], *runs[4:8]))
    held = await store.claim(session, 1, [Demand(Mine.queue, len(named), runs=named)])
    assert {run.id for run in held} == set(named)
    assert await store.claim(session, 2, [Demand(Mine.queue, len(named), runs=named)]) == []
    assert len(await store.claim(session, 3, [Demand(Mine.queue, 100)])) == 6


async def test_answers_keep_the_order_of_the_request_across_servers(store: ShardedStore) -> None:
    """Several places of one server, all mixed up."""
    tenants = [tenant_on(store, 0, which) for which in range(6)]
    assert len({choose_placement_group(tenant, "", store.place_count) for tenant in tenants}) > 1
    runs = [run for tenant in tenants for run in make_runs(store, tenant, 2)]
    Random(2).shuffle(runs)
    assert [answer.id for answer in await store.submit(runs)] == [run.id for run in runs]
    views = await store.runs([run.id for run in runs])
    assert [view and (view.id, view.tenant) for view in views] == [(run.id, run.tenant) for run in runs]


async def test_requests_across_placement_groups_are_refused(store: ShardedStore, addresses: list[str]) -> None:
    here, there = tenant_on(store, 0), tenant_on(store, 1)
    [run], [other] = make_runs(store, here, 1), make_runs(store, there, 1)
    with pytest.raises(Invalid) as wrong:
        await store.submit([a_run(id=other.id, tenant=here)])
    assert wrong.value.field == "id"
    await store.submit([run])
    with pytest.raises(Invalid) as wrong:
        await store.submit([a_run(id=other.id, tenant=there, after=[run])])
    assert wrong.value.field == "dependsOn"
    for field, policy in (
        ("concurrency", QueuePolicy(concurrency=3)),
        ("retries", QueuePolicy(retries=RetryBudget(most=3, per=SECOND))),
    ):
        with pytest.raises(Invalid) as wrong:
            await store.put_queue_policy(Mine.queue, policy, ME)
        assert wrong.value.field == field
    await store.put_queue_policy(Mine.queue, QueuePolicy(fair=True), ME)
    assert [(await part.queue_policies())[Mine.queue] for _, part in store.stores] == [QueuePolicy(fair=True)] * 3
    alone = PostgresStore(addresses[1])
    with pytest.raises(Conflict, match="server 1 of a store over several"):
        await alone.open()


async def test_a_placement_key_spreads_a_tenant_and_limits_apply_per_placement_group(store: ShardedStore) -> None:
    jobs = jobs_on(store)
    parts = [f"part-{number}" for number in range(20)]
    runs = [
        a_run(id=jobs.new_run_id(tenant=Mine.prefix, placement=part), tenant=Mine.prefix, unique=Unique(key="same"))
        for part in parts
    ]
    placed = [_with_placement(run, part) for run, part in zip(runs, parts, strict=True)]
    assert all(answer.new for answer in await store.submit(placed))
    assert len({store.find_server(run) for run in placed}) == 3
    again = a_run(
        id=jobs.new_run_id(tenant=Mine.prefix, placement="part-1"), tenant=Mine.prefix, unique=Unique(key="same")
    )
    [answer] = await store.submit([_with_placement(again, "part-1")])
    assert (answer.id, answer.new) == (placed[1].id, False)
    home = choose_placement_group(Mine.prefix, "", store.place_count)
    strange = next(
        run
        for run, part in zip(runs, parts, strict=True)
        if choose_placement_group(Mine.prefix, part, store.place_count) != home
    )
    with pytest.raises(Invalid):
        await store.submit([strange])


def _with_placement(run: NewRun, placement: str) -> NewRun:
    return msgspec.structs.replace(run, placement=placement)


async def test_a_placement_group_moves_with_all_of_its_rows(store: ShardedStore, addresses: list[str]) -> None:
    """Processes with an old map of placement groups only notice a short pause."""
    tenant = tenant_on(store, 0)
    place = choose_placement_group(tenant, "", store.place_count)
    old = build_sharded_store(addresses, SHARDS)
    await old.open()
    try:
        await _fill_move_and_look(store, old, tenant, place, addresses)
    finally:
        await old.close()


async def _fill_move_and_look(
    store: ShardedStore, old: ShardedStore, tenant: str, place: int, addresses: list[str]
) -> None:
    def make(count: int = 1, **fields: object) -> list[NewRun]:
        return make_runs(store, tenant, count, **fields)

    jobs = jobs_on(store)
    ended = make(idempotency=Idempotency("paid", b"1"))[0]
    failing = make(policy=a_policy(retries=1, pause=HOUR))[0]
    running = make()[0]
    lined = make(3, policy=a_policy(key="video"))
    limited = make(3, limits=(a_limit("customer", 1),))
    await store.submit([ended])
    worker = await store.open_session(a_worker(ttl=DAY))
    [held] = await store.claim(worker, 1, [Demand(Mine.queue, 9)])
    assert await store.complete([complete_success(held, b'"done"')]) == [CompletionAnswer.ACCEPTED]
    await store.submit([failing, running])
    claimed = await store.claim(worker, 2, [Demand(Mine.queue, 9)])
    by_id = {run.id: run for run in claimed}
    now = await store.now()
    await store.complete([complete_failure(by_id[failing.id], "boom", Random(0), now=now)])
    later = make(delay=HOUR)[0]
    child = make(after=[later])[0]
    await store.submit([later, child, *lined, *limited])
    await store.put_calendar(tenant, "holidays", CalendarSpec(closed_days=("saturday",)), ME)
    [put] = await store.put_jobs([a_job(a_spec(name="job"), id=jobs.new_job_id(tenant, "job"), tenant=tenant)])
    assert put.job.tenant == tenant

    await store.move_placement_group(place, 0, 2)
    assert store._servers.home(place).number == 2
    assert await count_rows(addresses[0], place, store.place_count) == 0

    for view in await old.runs([ended.id, failing.id, running.id, later.id, child.id]):
        assert view is not None
    [again] = await old.submit([make(idempotency=Idempotency("paid", b"1"))[0]])
    assert (again.id, again.new) == (ended.id, False)
    assert (await old.submit([running]))[0].new is False
    assert [attempt.error for attempt in await old.attempts(failing.id)] == ["boom"]
    assert [calendar.name for calendar in await old.calendars(tenant)] == ["holidays"]
    assert await old.job_named(tenant, "job") == put.job.id
    # The worker that holds the run has its old fence and an old map.
    heartbeat = await old.heartbeat(worker, DAY, [running.id], [], 2)
    assert (heartbeat.alive, heartbeat.returned, heartbeat.lost) == (True, 0, ())
    assert await old.complete([complete_success(by_id[running.id], None)]) == [CompletionAnswer.ACCEPTED]
    # One run of each ordering key and limit at a time, in order.
    seen: list[RunId] = []
    while found := await old.claim(worker, 3, [Demand(Mine.queue, 9)]):
        keyed = [run.id for run in found if run.policy.ordering_key]
        assert len(keyed) <= 1
        assert len([run for run in found if run.policy.limits]) <= 1
        seen += [run.id for run in found]
        await old.complete([complete_success(run, None) for run in found])
    assert sorted(seen) == sorted(run.id for run in [*lined, *limited])
    assert [run for run in seen if run in {one.id for one in lined}] == [run.id for run in lined]
    [page] = [await old.list_jobs(JobFilter(tenant=tenant), None, 10)]
    assert [job.id for job in page.items] == [put.job.id]
    assert await old.sweep(100) == 0


async def test_a_schedule_fires_on_the_server_its_placement_group_moved_to(
    store: ShardedStore, addresses: list[str]
) -> None:
    tenant = tenant_on(store, 1)
    place = choose_placement_group(tenant, "", store.place_count)
    job_id = jobs_on(store).new_job_id(tenant, "job")
    await store.put_jobs([a_job(a_spec(name="job", schedule=every(HOUR)), id=job_id, tenant=tenant)])
    owner = await store.join("scheduler", DAY)
    await store.take(owner, range(SHARDS))
    await store.move_placement_group(place, 1, 0)
    for address in addresses:
        late = f"next_fire = mainspring.now_us() - 1000000 WHERE job_id = '{job_id}'"
        await _execute(address, f"UPDATE mainspring.schedule SET {late}")
    due = [job for job in await store.due_jobs(range(SHARDS), await store.now(), 10) if job.id == job_id]
    assert len(due) == 1
    [fired] = await store.fire(owner, plan(due, await store.now()))
    assert (fired.applied, fired.runs) == (True, 1)
    assert len(await store.ledger(job_id, 0, await store.now() + HOUR, 10)) == 1


async def test_an_interrupted_move_is_finished_once(store: ShardedStore, addresses: list[str]) -> None:
    tenant = tenant_on(store, 0)
    place = choose_placement_group(tenant, "", store.place_count)
    source, target, third = store._servers.all
    runs = make_runs(store, tenant, 7)
    await store.submit(runs)
    # A crash after the first step: no server has the placement group.
    await source.store.depart(place, target.number)
    with pytest.raises(StoreUnavailable):
        await store.submit([a_run(id=runs[0].id, tenant=tenant)])
    with pytest.raises(Conflict):
        await move(place, source, third)
    # A crash after the second step: the new server already has it.
    transfer = await source.store.transfer(place)
    assert transfer is not None
    await target.store.arrive(place, transfer)
    await store._servers.read_map()
    held = await claim_all(store, 3)
    await store.complete([complete_success(run, None) for run in held])
    moves = await store.planned_moves()
    assert (place, 0, 1) in moves
    for planned in moves:
        await store.move_placement_group(*planned)
    held += await claim_all(store)
    await store.complete([complete_success(run, None) for run in held])
    assert sorted(run.id for run in held) == sorted(run.id for run in runs)
    page = await store.list_runs(RunFilter(tenant=tenant), None, 100)
    assert [view.id for view in page.items] == sorted((run.id for run in runs), reverse=True)
    assert await store.planned_moves() == []


async def test_a_server_that_is_away_does_not_stop_the_others(store: ShardedStore) -> None:
    here, there = tenant_on(store, 0), tenant_on(store, 1)
    mine, others = make_runs(store, here, 2), make_runs(store, there, 2)
    await store.submit([*mine, *others])
    session = await store.open_session(a_worker(ttl=DAY))
    held = await store.claim(session, 1, [Demand(Mine.queue, 9)])
    assert len(held) == 4
    gone = store._servers.all[1]
    gone.away = True
    with pytest.raises(StoreUnavailable, match=r"server 1 .* is unavailable"):
        await store.submit(make_runs(store, there, 1))
    with pytest.raises(PartialCompletion) as partly:
        await store.complete([complete_success(run, None) for run in held])
    answers = dict(zip([run.id for run in held], partly.value.answers, strict=True))
    assert [answers[run.id] for run in mine] == [CompletionAnswer.ACCEPTED] * 2
    assert [answers[run.id] for run in others] == [None] * 2
    await store.submit(make_runs(store, here, 1))
    assert len(await store.claim(session, 2, [Demand(Mine.queue, 9)])) == 1
    with pytest.raises(StoreUnavailable, match="every server"):
        await store.put_queue_policy(Mine.queue, QueuePolicy(fair=True), ME)
    ids = [run.id for run in held]
    assert (await store.heartbeat(session, 10 * HOUR, ids, [], 2)).lost == ()
    # Only the private record of the last answer can be set back without waiting for hours.
    store._heard[session, 1] -= 9 * HOUR
    assert sorted((await store.heartbeat(session, 10 * HOUR, ids, [], 2)).lost) == sorted(run.id for run in others)
    gone.away = False
    # The session has expired there meanwhile, and its runs were requeued.
    await gone.store._db.execute("close_session", session=session)
    heartbeat = await store.heartbeat(session, DAY, ids, [], 2)
    assert heartbeat.alive
    assert sorted(heartbeat.lost) == sorted(run.id for run in others)
    assert (
        await store.complete([complete_success(run, None) for run in held if run.tenant == there])
        == [CompletionAnswer.ACCEPTED] * 2
    )


async def test_runs_are_completed_once_while_placement_groups_move(store: ShardedStore, addresses: list[str]) -> None:
    mover = build_sharded_store(addresses, SHARDS)
    await mover.open()
    jobs = jobs_on(store)
    tenants = [f"{Mine.prefix}-{number}" for number in range(8)]
    runs: list[RunId] = []
    applied: list[RunId] = []
    done = asyncio.Event()

    async def submit() -> None:
        for number in range(40):
            tenant = tenants[number % len(tenants)]
            batch = [
                a_run(id=run_id, tenant=tenant, queue=Mine.queue)
                for run_id in jobs.new_run_ids([""] * 5, tenant=tenant)
            ]
            await jobs.submit_many(batch)
            runs.extend(run.id for run in batch)

    async def is_completed(run: HeldRun) -> bool:
        try:
            [answer] = await store.complete([complete_success(run, None)])
        except StoreUnavailable:
            return False
        assert answer in (CompletionAnswer.ACCEPTED, CompletionAnswer.DUPLICATE)
        return True

    async def work() -> None:
        session = await store.open_session(a_worker(ttl=DAY))
        number = 0
        while not done.is_set() or len(applied) < len(runs):
            number += 1
            held = await store.claim(session, number, [Demand(Mine.queue, 20)])
            for run in held:
                await eventually(partial(is_completed, run))
                applied.append(run.id)
            await store.heartbeat(session, DAY, [], [], number)

    async def keep_moving() -> None:
        random = Random(3)
        while not done.is_set():
            place = random.randrange(store.place_count)
            source = mover._servers.home(place).number
            await mover.move_placement_group(place, source, (source + random.choice([1, 2])) % 3)

    try:
        moving, *working = [asyncio.create_task(keep_moving()), *(asyncio.create_task(work()) for _ in range(2))]
        await submit()
        done.set()
        await asyncio.gather(moving, *working)
    finally:
        await mover.close()
    assert sorted(applied) == sorted(runs)
    page = await store.list_runs(RunFilter(tenant=None, queue=Mine.queue), None, 1_000)
    assert [view.id for view in page.items] == sorted(runs, reverse=True)
    assert {view.attempt for view in page.items} == {1}
