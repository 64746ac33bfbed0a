"""Limits and breakers of the memory store: which runs occupy a limiter, which wait, and which pass next."""

from heapq import heappop, heappush

import msgspec

from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import Instant
from mainspring.core.model.limits.limits import (
    AT_A_TIME,
    BREAKER,
    PER_PERIOD,
    Ending,
    LimiterState,
    left,
    passed,
    room,
    room_comes_at,
    started,
)
from mainspring.core.model.limits.limits import (
    Limiter as Limit,
)
from mainspring.core.model.runs.run import RunState
from mainspring.stores.memory.index import Index
from mainspring.stores.memory.rows import RunRow

_OCCUPYING = (RunState.QUEUED, RunState.RUNNING)


class LimiterLine:
    """A limiter with the runs that occupy it and the runs that it blocks."""

    def __init__(self) -> None:
        self.state = LimiterState()
        #: Queued or running runs that occupy it.
        self.occupants: dict[RunId, None] = {}
        #: Blocked runs, by (due, id).
        self.line = Index()
        #: Until then its state holds starts or failures that count.
        self.remembers_until: Instant = 0


class Limiters:
    """The limiters that are occupied, block a run, or were used recently.

    A run that reaches its limits joins the line of its first limiter. At the end of a transaction runs pass in the
    order of the lines, as far as there is room. So the order of a batch does not matter.
    """

    def __init__(self, runs: dict[RunId, RunRow]) -> None:
        self._runs = runs
        self.by_number: dict[int, LimiterLine] = {}
        #: Limiters that changed since their lines were last checked.
        self._changed: dict[int, None] = {}

    def enqueue(self, run: RunRow) -> None:
        """Wait at the first limiter of the run. The others are checked when there is room."""
        self._block(run, run.limits[0])
        self._changed[run.limits[0].number] = None

    def dequeue(self, run: RunRow) -> None:
        assert run.blocked_by is not None
        self.by_number[run.blocked_by].line.remove(run.due, run.id)
        self._changed[run.blocked_by] = None
        run.blocked_by = None

    def count_start(self, run: RunRow, now: Instant) -> None:
        for limit in run.limits:
            limiter = self.by_number[limit.number]
            limiter.state = started(limit, limiter.state, now)
            limiter.remembers_until = max(limiter.remembers_until, now + limit.per)

    def release(self, run: RunRow, now: Instant, ending: Ending) -> list[RunRow]:
        """Release the limiters of a run whose attempt ended or never began.

        Return the queued runs at each breaker that this opened.
        """
        requeued: list[RunRow] = []
        started_at = run.started_at if run.state is RunState.RUNNING else None
        run.holds_limits = False
        for limit in run.limits:
            limiter = self.by_number[limit.number]
            del limiter.occupants[run.id]
            was_open = limiter.state.open_until is not None
            limiter.state = left(limit, limiter.state, now, ending, started_at=started_at)
            limiter.remembers_until = max(limiter.remembers_until, now + limit.per)
            self._changed[limit.number] = None
            if limiter.state.open_until is not None and not was_open:
                rows = (self._runs[occupants] for occupants in limiter.occupants)
                requeued += [row for row in rows if row.state is RunState.QUEUED]
        return requeued

    def admit(self, now: Instant) -> list[RunRow]:
        """Let waiting runs pass the limiters that changed, as far as there is room."""
        passed_on: list[RunRow] = []
        lines = dict(self._changed)
        self._changed.clear()
        heads: list[tuple[int, str, int]] = []
        for number in lines:
            self._push_head(heads, number)
        while heads:
            due, row, number = heappop(heads)
            if number not in lines or self._get_head(number) != (due, row):
                continue
            run = self._runs[RunId(row)]
            limit = self._find_blocking_limit(run, now)
            if limit is not None and limit.number == number:
                del lines[number]
                continue
            self.by_number[number].line.remove(due, row)
            if limit is None:
                self._occupy(run)
                passed_on.append(run)
            else:
                self._block(run, limit)
                if limit.number in lines:
                    self._push_head(heads, limit.number)
            self._push_head(heads, number)
        return passed_on

    def _push_head(self, heads: list[tuple[int, str, int]], number: int) -> None:
        head = self._get_head(number)
        if head is not None:
            heappush(heads, (*head, number))

    def mark_timed(self, now: Instant) -> None:
        """Mark the limiters where the passage of time may have made room."""
        for number, limiter in self.by_number.items():
            limit = self._get_limit_of_head(number)
            if limit is not None and limit.kind != AT_A_TIME and room(limit, limiter.state, now):
                self._changed[number] = None

    def find_next_room(self, now: Instant) -> Instant | None:
        """Return when the passage of time makes room for a waiting run."""
        times = []
        for number, limiter in self.by_number.items():
            limit = self._get_limit_of_head(number)
            if limit is not None and limit.kind != AT_A_TIME:
                times.append(now if room(limit, limiter.state, now) else room_comes_at(limit, limiter.state, now))
        return min((time for time in times if time is not None), default=None)

    def recount(self) -> int:
        """Correct limiters that disagree with their runs; return how many were wrong.

        Also marks every line that can move without the passage of time; ``touch_timed`` marks the others.
        """
        found = 0
        for number, limiter in self.by_number.items():
            rows = {run: self._runs.get(run) for run in limiter.occupants}
            occupants = {run: row for run, row in rows.items() if row is not None and row.state in _OCCUPYING}
            limit = self._get_limit_of_head(number)
            used = _count_used(number, limiter.state, list(occupants.values()))
            wrong = len(occupants) < len(rows) or used != limiter.state.used
            if wrong:
                limiter.occupants = dict.fromkeys(occupants)
                limiter.state = msgspec.structs.replace(limiter.state, used=used)
                found += 1
            by_time = limit is not None and (limit.kind == PER_PERIOD or limiter.state.open_until is not None)
            if wrong or not by_time:
                self._changed[number] = None
        return found

    def forget_unused(self, now: Instant) -> None:
        """Delete the limiters whose state equals that of a new one."""
        unused = [
            number
            for number, limiter in self.by_number.items()
            if not limiter.occupants
            and not limiter.line
            and limiter.state.open_until is None
            and limiter.remembers_until <= now
        ]
        for number in unused:
            del self.by_number[number]

    def _block(self, run: RunRow, limit: Limit) -> None:
        run.blocked_by = limit.number
        self.by_number.setdefault(limit.number, LimiterLine()).line.add(run.due, run.id)

    def _occupy(self, run: RunRow) -> None:
        run.holds_limits, run.blocked_by = True, None
        for limit in run.limits:
            limiter = self.by_number.setdefault(limit.number, LimiterLine())
            limiter.state = passed(limit, limiter.state)
            limiter.occupants[run.id] = None

    def _find_blocking_limit(self, run: RunRow, now: Instant) -> Limit | None:
        """Return the first limiter of the run that has no room, or where another run is ahead of it."""
        for limit in run.limits:
            limiter = self.by_number.get(limit.number)
            if limiter is None:
                continue
            head = self._get_head(limit.number)
            if (head is not None and head < (run.due, run.id)) or not room(limit, limiter.state, now):
                return limit
        return None

    def _get_head(self, number: int) -> tuple[int, str] | None:
        limiter = self.by_number.get(number)
        return limiter.line.entries[0] if limiter is not None and limiter.line.entries else None

    def _get_limit_of_head(self, number: int) -> Limit | None:
        """Return the limit as the first run in line defines it."""
        head = self._get_head(number)
        return None if head is None else _find_limit(self._runs[RunId(head[1])], number)


def _find_limit(run: RunRow, number: int) -> Limit:
    return next(limit for limit in run.limits if limit.number == number)


def _count_used(number: int, state: LimiterState, occupants: list[RunRow]) -> int:
    """Return the correct count of a limiter."""
    if state.open_until is not None:
        return min(state.used, len(occupants))
    kinds = {_find_limit(run, number).kind for run in occupants}
    if BREAKER in kinds:
        return 0
    return sum(PER_PERIOD not in kinds or run.state is RunState.QUEUED for run in occupants)
