"""Decides which runs are admitted by their limiters and which are blocked, while the limiter rows are locked."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import MILLISECOND, Instant
from mainspring.core.model.limits.limits import Ending, Limiter, LimiterState, left, passed, room, room_comes_at

#: How soon a limiter is checked again when the rows of runs that could be admitted were locked elsewhere.
_SOON = 50 * MILLISECOND
#: At most this many runs of a limiter are admitted at once; the next check admits the others.
MOST_AT_ONCE = 1_000


class LimitRelease(NamedTuple):
    """A run that releases its limiters."""

    limiters: tuple[Limiter, ...]
    ending: Ending = "other"
    #: When the attempt that has ended started; None: it had not started.
    started_at: Instant | None = None


class LimitedRun(msgspec.Struct, frozen=True, gc=False):
    """A run that is to be admitted by its limiters. Runs are admitted in the order of (due, id)."""

    due: Instant
    id: RunId
    #: In the order of their numbers.
    limiters: tuple[Limiter, ...]
    #: The number of the limiter that blocks it already.
    waits: int | None = None
    #: Whether it is in no table yet: the store inserts it where the decision puts it.
    is_new: bool = False

    @property
    def position(self) -> tuple[Instant, RunId]:
        return self.due, self.id


class LimiterRow(msgspec.Struct, frozen=True, gc=False):
    """A locked limiter."""

    number: int
    state: LimiterState
    #: How many holders the first run that it blocks allows; None: it blocks no run.
    head: int | None = None
    #: Whether it is an open breaker of which runs are still queued.
    recalls: bool = False


class SavedLimiter(msgspec.Struct, frozen=True, gc=False):
    """The new state of a limiter."""

    number: int
    #: As the runs of this transaction define it; None: there were none.
    limiter: Limiter | None
    state: LimiterState
    recalls: bool
    #: When it must be checked again if it blocks runs, even if no run releases it.
    wake_at: Instant | None


class LimitDecisions:
    """The decisions of one transaction."""

    def __init__(self) -> None:
        self.now: Instant = 0
        self.admitted: list[LimitedRun] = []
        #: Blocked runs, and the number of the limiter that blocks each.
        self.waits: dict[RunId, int] = {}
        #: Decided runs, admitted or blocked, that are in no table yet.
        self.new: set[RunId] = set()
        self.seen: set[RunId] = set()
        #: How many queued runs were recalled by open breakers.
        self.recalled = 0
        #: How many counts were wrong.
        self.corrected = 0
        self._states: dict[int, LimiterState] = {}
        self._recalls: set[int] = set()
        #: Limiters as defined by the runs seen so far; if they differ, the widest.
        self._limiters: dict[int, Limiter] = {}
        #: Limiters that may block runs that were not examined, with ``most`` as the first of those runs defines it.
        self._heads: dict[int, int] = {}
        #: The last examined run of each of them: the others come after it.
        self._examined: dict[int, tuple[Instant, RunId]] = {}
        #: Limiters that blocked a run: they block every later run, too.
        self._closed: dict[int, Limiter] = {}
        self._touched: set[int] = set()

    def learn(self, rows: Iterable[LimiterRow], now: Instant) -> None:
        """Add limiter rows that are locked now."""
        self.now = now
        for row in rows:
            self._states[row.number] = row.state
            if row.head is not None:
                self._heads[row.number] = row.head
            if row.recalls:
                self._recalls.add(row.number)

    def has(self, number: int) -> bool:
        """Report whether the row of this limiter is locked."""
        return number in self._states

    def list_recalls(self) -> list[int]:
        return sorted(self._recalls)

    def look_at(self, numbers: Iterable[int]) -> None:
        """Have limiters saved with the time of their next check, even if nothing else changes."""
        self._touched.update(numbers)

    def suspect(self, numbers: Iterable[int]) -> None:
        """Look for blocked runs of limiters, even if their rows show none."""
        for number in numbers:
            self._heads.setdefault(number, 1)

    def recount(self, counts: Mapping[int, int]) -> None:
        """Correct the counts of limiters."""
        for number, used in counts.items():
            if used != self._states[number].used:
                self._states[number] = msgspec.structs.replace(self._states[number], used=used)
                self.corrected += 1

    def release(self, release: LimitRelease) -> list[int]:
        """Release the limiters of a run; return the breakers that open because of it."""
        opened = []
        for limiter in release.limiters:
            number = limiter.number
            before = self._states[number]
            after = left(limiter, before, self.now, release.ending, started_at=release.started_at)
            self._widen(limiter)
            self._touched.add(number)
            self._states[number] = after
            if before.open_until is None and after.open_until is not None:
                self._recalls.add(number)
                opened.append(number)
        return opened

    def expect(self, runs: Iterable[LimitedRun]) -> None:
        """Register runs that arrive at their limiters."""
        for run in runs:
            # Some of them are blocked already, with the limits they had before.
            self.seen.add(run.id)
            for limiter in run.limiters:
                self._widen(limiter)

    def find_room(self) -> dict[int, int]:
        """Return the limiters that have room and may block runs, with how many of those runs to examine."""
        rooms = {}
        for number, head in self._heads.items():
            limiter = self._limiters.get(number)
            if number in self._closed:
                continue
            if limiter is None:
                # The first run in line defines this limiter. If it does not, the line is damaged: check all of it.
                rooms[number] = MOST_AT_ONCE if number in self._examined else 1
            elif here := self._room(msgspec.structs.replace(limiter, most=head)):
                rooms[number] = min(here, MOST_AT_ONCE)
            elif self._room(limiter):
                # Only a wider limit than the first run's has room: examine the first run, which keeps the others
                # waiting.
                rooms[number] = 1
        return rooms

    def examine(self, most: Mapping[int, int], found: Sequence[LimitedRun]) -> None:
        """Note which blocked runs were found when so many of each limiter were asked for."""
        by_limiter: dict[int, list[LimitedRun]] = {number: [] for number in most}
        for run in found:
            assert run.waits is not None
            # A run that is not decided in this round must not be found, and admitted, a second time.
            self.seen.add(run.id)
            by_limiter[run.waits].append(run)
        for number, runs in by_limiter.items():
            if len(runs) < most[number]:
                self._heads.pop(number, None)
                continue
            self._examined[number] = max(run.position for run in runs)
            if (limiter := self._limiters.get(number)) is not None:
                # The next run in line has not been seen: assume the widest limit.
                self._heads[number] = limiter.most

    def decide(self, runs: Iterable[LimitedRun], *, last: bool) -> list[LimitedRun]:
        """Admit runs, in order, if all of their limiters have room; otherwise block them.

        Return the runs that cannot be decided before more blocked runs were examined. In the ``last`` round they are
        blocked. A run with a limiter that is not locked is left alone.
        """
        ordered = sorted(runs, key=lambda run: run.position)
        for at, run in enumerate(ordered):
            self.seen.add(run.id)
            if not all(limiter.number in self._states for limiter in run.limiters):
                continue
            for limiter in run.limiters:
                self._widen(limiter)
            blocking = next((limiter for limiter in run.limiters if self._is_full(limiter)), None)
            if blocking is None:
                blocking = next((limiter for limiter in run.limiters if self._has_unseen_before(limiter, run)), None)
                if blocking is not None and not last:
                    return ordered[at:]
            if blocking is None:
                self._admit(run)
            else:
                self._block(run, blocking)
            if run.waits is not None:
                self._touched.add(run.waits)
        return []

    def save(self) -> list[SavedLimiter]:
        """Return the limiters to save, in the order of their numbers."""
        return [
            SavedLimiter(
                number=number,
                limiter=self._limiters.get(number),
                state=self._states[number],
                recalls=number in self._recalls,
                wake_at=self._compute_wake_up(number),
            )
            for number in sorted(self._touched)
        ]

    def _admit(self, run: LimitedRun) -> None:
        for limiter in run.limiters:
            self._states[limiter.number] = passed(limiter, self._states[limiter.number])
            self._touched.add(limiter.number)
        self.admitted.append(run)
        if run.is_new:
            self.new.add(run.id)

    def _block(self, run: LimitedRun, blocking: Limiter) -> None:
        self._closed.setdefault(blocking.number, blocking)
        if blocking.number != run.waits:
            self.waits[run.id] = blocking.number
            self._touched.add(blocking.number)
            if run.is_new:
                self.new.add(run.id)

    def _compute_wake_up(self, number: int) -> Instant | None:
        """Return when the limiter must be checked again if it blocks runs: at once if it has room."""
        state, limiter = self._states[number], self._limiters.get(number)
        if limiter is None:
            return self.now + _SOON
        if number in self._recalls:
            return max(state.open_until or 0, self.now + _SOON)
        limiter = self._closed.get(number, limiter)
        return self.now if self._room(limiter) else room_comes_at(limiter, state, self.now)

    def _is_full(self, limiter: Limiter) -> bool:
        return limiter.number in self._closed or not self._room(limiter)

    def _has_unseen_before(self, limiter: Limiter, run: LimitedRun) -> bool:
        """Report whether the limiter may block an earlier run that was not examined."""
        if limiter.number not in self._heads:
            return False
        examined = self._examined.get(limiter.number)
        return examined is None or examined < run.position

    def _room(self, limiter: Limiter) -> int:
        # During a recall, it is not known which run would be the probe.
        return 0 if limiter.number in self._recalls else room(limiter, self._states[limiter.number], self.now)

    def _widen(self, limiter: Limiter) -> None:
        known = self._limiters.get(limiter.number)
        if known is None or known.most < limiter.most:
            self._limiters[limiter.number] = limiter
