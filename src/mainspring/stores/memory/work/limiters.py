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
    Gate,
    GateState,
    left,
    passed,
    room,
    room_comes_at,
    started,
)
from mainspring.core.model.runs.run import RunState
from mainspring.stores.memory.rows import Index, RunRow

_INSIDE = (RunState.QUEUED, RunState.RUNNING)


class Limiter:
    """A limiter with the runs that occupy it and the runs that it blocks."""

    def __init__(self) -> None:
        self.state = GateState()
        #: Queued or running runs that occupy it.
        self.inside: dict[RunId, None] = {}
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
        self.gates: dict[int, Limiter] = {}
        #: Limiters that changed since their lines were last checked.
        self._touched: dict[int, None] = {}

    def join(self, run: RunRow) -> None:
        """Wait at the first limiter of the run. The others are checked when there is room."""
        self._wait(run, run.gates[0])
        self._touched[run.gates[0].number] = None

    def leave_line(self, run: RunRow) -> None:
        assert run.waits is not None
        self.gates[run.waits].line.remove(run.due, run.id)
        self._touched[run.waits] = None
        run.waits = None

    def started(self, run: RunRow, now: Instant) -> None:
        for gate in run.gates:
            limiter = self.gates[gate.number]
            limiter.state = started(gate, limiter.state, now)
            limiter.remembers_until = max(limiter.remembers_until, now + gate.per)

    def leave(self, run: RunRow, now: Instant, ending: Ending) -> list[RunRow]:
        """Release the limiters of a run whose attempt ended or never began.

        Return the queued runs at each breaker that this opened.
        """
        shut_out: list[RunRow] = []
        started_at = run.started_at if run.state is RunState.RUNNING else None
        run.inside = False
        for gate in run.gates:
            limiter = self.gates[gate.number]
            del limiter.inside[run.id]
            was_open = limiter.state.open_until is not None
            limiter.state = left(gate, limiter.state, now, ending, started_at=started_at)
            limiter.remembers_until = max(limiter.remembers_until, now + gate.per)
            self._touched[gate.number] = None
            if limiter.state.open_until is not None and not was_open:
                rows = (self._runs[inside] for inside in limiter.inside)
                shut_out += [row for row in rows if row.state is RunState.QUEUED]
        return shut_out

    def pass_on(self, now: Instant) -> list[RunRow]:
        """Let waiting runs pass the limiters that changed, as far as there is room."""
        passed_on: list[RunRow] = []
        lines = dict(self._touched)
        self._touched.clear()
        heads: list[tuple[int, str, int]] = []
        for number in lines:
            self._push_head(heads, number)
        while heads:
            due, row, number = heappop(heads)
            if number not in lines or self._head(number) != (due, row):
                continue
            run = self._runs[RunId(row)]
            gate = self._held_up_at(run, now)
            if gate is not None and gate.number == number:
                del lines[number]
                continue
            self.gates[number].line.remove(due, row)
            if gate is None:
                self._enter(run)
                passed_on.append(run)
            else:
                self._wait(run, gate)
                if gate.number in lines:
                    self._push_head(heads, gate.number)
            self._push_head(heads, number)
        return passed_on

    def _push_head(self, heads: list[tuple[int, str, int]], number: int) -> None:
        head = self._head(number)
        if head is not None:
            heappush(heads, (*head, number))

    def touch_timed(self, now: Instant) -> None:
        """Mark the limiters where the passage of time may have made room."""
        for number, limiter in self.gates.items():
            gate = self._gate_of_head(number)
            if gate is not None and gate.kind != AT_A_TIME and room(gate, limiter.state, now):
                self._touched[number] = None

    def next_room(self, now: Instant) -> Instant | None:
        """Return when the passage of time makes room for a waiting run."""
        times = []
        for number, limiter in self.gates.items():
            gate = self._gate_of_head(number)
            if gate is not None and gate.kind != AT_A_TIME:
                times.append(now if room(gate, limiter.state, now) else room_comes_at(gate, limiter.state, now))
        return min((time for time in times if time is not None), default=None)

    def recount(self) -> int:
        """Correct limiters that disagree with their runs; return how many were wrong.

        Also marks every line that can move without the passage of time; ``touch_timed`` marks the others.
        """
        found = 0
        for number, limiter in self.gates.items():
            rows = {run: self._runs.get(run) for run in limiter.inside}
            inside = {run: row for run, row in rows.items() if row is not None and row.state in _INSIDE}
            gate = self._gate_of_head(number)
            used = _used(number, limiter.state, list(inside.values()))
            wrong = len(inside) < len(rows) or used != limiter.state.used
            if wrong:
                limiter.inside = dict.fromkeys(inside)
                limiter.state = msgspec.structs.replace(limiter.state, used=used)
                found += 1
            by_time = gate is not None and (gate.kind == PER_PERIOD or limiter.state.open_until is not None)
            if wrong or not by_time:
                self._touched[number] = None
        return found

    def forget_unused(self, now: Instant) -> None:
        """Delete the limiters whose state equals that of a new one."""
        unused = [
            number
            for number, limiter in self.gates.items()
            if not limiter.inside
            and not limiter.line
            and limiter.state.open_until is None
            and limiter.remembers_until <= now
        ]
        for number in unused:
            del self.gates[number]

    def _wait(self, run: RunRow, gate: Gate) -> None:
        run.waits = gate.number
        self.gates.setdefault(gate.number, Limiter()).line.add(run.due, run.id)

    def _enter(self, run: RunRow) -> None:
        run.inside, run.waits = True, None
        for gate in run.gates:
            limiter = self.gates.setdefault(gate.number, Limiter())
            limiter.state = passed(gate, limiter.state)
            limiter.inside[run.id] = None

    def _held_up_at(self, run: RunRow, now: Instant) -> Gate | None:
        """Return the first limiter of the run that has no room, or where another run is ahead of it."""
        for gate in run.gates:
            limiter = self.gates.get(gate.number)
            if limiter is None:
                continue
            head = self._head(gate.number)
            if (head is not None and head < (run.due, run.id)) or not room(gate, limiter.state, now):
                return gate
        return None

    def _head(self, number: int) -> tuple[int, str] | None:
        limiter = self.gates.get(number)
        return limiter.line.entries[0] if limiter is not None and limiter.line.entries else None

    def _gate_of_head(self, number: int) -> Gate | None:
        """Return the limit as the first run in line defines it."""
        head = self._head(number)
        return None if head is None else _the_gate(self._runs[RunId(head[1])], number)


def _the_gate(run: RunRow, number: int) -> Gate:
    return next(gate for gate in run.gates if gate.number == number)


def _used(number: int, state: GateState, inside: list[RunRow]) -> int:
    """Return the correct count of a limiter."""
    if state.open_until is not None:
        return min(state.used, len(inside))
    kinds = {_the_gate(run, number).kind for run in inside}
    if BREAKER in kinds:
        return 0
    return sum(PER_PERIOD not in kinds or run.state is RunState.QUEUED for run in inside)
