"""The application of the load. Each start is written down at once, outside the store, so that a kill cannot undo it."""

import asyncio
import os
import time
from functools import cache

import asyncpg

from mainspring import Context, Mainspring, transaction

app = Mainspring()


@app.task(queue="load", retries=5)
async def moment(context: Context, key: str, milliseconds: int) -> None:
    _stamp(context, key)
    await asyncio.sleep(milliseconds / 1_000)


@app.task(queue="load", retries=5)
async def effect(context: Context, key: str, db: asyncpg.Connection = transaction()) -> None:
    _stamp(context, key)
    await db.execute("INSERT INTO public.effects (run) VALUES ($1)", context.run_id)


@app.task(queue="ticks", retries=5)
async def tick(context: Context) -> None:
    _stamp(context, "-")


def _stamp(context: Context, key: str) -> None:
    # The monotonic clock is the machine's, the same for every process, whatever is done to the time of day.
    line = f"{context.run_id} {context.fence} {time.monotonic_ns() // 1_000} {context.due} {key}\n"
    os.write(_file(os.getpid()), line.encode())


@cache
def _file(process: int) -> int:
    path = os.path.join(os.environ["CHAOS_STAMPS"], f"{process}.stamps")
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
