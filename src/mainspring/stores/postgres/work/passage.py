"""Who passes the gates of limits and who waits: decided in memory while the rows of the gates are locked."""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

import asyncpg
import msgspec

from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import MILLISECOND, Instant
from mainspring.core.model.limits.limits import BREAKER, Ending, Gate, GateState, left, passed, room, room_comes_at

#: How soon a gate is looked at again where somebody who could pass was busy.
_SOON = 50 * MILLISECOND
#: At most so many pass in one go; whoever is left is let pass by the next look.
MOST_AT_ONCE = 1_000


def flat(gates: Sequence[Gate]) -> str | None:
    """Gates as they lie beside a run, as text, which PostgreSQL makes an array of; the breaker's first."""
    if not gates:
        return None
    ordered = sorted(gates, key=lambda gate: (gate.kind != BREAKER, gate.number))
    numbers = (n for gate in ordered for n in (gate.kind, gate.number, gate.most, gate.per, gate.pause))
    return "{" + ",".join(map(str, numbers)) + "}"


def gates_in(limits: Sequence[int]) -> tuple[Gate, ...]:
    """The gates that lie beside a run, in the order of their numbers."""
    return _gates_in(tuple(limits))


@lru_cache(maxsize=10_000)
def _gates_in(limits: tuple[int, ...]) -> tuple[Gate, ...]:
    gates = [
        Gate(kind=limits[at], number=limits[at + 1], most=limits[at + 2], per=limits[at + 3], pause=limits[at + 4])
        for at in range(0, len(limits), 5)
    ]
    return tuple(sorted(gates, key=lambda gate: gate.number))


class Leaver(NamedTuple):
    """A run that was inside, and is not any more."""

    gates: tuple[Gate, ...]
    ending: Ending = "other"
    #: Of the attempt that has ended; None: it had not started.
    started_at: Instant | None = None


class Candidate(NamedTuple):
    """A run that would pass. They are let pass in this order."""

    due: Instant
    id: RunId
    gates: tuple[Gate, ...]
    queue: int
    #: The gate that it waits for already.
    waits: int | None = None
    #: It is in no table yet.
    is_new: bool = False
    #: Where it came from is told, and that it is queued with it.
    is_told: bool = False


def candidate(row: asyncpg.Record, waits: int | None = None, *, is_told: bool = False) -> Candidate:
    """From a row of waiting."""
    limits = gates_in(row["limits"])
    return Candidate(row["due"], RunId(row["id"]), limits, row["queue"], waits, is_told=is_told)


