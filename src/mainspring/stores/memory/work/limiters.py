"""The limiters of the memory store: the runs that hold each, and the runs that it blocks."""

from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence

from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import Instant
from mainspring.core.model.limits.limits import BREAKER, PER_PERIOD, Ending, Limiter, LimiterState, room, started
from mainspring.core.model.runs.run import RunState
from mainspring.core.rules.limit_decisions import LimitedRun, LimiterRow, LimitRelease, SavedLimiter
from mainspring.core.rules.limits import LimiterRequest
from mainspring.stores.memory.index import Index
from mainspring.stores.memory.rows import RunRow

_HOLDING = (RunState.QUEUED, RunState.RUNNING)


class LimiterLine:
    """A limiter with the runs that hold it and the runs that it blocks."""

    def __init__(self) -> None:
        self.state = LimiterState()
        self.recalls = False
        #: When to check it even if no run releases it.
        self.wake_at: Instant | None = None
        #: Queued or running runs that hold it.
        self.occupants: dict[RunId, None] = {}
        #: Blocked runs, by (due, id).
        self.line = Index()
        #: Until then its state holds starts or failures that count.
        self.remembers_until: Instant = 0


class Limiters:
    """The limiters that are held, block a run, or were used recently, and what happened to them in this transaction."""

    def __init__(self, runs: dict[RunId, RunRow]) -> None:
        self.runs = runs
        self.by_number: dict[int, LimiterLine] = {}
        self._releases: list[LimitRelease] = []
        self._arriving: dict[RunId, RunRow] = {}
        #: Limiters that block one run less.
        self._left: dict[int, None] = {}

    def enqueue(self, run: RunRow) -> None:
        """Have the run checked by its limiters when the transaction ends."""
        run.blocked_by = run.limits[0].number
        self._arriving[run.id] = run

    def dequeue(self, run: RunRow) -> None:
        assert run.blocked_by is not None
        if run.id not in self._arriving:
            self._left[run.blocked_by] = None
        self.leave_line(run)

    def release(self, run: RunRow, ending: Ending) -> None:
        """Release the limiters of a run whose attempt ended or never began."""
        self.vacate(run)
        started_at = run.started_at if run.state is RunState.RUNNING else None
        self._releases.append(LimitRelease(run.limits, ending, started_at))

    def vacate(self, run: RunRow) -> None:
        run.holds_limits = False
        for limiter in run.limits:
            del self.by_number[limiter.number].occupants[run.id]

    def count_start(self, run: RunRow, now: Instant) -> None:
        for limiter in run.limits:
            if limiter.kind == PER_PERIOD:
                line = self.by_number[limiter.number]
                line.state = started(limiter, line.state, now)
                line.remembers_until = max(line.remembers_until, now + limiter.per)
                if line.line and line.wake_at is None:
                    line.wake_at = now + limiter.per

    def take_changes(self) -> tuple[list[LimitRelease], list[LimitedRun], list[int]]:
        """Return the releases, the runs that arrived, and the limiters that block one run less, and forget them."""
        arriving = [LimitedRun(run.due, run.id, run.limits) for run in self._arriving.values()]
        changes = self._releases, arriving, list(self._left)
        self._releases, self._left = [], {}
        return changes

    def join_line(self, run: RunRow, number: int) -> None:
        """Move an arriving run, or one that another limiter blocks, to the line of a limiter."""
        self.leave_line(run)
        run.blocked_by = number
        self.by_number[number].line.add(run.due, run.id)

    def leave_line(self, run: RunRow) -> None:
        if self._arriving.pop(run.id, None) is None and run.blocked_by is not None:
            self.by_number[run.blocked_by].line.remove(run.due, run.id)
        run.blocked_by = None

    def find_due(self, now: Instant) -> dict[int, int]:
        """Return the kinds of the limiters that time may have given room."""
        return {
            number: self.find_first(number).kind
            for number, line in self.by_number.items()
            if line.line and line.wake_at is not None and line.wake_at <= now
        }

    def find_recalling(self) -> dict[int, int]:
        return {number: BREAKER for number, line in self.by_number.items() if line.recalls}

    def find_next_wake_up(self) -> Instant | None:
        times = (line.wake_at for line in self.by_number.values() if line.line)
        return min((time for time in times if time is not None), default=None)

    def find_suspects(self, now: Instant) -> dict[int, int]:
        """Return the limiters with a wrong count, and those that have room for a blocked run but are not checked."""
        counts = self.count_holders(list(self.by_number))
        return {
            number: BREAKER
            for number, line in self.by_number.items()
            if counts.get(number, line.state.used) != line.state.used
            or (
                line.line
                and line.wake_at is None
                and not line.recalls
                and room(self.find_first(number), line.state, now)
            )
        }

    def count_holders(self, numbers: Sequence[int]) -> dict[int, int]:
        counts: dict[int, int] = {}
        for number in numbers:
            line = self.by_number[number]
            rows = [row for run in line.occupants if (row := self.runs.get(run)) is not None and row.state in _HOLDING]
            line.occupants = {row.id: None for row in rows}
            kinds = {find_limiter(row, number).kind for row in rows}
            if BREAKER not in kinds:
                counts[number] = sum(PER_PERIOD not in kinds or row.state is RunState.QUEUED for row in rows)
        return counts

    def forget_unused(self, now: Instant) -> None:
        """Delete the limiters whose state equals that of a new one."""
        unused = [
            number
            for number, line in self.by_number.items()
            if not line.occupants and not line.line and line.state.open_until is None and line.remembers_until <= now
        ]
        for number in unused:
            del self.by_number[number]

    def read(self, number: int) -> LimiterRow:
        line = self.by_number.setdefault(number, LimiterLine())
        head = self.find_first(number).most if line.line else None
        return LimiterRow(number, line.state, head, line.recalls)

    def find_first(self, number: int) -> Limiter:
        """Return the limiter as the first run in line defines it."""
        _, run = self.by_number[number].line.entries[0]
        return find_limiter(self.runs[RunId(run)], number)


