"""The context of a task, in virtual time. Threads and child processes have their own tests."""

# ruff: noqa: T201

import asyncio
import logging
from datetime import UTC, datetime

import pytest

from mainspring import Conflict, Context, Invalid, Mainspring
from mainspring.core.model.runs.run import Outcome
from mainspring.testing import TestScheduler


@pytest.fixture
def app() -> Mainspring:
    return Mainspring()


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_the_context_describes_the_run(app: Mainspring, kind: str) -> None:
    seen: list[Context] = []

    @app.task(name="look", queue="mail")
    async def look(context: Context) -> None:
        seen.append(context)

    @app.task(name="block", queue="mail")
    def block(context: Context) -> None:
        seen.append(context)

    task = look if kind == "async" else block
    async with TestScheduler(app, start="2026-03-01T00:00:00Z") as s:
        handle = await task.options(delay="1h").submit()
        await s.advance("1h")
    [context] = seen
    assert (context.run_id, context.task, context.queue, context.tenant) == (handle.id, task.name, "mail", "default")
    assert context.scheduled_for == datetime(2026, 3, 1, 1, tzinfo=UTC)
    assert not context.cancelled
    assert context.state is None


async def test_the_context_of_a_tick_has_its_scheduled_time(app: Mainspring) -> None:
    seen: list[datetime] = []

    @app.cron("30 * * * *")
    async def hourly(context: Context) -> None:
        seen.append(context.scheduled_for)

    async with TestScheduler(app, start="2026-03-01T00:00:00Z") as s:
        await s.advance("1h")
    assert seen == [datetime(2026, 3, 1, 0, 30, tzinfo=UTC)]


async def test_progress_is_shown_during_and_after_the_run(app: Mainspring) -> None:
    @app.task
    async def work(context: Context) -> None:
        for done in range(1_000):
            context.progress(done, 1_000)
        await asyncio.sleep(60)
        context.progress(1_000, 1_000, "done")

    async with TestScheduler(app) as s:
        await work.submit()
        await s.advance("500ms")
        shown = s.runs(work).last.progress
        assert shown is not None
        assert (shown.done, shown.total, shown.note) == (999, 1_000, "")
        await s.advance("1m")
        shown = s.runs(work).last.progress
        assert shown is not None
        assert (shown.done, shown.note) == (1_000, "done")
        assert s.runs(work).succeeded == 1


