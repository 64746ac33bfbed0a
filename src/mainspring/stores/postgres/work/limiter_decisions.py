"""Decides in memory which runs pass their limits and which wait, while the limiter rows are locked."""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

import asyncpg
import msgspec

from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import MILLISECOND, Instant
from mainspring.core.model.limits.limits import (
    BREAKER,
    Ending,
    Limiter,
    LimiterState,
    left,
    passed,
    room,
    room_comes_at,
)

#: How soon a limiter is checked again when the rows of runs that could pass were locked elsewhere.
_SOON = 50 * MILLISECOND
#: At most this many runs pass at once; the next check lets the others pass.
MOST_AT_ONCE = 1_000


def pack_limits(limiters: Sequence[Limiter]) -> str | None:
    """Encode the limits of a run as text that PostgreSQL casts to an array. A breaker comes first."""
    if not limiters:
        return None
    ordered = sorted(limiters, key=lambda limiter: (limiter.kind != BREAKER, limiter.number))
    numbers = (
        n for limiter in ordered for n in (limiter.kind, limiter.number, limiter.most, limiter.per, limiter.pause)
    )
    return "{" + ",".join(map(str, numbers)) + "}"


def unpack_limits(limits: Sequence[int]) -> tuple[Limiter, ...]:
    """Decode the limits of a run from its row, in the order of their numbers."""
    return _unpack_limits(tuple(limits))


@lru_cache(maxsize=10_000)
def _unpack_limits(limits: tuple[int, ...]) -> tuple[Limiter, ...]:
    limiters = [
        Limiter(kind=limits[at], number=limits[at + 1], most=limits[at + 2], per=limits[at + 3], pause=limits[at + 4])
        for at in range(0, len(limits), 5)
    ]
    return tuple(sorted(limiters, key=lambda limiter: limiter.number))


class LimitRelease(NamedTuple):
    """A run that gives back its share of its limits."""

    limiters: tuple[Limiter, ...]
    ending: Ending = "other"
    #: When the attempt that has ended started; None: it had not started.
    started_at: Instant | None = None


class LimitCandidate(NamedTuple):
    """A run that wants to pass its limits. Candidates pass in this order."""

    due: Instant
    id: RunId
    limiters: tuple[Limiter, ...]
    queue: int
    #: The number of the limiter that already blocks it.
    waits: int | None = None
    #: Whether it is not yet in any table.
    is_new: bool = False
    #: Whether another event already implies that it is queued, so that none is emitted for it.
    is_silent: bool = False


def build_limit_candidate(row: asyncpg.Record, waits: int | None = None, *, is_silent: bool = False) -> LimitCandidate:
    """Build a candidate from a row of the waiting table."""
    limits = unpack_limits(row["limits"])
    return LimitCandidate(row["due"], RunId(row["id"]), limits, row["queue"], waits, is_silent=is_silent)


class LimiterRow(msgspec.Struct, frozen=True, kw_only=True):
    """The new state of a limiter."""

    number: int
    used: int
    #: The times of a breaker's failures, as text that PostgreSQL casts to an array; None for other limiters.
    times: str | None
    open_until: Instant | None
    forget_at: Instant
    #: Whether it is a breaker that still calls runs back.
    recalls: bool
    wake_at: Instant | None


