"""Times after which something does not count any more: start-by times, deadlines, keys, windows and retention."""

import pytest

from mainspring.core.model.access.access import Quotas, Tenant
from mainspring.core.model.base.instant import DAY, HOUR, MINUTE, SECOND
from mainspring.core.model.limits.limits import Breaker
from mainspring.core.model.runs.new_run import Idempotency, NewRun
from mainspring.core.model.runs.restored import KnownOutcome
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.runs.unique import Unique
from mainspring.core.ports.storage.answers import PutOutcome
from mainspring.core.ports.storage.upkeep import Retention
from mainspring.core.store import KEYS_KEPT
from tests.support.boundaries import ADA, around_the_boundary, on_every_claim_path, prepare_claim_path
from tests.support.builders import a_fire, a_job, a_limit, a_policy, a_run, a_skipped_tick, a_spec, every
from tests.support.store_harness import ClockedHarness, Harness, ids

QUEUED, BLOCKED = RunState.QUEUED, RunState.BLOCKED

#: Where a run waits when its time passes.
PLACES = ("queued", "scheduled", "ordering key", "limit")
wherever_it_waits = pytest.mark.parametrize("place", PLACES)


async def wait_at(
    harness: Harness, place: str, *, start_within: int | None = None, deadline: int | None = None
) -> NewRun:
    """Submit a run that is due now, or in an hour if scheduled, and make it wait at a place."""
    key, limits = ("key", ()) if place == "ordering key" else ("", (a_limit(),) if place == "limit" else ())
    if place in ("ordering key", "limit"):
        await harness.start(a_run(key=key, limits=limits))
    delay = HOUR if place == "scheduled" else 0
    run = a_run(key=key, limits=limits, delay=delay, start_within=start_within, deadline=deadline)
    await harness.submit(run)
    await harness.move_clock(delay)
    return run


@on_every_claim_path
@around_the_boundary
async def test_a_run_is_claimed_up_to_its_start_by_time(harness: Harness, path: str, offset: int) -> None:
    """Stores look for the first run in another way than for those that follow it."""
    way = await prepare_claim_path(harness, path)
    runs = [way.adapt(a_run(start_within=limit)) for limit in (HOUR, None, HOUR, None)]
    worker = await way.worker(DAY)
    await harness.submit(*runs)
    await harness.move_clock(HOUR + offset)
    expected = runs if offset <= 0 else runs[1::2]
    assert ids(await way.claim(worker, runs)) == ids(expected)


@on_every_claim_path
@around_the_boundary
async def test_a_run_is_claimed_before_its_deadline(harness: Harness, path: str, offset: int) -> None:
    """Stores look for the first run in another way than for those that follow it."""
    way = await prepare_claim_path(harness, path)
    runs = [way.adapt(a_run(deadline=limit)) for limit in (HOUR, None, HOUR, None)]
    worker = await way.worker(DAY)
    await harness.submit(*runs)
    await harness.move_clock(HOUR + offset)
    expected = runs if offset < 0 else runs[1::2]
    assert ids(await way.claim(worker, runs)) == ids(expected)


@on_every_claim_path
@pytest.mark.parametrize("missed", [{"start_within": HOUR - 1}, {"deadline": HOUR}], ids=["start-by time", "deadline"])
async def test_a_run_that_missed_its_time_uses_up_no_demand(
    harness: Harness, path: str, missed: dict[str, int]
) -> None:
    way = await prepare_claim_path(harness, path)
    late, run = way.adapt(a_run(**missed)), way.adapt(a_run())  # type: ignore[arg-type]
    worker = await way.worker(DAY)
    await harness.submit(late, run)
    await harness.move_clock(HOUR)
    assert ids(await way.claim(worker, [run] if path == "hinted" else [late, run], 1)) == [run.id]


@pytest.mark.parametrize("missed", [{"start_within": HOUR - 1}, {"deadline": HOUR}], ids=["start-by time", "deadline"])
async def test_a_run_that_missed_its_time_uses_up_no_demand_of_other_labels(
    harness: Harness, missed: dict[str, int]
) -> None:
    late, run = a_run(requires=("gpu",), **missed), a_run()  # type: ignore[arg-type]
    worker = await harness.worker(DAY, labels=("gpu",))
    await harness.submit(late, run)
    await harness.move_clock(HOUR)
    assert ids(await harness.claim(worker, 1)) == [run.id]