@pytest.mark.parametrize("wrong", [(-1, None), (float("nan"), None), (1, 0), (1, float("inf"))])
async def test_invalid_progress_fails_the_run(app: Mainspring, wrong: tuple[float, float | None]) -> None:
    @app.task(retries=0)
    async def work(context: Context) -> None:
        context.progress(*wrong)

    async with TestScheduler(app) as s:
        await work.submit()
        assert "is no progress" in (s.runs(work).last.error or "")


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_the_output_and_logs_of_a_task_are_stored_with_its_run(
    app: Mainspring, kind: str, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    library = logging.getLogger("some.library")

    def say(context: Context, name: str) -> None:
        context.log.info("hello %s", name)
        library.warning("careful, %s", name)
        print("plain", name)
        print("half a line", end="")
        try:
            raise ValueError("odd")
        except ValueError:
            context.log.exception("it failed")

    @app.task
    async def talk(context: Context, name: str) -> None:
        say(context, name)
        await asyncio.sleep(0)

    @app.task
    def block(context: Context, name: str) -> None:
        say(context, name)

    task = talk if kind == "async" else block
    async with TestScheduler(app) as s:
        ada, bob = await task.submit("Ada"), await task.submit("Bob")
        await s.advance("1s")
        lines = s.log(ada).splitlines()
        assert lines[:3] == [
            f"INFO mainspring.task.{task.name}: hello Ada",
            "WARNING some.library: careful, Ada",
            "plain Ada",
        ]
        assert f"ERROR mainspring.task.{task.name}: it failed" in lines
        assert "ValueError: odd" in lines
        assert lines[-1] == "half a line"
        assert "Ada" not in s.log(bob)
    assert "plain Ada\n" in capsys.readouterr().out
    assert "careful, Bob" in caplog.text
    print("outside")
    assert "outside" in capsys.readouterr().out


async def test_a_log_that_grows_too_fast_is_cut_with_a_note(app: Mainspring) -> None:
    @app.task
    async def flood() -> None:
        for number in range(100_000):
            print(number, "x" * 100)
        await asyncio.sleep(60)
        print("after")

    async with TestScheduler(app) as s:
        handle = await flood.submit()
        await s.advance("2m")
        log = s.log(handle)
        assert len(log) < 300_000
        assert "lines dropped here" in log
        assert log.endswith("after")


async def test_a_retry_continues_from_the_last_checkpoint(app: Mainspring) -> None:
    pages: list[int] = []

    @app.task(retries=5)
    async def crawl(context: Context) -> int:
        state = context.state or {"page": 0}
        for page in range(state["page"], 10):
            pages.append(page)
            context.checkpoint({"page": page + 1})
            if page in (3, 7):
                raise ConnectionError("try again")
        return len(pages)

    async with TestScheduler(app) as s:
        await crawl.submit()
        await s.advance("2h")
        assert s.runs(crawl).succeeded == 1
        assert s.runs(crawl).last.attempt == 3
    assert pages == list(range(10))


async def test_a_checkpoint_survives_the_loss_of_its_worker(app: Mainspring) -> None:
    states: list[object] = []

    @app.task
    async def work(context: Context) -> None:
        states.append(context.state)
        context.checkpoint("begun")
        if context.attempt == 1:
            await asyncio.sleep(1_000)

    @app.task
    async def bomb() -> None: ...

    async with TestScheduler(app) as s:
        await work.submit()
        await s.advance("2s")
        s.lose(bomb)
        await bomb.submit()
        await s.advance("2m")
        assert s.runs(work).succeeded == 1
    assert states == [None, "begun"]


@pytest.mark.parametrize("state", [object(), float("nan"), "x" * 300_000])
async def test_a_checkpoint_that_is_not_json_or_too_large_raises(app: Mainspring, state: object) -> None:
    @app.task(retries=0)
    async def work(context: Context) -> None:
        context.checkpoint(state)

    async with TestScheduler(app) as s:
        await work.submit()
        assert "checkpoint" in (s.runs(work).last.error or "")


async def test_a_task_without_heartbeats_times_out(app: Mainspring) -> None:
    @app.task(heartbeat="90s", retries=0)
    async def work(context: Context, heartbeats: int) -> None:
        for _ in range(heartbeats):
            await asyncio.sleep(60)
            context.heartbeat()
        await asyncio.sleep(1_000)

    async with TestScheduler(app) as s:
        handle = await work.submit(3)
        await s.advance("269s")
        assert s.runs(work).running == 1
        await s.advance("2s")
        last = s.runs(work).last
        assert (s.runs(work).failed, last.reason) == (1, "no heartbeat")
        assert "shown no life" in (last.error or "")
        [attempt] = await (await app.runtime()).store.attempts(handle.id)
        assert attempt.outcome is Outcome.TIMEOUT


async def test_a_retried_parent_does_not_spawn_twice(app: Mainspring) -> None:
    @app.task
    async def child(number: int) -> int:
        return number

    @app.task(retries=3)
    async def parent(context: Context) -> list[str]:
        first, second = await context.spawn(child.prepare(1), child.prepare(2))
        if context.attempt == 1:
            raise ConnectionError("after two")
        [third] = await context.spawn(child.options(tags=("last",)).prepare(3))
        return [first.id, second.id, third.id]

    async with TestScheduler(app) as s:
        handle = await parent.submit()
        ids = await handle.result()
        assert [view.id for view in s.runs(child)] == ids
        abouts = [view.about for view in s.runs(child)]
        assert [about.parent for about in abouts if about] == [handle.id] * 3
        assert [about.tags for about in abouts if about] == [(), (), ("last",)]


async def test_a_retry_that_spawns_a_different_child_is_a_conflict(app: Mainspring) -> None:
    @app.task
    async def child(number: int) -> None: ...

    @app.task(retries=1)
    async def parent(context: Context) -> None:
        await context.spawn(child.prepare(context.attempt))
        raise ConnectionError("after the first")

    async with TestScheduler(app) as s:
        await parent.submit()
        await s.advance("1h")
        assert Conflict.__name__ in (s.runs(parent).last.error or "")
        assert len(s.runs(child)) == 1


async def test_a_sync_task_can_spawn(app: Mainspring) -> None:
    @app.task
    async def child() -> str:
        return "done"

    @app.task
    def parent(context: Context) -> str:
        [handle] = context.spawn_sync(child.prepare())
        return handle.result()

    async with TestScheduler(app):
        assert await (await parent.submit()).result() == "done"


async def test_the_context_of_a_direct_call_reports_nothing(app: Mainspring, caplog: pytest.LogCaptureFixture) -> None:
    @app.task
    async def work(context: Context) -> object:
        context.progress(1, 2)
        context.heartbeat()
        context.checkpoint([1])
        context.log.warning("hello")
        assert not context.cancelled
        return context.state

    assert await work() is None
    assert "hello" in caplog.text


async def test_a_heartbeat_timeout_that_is_too_short_is_rejected(app: Mainspring) -> None:
    with pytest.raises(Invalid, match="too short"):

        @app.task(heartbeat="10ms")
        async def work() -> None: ...
