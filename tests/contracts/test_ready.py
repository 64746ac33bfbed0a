"""The ready time of a run: time spent blocked or paused does not count as delay."""

import pytest

from mainspring.core.model.base.instant import DAY, HOUR, MINUTE, Instant
from mainspring.core.model.limits.limits import Breaker
from mainspring.core.model.runs.completion import complete_loss, complete_release
from mainspring.core.model.runs.run import HeldRun
from mainspring.core.ports.storage.access import Author
from mainspring.core.ports.storage.catalog import Pause
from mainspring.core.ports.storage.reads import QueueBacklog
from tests.support.boundaries import on_every_claim_path, prepare_claim_path
from tests.support.builders import a_limit, a_policy, a_run
from tests.support.store_harness import SHORT_LEASE, Harness

ADA = Author("ada")
BREAKER = Breaker(failures=1, within=5 * MINUTE, pause=10 * MINUTE)


async def claim_one(harness: Harness, queue: str = "default") -> HeldRun:
    [held] = await harness.claim(await harness.worker(), 1, queue)
    return held


async def read_depth(harness: Harness, tenant: str | None = None) -> QueueBacklog:
    [depth] = await harness.store.depths(tenant)
    return depth


def ready_time(held: HeldRun) -> Instant:
    return max(held.due, held.ready_at)


@pytest.mark.parametrize("how", ["limit", "key", "key and limit", "breaker"])
async def test_a_blocked_run_is_ready_from_its_release(harness: Harness, how: str) -> None:
    policy = {
        "limit": a_policy(limits=(a_limit(),)),
        "key": a_policy(key="k"),
        "key and limit": a_policy(key="k", limits=(a_limit(),)),
        "breaker": a_policy(breaker=BREAKER),
    }[how]
    first, second = a_run(policy=policy), a_run(policy=policy)
    if how == "breaker":
        await harness.fail(*await harness.start(first))
        await harness.submit(second)
    else:
        [holder] = await harness.start(first)
        await harness.submit(second)
    await harness.advance(HOUR)
    released = await harness.now()
    if how == "breaker":
        assert (await harness.stage()).runs == 1
    else:
        await harness.succeed(holder)
    depth = await read_depth(harness)
    assert depth.oldest_due is not None
    assert depth.oldest_due <= released - HOUR
    assert depth.oldest_ready is not None
    assert depth.oldest_ready >= released
    held = await claim_one(harness)
    assert held.id == second.id
    assert held.due == depth.oldest_due
    assert released <= ready_time(held) <= held.started_at


async def test_a_run_blocked_by_a_breaker_is_ready_from_its_release(harness: Harness) -> None:
    runs = [a_run(policy=a_policy(breaker=BREAKER)) for _ in range(2)]
    await harness.submit(*runs)
    await harness.fail(await claim_one(harness))
    await harness.advance(HOUR)
    released = await harness.now()
    assert (await harness.stage()).runs == 1
    assert ready_time(await claim_one(harness)) >= released


@pytest.mark.parametrize("limits", [(), (a_limit(),)], ids=["free", "limited"])
@pytest.mark.parametrize("how", ["released", "lost", "unknown"])
async def test_a_returned_run_is_ready_from_its_return(harness: Harness, how: str, limits: tuple[object, ...]) -> None:
    worker = await harness.worker()
    await harness.submit(a_run(limits=limits))  # type: ignore[arg-type]
    [held] = await harness.claim(worker)
    await harness.advance(HOUR)
    back = await harness.now()
    if how == "unknown":
        await harness.store.heartbeat(worker, SHORT_LEASE, (), (), harness.last_claim(worker))
    else:
        await harness.complete(complete_release(held) if how == "released" else complete_loss(held, blamed=False))
    ready = (await read_depth(harness)).oldest_ready
    assert ready is not None
    assert ready >= back
    again = await claim_one(harness)
    assert (again.id, again.due) == (held.id, held.due)
    assert ready_time(again) >= back


@pytest.mark.parametrize("more", [{}, {"key": "k"}, {"limits": (a_limit(),)}], ids=["plain", "key", "limit"])
async def test_a_run_staged_late_is_ready_from_its_due_time(harness: Harness, more: dict[str, object]) -> None:
    run = a_run(delay=MINUTE, policy=a_policy(**more))  # type: ignore[arg-type]
    await harness.submit(run)
    await harness.advance(HOUR)
    assert (await harness.stage()).runs == 1
    depth = await read_depth(harness)
    assert depth.oldest_ready == depth.oldest_due
    held = await claim_one(harness)
    assert ready_time(held) == held.due <= held.started_at - HOUR + MINUTE


