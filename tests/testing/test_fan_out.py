"""Fan-outs in virtual time, with failures, cancels and lost workers."""

import asyncio
from collections import Counter

import pytest

from mainspring import Context, Mainspring
from mainspring.core.model.runs.reserved import FAN_IN, FAN_OUT
from mainspring.core.model.runs.run import ENDED, RunState
from mainspring.core.model.workflows.fan_out import build_fan_out_tag
from mainspring.core.ports.storage.catalog import RunFilter
from mainspring.sdk.handle import RunFailed
from mainspring.testing import TestScheduler


async def test_results_of_a_fan_out_are_in_the_order_of_the_items() -> None:
    app = Mainspring()

    @app.task
    async def double(number: int) -> int:
        await asyncio.sleep(10 - number)
        return 2 * number

    async with TestScheduler(app) as s:
        handle = await double.map([3, 1, 2])
        await s.run_until_idle()
        done = await handle.result()
        assert (done.members, done.succeeded, done.results) == (3, 3, [6, 2, 4])
        view = await handle.view()
        assert view.progress is not None
        assert (view.progress.done, view.progress.total, view.attempt) == (3, 3, 1)
        none = await (await double.map([])).result()
        assert (none.members, none.results) == (0, [])


async def test_a_fan_out_keeps_to_its_concurrency_while_workers_are_lost() -> None:
    app = Mainspring()
    seen: Counter[int] = Counter()
    most = 0

    @app.task
    async def work(number: int) -> None:
        seen[number] += 1

    async with TestScheduler(app) as s:
        handle = await work.map(range(3_000), at_a_time=500)
        s.lose(FAN_OUT, 2)
        s.lose(FAN_IN, 3)
        for _ in range(100):
            await s.advance("200ms")
            open_now = RunFilter(tenant=None, tag=build_fan_out_tag(handle.id), states=frozenset(RunState) - ENDED)
            most = max(most, await (await app.runtime()).store.count_runs(open_now, 10_000))
        await s.run_until_idle()
        done = await handle.result()
        assert (done.members, done.succeeded, done.results) == (3_000, 3_000, None)
        assert set(seen) == set(range(3_000))
        assert len(s.runs(work)) == 3_000
        assert most <= 500


@pytest.mark.parametrize("priority", [1, 5])
async def test_progress_grows_while_its_members_fill_the_queue(priority: int) -> None:
    app = Mainspring()

    @app.task(priority=priority)
    async def work(number: int) -> None:
        await asyncio.sleep(80)

    async with TestScheduler(app) as s:
        handle = await work.map(range(1_000), at_a_time=1_000)
        behind = []
        for _ in range(12):
            await s.advance("1m")
            progress = (await handle.view()).progress
            behind.append(s.runs(work).succeeded - (0 if progress is None else progress.done))
        # A hundred members run at a time, and they are gathered together.
        assert max(behind) <= 200, behind
        await s.run_until_idle()
        assert (await handle.result()).succeeded == 1_000


async def test_the_runs_that_manage_a_fan_out_have_priority_over_its_members() -> None:
    app = Mainspring()

    @app.task
    async def work(number: int) -> None: ...

    async with TestScheduler(app) as s:
        for priority in (1, 2, 5, 10):
            root = await work.options(priority=priority).map([priority])
            await s.run_until_idle()
            await root.result()
            assert (await root.view()).priority == 1
        assert {run.priority for run in s.runs(FAN_IN)} == {1}
        assert sorted(run.priority for run in s.runs(work)) == [2, 2, 5, 10]