class MemoryLimiterRows:
    """The rows of limits in one transaction."""

    def __init__(
        self, limiters: Limiters, now: Instant, queue: Callable[[RunRow], None], unqueue: Callable[[RunRow], None]
    ) -> None:
        self.now = now
        self.queued: list[RunRow] = []
        #: How many runs were recalled by open breakers.
        self.recalled = 0
        self._limiters = limiters
        self._queue = queue
        self._unqueue = unqueue
        #: The last blocked run that was found of each limiter.
        self._last_found: dict[int, tuple[Instant, str]] = {}

    async def lock(self, wanted: Mapping[int, LimiterRequest]) -> Sequence[LimiterRow]:
        return [self._limiters.read(number) for number in wanted]

    async def try_lock(self, limiters: Mapping[int, Limiter]) -> Sequence[LimiterRow]:
        return [self._limiters.read(number) for number in limiters]

    async def find_blocked(self, most: Mapping[int, int], seen: Collection[RunId]) -> Sequence[LimitedRun]:
        found: list[LimitedRun] = []
        for number, count in most.items():
            entries = self._limiters.by_number[number].line.entries
            start = bisect_right(entries, self._last_found.get(number, (-1, "")))
            for due, run in entries[start : start + count]:
                found.append(LimitedRun(due, RunId(run), self._limiters.runs[RunId(run)].limits, number))
                self._last_found[number] = due, run
        return found

    async def find_queued(self, breakers: Sequence[int], most: int) -> Mapping[RunId, tuple[Limiter, ...]]:
        runs = self._limiters.runs
        return {
            run: runs[run].limits
            for number in breakers
            for run in [run for run in self._limiters.by_number[number].occupants if self._is_queued(run)][:most]
        }

    async def count_holders(self, numbers: Sequence[int]) -> Mapping[int, int]:
        return self._limiters.count_holders(numbers)

    async def queue(self, runs: Sequence[LimitedRun]) -> None:
        for run in runs:
            row = self._limiters.runs[run.id]
            self._limiters.leave_line(row)
            row.holds_limits = True
            for limiter in row.limits:
                self._limiters.by_number[limiter.number].occupants[run.id] = None
            self._queue(row)
            self.queued.append(row)

    async def block(self, waits: Mapping[RunId, int]) -> None:
        for run, number in waits.items():
            self._limiters.join_line(self._limiters.runs[run], number)

    async def recall(self, runs: Sequence[RunId]) -> None:
        for run in runs:
            row = self._limiters.runs[run]
            self._limiters.vacate(row)
            self._unqueue(row)
            breaker = next(limiter for limiter in row.limits if limiter.kind == BREAKER)
            self._limiters.join_line(row, breaker.number)
        self.recalled += len(runs)

    async def save(self, limiters: Sequence[SavedLimiter]) -> None:
        for saved in limiters:
            line = self._limiters.by_number[saved.number]
            line.state = saved.state
            line.recalls = saved.recalls and any(map(self._is_queued, line.occupants))
            line.wake_at = saved.wake_at if line.line else None
            if saved.limiter is not None:
                line.remembers_until = max(line.remembers_until, self.now + saved.limiter.per)

    def _is_queued(self, run: RunId) -> bool:
        return self._limiters.runs[run].state is RunState.QUEUED


def find_limiter(run: RunRow, number: int) -> Limiter:
    return next(limiter for limiter in run.limits if limiter.number == number)
