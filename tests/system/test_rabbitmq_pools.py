"""Pools of slots by priority, fed by a real RabbitMQ with a queue for each priority, as in ``jobs.priority.1``."""

import asyncio
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import amqp
import httpx2
import msgspec
import pytest

from mainspring.core.model.base.ids import RunId
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.model.runs.run import RunState
from mainspring.stores.postgres import PostgresStore
from tests.support import rabbitmq
from tests.support.load import APP, make_jobs
from tests.support.processes import Processes, api_client, free_port, until_ready
from tests.support.waiting import eventually

pytestmark = [pytest.mark.postgres, pytest.mark.system, pytest.mark.timeout(900), pytest.mark.xdist_group("system")]


async def count_hints(client: httpx2.AsyncClient) -> float:
    """How many hints the broker has given to the worker of this process."""
    shown = (await client.get("/metrics")).text
    return sum(map(float, re.findall(r"^mainspring_dispatch_taken_total\{.*\} (.*)$", shown, re.MULTILINE)))


class Site:
    """One process with every role, two slots for priority 1 and one for priority 3."""

    def __init__(self, store: PostgresStore, processes: Processes) -> None:
        self._store = store
        self._jobs = make_jobs(store)
        self._processes = processes

    async def submit(self, number: int, priority: int, task: str, **payload: object) -> list[RunId]:
        runs = [
            NewRun(
                id=self._jobs.new_run_id(),
                task=task,
                payload=msgspec.json.encode(payload),
                queue="load",
                priority=priority,
            )
            for _ in range(number)
        ]
        await self._jobs.submit_many(runs)
        return [run.id for run in runs]

    async def states(self, runs: Sequence[RunId]) -> list[RunState]:
        views = await self._store.seen_by(None).runs(runs)
        return [view.state for view in views if view is not None]

    async def until(self, runs: Sequence[RunId], state: RunState, number: int) -> None:
        async def reached() -> bool:
            return (await self.states(runs)).count(state) == number

        await eventually(reached, self._processes.logs)


async def test_a_full_pool_holds_up_no_other_and_none_is_starved(
    address_of: Callable[[str], str], postgres_database: str, store: PostgresStore, tmp_path: Path
) -> None:
    address, name = address_of("rabbitmq"), f"jobs-{uuid4().hex[:8]}.priority"
    environment = {
        "MAINSPRING_DISPATCH_QUEUES": f"load={address}?queues={name}.{{priority}}",
        "MAINSPRING_WORKER_PRIORITIES": "1:2,3:1",
    }
    slow, urgent = tmp_path / "slow", tmp_path / "urgent"
    try:
        async with Processes(postgres_database, tmp_path / "logs", environment) as processes:
            port = free_port()
            up = processes.start("up", APP, "--port", str(port), "--queue", "load:20")
            async with api_client(port) as client:
                await until_ready(client, up, processes)
                site = Site(store, processes)
                low = await site.submit(4, 3, "wait_for_file", path=str(slow))
                await site.until(low, RunState.RUNNING, 1)

                def has_waiting_hints() -> bool:
                    # A worker that polls the store may start the first run before there is a queue.
                    with suppress(amqp.exceptions.NotFound), rabbitmq.channel_of(address) as channel:
                        found: int = channel.queue_declare(f"{name}.3", passive=True).message_count
                        return found >= 1
                    return False

                # The pool is full, and takes no more than it can start.
                await eventually(lambda: asyncio.to_thread(has_waiting_hints), processes.logs)
                # Urgent runs start all the same, by hints of their own queue.
                before = await count_hints(client)
                high = await site.submit(50, 1, "moment", milliseconds=0)
                await site.until(high, RunState.SUCCEEDED, 50)
                assert sorted(await site.states(low)) == [RunState.QUEUED] * 3 + [RunState.RUNNING]
                assert await count_hints(client) > before
                # Priority 1 has more work than slots. Priority 3 continues in its own.
                high = await site.submit(10, 1, "wait_for_file", path=str(urgent))
                await site.until(high, RunState.RUNNING, 2)
                slow.touch()
                await site.until(low, RunState.SUCCEEDED, 4)
                assert (await site.states(high)).count(RunState.RUNNING) == 2
                urgent.touch()
                await site.until(high, RunState.SUCCEEDED, 10)
    finally:
        names = [f"{name}.{priority}" for priority in range(1, 11)]
        await asyncio.to_thread(rabbitmq.delete, address, *names, f"mainspring.{await store.identity()}.dead")