async def test_a_fan_out_fails_with_the_number_of_failed_members() -> None:
    app = Mainspring()

    @app.task(retries=0)
    async def odd(number: int) -> int:
        if number % 2 == 0:
            raise ValueError(number)
        return number

    async with TestScheduler(app) as s:
        fails = await odd.map(range(1, 6))
        goes_on = await odd.map(range(1, 6), on_failure="go-on")
        await s.run_until_idle()
        with pytest.raises(RunFailed, match=r"2 of 5 members did not succeed \(2 failed\)"):
            await fails.result()
        view = await fails.view()
        assert (view.reason, view.attempt) == ("gave up", 1)
        found_by = f"to list them, filter by the tag {build_fan_out_tag(view.id)}"
        assert view.error == f"GiveUp: 2 of 5 members did not succeed (2 failed); {found_by}"
        done = await goes_on.result()
        assert (done.succeeded, done.failed, done.results) == (3, 2, [1, None, 3, None, 5])


@pytest.mark.parametrize("late", [False, True])
async def test_cancelling_a_fan_out_stops_all_members_within_seconds(late: bool) -> None:
    app = Mainspring()
    started: list[int] = []

    @app.task
    async def slow(number: int) -> None:
        started.append(number)
        await asyncio.sleep(600)

    async with TestScheduler(app) as s:
        handle = await slow.map(range(2_000), at_a_time=100)
        await s.advance("15m" if late else "1m")
        await handle.cancel()
        await s.advance("2s")
        count = len(started)
        assert 0 < count <= (200 if late else 100)
        runs = s.runs(slow)
        assert all(run.state.ended for run in runs)
        assert all(run.state.ended for run in s.runs(FAN_IN))
        await s.advance("1h")
        assert (len(s.runs(slow)), len(started)) == (len(runs), count), "nothing more is made"


async def test_the_deadline_of_a_fan_out_cancels_its_members() -> None:
    app = Mainspring()

    @app.task
    async def slow(number: int) -> None:
        await asyncio.sleep(600)

    async with TestScheduler(app) as s:
        payload = {"task": "slow", "range": {"to": 50}, "argument": "number"}
        handle = await app.named(FAN_OUT).options(deadline="30s").submit(**payload)
        await s.advance("40s")
        assert (await handle.view()).reason == "deadline"
        assert {run.state for run in s.runs(slow)} == {RunState.CANCELLED}


async def test_a_workflow_fans_out_over_the_result_of_a_step() -> None:
    app = Mainspring()

    @app.task
    async def list_files(day: str) -> list[str]:
        return [f"{day}-{number}" for number in range(3)]

    @app.task
    async def size(file: str) -> int:
        return len(file)

    @app.task
    async def total(context: Context) -> int:
        parents = await context.parents()
        return sum(parents["size"].result["results"])

    flow = app.workflow("sizes")
    files = flow.add(list_files.prepare("monday"))
    sizes = flow.map(size, files)
    flow.add(total.prepare(), after=[sizes])
    async with TestScheduler(app) as s:
        made = await flow.submit()
        await s.run_until_idle()
        assert await made["total"].result() == 3 * len("monday-0")
        assert (await made[sizes].result()).results == [8, 8, 8]


async def test_a_workflow_with_a_fan_out_recurs() -> None:
    app = Mainspring()

    @app.task
    async def part(number: int) -> None: ...

    flow = app.workflow("nightly")
    flow.map(part, range(5))
    flow.cron("0 * * * *")
    async with TestScheduler(app, start="2026-01-05T00:30:00+00:00") as s:
        await s.advance("3h")
        assert s.runs(part).succeeded == 15
        assert s.runs(FAN_OUT).succeeded == 3


async def test_a_fan_out_fails_if_gathering_its_members_is_cancelled() -> None:
    app = Mainspring()

    @app.task
    async def slow(number: int) -> None:
        await asyncio.sleep(600)

    async with TestScheduler(app) as s:
        handle = await slow.map(range(20))
        await s.advance("1m")
        [gathering] = [run for run in s.runs(FAN_IN) if run.about is not None and "part" in run.about.name]
        await app.handle(gathering.id).cancel()
        await s.advance("5s")
        view = await handle.view()
        assert view.state is RunState.FAILED
        assert "part 1 of 1 was not gathered" in (view.error or "")
        assert {run.state for run in s.runs(slow)} == {RunState.CANCELLED}
