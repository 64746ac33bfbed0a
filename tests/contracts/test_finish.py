"""Finish: an operator sets the outcome of runs that have ended elsewhere."""

from typing import Any

import msgspec
import pytest

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import DAY, HOUR, MINUTE, SECOND
from mainspring.core.model.runs.completion import CompletionAnswer, complete_failure, complete_success
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.model.runs.restored import KnownOutcome
from mainspring.core.model.runs.run import HeldRun, RunState
from mainspring.core.model.workflows.dependencies import DependencyRule
from mainspring.core.ports.storage.access import Author
from mainspring.core.ports.storage.catalog import RunFilter
from tests.support.builders import a_job, a_limit, a_run, a_spec, after_each, an_id, some_runs
from tests.support.store_harness import Harness, ids

pytestmark = pytest.mark.api

ADA = Author("ada", why="seen in the log")
READER = "sink"
QUEUED, BLOCKED, SUCCEEDED, FAILED = RunState.QUEUED, RunState.BLOCKED, RunState.SUCCEEDED, RunState.FAILED


def done(run: NewRun | HeldRun, **fields: Any) -> KnownOutcome:
    return KnownOutcome(run=run.id, **fields)


async def test_finish_ends_a_run_in_any_state(harness: Harness) -> None:
    [running, asked, retried] = await harness.start(*some_runs(3))
    await harness.store.cancel([asked.id])
    await harness.fail(retried)
    queued, waiting, parent = a_run(), a_run(delay=HOUR), a_run(delay=DAY)
    child, hopeful = a_run(after=[parent]), a_run(start_within=SECOND, deadline=MINUTE)
    runs: list[NewRun | HeldRun] = [running, asked, retried, queued, waiting, child, hopeful]
    await harness.submit(queued, waiting, parent, hopeful)
    await harness.submit(child)
    answer = await harness.store.finish(
        [*(done(run, reason="it was seen") for run in runs[1:]), done(running, result=b'{"a":[1,"x"]}')], ADA
    )
    assert answer == dict.fromkeys(ids(runs), SUCCEEDED)
    for run in runs:
        view = await harness.view(run.id)
        assert (view.state, view.started_at, view.error) == (SUCCEEDED, None, None)
        assert view.finished_at is not None
        assert view.reason == ("" if run is running else "it was seen")
    result = (await harness.view(running.id)).result
    assert result is not None
    assert msgspec.json.decode(result) == {"a": [1, "x"]}
    assert (await harness.view(queued.id)).result is None
    assert await harness.state(parent.id) is RunState.SCHEDULED
    # No run is left to be claimed, staged or swept.
    assert await harness.claim(await harness.worker()) == []
    await harness.advance(2 * HOUR)
    assert (await harness.stage()).runs == 0
    assert await harness.store.sweep(100) == 0


async def test_finish_resolves_the_children(harness: Harness) -> None:
    good, bad = some_runs(2)
    await harness.submit(good, bad)
    first, second, third = (
        a_run(after=[good]),
        a_run(after=[bad]),
        a_run(after=[good, bad], rule=DependencyRule.ANY_FAILED),
    )
    await harness.submit(first, second, third)
    await harness.store.finish([done(good), done(bad, state=FAILED, reason="error", error="boom")], ADA)
    await harness.resolve()
    assert await harness.states([first, second, third]) == [QUEUED, RunState.SKIPPED, QUEUED]


async def test_finish_may_end_a_parent_and_its_child_together(harness: Harness) -> None:
    parent = a_run()
    child = a_run(after=[parent])
    await harness.submit(parent, child)
    await harness.store.finish([done(child), done(parent)], ADA)
    await harness.resolve()
    assert await harness.states([parent, child]) == [SUCCEEDED, SUCCEEDED]


async def test_a_run_finished_as_failed_is_a_dead_letter(harness: Harness) -> None:
    run, held = a_run(), (await harness.start(a_run()))[0]
    await harness.submit(run)
    ends = [done(one, state=FAILED, reason="error", error="ValueError: no") for one in (run, held)]
    assert await harness.store.finish(ends, ADA) == {run.id: FAILED, held.id: FAILED}
    view = await harness.view(run.id)
    assert (view.state, view.reason, view.error) == (FAILED, "error", "ValueError: no")
    assert view.fingerprint == (await harness.view(held.id)).fingerprint == ends[0].fingerprint != ""
    assert await harness.store.discard([run.id, held.id], ADA) == 2


@pytest.mark.parametrize("state", [RunState.CANCELLED, RunState.SKIPPED])
async def test_finish_accepts_cancelled_and_skipped(harness: Harness, state: RunState) -> None:
    run = a_run()
    await harness.submit(run)
    assert await harness.store.finish([done(run, state=state, reason="so")], ADA) == {run.id: state}
    assert (await harness.view(run.id)).reason == "so"


