"""A worker of Procrastinate: 100 jobs at once, a connection pool, notifications, and a short polling interval."""

import logging

import uvloop

from bench.peers import peer
from bench.peers.procrastinate.tasks import app, recorders


async def main() -> None:
    logging.getLogger("procrastinate").setLevel(logging.WARNING)
    recorders.append(peer.Recorder())
    async with app.open_async():
        peer.ready()
        await app.run_worker_async(concurrency=100, fetch_job_polling_interval=0.1)


if __name__ == "__main__":
    uvloop.run(main())
