"""SQLite: the rows of limits, and the functions by which procedures run the rule."""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache, partial
from typing import cast

import apsw
import msgspec

from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import Instant
from mainspring.core.model.limits.limits import BREAKER, PER_PERIOD, Limiter, LimiterState
from mainspring.core.rules import limits
from mainspring.core.rules.driving import run_at_once
from mainspring.core.rules.limit_decisions import LimitedRun, LimiterRow, LimitRelease, SavedLimiter
from mainspring.core.rules.limits import LimiterRequest
from mainspring.stores import statements
from mainspring.stores.sqlite.constants import CONSTANTS

_SQL = statements.load("mainspring.stores.sqlite", "limits.sql", CONSTANTS)
#: How many limiters that time may have given room are checked at once.
_MOST_CHECKED = 100
#: Lines of which at most so many runs are asked for are read together.
_FEW = 50
#: Later than any mark.
_ALWAYS: Instant = 2**62

_encode = msgspec.json.Encoder().encode
_decode_limits = msgspec.json.Decoder(list[tuple[int, int, int, int, int]]).decode
_decode_times = msgspec.json.Decoder(tuple[Instant, ...]).decode


@lru_cache(maxsize=10_000)
def decode_limiters(text: str) -> tuple[Limiter, ...]:
    """Decode the limiters of a run, in the order of their numbers."""
    found = [
        Limiter(kind=kind, number=number, most=most, per=per, pause=pause)
        for kind, number, most, per, pause in _decode_limits(text)
    ]
    return tuple(sorted(found, key=lambda limiter: limiter.number))


class SqliteLimiterRows:
    def __init__(self, connection: apsw.Connection, now: Instant) -> None:
        self.now = now
        self._execute = connection.execute
        self._execute_all = connection.executemany
        #: Limiters that have no row.
        self._missing: set[int] = set()
        #: The last blocked run that was found of each limiter.
        self._last_found: dict[int, tuple[Instant, RunId]] = {}

    async def lock(self, wanted: Mapping[int, LimiterRequest]) -> Sequence[LimiterRow]:
        return self._read(wanted)

    async def try_lock(self, limiters: Mapping[int, Limiter]) -> Sequence[LimiterRow]:
        return self._read(limiters)

    def _read(self, numbers: Collection[int]) -> list[LimiterRow]:
        rows: list[LimiterRow] = []
        for number, used, times, open_until, recalls, first in self._execute(
            _SQL["lock"], {"numbers": _text(list(numbers)), "now": self.now}
        ):
            if used is None:
                self._missing.add(number)
                state = LimiterState()
            else:
                marks = () if times is None else _decode_times(times)
                state = LimiterState(used=used, times=marks, open_until=open_until)
            rows.append(LimiterRow(number, state, _find_most(first, number), bool(recalls)))
        return rows

    async def find_blocked(self, most: Mapping[int, int], seen: Collection[RunId]) -> Sequence[LimitedRun]:
        few = [number for number, count in most.items() if count <= _FEW]
        found = self._find_line(few, most) if few else []
        for number in most.keys() - set(few):
            found += self._find_line([number], most)
        return found

    def _find_line(self, numbers: Sequence[int], most: Mapping[int, int]) -> list[LimitedRun]:
        """Find blocked runs of several limiters at once."""
        lines = [(number, *self._last_found.get(number, (-1, ""))) for number in numbers]
        left = Counter({number: most[number] for number in numbers})
        found: list[LimitedRun] = []
        for number, run, due, text in self._execute(
            _SQL["blocked"], {"lines": _text(lines), "most": max(left.values())}
        ):
            if left[number]:
                left[number] -= 1
                found.append(LimitedRun(due, run, decode_limiters(text), number))
                self._last_found[number] = due, run
        return found

    async def find_queued(self, breakers: Sequence[int], most: int) -> Mapping[RunId, tuple[Limiter, ...]]:
        return {
            run: decode_limiters(text)
            for number in breakers
            for run, text in self._execute(_SQL["queued_by_breaker"], {"number": number, "most": most})
        }

    async def count_holders(self, numbers: Sequence[int]) -> Mapping[int, int]:
        counts = dict.fromkeys(numbers, 0)
        # Read completely before rows are inserted.
        rows = self._execute(_SQL["holders"], {"numbers": _text(numbers)}).fetchall()
        holders = cast("list[tuple[int, int, int, int]]", rows)
        for number, kind, per, used in holders:
            if kind == BREAKER:
                del counts[number]
            else:
                self._execute(_SQL["create"], {"limiters": _text([(number, kind, per)])})
                counts[number] = used
        return counts

    async def queue(self, runs: Sequence[LimitedRun]) -> None:
        ids = _text([run.id for run in runs])
        self._execute(_SQL["queue"], {"runs": ids, "now": self.now})
        for step in ("forget_queued", "note_admitted", "emit_queued"):
            self._execute(_SQL[step], {"runs": ids})

    async def block(self, waits: Mapping[RunId, int]) -> None:
        self._execute_all(_SQL["block"], [{"id": run, "number": number} for run, number in waits.items()])

    async def recall(self, runs: Sequence[RunId]) -> None:
        ids = _text(runs)
        self._execute(_SQL["recall"], {"runs": ids})
        self._execute(_SQL["forget_recalled"], {"runs": ids})

    async def save(self, limiters: Sequence[SavedLimiter]) -> None:
        by_kind: defaultdict[int, list[SavedLimiter]] = defaultdict(list)
        for saved in limiters:
            by_kind[0 if saved.limiter is None else saved.limiter.kind].append(saved)
        missing = [saved.limiter for saved in limiters if saved.number in self._missing and saved.limiter is not None]
        if missing:
            created = [(limiter.number, limiter.kind, limiter.per) for limiter in missing]
            self._execute(_SQL["create"], {"limiters": _text(created)})
        if by_kind[0] or by_kind[PER_PERIOD]:
            numbers = [saved.number for saved in by_kind[0] + by_kind[PER_PERIOD]]
            self._execute(_SQL["forget_marks"], {"numbers": _text(numbers), "until": self.now})
        if by_kind[BREAKER]:
            self._save_failures(by_kind[BREAKER])
        rows = [
            (saved.number, saved.state.used, saved.state.open_until, saved.recalls, saved.wake_at) for saved in limiters
        ]
        self._execute(_SQL["save"], {"limiters": _text(rows)})
        idle = [saved.number for saved in limiters if not saved.state.used and saved.state.open_until is None]
        if idle:
            self._execute(_SQL["forget"], {"numbers": _text(idle)})

    def _save_failures(self, breakers: Sequence[SavedLimiter]) -> None:
        """Replace the marks of breakers."""
        numbers = [saved.number for saved in breakers]
        self._execute(_SQL["forget_marks"], {"numbers": _text(numbers), "until": _ALWAYS})
        marks = [
            (saved.number, at + saved.limiter.per)
            for saved in breakers
            if saved.limiter is not None
            for at in saved.state.times
        ]
        if marks:
            self._execute(_SQL["mark"], {"marks": _text(marks)})