async def test_finish_releases_ordering_keys_and_limits(harness: Harness) -> None:
    [holder] = await harness.start(a_run(key="a"))
    second, third = a_run(key="a"), a_run(key="a")
    inside = [a_run(limits=(a_limit(most=1),)) for _ in range(3)]
    await harness.submit(second)
    await harness.submit(third)
    for run in inside:
        await harness.submit(run)
    assert await harness.states([second, third, *inside]) == [BLOCKED, BLOCKED, QUEUED, BLOCKED, BLOCKED]
    await harness.store.finish([done(holder), done(second), done(inside[0])], ADA)
    assert await harness.states([third, *inside]) == [QUEUED, SUCCEEDED, QUEUED, BLOCKED]
    # The finish of a running run releases its limit, too.
    held = [run for run in await harness.claim(await harness.worker()) if run.id == inside[1].id]
    await harness.store.finish([done(held[0])], ADA)
    assert await harness.states(inside) == [SUCCEEDED, SUCCEEDED, QUEUED]
    assert await harness.store.sweep(100) == 0


async def test_a_finished_run_that_had_started_still_counts_in_its_period(harness: Harness) -> None:
    limit = (a_limit(most=2, per=DAY),)
    [held] = await harness.start(a_run(limits=limit))
    queued, blocked = a_run(limits=limit), a_run(limits=limit)
    await harness.submit(queued)
    await harness.submit(blocked)
    assert await harness.states([queued, blocked]) == [QUEUED, BLOCKED]
    await harness.store.finish([done(held)], ADA)
    assert await harness.state(blocked.id) is BLOCKED
    await harness.store.finish([done(queued)], ADA)
    assert await harness.state(blocked.id) is QUEUED


async def test_finish_sets_the_next_tick_of_a_fixed_delay(harness: Harness) -> None:
    job = await harness.put(a_job(a_spec(schedule=after_each(MINUTE))))
    await harness.advance(2 * MINUTE)
    await harness.fire_due()
    [tick] = await harness.ticks(job.id)
    assert tick.run_id is not None
    assert (await harness.job(job.id)).next_fire is None
    await harness.store.finish([KnownOutcome(run=tick.run_id)], ADA)
    assert (await harness.job(job.id)).next_fire is not None


async def test_the_worker_of_a_finished_run_is_fenced(harness: Harness) -> None:
    [held, other] = await harness.start(*some_runs(2))
    await harness.store.finish([done(held), done(other)], ADA)
    failure = complete_failure(held, "boom", harness._random, now=await harness.now())
    assert await harness.complete(failure) == [CompletionAnswer.STALE]
    assert await harness.complete(complete_success(other, None)) == [CompletionAnswer.DUPLICATE]
    assert await harness.states([held, other]) == [SUCCEEDED, SUCCEEDED]


async def test_finish_leaves_ended_runs_and_omits_unknown_ones(harness: Harness) -> None:
    [held] = await harness.start(a_run())
    await harness.fail(held)
    await harness.store.cancel([held.id])
    before = await harness.view(held.id)
    assert await harness.store.finish([done(held), KnownOutcome(run=an_id())], ADA) == {held.id: RunState.CANCELLED}
    assert await harness.view(held.id) == before
    assert await harness.store.finish([], ADA) == {}
    with pytest.raises(Invalid, match="no end"):
        await harness.store.finish([done(held, state=QUEUED)], ADA)


async def test_finish_emits_events_and_audit_entries(harness: Harness) -> None:
    await harness.store.attach_reader(READER)
    [held] = await harness.start(a_run())
    queued = a_run()
    await harness.submit(queued)
    await harness.unread_events(READER)
    await harness.store.finish([done(held)], ADA)
    await harness.store.finish([done(queued, state=FAILED)], ADA)
    assert (await harness.unread_events(READER))[-2:] == [("run.succeeded", (held.id,)), ("run.failed", (queued.id,))]
    entries = (await harness.store.audit(None))[:2][::-1]
    assert [(one.action, one.target, one.author, one.why) for one in entries] == [
        ("runs.finish", held.id, "ada", "seen in the log"),
        ("runs.finish", queued.id, "ada", "seen in the log"),
    ]
    assert (entries[0].before, entries[0].after) == (b'{"state":"running"}', b'{"state":"succeeded"}')


async def test_a_finished_run_counts_no_attempt_and_no_usage(harness: Harness) -> None:
    [held] = await harness.start(a_run())
    queued = a_run()
    await harness.submit(queued)
    await harness.advance(5 * DAY)
    await harness.store.finish([done(held), done(queued)], ADA)
    await harness.advance(MINUTE)
    await harness.store.tidy()
    now = await harness.now()
    assert [line for line in await harness.store.usage(None, now - 20 * DAY, now + DAY, "task") if line.amount] == []
    minutes = await harness.store.minutes(None, now - DAY, now)
    assert sum(minute.succeeded for minute in minutes) == 2
    assert [(minute.started, minute.took_most) for minute in minutes if minute.succeeded] == [(0, 0)]
    assert await harness.store.attempts(held.id) == []
    page = await harness.store.list_runs(RunFilter(tenant=None, states=frozenset({SUCCEEDED})), None, 10)
    assert {run.id for run in page.items} == {held.id, queued.id}
