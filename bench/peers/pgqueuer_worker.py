"""A worker of pgqueuer: ``python -m bench.peers.pgqueuer_worker nothing|stamp``."""

import asyncio
import logging
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import asyncpg
import uvloop
from pgqueuer import AsyncpgPoolDriver, Job, Queries, QueueManager

from bench.tasks import DIRECTORY, RECORD

DSN = "PEER_DSN"
BATCH = 500
#: One for the listener, one that dequeues, and some that record outcomes meanwhile: a single connection is slower.
CONNECTIONS = 4


async def main(task: str) -> None:
    logging.getLogger("pgqueuer").setLevel(logging.WARNING)
    async with asyncpg.create_pool(os.environ[DSN], min_size=CONNECTIONS, max_size=CONNECTIONS) as pool:
        manager = QueueManager(Queries(AsyncpgPoolDriver(pool)))
        path = Path(os.environ[DIRECTORY]) / f"{os.getpid()}.stamps"
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

        async def nothing(job: Job) -> None:
            """The no-op."""

        async def stamp(job: Job) -> None:
            now = time.time_ns() // 1_000
            os.write(file, RECORD.pack(job.id.to_bytes(16, "big"), 0, now))

        manager.entrypoint(task)(stamp if task == "stamp" else nothing)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, manager.shutdown.set)
        print("mainspring: ready (pgqueuer)", file=sys.stderr, flush=True)
        # Its statistics are left out: they are of no use here, and would cost it.
        await manager.run(batch_size=BATCH, log_aggregation_interval=timedelta(0))


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1]))
