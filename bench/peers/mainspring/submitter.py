"""Submits to Mainspring through ``Jobs``, as an application does."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec
import uvloop

from bench.peers import peer
from bench.peers.mainspring.tasks import QUEUE
from mainspring.config.loading import load
from mainspring.config.runtime import Runtime
from mainspring.core.model.runs.new_run import NewRun


class Queue:
    def __init__(self, runtime: Runtime) -> None:
        self._jobs = runtime.jobs
        self._encode = msgspec.json.Encoder().encode

    async def install(self) -> None:
        """Opening the runtime has created the schema."""

    async def add(self, task: str, data: dict[str, Any]) -> None:
        await self._jobs.submit(self._new_runs(task, [data])[0])

    async def add_many(self, task: str, data: Sequence[dict[str, Any]], at: datetime | None = None) -> None:
        await self._jobs.submit_many(self._new_runs(task, data, at))

    def _new_runs(self, task: str, data: Sequence[dict[str, Any]], at: datetime | None = None) -> list[NewRun]:
        due = None if at is None else round(at.timestamp() * 1e6)
        ids = self._jobs.new_run_ids([""] * len(data))
        return [
            NewRun(id=run, task=task, payload=self._encode(item), queue=QUEUE, at=due)
            for run, item in zip(ids, data, strict=True)
        ]


async def main() -> None:
    what, numbers = peer.arguments()
    runtime = Runtime(load({}))
    await runtime.open()
    try:
        peer.answer(await peer.submit(Queue(runtime), what, *numbers))
    finally:
        await runtime.close()


if __name__ == "__main__":
    uvloop.run(main())
