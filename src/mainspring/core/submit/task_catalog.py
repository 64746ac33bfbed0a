"""A cached copy of the task catalog, so that a submit reads nothing from the store."""

import asyncio
from collections.abc import Collection, Mapping, Sequence

from mainspring.core.model.base.errors import StoreUnavailable
from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import MINUTE, SECOND, Micros
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.model.tasks.argument_schema import Check, compile_check
from mainspring.core.model.tasks.task_entry import KnownTask, TaskEntry, fill_in_defaults
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.storage.tasks import TaskRegistry
from mainspring.core.runtime.tasks import cancel_and_wait

#: A copy older than this is refreshed in the background. A request for an unknown task waits for the refresh.
_FRESH: Micros = SECOND
#: A request waits for the refresh if the copy is older than this.
_STALE: Micros = 10 * SECOND
#: How often everything is read, because a restored store begins with lower revisions.
_WHOLE: Micros = MINUTE


class TaskCatalog:
    """Belongs to one event loop. While the store is unavailable, the copy is used unchanged."""

    def __init__(self, store: TaskRegistry, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._known: dict[str, KnownTask] = {}
        self._rev = 0
        #: The compiled schemas, each for one revision of its task.
        self._checks: dict[str, tuple[int, Check | None]] = {}
        self._read_at: Micros | None = None
        self._whole_at: Micros | None = None
        self._reading: asyncio.Task[None] | None = None
        #: The last read failed: requests use the copy and do not wait for the next one.
        self._away = False

    async def find(self, task: str) -> TaskEntry | None:
        """Return the newest entry of a task; None if no worker has declared it."""
        known = await self.find_known(task)
        return None if known is None else known.entry

    async def find_known(self, task: str) -> KnownTask | None:
        """Return the newest entry of a task with its version; None if no worker has declared it."""
        age = self._age(self._read_at)
        if age is None or age >= _FRESH:
            reading = self._renew()
            if age is None or (not self._away and (age >= _STALE or task not in self._known)):
                await asyncio.shield(reading)
        return self._known.get(task)

    async def check(self, task: str, payload: bytes) -> None:
        """Raise ``Invalid``, which names the argument, for a payload that the task cannot take."""
        known = await self.find_known(task)
        if known is not None:
            self._check(known, payload)

    def _check(self, known: KnownTask, payload: bytes) -> None:
        if not known.entry.checked:
            return
        task = known.entry.name
        compiled = self._checks.get(task)
        if compiled is None or compiled[0] != known.rev:
            compiled = self._checks[task] = (known.rev, compile_check(task, known.entry.arguments))
        if compiled[1] is not None:
            compiled[1](payload)

    async def fill_in(self, runs: Sequence[NewRun], given: Mapping[RunId, Collection[str]]) -> Sequence[NewRun]:
        """Check the runs that ``given`` names, and fill in the options that their callers left open.

        ``given``: by run, the options its caller has set, for runs whose task is declared elsewhere.
        """
        if not given:
            return runs
        filled = []
        for run in runs:
            if run.id in given and (known := await self.find_known(run.task)) is not None:
                self._check(known, run.payload)
                run = fill_in_defaults(run, known.entry, given[run.id], run.payload)
            filled.append(run)
        return filled

    async def entries(self) -> Mapping[str, TaskEntry]:
        """Return every known entry by name, at most one second old."""
        age = self._age(self._read_at)
        if age is None or (age >= _FRESH and not self._away):
            await asyncio.shield(self._renew())
        return {name: known.entry for name, known in self._known.items()}

    async def all(self) -> Mapping[str, KnownTask]:
        """Return every known task by name, freshly read."""
        await asyncio.shield(self._renew())
        return self._known

    async def close(self) -> None:
        """Cancel a running read."""
        if self._reading is not None:
            await cancel_and_wait(self._reading)

    def _renew(self) -> asyncio.Task[None]:
        if self._reading is None:
            self._reading = asyncio.create_task(self._read())
        return self._reading

    async def _read(self) -> None:
        began = self._clock.monotonic()
        age = self._age(self._whole_at)
        whole = age is None or age >= _WHOLE
        try:
            found = await self._store.list_tasks(0 if whole else self._rev)
        except StoreUnavailable:
            self._away = True
        else:
            self._away = False
            named = {known.entry.name: known for known in found}
            if whole:
                self._known, self._rev, self._whole_at = named, 0, began
            else:
                # Not in place: a reader may be iterating over the old one.
                self._known = {**self._known, **named} if named else self._known
            self._rev = max((known.rev for known in found), default=self._rev)
        finally:
            self._read_at = began
            self._reading = None

    def _age(self, since: Micros | None) -> Micros | None:
        return None if since is None else self._clock.monotonic() - since
