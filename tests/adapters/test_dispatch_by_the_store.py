"""A store without a broker runs no statement, event or driver on behalf of brokers."""

import asyncio
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest
from asyncpg.connection import LoggedQuery

from mainspring.config.loading import load
from mainspring.config.node import Node, Role
from mainspring.core.dispatch.dispatcher import READER, Dispatcher
from mainspring.core.model.base.ids import SessionId
from mainspring.core.model.base.instant import HOUR, SECOND
from mainspring.core.model.runs.completion import complete_success
from mainspring.core.runtime.brokers import Brokers
from mainspring.core.store import Demand, NewSession
from mainspring.stores.postgres import PostgresStore
from mainspring.stores.postgres.database import SESSION, Connection
from mainspring.stores.postgres.rank_floors import RankFloors
from tests.support.builders import some_runs

#: The statements from the submit to the completion of a run without hints.
CYCLE = ["submit_now", "claim", "complete_succeeded"]


class ObservedStore:
    """A store on PostgreSQL, and the statements that it sends."""

    def __init__(self, store: PostgresStore, outside: asyncpg.Connection) -> None:
        self.store = store
        self.outside = outside
        self.sent: list[str] = []
        self._names = {statement.text: name for name, statement in store._db.sql.items()}

    def record(self, query: LoggedQuery) -> None:
        self.sent.append(self._names.get(query.query, query.query))

    async def cycle(self, worker: SessionId, *, hinted: bool = False) -> list[str]:
        """Submit, claim and complete ten runs. Returns the statements that were sent."""
        runs = some_runs(10)
        await self._let_the_driver_log()
        self.sent.clear()
        await self.store.submit(runs)
        named = tuple(run.id for run in runs) if hinted else None
        held = await self.store.claim(worker, 1, [Demand("default", 10, runs=named)])
        await self.store.complete([complete_success(run, None) for run in held])
        assert len(held) == 10
        await self._let_the_driver_log()
        # Submits read once per second which queues have label sets.
        return [name for name in self.sent if name != "grouped_queues"]

    async def _let_the_driver_log(self) -> None:
        """The driver calls its loggers in the next turns of the loop."""
        for _ in range(3):
            await asyncio.sleep(0)

    async def count_events(self) -> int:
        found: int = await self.outside.fetchval("SELECT count(*) FROM outbox")
        return found

    async def explain_claim(self) -> str:
        """The plan of a claim without its costs, which depend on the number of pages."""
        await self.outside.execute("SET plan_cache_mode = force_generic_plan")
        for setting, value in SESSION.items():
            await self.outside.execute(f"SET {setting} = '{value}'")
        claim = self.store._db.sql["claim"]
        values = {
            "session": "1::bigint",
            "claim": "1",
            "queues": "'{1}'::int[]",
            "limits": "'{500}'::int[]",
            "start_ranks": "'{0}'::bigint[]",
        }
        await self.outside.execute(f"PREPARE it AS {claim.text}")
        rows = await self.outside.fetch(f"EXPLAIN EXECUTE it({', '.join(values[name] for name in claim.parameters)})")
        await self.outside.execute("DEALLOCATE it")
        return "\n".join(re.sub(r"\(cost=.*?\)", "", row[0]) for row in rows)


@pytest.fixture
async def observed(postgres_database: str) -> AsyncIterator[ObservedStore]:
    store = PostgresStore(postgres_database, shards=4, connections=1)
    # By this clock no claim is slow: a slow claim runs another statement.
    store._ranks = RankFloors(lambda: 0)
    await store.open()
    outside = await asyncpg.connect(postgres_database, server_settings={"search_path": "mainspring"})
    observed = ObservedStore(store, outside)

    async def begin(connection: Connection) -> None:
        connection.add_query_logger(observed.record)

    async def end(connection: Connection) -> None:
        connection.remove_query_logger(observed.record)

    await store._db.run(begin)
    yield observed
    await store._db.run(end)
    await outside.close()
    await store.close()


@pytest.mark.postgres
async def test_a_run_takes_three_statements_and_writes_no_event(observed: ObservedStore) -> None:
    worker = await observed.store.open_session(NewSession(name="w", kind="worker", ttl=HOUR))
    await observed.cycle(worker)
    assert await observed.cycle(worker) == CYCLE
    assert await observed.count_events() == 0
    # With a reader there are events, so the check above can fail.
    await observed.store.attach_reader(READER, HOUR)
    hinted = await observed.cycle(worker, hinted=True)
    assert hinted == ["claim_hinted" if name == "claim" else name for name in CYCLE]
    assert await observed.count_events() > 0


@pytest.mark.postgres
async def test_a_store_whose_broker_was_removed_has_the_same_claim_plan_as_before(observed: ObservedStore) -> None:
    store = observed.store
    worker = await store.open_session(NewSession(name="w", kind="worker", ttl=HOUR))
    await observed.cycle(worker)
    await observed.outside.execute("ANALYZE")
    before = await observed.explain_claim()
    await store.attach_reader(READER, SECOND)
    await observed.cycle(worker, hinted=True)
    assert await observed.count_events() > 0
    # The reader has expired; upkeep removes it.
    await observed.outside.execute("UPDATE outbox_cursor SET until = 1")
    await store.tidy()
    await observed.cycle(worker)
    assert await observed.count_events() == 0
    assert await observed.explain_claim() == before


async def test_a_process_without_a_broker_has_no_dispatcher_and_no_feeds(tmp_path: Path) -> None:
    node = Node(load({"store": str(tmp_path / "m.db")}), {Role.SCHEDULER, Role.WORKER})
    await node.start()
    try:
        assert node._brokers is None
        assert not [each for each in node._supervisor._services if isinstance(each, (Dispatcher, Brokers))]
        assert node._worker is not None
        assert node._worker._claimer._feeds == {}
        assert "dispatch" not in await node.health()
    finally:
        await node.stop()
        await node.runtime.close()


def test_a_process_without_a_broker_loads_no_broker_driver() -> None:
    code = (
        "import asyncio, sys\n"
        "from mainspring.config.runtime import Runtime\nfrom mainspring.config.services.cluster import make_brokers\n"
        "from mainspring.config.loading import load\n"
        "assert asyncio.run(make_brokers(Runtime(load({'store': 'memory:'})))) is None\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('redis', 'aio_pika', 'aiokafka')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
