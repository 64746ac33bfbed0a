"""An application whose handlers tell everything there is to tell, from wherever they run."""

# ruff: noqa: T201

import asyncio
import logging
import os
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from mainspring import Context, Mainspring, RetryPolicy, provided

app = Mainspring("telling.db")
#: Almost at once.
ONCE_MORE = RetryPolicy(max_retries=1, first_delay=1, max_delay=1)
#: Where hooks write what they saw, a file each.
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


def tell(context: Context, pool: Pool) -> dict[str, Any]:
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
    return tell(context, pool)


@app.task(retry=ONCE_MORE, executor="thread")
def on_thread(context: Context, pool: Pool = provided()) -> dict[str, Any]:
    return tell(context, pool)


@app.task(retry=ONCE_MORE)
def in_child(context: Context, pool: Pool = provided()) -> dict[str, Any]:
    return tell(context, pool)


@app.task(retry=ONCE_MORE, executor="process")
def in_process(context: Context, pool: Pool = provided()) -> dict[str, Any]:
    return tell(context, pool)


@app.task(retries=0, heartbeat="1s")
def silent(context: Context) -> None:
    for _ in range(8):
        time.sleep(0.2)
        context.heartbeat()
    while True:
        time.sleep(0.01)


@app.task(executor="thread")
def polls(context: Context) -> str:
    while not context.cancelled:
        time.sleep(0.01)
    return "saw it"


@app.task
def slow(context: Context) -> None:
    context.progress(1, 3)
    print("begun")
    context.log.info("going on")
    for _ in range(300):
        time.sleep(0.01)


@app.task
def parent(context: Context) -> str:
    [handle] = context.spawn_sync(leaf.prepare())
    return handle.id


@app.task
async def leaf() -> None: ...
