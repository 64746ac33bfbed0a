"""Dependencies between calls, workflows, and results of parents, on the store and through the API."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mainspring import Context, Invalid, Mainspring, NotFound, Overlap
from mainspring.config.node import Node, Role
from mainspring.core.model.runs.run import RunState
from mainspring.testing import TestScheduler
from tests.sdk.test_submitting import find_task
from tests.support.processes import free_port


def define(app: Mainspring) -> None:
    @app.task
    async def number(value: int) -> int:
        return value

    @app.task(retries=0)
    async def burst() -> None:
        raise ValueError("it was too much")

    @app.task
    async def total(context: Context) -> int:
        return sum((await context.parents()).results)

    @app.task(executor="thread")
    def named(context: Context) -> dict[str, str]:
        return {parent.node or parent.task: str(parent.state) for parent in context.parents_sync()}


@pytest.fixture(params=["store", "api"])
async def app(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Mainspring]:
    port = free_port()
    app = Mainspring(str(tmp_path / "site.db"))
    define(app)
    node = Node(app.settings({"port": port}), {Role.SCHEDULER, Role.WORKER, Role.HTTP}, app, None)
    await node.runtime.open()
    app.use(node.runtime)
    await node.start()
    client = app if request.param == "store" else Mainspring.connect(f"http://127.0.0.1:{port}")
    if client is not app:
        define(client)
    yield client
    await client.close()
    await node.stop()


async def test_a_call_depends_on_runs_and_reads_their_results(app: Mainspring) -> None:
    one = await find_task(app, "number").submit(1)
    two = await find_task(app, "number").submit(2)
    both = await find_task(app, "total").options(depends_on=[one, two.id]).submit()
    assert await both.result("2m") == 3
    assert await (await find_task(app, "total").submit()).result("2m") == 0, "a run without parents has no results"


async def test_calls_of_one_batch_can_depend_on_each_other(app: Mainspring) -> None:
    parts = [find_task(app, "number").options(delay="50ms").prepare(part) for part in range(5)]
    join = find_task(app, "total").options(depends_on=parts).prepare()
    handles = await app.submit_many([join, *parts])
    assert handles[0].state is RunState.BLOCKED
    assert await handles[0].result("2m") == 10


async def test_a_workflow_is_built_and_submitted_as_one(app: Mainspring) -> None:
    flow = app.workflow("nightly")
    one = flow.add(find_task(app, "number").prepare(1))
    two = flow.add(find_task(app, "number").prepare(2), after=[one])
    bad = flow.add(find_task(app, "burst").prepare(), after=[one], name="bad")
    never = flow.add(find_task(app, "total").prepare(), after=[two, bad])
    clean = flow.add(find_task(app, "named").prepare(), after=[two, bad], when="all-done", name="clean")
    made = await flow.submit()
    assert list(made) == ["number", "number-2", "bad", "total", "clean"]
    seen = await made.wait("2m")
    assert seen[never.name].state is RunState.SKIPPED
    assert seen[never.name].reason == f"parent {made['bad'].id} failed"
    assert await made[clean].result() == {"number-2": "succeeded", "bad": "failed"}
    assert seen["number"].about is not None
    assert (seen["number"].about.workflow, seen["number"].about.node) == (made.id, "number")


async def test_depending_on_a_missing_run_is_rejected(app: Mainspring) -> None:
    with pytest.raises((NotFound, Invalid)):
        await find_task(app, "number").options(depends_on=["01" * 6 + "7" + "0" * 19]).submit(1)


async def test_invalid_dependencies_are_rejected_before_they_are_submitted() -> None:
    app = Mainspring("memory:")
    define(app)
    number = find_task(app, "number")
    with pytest.raises(Invalid, match="is no list"):
        number.options(depends_on="abc")
    with pytest.raises(Invalid, match="depends_on"):
        number.options(depends_on=[7])  # type: ignore[list-item]
    with pytest.raises(Invalid, match="all-done"):
        number.options(depends_on=[], when="never")  # type: ignore[arg-type]
    flow, other = app.workflow("one"), app.workflow("two")
    step = flow.add(number.prepare(1))
    with pytest.raises(Invalid, match="not a step of this workflow"):
        other.add(number.prepare(2), after=[step])
    with pytest.raises(Invalid, match="already"):
        flow.add(number.prepare(2), name="number")
    async with TestScheduler(app):
        with pytest.raises(Invalid, match="not of this batch"):
            await number.options(depends_on=[number.prepare(1)]).submit(2)
        with pytest.raises(Invalid, match="nodes"):
            await other.submit()


async def test_every_attempt_reads_the_same_parents() -> None:
    app = Mainspring()
    seen: list[list[int]] = []

    @app.task
    async def number(value: int) -> int:
        return value

    @app.task(retries=2)
    async def join(context: Context) -> None:
        parents = await context.parents()
        assert parents[0].run_id == handles[0].id
        seen.append(parents.results)
        if context.attempt < 3:
            raise ValueError

    async with TestScheduler(app) as s:
        handles = [await number.submit(value) for value in (3, 1, 2)]
        await join.options(depends_on=handles).submit()
        await s.advance("1h")
    assert seen == [[3, 1, 2]] * 3


def test_sync_code_can_submit_a_workflow(tmp_path: Path) -> None:
    with Mainspring(str(tmp_path / "site.db")) as app:
        define(app)
        flow = app.workflow("plain")
        step = flow.add(find_task(app, "number").prepare(1))
        flow.add(find_task(app, "total").prepare(), after=[step])
        made = flow.submit_sync()
        assert made["total"].state is RunState.BLOCKED


async def test_each_tick_of_a_recurring_workflow_has_its_own_instance() -> None:
    app = Mainspring()
    done: list[str] = []

    @app.task
    async def extract(day: str) -> str:
        await asyncio.sleep(90 * 60)
        return f"rows of {day}"

    @app.task
    async def load(context: Context) -> None:
        done.append((await context.parents())["extract"].result)

    flow = app.workflow("nightly")
    rows = flow.add(extract.options(timeout="3h").prepare("today"))
    flow.add(load.prepare(), after=[rows])
    flow.cron("0 * * * *", overlap=Overlap.SKIP)
    async with TestScheduler(app, start="2026-01-05T00:30:00+00:00") as s:
        await s.advance("5h")
        assert done == ["rows of today"] * 2, "no tick fires while an instance is active"
        flows = {run.about.workflow for run in s.runs(load) if run.about is not None}
        assert len(flows) == 3
        assert {run.about.parent for run in s.runs(load) if run.about is not None} == flows


async def test_a_tick_with_overlap_cancel_stops_the_running_instance() -> None:
    app = Mainspring()
    done: list[str] = []

    @app.task
    async def extract() -> None:
        await asyncio.sleep(90 * 60)
        done.append("extract")

    @app.task
    async def load() -> None:
        done.append("load")

    flow = app.workflow("nightly")
    flow.add(load.prepare(), after=[flow.add(extract.options(timeout="3h").prepare())])
    flow.cron("0 * * * *", overlap=Overlap.CANCEL)
    async with TestScheduler(app, start="2026-01-05T00:30:00+00:00") as s:
        await s.advance("5h")
        states = [(run.task, run.state) for run in (*s.runs(extract), *s.runs(load))]
        assert done == []
        assert states.count(("extract", RunState.CANCELLED)) == 2, "at two and at four"
        assert states.count(("extract", RunState.RUNNING)) == 1, "of five o'clock"
        assert states.count(("load", RunState.CANCELLED)) == 2