class Passage:
    def __init__(self) -> None:
        self.now: Instant = 0
        self.passing: list[Candidate] = []
        #: Who waits, and for which gate.
        self.waits: dict[RunId, int] = {}
        #: Those among them that are in no table yet.
        self.is_new: set[RunId] = set()
        self.seen: set[RunId] = set()
        self._states: dict[int, GateState] = {}
        self._recalls: set[int] = set()
        #: Gates as the runs have them that were looked at; of several the widest.
        self._gates: dict[int, Gate] = {}
        #: Somebody may wait there whom nobody has looked at: with ``most``, as the first of them has it.
        self._heads: dict[int, int] = {}
        #: Somebody found no room there: who comes later has to wait, too.
        self._closed: dict[int, Gate] = {}
        self._touched: set[int] = set()

    def learn(self, rows: Iterable[asyncpg.Record]) -> None:
        """Rows of gates that are locked now."""
        for row in rows:
            number = row["number"]
            self.now = row["now"]
            self._states[number] = GateState(used=row["used"], times=tuple(row["times"]), open_until=row["open_until"])
            if row["head"] is not None:
                self._heads[number] = row["head"]
            if row["recalls"]:
                self._recalls.add(number)

    def has(self, number: int) -> bool:
        """Whether its row is locked."""
        return number in self._states

    def knows(self, gate: Gate) -> bool:
        return gate.number in self._states

    def recalling(self) -> list[int]:
        return sorted(self._recalls)

    def look_at(self, numbers: Iterable[int]) -> None:
        """Whatever comes of it, it is written when to look there again."""
        self._touched.update(numbers)

    def suspect(self, numbers: Iterable[int]) -> None:
        """Somebody may wait there, whatever their rows say."""
        for number in numbers:
            self._heads.setdefault(number, 1)

    def leave(self, leaver: Leaver) -> list[int]:
        """Give back what it took; the breakers that open by this."""
        opened = []
        for gate in leaver.gates:
            number = gate.number
            before = self._states[number]
            after = left(gate, before, self.now, leaver.ending, started_at=leaver.started_at)
            self._widen(gate)
            self._touched.add(number)
            self._states[number] = after
            if before.open_until is None and after.open_until is not None:
                self._recalls.add(number)
                opened.append(number)
        return opened

    def expect(self, candidates: Iterable[Candidate]) -> None:
        """These come to their gates."""
        for one in candidates:
            # Some of them are in the line already, with what they had before.
            self.seen.add(one.id)
            for gate in one.gates:
                self._widen(gate)

    def with_room(self) -> dict[int, int]:
        """Gates that somebody may wait for and that have room, and how many of those are to be looked at."""
        rooms = {}
        for number, head in self._heads.items():
            gate = self._gates.get(number)
            if number in self._closed:
                continue
            if gate is None:
                # Nobody has been seen yet who knows more of it.
                rooms[number] = 1
            elif here := self._room(msgspec.structs.replace(gate, most=head)):
                rooms[number] = min(here, MOST_AT_ONCE)
            elif self._room(gate):
                # There is room for some only: who is first in line, and keeps the others waiting?
                rooms[number] = 1
        return rooms

    def looked_at(self, number: int, *, all_of_them: bool) -> None:
        if all_of_them:
            self._heads.pop(number, None)
        elif (gate := self._gates.get(number)) is not None:
            # Who is next in line has not been seen: as wide as it can be.
            self._heads[number] = gate.most

    def decide(self, candidates: Iterable[Candidate]) -> None:
        """Let pass whoever can, in order. Whoever has a gate that is not locked stays where it is."""
        for one in sorted(candidates):
            self.seen.add(one.id)
            if not all(map(self.knows, one.gates)):
                continue
            for gate in one.gates:
                self._widen(gate)
            full_gate = next((gate for gate in one.gates if self._is_full(gate)), None)
            if full_gate is None:
                for gate in one.gates:
                    self._states[gate.number] = passed(gate, self._states[gate.number])
                self._touched.update(gate.number for gate in one.gates)
                self.passing.append(one)
                if one.is_new:
                    self.is_new.add(one.id)
            else:
                full = full_gate.number
                self._closed.setdefault(full, full_gate)
                if full != one.waits:
                    self.waits[one.id] = full
                    self._touched.add(full)
                    if one.is_new:
                        self.is_new.add(one.id)
            if one.waits is not None:
                self._touched.add(one.waits)

    def rows(self) -> list[tuple[object, ...]]:
        """What is to be written of the gates, in the order of their numbers."""
        rows: list[tuple[object, ...]] = []
        for number in sorted(self._touched):
            state, gate = self._states[number], self._gates.get(number)
            times, forget_at = None, 0
            if gate is not None and gate.kind == BREAKER:
                times = "{" + ",".join(map(str, state.times)) + "}"
                forget_at = state.times[-1] + gate.per if state.times else 0
            recalls = number in self._recalls
            wake_at = self.now + _SOON if gate is None else self._wake_at(gate)
            rows.append((number, state.used, times, state.open_until, forget_at, recalls, wake_at))
        return rows

    def _wake_at(self, gate: Gate) -> Instant | None:
        """When it must be looked at again if somebody waits: at once where there is room."""
        state = self._states[gate.number]
        if gate.number in self._recalls:
            return max(state.open_until or 0, self.now + _SOON)
        gate = self._closed.get(gate.number, gate)
        return self.now if self._room(gate) else room_comes_at(gate, state, self.now)

    def _is_full(self, gate: Gate) -> bool:
        return gate.number in self._closed or not self._room(gate)

    def _room(self, gate: Gate) -> int:
        # As long as some are called back it is not known who would be the one that goes ahead.
        return 0 if gate.number in self._recalls else room(gate, self._states[gate.number], self.now)

    def _widen(self, gate: Gate) -> None:
        known = self._gates.get(gate.number)
        if known is None or known.most < gate.most:
            self._gates[gate.number] = gate
