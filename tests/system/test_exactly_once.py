"""Workers are killed at random: each handler's write in its transaction happens exactly once.

``EXACTLY_ONCE_RUNS=10000`` tries more than the usual number of runs.
"""

import os
import random
from pathlib import Path

import asyncpg
import pytest

from mainspring import Mainspring
from tests.support.processes import START_SECONDS, Processes, kill, until_ended
from tests.support.waiting import eventually

RUNS = int(os.environ.get("EXACTLY_ONCE_RUNS", "1000"))
WORKERS = 3
#: How many runs end between two kills, on average.
STEP = 100
APP = "tests.support.transaction_tasks:app"

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.system,
    pytest.mark.timeout(600 + RUNS // 20),
    pytest.mark.xdist_group("system"),
]


async def test_every_run_adds_its_row_exactly_once_although_workers_are_killed(
    postgres_database: str, tmp_path: Path
) -> None:
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

        async def until_done(count: int) -> None:
            async def reached() -> bool:
                return await done() >= count

            await eventually(reached, processes.logs, deadline=START_SECONDS)

        async def count_left() -> int:
            left: int = await connection.fetchval(
                "SELECT (SELECT count(*) FROM mainspring.run) + (SELECT count(*) FROM mainspring.waiting)"
            )
            return left

        async def none_left() -> bool:
            return await count_left() == 0

        await until_done(1)
        # Lost runs are requeued when the lease expires. The workers are left alone for the last fifth.
        while (before := await done()) < RUNS * 0.8:
            victim = random.randrange(WORKERS)
            kill(workers[victim])
            kills += 1
            workers[victim] = processes.start("worker", APP, "--queue", "effects:5")
            await until_done(before + random.randrange(2 * STEP))
        await eventually(none_left, processes.logs)
        # After that no process is left that could write again.
        for worker in workers:
            worker.terminate()
        for worker in workers:
            await until_ended(worker, processes)
        rows = await connection.fetchrow("SELECT count(*), count(DISTINCT number) FROM effects")
        states = await connection.fetch("SELECT state, count(*) FROM mainspring.history GROUP BY state")
        lost = await connection.fetchval("SELECT count(*) FROM mainspring.attempt WHERE outcome = 4")
        left = await count_left()
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


async def test_a_run_that_was_lost_twice_runs_alone_and_its_transaction_completes_it(
    postgres_database: str, tmp_path: Path
) -> None:
    """It may have killed two workers, so the third one runs it in a child process."""
    app = Mainspring(postgres_database)
    handle = await app.named("add").options(queue="effects", delay="1h").submit(number=1)
    connection = await asyncpg.connect(postgres_database)
    await connection.execute("CREATE TABLE public.effects (number integer NOT NULL)")
    await connection.execute("UPDATE mainspring.waiting SET lost = 2, attempt = 2, due = 0")
    async with Processes(postgres_database, tmp_path) as processes:
        processes.start("scheduler")
        processes.start("worker", APP, "--queue", "effects:5")
        assert await handle.result("2m") == 1
        view = await handle.view()
        logs = processes.logs()
    assert (view.attempt, view.lost) == (3, 2)
    assert await connection.fetchval("SELECT count(*) FROM effects") == 1
    assert "somebody else" not in logs
    await connection.close()
    await app.close()
