"""Who has no engine pays for none: a run's way is made of the statements that it was, with nothing beside them."""

import asyncio
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest
from asyncpg.connection import LoggedQuery

from mainspring.adapters.store.postgres import PostgresStore
from mainspring.adapters.store.postgres.database import SESSION, Connection
from mainspring.adapters.store.postgres.floors import Floors
from mainspring.bootstrap.node import Node, Role
from mainspring.control.dispatcher import READER, Dispatcher
from mainspring.domain.ids import SessionId
from mainspring.domain.instant import HOUR, SECOND
from mainspring.domain.run import settle_success
from mainspring.ports.store import NewSession, Want
from mainspring.runtime.engines import Engines
from mainspring.settings import load
from tests.support.builders import some_runs

#: The way of runs that are claimed without hints, by the names of what is sent.
CYCLE = ["submit_now", "claim", "settle_succeeded"]


class Listening:
    """A store on PostgreSQL, and each statement that it sends."""

    def __init__(self, store: PostgresStore, outside: asyncpg.Connection) -> None:
        self.store = store
        self.outside = outside
        self.sent: list[str] = []
        self._names = {text: name for name, text in store._db.sql.items()}

    def hear(self, query: LoggedQuery) -> None:
        self.sent.append(self._names.get(query.query, query.query))

    async def cycle(self, worker: SessionId, *, hinted: bool = False) -> list[str]:
        """Submit, claim and settle ten runs; what was sent for it."""
        runs = some_runs(10)
        await self._all_heard()
        self.sent.clear()
        await self.store.submit(runs)
        named = tuple(run.id for run in runs) if hinted else None
        held = await self.store.claim(worker, 1, [Want("default", 10, runs=named)])
        await self.store.settle([settle_success(run, None) for run in held])
        assert len(held) == 10
        await self._all_heard()
        # Submits look once in a second whether queues have lanes.
        return [name for name in self.sent if name != "laned_queues"]

    async def _all_heard(self) -> None:
        """Whoever listens is told on the next turn of the loop."""
        for _ in range(3):
            await asyncio.sleep(0)

    async def told(self) -> int:
        found: int = await self.outside.fetchval("SELECT count(*) FROM outbox")
        return found

    async def plan(self) -> str:
        """Of a claim; without its costs, which go by the number of pages."""
        await self.outside.execute("SET plan_cache_mode = force_generic_plan")
        for setting, value in SESSION.items():
            await self.outside.execute(f"SET {setting} = '{value}'")
        await self.outside.execute(f"PREPARE it (bigint, int, int[], int[], bigint[]) AS {self.store._db.sql['claim']}")
        rows = await self.outside.fetch("EXPLAIN EXECUTE it(1, 1, '{1}', '{500}', '{0}')")
        await self.outside.execute("DEALLOCATE it")
        return "\n".join(re.sub(r"\(cost=.*?\)", "", row[0]) for row in rows)


@pytest.fixture
async def listening(postgres_database: str) -> AsyncIterator[Listening]:
    store = PostgresStore(postgres_database, shards=4, connections=1)
    # No claim is slow, however busy the machine: a slow one has a look beside it.
    store._ranks = Floors(lambda: 0)
    await store.open()
    outside = await asyncpg.connect(postgres_database, server_settings={"search_path": "mainspring"})
    listening = Listening(store, outside)

    async def begin(connection: Connection) -> None:
        connection.add_query_logger(listening.hear)

    async def end(connection: Connection) -> None:
        connection.remove_query_logger(listening.hear)

    await store._db.run(begin)
    yield listening
    await store._db.run(end)
    await outside.close()
    await store.close()


@pytest.mark.postgres
async def test_the_way_of_a_run_is_three_statements_and_writes_no_event(listening: Listening) -> None:
    worker = await listening.store.open_session(NewSession(name="w", kind="worker", ttl=HOUR))
    await listening.cycle(worker)
    assert await listening.cycle(worker) == CYCLE
    assert await listening.told() == 0
    # And it would be seen if it were otherwise.
    await listening.store.attach_reader(READER, HOUR)
    hinted = await listening.cycle(worker, hinted=True)
    assert hinted == ["claim_hinted" if name == "claim" else name for name in CYCLE]
    assert await listening.told() > 0


@pytest.mark.postgres
async def test_who_goes_back_to_the_store_pays_what_a_claim_cost_before(listening: Listening) -> None:
    store = listening.store
    worker = await store.open_session(NewSession(name="w", kind="worker", ttl=HOUR))
    await listening.cycle(worker)
    await listening.outside.execute("ANALYZE")
    before = await listening.plan()
    await store.attach_reader(READER, SECOND)
    await listening.cycle(worker, hinted=True)
    assert await listening.told() > 0
    # Nobody reads any more, and the housekeeper finds out.
    await listening.outside.execute("UPDATE outbox_cursor SET until = 1")
    await store.tidy()
    await listening.cycle(worker)
    assert await listening.told() == 0
    assert await listening.plan() == before


async def test_a_process_without_an_engine_has_nobody_to_publish_and_nobody_to_feed(tmp_path: Path) -> None:
    node = Node(load({"store": str(tmp_path / "m.db")}), {Role.SCHEDULER, Role.WORKER})
    await node.start()
    try:
        assert node._engines is None
        assert not [each for each in node._supervisor._services if isinstance(each, (Dispatcher, Engines))]
        assert node._worker is not None
        assert node._worker._claimer._feeds == {}
        assert "dispatch" not in await node.health()
    finally:
        await node.stop()
        await node.engine.close()


def test_no_driver_of_an_engine_is_loaded() -> None:
    code = (
        "import asyncio, sys\n"
        "from mainspring.bootstrap.engine import Engine\nfrom mainspring.bootstrap.node import make_engines\n"
        "from mainspring.settings import load\n"
        "assert asyncio.run(make_engines(Engine(load({'store': 'memory:'})))) is None\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('redis', 'aio_pika', 'aiokafka')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
