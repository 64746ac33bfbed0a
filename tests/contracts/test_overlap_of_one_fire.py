"""Ticks that fire together: each one counts the runs of those before it, but not the ticks that are recorded."""

import msgspec
import pytest

from mainspring.core.model.base.ids import JobId
from mainspring.core.model.base.instant import DAY, MINUTE, SECOND, Instant
from mainspring.core.model.runs.policy import RunPolicy
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.schedules.job import Job, Overlap, tick_run_id
from mainspring.core.model.schedules.spread import spread
from tests.support.builders import a_fire, a_job, a_limit, a_policy, a_run, a_skipped_tick, a_spec, a_tick, every
from tests.support.store_harness import Harness

PLACES = ("eu", "us")
LIMITED = a_policy(limits=(a_limit(most=10),))

#: The data centers and the policy of a job, and how often each of its ticks is recorded.
JOBS = [
    pytest.param((), a_policy(), id="plain"),
    pytest.param((), a_policy(key="video"), id="ordering key"),
    pytest.param((), LIMITED, id="limited"),
    pytest.param(PLACES, a_policy(), id="data centers"),
]
#: How many ticks of one fire become runs of a job that has none.
ROOM = [(Overlap.SKIP, 1), (Overlap.QUEUE, 2)]


async def declare(
    harness: Harness, overlap: Overlap, places: tuple[str, ...] = (), policy: RunPolicy | None = None
) -> tuple[Job, Instant]:
    """A job whose next tick is far away, and a time that has passed."""
    spec = a_spec(schedule=every(DAY), overlap=overlap, policy=policy or a_policy())
    job = await harness.put(a_job(msgspec.structs.replace(spec, datacenters=places)))
    return job, await harness.now() - MINUTE


async def fire(harness: Harness, job_id: JobId, *ticks: Instant) -> int:
    """Fire ticks that are planned as runs. Returns how many runs were made."""
    job = await harness.job(job_id)
    planned = a_fire(job, *(a_tick(job, at) for at in ticks), next_fire=job.next_fire)
    [fired] = await harness.store.fire(
        await harness.owner(), [spread(planned, job.spec.datacenters) if job.spec.datacenters else planned]
    )
    assert fired.applied
    return fired.runs


async def read_decisions(harness: Harness, job: JobId) -> dict[str, list[tuple[str, str]]]:
    """The decisions and reasons in the order of the ticks, by data center."""
    found: dict[str, list[tuple[str, str]]] = {}
    for entry in await harness.ticks(job):
        found.setdefault(entry.target, []).append((entry.decision, entry.reason))
    return found


def decisions(*parts: str) -> list[tuple[str, str]]:
    return [("run", "") if part == "run" else ("skipped", part) for part in parts]


@pytest.mark.parametrize(("places", "policy"), JOBS)
@pytest.mark.parametrize(("overlap", "room"), ROOM)
async def test_ticks_of_one_fire_overlap_with_each_other(
    harness: Harness, overlap: Overlap, room: int, places: tuple[str, ...], policy: RunPolicy
) -> None:
    job, at = await declare(harness, overlap, places, policy)
    assert await fire(harness, job.id, *(at + number for number in range(4))) == room * max(len(places), 1)
    expected = decisions(*["run"] * room, *["overlap"] * (4 - room))
    assert await read_decisions(harness, job.id) == dict.fromkeys(places or ("",), expected)


@pytest.mark.parametrize(("places", "policy"), JOBS)
@pytest.mark.parametrize(("overlap", "room"), ROOM)
async def test_a_tick_that_is_recorded_already_takes_no_room(
    harness: Harness, overlap: Overlap, room: int, places: tuple[str, ...], policy: RunPolicy
) -> None:
    job, at = await declare(harness, overlap, places, policy)
    await fire(harness, job.id, at + 1)
    await harness.store.cancel([tick_run_id(job.id, at + 1, place) for place in places or ("",)])
    runs = await fire(harness, job.id, *(at + number for number in range(1, 5)))
    assert runs == room * max(len(places), 1)
    expected = decisions("run", *["run"] * room, *["overlap"] * (3 - room))
    assert await read_decisions(harness, job.id) == dict.fromkeys(places or ("",), expected)


async def test_ticks_of_many_jobs_in_one_request_overlap_per_job(harness: Harness) -> None:
    jobs = [(await declare(harness, overlap))[0] for overlap in (Overlap.SKIP, Overlap.ALLOW, Overlap.SKIP)]
    at = await harness.now() - MINUTE
    fires = [
        a_fire(job, a_skipped_tick(at), a_tick(job, at + 1), a_tick(job, at + 2), next_fire=job.next_fire)
        for job in jobs
    ]
    fired = await harness.store.fire(await harness.owner(), fires)
    assert [(answer.applied, answer.runs) for answer in fired] == [(True, 1), (True, 2), (True, 1)]
    found = [(await read_decisions(harness, job.id))[""] for job in jobs]
    skips = decisions("missed", "run", "overlap")
    assert found == [skips, decisions("missed", "run", "run"), skips]


async def test_a_recorded_tick_leaves_the_room_behind_its_active_run(harness: Harness) -> None:
    job, at = await declare(harness, Overlap.QUEUE)
    await fire(harness, job.id, at)
    [held] = await harness.claim(await harness.worker())
    assert await fire(harness, job.id, at, at + 1, at + 2) == 1
    assert await read_decisions(harness, job.id) == {"": decisions("run", "run", "overlap")}
    assert await harness.state(tick_run_id(job.id, at + 1)) is RunState.BLOCKED
    await harness.succeed(held)


@pytest.mark.parametrize("places", [(), PLACES], ids=["plain", "data centers"])
async def test_overlap_cancel_does_not_stop_the_run_of_a_tick_that_comes_again(
    harness: Harness, places: tuple[str, ...]
) -> None:
    job, at = await declare(harness, Overlap.CANCEL, places)
    runs = [tick_run_id(job.id, at, place) for place in places or ("",)]
    assert await fire(harness, job.id, at) == len(runs)
    assert await fire(harness, job.id, at) == 0
    assert [await harness.state(run) for run in runs] == [RunState.QUEUED] * len(runs)
    assert await fire(harness, job.id, at + SECOND) == len(runs)
    assert [await harness.state(run) for run in runs] == [RunState.CANCELLED] * len(runs)


async def test_only_one_tick_of_a_fire_waits_for_an_ordering_key_that_is_held(harness: Harness) -> None:
    [stranger] = await harness.start(a_run(key="video"))
    job, at = await declare(harness, Overlap.QUEUE, policy=a_policy(key="video"))
    assert await fire(harness, job.id, at, at + 1) == 1
    assert await read_decisions(harness, job.id) == {"": decisions("run", "overlap")}
    assert await harness.state(tick_run_id(job.id, at)) is RunState.BLOCKED
    await harness.succeed(stranger)
