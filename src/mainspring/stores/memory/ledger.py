"""The ledger of a job in a memory store."""

from bisect import bisect_left, insort
from collections.abc import Callable
from itertools import islice

import msgspec

from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import Instant
from mainspring.core.model.cluster.datacenters import may_be_noted
from mainspring.core.model.schedules.job import LedgerEntry, Tick
from mainspring.stores.memory.rows import RunRow


class Ledger:
    """The ticks of one job, in order, each once."""

    def __init__(self) -> None:
        #: Time of each tick, with the data center that it is for.
        self.times: list[tuple[Instant, str]] = []
        self.entries: dict[tuple[Instant, str], LedgerEntry] = {}

    def __contains__(self, tick: Tick) -> bool:
        return (tick.scheduled_at, tick.target) in self.entries

    def add(self, entry: LedgerEntry) -> None:
        self.entries[entry.scheduled_at, entry.target] = entry
        insort(self.times, (entry.scheduled_at, entry.target))

    def between(self, since: Instant, until: Instant, limit: int) -> list[LedgerEntry]:
        first = bisect_left(self.times, (since, ""))
        last = min(bisect_left(self.times, (until, "")), first + limit)
        return [self.entries[at] for at in self.times[first:last]]

    def newest(self, limit: int) -> list[LedgerEntry]:
        return [self.entries[at] for at in self.times[-limit:]]

    def newest_until(self, at: Instant) -> LedgerEntry | None:
        index = bisect_left(self.times, (at + 1, ""))
        return self.entries[self.times[index - 1]] if index else None

    def find_target(self, run: RunRow) -> str:
        """Return the data center of a tick's run; empty for all other runs."""
        at = run.scheduled_at or 0
        first = bisect_left(self.times, (at, ""))
        for time, target in islice(self.times, first, None):
            if time > at:
                break
            if self.entries[time, target].run_id == run.id:
                return target
        return ""

    def note(self, scheduled_at: Instant, run: RunId, why: str) -> None:
        """Record why a tick that has not started moves elsewhere, unless a calendar set its reason."""
        entry = self.entries.get((scheduled_at, ""))
        if entry is not None and entry.run_id == run and may_be_noted(entry.reason):
            self.entries[scheduled_at, ""] = msgspec.structs.replace(entry, reason=why)

    def forget(self, until: Instant, limit: int, is_kept: Callable[[RunId | None], bool]) -> int:
        """Forget at most ``limit`` ticks up to and including ``until``; return how many.

        Ticks whose runs are kept longer stay.
        """
        old = islice(self.times, bisect_left(self.times, (until + 1, "")))
        forgotten = set(islice((at for at in old if not is_kept(self.entries[at].run_id)), limit))
        if forgotten:
            self.times = [at for at in self.times if at not in forgotten]
        for at in forgotten:
            del self.entries[at]
        return len(forgotten)
