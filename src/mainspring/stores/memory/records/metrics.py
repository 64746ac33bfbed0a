"""Memory store: the numbers of charts, by the minute."""

from collections import Counter

from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import MINUTE, Instant, Micros
from mainspring.core.ports.storage.catalog import (
    TIMINGS_STEP,
    Load,
    Minute,
    Timings,
)
from mainspring.stores.memory.tables import Tables


class MemoryMetrics:
    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    async def minutes(self, tenant: str | None, since: Instant, until: Instant, step: Micros = MINUTE) -> list[Minute]:
        merged: dict[tuple[Instant, str], Counter[str]] = {}
        for (at, queue, owner), counts in self._tables.minute_counts.items():
            if since <= at < until and tenant in (None, owner):
                sums = merged.setdefault((at // step * step, queue), Counter())
                for name, number in counts.items():
                    sums[name] = max(sums[name], number) if name.endswith("_most") else sums[name] + number
        return [Minute(at=at, queue=queue, **counts) for (at, queue), counts in sorted(merged.items())]

    async def loads(self, tenant: str | None, queue: str | None, since: Instant, until: Instant) -> list[Load]:
        found = []
        for at, kept in sorted(self._tables.loads.items()):
            if since <= at < until:
                meant = [
                    load for (owner, name), load in kept.items() if tenant in (None, owner) and queue in (None, name)
                ]
                found.append(
                    Load(
                        at=at,
                        queued=sum(load.queued for load in meant),
                        running=sum(load.running for load in meant),
                        lag=max((load.lag for load in meant), default=0),
                    )
                )
        return found

    async def timings(self, tenant: str | None, queue: str | None, since: Instant, until: Instant) -> Timings:
        late: Counter[int] = Counter()
        took: Counter[int] = Counter()
        for (at, name, owner), (began, lasted) in self._tables.timings.items():
            if since - TIMINGS_STEP < at < until and tenant in (None, owner) and queue in (None, name):
                late += began
                took += lasted
        return Timings(dict(late), dict(took))

    async def due_by_minute(self, tenant: str | None, since: Instant, until: Instant) -> list[tuple[Instant, int]]:
        counts: Counter[Instant] = Counter()
        for index in self._tables.scheduled:
            for due, run in index.entries:
                if since <= due < until and tenant in (None, self._tables.runs[RunId(run)].tenant):
                    counts[due - due % MINUTE] += 1
        return sorted(counts.items())
