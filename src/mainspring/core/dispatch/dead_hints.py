"""Sends copies of dead letters to brokers with a dead-letter destination, where a team's own tools look."""

from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Protocol

from mainspring.core.model.base.ids import RunId
from mainspring.core.model.runs.dead_letters import DeadRun, dead_run
from mainspring.core.model.runs.view import RunView
from mainspring.core.runtime.brokers import Brokers

#: The most dead letters waiting for an unavailable broker; beyond that the oldest are dropped. The store has them all.
_WAITING = 10_000
_BATCH = 500


class RunReading(Protocol):
    """The part of the store that returns runs."""

    async def runs(self, ids: Sequence[RunId], *, payloads: bool = False) -> list[RunView | None]: ...


class DeadHints:
    """Sends each broker the dead letters of its queues; an unavailable broker gets them when it is back."""

    def __init__(self, store: RunReading, brokers: Brokers) -> None:
        self._store = store
        self._brokers = brokers
        self._waiting = {guarded: deque[DeadRun](maxlen=_WAITING) for guarded in brokers.all if guarded.takes_dead_runs}

    async def note(self, failed: Sequence[RunId]) -> None:
        """Queue copies of failed runs. Without a broker that can store them, nothing is looked up."""
        if not self._waiting:
            return
        for start in range(0, len(failed), _BATCH):
            for view in await self._store.runs(failed[start : start + _BATCH]):
                guarded = None if view is None else self._brokers.of(view.queue)
                if view is not None and guarded in self._waiting:
                    self._waiting[guarded].append(dead_run(view))

    async def publish_dead(self) -> None:
        for guarded, waiting in self._waiting.items():
            while waiting:
                dead = list(islice(waiting, _BATCH))
                if not await guarded.publish_dead(dead):
                    break
                for _ in dead:
                    waiting.popleft()
