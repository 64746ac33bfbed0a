"""An application whose handlers use every kind of report, on the loop, on threads and in processes."""

# ruff: noqa: T201

import asyncio
import logging
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from mainspring import Context, Mainspring, RetryPolicy, provided
from tests.support.waiting import wait_until

app = Mainspring("reports.db")
#: Almost without a delay.
ONCE_MORE = RetryPolicy(max_retries=1, first_delay="1us", max_delay="1us")
#: A variable with the folder where each hook makes a file.
NOTES = "MAINSPRING_BENCH_NOTES"


def note(word: str) -> None:
    if NOTES in os.environ:
        (Path(os.environ[NOTES]) / f"{word}.{os.getpid()}").touch()


class Pool:
    def __init__(self) -> None:
        self.opened_in = os.getpid()
        self.loop = asyncio.get_running_loop()


@app.on_start
def start() -> None:
    note("start")


@app.on_stop
async def stop() -> None:
    note("stop")


@app.resource
async def pool() -> AsyncIterator[Pool]:
    note("open")
    yield Pool()
    note("close")


@app.around
@contextmanager
def timed(context: Context) -> Iterator[None]:
    print("around", context.task)
    yield


@app.around
@asynccontextmanager
async def traced(context: Context) -> AsyncIterator[None]:
    context.log.info("traced")
    yield


@app.on_success
async def done(context: Context, result: object) -> None:
    context.log.info("done %r", result)


@app.on_failure
def failed(context: Context, error: BaseException, final: bool) -> None:
    print("failed", type(error).__name__, final, context.cancelled)


def report(context: Context, pool: Pool) -> dict[str, Any]:
    if context.attempt == 1:
        context.checkpoint({"page": 7})
        context.progress(1, 2, "half")
        raise ConnectionError("once")
    context.progress(2, 2, "all")
    context.log.info("hello")
    logging.getLogger("library").warning("careful")
    print("printed")
    sys.stdout.flush()
    return {"state": context.state, "pid": os.getpid(), "pool": pool.opened_in}


@app.task(retry=ONCE_MORE)
async def on_loop(context: Context, pool: Pool = provided()) -> dict[str, Any]:
    assert pool.loop is asyncio.get_running_loop()
    return report(context, pool)


@app.task(retry=ONCE_MORE, executor="thread")
def on_thread(context: Context, pool: Pool = provided()) -> dict[str, Any]:
    return report(context, pool)


@app.task(retry=ONCE_MORE)
def in_child(context: Context, pool: Pool = provided()) -> dict[str, Any]:
    return report(context, pool)


@app.task(retry=ONCE_MORE, executor="process")
def in_process(context: Context, pool: Pool = provided()) -> dict[str, Any]:
    return report(context, pool)


@app.task(retries=0, heartbeat="1s")
def silent(context: Context) -> None:
    context.heartbeat()
    wait_until(lambda: False, deadline=1_000)


@app.task(executor="thread")
def polls(context: Context) -> str:
    wait_until(lambda: context.cancelled, deadline=1_000)
    return "saw it"


@app.task
def endless(context: Context) -> None:
    context.progress(1, 3)
    print("begun")
    context.log.info("continues")
    wait_until(lambda: context.cancelled, deadline=1_000)


@app.task
def parent(context: Context) -> str:
    [handle] = context.spawn_sync(leaf.prepare())
    return handle.id


@app.task
async def leaf() -> None: ...
