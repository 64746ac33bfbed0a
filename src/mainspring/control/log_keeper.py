"""Takes the logs of runs that have ended out of the store, to where they are kept."""

import asyncio
from collections.abc import Callable, Mapping, Sequence

from mainspring.control.run_logs import RunLogs, folder_of
from mainspring.domain.diagnosis import Finding, blamed, found
from mainspring.domain.ids import RunId
from mainspring.domain.instant import DAY, HOUR, MINUTE, SECOND, Instant, Micros
from mainspring.domain.run import ENDED, RunView
from mainspring.ports.blobs import Blobs, BlobsUnavailable
from mainspring.ports.catalog import MOST_LOG_PIECES, LogLine
from mainspring.ports.clock import Clock
from mainspring.ports.run_logs import LogSource
from mainspring.ports.wakeups import Wakeups
from mainspring.runtime.service import TickingService

_SHARD = 0
_EVERY: Micros = 2 * SECOND
_FORGET_EVERY: Micros = HOUR
_LONGEST_PAUSE: Micros = MINUTE
_IF_PRESSED: Micros = 10 * SECOND
#: Logs that are held at once: 1 MiB each at most.
_TOGETHER = 64


class LogKeeper(TickingService):
    """Whoever owns the first shard does it. Two that do it at once do no harm: both put the same.

    A log is put first and deleted in the store after that. One that cannot be put stays in the store, as it would
    without any of this, and is tried again; no run waits for it.
    """

    def __init__(
        self,
        store: LogSource,
        logs: RunLogs,
        wakeups: Wakeups,
        clock: Clock,
        owned: Callable[[], Mapping[int, int]],
        keep: Micros,
        pressed: Callable[[], bool] = lambda: False,
    ) -> None:
        """``keep``: how long they are kept from the end of their run's day on, where a tenant's quotas do not say.
        ``pressed``: whether the store is to be spared."""
        super().__init__("run_logs", clock, wakeups.listen([]))
        self._store = store
        self._logs = logs
        self._owned = owned
        self._keep = keep
        self._pressed = pressed
        self._after: RunId | None = None
        self._pause: Micros = 0
        self._why = ""
        self._forgot_at: Micros | None = None

    @property
    def trouble(self) -> str:
        """Why logs stay in the store for now; empty: they do not."""
        return self._why

    async def tick(self) -> Micros:
        if _SHARD not in self._owned():
            return _EVERY
        began = self.clock.monotonic()
        try:
            more = await self._take()
            await self._forget()
        except BlobsUnavailable as error:
            return self._wait(str(error))
        if self._why:
            self.log.info("run logs are kept again", where=self._logs.blobs.shown)
        self._why, self._pause = "", 0
        if not more:
            return _EVERY
        # Half of the time at most: who works on the same machine or the same store goes first.
        return _IF_PRESSED if self._pressed() else self.clock.monotonic() - began

    def _wait(self, why: str) -> Micros:
        self._pause = min(max(self._pause * 2, _EVERY), _LONGEST_PAUSE)
        if why != self._why:
            self._why = why
            self.log.warning("run logs cannot be kept; they stay in the store, and no run waits", error=why)
        return self._pause

    async def _take(self) -> bool:
        """Some of those that have ended; whether there may be more."""
        runs = await self._store.logged_runs(self._after, _TOGETHER)
        ended = [run for run in await self._store.runs(runs) if run is not None and run.state in ENDED]
        if ended:
            await self._move(ended)
        # Those that go on are met again in the next round.
        self._after = runs[-1] if len(runs) == _TOGETHER else None
        return self._after is not None

    async def _move(self, runs: Sequence[RunView]) -> None:
        # The last line says that it is cut, and reports at the same moment may bring some more.
        lines = await self._store.logs_after({run.id: 0 for run in runs}, 2 * MOST_LOG_PIECES)
        having = [run for run in runs if run.id in lines]
        outcomes = await asyncio.gather(*(self._put(run, lines[run.id]) for run in having), return_exceptions=True)
        kept = [run.id for run, outcome in zip(having, outcomes, strict=True) if outcome is None]
        if kept:
            await self._store.forget_logs(kept)
        for outcome in outcomes:
            if outcome is not None:
                raise outcome

    async def _put(self, run: RunView, lines: Sequence[LogLine]) -> None:
        await self._logs.put(run, lines)

    async def _forget(self) -> None:
        now = self.clock.monotonic()
        if self._forgot_at is not None and now - self._forgot_at < _FORGET_EVERY:
            return
        today: Instant = await self._store.now()
        quotas = {folder_of(tenant.name): tenant.quotas.log_days for tenant in await self._store.tenants()}
        gone = 0
        for folder in await self._logs.tenants():
            days = quotas.get(folder)
            gone += await self._logs.forget(folder, today - (self._keep if days is None else days * DAY))
        self._forgot_at = now
        if gone:
            self.log.info("run logs are forgotten", gone=gone)


async def examine_blobs(blobs: Blobs) -> Finding:
    """Whether something can be put, read and deleted where logs are kept."""
    try:
        await blobs.check()
    except BlobsUnavailable as error:
        return blamed("run logs", str(error), "no run waits for it, and logs stay in the store until it is mended")
    return found("run logs", f"{blobs.shown} can be written and read")
