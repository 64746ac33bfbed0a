"""An application for tests with real processes: tasks that take a moment, and a cron every second."""

import asyncio

from mainspring import Mainspring

app = Mainspring()


@app.task(queue="load", retries=5)
async def moment(milliseconds: int) -> int:
    await asyncio.sleep(milliseconds / 1_000)
    return milliseconds


@app.task(queue="ticks")
async def tick() -> None: ...
