"""Drill model: judges from the store how the death of a scheduler affected the ticks of recurring jobs."""

from collections.abc import Iterable

import msgspec

from mainspring.core.model.base.checks import check_whole
from mainspring.core.model.base.errors import Conflict
from mainspring.core.model.base.instant import SECOND, Instant, Micros
from mainspring.core.model.runs.view import RunView
from mainspring.core.model.schedules.job import Job, LedgerEntry
from mainspring.core.model.schedules.schedule import ticks_between

#: A tick that became a run later than this counts as late.
LATE: Micros = SECOND
SHORTEST_WATCH: Micros = 3 * SECOND
#: Callers do not wait for an answer that takes longer.
LONGEST_WATCH: Micros = 25 * SECOND
#: Ticks of one job; there cannot be more in the longest watch.
_MAX_TICKS = 100


class ObservedJob(msgspec.Struct, frozen=True, kw_only=True):
    """The expected ticks of a recurring job, and what the store has of them."""

    ticks: tuple[Instant, ...]
    #: The job's target data centers: each has its own ledger row for every tick.
    targets: tuple[str, ...] = ()
    ledger: tuple[LedgerEntry, ...] = ()
    runs: tuple[RunView, ...] = ()


class TickOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of the watched ticks."""

    #: Expected ticks.
    ticks: int = 0
    #: Ticks that became a run more than ``LATE`` after they were due; and the largest delay of all.
    late: int = 0
    latest: Micros = 0
    #: Ticks without a ledger row.
    missed: int = 0
    #: Ticks with more than one ledger row or more than one run.
    doubled: int = 0

    @property
    def passed(self) -> bool:
        return not self.missed and not self.doubled


def check_watch(watch: Micros) -> None:
    check_whole("watch", watch, SHORTEST_WATCH, LONGEST_WATCH, "3 to 25 seconds")


def check_allowed(*, in_production: bool, confirmed: bool) -> None:
    """Refuse a drill in production unless the caller confirms it."""
    if in_production and not confirmed:
        raise Conflict(
            "drills are not allowed in production (setting `production`) without confirmation: "
            "set --in-production, or inProduction over HTTP"
        )


def list_expected_ticks(job: Job, until: Instant) -> tuple[Instant, ...]:
    """Return the job's ticks up to ``until`` that can be known now.

    Ticks of a fixed delay, and ticks that may come early, cannot.
    """
    first = job.first_tick
    if first is None or job.spec.fixed_delay is not None or job.spec.looks_ahead:
        return ()
    return tuple(ticks_between(job.spec.schedule, first - 1, until, job.id, _MAX_TICKS))


def judge_ticks(jobs: Iterable[ObservedJob]) -> TickOutcome:
    ticks = late = latest = missed = doubled = 0
    for job in jobs:
        rows: dict[Instant, list[str]] = {}
        for entry in job.ledger:
            rows.setdefault(entry.scheduled_at, []).append(entry.target)
        runs: dict[Instant, list[RunView]] = {}
        for run in job.runs:
            if run.scheduled_at is not None:
                runs.setdefault(run.scheduled_at, []).append(run)
        for tick in job.ticks:
            ticks += 1
            tick_runs, targets = runs.get(tick, []), rows.get(tick, [])
            found_targets = set(targets)
            missed += not (found_targets.issuperset(job.targets) if found_targets else _is_covered(job.ledger, tick))
            doubled += len(targets) > len(found_targets) or len({run.id for run in tick_runs}) > max(
                len(found_targets), 1
            )
            lateness = max((run.created_at - run.due for run in tick_runs), default=0)
            late += lateness > LATE
            latest = max(latest, lateness)
    return TickOutcome(ticks=ticks, late=late, latest=latest, missed=missed, doubled=doubled)


def _is_covered(ledger: Iterable[LedgerEntry], tick: Instant) -> bool:
    """Whether a ledger row stands for several ticks, including this one."""
    return any(entry.last_at is not None and entry.scheduled_at <= tick <= entry.last_at for entry in ledger)
