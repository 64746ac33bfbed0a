"""Correct use of the SDK: both checkers accept it in their strictest mode."""

import asyncio
from collections.abc import AsyncIterator, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import assert_type

from mainspring import Context, Mainspring, RetryPolicy, RunHandle, provided

app = Mainspring("memory:")


@dataclass
class Order:
    number: int


@app.task
async def add(left: int, right: int = 1) -> int:
    return left + right


@app.task(queue="mail", timeout="30s", retry=RetryPolicy(max_retries=2))
async def send(context: Context, to: str, *, subject: str = "") -> str:
    return f"{context.attempt} {to} {subject}"


@app.task(executor="process")
def crunch(order: Order) -> Order:
    return order


@app.cron("0 9 * * MON", timezone="Europe/Paris")
async def weekly() -> None: ...


async def closes() -> None:
    await app.pause("weekly", reason="the bank is closed", until=datetime(2030, 1, 1, tzinfo=UTC))
    await app.resume("weekly")
    await app.pause_queue("mail", reason="the provider is down")
    await app.resume_queue("mail")
    app.pause_sync("weekly")
    app.resume_sync("weekly")
    app.pause_queue_sync("mail")
    app.resume_queue_sync("mail")


@app.every("10m", mode="fixed_delay")
@app.task(name="tidy", aliases=["clean"])
def tidy(context: Context, deep: bool = False) -> int:
    return context.attempt + deep


@app.on_start
async def begin() -> None: ...


@app.resource
async def order() -> AsyncIterator[Order]:
    yield Order(1)


@app.task(heartbeat="30s")
async def pay(context: Context, number: int, order: Order = provided()) -> list[str]:
    context.progress(number, 10, "paying")
    context.checkpoint({"number": number})
    context.log.info("%s", context.state)
    handles = await context.spawn(add.prepare(1), add.prepare(2))
    assert_type(handles, list[RunHandle[int]])
    return [handle.id for handle in handles]


@app.around
@contextmanager
def timed(context: Context) -> Generator[None, None, None]:
    yield


@app.on_failure
def failed(context: Context, error: BaseException, final: bool) -> None: ...


async def use() -> None:
    assert_type(await (await pay.submit(1)).result(), list[str])
    assert_type(await pay(1, order=Order(2)), list[str])
    assert_type(await add(1, right=2), int)
    assert_type(crunch(Order(1)), Order)
    handle = await add.submit(1, right=2)
    assert_type(handle, RunHandle[int])
    assert_type(await handle.result(), int)
    assert_type(await (await send.submit("a", subject="b")).result("1m"), str)
    assert_type(await (await crunch.options(delay="10m", priority=2).submit(Order(1))).result(), Order)
    assert_type(await (await tidy.submit()).result(), int)
    await weekly.submit()
    await send.options(at=datetime(2030, 1, 1, tzinfo=UTC), unique="once", tags=("x",)).submit("a")
    many = await app.submit_many([add.prepare(1), add.options(queue="other").prepare(2)])
    assert_type(many, list[RunHandle[int]])
    await app.named("elsewhere").options(queue="mail").submit(anything=1)


def block() -> None:
    assert_type(add.sync.submit(1).result(), int)


async def remote() -> None:
    async with Mainspring.connect("http://127.0.0.1:7070", key="ms_…") as there:
        await there.named("add").submit(left=1)


asyncio.run(use())
