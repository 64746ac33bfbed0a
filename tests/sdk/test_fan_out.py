"""Fan-outs: one call for each of many items, on every store and through the API."""

import asyncio
from collections import Counter
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from mainspring import Conflict, FanOut, Invalid, Mainspring
from mainspring.config.node import Node, Role
from mainspring.core.model.runs.reserved import RESERVED
from mainspring.core.model.runs.run import RunState
from mainspring.sdk.task import Task
from tests.support.processes import free_port

MEMBERS = 1_100


def define(app: Mainspring, seen: Counter[int]) -> "Task[[int], Coroutine[Any, Any, int], int]":
    @app.task
    async def square(number: int) -> int:
        seen[number] += 1
        return number * number

    return square


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory:" if request.param == "memory" else str(tmp_path / "site.db")


async def test_a_fan_out_runs_a_thousand_members(store: str) -> None:
    await run_a_thousand_members(store)


@pytest.mark.slow
@pytest.mark.postgres
async def test_a_fan_out_runs_a_thousand_members_on_postgresql(postgres_database: str) -> None:
    await run_a_thousand_members(postgres_database)


async def run_a_thousand_members(url: str) -> None:
    app, seen = Mainspring(url), Counter[int]()
    square = define(app, seen)
    async with app.running():
        many = await square.map(range(MEMBERS), at_a_time=400)
        few = await square.options(priority=3, retries=0).map([3, 1, 2])
        assert (await few.result("2m")).results == [9, 1, 4]
        done = await many.result("2m")
        assert (done.members, done.succeeded, done.results) == (MEMBERS, MEMBERS, None)
        view = await many.view()
        assert view.progress is not None
        assert (view.progress.done, view.progress.total) == (MEMBERS, MEMBERS)
    await app.close()
    assert set(seen) == set(range(MEMBERS))
    assert set(seen.values()) <= {1, 2}, "1, 2 and 3 are members of both"


async def test_a_fan_out_is_submitted_through_the_api_and_from_sync_code(tmp_path: Path) -> None:
    port = free_port()
    app, seen = Mainspring(str(tmp_path / "site.db")), Counter[int]()
    define(app, seen)
    node = Node(app.settings({"port": port}), {Role.SCHEDULER, Role.WORKER, Role.HTTP}, app, None)
    await node.runtime.open()
    app.use(node.runtime)
    await node.start()
    client, bare = (Mainspring.connect(f"http://127.0.0.1:{port}") for _ in range(2))
    square = define(client, Counter())
    try:
        handle = await square.map([2, 3])
        done = await handle.result("2m")
        assert isinstance(done, FanOut)
        assert (done.members, done.succeeded, done.failed, done.results) == (2, 2, 0, [4, 9])
        blocking = await asyncio.to_thread(square.sync.map, range(3))
        assert (await asyncio.to_thread(blocking.result, "2m")).results == [0, 1, 4]
        named = await bare.named("square").map([{"number": 5}])
        assert (await named.result("2m")).results == [25]
        stopped = await square.options(delay="1h").map([1])
        assert await stopped.cancel() is RunState.CANCELLED
    finally:
        await client.close()
        await bare.close()
        await node.stop()
        await app.close()


async def test_an_invalid_fan_out_is_rejected_before_it_is_submitted() -> None:
    app = Mainspring("memory:")
    square = define(app, Counter())
    for wrong in ("abc", 7, ["x"], [[1]], ["1" * 300_000]):
        with pytest.raises(Invalid, match=r"items|arguments"):
            square.prepare_map(wrong)  # type: ignore[arg-type]
    with pytest.raises(Invalid, match="bytes"):
        square.prepare_map(list(range(100_000)))
    with pytest.raises(Invalid, match=r"map over range\(how many\)"):
        square.prepare_map(list(range(100_000)))
    with pytest.raises(Invalid, match="waits for no run"):
        await app.submit_many([square.prepare_map(each="nonode")])
    with pytest.raises(Invalid, match="at_a_time"):
        square.prepare_map([1], at_a_time=0)
    with pytest.raises(Invalid, match="on_failure"):
        square.prepare_map([1], on_failure="cry")  # type: ignore[arg-type]
    with pytest.raises(Invalid, match="name"):
        app.named("elsewhere").prepare_map([1])
    with pytest.raises(Invalid, match="named arguments"):
        app.named("elsewhere").prepare_map(range(3))
    with pytest.raises(Invalid, match="no task"):
        app.workflow("w").map("square", [1])  # type: ignore[arg-type]
    await app.close()


@pytest.mark.parametrize("name", sorted(RESERVED))
def test_a_task_with_the_name_of_a_built_in_task_is_rejected(name: str) -> None:
    app = Mainspring("memory:")

    async def work() -> None: ...

    with pytest.raises(Conflict, match="built in"):
        app.task(name=name)(work)
    with pytest.raises(Conflict, match="built in"):
        app.task(aliases=[name])(work)
