"""A worker of pgqueuer: batches of 500, a pool of connections, uvloop, its statistics off."""

import asyncio
import json
import logging
import signal
from datetime import timedelta

import asyncpg
import uvloop
from pgqueuer import AsyncpgPoolDriver, Job, Queries, QueueManager

from bench.peers import peer

BATCH = 500
#: One for the listener, one that dequeues, and some that record outcomes meanwhile: a single connection is slower.
CONNECTIONS = 4


async def main() -> None:
    logging.getLogger("pgqueuer").setLevel(logging.WARNING)
    async with asyncpg.create_pool(peer.URL, min_size=CONNECTIONS, max_size=CONNECTIONS) as pool:
        manager = QueueManager(Queries(AsyncpgPoolDriver(pool)))
        recorder = peer.Recorder()

        @manager.entrypoint("nothing")
        async def nothing(job: Job) -> None:
            json.loads(job.payload)
            recorder.count()

        @manager.entrypoint("stamp")
        async def stamp(job: Job) -> None:
            recorder.stamp(**json.loads(job.payload))

        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, manager.shutdown.set)
        peer.ready()
        await manager.run(batch_size=BATCH, log_aggregation_interval=timedelta(0))


if __name__ == "__main__":
    uvloop.run(main())
