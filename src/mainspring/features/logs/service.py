"""The service that moves the logs of ended runs from the store to the blob store."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence

from mainspring.core.logs.packed_log import pack
from mainspring.core.logs.run_logs import RunLogs, build_folder_name
from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import DAY, HOUR, MINUTE, SECOND, Instant, Micros
from mainspring.core.model.cluster.diagnosis import Finding, blamed, found
from mainspring.core.model.runs.retention import STANDARD, log_span
from mainspring.core.model.runs.run import ENDED, RunState
from mainspring.core.model.runs.view import RunView
from mainspring.core.ports.blobs import BlobsUnavailable
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.storage.catalog import MOST_LOG_PIECES, LogLine
from mainspring.core.ports.storage.run_logs import LogSource
from mainspring.core.ports.storage.upkeep import Retention
from mainspring.core.ports.wakeups import Wakeups
from mainspring.core.runtime.backoff import Backoff
from mainspring.core.runtime.service import TickingService

_SHARD = 0
_INTERVAL: Micros = 2 * SECOND
_EXPIRY_INTERVAL: Micros = HOUR
_WARN_INTERVAL: Micros = HOUR
_MAX_RETRY_DELAY: Micros = MINUTE
#: Pause between busy ticks, as a multiple of the time worked: other users of the machine and the store go first. It is
#: shorter if logs have waited for long.
_PAUSE_FACTOR = 4
_PAUSE_FACTOR_IF_BEHIND = 1
_FAR_BEHIND: Micros = 5 * MINUTE
#: It is longer if the store is under pressure.
_PAUSE_FACTOR_IF_LOADED = 9
#: How many logs are in memory at once. Each has at most 1 MiB.
_MAX_LOGS = 64
#: Logs with more pieces are read one by one: ten thousand pieces for each log would be too many rows at once.
_LONG_LOG = 200


class LogKeeper(TickingService):
    """Runs on the owner of the first shard. Two keepers at once do no harm: both write the same.

    1. A log is written first and then deleted in the store.
    2. A log that cannot be written stays in the store and is tried again. No run waits for it.
    """

    def __init__(
        self,
        store: LogSource,
        logs: RunLogs,
        wakeups: Wakeups,
        clock: Clock,
        owned: Callable[[], Mapping[int, int]],
        keep: Micros,
        retention: Retention,
        is_loaded: Callable[[], bool] = lambda: False,
    ) -> None:
        """``keep`` is how long logs are kept from the end of the day of their run, unless a quota of the tenant sets
        it. ``retention`` is how long the store keeps runs. ``is_loaded`` returns whether to spare the store."""
        super().__init__("run_logs", clock, wakeups.listen([]))
        #: How many logs were written, and how many writes failed.
        self.moved = self.failed = 0
        self._store = store
        self._logs = logs
        self._owned = owned
        self._keep = keep
        self._retention = retention
        self._is_loaded = is_loaded
        self._after: RunId | None = None
        self._retry_pause = Backoff(_INTERVAL, _MAX_RETRY_DELAY)
        self._trouble = ""
        self._oldest: Instant | None = None
        self._dropped = 0
        self._warned_at: Micros | None = None
        self._expired_at: Micros | None = None
        self._deletion: AsyncGenerator[int, None] | None = None
        self._deleted = 0

    @property
    def trouble(self) -> str:
        """Why logs stay in the store for now. Empty if they do not."""
        return self._trouble

    @property
    def waiting(self) -> Micros:
        """How long the oldest log has waited, by this node's clock. 0 if none waits."""
        return 0 if self._oldest is None else max(self.clock.now() - self._oldest, 0)

    async def stop(self) -> None:
        """Stop at once: a blob store that hangs must not delay the handover of the shards.

        At worst, a log was written and not deleted yet. It is then written again.
        """
        if self._task is not None:
            self._task.cancel()
        try:
            await super().stop()
        except asyncio.CancelledError:
            if (current := asyncio.current_task()) is not None and current.cancelling():
                raise
        forgetting, self._deletion = self._deletion, None
        if forgetting is not None:
            await forgetting.aclose()

    async def tick(self) -> Micros:
        if _SHARD not in self._owned():
            self._oldest = None
            return _INTERVAL
        began = self.clock.monotonic()
        try:
            more = await self._move_some()
        except BlobsUnavailable as error:
            return self._handle_unavailable(str(error))
        if self._trouble:
            self.log.info("run log store available again", store=self._logs.blobs.shown)
        self._trouble = ""
        self._retry_pause.reset()
        deletes_more = await self._delete_expired()
        if not more and not deletes_more:
            return _INTERVAL
        return (self.clock.monotonic() - began) * self._choose_pause_factor()

    def _choose_pause_factor(self) -> int:
        if self._is_loaded():
            return _PAUSE_FACTOR_IF_LOADED
        return _PAUSE_FACTOR_IF_BEHIND if self.waiting > _FAR_BEHIND else _PAUSE_FACTOR

    def _handle_unavailable(self, why: str) -> Micros:
        if why != self._trouble:
            self._trouble = why
            self.log.warning("run log store unavailable, logs stay in the store", error=why)
        return self._retry_pause.next()

    async def _move_some(self) -> bool:
        """Move some logs of ended runs. Returns whether there may be more."""
        runs = await self._store.logged_runs(self._after, _MAX_LOGS)
        views = dict(zip(runs, await self._store.runs(runs), strict=True))
        ended = [run for run in views.values() if run is not None and run.state in ENDED]
        if ended:
            self._oldest = min(_get_end(run) for run in ended)
            try:
                await self._move(ended)
            except BlobsUnavailable:
                self._warn_before_loss(ended)
                raise
        await self._drop_unknown([run for run, view in views.items() if view is None])
        # Logs of unfinished runs come up again in the next round.
        self._after = runs[-1] if len(runs) == _MAX_LOGS else None
        if self._after is None:
            self._oldest = None
        return self._after is not None

    async def _move(self, runs: Sequence[RunView]) -> None:
        lines = await self._store.logs_after({run.id: 0 for run in runs}, _LONG_LOG)
        await self._put([(run, lines[run.id]) for run in runs if 0 < len(lines.get(run.id, ())) < _LONG_LOG])
        for run in runs:
            if len(lines.get(run.id, ())) == _LONG_LOG:
                # Read all pieces plus some: the final line says that the log is cut, and simultaneous reports may
                # exceed the limit.
                complete = await self._store.logs_after({run.id: 0}, 2 * MOST_LOG_PIECES)
                await self._put([(run, complete[run.id])] if run.id in complete else [])

    async def _put(self, logs: Sequence[tuple[RunView, Sequence[LogLine]]]) -> None:
        if not logs:
            return
        packed = await asyncio.to_thread(lambda: [(run, pack(lines)) for run, lines in logs])
        try:
            await self._logs.put(packed)
        except BlobsUnavailable:
            self.failed += len(logs)
            raise
        self.moved += len(logs)
        await self._store.forget_logs([run.id for run, _ in logs])

    def _warn_before_loss(self, runs: Sequence[RunView]) -> None:
        """Warn before waiting logs are lost: the store deletes them with their runs, and with their day."""
        now, today = self.clock.monotonic(), self.clock.now()
        endangered = [run for run in runs if today - _get_end(run) > self._get_retention(run) * 3 // 4]
        if endangered and (self._warned_at is None or now - self._warned_at >= _WARN_INTERVAL):
            self._warned_at = now
            self.log.warning(
                "run logs will be lost soon",
                runs=len(endangered),
                oldest_days=round((today - min(map(_get_end, endangered))) / DAY, 1),
            )

    def _get_retention(self, run: RunView) -> Micros:
        if run.kept_as != STANDARD:
            return self._retention.of(run.kept_as)
        return self._retention.succeeded if run.state is RunState.SUCCEEDED else self._retention.unsuccessful

    async def _drop_unknown(self, runs: Sequence[RunId]) -> None:
        """Drop the lines of runs that the store has deleted. They are unreachable, and each round would find them."""
        if runs:
            await self._store.forget_logs(runs)
            self._dropped += len(runs)
        elif self._dropped:
            self.log.warning("log lines of deleted runs dropped", runs=self._dropped)
            self._dropped = 0

    async def _delete_expired(self) -> bool:
        """Delete some logs whose retention has ended. Returns whether there may be more."""
        now = self.clock.monotonic()
        if self._deletion is None:
            if self._expired_at is not None and now - self._expired_at < _EXPIRY_INTERVAL:
                return False
            self._deletion, self._deleted = await self._start_deletion(), 0
            self._expired_at = now
        try:
            deleted = await anext(self._deletion, None)
        except BlobsUnavailable as error:
            self._deletion = None
            self.log.warning("expired run logs not deletable", error=str(error))
            return False
        if deleted is not None:
            self._deleted += deleted
            return True
        self._deletion = None
        if self._deleted:
            self.log.info("expired run logs deleted", count=self._deleted)
        return False

    async def _start_deletion(self) -> AsyncGenerator[int, None]:
        quotas = {build_folder_name(tenant.name): tenant.quotas.log_days for tenant in await self._store.tenants()}

        def keep(folder: str, name: str) -> Micros:
            days = quotas.get(folder)
            chosen = self._keep if days is None else days * DAY
            return log_span(name, chosen, chosen if name == STANDARD else self._retention.of(name))

        return self._logs.forget(await self._store.now(), keep)


def _get_end(run: RunView) -> Instant:
    assert run.finished_at is not None
    return run.finished_at


async def check_run_logs(logs: RunLogs) -> Finding:
    """Check that the blob store can be written, read and deleted from, and that its logs belong to this store."""
    try:
        await logs.blobs.check()
        await logs.check_owner()
    except BlobsUnavailable as error:
        return blamed("run logs", str(error), "logs stay in the store until it is fixed; runs are not affected")
    return found("run logs", f"{logs.blobs.shown} can be written and read")