@wherever_it_waits
@around_the_boundary
async def test_a_waiting_run_expires_after_its_start_by_time(harness: Harness, place: str, offset: int) -> None:
    run = await wait_at(harness, place, start_within=HOUR)
    before = await harness.state(run.id)
    await harness.move_clock(HOUR + offset)
    assert await harness.store.expire(10) == (1 if offset > 0 else 0)
    assert await harness.state(run.id) is (RunState.SKIPPED if offset > 0 else before)


@wherever_it_waits
@around_the_boundary
async def test_a_waiting_run_fails_at_its_deadline(harness: Harness, place: str, offset: int) -> None:
    run = await wait_at(harness, place, deadline=HOUR)
    before = await harness.state(run.id)
    await harness.move_clock(HOUR + offset)
    assert await harness.store.expire(10) == (0 if offset < 0 else 1)
    view = await harness.view(run.id)
    assert (view.state, view.reason) == ((before, "") if offset < 0 else (RunState.FAILED, "deadline"))


@pytest.mark.parametrize("limit", ["start_within", "deadline"])
@around_the_boundary
async def test_a_run_is_claimed_or_expires_at_every_instant(harness: Harness, limit: str, offset: int) -> None:
    run = a_run(start_within=HOUR) if limit == "start_within" else a_run(deadline=HOUR)
    await harness.submit(run)
    await harness.move_clock(HOUR + offset)
    expired = await harness.store.expire(10)
    claimed = await harness.claim(await harness.worker())
    assert expired + len(claimed) == 1


@pytest.mark.parametrize(
    ("offset", "state", "reason"),
    [(-1, QUEUED, ""), (0, RunState.FAILED, "deadline"), (1, RunState.SKIPPED, "expired")],
)
async def test_a_run_past_both_of_its_times_has_expired(
    harness: Harness, offset: int, state: RunState, reason: str
) -> None:
    run = a_run(start_within=HOUR, deadline=HOUR)
    await harness.submit(run)
    await harness.move_clock(HOUR + offset)
    await harness.store.expire(10)
    view = await harness.view(run.id)
    assert (view.state, view.reason) == (state, reason)


@around_the_boundary
async def test_a_failed_attempt_is_not_retried_at_the_deadline(harness: Harness, offset: int) -> None:
    [held] = await harness.start(a_run(policy=a_policy(retries=3), deadline=HOUR))
    await harness.move_clock(HOUR + offset)
    await harness.fail(held)
    view = await harness.view(held.id)
    assert view.state is (RunState.SCHEDULED if offset < 0 else RunState.FAILED)
    assert (view.reason == "deadline") is (offset >= 0)


@pytest.mark.parametrize("tidied", [False, True], ids=["not tidied", "tidied"])
@around_the_boundary
async def test_an_idempotency_key_of_a_run_is_free_after_its_time(harness: Harness, tidied: bool, offset: int) -> None:
    first, second = (a_run(idempotency=Idempotency("order-1", b"same")) for _ in range(2))
    await harness.submit(first)
    await harness.move_clock(KEYS_KEPT + offset)
    if tidied:
        await harness.store.tidy()
    assert await harness.store.used_keys("default", ["order-1"]) == ({"order-1"} if offset < 0 else set())
    [accepted] = await harness.submit(second)
    assert (accepted.id, accepted.new) == ((first.id, False) if offset < 0 else (second.id, True))


@pytest.mark.parametrize("tidied", [False, True], ids=["not tidied", "tidied"])
@around_the_boundary
async def test_an_idempotency_key_of_a_job_is_free_after_its_time(harness: Harness, tidied: bool, offset: int) -> None:
    schedule = every(HOUR, start=await harness.now() + 10 * DAY)
    first, second = (
        a_job(a_spec(schedule=schedule), idempotency=Idempotency("job-1", fingerprint))
        for fingerprint in (b"one", b"other")
    )
    await harness.put(first)
    await harness.move_clock(KEYS_KEPT + offset)
    if tidied:
        await harness.store.tidy()
    [put] = await harness.store.put_jobs([second])
    assert put.outcome is (PutOutcome.CONFLICT if offset < 0 else PutOutcome.CREATED)


@pytest.mark.parametrize("tidied", [False, True], ids=["not tidied", "tidied"])
@pytest.mark.parametrize("ended", [False, True], ids=["queued", "ended"])
@around_the_boundary
async def test_a_unique_key_is_free_after_its_period(harness: Harness, ended: bool, tidied: bool, offset: int) -> None:
    first, second = (a_run(unique=Unique(key="report", period=HOUR)) for _ in range(2))
    await harness.submit(first)
    if ended:
        await harness.store.cancel([first.id])
    await harness.move_clock(HOUR + offset)
    if tidied:
        await harness.store.tidy()
        await harness.store.prune(Retention(), 100)
    [accepted] = await harness.submit(second)
    assert (accepted.id, accepted.new) == ((first.id, False) if offset < 0 else (second.id, True))


