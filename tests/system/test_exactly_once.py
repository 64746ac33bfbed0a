"""Workers that are killed at random: what their handlers wrote in a transaction happened exactly once.

``EXACTLY_ONCE_RUNS=10000`` tries more than the usual number of runs.
"""

import asyncio
import os
import random
import time
from pathlib import Path

import asyncpg
import pytest

from mainspring import Mainspring
from tests.support.processes import Processes, kill

RUNS = int(os.environ.get("EXACTLY_ONCE_RUNS", "1000"))
WORKERS = 3
#: About so many runs end between two kills.
STEP = 100
APP = "tests.support.transaction_tasks:app"

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.system,
    pytest.mark.timeout(60 + RUNS // 20),
    pytest.mark.xdist_group("system"),
]


async def test_every_run_adds_its_row_exactly_once_whoever_is_killed(postgres_database: str, tmp_path: Path) -> None:
    connection = await asyncpg.connect(postgres_database)
    await connection.execute("CREATE TABLE public.effects (number integer NOT NULL)")
    app = Mainspring(postgres_database)
    task = app.named("add").options(queue="effects")
    await app.submit_many([task.prepare(number=number) for number in range(RUNS)])

    async def done() -> int:
        count: int = await connection.fetchval("SELECT count(*) FROM effects")
        return count

    kills = 0
    async with Processes(postgres_database, tmp_path) as processes:
        processes.start("scheduler")
        workers = [processes.start("worker", APP, "--queue", "effects:5") for _ in range(WORKERS)]
        while not await done():
            await asyncio.sleep(0.02)
        deadline = time.monotonic() + 30 + RUNS / 20
        # What was lost comes back when its lease is over, behind the rest; nobody is killed for ever.
        while (before := await done()) < RUNS * 0.8 and time.monotonic() < deadline:
            victim = random.randrange(WORKERS)
            kill(workers[victim])
            kills += 1
            workers[victim] = processes.start("worker", APP, "--queue", "effects:5")
            enough = before + random.randrange(2 * STEP)
            while await done() < enough and time.monotonic() < deadline:
                await asyncio.sleep(0.02)
        while await done() < RUNS and time.monotonic() < deadline:
            await asyncio.sleep(0.1)
        # Whatever was to come twice would come now.
        await asyncio.sleep(1)
        rows = await connection.fetchrow("SELECT count(*), count(DISTINCT number) FROM effects")
        states = await connection.fetch("SELECT state, count(*) FROM mainspring.history GROUP BY state")
        lost = await connection.fetchval("SELECT count(*) FROM mainspring.attempt WHERE outcome = 4")
        left = await connection.fetchval("SELECT count(*) FROM mainspring.run") + await connection.fetchval(
            "SELECT count(*) FROM mainspring.waiting"
        )
        logs = processes.logs()
    await connection.close()
    await app.close()
    assert rows is not None
    assert tuple(rows) == (RUNS, RUNS), f"{kills} killed, {lost} attempts lost, {left} left\n{logs}"
    assert [tuple(row) for row in states] == [(5, RUNS)]
    assert left == 0
    assert kills >= 2
    assert lost > 0
    print(f"{RUNS} runs, {kills} workers killed, {lost} attempts lost: {rows[0]} rows, {rows[1]} different")  # noqa: T201


async def test_a_run_that_is_tried_alone_completes_in_its_own_process(postgres_database: str, tmp_path: Path) -> None:
    """Two workers are thought to have died of it, so the third runs it in a child process."""
    app = Mainspring(postgres_database)
    handle = await app.named("add").options(queue="effects", delay="1h").submit(number=1)
    connection = await asyncpg.connect(postgres_database)
    await connection.execute("CREATE TABLE public.effects (number integer NOT NULL)")
    await connection.execute("UPDATE mainspring.waiting SET lost = 2, attempt = 2, due = 0")
    async with Processes(postgres_database, tmp_path) as processes:
        processes.start("scheduler")
        processes.start("worker", APP, "--queue", "effects:5")
        assert await handle.result("40s") == 1
        view = await handle.view()
        logs = processes.logs()
    assert (view.attempt, view.lost) == (3, 2)
    assert await connection.fetchval("SELECT count(*) FROM effects") == 1
    assert "somebody else" not in logs
    await connection.close()
    await app.close()
