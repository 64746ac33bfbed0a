"""Loses a primary of PostgreSQL under load, again and again, and counts what became of the runs.

    python -m tools.failover [--repeat 3] [--kill node|server]

Three servers under Patroni, one standby synchronous, are started if they do not run (``tools.services``). Jobs are
submitted, claimed and completed all the while. Then the leader is killed with -9: its server and Patroni's agent, as if
its machine had lost its power (``node``), or the server alone (``server``). It says how long no submit succeeded, and
whether anything that was acknowledged is lost or there twice.
"""

import argparse
import asyncio
import os
import random
import signal
import sys
import time

import asyncpg

from mainspring.core.model.base.errors import StoreUnavailable
from mainspring.core.model.base.ids import IdMaker, RunId
from mainspring.core.model.base.instant import HOUR
from mainspring.core.model.runs.completion import CompletionAnswer, complete_success
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.store import Demand, NewSession
from mainspring.stores.postgres import PostgresStore
from tools.services import all_services, ensure
from tools.services.patroni import Patroni

_SHARDS = 16
_SUBMITTERS = 4


class Load:
    """Submits and completes, as clients and workers do: what got no answer is asked again."""

    def __init__(self, store: PostgresStore) -> None:
        self._store = store
        self._ids = IdMaker(random.Random())
        self.acknowledged: list[RunId] = []
        self.completed: list[RunId] = []
        #: When the last submit before each moment of success was acknowledged: the longest pause is the outage.
        self.longest = 0.0
        self._last = time.monotonic()
        self.stopping = False

    async def submit(self) -> None:
        while not self.stopping:
            runs = [self._run() for _ in range(10)]
            while not self.stopping:
                try:
                    await self._store.submit(runs)
                except StoreUnavailable:
                    await asyncio.sleep(0.05)
                    continue
                now = time.monotonic()
                self.longest, self._last = max(self.longest, now - self._last), now
                self.acknowledged += [run.id for run in runs]
                break

    async def work(self) -> None:
        session, number = None, 0
        while not self.stopping:
            try:
                if session is None:
                    worker = NewSession(name="failover", kind="worker", ttl=HOUR, queues=("default",))
                    session = await self._store.open_session(worker)
                number += 1
                held = await self._store.claim(session, number, [Demand("default", 100)])
                answers = await self._store.complete([complete_success(run, None) for run in held])
            except StoreUnavailable:
                await asyncio.sleep(0.05)
                continue
            self.completed += [
                run.id for run, answer in zip(held, answers, strict=True) if answer is CompletionAnswer.ACCEPTED
            ]
            if not held:
                await asyncio.sleep(0.05)

    def _run(self) -> NewRun:
        return NewRun(id=self._ids.run(time.time_ns() // 1_000, random.randrange(_SHARDS)), task="noop")


async def once(patroni: Patroni, dsn: str, kill: str) -> tuple[float, int, int, int, int]:
    """The outage in seconds; runs acknowledged, lost, doubled; completions that are gone."""
    store = PostgresStore(dsn, shards=_SHARDS, connections=8)
    await store.open()
    load = Load(store)
    tasks = [asyncio.create_task(load.submit()) for _ in range(_SUBMITTERS)]
    tasks += [asyncio.create_task(load.work()) for _ in range(2)]
    await asyncio.sleep(3)
    load.longest = 0.0
    leader = await asyncio.to_thread(patroni.leader)
    assert leader is not None
    killed_at = time.monotonic()
    if kill == "node":
        patroni.kill_node(leader)
    else:
        pid = patroni.postmaster(leader)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
    before = len(load.acknowledged)
    while len(load.acknowledged) < before + 200 and time.monotonic() - killed_at < 120:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    await asyncio.sleep(2)
    load.stopping = True
    await asyncio.gather(*tasks)
    there, twice, done = await _count(store, load)
    await store.close()
    await asyncio.to_thread(patroni.start_node, leader)
    return load.longest, len(load.acknowledged), len(load.acknowledged) - there, twice, len(set(load.completed)) - done


async def _count(store: PostgresStore, load: Load) -> tuple[int, int, int]:
    """How many of those acknowledged are there, how many twice, how many completed ones have ended."""

    async def work(connection: "asyncpg.pool.PoolConnectionProxy[asyncpg.Record]") -> tuple[int, int, int]:
        await connection.execute("SET statement_timeout = 0")
        row = await connection.fetchrow(
            """
            SELECT count(DISTINCT id) AS there, count(*) - count(DISTINCT id) AS twice FROM (
                SELECT id FROM mainspring.run UNION ALL SELECT id FROM mainspring.waiting
                UNION ALL SELECT id FROM mainspring.history) AS every WHERE id = ANY ($1::uuid[])
            """,
            load.acknowledged,
        )
        assert row is not None
        done = await connection.fetchval(
            "SELECT count(DISTINCT id) FROM mainspring.history WHERE id = ANY ($1::uuid[])", load.completed
        )
        return row["there"], row["twice"], done

    return await store._database.run(work)


async def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.failover", description=__doc__.partition("\n")[0])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--kill", choices=["node", "server"], default="node")
    arguments = parser.parse_args()
    dsn = await asyncio.to_thread(ensure, "patroni")
    patroni = all_services()["patroni"]
    assert isinstance(patroni, Patroni)
    print("kill     outage s  acknowledged  lost  doubled  completions lost", flush=True)
    bad = 0
    for _ in range(arguments.repeat):
        until = time.monotonic() + 120
        while await asyncio.to_thread(patroni.synchronous) is None or await asyncio.to_thread(patroni.leader) is None:
            assert time.monotonic() < until, "the cluster did not come together again"
            await asyncio.sleep(0.5)
        outage, acknowledged, lost, doubled, gone = await once(patroni, dsn, arguments.kill)
        print(
            f"{arguments.kill:<8} {outage:>8.1f}  {acknowledged:>12,}  {lost:>4}  {doubled:>7}  {gone:>16}", flush=True
        )
        bad += lost + doubled + gone + (outage >= 40)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
