"""An application for tests with real processes: a task that adds a row to a table of the user."""

import asyncio
import random

import asyncpg

from mainspring import Mainspring, transaction

app = Mainspring()


@app.task(queue="effects")
async def add(number: int, db: asyncpg.Connection = transaction()) -> int:
    await db.execute("INSERT INTO effects (number) VALUES ($1)", number)
    # Long enough that some workers are killed in the middle of it.
    await asyncio.sleep(random.random() / 20)
    return number