def create_limit_functions(connection: apsw.Connection) -> None:
    """Create the functions that procedures call. They work in the transaction of the procedure."""
    functions: list[tuple[str, Callable[..., None]]] = [
        ("admit_limited", _admit),
        ("check_due_limiters", _check_due),
        ("recall_queued", _recall),
        ("repair_limiters", _repair),
    ]
    for name, function in functions:
        connection.create_scalar_function(name, partial(function, connection))


def _admit(connection: apsw.Connection, now: Instant) -> None:
    """Apply the releases of this request, and admit the runs that now have room."""
    releases = [
        LimitRelease(decode_limiters(limiters), ending, started_at)
        for limiters, ending, started_at in connection.execute(_SQL["releases"])
    ]
    left = [number for (number,) in connection.execute("SELECT number FROM changed_limiter")]
    arriving = [LimitedRun(due, run, decode_limiters(text)) for run, due, text in connection.execute(_SQL["arriving"])]
    run_at_once(limits.admit(SqliteLimiterRows(connection, now), releases=releases, arriving=arriving, left=left))


def _check_due(connection: apsw.Connection, now: Instant) -> None:
    kinds = dict(connection.execute(_SQL["due_limiters"], {"now": now, "limit": _MOST_CHECKED}))
    run_at_once(limits.check(SqliteLimiterRows(connection, now), kinds))


def _recall(connection: apsw.Connection, call: int, most: int, now: Instant) -> None:
    """Continue a recall. Adds the recalled runs to the answer of a call."""
    kinds = dict(connection.execute(_SQL["recalling_limiters"]))
    decisions = run_at_once(limits.check(SqliteLimiterRows(connection, now), kinds, most))
    connection.execute(
        "UPDATE reply SET body = body + :recalled WHERE number = :call", {"recalled": decisions.recalled, "call": call}
    )


def _repair(connection: apsw.Connection, numbers: str, now: Instant) -> None:
    kinds = dict.fromkeys(msgspec.json.decode(numbers, type=list[int]), 0)
    run_at_once(limits.repair(SqliteLimiterRows(connection, now), kinds))


def _find_most(first: str | None, number: int) -> int | None:
    """Return how many holders the first run in line allows; 1 if it is in the wrong line."""
    if first is None:
        return None
    return next((limiter.most for limiter in decode_limiters(first) if limiter.number == number), 1)


def _text(values: Sequence[object]) -> str:
    return _encode(values).decode()
