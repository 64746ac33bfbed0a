"""Rows of PostgreSQL that a second connection changes while a call of the store waits for them are judged again."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
import pytest

from mainspring.core.model.base.instant import HOUR
from mainspring.core.model.runs.completion import complete_release, complete_success
from mainspring.core.model.runs.new_run import Idempotency, NewRun
from mainspring.core.model.runs.restored import KnownOutcome
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.runs.unique import Unique
from mainspring.core.store import KEYS_KEPT
from tests.support.boundaries import ADA
from tests.support.builders import a_limit, a_policy, a_run
from tests.support.kept_connections import KeptConnections
from tests.support.rival import Rival, connect_rival, open_frozen_store
from tests.support.store_harness import PostgresHarness

pytestmark = pytest.mark.postgres

#: What a claim writes.
START = """
    UPDATE run SET state = 4, attempt = 1, fence = 1, claim = 1, session = $2, started_at = due, attempt_until = due + 1
    WHERE id = $1
"""
#: What a heartbeat writes that returns a run.
RETURN = """
    UPDATE run SET state = 3, attempt = 0, claim = NULL, session = NULL, started_at = NULL, attempt_until = NULL
    WHERE id = $1
"""
#: Notes that a run has succeeded, for its children.
NOTE_END = "INSERT INTO ended_parent (run_id, state, at) VALUES ($1, 5, 0)"


@pytest.fixture
async def harness(contract_database: str, kept_connections: KeptConnections) -> AsyncIterator[PostgresHarness]:
    async with open_frozen_store(contract_database, kept_connections) as harness:
        yield harness


@pytest.fixture
async def rival(harness: PostgresHarness) -> AsyncIterator[Rival]:
    async with connect_rival(harness) as rival:
        yield rival


@pytest.mark.parametrize("change", ["claim = claim + 1", "session = session + 1", "cancel_at = due"])
async def test_a_heartbeat_leaves_a_run_that_is_claimed_again_or_cancelled_meanwhile(
    harness: PostgresHarness, rival: Rival, change: str
) -> None:
    worker, _ = await harness.worker(), await harness.worker()
    await harness.submit(a_run())
    [held] = await harness.claim(worker)
    await rival.execute(f"UPDATE run SET {change} WHERE id = $1", held.id)
    beating = await rival.waits(harness.store.heartbeat(worker, HOUR, (), (), harness.last_claim(worker)))
    await rival.commit()
    assert (await beating).returned == 0
    assert await harness.state(held.id) in (RunState.RUNNING, RunState.CANCELLING)


async def test_a_heartbeat_leaves_a_limited_run_that_its_worker_claims_again_meanwhile(
    harness: PostgresHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = await harness.worker()
    await harness.submit(a_run(limits=(a_limit(),)))
    [held] = await harness.claim(worker)
    last_claim = harness.last_claim(worker)
    release_unknown = harness.store._release_unknown

    async def claim_again_before(*arguments: Any) -> None:
        await harness.complete(complete_release(held))
        assert len(await harness.claim(worker)) == 1
        await release_unknown(*arguments)

    monkeypatch.setattr(harness.store, "_release_unknown", claim_again_before)
    await harness.store.heartbeat(worker, HOUR, (), (), last_claim)
    assert await harness.state(held.id) is RunState.RUNNING


async def test_a_run_that_is_claimed_meanwhile_is_not_replaced(harness: PostgresHarness, rival: Rival) -> None:
    first, second = a_run(unique=Unique(key="key")), a_run(unique=Unique(key="key", otherwise="replace"))
    await harness.submit(first)
    await rival.execute(START, first.id, await harness.worker())
    submitting = await rival.waits(harness.submit(second))
    await rival.commit()
    [accepted] = await submitting
    assert (accepted.id, accepted.new) == (first.id, False)
    assert await harness.state(first.id) is RunState.RUNNING


async def test_a_run_that_is_claimed_meanwhile_is_asked_to_stop(harness: PostgresHarness, rival: Rival) -> None:
    run = a_run()
    await harness.submit(run)
    await rival.execute(START, run.id, await harness.worker())
    cancelling = await rival.waits(harness.store.cancel([run.id]))
    await rival.commit()
    await cancelling
    assert await harness.state(run.id) is RunState.CANCELLING


async def test_a_run_that_is_returned_meanwhile_is_cancelled(harness: PostgresHarness, rival: Rival) -> None:
    [held] = await harness.start(a_run())
    await rival.execute(RETURN, held.id)
    cancelling = await rival.waits(harness.store.cancel([held.id]))
    await rival.commit()
    await cancelling
    assert await harness.state(held.id) is RunState.CANCELLED


async def test_a_submit_finds_the_run_that_uses_an_expired_idempotency_key_meanwhile(
    harness: PostgresHarness, rival: Rival
) -> None:
    await harness.submit(a_run(idempotency=Idempotency("key", b"same")))
    await harness.move_clock(KEYS_KEPT)
    other = a_run()
    await harness.submit(other)
    # A submit locks the key, sees that it is expired, and then uses it.
    await rival.hold("idempotency")
    submitting = await rival.waits(harness.submit(a_run(idempotency=Idempotency("key", b"same"))))
    await rival.execute("UPDATE idempotency SET id = $1, expires_at = expires_at + $2", other.id, KEYS_KEPT)
    await rival.commit()
    [accepted] = await submitting
    assert (accepted.id, accepted.new) == (other.id, False)


async def test_a_submit_finds_the_run_that_uses_a_free_unique_key_meanwhile(
    harness: PostgresHarness, rival: Rival
) -> None:
    await harness.succeed(*await harness.start(a_run(unique=Unique(key="key"))))
    other = a_run()
    await harness.submit(other)
    # A submit locks the key, sees that its run has ended, and then uses it.
    await rival.hold("unique_run")
    submitting = await rival.waits(harness.submit(a_run(unique=Unique(key="key"))))
    await rival.execute("UPDATE unique_run SET run_id = $1", other.id)
    await rival.commit()
    [accepted] = await submitting
    assert (accepted.id, accepted.new) == (other.id, False)


async def test_a_child_that_another_releases_meanwhile_is_released_once(harness: PostgresHarness, rival: Rival) -> None:
    parent = a_run(delay=HOUR)
    child = a_run(after=[parent])
    await harness.store.attach_reader("reader")
    await harness.submit(parent, child)
    await harness._connection.execute(NOTE_END, parent.id)
    await rival.execute("UPDATE waiting SET state = 1 WHERE id = $1", child.id)
    resolving = await rival.waits(harness.resolve())
    await rival.commit()
    await resolving
    assert await harness.state(child.id) is RunState.SCHEDULED
    assert "dependency.resolved" not in [kind for kind, _ in await harness.unread_events("reader")]


async def test_two_sweeps_may_find_the_same_ended_parent(harness: PostgresHarness, rival: Rival) -> None:
    parent = a_run(delay=HOUR)
    child = a_run(after=[parent])
    await harness.submit(parent, child)
    await harness._connection.execute("DELETE FROM waiting WHERE id = $1", parent.id)
    await rival.execute(NOTE_END, parent.id)
    sweeping = await rival.waits(harness.store.sweep(10))
    await rival.commit()
    assert await sweeping == 1
    assert await harness.state(child.id) is RunState.QUEUED


async def test_a_sweep_finds_an_ended_parent_that_history_has_twice(harness: PostgresHarness) -> None:
    parent = a_run(delay=HOUR)
    child = a_run(after=[parent])
    await harness.submit(parent, child)
    await harness.succeed(*await harness.start(a_run(), a_run()))
    await harness._connection.execute("DELETE FROM waiting WHERE id = $1", parent.id)
    await harness._connection.execute("UPDATE history SET id = $1", parent.id)
    assert await harness.store.sweep(10) == 1
    assert await harness.state(child.id) is RunState.QUEUED


async def succeed(harness: PostgresHarness, run: NewRun) -> None:
    await harness.succeed(*await harness.claim(await harness.worker()))


async def succeed_unaware_of_children(harness: PostgresHarness, run: NewRun) -> None:
    """The worker has claimed the run before it had children."""
    [held] = await harness.claim(await harness.worker())
    await harness.complete(msgspec.structs.replace(complete_success(held, None), unblocks_others=False))


async def fail(harness: PostgresHarness, run: NewRun) -> None:
    await harness.fail(*await harness.claim(await harness.worker()))


async def cancel(harness: PostgresHarness, run: NewRun) -> None:
    await harness.store.cancel([run.id])


async def replace(harness: PostgresHarness, run: NewRun) -> None:
    await harness.submit(a_run(unique=Unique(key="key", otherwise="replace")))


async def expire(harness: PostgresHarness, run: NewRun) -> None:
    await harness.move_clock(HOUR)
    assert await harness.store.expire(10) == 1


async def finish(harness: PostgresHarness, run: NewRun) -> None:
    await harness.store.finish([KnownOutcome(run=run.id, state=RunState.FAILED, reason="error", error="boom")], ADA)


@pytest.mark.parametrize("end", [succeed, succeed_unaware_of_children, fail, cancel, replace, expire, finish])
async def test_a_run_ends_although_its_end_was_noted_before(
    harness: PostgresHarness, end: Callable[[PostgresHarness, NewRun], Awaitable[None]]
) -> None:
    """An earlier run with the same id may have left a dead letter or children to decide: the new one still ends."""
    parent = a_run(unique=Unique(key="key"), deadline=HOUR, policy=a_policy(retries=0))
    child = a_run(after=[parent])
    await harness.submit(parent)
    await harness.submit(child)
    await harness._connection.execute(NOTE_END, parent.id)
    await harness._connection.execute(
        "INSERT INTO dead_letter (run_id, tenant, task, queue, at, fingerprint)"
        " SELECT id, tenant, 1, queue, 0, '' FROM run WHERE id = $1",
        parent.id,
    )
    await end(harness, parent)
    assert (await harness.state(parent.id)).ended
    await harness.resolve()
    assert await harness.state(child.id) is RunState.QUEUED
