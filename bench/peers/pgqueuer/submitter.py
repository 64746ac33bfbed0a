"""Submits to pgqueuer."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import asyncpg
import uvloop
from pgqueuer import AsyncpgPoolDriver, Queries

from bench.peers import peer


class Queue:
    def __init__(self, queries: Queries) -> None:
        self._queries = queries

    async def install(self) -> None:
        await self._queries.install()
        await self._queries.optimize_autovacuum()

    async def add(self, task: str, data: dict[str, Any]) -> None:
        await self._queries.enqueue(task, json.dumps(data).encode())

    async def add_many(self, task: str, data: Sequence[dict[str, Any]], at: datetime | None = None) -> None:
        count = len(data)
        after = None if at is None else [at - datetime.now(UTC)] * count
        await self._queries.enqueue([task] * count, [json.dumps(item).encode() for item in data], [0] * count, after)


async def main() -> None:
    what, numbers = peer.arguments()
    async with asyncpg.create_pool(peer.URL, min_size=1, max_size=10) as pool:
        peer.answer(await peer.submit(Queue(Queries(AsyncpgPoolDriver(pool))), what, *numbers))


if __name__ == "__main__":
    uvloop.run(main())
