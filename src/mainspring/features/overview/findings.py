"""The findings of the overview: what is wrong with the cluster."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from urllib.parse import quote

import msgspec

from mainspring.core.model.base.instant import HOUR, SECOND, Instant
from mainspring.http.schemas.datacenters import DatacenterOut
from mainspring.http.schemas.dead_letters import GroupOut
from mainspring.http.schemas.queues import QueueOut
from mainspring.http.schemas.runs import RunOut
from mainspring.http.schemas.stats import MissedSlo, Point
from mainspring.http.schemas.usage import BudgetOut
from mainspring.http.schemas.workers import Schedulers, Workers
from mainspring.web.formatting import describe_stranded, duration, instant, plural

#: The start delay above which a run is late, in milliseconds.
LATE_MS = 10_000
_CLOCK_MS = 1_000
#: The share of failed runs in the last hour that is reported, and the fewest runs for which it is meaningful.
_HIGH_SHARE = 0.2
_FEWEST = 20
#: How many late runs are shown.
_LATEST = 6


class Finding(NamedTuple):
    """A problem that the overview reports."""

    words: str
    #: The page to look at, relative to the base.
    path: str = ""
    bad: bool = False


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """The data that the overview has read."""

    workers: Workers
    schedulers: Schedulers
    now: Instant
    queues: Sequence[QueueOut] = ()
    #: Ended runs over time, covering at least the last hour.
    points: Sequence[Point] = ()
    #: The largest groups of dead letters.
    groups: Sequence[GroupOut] = ()
    #: Whether there may be more groups.
    more_groups: bool = False
    budgets: Sequence[BudgetOut] = ()
    missed: Sequence[MissedSlo] = ()
    datacenters: Sequence[DatacenterOut] = ()
    #: Late runs with their delay in seconds, longest delay first.
    late: Sequence[tuple[RunOut, float]] = ()


def findings(seen: Seen) -> list[Finding]:
    """Return the problems of the cluster, worst first. Empty if all is well."""
    found = [
        *_processes(seen),
        *_queues(seen),
        *_datacenters(seen),
        *_runs(seen),
        *_slos(seen),
        *_budgets(seen),
        *_clocks(seen),
    ]
    return sorted(found, key=lambda finding: not finding.bad)


def late_runs(runs: Sequence[RunOut], now: Instant, queues: Sequence[QueueOut] = ()) -> list[tuple[RunOut, float]]:
    """Return runs that started, or still wait, long after their due time, with the delay in seconds, longest first.

    Runs that wait for a data center without workers are omitted: they have a finding of their own.
    """
    stranded = {(queue.name, name) for queue in queues for name in queue.stranded}
    found: dict[str, tuple[RunOut, float]] = {}
    for run in runs:
        began = now if run.status == "queued" else instant(run.start_time) if run.start_time else None
        # Skip retries: only the first attempt shows whether the run was late.
        is_stranded = run.status == "queued" and (run.queue, run.datacenter) in stranded
        if began is None or is_stranded or run.attempt_number > 1:
            continue
        late = (began - instant(run.scheduled_for)) / SECOND
        if late * 1_000 > LATE_MS:
            found[run.run_id] = (run, late)
    return sorted(found.values(), key=lambda one: -one[1])[:_LATEST]


def _processes(seen: Seen) -> Iterator[Finding]:
    if not seen.schedulers.items:
        yield Finding("no scheduler is alive: nothing becomes due", bad=True)
    elif seen.schedulers.lag_ms > LATE_MS:
        yield Finding(f"schedulers are {duration(seen.schedulers.lag_ms / 1_000)} behind", bad=True)
    if not seen.workers.items:
        yield Finding("no worker is alive: nothing runs", bad=True)


def _queues(seen: Seen) -> Iterator[Finding]:
    for queue in seen.queues:
        path = f"runs?status=queued&queue={quote(queue.name)}"
        waiting = plural(queue.queued, "run waits", "runs wait")
        if queue.paused:
            yield Finding(f"queue {queue.name} is paused" + (f": {waiting}" if queue.queued else ""), path)
        elif queue.queued and not queue.workers and seen.workers.items:
            yield Finding(f"queue {queue.name} has no workers: {waiting}", path, bad=True)
        elif queue.lag_ms > LATE_MS and seen.workers.items:
            yield Finding(f"queue {queue.name} is {duration(queue.lag_ms / 1_000)} late: {waiting}", path)


def _datacenters(seen: Seen) -> Iterator[Finding]:
    if not seen.workers.items:
        return
    absent = {place.name for place in seen.datacenters if place.health == "no-workers"}
    waiting: Counter[str] = Counter()
    for queue in seen.queues:
        for name, runs in queue.stranded.items():
            waiting[name] += runs
            if name not in absent and queue.workers:
                path = f"runs?status=queued&queue={quote(queue.name)}"
                yield Finding(describe_stranded(name, runs, queue.name), path, bad=True)
    for name in sorted(absent):
        if waiting[name]:
            yield Finding(describe_stranded(name, waiting[name]), "datacenters", bad=True)
        else:
            yield Finding(f"data center {name} has no workers", "datacenters")


def _runs(seen: Seen) -> Iterator[Finding]:
    hour = [point for point in seen.points if instant(point.time) > seen.now - HOUR]
    failed = sum(point.failed for point in hour)
    ended = failed + sum(point.succeeded for point in hour)
    if ended >= _FEWEST and failed > ended * _HIGH_SHARE:
        words = f"{failed / ended:.0%} of the runs of the last hour failed: {failed:,} of {ended:,}"
        yield Finding(words, "runs?status=failed", bad=True)
    if dead := sum(group.trend[-1] for group in seen.groups if group.trend):
        least = "at least " if seen.more_groups else ""
        yield Finding(f"{least}{plural(dead, 'dead letter')} in the last hour", "dead-letters")
    if seen.late:
        run, seconds = seen.late[0]
        yield Finding(f"runs are up to {duration(seconds)} late", f"runs/{run.run_id}")


def _slos(seen: Seen) -> Iterator[Finding]:
    for job in seen.missed:
        since = job.slo_state.missed_since
        for_how_long = f" for {duration((seen.now - instant(since)) / SECOND)}" if since is not None else ""
        yield Finding(f"{job.name} misses its objective{for_how_long}", f"jobs/{job.job_id}")


def _budgets(seen: Seen) -> Iterator[Finding]:
    for budget in seen.budgets:
        if budget.state == "over":
            paused = f", and its {budget.of} is paused" if budget.held else ""
            path = f"tenants/{quote(budget.tenant, safe='')}"
            yield Finding(f"budget {budget.name} of {budget.tenant} is spent{paused}", path, bad=budget.held)


def _clocks(seen: Seen) -> Iterator[Finding]:
    offsets = [one.clock_offset_ms for one in seen.workers.items]
    offsets += [one.clock_offset_ms for one in seen.schedulers.items]
    if off := sum(abs(offset or 0) > _CLOCK_MS for offset in offsets):
        yield Finding(f"the clocks of {plural(off, 'process', 'processes')} are wrong by over a second")
