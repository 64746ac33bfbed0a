"""Checkpoints: state that an attempt saves for the next one."""

import pytest

from mainspring.core.model.base.instant import DAY, HOUR, MINUTE
from mainspring.core.model.runs.completion import complete_loss, complete_release
from mainspring.core.model.runs.run import HeldRun, RunState
from mainspring.core.ports.storage.access import Author
from mainspring.core.ports.storage.catalog import Checkpoint
from tests.support.boundaries import on_every_claim_path, prepare_claim_path
from tests.support.builders import a_policy, a_run
from tests.support.store_harness import Harness

pytestmark = pytest.mark.api


def checkpoint(held: HeldRun, state: bytes) -> Checkpoint:
    return Checkpoint(run=held.id, fence=held.fence, state=state)


async def claim_one(harness: Harness) -> HeldRun:
    [held] = await harness.claim(await harness.worker())
    return held


async def test_the_next_attempt_receives_the_last_checkpoint(harness: Harness) -> None:
    [held] = await harness.start(a_run(policy=a_policy(retries=3)))
    assert held.state is None
    assert await harness.store.save_checkpoints([checkpoint(held, b'{"page":7,"note":"gr\xc3\xb6\xc3\x9fe"}')]) == [
        True
    ]
    await harness.complete(complete_loss(held, blamed=False))
    again = await claim_one(harness)
    assert (again.id, again.attempt, again.state) == (held.id, 2, b'{"page":7,"note":"gr\xc3\xb6\xc3\x9fe"}')


async def test_a_checkpoint_stays_until_it_is_replaced(harness: Harness) -> None:
    [held] = await harness.start(a_run())
    await harness.store.save_checkpoints([checkpoint(held, b"1"), checkpoint(held, b"2")])
    for expected in (b"2", b"2"):
        await harness.complete(complete_loss(held, blamed=False))
        held = await claim_one(harness)
        assert held.state == expected
    await harness.store.save_checkpoints([checkpoint(held, b"[3]")])
    await harness.complete(complete_loss(held, blamed=False))
    assert (await claim_one(harness)).state == b"[3]"


@on_every_claim_path
@pytest.mark.parametrize("end", ["lost", "released", "returned by a heartbeat"])
async def test_every_claim_path_reads_the_checkpoint(harness: Harness, path: str, end: str) -> None:
    way = await prepare_claim_path(harness, path)
    worker, run = await way.worker(HOUR), way.adapt(a_run())
    await harness.submit(run)
    [held] = await way.claim(worker, [run])
    await harness.store.save_checkpoints([checkpoint(held, b"1")])
    if end == "returned by a heartbeat":
        await harness.store.heartbeat(worker, HOUR, [], [], harness.last_claim(worker))
    else:
        await harness.complete(complete_release(held) if end == "released" else complete_loss(held, blamed=False))
    [again] = await way.claim(worker, [run])
    assert (again.id, again.state) == (run.id, b"1")


async def test_a_released_attempt_is_not_counted_but_its_checkpoint_stays(harness: Harness) -> None:
    [held] = await harness.start(a_run())
    await harness.store.save_checkpoints([checkpoint(held, b'"half"')])
    await harness.complete(complete_release(held))
    again = await claim_one(harness)
    assert (again.attempt, again.state) == (1, b'"half"')


async def test_a_delayed_run_receives_its_checkpoint_after_a_delayed_retry(harness: Harness) -> None:
    await harness.submit(a_run(delay=MINUTE, policy=a_policy(retries=3)))
    await harness.advance(2 * MINUTE)
    await harness.stage()
    held = await claim_one(harness)
    await harness.store.save_checkpoints([checkpoint(held, b"1")])
    await harness.fail(held)
    assert await harness.state(held.id) is RunState.SCHEDULED
    await harness.advance(DAY)
    await harness.stage()
    again = await claim_one(harness)
    assert (again.id, again.attempt, again.state) == (held.id, 2, b"1")


async def test_only_the_running_attempt_can_save_a_checkpoint(harness: Harness) -> None:
    [held] = await harness.start(a_run())
    await harness.store.save_checkpoints([checkpoint(held, b"1")])
    await harness.complete(complete_release(held))
    assert await harness.store.save_checkpoints([checkpoint(held, b"2")]) == [False]
    again = await claim_one(harness)
    assert await harness.store.save_checkpoints([checkpoint(held, b"3"), checkpoint(again, b"4")]) == [False, True]
    await harness.complete(complete_release(again))
    last = await claim_one(harness)
    assert last.state == b"4"
    await harness.succeed(last)
    assert await harness.store.save_checkpoints([checkpoint(last, b"5")]) == [False]
    assert await harness.store.save_checkpoints([]) == []


async def test_every_run_has_its_own_checkpoint(harness: Harness) -> None:
    one, other = await harness.start(a_run(), a_run())
    await harness.store.save_checkpoints([checkpoint(one, b"1")])
    await harness.complete(complete_release(one), complete_release(other))
    again = {held.id: held.state for held in await harness.claim(await harness.worker())}
    assert again == {one.id: b"1", other.id: None}


async def test_a_checkpoint_is_purged_with_its_run(harness: Harness) -> None:
    run = a_run()
    [held] = await harness.start(run)
    await harness.store.save_checkpoints([checkpoint(held, b"1")])
    await harness.succeed(held)
    assert await harness.store.purge([run.id], Author("ops")) == [run.id]
    # A run with the same id shows that no checkpoint is left.
    [again] = await harness.start(run)
    await harness.complete(complete_release(again))
    assert (await claim_one(harness)).state is None
