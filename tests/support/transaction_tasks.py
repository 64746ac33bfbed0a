"""An application for tests with real processes: a task that adds a row in a table of the user's."""

import asyncio
import random

import asyncpg

from mainspring import Mainspring, transaction

app = Mainspring()


@app.task(queue="effects")
async def add(number: int, db: asyncpg.Connection = transaction()) -> int:
    await db.execute("INSERT INTO effects (number) VALUES ($1)", number)
    # So that there is something to be killed in the middle of.
    await asyncio.sleep(random.random() / 20)
    return number
