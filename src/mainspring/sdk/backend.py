"""Where an application's work goes: a store, or an API that stands before one."""

from collections.abc import Collection, Sequence
from typing import Protocol

from mainspring.bootstrap import Engine
from mainspring.control.broadcast import copies_of
from mainspring.domain.ids import RunId
from mainspring.domain.run import NewRun, RunState, RunView
from mainspring.ports.clock import Clock
from mainspring.ports.store import Accepted


class Backend(Protocol):
    clock: Clock

    def new_run_ids(self, ordering_keys: Sequence[str]) -> list[RunId]:
        """Ids to submit with. An API may answer with others."""
        ...

    async def submit(self, runs: Sequence[NewRun]) -> list[Accepted]:
        """Committed when it returns. Asked again with the same ids it makes nothing twice."""
        ...

    async def broadcast(self, run: NewRun) -> list[Accepted]:
        """The run once for every live worker that knows its task. Asked again with the same id it makes none twice."""
        ...

    async def runs(self, runs: Sequence[RunId]) -> list[RunView | None]: ...

    async def cancel(self, runs: Collection[RunId]) -> dict[RunId, RunState]:
        """Ask runs to stop; those that are known, and what they are now."""
        ...


class StoreBackend:
    """The store itself, through an open engine."""

    def __init__(self, engine: Engine) -> None:
        self.clock = engine.clock
        self._engine = engine

    def new_run_ids(self, ordering_keys: Sequence[str]) -> list[RunId]:
        return self._engine.jobs.new_run_ids(ordering_keys)

    async def submit(self, runs: Sequence[NewRun]) -> list[Accepted]:
        if len(runs) == 1:
            # Those who submit one at a time, at the same time, share a commit.
            return [await self._engine.jobs.submit(runs[0])]
        return await self._engine.jobs.submit_many(runs)

    async def broadcast(self, run: NewRun) -> list[Accepted]:
        copies = copies_of(run, await self._engine.store.sessions("worker"))
        return await self._engine.jobs.submit_many(copies)

    async def runs(self, runs: Sequence[RunId]) -> list[RunView | None]:
        return await self._engine.store.runs(runs)

    async def cancel(self, runs: Collection[RunId]) -> dict[RunId, RunState]:
        return await self._engine.jobs.cancel_runs(runs)
