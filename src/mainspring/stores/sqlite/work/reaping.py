"""SQLite: the reaper's work, and pruning."""

from mainspring.core.model.base.fingerprint import compute_fingerprint
from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import MINUTE, SECOND, Instant, Micros
from mainspring.core.model.runs.run import HeldRun
from mainspring.core.model.runs.usage import USAGE_KEPT
from mainspring.core.ports.storage.catalog import LOADS_AT_ONCE, LOADS_KEPT, TIMINGS_KEPT
from mainspring.core.ports.storage.outbox import EVENTS_KEPT
from mainspring.core.ports.storage.upkeep import Retention, UnattemptedRuns
from mainspring.core.store import KEYS_KEPT
from mainspring.stores.sqlite.rows.answers import decode_strings, decode_sweep, decode_tidy
from mainspring.stores.sqlite.rows.encoding import encode
from mainspring.stores.sqlite.work.workforce import SqliteWorkers

#: How far the metrics lag: processes that share a file do not agree on the time to the microsecond.
_LAG: Micros = 15 * SECOND
_DEADLINE_FINGERPRINT = compute_fingerprint("deadline", "")


class SqliteMaintenance(SqliteWorkers):
    async def lost_runs(self, limit: int) -> list[HeldRun]:
        return await self._decode_held(await self._writer.call("expire_sessions", argument=limit))

    async def overdue_runs(self, grace: Micros, limit: int) -> list[HeldRun]:
        before = self._time.now() - grace
        return await self._decode_held(await self._reader.read("overdue_runs", before=before, limit=limit))

    async def expire(self, limit: int) -> int:
        return int(await self._writer.call("expire", _DEADLINE_FINGERPRINT, argument=limit))

    async def resolve(self, limit: int) -> int:
        return int(await self._writer.call("resolve", argument=limit))

    async def sweep(self, limit: int) -> int:
        # The search costs as much as there are keys, so the reader does it; the writer checks the candidates again.
        found = await self._reader.read("sweep", limit=limit, now=self._time.now())
        if not decode_sweep(found).found:
            return 0
        return int(await self._writer.call("sweep", found))

    async def tidy(self) -> list[UnattemptedRuns]:
        """Forget expired state. SQLite itself needs no upkeep: it reuses pages and checkpoints its log as it goes."""
        batch = encode((KEYS_KEPT, EVENTS_KEPT, _LAG))
        ended: list[UnattemptedRuns] = []
        more = True
        # Other requests get their turn in between.
        while more:
            answer = decode_tidy(await self._writer.call("tidy", batch))
            more = answer.more
            ended += answer.unattempted
        return ended

    async def sample_load(self) -> Instant:
        # Counting takes as long as there is work, so the reader does it.
        now = self._time.now()
        at = now // MINUTE * MINUTE
        counts = await self._reader.read("load_now", now=now, at=at, most=LOADS_AT_ONCE)
        await self._writer.call("sample_load", f"[{at},{counts},{now - LOADS_KEPT}]")
        return now

    async def queue_fronts(self, limit: int) -> list[RunId]:
        return [RunId(run) for run in decode_strings(await self._reader.read("queue_fronts", limit=limit))]

    async def prune(self, retention: Retention, limit: int) -> int:
        now = self._time.now()
        cuts = [retention.cut(name, now) for name in ("succeeded", "unsuccessful", "short", "long", "audit", "ledger")]
        # A tick is kept for as long as its run.
        cuts[-1] = min(cuts[-1], retention.cut("short", now))
        batch = encode((*cuts, now - retention.unsuccessful, now - USAGE_KEPT, now - TIMINGS_KEPT))
        return int(await self._writer.call("prune", batch, argument=limit))