@pytest.mark.api
async def test_an_edit_keeps_the_ready_time(harness: Harness) -> None:
    first, second = a_run(key="k"), a_run(key="k")
    [holder] = await harness.start(first)
    await harness.submit(second)
    await harness.advance(HOUR)
    released = await harness.now()
    await harness.succeed(holder)
    due = (await harness.view(second.id)).due
    assert await harness.store.edit_run(a_run(id=second.id, key="k", at=due, payload=b'"new"'), ADA) is not None
    held = await claim_one(harness)
    assert (held.id, held.payload) == (second.id, b'"new"')
    assert released <= ready_time(held)


@pytest.mark.api
@pytest.mark.parametrize("until", [None, 30 * MINUTE], ids=["by hand", "by itself"])
@pytest.mark.parametrize("tenant", [None, "acme"])
@pytest.mark.parametrize("queue", [None, "mail"])
async def test_a_paused_run_is_ready_from_the_end_of_the_pause(
    harness: Harness, queue: str | None, tenant: str | None, until: int | None
) -> None:
    began = await harness.now()
    pause = Pause(tenant=tenant, queue=queue, until=None if until is None else began + until)
    await harness.store.pause(pause, ADA)
    await harness.submit(a_run(queue="mail", tenant="acme"))
    await harness.advance(20 * MINUTE)
    paused = await read_depth(harness)
    assert (paused.queued, paused.oldest_ready) == (1, None)
    assert paused.oldest_due is not None
    await harness.advance(20 * MINUTE)
    over = await harness.now()
    if until is None:
        assert await harness.store.resume(tenant, queue, ADA)
    else:
        over = began + until
    await harness.store.tidy()
    assert await harness.store.pauses() == []
    assert not await harness.store.resume(tenant, queue, ADA)
    for scope in (None, "acme"):
        depth = await read_depth(harness, scope)
        assert depth.oldest_ready is not None
        assert over <= depth.oldest_ready <= await harness.now()
    await harness.advance(MINUTE)
    later = a_run(queue="mail", tenant="acme")
    await harness.submit(later)
    held = {run.id: run for run in await harness.claim(await harness.worker(), 2, "mail")}
    after = held.pop(later.id)
    assert ready_time(after) == after.due
    [waited] = held.values()
    assert over <= ready_time(waited) <= waited.started_at - MINUTE


@pytest.mark.api
async def test_a_pause_of_another_queue_or_tenant_does_not_change_the_ready_time(harness: Harness) -> None:
    for pause in (Pause(tenant="acme", queue=None), Pause(tenant=None, queue="mail")):
        await harness.store.pause(pause, ADA)
    await harness.submit(a_run(queue="video", tenant="other"))
    await harness.advance(HOUR)
    await harness.store.resume("acme", None, ADA)
    await harness.store.resume(None, "mail", ADA)
    depth = await read_depth(harness)
    assert depth.oldest_ready == depth.oldest_due
    held = await claim_one(harness, "video")
    assert ready_time(held) == held.due


@pytest.mark.api
async def test_an_expired_pause_is_removed_and_a_new_one_applies(harness: Harness) -> None:
    await harness.store.pause(Pause(tenant=None, queue="mail"), ADA)
    await harness.store.resume(None, "mail", ADA)
    await harness.submit(a_run(queue="mail"))
    await harness.store.pause(Pause(tenant=None, queue="mail"), ADA)
    [pause] = await harness.store.pauses()
    assert pause.until is None
    assert await harness.claim(await harness.worker(), 1, "mail") == []
    await harness.store.resume(None, "mail", ADA)
    await harness.advance(2 * DAY)
    await harness.store.tidy()
    depth = await read_depth(harness)
    assert depth.oldest_ready == depth.oldest_due


@on_every_claim_path
@pytest.mark.parametrize("pause_ends_last", [False, True])
async def test_every_claim_path_knows_the_latest_time_at_which_a_run_became_ready(
    harness: Harness, path: str, pause_ends_last: bool
) -> None:
    way = await prepare_claim_path(harness, path)
    policy = a_policy(key="key")
    first, second = way.adapt(a_run(policy=policy)), way.adapt(a_run(policy=policy))
    worker = await way.worker(DAY)
    await harness.submit(first)
    [held] = await way.claim(worker, [first])
    await harness.submit(second)
    now = await harness.now()
    released, resumed = now + 2 * HOUR, now + (3 if pause_ends_last else 1) * HOUR
    await harness.store.pause(Pause(tenant=None, queue="default", until=resumed), ADA)
    await harness.move_clock(2 * HOUR)
    await harness.succeed(held)
    await harness.move_clock(2 * HOUR)
    [late] = await way.claim(worker, [second])
    assert late.ready_at == max(released, resumed)
    # A run that has waited starts now, not when it was due.
    assert (late.due, late.started_at) == (now, now + 4 * HOUR)
