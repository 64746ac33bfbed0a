"""``mainspring worker --autoscale 1:16``: a parent that starts and stops worker processes by the load."""

import asyncio
import ctypes
import os
import re
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence

from structlog.typing import FilteringBoundLogger

from mainspring.config.runtime import Runtime
from mainspring.core.cluster.autoscale import count_other_workers, read_loads
from mainspring.core.model.base.errors import Invalid, StoreUnavailable
from mainspring.core.model.base.instant import MINUTE, SECOND, Micros
from mainspring.core.model.cluster.autoscale import Bounds, Scale, rescale, workers_for
from mainspring.core.runtime.log import get_logger

_LOOK_EVERY: Micros = 2 * SECOND
#: A process that ends sooner than this failed to start. The next one is started after a pause that grows.
_SHORT_LIFE: Micros = 10 * SECOND
_LONGEST_PAUSE: Micros = MINUTE
_BOUNDS = re.compile(r"([0-9]{1,4}):([0-9]{1,4})")
_PR_SET_PDEATHSIG = 1


def parse_bounds(text: str) -> Bounds:
    """Parse a range such as ``1:16``."""
    match = _BOUNDS.fullmatch(text)
    least, most = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 0 <= least <= most or most < 1:
        raise Invalid("--autoscale", f"{text!r:.40} is not a range", "least:most, for example 1:16")
    return Bounds(least, most)


def build_command(arguments: Sequence[str]) -> list[str]:
    """Return the command line of one worker of the fleet: the same, without the range and the name."""
    kept: list[str] = []
    words = iter(arguments)
    for word in words:
        if word in ("--autoscale", "--name"):
            next(words, None)
        elif not word.startswith(("--autoscale=", "--name=")):
            kept.append(word)
    return [sys.executable, "-m", "mainspring", *kept]


class WorkerProcesses:
    """Worker processes of one command. A stopped worker finishes its active runs, as on any SIGTERM."""

    def __init__(self, command: Sequence[str], name: str, monotonic: Callable[[], Micros]) -> None:
        self._command = command
        self._name = name or f"{socket.gethostname()}:{os.getpid()}"
        self._monotonic = monotonic
        self._log: FilteringBoundLogger = get_logger("mainspring.autoscale")
        self._number = 0
        self._working: dict[str, tuple[asyncio.subprocess.Process, Micros]] = {}
        self._leaving: dict[str, asyncio.subprocess.Process] = {}
        self._pause: Micros = 0
        self._not_before: Micros = 0

    @property
    def names(self) -> set[str]:
        return set(self._working) | set(self._leaving)

    async def resize(self, wanted: int) -> None:
        """Start or stop workers to reach ``wanted``. The youngest stops first, as it has the fewest runs."""
        self._look_for_dead()
        while len(self._working) > wanted:
            name, (process, _) = self._working.popitem()
            self._leaving[name] = process
            self._log.info("worker stopping", worker=name, workers=len(self._working))
            _send_signal(process, signal.SIGTERM)
        while len(self._working) < wanted and self._monotonic() >= self._not_before:
            self._number += 1
            name = f"{self._name}/{self._number}"
            process = await asyncio.create_subprocess_exec(
                *self._command, "--name", name, preexec_fn=_build_parent_death_hook()
            )
            self._working[name] = process, self._monotonic()
            self._log.info("worker started", worker=name, workers=len(self._working))

    async def stop(self, insisted: asyncio.Event) -> None:
        """Stop all workers and wait for them. Once ``insisted`` is set, each gets a second SIGTERM and releases its
        runs."""
        await self.resize(0)
        insisting = asyncio.create_task(self._insist(insisted))
        try:
            await asyncio.gather(*(process.wait() for process in self._leaving.values()))
        finally:
            insisting.cancel()

    async def _insist(self, insisted: asyncio.Event) -> None:
        await insisted.wait()
        for process in self._leaving.values():
            _send_signal(process, signal.SIGTERM)

    def _look_for_dead(self) -> None:
        for name in [name for name, process in self._leaving.items() if process.returncode is not None]:
            del self._leaving[name]
        now = self._monotonic()
        for name, (process, started) in list(self._working.items()):
            if process.returncode is None:
                if now - started > _SHORT_LIFE:
                    self._pause = 0
                continue
            del self._working[name]
            # Workers that were drained by others or have recycled lived longer than that, and start again at once.
            if now - started < _SHORT_LIFE:
                self._pause = min(max(2 * self._pause, SECOND), _LONGEST_PAUSE)
                self._not_before = now + self._pause
            self._log.warning("worker exited", worker=name, status=process.returncode)


async def autoscale(
    runtime: Runtime, fleet: WorkerProcesses, bounds: Bounds, queues: Mapping[str, int], asked: asyncio.Event
) -> None:
    """Start and stop workers by the load until ``asked`` is set.

    ``queues`` has the slots of one worker for each queue. While the store is unavailable, the number of workers does
    not change.
    """
    scale = Scale(workers=bounds.least)
    log = get_logger("mainspring.autoscale")
    while not asked.is_set():
        try:
            wanted = await _compute_workers(runtime, fleet, queues)
        except StoreUnavailable as error:
            log.warning("load unavailable, workers unchanged", error=str(error))
            wanted = scale.workers
        scale = rescale(scale, wanted, bounds, runtime.clock.monotonic())
        await fleet.resize(scale.workers)
        waiting = asyncio.create_task(asked.wait())
        await asyncio.wait([waiting], timeout=_LOOK_EVERY / SECOND)
        waiting.cancel()


async def _compute_workers(runtime: Runtime, fleet: WorkerProcesses, queues: Mapping[str, int]) -> int:
    """Return how many workers of this fleet the queues need besides the workers of others."""
    workers = await runtime.store.sessions("worker")
    loads = await read_loads(runtime.store, workers, None, await runtime.store.now())
    return max(
        (
            workers_for(load, queues[load.queue]) - count_other_workers(load.queue, workers, fleet.names)
            for load in loads
            if load.queue in queues
        ),
        default=0,
    )


def _send_signal(process: asyncio.subprocess.Process, number: int) -> None:
    if process.returncode is None:
        process.send_signal(number)


def _build_parent_death_hook() -> Callable[[], None] | None:
    """Return a hook that runs in a new process before the worker starts.

    It makes the kernel send SIGTERM to the worker if this process is killed. Linux only.
    """
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl
    return lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