class LimiterDecisions:
    def __init__(self) -> None:
        self.now: Instant = 0
        self.passing: list[LimitCandidate] = []
        #: Blocked runs, and the number of the limiter that each waits for.
        self.waits: dict[RunId, int] = {}
        #: Decided runs, passing or blocked, that are not yet in any table.
        self.is_new: set[RunId] = set()
        self.seen: set[RunId] = set()
        self._states: dict[int, LimiterState] = {}
        self._recalls: set[int] = set()
        #: Limits as configured in the runs seen so far; if they differ, the widest.
        self._limiters: dict[int, Limiter] = {}
        #: Limiters that may have waiting runs that were not examined, with ``most`` as the first of those runs has it.
        self._heads: dict[int, int] = {}
        #: Limits where a run found no room: every later run has to wait, too.
        self._closed: dict[int, Limiter] = {}
        self._touched: set[int] = set()

    def learn(self, rows: Iterable[asyncpg.Record]) -> None:
        """Add limiter rows that are locked now."""
        for row in rows:
            number = row["number"]
            self.now = row["now"]
            self._states[number] = LimiterState(
                used=row["used"], times=tuple(row["times"]), open_until=row["open_until"]
            )
            if row["head"] is not None:
                self._heads[number] = row["head"]
            if row["recalls"]:
                self._recalls.add(number)

    def has(self, number: int) -> bool:
        """Whether the row of this limiter is locked."""
        return number in self._states

    def knows(self, limiter: Limiter) -> bool:
        return limiter.number in self._states

    def recalling(self) -> list[int]:
        return sorted(self._recalls)

    def look_at(self, numbers: Iterable[int]) -> None:
        """Mark limiters to be saved with the time of their next check, even if nothing else changes."""
        self._touched.update(numbers)

    def suspect(self, numbers: Iterable[int]) -> None:
        """Mark limiters as possibly having waiting runs, even if their rows show none."""
        for number in numbers:
            self._heads.setdefault(number, 1)

    def leave(self, release: LimitRelease) -> list[int]:
        """Give back what a run took of its limits; return the breakers that open because of it."""
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

    def expect(self, candidates: Iterable[LimitCandidate]) -> None:
        """Register candidates that arrive at their limits."""
        for one in candidates:
            # Some of them wait already, with the limits they had before.
            self.seen.add(one.id)
            for limiter in one.limiters:
                self._widen(limiter)

    def with_room(self) -> dict[int, int]:
        """Return limiters that have room and may have waiting runs, with how many of those runs to examine."""
        rooms = {}
        for number, head in self._heads.items():
            limiter = self._limiters.get(number)
            if number in self._closed:
                continue
            if limiter is None:
                # No run of this limiter has been seen that says how wide it is.
                rooms[number] = 1
            elif here := self._room(msgspec.structs.replace(limiter, most=head)):
                rooms[number] = min(here, MOST_AT_ONCE)
            elif self._room(limiter):
                # Only a wider limit than the first run's has room: examine the first run, which keeps the others
                # waiting.
                rooms[number] = 1
        return rooms

    def looked_at(self, number: int, *, all_of_them: bool) -> None:
        if all_of_them:
            self._heads.pop(number, None)
        elif (limiter := self._limiters.get(number)) is not None:
            # The next run in line has not been seen: assume the widest limit.
            self._heads[number] = limiter.most

    def decide(self, candidates: Iterable[LimitCandidate]) -> None:
        """Let candidates pass, in order, if all their limits have room.

        A candidate with a limiter that is not locked is left alone.
        """
        for one in sorted(candidates):
            self.seen.add(one.id)
            if not all(map(self.knows, one.limiters)):
                continue
            for limiter in one.limiters:
                self._widen(limiter)
            full_limiter = next((limiter for limiter in one.limiters if self._is_full(limiter)), None)
            if full_limiter is None:
                for limiter in one.limiters:
                    self._states[limiter.number] = passed(limiter, self._states[limiter.number])
                self._touched.update(limiter.number for limiter in one.limiters)
                self.passing.append(one)
                if one.is_new:
                    self.is_new.add(one.id)
            else:
                full = full_limiter.number
                self._closed.setdefault(full, full_limiter)
                if full != one.waits:
                    self.waits[one.id] = full
                    self._touched.add(full)
                    if one.is_new:
                        self.is_new.add(one.id)
            if one.waits is not None:
                self._touched.add(one.waits)

    def rows(self) -> list[LimiterRow]:
        """Return the limiter rows to save, in the order of their numbers."""
        rows: list[LimiterRow] = []
        for number in sorted(self._touched):
            state, limiter = self._states[number], self._limiters.get(number)
            times, forget_at = None, 0
            if limiter is not None and limiter.kind == BREAKER:
                times = "{" + ",".join(map(str, state.times)) + "}"
                forget_at = state.times[-1] + limiter.per if state.times else 0
            rows.append(
                LimiterRow(
                    number=number,
                    used=state.used,
                    times=times,
                    open_until=state.open_until,
                    forget_at=forget_at,
                    recalls=number in self._recalls,
                    wake_at=self.now + _SOON if limiter is None else self._wake_at(limiter),
                )
            )
        return rows

    def _wake_at(self, limiter: Limiter) -> Instant | None:
        """Return when the limiter must be checked again if runs wait for it: at once if it has room."""
        state = self._states[limiter.number]
        if limiter.number in self._recalls:
            return max(state.open_until or 0, self.now + _SOON)
        limiter = self._closed.get(limiter.number, limiter)
        return self.now if self._room(limiter) else room_comes_at(limiter, state, self.now)

    def _is_full(self, limiter: Limiter) -> bool:
        return limiter.number in self._closed or not self._room(limiter)

    def _room(self, limiter: Limiter) -> int:
        # While a breaker calls runs back, it is not known which run would go ahead.
        return 0 if limiter.number in self._recalls else room(limiter, self._states[limiter.number], self.now)

    def _widen(self, limiter: Limiter) -> None:
        known = self._limiters.get(limiter.number)
        if known is None or known.most < limiter.most:
            self._limiters[limiter.number] = limiter
