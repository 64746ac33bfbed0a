"""A worker without handlers, as a process that can be killed. It claims runs and completes them without end.

``python -m tests.support.policy_worker DSN QUEUE BATCH``
"""

import asyncio
import sys
from contextlib import suppress

from mainspring.core.model.base.errors import StoreUnavailable
from mainspring.core.model.base.instant import SECOND
from mainspring.core.model.runs.completion import complete_success
from mainspring.core.model.runs.run import HeldRun
from mainspring.core.store import Demand, NewSession
from mainspring.stores.postgres import PostgresStore

TTL = 5 * SECOND
HEARTBEAT_SECONDS = 0.5
#: A pause of a worker that found nothing to do.
IDLE_SECONDS = 0.01


async def work(dsn: str, queue: str, batch: int) -> None:
    store = PostgresStore(dsn, connections=2)
    await store.open()
    session = await store.open_session(NewSession(name="policy-worker", kind="worker", ttl=TTL))
    held: list[HeldRun] = []
    number, renewed_at = 0, asyncio.get_running_loop().time()
    while True:
        number += 1
        with suppress(StoreUnavailable):
            held = await store.claim(session, number, [Demand(queue, batch)])
            if not held:
                await asyncio.sleep(IDLE_SECONDS)
        while held:
            with suppress(StoreUnavailable):
                await store.complete([complete_success(run, None) for run in held])
                held = []
        if asyncio.get_running_loop().time() - renewed_at > HEARTBEAT_SECONDS:
            renewed_at = asyncio.get_running_loop().time()
            await store.heartbeat(session, TTL, [], [], number)


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1], sys.argv[2], int(sys.argv[3])))
