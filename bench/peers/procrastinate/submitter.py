"""Submits to Procrastinate."""

import logging
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import uvloop

from bench.peers import peer
from bench.peers.procrastinate.tasks import app


class Queue:
    async def install(self) -> None:
        await app.schema_manager.apply_schema_async()

    async def add(self, task: str, data: dict[str, Any]) -> None:
        await app.tasks[task].defer_async(**data)

    async def add_many(self, task: str, data: Sequence[dict[str, Any]], at: datetime | None = None) -> None:
        await app.tasks[task].configure(schedule_at=at).batch_defer_async(*data)


async def main() -> None:
    logging.getLogger("procrastinate").setLevel(logging.WARNING)
    what, numbers = peer.arguments()
    async with app.open_async():
        peer.answer(await peer.submit(Queue(), what, *numbers))


if __name__ == "__main__":
    uvloop.run(main())
