"""An application for tests with real processes: tasks that take a while, and one for schedules."""

import asyncio
from pathlib import Path

from mainspring import Mainspring
from tests.support.waiting import eventually

app = Mainspring()


@app.task(queue="load", retries=5)
async def moment(milliseconds: int) -> int:
    await asyncio.sleep(milliseconds / 1_000)
    return milliseconds


@app.task(queue="load", retries=5)
async def wait_for_file(path: str) -> None:
    await eventually(Path(path).exists, deadline=1_000)


@app.task(queue="ticks")
async def tick() -> None: ...
