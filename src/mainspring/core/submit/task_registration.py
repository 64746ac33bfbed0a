"""Registers a worker's tasks in the task catalog, once, when the worker starts."""

import hashlib
from collections.abc import Sequence

from mainspring.core.model.base.instant import DAY, Micros
from mainspring.core.model.tasks.task_entry import TaskEntry
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.storage.tasks import TaskRegistry
from mainspring.core.ports.wakeups import Wakeup
from mainspring.core.runtime.service import TickingService


def compute_digest(entries: Sequence[TaskEntry]) -> str:
    return hashlib.blake2b(b"\n".join(entry.encode() for entry in entries), digest_size=16).hexdigest()


class TaskRegistration(TickingService):
    """Registers before the worker takes its first run, or as soon as the store is available.

    A worker registers once in its life, so that an older worker that is still running does not replace the options of a
    newer one.
    """

    def __init__(
        self,
        store: TaskRegistry,
        entries: Sequence[TaskEntry],
        worker: str,
        clock: Clock,
        wakeup: Wakeup,
        registered: str = "",
    ) -> None:
        """``registered``: the digest of what this worker had registered before it was replaced by a new process."""
        super().__init__("task-registration", clock, wakeup)
        self.digest = compute_digest(entries)
        self._store = store
        self._entries = entries
        self._worker = worker
        self._done = self.digest == registered

    async def start(self) -> None:
        await self.step()
        if not self._done:
            await super().start()

    async def tick(self) -> Micros:
        if not self._done:
            changed = await self._store.register_tasks(self._entries, self._worker)
            self._done = True
            if changed:
                self.log.debug("tasks registered", tasks=len(self._entries), changed=changed)
        return DAY
