"""The measured system: a store of its own, a process that submits, schedulers and workers."""

import asyncio
import contextlib
import socket
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from bench.children import Child, ChildFailed, Children
from bench.engine import load as load_process
from bench.engine.load import Answer, Call
from bench.figures import Figures
from bench.machine import family_processor_seconds, scratch_parent
from bench.sites.site import Site
from bench.sizes import QUEUE
from bench.stamps import Stamps
from bench.tasks import DIRECTORY
from mainspring.core.model.cluster.coordination import STORE

APPLICATION = "bench.tasks:app"
#: Runs that a worker has under way at most: two claims of the largest size.
SLOTS = 1_000


class Caller:
    """A process that executes calls: see ``load``."""

    def __init__(self, child: Child) -> None:
        self._child = child

    async def call(self, function: Callable[..., Awaitable[Any]], **arguments: Any) -> Any:
        """Have a function of this package called there."""
        child = self._child
        assert child.process.stdin is not None
        assert child.process.stdout is not None
        call = Call(f"{function.__module__}:{function.__name__}", arguments)
        child.process.stdin.write(msgspec.json.encode(call) + b"\n")
        child.process.stdin.flush()
        line = await asyncio.to_thread(child.process.stdout.readline)
        if not line:
            child.process.wait(5)
            child.check()
        answer = msgspec.json.decode(line, type=Answer)
        if answer.error is not None:
            raise ChildFailed(f"{function.__name__}: {answer.error}\n{child.last_words()}")
        return answer.value


class System:
    """Processes on one site. On SQLite all services live in the submitting process."""

    def __init__(self, site: Site, children: Children, directory: Path, dispatch: str = STORE) -> None:
        self.site = site
        self.children = children
        self.stamps = Stamps(directory)
        self._environment = {"MAINSPRING_LOG_LEVEL": "warning", **site.environment, DIRECTORY: str(directory)}
        self._environment["MAINSPRING_DISPATCH_BROKER"] = dispatch
        self._load: Caller | None = None

    async def start_load(self, *, connected: bool = True) -> None:
        self._load = self.start_caller("submitter")
        if connected:
            await self.call(load_process.open_engine)

    def start_caller(self, kind: str) -> Caller:
        return Caller(self.children.start(kind, "bench.engine.load", environment=self._environment, pipes=True))

    async def call(self, function: Callable[..., Awaitable[Any]], **arguments: Any) -> Any:
        """Have a function of this package called in the submitting process."""
        assert self._load is not None
        return await self._load.call(function, **arguments)

    async def start_services(self, *, workers: int = 1, schedulers: int = 1) -> None:
        """Return when all are up."""
        if self.site.embedded:
            await self.call(load_process.start_services)
            return
        started = [self.start_scheduler() for _ in range(schedulers)] + [self.start_worker() for _ in range(workers)]
        for child in started:
            await child.ready()

    async def stop_services(self) -> None:
        if self.site.embedded:
            await self.call(load_process.stop_services)
        else:
            await self.children.stop("worker", "scheduler")

    def start_scheduler(self) -> Child:
        return self.children.start("scheduler", "mainspring", "scheduler", environment=self._environment)

    def start_worker(self, queues: Sequence[str] = (f"{QUEUE}:{SLOTS}",)) -> Child:
        options = [word for queue in queues for word in ("--queue", queue)]
        return self.children.start(
            "worker", "mainspring", "worker", APPLICATION, *options, environment=self._environment
        )

    async def start_api(self) -> int:
        """Return its port when it answers."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        await self.children.start(
            "api", "mainspring", "api", "--port", str(port), environment=self._environment
        ).ready()
        return port

    def memory(self) -> Figures:
        """Resident memory by kind of process; of several the largest."""
        kinds = ("submitter",) if self.site.embedded else ("submitter", "scheduler", "worker")
        found: Figures = {}
        for kind in kinds:
            sizes = [size for child in self.children.of(kind) if (size := child.resident_mb) is not None]
            if sizes:
                found["everything" if self.site.embedded else kind] = max(sizes)
        return found

    def processor_seconds(self) -> dict[str, float]:
        """What each kind of process has used of the processors so far."""
        used = {
            kind: sum(child.processor_seconds for child in self.children.of(kind))
            for kind in ("submitter", "scheduler", "worker", "api", "followers")
        }
        if self.site.server_pid is not None:
            used["server"] = family_processor_seconds(self.site.server_pid)
        return {kind: seconds for kind, seconds in used.items() if seconds}


@contextlib.asynccontextmanager
async def system_on(site: Site, *, connected: bool = True, dispatch: str = STORE) -> AsyncIterator[System]:
    """A system with its submitting process; all processes have ended after, and what they wrote is gone.

    One that is not ``connected`` leaves the store alone until it needs it.
    """
    with tempfile.TemporaryDirectory(prefix="mainspring-bench-", dir=scratch_parent()) as name:
        directory = Path(name)
        async with Children(directory) as children:
            system = System(site, children, directory, dispatch)
            await system.start_load(connected=connected)
            yield system
