"""Limits: releases limiters, admits runs to the queue or blocks them, and writes what was decided.

The order of locks is the same in every store: runs, ordering keys, limiters, each by id or number. A transaction that
has locked a limiter never waits for a run.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import Instant
from mainspring.core.model.limits.limits import AT_A_TIME, Limiter
from mainspring.core.rules.limit_decisions import (
    LimitDecisions,
    LimitedRun,
    LimiterRow,
    LimitRelease,
    SavedLimiter,
)

#: How many rounds look for more runs that could be admitted. The runs that are left are checked again at once.
_ROUNDS = 3
#: How many queued runs an opened breaker recalls at once; the others follow later.
MOST_RECALLED = 500
#: How many blocked runs of a limiter that time gives room are expected to be admitted.
_EXPECTED = 10


class LimiterRequest(NamedTuple):
    """A limiter to lock, and how many of its blocked runs will probably be admitted."""

    kind: int
    expected: int


class LimiterRows(Protocol):
    """The rows of limits in one transaction."""

    @property
    def now(self) -> Instant:
        """The store's time when it locked limiters last."""
        ...

    async def lock(self, wanted: Mapping[int, LimiterRequest]) -> Sequence[LimiterRow]:
        """Lock limiters in the order of their numbers; create those that are missing.

        The other limiters of the expected runs may be locked as well.
        """
        ...

    async def try_lock(self, limiters: Mapping[int, Limiter]) -> Sequence[LimiterRow]:
        """Lock more limiters, or create them, as far as that is possible without waiting."""
        ...

    async def find_blocked(self, most: Mapping[int, int], seen: Collection[RunId]) -> Sequence[LimitedRun]:
        """Return the first runs that each limiter blocks, by (due, id), except those in ``seen``."""
        ...

    async def find_queued(self, breakers: Sequence[int], most: int) -> Mapping[RunId, tuple[Limiter, ...]]:
        """Return queued runs of each breaker with all of their limiters."""
        ...

    async def count_holders(self, numbers: Sequence[int]) -> Mapping[int, int]:
        """Return the true counts of limiters: of a limit per period, runs that have started do not count.

        A breaker with holders is left out, because only one of them is the probe.
        """
        ...

    async def queue(self, runs: Sequence[LimitedRun]) -> None:
        """Queue blocked runs, in this order."""
        ...

    async def block(self, waits: Mapping[RunId, int]) -> None:
        """Block runs by the limiter with this number."""
        ...

    async def recall(self, runs: Sequence[RunId]) -> None:
        """Block queued runs by their breaker again."""
        ...

    async def save(self, limiters: Sequence[SavedLimiter]) -> None:
        """Save limiters, in the order of their numbers, as the last step.

        A recall is over when no run of the breaker is queued. A limiter that blocks no run needs no wake-up.
        """
        ...


async def decide(
    rows: LimiterRows,
    *,
    releases: Sequence[LimitRelease] = (),
    arriving: Sequence[LimitedRun] = (),
    left: Collection[int] = (),
) -> LimitDecisions:
    """Release limiters and decide which runs are admitted, including runs that were blocked before.

    ``left``: limiters that block one run less; that run may have kept others waiting.

    Nothing is written but the runs that an opening breaker recalls: new runs may first have to be inserted.
    """
    leaves = Counter(limiter.number for release in releases for limiter in release.limiters)
    kinds = dict.fromkeys(left, AT_A_TIME)
    kinds |= {limiter.number: limiter.kind for release in releases for limiter in release.limiters}
    kinds |= {limiter.number: limiter.kind for run in arriving for limiter in run.limiters}
    decisions = LimitDecisions()
    wanted = {number: LimiterRequest(kinds[number], leaves[number] or 1) for number in sorted(kinds)}
    decisions.learn(await rows.lock(wanted), rows.now)
    decisions.look_at(left)
    opened = [number for release in releases for number in decisions.release(release)]
    if opened:
        await _recall(rows, decisions, opened)
    await _admit_blocked(rows, decisions, arriving)
    return decisions


async def write(rows: LimiterRows, decisions: LimitDecisions) -> None:
    """Write the decisions. New runs are in their tables by now."""
    admitted = [run for run in decisions.admitted if not run.is_new]
    if admitted:
        await rows.queue(admitted)
    waits = {run: number for run, number in decisions.waits.items() if run not in decisions.new}
    if waits:
        await rows.block(waits)
    saved = decisions.save()
    if saved:
        await rows.save(saved)


async def admit(
    rows: LimiterRows,
    *,
    releases: Sequence[LimitRelease] = (),
    arriving: Sequence[LimitedRun] = (),
    left: Collection[int] = (),
) -> LimitDecisions:
    """Decide, and write the decisions."""
    decisions = await decide(rows, releases=releases, arriving=arriving, left=left)
    await write(rows, decisions)
    return decisions


async def check(rows: LimiterRows, kinds: Mapping[int, int], most_recalled: int = MOST_RECALLED) -> LimitDecisions:
    """Check limiters that time may have given room, and continue the recalls of breakers."""
    decisions = LimitDecisions()
    wanted = {number: LimiterRequest(kinds[number], _EXPECTED) for number in sorted(kinds)}
    decisions.learn(await rows.lock(wanted), rows.now)
    recalling = decisions.list_recalls()
    if recalling:
        await _recall(rows, decisions, recalling, most_recalled)
    decisions.look_at(kinds)
    decisions.suspect(kinds)
    await _admit_blocked(rows, decisions)
    await write(rows, decisions)
    return decisions


async def repair(rows: LimiterRows, kinds: Mapping[int, int]) -> LimitDecisions:
    """Recount limiters whose counts disagree with the runs, and check them."""
    decisions = LimitDecisions()
    wanted = {number: LimiterRequest(kinds[number], 0) for number in sorted(kinds)}
    decisions.learn(await rows.lock(wanted), rows.now)
    decisions.recount(await rows.count_holders(sorted(kinds)))
    decisions.look_at(kinds)
    decisions.suspect(kinds)
    await _admit_blocked(rows, decisions)
    await write(rows, decisions)
    return decisions


async def _admit_blocked(rows: LimiterRows, decisions: LimitDecisions, arriving: Sequence[LimitedRun] = ()) -> None:
    decisions.expect(arriving)
    undecided = list(arriving)
    for number_of_round in range(1, _ROUNDS + 1):
        most = decisions.find_room()
        if most:
            found = await rows.find_blocked(most, decisions.seen)
            decisions.examine(most, found)
            undecided += found
        if not undecided:
            return
        await _lock_more(rows, decisions, {limiter.number: limiter for run in undecided for limiter in run.limiters})
        undecided = decisions.decide(undecided, last=number_of_round == _ROUNDS)


async def _lock_more(rows: LimiterRows, decisions: LimitDecisions, limiters: Mapping[int, Limiter]) -> None:
    missing = {number: limiters[number] for number in sorted(limiters) if not decisions.has(number)}
    if missing:
        decisions.learn(await rows.try_lock(missing), rows.now)


async def _recall(
    rows: LimiterRows, decisions: LimitDecisions, breakers: Sequence[int], most: int = MOST_RECALLED
) -> None:
    """Block the queued runs of open breakers again."""
    found = await rows.find_queued(breakers, most)
    await _lock_more(rows, decisions, {limiter.number: limiter for limiters in found.values() for limiter in limiters})
    recalled = {run: limiters for run, limiters in found.items() if all(decisions.has(one.number) for one in limiters)}
    for limiters in recalled.values():
        decisions.release(LimitRelease(limiters))
    if recalled:
        await rows.recall(sorted(recalled))
    decisions.recalled += len(recalled)
