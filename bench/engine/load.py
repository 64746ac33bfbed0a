"""The process that submits: ``python -m bench.engine.load``. On SQLite it is the whole system, in one process.

It reads calls from stdin, one line of JSON each, and answers on stdout. A call names a function of this package
that takes a ``Load`` and keyword arguments, so each measurement has both of its halves in one file.
"""

import asyncio
import importlib
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import structlog
import uvloop

from bench.sizes import PAYLOAD, QUEUE, TASK
from bench.tasks import app
from mainspring.config.loading import load
from mainspring.config.node import Node, Role
from mainspring.config.runtime import Runtime
from mainspring.config.settings import Settings
from mainspring.core.model.base.instant import Instant
from mainspring.core.model.runs.new_run import NewRun

PACKAGE = "bench."


class Call(msgspec.Struct, frozen=True):
    """A call of a function."""

    function: str
    arguments: dict[str, Any] = {}


class Answer(msgspec.Struct, frozen=True):
    """What came of it, or what went wrong."""

    value: Any = None
    error: str | None = None


class Load:
    """The runtime of this process, and the services it runs if it is the whole system."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._runtime: Runtime | None = None
        self._node: Node | None = None
        #: Services that run between two calls, by name.
        self.background: dict[str, asyncio.Task[Any]] = {}
        #: What a measurement keeps from one call to the next.
        self.kept: dict[str, Any] = {}

    @property
    def on_postgres(self) -> bool:
        return self.settings.store.startswith(("postgresql://", "postgres://"))

    async def runtime(self) -> Runtime:
        if self._runtime is None:
            self._runtime = Runtime(self.settings)
            await self._runtime.open()
        return self._runtime

    async def start_services(self) -> None:
        """Scheduler and worker, here: as ``mainspring up`` does."""
        node = Node(self.settings, {Role.SCHEDULER, Role.WORKER}, app, "bench.tasks:app")
        runtime = await self.runtime()
        # One runtime for both: an embedded application submits through the same store that its worker claims from.
        node.runtime = runtime
        app.use(runtime)
        await node.start()
        self._node = node

    async def stop_services(self) -> None:
        node, self._node = self._node, None
        if node is not None:
            await node.stop()

    async def close(self) -> None:
        for task in self.background.values():
            task.cancel()
        await asyncio.gather(*self.background.values(), return_exceptions=True)
        await self.stop_services()
        runtime, self._runtime = self._runtime, None
        if runtime is not None:
            await runtime.close()

    async def new_runs(
        self, count: int, task: str = TASK, payload: bytes = PAYLOAD, *, at: Instant | None = None, delay: int = 0
    ) -> list[NewRun]:
        """Runs to submit, with fresh ids."""
        ids = (await self.runtime()).jobs.new_run_ids([""] * count)
        return [NewRun(id=run, task=task, payload=payload, queue=QUEUE, at=at, delay=delay) for run in ids]


async def open_engine(load: Load) -> None:
    """Connect, and make the schema if there is none."""
    await load.runtime()


async def start_services(load: Load) -> None:
    await load.start_services()


async def stop_services(load: Load) -> None:
    await load.stop_services()


async def serve(load: Load) -> None:
    """Do what stdin says until it ends."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    decode, encode = msgspec.json.Decoder(Call).decode, msgspec.json.Encoder().encode
    try:
        while line := await reader.readline():
            answer = encode(await _do(load, decode(line))) + b"\n"
            # A large answer fills the pipe, and a slow reader must not block this loop.
            await asyncio.to_thread(_write_all, answer)
    finally:
        await load.close()


async def _do(load: Load, call: Call) -> Answer:
    module, _, name = call.function.partition(":")
    if not module.startswith(PACKAGE):
        return Answer(error=f"{call.function} is not part of the benchmark")
    try:
        function: Callable[..., Awaitable[Any]] = getattr(importlib.import_module(module), name)
        return Answer(value=await function(load, **call.arguments))
    except Exception as error:
        structlog.get_logger("bench").exception("a call failed", function=call.function)
        return Answer(error=f"{type(error).__name__}: {error}")


def _write_all(data: bytes) -> None:
    while data:
        data = data[os.write(sys.stdout.fileno(), data) :]


def main() -> None:
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(Load(load({"worker.queues": f"{QUEUE}:1000"}))))


if __name__ == "__main__":
    main()
