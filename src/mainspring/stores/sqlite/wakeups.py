"""Wake-ups between the processes that share an SQLite file."""

import asyncio
from pathlib import Path

import apsw

from mainspring.core.model.base.instant import MILLISECOND, SECOND, Micros
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.wakeups import SHARDS
from mainspring.core.runtime.local_wakeups import LocalWakeups
from mainspring.core.runtime.tasks import cancel_and_wait

#: How often to poll while the file changes, and while it does not.
_ACTIVE_INTERVAL: Micros = 20 * MILLISECOND
_IDLE_INTERVAL: Micros = 50 * MILLISECOND
#: How long after a change the file counts as changing.
_ACTIVE_FOR: Micros = SECOND


class SqliteWakeups(LocalWakeups):
    """Notifies at once inside the process, and within some 50 ms across processes.

    SQLite keeps a number that changes with every commit of another connection. Reading it takes some microseconds and
    waits for no lock. It does not say what changed, so all topics are notified; notifications are only hints. The
    commits of this process count, too, because the store writes through a connection of its own. A worker that is
    notified in vain finds nothing to do and writes nothing.

    Schedulers are not notified: they renew their lease when they look for other schedulers, so they would notify
    themselves forever. They poll twice a second anyway.
    """

    def __init__(self, path: Path, clock: Clock) -> None:
        super().__init__()
        self._path = path
        self._clock = clock
        self._connection: apsw.Connection | None = None
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        self._task = asyncio.create_task(self._watch(), name="sqlite-wakeups")

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            await cancel_and_wait(task)
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        await super().close()

    async def _watch(self) -> None:
        known = self._version()
        changed_at = self._clock.monotonic() - _ACTIVE_FOR
        while True:
            is_active = self._clock.monotonic() - changed_at < _ACTIVE_FOR
            await self._clock.sleep(_ACTIVE_INTERVAL if is_active else _IDLE_INTERVAL)
            version = self._version()
            if version != known:
                known = version
                changed_at = self._clock.monotonic()
                self.notify_all(but=[SHARDS])

    def _version(self) -> int | None:
        """Return the change number; None while the file does not exist yet or is being recovered."""
        try:
            if self._connection is None:
                self._connection = apsw.Connection(str(self._path), flags=apsw.SQLITE_OPEN_READWRITE)
            version = self._connection.execute("PRAGMA data_version").get
        except apsw.Error:
            return None
        assert isinstance(version, int)
        return version
