"""Hooks, middleware and resources."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest

from mainspring import Conflict, Context, Invalid, Mainspring, provided
from mainspring.testing import TestScheduler


class Pool:
    def __init__(self, name: str) -> None:
        self.name = name


class Config:
    name = "configured"


@pytest.fixture
def app() -> Mainspring:
    return Mainspring()


async def test_a_worker_opens_resources_before_its_first_run_and_closes_them_after_its_last(app: Mainspring) -> None:
    calls: list[str] = []

    @app.on_start
    def configure() -> None:
        calls.append("start")

    @app.on_start
    async def warm_up() -> None:
        await asyncio.sleep(60)
        calls.append("warm")

    @app.on_stop
    async def say_goodbye() -> None:
        calls.append("stop")

    @app.resource
    async def pool(config: Config = provided()) -> AsyncIterator[Pool]:
        calls.append("open pool")
        async with asyncio.timeout(3_600):
            yield Pool(config.name)
        calls.append("close pool")

    @app.resource
    def config() -> Iterator[Config]:
        calls.append("open config")
        yield Config()
        calls.append("close config")

    @app.task
    async def work(number: int, pool: Pool = provided()) -> str:
        calls.append("work")
        return f"{pool.name} {number}"

    @app.task
    def block(pool: Pool = provided(), *, config: Config = provided()) -> str:
        return f"{pool.name} {config.name}"

    async with TestScheduler(app) as s:
        assert await (await work.submit(1)).result() == "configured 1"
        assert await (await block.submit()).result() == "configured configured"
        assert s.runs(work).last.attempt == 1
    opened = ["start", "warm", "open config", "open pool"]
    assert calls == [*opened, "work", "close pool", "close config", "stop"]


async def test_a_missing_resource_is_named(app: Mainspring) -> None:
    @app.task
    async def work(pool: Pool = provided()) -> None: ...

    with pytest.raises(Invalid, match=r"task work: asks for `pool: Pool`, which no @app.resource provides"):
        async with TestScheduler(app):
            pass


async def test_resources_that_depend_on_each_other_are_rejected(app: Mainspring) -> None:
    @app.resource
    def pool(config: Config = provided()) -> Iterator[Pool]:
        yield Pool("")

    @app.resource
    def config(pool: Pool = provided()) -> Iterator[Config]:
        yield Config()

    @app.task
    async def work(pool: Pool = provided()) -> None: ...

    with pytest.raises(Invalid, match="asks for itself"):
        app.handlers()


async def test_an_invalid_resource_function_is_rejected(app: Mainspring) -> None:
    def returns() -> Pool:
        return Pool("")

    def silent():  # type: ignore[no-untyped-def]
        yield Pool("")

    def asks(name: str) -> Iterator[Pool]:
        yield Pool(name)

    def good() -> Iterator[Pool]:
        yield Pool("")

    for wrong, why in ((returns, "does not yield"), (silent, "does not say"), (asks, "has no value")):
        with pytest.raises(Invalid, match=why):
            app.resource(wrong)
    app.resource(good)
    with pytest.raises(Conflict, match="twice"):
        app.resource(good)


async def test_a_resource_that_cannot_be_opened_keeps_the_worker_from_starting(app: Mainspring) -> None:
    closed: list[str] = []

    @app.on_stop
    def stop() -> None:
        closed.append("stop")

    @app.resource
    async def pool() -> AsyncIterator[Pool]:
        raise ConnectionRefusedError("no database")
        yield Pool("")

    with pytest.raises(ConnectionRefusedError, match="no database"):
        async with TestScheduler(app):
            pass
    assert closed == ["stop"]


async def test_a_direct_call_passes_the_resource_itself(app: Mainspring) -> None:
    @app.task
    async def work(number: int, pool: Pool = provided()) -> str:
        return f"{pool.name} {number}"

    assert await work(1, pool=Pool("mine")) == "mine 1"
    assert await work(1, Pool("mine")) == "mine 1"
    with pytest.raises(Invalid, match=r"`pool` is there in a worker only.*work\(…, pool=…\)"):
        await work(1)
    with pytest.raises(Invalid, match="unexpected keyword argument 'pool'"):
        work.payload(1, pool=Pool("mine"))


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_middleware_wraps_every_attempt(app: Mainspring, kind: str) -> None:
    calls: list[str] = []

    @app.around
    @contextmanager
    def outer(context: Context) -> Iterator[None]:
        calls.append(f"outer {context.task} {context.attempt}")
        try:
            yield
        except ConnectionError:
            calls.append("outer saw it")
            raise
        finally:
            calls.append("outer left")

    @app.around
    @asynccontextmanager
    async def inner(context: Context) -> AsyncIterator[None]:
        calls.append("inner")
        yield
        calls.append("inner left")

    @app.task(retries=1)
    async def work(context: Context) -> None:
        calls.append("work")
        if context.attempt == 1:
            raise ConnectionError

    @app.task(name="block", retries=1)
    def block(context: Context) -> None:
        calls.append("work")
        if context.attempt == 1:
            raise ConnectionError

    task = work if kind == "async" else block
    async with TestScheduler(app) as s:
        await task.submit()
        await s.advance("1h")
        assert s.runs(task).succeeded == 1
    first = [f"outer {task.name} 1", "inner", "work", "outer saw it", "outer left"]
    assert calls == [*first, f"outer {task.name} 2", "inner", "work", "inner left", "outer left"]


async def test_a_plain_generator_is_rejected_as_middleware(app: Mainspring) -> None:
    with pytest.raises(Invalid, match="@contextmanager"):

        @app.around  # type: ignore[type-var]
        def middleware(context: Context) -> Iterator[None]:
            yield


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_hooks_run_after_every_attempt(app: Mainspring, kind: str) -> None:
    calls: list[object] = []

    @app.on_success
    async def succeeded(context: Context, result: object) -> None:
        calls.append((context.attempt, result))

    @app.on_failure
    def failed(context: Context, error: BaseException, final: bool) -> None:
        calls.append((context.attempt, str(error), final))

    @app.on_success
    @app.on_failure
    def broken(*_: object) -> None:
        raise RuntimeError("a broken hook")

    @app.task(retries=1)
    async def work(context: Context, good_at: int) -> list[int]:
        if context.attempt < good_at:
            raise ConnectionError("not yet")
        return [good_at]

    @app.task(retries=1)
    def block(context: Context, good_at: int) -> list[int]:
        if context.attempt < good_at:
            raise ConnectionError("not yet")
        return [good_at]

    task = work if kind == "async" else block
    async with TestScheduler(app) as s:
        await task.submit(2)
        await s.advance("1h")
        assert calls == [(1, "not yet", False), (2, [2])]
        calls.clear()
        await task.submit(3)
        await s.advance("1h")
        assert calls == [(1, "not yet", False), (2, "not yet", True)]
        assert (s.runs(task).succeeded, s.runs(task).failed) == (1, 1)


async def test_the_failure_hook_runs_for_a_cancelled_run_as_final(app: Mainspring) -> None:
    calls: list[object] = []

    @app.on_failure
    def failed(context: Context, error: BaseException, final: bool) -> None:
        calls.append((type(error), final, context.cancelled))

    @app.task
    async def work() -> None:
        await asyncio.sleep(1_000)

    async with TestScheduler(app) as s:
        handle = await work.submit()
        await s.advance("1s")
        await s.cancel(handle)
        await s.advance("1m")
        assert s.runs(work).cancelled == 1
    assert calls == [(asyncio.CancelledError, True, True)]


async def test_middleware_and_task_can_both_spawn(app: Mainspring) -> None:
    @app.task
    async def child(number: int) -> None: ...

    @app.around
    @asynccontextmanager
    async def announce(context: Context) -> AsyncIterator[None]:
        if context.task == "parent":
            await context.spawn(child.prepare(1))
        yield

    @app.task
    async def parent(context: Context) -> None:
        await context.spawn(child.prepare(2))

    async with TestScheduler(app) as s:
        await parent.submit()
        await s.advance("1s")
        assert len(s.runs(child)) == 2