BREAKER = Breaker(failures=2, within=5 * MINUTE, pause=10 * MINUTE)


def a_call(breaker: Breaker = BREAKER) -> NewRun:
    return a_run(task="call", policy=a_policy(retries=0, breaker=breaker))


@around_the_boundary
async def test_an_open_breaker_admits_a_probe_at_the_end_of_its_pause(harness: Harness, offset: int) -> None:
    await harness.fail(*await harness.start(a_call(), a_call()))
    waiting = a_call()
    await harness.submit(waiting)
    await harness.move_clock(BREAKER.pause + offset)
    assert (await harness.stage()).runs == (0 if offset < 0 else 1)
    assert await harness.state(waiting.id) is (BLOCKED if offset < 0 else QUEUED)


@around_the_boundary
async def test_a_new_run_is_the_probe_at_the_end_of_the_pause(harness: Harness, offset: int) -> None:
    await harness.fail(*await harness.start(a_call(), a_call()))
    await harness.move_clock(BREAKER.pause + offset)
    accepted = [(await harness.submit(a_call()))[0].state for _ in range(2)]
    assert accepted == [BLOCKED if offset < 0 else QUEUED, BLOCKED]


@around_the_boundary
async def test_a_failure_counts_within_the_window_of_the_breaker(harness: Harness, offset: int) -> None:
    one, two = await harness.start(a_call(), a_call())
    await harness.fail(one)
    await harness.move_clock(BREAKER.within + offset)
    await harness.fail(two)
    [accepted] = await harness.submit(a_call())
    assert accepted.state is (BLOCKED if offset < 0 else QUEUED)


@pytest.mark.parametrize("earlier", [0, 1], ids=["when it opened", "before it opened"])
async def test_an_attempt_that_started_before_the_breaker_opened_does_not_close_it(
    harness: Harness, earlier: int
) -> None:
    breaker = Breaker(failures=1, within=MINUTE, pause=MINUTE)
    failing, old = await harness.start(a_call(breaker), a_call(breaker))
    await harness.move_clock(earlier)
    await harness.fail(failing)
    probe, waiting = a_call(breaker), a_call(breaker)
    await harness.submit(probe, waiting)
    await harness.move_clock(MINUTE)
    assert (await harness.stage()).runs == 1
    await harness.succeed(old)
    assert await harness.states([probe, waiting]) == [QUEUED, BLOCKED]
    await harness.succeed(*await harness.claim(await harness.worker()))
    assert await harness.state(waiting.id) is QUEUED


@around_the_boundary
async def test_each_start_leaves_the_window_of_a_limit_by_itself(harness: Harness, offset: int) -> None:
    limit = a_limit(most=2, per=MINUTE)
    worker = await harness.worker()
    runs = [a_run(limits=(limit,)) for _ in range(4)]
    await harness.submit(*runs)
    await harness.claim(worker, 1)
    await harness.move_clock(SECOND)
    await harness.claim(worker, 1)
    await harness.move_clock(MINUTE - SECOND)
    assert (await harness.stage()).runs == 1
    await harness.move_clock(SECOND + offset)
    assert (await harness.stage()).runs == (0 if offset < 0 else 1)
    assert await harness.states(runs[2:]) == [QUEUED, BLOCKED if offset < 0 else QUEUED]


@around_the_boundary
async def test_ended_runs_are_kept_for_their_whole_retention(harness: Harness, offset: int) -> None:
    succeeded, failed = await harness.start(a_run(), a_run(policy=a_policy(retries=0)))
    await harness.succeed(succeeded)
    await harness.fail(failed)
    await harness.move_clock(2 * DAY + offset)
    retention = Retention(succeeded=2 * DAY, unsuccessful=2 * DAY)
    await harness.store.prune(retention, 100)
    # PostgreSQL drops whole days, so it may keep a run longer, and never shorter.
    gone = offset > 0 and isinstance(harness, ClockedHarness)
    views = await harness.store.runs([succeeded.id, failed.id])
    assert [view is None for view in views] == [gone, gone]


