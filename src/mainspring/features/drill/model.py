"""A drill: what the death of a scheduler did to the ticks of recurring jobs, by what the store has of them."""

from collections.abc import Iterable

import msgspec

from mainspring.core.model.base.checks import check_whole
from mainspring.core.model.base.errors import Conflict
from mainspring.core.model.base.instant import SECOND, Instant, Micros
from mainspring.core.model.runs.view import RunView
from mainspring.core.model.schedules.job import Job, LedgerEntry
from mainspring.core.model.schedules.schedule import ticks_between

#: A tick that became a run later than this was late.
LATE: Micros = SECOND
SHORTEST_WATCH: Micros = 3 * SECOND
#: An answer that takes longer is not waited for.
LONGEST_WATCH: Micros = 25 * SECOND
#: Of one job: more than there can be in the longest watch.
_MOST_TICKS = 100


class Observed(msgspec.Struct, frozen=True, kw_only=True):
    """One recurring job: the ticks that were to come, and what the store has of them."""

    ticks: tuple[Instant, ...]
    #: The data centres that it names: each has a row of its own for every tick.
    targets: tuple[str, ...] = ()
    ledger: tuple[LedgerEntry, ...] = ()
    runs: tuple[RunView, ...] = ()


class TickFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What became of ticks."""

    #: That were to come.
    ticks: int = 0
    #: Became a run more than ``LATE`` after they were due; and the latest of all, by how much.
    late: int = 0
    latest: Micros = 0
    #: The ledger has no row for them.
    missed: int = 0
    #: Have more than one row, or more than one run.
    doubled: int = 0

    @property
    def harmless(self) -> bool:
        return not self.missed and not self.doubled


def check_watch(watch: Micros) -> None:
    check_whole("watch", watch, SHORTEST_WATCH, LONGEST_WATCH, "3 to 25 seconds")


def check_allowed(*, in_production: bool, insists: bool) -> None:
    """Whoever drills where it counts must say that they know it."""
    if in_production and not insists:
        raise Conflict(
            "this is production (the setting production): a drill there must be asked for as one, "
            "with --in-production, or inProduction over HTTP"
        )


def coming_ticks(job: Job, until: Instant) -> tuple[Instant, ...]:
    """The ticks of a job up to then that can be known now: not those of a fixed delay, or that may come early."""
    first = job.first_tick
    if first is None or job.spec.fixed_delay is not None or job.spec.looks_ahead:
        return ()
    return tuple(ticks_between(job.spec.schedule, first - 1, until, job.id, _MOST_TICKS))


def judge_ticks(jobs: Iterable[Observed]) -> TickFigures:
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
            made, targets = runs.get(tick, []), rows.get(tick, [])
            places = set(targets)
            missed += not (places.issuperset(job.targets) if places else _is_spanned(job.ledger, tick))
            doubled += len(targets) > len(places) or len({run.id for run in made}) > max(len(places), 1)
            lateness = max((run.created_at - run.due for run in made), default=0)
            late += lateness > LATE
            latest = max(latest, lateness)
    return TickFigures(ticks=ticks, late=late, latest=latest, missed=missed, doubled=doubled)


def _is_spanned(ledger: Iterable[LedgerEntry], tick: Instant) -> bool:
    """Whether one row stands for several ticks, this one among them."""
    return any(entry.last_at is not None and entry.scheduled_at <= tick <= entry.last_at for entry in ledger)
