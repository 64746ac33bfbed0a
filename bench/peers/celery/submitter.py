"""Submits to Celery, which has no call for batches: one producer sends the jobs of a batch one by one."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any

from bench.peers import peer
from bench.peers.celery.tasks import app

app.conf.broker_pool_limit = 64


class Queue:
    def __init__(self, *, threads: bool) -> None:
        self._threads = threads

    async def install(self) -> None:
        """Redis needs no tables."""

    async def add(self, task: str, data: dict[str, Any]) -> None:
        if self._threads:
            await asyncio.to_thread(app.tasks[task].apply_async, kwargs=data)
        else:
            app.tasks[task].apply_async(kwargs=data)

    async def add_many(self, task: str, data: Sequence[dict[str, Any]], at: datetime | None = None) -> None:
        def send() -> None:
            with app.producer_or_acquire() as producer:
                for item in data:
                    app.tasks[task].apply_async(kwargs=item, eta=at, producer=producer)

        await asyncio.to_thread(send)


async def main() -> None:
    what, numbers = peer.arguments()
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(64))
    peer.answer(await peer.submit(Queue(threads=what == "concurrent"), what, *numbers))


if __name__ == "__main__":
    asyncio.run(main())