@pytest.mark.parametrize("edited", [False, True], ids=["new", "edited"])
@pytest.mark.parametrize(
    "end",
    [
        *("success", "failure", "cancel", "cancel scheduled", "cancel blocked"),
        *("expiry", "finish", "finish as succeeded", "replacement"),
    ],
)
async def test_an_ended_run_is_kept_as_its_policy_or_its_tenant_says(harness: Harness, end: str, edited: bool) -> None:
    """PostgreSQL moves the data of an edited run to the first bucket of its retention class."""
    await harness.store.put_tenant(Tenant(name="first", quotas=Quotas(retention="short")), ADA)
    await harness.store.put_tenant(Tenant(name="last", quotas=Quotas(retention="audit")), ADA)
    key, delay = "key" if end == "cancel blocked" else "", HOUR if end == "cancel scheduled" else 0
    start_within = SECOND if end == "expiry" else None

    def a_kept_run(tenant: str = "default", retention: str = "") -> NewRun:
        policy = a_policy(key=key, retries=0, retention=retention)
        unique = Unique(key=f"{tenant}-{retention}", otherwise="replace") if end == "replacement" else None
        return a_run(tenant=tenant, policy=policy, delay=delay, start_within=start_within, unique=unique)

    runs = [
        a_kept_run(),
        a_kept_run(retention="long"),
        a_kept_run("first"),
        a_kept_run("last"),
        a_kept_run("last", "long"),
    ]
    for run in runs:
        await harness.submit(run)
        assert not edited or await harness.store.edit_run(run, ADA) is not None
    if end in ("success", "failure"):
        held = await harness.claim(await harness.worker())
        await (harness.succeed(*held) if end == "success" else harness.fail(*held))
    elif end == "expiry":
        await harness.move_clock(MINUTE)
        assert await harness.store.expire(10) == len(runs)
    elif end.startswith("finish"):
        state = RunState.SUCCEEDED if end == "finish as succeeded" else RunState.CANCELLED
        await harness.store.finish([KnownOutcome(run=run.id, state=state) for run in runs], ADA)
    elif end == "replacement":
        await harness.submit(*(a_run(tenant=run.tenant, unique=run.unique) for run in runs))
    else:
        await harness.store.cancel(ids(runs))
    views = [await harness.view(run.id) for run in runs]
    assert all(view.state.ended for view in views)
    assert [view.kept_as for view in views] == ["standard", "long", "short", "audit", "long"]


@pytest.mark.parametrize("longer", ["ledger", "short"])
@around_the_boundary
async def test_ledger_entries_are_kept_as_long_as_the_ledger_and_short_runs(
    harness: Harness, longer: str, offset: int
) -> None:
    job = await harness.put(a_job(a_spec(schedule=every(DAY))))
    at = await harness.now()
    fire = a_fire(job, a_skipped_tick(at), next_fire=job.next_fire)
    assert (await harness.store.fire(await harness.owner(), [fire]))[0].applied
    await harness.move_clock(2 * DAY + offset)
    kept = {"ledger": DAY, "short": DAY} | {longer: 2 * DAY}
    await harness.store.prune(Retention(ledger=kept["ledger"], short=kept["short"]), 100)
    # PostgreSQL drops whole days, so it may keep an entry longer, and never shorter.
    gone = offset > 0 and isinstance(harness, ClockedHarness)
    assert [tick.scheduled_at for tick in await harness.ticks(job.id)] == ([] if gone else [at])


@around_the_boundary
async def test_a_reader_is_forgotten_after_its_time_to_live(harness: Harness, offset: int) -> None:
    await harness.store.attach_reader("patient")
    await harness.store.attach_reader("reader", HOUR)
    await harness.submit(a_run())
    await harness.move_clock(HOUR + offset)
    await harness.store.tidy()
    assert len(await harness.events("reader")) == (0 if offset > 0 else 1)


@around_the_boundary
async def test_the_ledger_includes_its_begin_and_excludes_its_end(harness: Harness, offset: int) -> None:
    schedule = every(HOUR, start=await harness.now() + HOUR)
    job = await harness.put(a_job(a_spec(schedule=schedule)))
    await harness.move_clock(HOUR)
    await harness.fire_due()
    [tick] = await harness.ticks(job.id)
    at = tick.scheduled_at
    since = await harness.store.ledger(job.id, at + offset, at + DAY, 10)
    until = await harness.store.ledger(job.id, at - DAY, at + offset, 10)
    assert (len(since), len(until)) == (int(offset <= 0), int(offset > 0))
